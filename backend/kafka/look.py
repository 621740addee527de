"""What one look at a cluster takes in, whatever strangers have put there.

Any client may open transactions, commit offsets for made-up groups, and make topics with the names
of a mirror's. So each reader that a page, `inspect` or a check calls is handed a budget. It takes
what it keeps from the budget, stops when that is spent, and counts what it leaves out. Callers show
the note.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from topicproof.backend.kafka.reading import content_bytes
from topicproof.validators.sentences import counted

Item = TypeVar("Item")
Noun = tuple[str, str]
"""For one thing, and for several."""
GROUPS, SHARE_GROUPS = ("group", "groups"), ("share group", "share groups")
MEMBERS = "list of members", "lists of members"
OPEN_TRANSACTIONS = "open transaction", "open transactions"
UNSTABLE_OFFSETS = "unstable offset", "unstable offsets"
PRODUCERS, IDS = ("producer", "producers"), ("transactional id", "transactional ids")
MIRRORS = "topic of a mirror", "topics of mirrors"


@dataclass(frozen=True)
class LookLimits:
    """The most that one reader takes in."""

    transactions: int = 1_000
    """Open transactions, of which coordinators are asked about each, or unstable offsets. The first
    transaction of a partition is always looked at: it holds the last stable offset."""
    producers: int = 5_000
    """Producers that the leaders of a topic's partitions remember, for a day after one batch."""
    entries: int = 50_000
    """Partitions of groups. Each takes some 400 bytes, and 50 µs to count."""
    records: int = 250_000
    """Of a mirror's topics together, or of one reading of the coordinators' log. They take some 400
    bytes of memory each."""
    size: int = 64_000_000
    """Bytes of names, members and records."""
    seconds: float = 60.0


LIMITS = LookLimits()


@dataclass
class LookBudget:
    """What one reader has taken in, and what it left out."""

    limits: LookLimits = LIMITS
    transactions: int = 0
    entries: int = 0
    records: int = 0
    """That something is held of."""
    size: int = 0
    began: float = field(default_factory=time.monotonic)
    left_out: Counter[Noun] = field(default_factory=Counter)
    """How many things were left out."""

    @property
    def is_spent(self) -> bool:
        return (
            self.entries >= self.limits.entries
            or self.records > self.limits.records
            or self.size > self.limits.size
            or time.monotonic() - self.began > self.limits.seconds
        )

    def hold(self, key: bytes | None, value: bytes | None, overhead: int = 0) -> int:
        """Count a record, of which something is held from now on. Returns its bytes, with an
        `overhead` for what it becomes."""
        size = overhead + content_bytes(key, value)
        self.records += 1
        self.size += size
        return size

    def batches(self, items: Sequence[Item], size: int, noun: Noun) -> Iterator[Sequence[Item]]:
        """Yield the items, so many at once, until the budget is spent. The rest is left out."""
        for first in range(0, len(items), size):
            if self.is_spent:
                self.leave_out(len(items) - first, noun)
                return
            yield items[first : first + size]

    def leave_out(self, count: int, noun: Noun) -> None:
        """Note that so many of these are left out."""
        if count > 0:
            self.left_out[noun] += count

    @property
    def note(self) -> str:
        """Two sentences for people; empty if nothing was left out."""
        if not self.left_out:
            return ""
        things = ", ".join(counted(count, *noun) for noun, count in self.left_out.items())
        return (
            f"Left out here: {things}. One look at a cluster is limited; groups with members and"
            " the oldest transactions come first."
        )
