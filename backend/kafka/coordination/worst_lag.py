"""The group of a cluster that has most left to read, in records.

Offsets below the last stable offset are counted first, which needs no batch headers. Markers,
aborted records and holes are among them, so the number of offsets is an upper bound of the lag
(see lag.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from topicproof.backend.kafka.cluster import COUNTER
from topicproof.backend.kafka.coordination.groups import EMPTY, list_groups, members_first
from topicproof.backend.kafka.log.fates import fate_ranges, records_between
from topicproof.backend.kafka.log.rawlog import Connection
from topicproof.backend.kafka.look import GROUPS, LookBudget
from topicproof.validators.coordinator import short_name
from topicproof.validators.finding import Bounds, Fate, PartitionBounds

COUNTED_OFFSETS_MAX = 500_000
"""Larger spans are not counted record by record: their number of offsets is an upper bound."""
COUNTED_GROUPS_MAX = 20
"""At most so many groups are counted record by record: many may have the same offsets behind."""
READ_OFFSETS_MAX = 10_000
"""A group with more offsets left than this is behind, whatever it waits for."""
GROUPS_ASKED = 100
"""Groups in one request."""


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
    listed = [each for each in list_groups(kafka) if not each.share]
    empty = {each.group for each in listed if each.state == EMPTY}
    groups = [each.group for each in sorted(listed, key=members_first)]
    lags: dict[str, list[tuple[Lag, Bounds]]] = {}
    for batch in budget.batches(groups, GROUPS_ASKED, GROUPS):
        for group, topic, part in _unread(kafka, bounds, batch):
            budget.entries += len(part.partitions)
            left = sum(max(0, p.lso - p.start) for p in part.partitions)
            lag = Lag(short_name(group), topic, left, left == 0, group not in empty)
            lags.setdefault(topic, []).append((lag, part))
    return lags


def _unread(
    kafka: Connection, bounds: Mapping[str, Bounds], groups: Sequence[str]
) -> Iterator[tuple[str, str, Bounds]]:
    """Yield each group with each topic of which it has committed offsets, and the bounds from
    there on."""
    answers = kafka.with_retries(
        lambda: kafka.admin.list_group_offsets(dict.fromkeys(groups, None))
    )
    for group in groups:
        committed: dict[str, dict[int, int]] = {}
        for at, each in answers[group].items():
            # confluent-kafka sends the zero at the end of C's strings along.
            counts = (each.metadata or "").rstrip("\0") == COUNTER
            if at.topic in bounds and each.offset >= 0 and not counts:
                committed.setdefault(at.topic, {})[at.partition] = each.offset
        for topic, offsets in committed.items():
            yield group, topic, bounds_from(bounds[topic], offsets)


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
    for lag, part in (each for of_topic in behind.values() for each in of_topic):
        stable = {p.partition: p.lso for p in bounds[lag.topic].partitions}
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
            if counted > COUNTED_GROUPS_MAX or _readable(kafka, part):
                continue
        stuck.append(StuckGroup(lag.group, lag.topic, waiting))
    return tuple(stuck)


def _readable(kafka: Connection, part: Bounds) -> int:
    """Count the committed records below the LSO."""
    ranges = fate_ranges(kafka.scan(part.topic, part), part)
    return sum(
        records_between(ranges, p.partition, p.start, p.lso, [Fate.COMMITTED])
        for p in part.partitions
    )


def bounds_from(bounds: Bounds, first: Mapping[int, int]) -> Bounds:
    """Return the part of the bounds from these offsets on; partitions without one are left out."""
    parts = []
    for p in bounds.partitions:
        if p.partition in first:
            start = min(max(p.start, first[p.partition]), p.hw)
            parts.append(PartitionBounds(p.partition, start, max(p.lso, start), p.hw))
    return Bounds(bounds.topic, tuple(parts))
