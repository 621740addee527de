"""read_committed delivered exactly what batches and markers require.

Catalogue 19. Another client computes read_committed from the raw log. The result is compared with
what was delivered: as counts while the ledger is built, record by record only if they differ. This
kind alone finds a committed record that was not delivered. An aborted record that was delivered is
listed, and explained by `aborted_read`.

If the two readings contradict each other or the bounds, nothing that was read can be trusted. The
ledger reports that separately, as a doubt.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.evidence import evidence
from topicproof.validators.finding import Fate, Witness
from topicproof.validators.kinds import aborted_read
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.ledger.rows import is_hidden
from topicproof.validators.sentences import Forms, Words

NAME = "reading_mismatch"
TITLE = "Readings against the log"
QUESTION = "Did read_committed deliver what the batches and markers of the raw log say?"
UNIT = "records"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,), (Witness.RAW_LOG,))
WORDS = Words(
    noun=Forms("record below the last stable offset", "records below the last stable offset"),
    bad=Forms(
        "was delivered or withheld contrary to the raw log",
        "were delivered or withheld contrary to the raw log",
    ),
)
TRAITS = Traits(
    next_step=(
        "Check again; if it repeats, keep the segments of the partition, and report them with"
        " `kafka-dump-log.sh` to whoever maintains the broker."
    )
)


def find(ledger: Ledger) -> DataFrame | None:
    if not ledger.counts.hidden and not sum(cell.unstable for cell in ledger.counts.cells):
        return None
    delivered = (F.col("fate") == Fate.COMMITTED.value) & (F.col("outcome") == Fate.ABORTED.value)
    rows = ledger.sink.where(is_hidden() | delivered)
    why = F.when(
        is_hidden(), "Committed by the raw log, yet read_committed did not deliver it."
    ).otherwise("Aborted by the raw log, yet read_committed delivered it.")
    return evidence(
        rows, F.when(is_hidden(), 1).otherwise(0), why, F.when(~is_hidden(), aborted_read.NAME)
    )


def covered(ledger: Ledger) -> int:
    """Counts records below the last stable offset."""
    return ledger.committed + ledger.aborted
