"""The group of a cluster that has most left to read, in records.

Offsets below the last stable offset are counted first, which needs no batch headers. Markers,
aborted records and holes are among them, so the number of offsets is an upper bound of the lag
(see lag.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from topicproof.backend.kafka.cluster import COUNTER
from topicproof.backend.kafka.coordination.groups import list_groups
from topicproof.backend.kafka.log.fates import fate_ranges, records_between
from topicproof.backend.kafka.log.rawlog import Connection
from topicproof.validators.finding import Bounds, Fate, PartitionBounds

COUNTED_OFFSETS_MAX = 500_000
"""Larger spans are not counted record by record: their number of offsets is an upper bound."""


@dataclass(frozen=True)
class Lag:
    """What one group has left to read of one topic at read_committed."""

    group: str
    topic: str
    records: int
    exact: bool
    """False: `records` is the number of offsets, so at most that many records."""


def offsets_behind(
    kafka: Connection, bounds: Mapping[str, Bounds]
) -> dict[str, list[tuple[Lag, Bounds]]]:
    """Return how many offsets each group has left below the LSO, by topic, with where they lie.

    Only partitions on which the group has committed an offset are counted.
    """
    groups = [each.group for each in list_groups(kafka) if not each.share]
    if not groups:
        return {}
    answers = kafka.with_retries(
        lambda: kafka.admin.list_group_offsets(dict.fromkeys(groups, None))
    )
    lags: dict[str, list[tuple[Lag, Bounds]]] = {}
    for group in groups:
        committed: dict[str, dict[int, int]] = {}
        for at, each in answers[group].items():
            # confluent-kafka sends the zero at the end of C's strings along.
            counts = (each.metadata or "").rstrip("\0") == COUNTER
            if at.topic in bounds and each.offset >= 0 and not counts:
                committed.setdefault(at.topic, {})[at.partition] = each.offset
        for topic, offsets in committed.items():
            part = bounds_from(bounds[topic], offsets)
            left = sum(max(0, p.lso - p.start) for p in part.partitions)
            lags.setdefault(topic, []).append((Lag(group, topic, left, left == 0), part))
    return lags


def worst_lag(
    kafka: Connection, behind: Mapping[str, Collection[tuple[Lag, Bounds]]]
) -> Lag | None:
    """Return the largest lag in records.

    A group has at most as many records left as offsets. So groups are counted in the order of their
    offsets, until nobody else can have more records than the worst one so far.
    """
    every = [each for of_topic in behind.values() for each in of_topic]
    worst: Lag | None = None
    for lag, part in sorted(every, key=lambda each: -each[0].records):
        if worst is not None and worst.records >= lag.records:
            break
        if lag.exact or lag.records > COUNTED_OFFSETS_MAX:
            return lag
        ranges = fate_ranges(kafka.scan(lag.topic, part), part)
        records = sum(
            records_between(ranges, p.partition, p.start, p.lso, [Fate.COMMITTED])
            for p in part.partitions
        )
        if worst is None or records > worst.records:
            worst = Lag(lag.group, lag.topic, records, True)
    return worst


def bounds_from(bounds: Bounds, first: Mapping[int, int]) -> Bounds:
    """Return the part of the bounds from these offsets on; partitions without one are left out."""
    parts = []
    for p in bounds.partitions:
        if p.partition in first:
            start = min(max(p.start, first[p.partition]), p.hw)
            parts.append(PartitionBounds(p.partition, start, max(p.lso, start), p.hw))
    return Bounds(bounds.topic, tuple(parts))
