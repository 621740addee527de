"""The group's committed offset lies beyond every input whose output is committed.

Catalogue 9. Where it does not, the next start processes these inputs again and commits their outputs a second time: the
offset was not committed in the transaction of the output. Judged at rest: the offsets are asked before the readings.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from validators.evidence import COLUMNS, amount
from validators.finding import Witness
from validators.ledger import Ledger

NAME = "offset_behind"
QUESTION = "Does the group's offset lie beyond every input whose output is committed?"
UNIT = "source partitions"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)


def find(ledger: Ledger) -> DataFrame | None:
    """One row per source partition, at the first input that would be processed again."""
    rows = []
    for partition, offset in sorted((ledger.agreed.offsets or {}).items()):
        after = ledger.after(partition)
        if offset < after:
            why = f"The group's offset is {offset}, and input {after - 1} has its output: it would be processed again."
            place = (ledger.source_bounds.topic, partition, offset, None)
            rows.append((None, None, *place, None, None, after - offset, why))
    return ledger.spark.createDataFrame(rows, COLUMNS) if rows else None


def covered(ledger: Ledger) -> int:
    """Source partitions with a committed offset."""
    return len(ledger.agreed.offsets or ())


def says(count: int, records: int) -> str:
    return amount(
        count,
        records,
        "source partitions",
        "has a group's offset behind its committed outputs",
        "have a group's offset behind their committed outputs",
    )
