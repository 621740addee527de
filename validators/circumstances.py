"""What is known of two topics besides their records: what they have lost, and whether they grew
during the check.

A verdict rests on premises: the judged range is complete and does not move. The code that takes the
readings records its observations here. The premises themselves are kinds of finding
(validators/expectation.py, PREMISES).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Removed:
    """Offsets of one partition's judged range that Kafka has removed."""

    below: int = 0
    """Offsets below the log start: retention or DeleteRecords removed them."""
    inside: int = 0
    """Offsets at or above the log start, in no batch any more or in an emptied one: compaction
    removed them."""

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
class Incarnation:
    """A source topic whose first record is later than outputs in the sink
    (validators/incarnations.py)."""

    topic: str
    began_ms: int
    """Outputs before this time are older than every record of the topic. Ms since 1970."""
    ends: Mapping[int, int]
    """By sink partition: transactional records below this offset were committed before that."""


@dataclass(frozen=True)
class Circumstances:
    """Observations of both topics. Runs know their range and are judged afterwards, so one look is
    enough."""

    looked: bool = False
    """Whether the topics were inspected at all."""
    source_removed: Mapping[int, Removed] = field(default_factory=dict)
    """By partition, without partitions that have lost nothing."""
    sink_removed: Mapping[int, Removed] = field(default_factory=dict)
    growth: tuple[Growth, ...] = ()
    watched: bool = False
    """Whether the topics were looked at twice; only then does the absence of growth mean rest."""
    source_lso: Mapping[int, int] = field(default_factory=dict)
    """The source's last stable offsets, by partition. Inputs at and above them are pending, so not
    due."""
    offsets_after: Mapping[int, int] | None = None
    """The consumer group's committed offsets, read after the readings' bounds; None without a
    group."""
    due_told: bool = False
    """Whether it was known, before the sink's bounds were taken, which inputs have due outputs."""
    policies: Mapping[str, str] = field(default_factory=dict)
    """Each topic's `cleanup.policy`, with its retention."""
    source_policies: Mapping[str, str] = field(default_factory=dict)
    """Those of the source's topics, if they are on another cluster: names may be the sink's."""

    incarnations: tuple[Incarnation, ...] = ()
    """Source topics that some outputs in the sink precede. Empty for healthy topics."""
    replaced: tuple[str, ...] = ()
    """Clauses about topics that were deleted, or deleted and made again, as their ids show."""
    vanished: bool = False
    """Whether that happened while they were read."""

    @property
    def moving(self) -> bool:
        return bool(self.growth)


NO_CIRCUMSTANCES = Circumstances()
