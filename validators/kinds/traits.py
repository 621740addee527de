"""Traits of a kind: what reports need to know of it besides its rows and words. Each kind's module
holds its own, so nothing else has a list of kinds to be kept up to date."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class RowRecord(Enum):
    """What each row of a kind says of a record of the sink, and so who is its writer."""

    NONE = auto()
    """Its rows are no records, or what their writers did is not the point."""
    WRONG = auto()
    """A record that should not be there, or not so. The finding's sentence names the writers."""
    ASIDE = auto()
    """Some rows are records. Each row has its writer, but the sentence of the finding does not: it
    also speaks of inputs, or of what nobody did wrong."""
    LOST = auto()
    """There is no record; the transaction is that of an aborted output."""


MATCHING = (
    "undecodable",
    "identity_missing",
    "identity_disjoint",
    "source_removed",
    "sink_removed",
    "recreated",
)
"""The premises of kinds that match records with inputs."""
MATCHING_EACH = (*MATCHING, "identity_repeated")
"""The premises of kinds that match each record with one input."""


@dataclass(frozen=True)
class Traits:
    """The defaults are those of a kind that is about the log alone."""

    row_record: RowRecord = RowRecord.NONE
    shows_identity: bool = False
    """Whether examples show the identity of their record or input."""
    premises: tuple[str, ...] = ()
    """The kinds that must not be found if this one shall hold (validators/expectation.py,
    `PREMISES`)."""
    next_step: str = ""
    """What to do if it is violated, unless the logs decide more (validators/incidents/)."""
