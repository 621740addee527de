"""Every record that read_committed shows is committed by a marker that is still in the log.

Catalogue 23. Compaction or a restore may lose the marker of a transaction and keep its data
(KAFKA-14055, KAFKA-13727). Then aborted records come back as committed, or committed ones lack
proof. A record is reported if its transaction is visible to read_committed below the last stable
offset and no marker of its producer follows. Compaction keeps a marker as long as it keeps a record
of its transaction, so a healthy log never shows one.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.evidence import evidence
from topicproof.validators.finding import Fate, Witness
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import without_marker
from topicproof.validators.sentences import Forms, Words

NAME = "resurrected"
TITLE = "Records without their marker"
QUESTION = "Is every record that read_committed shows committed by a marker in the log?"
UNIT = "records"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,), (Witness.RAW_LOG,))
WORDS = Words(
    noun=Forms(
        "transactional record visible to read_committed",
        "transactional records visible to read_committed",
    ),
    bad=Forms("is committed by no marker", "are committed by no marker"),
    good=Forms("is committed by a marker", "are committed by markers"),
)
TRAITS = Traits(
    next_step=(
        "Look for compaction, a restore or an unclean leader election of this partition: the marker"
        " is gone, so nothing proves that these records were committed."
    )
)


def find(ledger: Ledger) -> DataFrame | None:
    if not sum(cell.endless for cell in ledger.counts.cells):
        return None
    rows = ledger.sink.where(without_marker())
    aborted = F.coalesce(F.col("declared") == Fate.ABORTED.value, F.lit(False))
    why = F.when(
        aborted,
        "Visible to read_committed, but no marker ends its transaction, and the run's journal says"
        " it was aborted.",
    ).otherwise("Visible to read_committed, but no marker in the log commits its transaction.")
    return evidence(rows, F.when(aborted, 1).otherwise(0), why)


def covered(ledger: Ledger) -> int:
    """Counts committed records that were in a transaction."""
    return ledger.committed - sum(cell.never_transactional for cell in ledger.counts.cells)
