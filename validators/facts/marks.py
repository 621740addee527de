"""What the headers of the raw log's batches betray without a look at any record.

Per producer id and partition, in offset order. Data is compared with data and markers with markers,
never one with the other: their epochs differ on healthy topics (validators/facts/balance.py).
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

SEQUENCES = 2**31
"""A producer's sequences in one epoch and partition: from 0, and after the largest int32 from 0
again (KIP-98)."""


def marked(batches: DataFrame) -> DataFrame:
    """The raw log's `batches`, each with what is odd about it.

    `hole`: its sequences do not follow those of the producer's batch before, although nothing
    between them is gone; `expected` is the sequence that would. A new epoch starts at 0. `stale`: a
    batch before it carries a higher epoch, `epoch_before`. `second_end`: a COMMIT marker right
    behind the ABORT marker of its producer's data: both end it. `interleaved`: it goes on with a
    transaction, behind a batch of another one.
    """
    log = Window.partitionBy("partition").orderBy("base_offset")
    own = Window.partitionBy("partition", "producer_id").orderBy("base_offset")
    before = own.rowsBetween(Window.unboundedPreceding, -1)
    data, known = F.col("control").isNull(), F.col("producer_id") >= 0
    skipped = F.coalesce(F.col("base_offset") - F.lag("last_offset").over(log) - 1, F.lit(0))
    rows = batches.withColumn("skipped", skipped).withColumn("skipped", F.sum("skipped").over(log))
    facts = F.struct("producer_epoch", "base_sequence", "base_offset", "last_offset", "skipped")
    rows = rows.withColumns(
        {
            "last_data": F.last(F.when(data, facts), ignorenulls=True).over(before),
            "epoch_before": F.max(F.when(data, F.col("producer_epoch"))).over(before),
            "last_any": F.lag(F.struct("control", "skipped")).over(own),
            "ended_data": F.lag(data, 2).over(own),
            "last_writer": (
                F.last(
                    F.when(data & F.col("transactional"), F.col("producer_id")), ignorenulls=True
                ).over(log.rowsBetween(Window.unboundedPreceding, -1))
            ),
        }
    )
    last = F.col("last_data")
    follows = last["base_sequence"].cast("long") + last["last_offset"] - last["base_offset"] + 1
    whole = last["skipped"] == F.col("skipped")
    same = last["producer_epoch"] == F.col("producer_epoch")
    ended = (
        (F.col("control") == "COMMIT")
        & (F.col("last_any")["control"] == "ABORT")
        & F.col("ended_data")
    )
    rows = rows.withColumn("expected", follows % SEQUENCES)
    goes_on = (
        data
        & F.col("transactional")
        & F.col("last_any").isNotNull()
        & F.col("last_any")["control"].isNull()
    )
    odd = {
        "interleaved": goes_on & (F.col("last_writer") != F.col("producer_id")),
        "hole": data & known & same & whole & (F.col("base_sequence") != F.col("expected")),
        "stale": data & known & (F.col("producer_epoch") < F.col("epoch_before")),
        "second_end": ended & (F.col("last_any")["skipped"] == F.col("skipped")),
    }
    rows = rows.withColumns(
        {name: F.coalesce(condition, F.lit(False)) for name, condition in odd.items()}
    )
    return rows.drop("skipped", "last_data", "last_any", "ended_data", "last_writer")
