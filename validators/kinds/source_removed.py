"""The source still holds every record of the judged range.

A premise. Retention and DeleteRecords move the log start up, and compaction leaves holes. The
outputs of removed inputs cannot be judged. Matched by key, a committed record may be the output of
a removed input, so neither an excess nor a phantom is certain. A contract with `range: retained`
judges only what is still there.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from topicproof.validators.evidence import removed, share
from topicproof.validators.finding import Witness
from topicproof.validators.ledger.ledger import Ledger

NAME = "source_removed"
TITLE = "Removed from the source"
QUESTION = "Does the source still hold every record of the judged range?"
UNIT = "offsets"
WITNESSES: tuple[tuple[Witness, ...], ...] = ((Witness.READ_COMMITTED,),)


def find(ledger: Ledger) -> DataFrame | None:
    """Returns one row for each partition."""
    seen = ledger.circumstances
    return removed(
        ledger.spark,
        ledger.source_bounds,
        seen.source_removed,
        {**seen.policies, **seen.source_policies},
        ledger.agreed.retained,
    )


def covered(ledger: Ledger) -> int:
    """Counts the offsets of the judged range, including those below the log start; none if the
    topic was not inspected."""
    below = sum(one.below for one in ledger.circumstances.source_removed.values())
    return ledger.source_bounds.offsets + below if ledger.circumstances.looked else 0


def says(count: int, records: int) -> str:
    if not count:
        return share(0, records, "offsets of the source", "are accounted for", "", "")
    noun = "partition" if count == 1 else "partitions"
    return (
        f"{count:,} {noun} of the source lost records to retention or compaction (of a"
        f" range of {records:,} offsets)"
    )
