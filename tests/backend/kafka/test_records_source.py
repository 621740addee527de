"""Records that Spark's own Kafka source cannot read because of their timestamps, read all the
same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.backend.kafka.topics import write_headers
from topicproof.backend.address import Address, Sides
from topicproof.backend.evidence.folder import EVIDENCE
from topicproof.backend.judging.capture_store import read_capture
from topicproof.backend.judging.judge import judge_topics
from topicproof.backend.kafka import records_source
from topicproof.backend.kafka.client_configs import (
    READ_COMMITTED,
    idempotent_producer_config,
    spark_source_options,
    transactional_producer_config,
)
from topicproof.backend.kafka.log.rawlog import fetch_bounds
from topicproof.backend.kafka.records_source import (
    MAX_MS,
    MIN_MS,
    RecordsReader,
    read_clamped,
    register,
)
from topicproof.backend.runs.query import explained
from topicproof.validators.finding import Outcome, Witness
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.question import Question
from topicproof.validators.readings import read

NewTopic = Callable[..., str]
YEAR_300000_MS = 9_405_000_000_000_000
LONG_MAX = 2**63 - 1
TODAY_MS = 1_790_000_000_000
ANY_TIME = {
    "message_timestamp_after_max_ms": str(LONG_MAX),
    "message_timestamp_before_max_ms": str(LONG_MAX),
}


def write(
    bootstrap: str, topic: str, timestamps: Sequence[int], times: int = 1, aborted: bool = False
) -> None:
    """One record per timestamp, and the last one as often as `times`; in one transaction."""
    producer = Producer(transactional_producer_config(Address(bootstrap), f"{topic}-writer"))
    producer.init_transactions(10)
    producer.begin_transaction()
    for number, timestamp in enumerate(timestamps):
        for _ in range(times if number == len(timestamps) - 1 else 1):
            headers: list[tuple[str, str | bytes | None]] = (
                [("n", b"1"), ("none", None)] if number else []
            )
            producer.produce(topic, b"v", b"k%d" % number, timestamp=timestamp, headers=headers)
    producer.flush()
    (producer.abort_transaction if aborted else producer.commit_transaction)(10)


def test_the_same_rows_come_as_from_sparks_own_source(
    bootstrap: str, new_topic: NewTopic, spark: SparkSession
) -> None:
    """Story: committed and aborted records, with headers and without. Both readers give the same at
    both levels."""
    topic = new_topic(partitions=2, **ANY_TIME)
    write(bootstrap, topic, [TODAY_MS + number for number in range(7)])
    write(bootstrap, topic, [TODAY_MS] * 3, aborted=True)
    bounds = fetch_bounds(Address(bootstrap), topic)
    options = spark_source_options(Address(bootstrap), READ_COMMITTED)
    register(spark)
    for level in (Witness.READ_COMMITTED, Witness.READ_UNCOMMITTED):
        own, other = (
            read_clamped(spark, Address(bootstrap), bounds, level),
            read(spark, options, bounds, level),
        )
        assert own.schema == other.schema
        order = ("partition", "offset")
        assert own.orderBy(*order).collect() == other.orderBy(*order).collect()


def test_keys_and_headers_count_against_what_a_task_holds(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: records have keys and headers of megabytes, which compress to nothing, and no value. A
    task of Spark hands them on a few at a time."""
    topic = new_topic(partitions=1, **ANY_TIME)
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    large: list[tuple[str, str | bytes | None]] = [("h", bytes(2_000))]
    for headers in ([], [], large, []):
        producer.produce(topic, None, bytes(1_000), headers=headers)
    assert producer.flush() == 0
    monkeypatch.setattr(records_source, "BYTES_AT_ONCE", 3_500)
    options = {
        "bootstrap": bootstrap,
        "client": "{}",
        "topic": topic,
        "level": Witness.READ_COMMITTED.value,
    }
    reader = RecordsReader(options | {"fetch": "1000000", "spans": '{"0": [0, 4]}'})
    (span,) = reader.partitions()
    assert [batch.num_rows for batch in reader.read(span)] == [2, 1, 1]


def test_a_header_whose_name_is_not_text_is_named(
    bootstrap: str, new_topic: NewTopic, spark: SparkSession
) -> None:
    """Story: librdkafka's client cannot read the headers of a record. Their loss would change the
    verdict, so there is none."""
    topic = new_topic()
    write_headers(bootstrap, topic, [b"\xff"])
    register(spark)
    bounds = fetch_bounds(Address(bootstrap), topic)
    with pytest.raises(PySparkException, match="partition 0, offset 0: the name of a header is"):
        read_clamped(spark, Address(bootstrap), bounds, Witness.READ_COMMITTED).collect()


def test_timestamps_that_spark_cannot_hold_do_not_keep_a_topic_from_being_judged(
    bootstrap: str, new_topic: NewTopic, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: three records of a healthy pair have such timestamps, in the middle of a batch: the
    year 300,000, the largest long, and a time before the year 1. The pair holds, the report tells
    of it, and a second output is still a duplicate."""
    source, healthy, doubled = (new_topic(**ANY_TIME) for _ in range(3))
    stamps = [TODAY_MS, YEAR_300000_MS, LONG_MAX, -YEAR_300000_MS, TODAY_MS, TODAY_MS]
    held_ms = [TODAY_MS, MAX_MS, MAX_MS, MIN_MS, TODAY_MS, TODAY_MS]
    for topic, times in ((source, 1), (healthy, 1), (doubled, 2)):
        write(bootstrap, topic, stamps, times)
    for sink, verdict in ((healthy, Outcome.HOLDS), (doubled, Outcome.VIOLATED)):
        question = Question(fetch_bounds(Address(bootstrap), source), sink, identity=Identity.KEY)
        report = judge_topics(spark, Sides(Address(bootstrap)), question, tmp_path / sink)
        assert report.verdict is verdict, report.why
        found = {
            one.kind: one.primary
            for one in report.findings
            if one.primary and one.outcome is Outcome.VIOLATED
        }
        assert found == ({} if verdict is Outcome.HOLDS else {"duplicate": 1})
        assert [note.split()[0] for note in report.notes] == sorted([source, sink])
        kept = read_capture(spark, tmp_path / sink / EVIDENCE).inputs
        held = (
            kept.selectExpr("offset", "unix_millis(timestamp) as held").orderBy("offset").collect()
        )
        assert [row["held"] for row in held] == held_ms


def test_a_query_that_meets_such_a_timestamp_fails_in_plain_words(
    bootstrap: str, new_topic: NewTopic, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: a run is to process such a topic, which Spark's streaming source cannot. The error
    names the cause and the remedy, and no exception of Java."""
    topic = new_topic(**ANY_TIME)
    write(bootstrap, topic, [TODAY_MS, YEAR_300000_MS])
    options = {
        **spark_source_options(Address(bootstrap), READ_COMMITTED),
        "subscribe": topic,
        "startingOffsets": "earliest",
    }
    rows = (
        spark.readStream.format("kafka")
        .options(**options)
        .load()
        .select("timestamp", "value")
        .writeStream
    )
    with pytest.raises(PySparkException) as refused:
        rows.format("noop").option("checkpointLocation", tmp_path.as_uri()).trigger(
            availableNow=True
        ).start().awaitTermination()
    said = str(explained(refused.value))
    assert "a record's timestamp beyond the year 294,246" in said and "Exception" not in said
