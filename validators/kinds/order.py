"""Outputs of one source partition lie in each sink partition in the order of their inputs.

Catalogue 7, Jepsen's `nonmonotonic-send`. Per (source partition, sink partition), in sink offset
order, the lineage (offset, output index) must strictly rise from record to record. Records of
different source partitions have no order, nor have records of different sink partitions. If order
is promised only per key, the rule applies per (source partition, sink partition, key). Primary rows
are the inversions that remain without the later copies. An inversion that only a later copy causes
is explained by the cause of that copy.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from topicproof.validators.evidence import amount, evidence
from topicproof.validators.expectation import PENDING
from topicproof.validators.finding import Order, Witness
from topicproof.validators.kinds import aborted_read, duplicate, identity_missing, sink_removed
from topicproof.validators.kinds.matching import of_another
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import LINE, known_aborted, ordered, real

NAME = "order"
TITLE = "Order"
QUESTION = "Are the outputs of a source partition in the order of its inputs?"
UNIT = "pairs"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)


def find(ledger: Ledger) -> DataFrame | None:
    if ledger.sound:
        return None
    line = Window.partitionBy(
        *LINE, *(("key_hash",) if ledger.order is Order.PER_KEY else ())
    ).orderBy("offset")
    place = F.struct("source_offset", "output_index")
    rows = ledger.sink.where(real() & ordered(ledger.order is Order.PER_KEY))
    repeat = F.lit(False)
    if ledger.repeats_count:
        later = ledger.repeats.select("partition", "offset", F.lit(True).alias("repeat"))
        rows = rows.join(later, ["partition", "offset"], "left")
        repeat = F.coalesce("repeat", F.lit(False))
    rows = rows.withColumn("repeat", repeat).withColumns(
        {
            "place_before": F.lag(place).over(line),
            "aborted_before": F.lag(known_aborted()).over(line),
            "waiting_before": F.lag("waiting").over(line),
        }
    )
    rows = rows.withColumn("first_before", _first_before(ledger, place, line))
    own = F.coalesce(~F.col("repeat") & (F.col("first_before") >= place), F.lit(False))
    rows = rows.where(own | (F.col("place_before") >= place))
    above = F.when(own, F.col("first_before.source_offset")).otherwise(
        F.col("place_before.source_offset")
    )
    why = F.format_string(
        "Input %d comes after input %d of the same partition.", "source_offset", above
    )
    cause = F.when(known_aborted() | F.col("aborted_before"), aborted_read.NAME)
    another = of_another(ledger)
    if another is not None:
        # The record named as the cause may not be a duplicate.
        cause = cause.when(F.col("waiting_before"), PENDING).when(another.isNotNull(), another)
    cause = cause.otherwise(duplicate.NAME)
    return evidence(
        rows, above - F.col("source_offset"), why, F.when(~own, cause).otherwise(_uncertain(ledger))
    )


def _uncertain(ledger: Ledger) -> Column:
    """Returns why a record may be in order after all. If repeats are allowed, it may be one whose
    first copy is gone or has no identity."""
    if ledger.agreed.repeats and not (ledger.by_key and ledger.source_incomplete):
        if ledger.sink_incomplete:
            return F.lit(sink_removed.NAME)
        if ledger.unidentified_outputs:
            return F.lit(identity_missing.NAME)
    another = of_another(ledger)
    return F.lit(None) if another is None else another


def _first_before(ledger: Ledger, place: Column, line: WindowSpec) -> Column:
    """Returns the place of the last earlier record that is not a later copy."""
    if not ledger.repeats_count:
        return F.col("place_before")
    firsts = F.when(~F.col("repeat"), place)
    return F.last(firsts, ignorenulls=True).over(line.rowsBetween(Window.unboundedPreceding, -1))


def covered(ledger: Ledger) -> int:
    """Counts adjacent pairs: each line has one fewer than it has records."""
    return sum(cell.committed for cell in ledger.matched) - ledger.lines


def says(count: int, records: int) -> str:
    return amount(count, records, "adjacent pairs", "is out of order", "are out of order")
