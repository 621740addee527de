"""What a contract says of two topics beyond the guarantee and the number of outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from topicproof.validators.lineage.identity import KEYS, Match


@dataclass(frozen=True)
class Thresholds:
    """More than this is a warning: shown beside a verdict, and no part of it. None: no matter how
    much."""

    pending: int | None = None
    """Offsets at and above the last stable offset."""
    aborted_share: float | None = None
    """Of the records below the last stable offset."""


@dataclass(frozen=True)
class ContractTerms:
    """Nothing, unless somebody says more."""

    match: Match = KEYS
    """What identity by key takes for the key on either side."""
    value: str | None = None
    """Spark SQL over the source record (validators/expected.py, `record`): what the value of its
    output must be, as text. For inputs with one output."""
    offsets: Mapping[int, int] | None = None
    """The consumer group's committed offsets of the source, by partition; they must agree with the
    output."""
    require: tuple[str, ...] | None = None
    """The kinds that make the verdict; None: the guarantee's own."""
    warn: Thresholds = Thresholds()
    retained: bool = False
    """Whether only what the topics still hold is judged, and what Kafka has removed is nobody's
    question."""

    repeats: bool = False
    """Whether the guarantee allows outputs to be repeated."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that it asks for by saying more."""
        said = (
            ("wrong_value", self.value),
            ("offset_ahead", self.offsets),
            ("offset_behind", self.offsets),
        )
        return tuple(kind for kind, given in said if given is not None)


NOTHING_MORE = ContractTerms()
