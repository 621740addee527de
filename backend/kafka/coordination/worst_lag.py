"""The group of a cluster that has most left to read, in records.

Offsets below the last stable offset are counted first, which needs no batch headers. Markers,
aborted records and holes are among them, so the number of offsets is an upper bound of the lag
(see lag.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from topicproof.backend.errors import LogTooLong, TopicError
from topicproof.backend.kafka.coordination.groups import EMPTY, committed_offsets
from topicproof.backend.kafka.log.fates import fate_ranges, records_between
from topicproof.backend.kafka.log.rawlog import Connection
from topicproof.backend.kafka.look import LookBudget
from topicproof.validators.coordinator import short_name
from topicproof.validators.finding import Bounds, Fate, PartitionBounds

COUNTED_OFFSETS_MAX = 500_000
"""Larger spans are not counted record by record: their number of offsets is an upper bound."""
COUNTED_GROUPS_MAX = 20
"""At most so many groups are counted record by record: many may have the same offsets behind."""
READ_OFFSETS_MAX = 10_000
"""A group with more offsets left than this is behind, whatever it waits for."""


@dataclass(frozen=True)
class Lag:
    """What one group has left to read of one topic at read_committed."""

    group: str
    topic: str
    records: int
    exact: bool
    """False: `records` is the number of offsets, so at most that many records."""
    has_members: bool = True
    """Whether a client reads for the group. A program that assigns itself partitions is no
    member."""


Behind = Mapping[str, Sequence[tuple[Lag, Bounds]]]
"""How many offsets each group has left below the LSO, with where they lie, by topic."""


class StuckGroup(NamedTuple):
    """A group that can read nothing of a topic, because transactions withhold the rest."""

    group: str
    topic: str
    partitions: tuple[int, ...]
    """Where something is withheld from it."""


def offsets_behind(
    kafka: Connection, bounds: Mapping[str, Bounds], *, budget: LookBudget
) -> Behind:
    """Return how many offsets each group has left. Only partitions on which the group has committed
    an offset are counted. Groups with members come first if the budget does not allow for all."""
    lags: dict[str, list[tuple[Lag, Bounds]]] = {}
    # Each once: thousands of groups may read a topic of thousands of partitions.
    partitions = {topic: _by_number(of_topic) for topic, of_topic in bounds.items()}
    for group, committed in committed_offsets(kafka, budget):
        by_topic: dict[str, dict[int, int]] = {}
        for (topic, partition), offset in committed.items():
            if topic in bounds:
                by_topic.setdefault(topic, {})[partition] = offset
        for topic, offsets in by_topic.items():
            part = _bounds_from(topic, partitions[topic], offsets)
            budget.entries += len(part.partitions)
            left = sum(max(0, p.lso - p.start) for p in part.partitions)
            has_members = group.state != EMPTY
            lag = Lag(short_name(group.group), topic, left, left == 0, has_members)
            lags.setdefault(topic, []).append((lag, part))
    return lags


def worst_lag(kafka: Connection, behind: Behind) -> Lag | None:
    """Return the largest lag in records.

    A group has at most as many records left as offsets. So groups are counted in the order of their
    offsets, until nobody else can have more records than the worst one so far, or enough were.
    """
    every = [each for of_topic in behind.values() for each in of_topic]
    worst: Lag | None = None
    by_offsets = sorted(every, key=lambda each: -each[0].records)
    for number, (lag, part) in enumerate(by_offsets):
        if worst is not None and worst.records >= lag.records:
            break
        if lag.exact or lag.records > COUNTED_OFFSETS_MAX or number == COUNTED_GROUPS_MAX:
            return lag
        records = _readable(kafka, part)
        if records is None:
            continue
        if worst is None or records > worst.records:
            worst = replace(lag, records=records, exact=True)
    return worst


def stuck_groups(
    kafka: Connection,
    bounds: Mapping[str, Bounds],
    behind: Mapping[str, Sequence[tuple[Lag, Bounds]]],
) -> tuple[StuckGroup, ...]:
    """Return the groups that have read all below the LSO of a topic and wait for the rest.

    Their lag is 0, so no other figure names them. A group whose offset lies beyond the LSO reads
    uncommitted records: nothing is withheld from it there.
    """
    stuck = []
    counted = 0
    lsos = {
        topic: {p.partition: p.lso for p in bounds[topic].partitions}
        for topic, groups in behind.items()
        if groups
    }
    for lag, part in (each for of_topic in behind.values() for each in of_topic):
        stable = lsos[lag.topic]
        waiting = tuple(
            p.partition
            for p in part.partitions
            if p.start <= stable[p.partition] == p.lso and p.lso < p.hw
        )
        if not waiting or lag.records > READ_OFFSETS_MAX:
            continue
        if lag.records:
            # They may all be markers and aborted records.
            counted += 1
            if counted > COUNTED_GROUPS_MAX or _readable(kafka, part) != 0:
                continue
        stuck.append(StuckGroup(lag.group, lag.topic, waiting))
    return tuple(stuck)


def _readable(kafka: Connection, part: Bounds) -> int | None:
    """Count the committed records below the LSO; None if the topic was deleted meanwhile."""
    try:
        ranges = fate_ranges(kafka.scan(part.topic, part), part)
    except LogTooLong:
        raise
    except TopicError:
        return None
    return sum(
        records_between(ranges, p.partition, p.start, p.lso, [Fate.COMMITTED])
        for p in part.partitions
    )


def bounds_from(bounds: Bounds, first: Mapping[int, int]) -> Bounds:
    """Return the part of the bounds from these offsets on; partitions without one are left out."""
    return _bounds_from(bounds.topic, _by_number(bounds), first)


def _bounds_from(
    topic: str, partitions: Mapping[int, PartitionBounds], first: Mapping[int, int]
) -> Bounds:
    """`bounds_from` in as many steps as there are offsets, not partitions."""
    parts = []
    for number in sorted(number for number in first if number in partitions):
        p = partitions[number]
        start = min(max(p.start, first[number]), p.hw)
        parts.append(PartitionBounds(number, start, max(p.lso, start), p.hw))
    return Bounds(topic, tuple(parts))


def _by_number(bounds: Bounds) -> dict[int, PartitionBounds]:
    return {p.partition: p for p in bounds.partitions}
