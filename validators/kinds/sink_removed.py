"""The sink still holds every record of the judged range.

A premise. Retention and DeleteRecords move the log start up, and compaction leaves holes. A missing
output may have been there, and a repeated one may be gone. An output that is still there twice
remains a duplicate. A contract with `range: retained` judges only what is still there.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from topicproof.validators.evidence import removed
from topicproof.validators.finding import Witness
from topicproof.validators.kinds.traits import Traits
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.sentences import Forms, Words

NAME = "sink_removed"
TITLE = "Removed from the sink"
QUESTION = "Does the sink still hold every record of the judged range?"
UNIT = "offsets"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)
WORDS = Words(
    noun=Forms("offset of the sink", "offsets of the sink"),
    bad=Forms(
        "has lost records to retention or compaction",
        "have lost records to retention or compaction",
    ),
    good=Forms("is accounted for", "are accounted for"),
    counted=Forms("partition of the sink", "partitions of the sink"),
)
TRAITS = Traits()


def find(ledger: Ledger) -> DataFrame | None:
    """Returns one row for each partition."""
    circumstances = ledger.circumstances
    return removed(
        ledger.spark,
        "sink",
        ledger.sink_bounds,
        circumstances.sink_removed,
        circumstances.policies,
        ledger.question.agreed.retained,
    )


def covered(ledger: Ledger) -> int:
    """Counts the offsets of the judged range, including those below the log start; none if the
    topic was not inspected."""
    below = sum(removal.below for removal in ledger.circumstances.sink_removed.values())
    return ledger.sink_bounds.offsets + below if ledger.circumstances.looked else 0
