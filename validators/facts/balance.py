"""What the raw log says, and the balance: where every offset of the bounds went.

Each term has a source of its own: records from the readings, markers from the control batches, gone
offsets from the batch headers, pending ones from the last stable offset. What is left is
unexplained, and must be 0. The one exception is a compacted batch that straddles the start of the
bounds: its header counts the records of both sides, so that the reading decides within what the
header allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from topicproof.validators.facts.marks import marked
from topicproof.validators.finding import Balance, Bounds, Fate, PartitionBounds
from topicproof.validators.offsets import bits, bound, word

BATCH_COLUMNS = (
    "partition int, base_offset long, last_offset long, count int, producer_id long, producer_epoch"
    " int, base_sequence int, transactional boolean, control string, first_timestamp long,"
    " max_timestamp long, size int, compression string, leader_epoch int"
)
"""The raw log's `batches`: one row per record batch. `control` is null, 'COMMIT' or 'ABORT';
timestamps are in ms."""

TRANSACTION_COLUMNS = (
    "partition int, producer_id long, producer_epoch int, first_offset long, last_offset long,"
    " records long, outcome string, marker_offset long"
)
"""The raw log's `transactions`: one row per transaction and partition, offsets of its data,
`outcome` 'COMMITTED', 'ABORTED', 'OPEN', or 'UNEXPLAINED' for one below the last stable offset
without a marker. Data and markers are folded per (partition, producer id) in offset order; epochs
do not match: the markers of Java clients, fences and timeouts carry the data's epoch + 1
(KIP-890)."""


@dataclass(frozen=True)
class RawLog:
    """What the brokers' log says of itself, with `BATCH_COLUMNS` and `TRANSACTION_COLUMNS`."""

    batches: DataFrame
    transactions: DataFrame
    tables: tuple[pa.Table, pa.Table]
    """The same two."""


class Straddle(NamedTuple):
    """A sparse batch that begins below the bounds: how many of its offsets inside may be gone, by
    its header."""

    last: int
    width: int
    """Its offsets inside the bounds."""
    gone_min: int
    gone_max: int


class Headers(NamedTuple):
    """What the batch headers of one partition say of the offsets from `start` to below the last
    stable offset."""

    covered: int
    """Offsets that lie in some batch."""
    markers: int
    emptied: int
    """Offsets inside batches that hold nothing any more, without those of a straddling batch."""
    straddle: Straddle | None
    batches: int
    """Data batches; `sequenced` are those of producers that number their records, `plain` are in no
    transaction."""
    sequenced: int
    plain: int
    holes: int
    """The odd ones of validators/facts/marks.py."""
    stale: int
    second_ends: int
    interleaved: int


class Records(NamedTuple):
    """What the readings say of one partition."""

    committed: int
    aborted: int
    never_transactional: int
    straddling: int
    """Records of the sparse batch that straddles the start."""


def words_of_batches(raw_log: RawLog, bounds: Bounds) -> DataFrame:
    """Sets of offsets, by partition and word: `covered` by a data batch, `transactional`, `stable`
    and `unstable` (of a transaction that the markers committed, aborted)."""
    offsets = F.explode(F.sequence("at", "last_offset")).alias("offset")
    every = spans(raw_log, bounds).select("partition", offsets, "transactional", "outcome")
    return every.groupBy("partition", word("offset").alias("word")).agg(
        bits("offset").alias("covered"),
        bits("offset", F.col("transactional")).alias("transactional"),
        bits("offset", F.col("outcome") == Fate.COMMITTED.value).alias("stable"),
        bits("offset", F.col("outcome") == Fate.ABORTED.value).alias("unstable"),
    )


def spans(raw_log: RawLog, bounds: Bounds) -> DataFrame:
    """The data batches from the start of the bounds on: partition, producer_id, at, last_offset,
    transactional, outcome and began, where its transaction's data begins; the last two are null
    outside of a transaction.

    A batch belongs to the last transaction of its producer that began at or below it, if that one
    reaches it.
    """
    at = F.greatest("base_offset", bound("partition", bounds, "start")).alias("at")
    nothing = F.lit(None).cast("string")
    data = raw_log.batches.where(F.col("control").isNull())
    plain = data.where(~F.col("transactional")).select(
        *("partition", "producer_id", at, "last_offset", "transactional"),
        nothing.alias("outcome"),
        F.lit(None).cast("long").alias("began"),
    )
    batches = data.where("transactional").select(
        "partition",
        "producer_id",
        at,
        F.lit(1).alias("turn"),
        "last_offset",
        nothing.alias("known"),
    )
    begins = raw_log.transactions.select(
        "partition",
        "producer_id",
        F.greatest("first_offset", bound("partition", bounds, "start")).alias("at"),
        F.lit(0).alias("turn"),
        "last_offset",
        F.col("outcome").alias("known"),
    )
    so_far = Window.partitionBy("partition", "producer_id").orderBy("at", "turn")
    last = F.last(
        F.when(F.col("turn") == 0, F.struct("at", "last_offset", "known")), ignorenulls=True
    ).over(so_far)
    transactional = (
        batches.unionByName(begins)
        .withColumn("last", last)
        .where(F.col("turn") == 1)
        .select(
            *("partition", "producer_id", "at", "last_offset"),
            F.lit(True).alias("transactional"),
            *(
                F.when(F.col("last.last_offset") >= F.col("at"), F.col(f"last.{name}")).alias(alias)
                for name, alias in (("known", "outcome"), ("at", "began"))
            ),
        )
    )
    return plain.unionByName(transactional).where(F.col("at") <= F.col("last_offset"))


def count_headers(raw_log: RawLog, bounds: Bounds) -> dict[int, Headers]:
    """By partition; one without any batch below its last stable offset is not among them."""
    start, lso = bound("partition", bounds, "start"), bound("partition", bounds, "lso")
    below = F.greatest("base_offset", start)
    above = F.least("last_offset", lso - 1)
    width = F.col("last_offset") - F.col("base_offset") + 1
    straddles = (F.col("base_offset") < start) & (F.col("count") < width)
    data = F.col("control").isNull()
    rows = (
        marked(raw_log.batches)
        .where(settled(bounds))
        .groupBy("partition")
        .agg(
            F.sum(above - below + 1).alias("covered"),
            F.sum(F.when(F.col("control").isNotNull(), F.col("count")).otherwise(0)).alias(
                "markers"
            ),
            F.sum(F.when(F.col("base_offset") < start, 0).otherwise(width - F.col("count"))).alias(
                "emptied"
            ),
            F.max(F.when(straddles, F.struct("last_offset", "base_offset", "count"))).alias(
                "straddle"
            ),
            F.count_if(data).alias("batches"),
            F.count_if(data & (F.col("producer_id") >= 0)).alias("sequenced"),
            F.count_if(data & ~F.col("transactional")).alias("plain"),
            F.count_if("hole").alias("holes"),
            F.count_if("stale").alias("stale"),
            F.count_if("second_end").alias("second_ends"),
            F.count_if("interleaved").alias("interleaved"),
        )
        .collect()
    )
    starts = {one.partition: one.start for one in bounds.partitions}
    return {
        row["partition"]: Headers(
            **{
                **{name: row[name] for name in Headers._fields},
                "straddle": (
                    _straddle(row["straddle"], starts[row["partition"]])
                    if row["straddle"]
                    else None
                ),
            }
        )
        for row in rows
    }


def settled(bounds: Bounds) -> Column:
    """Whether a batch of the raw log reaches into the offsets from `start` to below the last stable
    offset."""
    below = F.greatest("base_offset", bound("partition", bounds, "start"))
    return below <= F.least("last_offset", bound("partition", bounds, "lso") - 1)


def _straddle(batch: Row, start: int) -> Straddle:
    last, base, count = batch["last_offset"], batch["base_offset"], batch["count"]
    width, emptied = last - start + 1, last - base + 1 - count
    return Straddle(last, width, max(0, width - count), min(width, emptied))


def balance_of(bounds: PartitionBounds, records: Records, headers: Headers | None) -> Balance:
    """One partition's balance with the raw log heard. `headers` is None when it has no batch."""
    headers = headers or Headers(0, 0, 0, None, 0, 0, 0, 0, 0, 0, 0)
    gone = bounds.lso - bounds.start - headers.covered + headers.emptied
    if headers.straddle:
        left = headers.straddle.width - records.straddling
        gone += min(max(left, headers.straddle.gone_min), headers.straddle.gone_max)
    return Balance(
        partition=bounds.partition,
        offsets=bounds.hw - bounds.start,
        committed=records.committed,
        aborted=records.aborted,
        pending=bounds.hw - bounds.lso,
        markers=headers.markers,
        gone=gone,
        no_record=None,
        unexplained=_rest(bounds, records) - headers.markers - gone,
        never_transactional=records.never_transactional,
    )


def balance_unheard(bounds: PartitionBounds, records: Records) -> Balance:
    """One partition's balance without the raw log: nobody said what has no record.

    What is left can then only betray too many records, never too few.
    """
    rest = _rest(bounds, records)
    return Balance(
        partition=bounds.partition,
        offsets=bounds.hw - bounds.start,
        committed=records.committed,
        aborted=records.aborted,
        pending=bounds.hw - bounds.lso,
        markers=None,
        gone=None,
        no_record=max(rest, 0),
        unexplained=min(rest, 0),
        never_transactional=None,
    )


def _rest(bounds: PartitionBounds, records: Records) -> int:
    return bounds.lso - bounds.start - records.committed - records.aborted
