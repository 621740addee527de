"""The raw log as Spark frames, each batch with its facts (validators/facts/log_facts.py)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from topicproof.validators.coordinator import NO_ATTRIBUTION, Attribution
from topicproof.validators.facts.log_facts import (
    BATCH_COLUMNS,
    FACT_COLUMNS,
    TRANSACTION_COLUMNS,
    LogFacts,
    log_facts,
)
from topicproof.validators.finding import Bounds, Fate
from topicproof.validators.offsets import bits, bound, word
from topicproof.validators.readings import frame_of, gathered

DATA_COLUMNS = (
    "partition int, base_offset long, last_offset long, producer_id long, producer_epoch int,"
    " transactional boolean, outcome string, began long, marker_offset long, written_ms long,"
    " transactional_id string, reason string"
)
"""A data batch with its transaction. `marker_offset` is null without a marker; `written_ms` is the
time of the marker, else the batch's own. `transactional_id` and `reason` (of an abort) are null if
no coordinator named them."""


@dataclass(frozen=True)
class RawLog:
    """The raw log in the form that the ledger queries."""

    table: pa.Table
    """`BATCH_COLUMNS`."""
    facts: LogFacts
    batches: DataFrame
    """`BATCH_COLUMNS` and `FACT_COLUMNS`."""
    transactions: DataFrame
    """`TRANSACTION_COLUMNS`."""
    offsets: int
    """The number of judged offsets, source and sink together."""
    attribution: Attribution = NO_ATTRIBUTION

    @cached_property
    def data(self) -> DataFrame:
        """`DATA_COLUMNS`. Joined here and not by Spark, which takes longer for few batches."""
        transactions, attribution = self.facts.transactions, self.attribution
        data = self.facts.batches[self.facts.batches["control"].isna()]
        transaction = data["transaction"].where(data["transaction"] >= 0)
        marker_offset, marker_ms = (
            transaction.map(transactions[name]).astype("Int64")
            for name in ("marker_offset", "marker_timestamp")
        )
        reasons = {
            (reason.partition, reason.first_offset): reason.reason for reason in attribution.reasons
        }
        places = zip(transactions["partition"], transactions["first_offset"], strict=True)
        of_transaction = pd.Series([reasons.get(place) for place in places], dtype=object)
        table = data.assign(
            marker_offset=marker_offset,
            written_ms=marker_ms.fillna(data["max_timestamp"]),
            transactional_id=data["producer_id"].map(dict(attribution.transactional_ids)),
            reason=transaction.map(of_transaction),
        )
        return gathered(frame_of(self.batches.sparkSession, table, DATA_COLUMNS), self.offsets)


def raw_log(
    spark: SparkSession,
    batches: pa.Table,
    bounds: Bounds,
    offsets: int,
    attribution: Attribution = NO_ATTRIBUTION,
) -> RawLog:
    """Turns `batches` (`BATCH_COLUMNS`, read within `bounds`) into Spark frames. `offsets`: the
    number of judged offsets, source and sink together."""
    facts = log_facts(batches, bounds)
    return RawLog(
        batches,
        facts,
        gathered(frame_of(spark, facts.batches, f"{BATCH_COLUMNS}, {FACT_COLUMNS}"), offsets),
        gathered(frame_of(spark, facts.transactions, TRANSACTION_COLUMNS), offsets),
        offsets,
        attribution,
    )


def settled(bounds: Bounds) -> Column:
    """Whether a batch of `RawLog.batches` overlaps the offsets from `start` up to the last stable
    offset."""
    below = F.greatest("base_offset", bound("partition", bounds, "start"))
    return below <= F.least("last_offset", bound("partition", bounds, "lso") - 1)


def inside(bounds: Bounds) -> Column:
    """Whether a transaction of `RawLog.transactions` has data in the bounds."""
    start, hw = bound("partition", bounds, "start"), bound("partition", bounds, "hw")
    return (F.col("last_offset") >= start) & (F.col("first_offset") < hw)


def spans(log: RawLog, bounds: Bounds) -> DataFrame:
    """Returns the data batches from the start of the bounds on: partition, producer_id, at,
    last_offset, transactional, outcome and began. The last two are null outside a transaction. `at`
    and `began` lie within the bounds."""
    start = bound("partition", bounds, "start")
    return (
        log.batches.where(F.col("control").isNull() & (F.col("last_offset") >= start))
        .withColumns(
            {
                "at": F.greatest("base_offset", start),
                "began": F.when(F.col("began").isNotNull(), F.greatest("began", start)),
            }
        )
        .select(
            "partition",
            "producer_id",
            "at",
            "last_offset",
            "transactional",
            "outcome",
            "began",
        )
    )


def words_of_batches(log: RawLog, bounds: Bounds) -> DataFrame:
    """Returns sets of offsets by partition and word: `covered` by a data batch, `transactional`,
    `stable` (in a committed transaction) and `unstable` (in an aborted one)."""
    offsets = F.explode(F.sequence("at", "last_offset")).alias("offset")
    every = spans(log, bounds).select("partition", offsets, "transactional", "outcome")
    return every.groupBy("partition", word("offset").alias("word")).agg(
        bits("offset").alias("covered"),
        bits("offset", F.col("transactional")).alias("transactional"),
        bits("offset", F.col("outcome") == Fate.COMMITTED.value).alias("stable"),
        bits("offset", F.col("outcome") == Fate.ABORTED.value).alias("unstable"),
    )
