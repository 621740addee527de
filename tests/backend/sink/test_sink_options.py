"""The sink's own options: what is refused, and with which words."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from topicproof.backend.errors import UsageError
from topicproof.backend.sink.database import DatabaseSink
from topicproof.backend.sink.options import SinkOptions
from topicproof.backend.sink.stateful import KafkaStatefulSink

GIVEN = {
    "kafka.bootstrap.servers": "broker:9092",
    "group": "g",
    "transactionalIdPrefix": "run",
    "topic": "t",
}


def test_what_is_needed_is_enough() -> None:
    parsed = SinkOptions.parse(GIVEN)
    assert (parsed.bootstrap, parsed.prefix, parsed.guarantee) == (
        "broker:9092",
        "run",
        "exactly_once",
    )


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("transactionalIdPrefix", "team/run", "transactionalIdPrefix holds a slash"),
        (
            "guarantee",
            "twice",
            "guarantee is 'twice'; it must be one of at_most_once, at_least_once, exactly_once.",
        ),
        ("lineage", "none", "lineage is 'none'; it must be one of record, packed, off."),
        (
            "recordsPerTransaction",
            "0",
            "recordsPerTransaction is '0'; it must be a whole number from 1.",
        ),
        ("colour", "red", "unknown option colour"),
    ],
)
def test_a_bad_option_is_named(option: str, value: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        SinkOptions.parse({**GIVEN, option: value})
    assert says in str(refused.value)


@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
def test_packs_lie_in_transactions(guarantee: str) -> None:
    """Story: somebody packs the lineage of a sink without transactions. It is refused, with the
    remedy."""
    with pytest.raises(
        UsageError, match=f"which needs transactions, but {guarantee} has none. Choose record."
    ):
        SinkOptions.parse({**GIVEN, "lineage": "packed", "guarantee": guarantee})


@pytest.mark.parametrize("sink", [KafkaStatefulSink, DatabaseSink])
def test_sinks_that_cannot_pack_say_so(sink: type[DataSource]) -> None:
    """Story: the same for a stateful stage and for a table, of which a task writes outputs of many
    partitions, or rows."""
    schema = (
        StructType()
        .add("topic", "string")
        .add("partition", "integer")
        .add("offset", "long")
        .add("outputs", "binary")
    )
    more = {"url": "sqlite://"} if sink is DatabaseSink else {}
    with pytest.raises(UsageError, match=r"lineage is packed, and a ta.*Choose record\."):
        sink({**GIVEN, "lineage": "packed", **more}).streamWriter(schema, overwrite=False)
