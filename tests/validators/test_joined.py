"""Several topics judged as one, and chains judged end to end: on frames made by hand."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from topicproof.validators.finding import Bounds, Part, PartitionBounds
from topicproof.validators.lineage.headers import LINEAGE_HEADER
from topicproof.validators.lineage.identity import through
from topicproof.validators.merged_topics import join, split
from topicproof.validators.offsets import PARTITIONS_FREE, by_partition, with_numbered_input
from topicproof.validators.readings import COLUMNS

INVOICES = Bounds("invoices", (PartitionBounds(0, 0, 5, 5), PartitionBounds(1, 2, 7, 9)))
PAYMENTS = Bounds("payments", (PartitionBounds(0, 1, 4, 4),))


def test_topics_are_joined_and_split_again() -> None:
    """Story: two topics become one whose partitions are numbered consecutively; one topic is left
    unchanged. Each place still leads to its topic."""
    both = join([INVOICES, PAYMENTS])
    assert both.topic == "invoices + payments" and both.parts == (
        Part("invoices", 0),
        Part("payments", 2),
    )
    assert [p.partition for p in both.partitions] == [0, 1, 2] and both.offsets == 5 + 7 + 3
    assert split(both) == [(INVOICES, 0), (PAYMENTS, 2)]
    assert [both.place(n) for n in range(3)] == [("invoices", 0), ("invoices", 1), ("payments", 0)]
    assert (
        join([PAYMENTS]) is PAYMENTS
        and split(PAYMENTS) == [(PAYMENTS, 0)]
        and PAYMENTS.place(3) == ("payments", 3)
    )


def test_inputs_are_named_by_the_joined_source(spark: SparkSession) -> None:
    """Story: records name inputs of either topic, of a third one, and none. The first two get the
    joined numbers; the others stay strangers."""
    rows = [("invoices", 1), ("payments", 0), ("letters", 0), (None, None)]
    frame = spark.createDataFrame(rows, "source_topic string, source_partition int")
    named = with_numbered_input(frame, join([INVOICES, PAYMENTS]))
    assert [tuple(row) for row in named.collect()] == [
        ("invoices + payments", 1),
        ("invoices + payments", 2),
        ("letters", 0),
        (None, None),
    ]


def test_one_number_decides_no_memory(spark: SparkSession) -> None:
    """Story: a number of a partition comes from a stranger. A column has a place for each number up
    to it, so it is refused beyond what a topic has; a topic that is asked for one of its many
    partitions is not."""
    for largest in (2 + PARTITIONS_FREE + 1, 2**31 - 1, 10**30):
        with pytest.raises(ValueError, match=f"{largest:,}, and there are 1"):
            by_partition("partition", {largest: 7})
    numbers = {3: 4, 1_000: 5}
    frame = spark.createDataFrame([(3,), (4,), (1_000,), (1_001,)], "partition int")
    rows = frame.select(by_partition("partition", numbers)).collect()
    assert [row[0] for row in rows] == [4, None, 5, None]


def reading(spark: SparkSession, *lineages: str | None) -> DataFrame:
    """One partition, one record an offset, each with the lineage that is given, and another
    header."""
    rows = [
        (
            *(0, offset, None, b"k", b"v"),
            [("colour", b"red")]
            + ([(LINEAGE_HEADER, lineage.encode())] if lineage is not None else []),
        )
        for offset, lineage in enumerate(lineages)
    ]
    return spark.createDataFrame(rows, COLUMNS)


def test_lineage_is_followed_through_the_topics_between(spark: SparkSession) -> None:
    """Story: numbers -> kept -> squares. A square whose input lies in kept is an output of a
    number; one whose input is missing there, has no lineage itself, or lies in another topic, is an
    output of nothing. Nothing else changes."""
    kept = reading(spark, "numbers/0/4/0", None, "numbers/3/9/2")
    squares = reading(
        spark,
        "kept/0/0/0",
        "kept/0/1/0",
        "kept/0/2/0",
        "kept/0/7/0",
        "other/0/0/0",
        None,
        "kept/00/0/0",
    )
    found = through(squares, kept, "kept").orderBy("offset").collect()
    assert [dict(row["headers"]).get(LINEAGE_HEADER) for row in found] == [
        b"numbers/0/4/0",
        *(None,),
        b"numbers/3/9/2",
        *(None, None, None, None),
    ]
    assert all(dict(row["headers"])["colour"] == b"red" and row["value"] == b"v" for row in found)
