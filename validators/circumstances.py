"""What is known of two topics beside their records: what they have lost, and whether they grew
during the check.

A verdict rests on premises: the judged range is whole, and it stands still. Whoever takes the
readings writes down here what they saw of that. The premises themselves are kinds of finding
(validators/expectation.py, PREMISES).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Removed:
    """Offsets of one partition's judged range that Kafka has removed."""

    below: int = 0
    """Below the log start: retention or DeleteRecords removed them."""
    inside: int = 0
    """At or above it, in no batch any more or emptied inside one: compaction removed them."""

    @property
    def offsets(self) -> int:
        return self.below + self.inside


@dataclass(frozen=True)
class Growth:
    """One partition that was written to during the check."""

    side: str
    """source or sink"""
    partition: int
    before: int
    """High watermark at the first look."""
    after: int
    """High watermark at the last look."""


@dataclass(frozen=True)
class Circumstances:
    """What was seen of both topics. Runs know their range and judge when it is over: they are
    looked at once."""

    looked: bool = False
    """Whether anybody looked at all."""
    source_removed: Mapping[int, Removed] = field(default_factory=dict)
    """By partition; partitions that have lost nothing are left out."""
    sink_removed: Mapping[int, Removed] = field(default_factory=dict)
    growth: tuple[Growth, ...] = ()
    watched: bool = False
    """Whether the topics were looked at twice, so that no growth means rest."""
    source_lso: Mapping[int, int] = field(default_factory=dict)
    """The source's last stable offsets, by partition. Inputs at and above one are pending: not due
    yet."""
    offsets_after: Mapping[int, int] | None = None
    """The consumer group's committed offsets, asked after the readings' bounds; None without a
    group."""
    due_told: bool = False
    """Whether it was known before the sink's bounds were taken of which inputs outputs are due."""
    policies: Mapping[str, str] = field(default_factory=dict)
    """Each topic's `cleanup.policy`, with its retention."""

    @property
    def moving(self) -> bool:
        return bool(self.growth)


NO_CIRCUMSTANCES = Circumstances()
