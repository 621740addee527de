"""Thresholds of a contract, `warn:`. What exceeds one is a warning beside the verdict.

A threshold is a field of `Thresholds` and a row of `WARNINGS`. The contract's YAML, the comparison
in `verify`, and `taken.json` follow from the field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Protocol

from pydantic import Field

from topicproof.validators.sentences import counted


@dataclass(frozen=True)
class Thresholds:
    """Exceeding one is a warning: exit code 2, unless something is worse. None: no limit."""

    pending: Annotated[int, Field(ge=0)] | None = None
    """Offsets at and above the last stable offset."""
    aborted_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """A share of the records below the last stable offset."""
    dead_letter_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """A share of the inputs, if the contract names dead letters."""


NO_THRESHOLDS = Thresholds()


class Figures(Protocol):
    """What thresholds are compared with: figures of a ledger."""

    @property
    def pending(self) -> int:
        """Offsets at and above the last stable offset."""

    @property
    def aborted(self) -> int:
        """Aborted records."""

    @property
    def committed(self) -> int:
        """Committed records."""

    @property
    def dead_letter_share(self) -> float:
        """Share of the inputs with a dead letter, from 0 to 1."""


def threshold_warnings(thresholds: Thresholds, figures: Figures) -> tuple[str, ...]:
    """Lists what exceeds the contract's thresholds, in the order of the fields."""
    limits = {field.name: getattr(thresholds, field.name) for field in fields(thresholds)}
    warnings = (
        WARNINGS[name](figures, limit) for name, limit in limits.items() if limit is not None
    )
    return tuple(warning for warning in warnings if warning is not None)


def _pending(figures: Figures, limit: float) -> str | None:
    count = figures.pending
    if count <= limit:
        return None
    are = "is" if count == 1 else "are"
    return f"{counted(count, 'offset')} {are} pending, and the contract warns above {limit:,}."


def _aborted_share(figures: Figures, limit: float) -> str | None:
    stable = figures.aborted + figures.committed
    share = figures.aborted / stable if stable else 0.0
    if share <= limit:
        return None
    return f"{share:.1%} of the records are aborted; the contract warns above {limit:.1%}."


def _dead_letter_share(figures: Figures, limit: float) -> str | None:
    share = figures.dead_letter_share
    if share <= limit:
        return None
    return f"{share:.1%} of the inputs are dead letters; the contract warns above {limit:.1%}."


WARNINGS: Mapping[str, Callable[[Figures, float], str | None]] = {
    "pending": _pending,
    "aborted_share": _aborted_share,
    "dead_letter_share": _dead_letter_share,
}
"""By threshold: returns a sentence if a figure exceeds the limit."""
