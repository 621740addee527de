"""The columns of the matrix: each promise is a guarantee and how its producer keeps it.

Two columns combine at-least-once with a step that drops repeats. Theory expects no damage there
where at-least-once has duplicates:

- `at_least_once-upsert` writes into a table (SQLite) by lineage. A repeated row replaces itself.
- `at_least_once-deduplicated` is the topic of `at_least_once` for a reader that keeps the first
  record of every lineage (source topic, partition, offset and output index, from the sink's
  header). This also restores the order, because an input's offset is committed only after its
  output is in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from topicproof.validators.finding import Guarantee


class Damage(StrEnum):
    """What a sink may show. `HIDDEN` (records of aborted transactions) is harmless."""

    DUPLICATES = "duplicates"
    GAPS = "gaps"
    INVERSIONS = "inversions"
    PHANTOMS = "phantoms"
    ABORTED_INPUTS = "aborted-inputs"
    """Outputs of aborted inputs."""
    HANGING = "hanging"
    """Partitions that a transaction holds which nothing will end."""
    MISATTRIBUTED = "misattributed"
    """Transactions that are ended by a marker of another one."""
    HIDDEN = "hidden"


KINDS: Mapping[Damage, str] = {
    Damage.DUPLICATES: "duplicate",
    Damage.GAPS: "gap",
    Damage.INVERSIONS: "order",
    Damage.PHANTOMS: "phantom",
    Damage.ABORTED_INPUTS: "aborted_input",
    Damage.HANGING: "hanging",
    Damage.MISATTRIBUTED: "wrong_attribution",
}
"""The kind of finding for each damage. Only rows that no other kind explains count."""


@dataclass(frozen=True)
class Promise:
    """A column of the matrix: a guarantee and how its producer keeps it."""

    name: str
    plan: Mapping[str, Any]
    like: str | None = None
    """Another promise with the same expectations, except repeats."""
    under: frozenset[str] = frozenset()
    """With `like`: the troubles that it is tried under."""
    deduplicated: bool = False
    """Whether the sink is judged from the view of a reader that drops repeats."""

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE if self.deduplicated else Guarantee(self.plan["guarantee"])


_LIKE = "at_least_once"

_REPEATS = frozenset(
    {"abort", "crash-producing", "crash-produced", "crash-offset-sent", "error-produced", "zombie"}
)
"""Troubles under which at-least-once repeats inputs."""

PROMISES: tuple[Promise, ...] = (
    Promise("exactly_once", {"guarantee": "exactly_once"}),
    Promise("at_least_once", {"guarantee": "at_least_once"}),
    Promise("at_least_once-plain", {"guarantee": "at_least_once", "idempotence": False}),
    Promise("at_most_once", {"guarantee": "at_most_once"}),
    Promise("at_most_once-unacknowledged", {"guarantee": "at_most_once", "acks": "0"}),
    Promise(
        "at_least_once-upsert",
        {"scenario": "table", "guarantee": "at_least_once"},
        like=_LIKE,
        under=_REPEATS | {"none"},
    ),
    Promise(
        "at_least_once-deduplicated",
        {"guarantee": "at_least_once"},
        like=_LIKE,
        under=_REPEATS | {"none", "produce-unanswered", "isolated"},
        deduplicated=True,
    ),
)
"""Those without `like` first, in the order of `Trouble.expected`."""
