"""The columns of every validator's rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from topicproof.validators.circumstances import Removed
from topicproof.validators.coordinator import OpenTransaction
from topicproof.validators.expectation import RANGE
from topicproof.validators.finding import Bounds
from topicproof.validators.readings import frame_of
from topicproof.validators.sentences import counted

COLUMNS = (
    "partition int, offset long, source_topic string, source_partition int, source_offset long,"
    " output_index int, transaction string, explained_by string, badness long, why string"
)
"""One row of evidence.

`partition`, `offset`: its place in the sink; null if the sink holds nothing (a gap). A row about a
whole partition, of the sink or the source, has no offset.
`transaction`: `<transactional id>/<sequence>/<attempt>`, if the record names it. Otherwise what
the logs tell: transactional id, producer id and epoch, outcome and time (facts/writers.py).
`explained_by`: the kind, or the circumstance, that caused this row; null for a primary row.
`badness`: rows with higher values come first; comparable within one kind only.
`why`: one sentence for a person."""
IDENTIFIED = "-identified"
"""Ends the name of a folder that has the rows of another one once more, with the column `identity`:
what identifies the record or its input, if they are matched by that; otherwise null."""


def evidence(
    rows: DataFrame,
    badness: Column,
    why: Column,
    explained_by: Column | None = None,
    transaction: Column | None = None,
) -> DataFrame:
    """Turns `rows` of the ledger's sink into rows of evidence. `transaction`: what names it where
    the headers do not."""
    evidence_rows = rows.withColumns(
        {
            "transaction": F.coalesce(
                _transaction(), F.lit(None) if transaction is None else transaction
            ),
            "explained_by": F.lit(None) if explained_by is None else explained_by,
            "badness": badness,
            "why": why,
        }
    )
    return evidence_rows.select(
        *(F.col(name).cast(kind).alias(name) for name, kind in map(str.split, COLUMNS.split(", ")))
    )


def of_log(rows: DataFrame) -> DataFrame:
    """Adds nulls for lineage and headers to rows of the raw log, which have neither."""
    types = {
        "source_topic": "string",
        "source_partition": "int",
        "source_offset": "long",
        "output_index": "int",
        "transactional_id": "string",
        "sequence": "long",
        "attempt": "int",
    }
    return rows.withColumns({name: F.lit(None).cast(kind) for name, kind in types.items()})


def of_source(rows: DataFrame, topic: str) -> DataFrame:
    """Adds nulls for the sink's columns to rows of the source without a record in the sink."""
    types = {
        "partition": "int",
        "offset": "long",
        "transactional_id": "string",
        "sequence": "long",
        "attempt": "int",
    }
    nothing = {name: F.lit(None).cast(kind) for name, kind in types.items()}
    return rows.withColumns({"source_topic": F.lit(topic), **nothing})


def together(frames: Sequence[DataFrame]) -> DataFrame | None:
    """Joins rows of evidence into one frame; None if there is none."""
    return reduce(lambda joined, more: joined.unionByName(more), frames) if frames else None


def removed(
    spark: SparkSession,
    side: str,
    bounds: Bounds,
    lost: Mapping[int, Removed],
    policies: Mapping[str, str],
    accepted: bool,
) -> DataFrame | None:
    """Returns one row of evidence for each partition that has lost records. `side`: source or sink.
    `policies`: each topic's `cleanup.policy`. `accepted`: the contract judges only what is still
    there, so nothing depends on the loss."""
    rows = []
    for partition_bounds in bounds.partitions:
        gone = lost.get(partition_bounds.partition, Removed())
        topic, _ = bounds.place(partition_bounds.partition)
        start = partition_bounds.start
        losses = []
        if gone.below:
            losses.append(
                f"retention or DeleteRecords removed {counted(gone.below, 'offset')} below its log"
                f" start {start:,}"
            )
        if gone.inside:
            losses.append(
                f"compaction removed {counted(gone.inside, 'offset')} at or above its log start"
                f" {start:,}"
            )
        if losses:
            policy = (
                f" The topic's cleanup.policy is {policies[topic]}." if policies.get(topic) else ""
            )
            why = " and ".join(losses)
            why = f"{why[:1].upper()}{why[1:]}.{policy}"
            # The whole partition is the place, and no offset of it.
            number = partition_bounds.partition
            of_sink = (number, None, None, None, None, None, None)
            of_source = (None, None, bounds.topic, number, None, None, None)
            place = of_sink if side == "sink" else of_source
            rows.append((*place, RANGE if accepted else None, gone.offsets, why))
    return frame_of(spark, rows, COLUMNS) if rows else None


def records(count: str, kind: str = "") -> Column:
    """Formats a count column as `1 record`, `20 aborted records`."""
    noun = f"{kind} record".strip()
    return F.format_string(f"%d {noun}%s", count, F.when(F.col(count) == 1, "").otherwise("s"))


def _transaction() -> Column:
    return F.when(
        F.col("transactional_id").isNotNull(),
        F.concat_ws("/", "transactional_id", "sequence", "attempt"),
    )


class Row(NamedTuple):
    """A row of evidence about a transaction rather than a record."""

    partition: int | None
    """None for a place outside the sink."""
    offset: int | None
    transaction: str
    explained_by: str | None
    badness: int
    why: str


def row(transaction: OpenTransaction, why: str, explained_by: str | None = None) -> Row:
    """Returns a row at the transaction's place in the sink; the more it withholds, the worse it
    is."""
    return Row(
        transaction.partition,
        transaction.start_offset,
        transaction.name,
        explained_by,
        transaction.withheld,
        why,
    )


def of_transactions(spark: SparkSession, rows: Iterable[Row]) -> DataFrame | None:
    """Returns the rows as evidence; None if there are none."""
    values = [(entry.partition, entry.offset, None, None, None, None, *entry[2:]) for entry in rows]
    return frame_of(spark, values, COLUMNS) if values else None
