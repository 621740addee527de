"""No record of an aborted transaction is visible to read_committed.

Catalogue 10, Jepsen's and Adya's `G1a`. Two readings can never show this: such a record looks
committed. It takes the markers of the raw log, or a journal in which the worker recorded the abort.
If the journal says aborted and the marker is COMMIT, the marker is at fault: explained by
`wrong_attribution`. If there is no marker: explained by `resurrected`.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.evidence import evidence
from topicproof.validators.finding import Fate, Witness
from topicproof.validators.kinds import resurrected, wrong_attribution
from topicproof.validators.kinds.traits import RowRecord, Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import known_aborted, without_marker
from topicproof.validators.sentences import Forms, Words

NAME = "aborted_read"
TITLE = "Aborted records visible"
QUESTION = "Do the records of aborted transactions stay invisible to read_committed?"
UNIT = "records"
WITNESSES: tuple[tuple[Witness, ...], ...] = (
    (Witness.READ_COMMITTED,),
    (Witness.RAW_LOG, Witness.JOURNAL),
)
WORDS = Words(
    noun=Forms("record visible to read_committed", "records visible to read_committed"),
    bad=Forms("belongs to an aborted transaction", "belong to aborted transactions"),
)
TRAITS = Traits(
    row_record=RowRecord.WRONG,
    shows_identity=True,
    next_step=(
        "Keep the segments of the partition, and report them with `kafka-dump-log.sh` to whoever"
        " maintains the broker: it delivered a record of an aborted transaction."
    ),
)


def find(ledger: Ledger) -> DataFrame | None:
    if not any(cell.revoked for cell in ledger.counts.cells):
        return None
    rows = ledger.sink.where((F.col("fate") == Fate.COMMITTED.value) & known_aborted())
    by_marker = F.col("outcome") == Fate.ABORTED.value
    why = F.when(
        by_marker, "Visible to read_committed, but its transaction ends with an ABORT marker."
    ).otherwise(
        "Visible to read_committed, but the run's journal says that its transaction was aborted."
    )
    cause = F.when(F.col("outcome") == Fate.COMMITTED.value, wrong_attribution.NAME).when(
        without_marker(), resurrected.NAME
    )
    return evidence(rows, F.when(by_marker, 1).otherwise(0), why, cause)


def covered(ledger: Ledger) -> int:
    """Counts committed records whose transaction's outcome is known from the raw log or the
    journal, and those that the raw log says are in none."""
    return sum(cell.heard for cell in ledger.counts.cells)
