"""The source still holds every record of the judged range.

A premise. Retention and DeleteRecords move the log start up, and compaction leaves holes. The
outputs of removed inputs cannot be judged. Matched by key, a committed record may be the output of
a removed input, so neither an excess nor a phantom is certain. A contract with `range: retained`
judges only what is still there.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from topicproof.validators.evidence import removed
from topicproof.validators.finding import Witness
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import Forms, Words

NAME = "source_removed"
TITLE = "Removed from the source"
QUESTION = "Does the source still hold every record of the judged range?"
UNIT = "offsets"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("offset of the source", "offsets of the source"),
    bad=Forms(
        "has lost records to retention or compaction",
        "have lost records to retention or compaction",
    ),
    good=Forms("is accounted for", "are accounted for"),
    counted=Forms("partition of the source", "partitions of the source"),
)
TRAITS = Traits()


def find(ledger: Ledger) -> DataFrame | None:
    """Returns one row for each partition."""
    circumstances = ledger.circumstances
    return removed(
        ledger.spark,
        "source",
        ledger.question.source,
        circumstances.source_removed,
        {**circumstances.policies, **circumstances.source_policies},
        ledger.question.agreed.retained,
    )


def covered(ledger: Ledger) -> int:
    """Counts the offsets of the judged range, including those below the log start; none if the
    topic was not inspected."""
    below = sum(removal.below for removal in ledger.circumstances.source_removed.values())
    return ledger.question.source.offsets + below if ledger.circumstances.looked else 0
