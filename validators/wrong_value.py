"""Every committed output has the value that its input must give.

Catalogue 6. The contract's expression is computed anew from each source record and compared with the output's value,
byte by byte: text as UTF-8, any other type as Spark writes it as text. Where the expression gives null, the value must
be null. Every committed copy of an output is compared. An expression that fails on a record leaves the kind unjudged.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from validators.evidence import evidence, share
from validators.finding import Fate, Witness
from validators.ledger import Ledger
from validators.matching import of_another
from validators.sink_rows import Place

NAME = "wrong_value"
QUESTION = "Has every committed output the value that its input must give?"
UNIT = "records"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)


def find(ledger: Ledger) -> DataFrame | None:
    if ledger.values is None:
        return None
    rows = ledger.sink.where((F.col("fate") == Fate.COMMITTED.value) & (F.col("place") == Place.INPUT.value))
    rows = rows.where(~F.col("ambiguous")).join(ledger.values, ["source_partition", "source_offset"])
    why = F.lit("Its value is not the one that the contract's expression gives for its input.")
    rows = rows.where(~F.col("value_hash").eqNullSafe(F.col("wanted_hash")))
    return evidence(rows, F.lit(0), why, of_another(ledger))


def covered(ledger: Ledger) -> int:
    """Committed records with an input, where a contract says what their value must be."""
    return 0 if ledger.values is None else sum(cell.committed for cell in ledger.matched)


def says(count: int, records: int) -> str:
    good = "have the value that their input must give"
    return share(count, records, "committed outputs", good, "has a wrong value", "have wrong values")
