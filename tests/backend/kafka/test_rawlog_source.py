"""The raw log through Spark, held against the raw log of one process."""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.errors.exceptions.base import PySparkException
from pyspark.sql import SparkSession

from tests.backend.kafka.topics import Writer, delete_below
from topicproof.backend.address import Address
from topicproof.backend.errors import UsageError
from topicproof.backend.kafka.log.batches import SCHEMA
from topicproof.backend.kafka.log.rawlog import fetch_bounds, scan
from topicproof.backend.kafka.log.rawlog_source import COLUMNS, FORMAT, KafkaRawLog, SourceOptions
from topicproof.validators.finding import Bounds, PartitionBounds

NewTopic = Callable[..., str]

NEEDED = {"kafka.bootstrap.servers": "b:1", "topic": "t"}
ORDER = [("partition", "ascending"), ("base_offset", "ascending")]


def rows(spark: SparkSession, bootstrap: str, topic: str, **options: str) -> pa.Table:
    """What the data source gives, in the order of the log."""
    given = {"kafka.bootstrap.servers": bootstrap, "topic": topic, **options}
    return spark.read.format(FORMAT).options(**given).load().toArrow().sort_by(ORDER).cast(SCHEMA)


@pytest.mark.parametrize("per_task", ["23", "1000000"])
def test_spark_reads_what_one_process_reads(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, per_task: str
) -> None:
    """Batches of five and twenty records lie across the borders of the tasks, the log starts inside
    one, an open transaction ends it, and one partition is empty. Every batch comes once and
    whole."""
    spark.dataSource.register(KafkaRawLog)
    topic = new_topic(partitions=3)
    writer = Writer(bootstrap, topic, {"compression.type": "zstd"})
    for _ in range(4):
        writer.write("A20 n5 A-", partition=0)
        writer.write("n5 A20 A+ B1", partition=2)
    delete_below(bootstrap, topic, 9)
    bounds = fetch_bounds(Address(bootstrap), topic)
    frame = (
        spark.read.format(FORMAT)
        .options(**{"kafka.bootstrap.servers": bootstrap, "topic": topic})
        .load()
    )
    assert frame.schema == spark.createDataFrame([], COLUMNS).schema
    expected = scan(Address(bootstrap), topic, bounds)
    assert expected["base_offset"][0].as_py() == 9 and expected.num_rows > 20
    assert rows(spark, bootstrap, topic, offsetsPerTask=per_task, checkCrc="true").equals(expected)
    # Bounds of one's own cut the first and the last batch, and only those.
    chosen = Bounds(topic, (PartitionBounds(0, 12, 40, 40), PartitionBounds(2, 3, 60, 60)))
    spans = json.dumps({p.partition: [p.start, p.hw] for p in chosen.partitions})
    assert rows(spark, bootstrap, topic, offsetsPerTask=per_task, bounds=spans).equals(
        scan(Address(bootstrap), topic, chosen)
    )


def test_an_empty_topic_is_an_empty_frame(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic
) -> None:
    """Nothing was ever written. There is no task, and no error."""
    spark.dataSource.register(KafkaRawLog)
    assert rows(spark, bootstrap, new_topic(partitions=2)).num_rows == 0


def test_a_missing_topic_is_named_by_spark_too(spark: SparkSession, bootstrap: str) -> None:
    """Somebody misspells a topic. Spark's error holds the sentence that everybody else gets."""
    spark.dataSource.register(KafkaRawLog)
    with pytest.raises(PySparkException, match="There is no topic squars at"):
        rows(spark, bootstrap, "squars")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
        ({"topic": ""}, "topic is missing"),
        ({"colour": "red"}, "unknown option colour"),
        ({"offsetsPerTask": "0"}, "offsetsPerTask is 0"),
        ({"checkCrc": "perhaps"}, "checkCrc is perhaps"),
        ({"bounds": "[1, 2]"}, r"bounds is \[1, 2\]"),
        ({"bounds": '{"0": [1]}'}, "it must be JSON such as"),
    ],
)
def test_an_option_that_is_wrong_is_named(options: dict[str, str], sentence: str) -> None:
    """An option is missing, unknown or no number. The sentence names it."""
    with pytest.raises(UsageError, match=sentence):
        SourceOptions.parse({**NEEDED, **options})


def test_client_properties_reach_the_client() -> None:
    """The cluster needs a password. Its properties are handed on without Spark's prefix."""
    found = SourceOptions.parse({**NEEDED, "kafka.sasl.mechanism": "PLAIN"})
    assert found.address == Address("b:1", {"sasl.mechanism": "PLAIN"})
