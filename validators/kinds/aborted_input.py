"""No committed record stems from a record that was aborted in the source.

Catalogue 5. The record's lineage or key names a source record that read_uncommitted sees and
read_committed does not. So the pipeline read what no transaction ever committed; no guarantee
allows that. Matching by key can tell this only under two conditions. No committed input may have
the same key (validators/lineage/identity.py), and no removed or keyless input may have had it.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.evidence import evidence
from topicproof.validators.finding import Fate, Witness
from topicproof.validators.kinds.matching import of_another
from topicproof.validators.kinds.traits import MATCHING, RowRecord, Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import Place
from topicproof.validators.sentences import Forms, Words

NAME = "aborted_input"
TITLE = "Aborted inputs processed"
QUESTION = "Does every committed record come from an input that was not aborted?"
UNIT = "aborted inputs"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,), (Witness.SOURCE_LOG,))
WORDS = Words(
    noun=Forms("aborted input", "aborted inputs"),
    bad=Forms("has a committed output", "have committed outputs"),
)
TRAITS = Traits(
    row_record=RowRecord.WRONG,
    shows_identity=True,
    premises=MATCHING,
    next_step="Set isolation.level=read_committed in the consumer that reads the source.",
)


def find(ledger: Ledger) -> DataFrame | None:
    if not any(cell.of_aborted for cell in ledger.counts.cells):
        return None
    committed = (F.col("fate") == Fate.COMMITTED.value) & ~F.col("of_namesake")
    rows = ledger.sink.where(committed & (F.col("place") == Place.ABORTED.value))
    why = F.lit("Its input was aborted in the source: read_committed never shows it.")
    return evidence(rows, F.lit(0), why, of_another(ledger))


def covered(ledger: Ledger) -> int:
    return ledger.counts.inputs.aborted
