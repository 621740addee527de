"""Outputs of one source partition stand in each sink partition in the order of their inputs.

Catalogue 7, Jepsen's `nonmonotonic-send`. Per (source partition, sink partition), in sink offset order, the lineage
(offset, output index) must strictly rise from record to record. Two records of different source partitions have no
order, and neither have two of different sink partitions. Primary rows are the inversions that stay when later copies
are left out; an inversion that only a later copy makes is explained by what made the copy.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from validators import aborted_read, duplicate
from validators.evidence import amount, evidence
from validators.finding import Witness
from validators.ledger import Ledger, known_aborted

NAME = "order"
QUESTION = "Do the outputs of a source partition stand in the order of its inputs?"
UNIT = "pairs"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)


def find(ledger: Ledger) -> DataFrame:
    line = Window.partitionBy("source_partition", "partition").orderBy("offset")
    before = line.rowsBetween(Window.unboundedPreceding, -1)
    place = F.struct("source_offset", "output_index")
    first = F.when(~F.col("repeat"), place)
    rows = ledger.sink.where(F.col("copies").isNotNull()).withColumns(
        {
            "place_before": F.lag(place).over(line),
            "first_before": F.last(first, ignorenulls=True).over(before),
            "aborted_before": F.lag(known_aborted()).over(line),
        }
    )
    own = ~F.col("repeat") & (F.col("first_before") >= place)
    own = F.coalesce(own, F.lit(False))
    rows = rows.where(own | (F.col("place_before") >= place))
    above = F.when(own, F.col("first_before.source_offset")).otherwise(F.col("place_before.source_offset"))
    why = F.format_string("Input %d comes after input %d of the same partition.", "source_offset", above)
    cause = F.when(known_aborted() | F.col("aborted_before"), aborted_read.NAME).otherwise(duplicate.NAME)
    return evidence(rows, above - F.col("source_offset"), why, F.when(~own, cause))


def covered(ledger: Ledger) -> int:
    """Adjacent pairs: in each (source partition, sink partition) one fewer than it has records."""
    return sum(max(cell.committed - 1, 0) for cell in ledger.matched)


def says(count: int, records: int) -> str:
    return amount(count, records, "adjacent pairs", "is out of order", "are out of order")
