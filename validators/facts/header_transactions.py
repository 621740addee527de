"""Transactions named by the records' own headers, compared with those in the raw log.

A name is (transactional id, sequence, attempt, task). The random token of the task distinguishes a
replay from the original. In a sound log, the records of one name in one partition are exactly one
transaction of the raw log. Only deviations are examined record by record (`attributed`). A run's
journal declares outcomes by the same names (`outcomes_of`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window, functions as F

from topicproof.validators.facts.raw_log import RawLog, spans
from topicproof.validators.finding import Bounds, Fate
from topicproof.validators.offsets import bound

NAME = ("transactional_id", "sequence", "attempt", "task")
IDS_MAX = 10_000
"""Transactional ids that headers name and that are told apart. Real pipelines have some hundreds,
but a header costs its writer nothing."""
ID_CHARACTERS_MAX = 1_000
_FIRST = ("offset", "source_topic", "source_partition", "source_offset", "output_index")


class TransactionalId(NamedTuple):
    """Counts from the headers of one transactional id, and how they compare with the raw log and
    the journal."""

    transactional_id: str
    records: int
    committed: int
    """Transactions. One with a committed record is committed; otherwise one with a pending record
    is open; all others are aborted."""
    aborted: int
    open: int
    strangers: int
    """Groups of one name in one partition that are not exactly one transaction of the raw log."""
    split: int
    """Transactions that the raw log commits in one partition and aborts in another."""
    misdeclared: int
    """Groups whose marker contradicts the journal."""
    torn: int
    """Transactions in the raw log with some committed records, none pending, and fewer committed
    records than their headers claim."""
    unknown: int
    """Transactions in the raw log whose outcome the journal does not know."""
    changed: bool
    """Whether more than one producer id or epoch wrote for it."""
    source_partition: int | None
    """The source partition of its committed records; null if there is none or more than one."""
    first_input: int | None
    last_input: int | None


def named(sink: DataFrame, raw_log: RawLog | None, bounds: Bounds) -> DataFrame:
    """Returns one row per name and sink partition, located at its first record.

    partition, `_FIRST` and `NAME`; last_offset, records; total (records of the whole transaction
    according to its headers); committed, aborted, pending (records by fate); stable and unstable
    (records by the raw log's marker); declared, reason (from the journal); first_source,
    last_source (source partitions), first_input, last_input (of the committed records); producer_id
    and producer_epoch of the raw log transaction that matches exactly, null if there is none.
    """
    fate, committed = F.col("fate"), F.col("fate") == Fate.COMMITTED.value
    groups = (
        sink.where(F.col("transactional_id").isNotNull())
        .groupBy("partition", *NAME)
        .agg(
            F.min(F.struct(*_FIRST)).alias("first"),
            F.max("offset").alias("last_offset"),
            F.count("*").alias("records"),
            F.max("total").alias("total"),
            F.count_if(committed).alias("committed"),
            F.count_if(fate == Fate.ABORTED.value).alias("aborted"),
            F.count_if(fate == Fate.PENDING.value).alias("pending"),
            F.count_if(F.col("outcome") == Fate.COMMITTED.value).alias("stable"),
            F.count_if(F.col("outcome") == Fate.ABORTED.value).alias("unstable"),
            F.max("declared").alias("declared"),
            F.max("reason").alias("reason"),
            F.min(F.when(committed, F.col("source_partition"))).alias("first_source"),
            F.max(F.when(committed, F.col("source_partition"))).alias("last_source"),
            F.min(F.when(committed, F.col("source_offset"))).alias("first_input"),
            F.max(F.when(committed, F.col("source_offset"))).alias("last_input"),
        )
        .select("*", *(F.col(f"first.{name}").alias(name) for name in _FIRST))
        .drop("first")
    )
    if raw_log is None:
        return groups.withColumns(
            {name: F.lit(None).cast("long") for name in ("producer_id", "producer_epoch")}
        )
    logged = raw_log.transactions.select(
        "partition",
        F.greatest("first_offset", bound("partition", bounds, "start")).alias("offset"),
        F.least(F.col("last_offset"), bound("partition", bounds, "hw") - 1).alias("last_offset"),
        "producer_id",
        F.col("producer_epoch").cast("long").alias("producer_epoch"),
    )
    return groups.join(logged, ["partition", "offset", "last_offset"], "left")


def count_ids(groups: DataFrame) -> tuple[TransactionalId, ...]:
    """Summarises `named` by transactional id: at most one more than `IDS_MAX`, with their first
    `ID_CHARACTERS_MAX` + 1 characters (`beyond_limits`)."""
    alien = F.col("producer_id").isNull()
    misdeclared = (F.col("stable") > 0) & (F.col("declared") == Fate.ABORTED.value)
    misdeclared |= (F.col("unstable") > 0) & (F.col("declared") == Fate.COMMITTED.value)
    identity = F.struct("producer_id", "producer_epoch")
    whole = {side: F.max(F.when(~alien, F.col(side))) > 0 for side in ("stable", "unstable")}
    # The guarantees without transactions write the same headers, but promise nothing for a batch
    # that a crash cuts short.
    transactional = F.sum(F.col("stable") + F.col("unstable")) > 0
    names = groups.groupBy(*NAME).agg(
        F.sum("records").alias("records"),
        F.max("committed").alias("committed"),
        F.max("pending").alias("pending"),
        F.count_if(alien).alias("strangers"),
        (whole["stable"] & whole["unstable"]).alias("split"),
        F.count_if(misdeclared).alias("misdeclared"),
        (
            transactional
            & F.sum("committed").between(1, F.max("total") - 1)
            & (F.max("pending") == 0)
        ).alias("torn"),
        (F.max("declared").isNull() & (transactional | (F.max("pending") > 0))).alias("unknown"),
        F.min(F.when(~alien, identity)).alias("lowest"),
        F.max(F.when(~alien, identity)).alias("highest"),
        *_inputs(),
    )
    committed, pending = F.col("committed") > 0, F.col("pending") > 0
    ids = names.groupBy("transactional_id").agg(
        F.sum("records").alias("records"),
        F.count_if(committed).alias("committed"),
        F.count_if(~committed & pending).alias("open"),
        F.count_if(~committed & ~pending).alias("aborted"),
        F.sum("strangers").alias("strangers"),
        F.count_if("split").alias("split"),
        F.sum("misdeclared").alias("misdeclared"),
        F.count_if("torn").alias("torn"),
        F.count_if("unknown").alias("unknown"),
        F.coalesce(F.min("lowest") != F.max("highest"), F.lit(False)).alias("changed"),
        *_inputs(),
    )
    has_one_source = F.col("first_source") == F.col("last_source")
    rows = (
        ids.withColumn("source_partition", F.when(has_one_source, F.col("first_source")))
        .withColumn("transactional_id", F.substring("transactional_id", 1, ID_CHARACTERS_MAX + 1))
        .orderBy("transactional_id")
        .limit(IDS_MAX + 1)
        .collect()
    )
    return tuple(TransactionalId(*(row[name] for name in TransactionalId._fields)) for row in rows)


def beyond_limits(ids: Collection[str]) -> int:
    """Returns how many of these transactional ids are too many or too long to be told apart."""
    too_long = sum(len(transactional_id) > ID_CHARACTERS_MAX for transactional_id in ids)
    return max(too_long, len(ids) - IDS_MAX, 0)


def _inputs() -> list[Column]:
    return [
        *(F.min(name).alias(name) for name in ("first_source", "first_input")),
        *(F.max(name).alias(name) for name in ("last_source", "last_input")),
    ]


def attributed(sink: DataFrame, raw_log: RawLog, bounds: Bounds) -> DataFrame:
    """Returns the names within each transaction of the raw log, record by record: one row per
    transaction, partition and name.

    partition, producer_id, began (where the transaction's data begins) and `NAME`, with `_FIRST` of
    its first record; records; names (how many share the transaction); ids (distinct transactional
    ids in headers written by the producer id: a producer has one, so more mean that the records
    were copied from another log); first_began (where the first transaction with this name in this
    partition begins).
    """
    places = spans(raw_log, bounds).where("transactional")
    places = places.select(
        "partition",
        "producer_id",
        "began",
        F.explode(F.sequence("at", "last_offset")).alias("offset"),
    )
    records = sink.where(F.col("transactional_id").isNotNull()).join(
        places, ["partition", "offset"]
    )
    groups = records.groupBy("partition", "producer_id", "began", *NAME).agg(
        F.min(F.struct(*_FIRST)).alias("first"), F.count("*").alias("records")
    )
    together = Window.partitionBy("partition", "producer_id", "began")
    of_producer = Window.partitionBy("producer_id")
    return (
        groups.withColumns(
            {
                "names": F.count("*").over(together),
                "last_name": F.max(F.struct(*NAME)).over(together),
                "ids": F.size(F.collect_set("transactional_id").over(of_producer)),
                "first_began": (
                    F.min("began").over(Window.partitionBy("partition", "producer_id", *NAME))
                ),
            }
        )
        .select("*", *(F.col(f"first.{name}").alias(name) for name in _FIRST))
        .drop("first")
    )


Outcomes = Mapping[tuple[str, int, int, str], tuple[str | None, str | None]]
"""Declared outcome and reason, by transaction name."""


def outcomes_of(entries: Iterable[tuple[str, int, int, str, str, str]]) -> Outcomes:
    """Maps transactions to outcomes. Each entry is: transactional id, sequence, attempt, task,
    outcome, reason. Contradictory entries for a transaction leave its outcome None."""
    declarations: dict[tuple[str, int, int, str], tuple[set[str], str]] = {}
    for transactional_id, sequence, attempt, task, outcome, reason in entries:
        outcomes, why = declarations.get(
            key := (transactional_id, sequence, attempt, task), (set(), "")
        )
        declared_outcomes = outcomes | {outcome} & {Fate.COMMITTED.value, Fate.ABORTED.value}
        declarations[key] = (declared_outcomes, max(why, reason or ""))
    return {
        key: (next(iter(outcomes)) if len(outcomes) == 1 else None, why or None)
        for key, (outcomes, why) in declarations.items()
    }
