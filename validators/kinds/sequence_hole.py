"""The batches of a producer follow one another.

Catalogue 27. Each batch of an idempotent producer is numbered from the end of the previous one, per
epoch and partition; a new epoch starts at 0. A hole or an overlap means that the broker accepted a
batch out of turn, or lost one. Only batches with nothing gone between them are compared: compaction
and deletion remove whole batches, and an emptied batch keeps its width.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.evidence import evidence, of_log
from topicproof.validators.facts.raw_log import settled
from topicproof.validators.finding import Witness
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import Forms, Words

NAME = "sequence_hole"
TITLE = "Holes in sequences"
QUESTION = "Do the sequence numbers of every producer follow one another?"
UNIT = "batches"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.RAW_LOG,),)
WORDS = Words(
    noun=Forms("numbered batch", "numbered batches"),
    bad=Forms("does not follow the one before it", "do not follow the ones before them"),
    good=Forms("follows the one before it", "follow the ones before them"),
)
TRAITS = Traits(
    next_step=(
        "Look for an unclean leader election or lost segments of this partition at that time."
    )
)


def find(ledger: Ledger) -> DataFrame | None:
    if ledger.accounts.raw_log is None or not ledger.marks("holes"):
        return None
    rows = ledger.accounts.raw_log.batches.where(settled(ledger.sink_bounds) & F.col("hole"))
    rows = rows.withColumn("offset", F.col("base_offset"))
    why = F.format_string(
        "Producer id %d at epoch %d continues with sequence number %d; %d was expected: the log"
        " has lost a batch of it, or stored one out of turn.",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "expected",
    )
    return evidence(of_log(rows), F.abs(F.col("base_sequence") - F.col("expected")), why)


def covered(ledger: Ledger) -> int:
    """Counts data batches of producers that number their records."""
    return ledger.marks("sequenced")
