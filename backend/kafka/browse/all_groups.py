"""Every group of a cluster: its state, and what it really has left to read of each topic, at both
isolation levels.

Offsets come from the overview of the cluster and from one request for each hundred groups. Records
are counted from batch headers, topic after topic, the one with the fewest offsets first, until
`COUNTED_OFFSETS_MAX` are read. Beyond that, offsets stand for records: an upper bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from kafka.errors import KafkaError

from topicproof.backend.address import Address
from topicproof.backend.kafka.browse.overview import Overview
from topicproof.backend.kafka.coordination.groups import Group, committed_offsets, list_groups
from topicproof.backend.kafka.coordination.lag import (
    GroupLag,
    PartitionRecords,
    RecordCounter,
    holder_of_lso,
    partition_lag,
    records_of,
)
from topicproof.backend.kafka.coordination.worst_lag import COUNTED_OFFSETS_MAX, bounds_from
from topicproof.backend.kafka.log.client import cluster_error
from topicproof.backend.kafka.log.fates import fate_ranges
from topicproof.backend.kafka.log.rawlog import Connection, connect
from topicproof.backend.kafka.look import GROUPS, LookBudget
from topicproof.validators.coordinator import short_name
from topicproof.validators.finding import Bounds, PartitionBounds

NAMES_AT_ONCE = 1_000


@dataclass(frozen=True)
class ClusterGroup:
    """One group of the cluster."""

    group: str
    kind: str
    """As `groups.Group.kind`."""
    state: str
    """As `groups.Group.state`."""
    lags: Mapping[str, GroupLag]
    """By topic, sorted; members are not asked for. Only partitions with a committed offset are
    counted. Empty for a share group, which has none."""

    @property
    def visible(self) -> int:
        """Records that it can read now at read_committed."""
        return sum(lag.visible for lag in self.lags.values())

    @property
    def uncommitted(self) -> int:
        """Records that it could read now at read_uncommitted."""
        return sum(lag.uncommitted for lag in self.lags.values())

    @property
    def withheld(self) -> int:
        return sum(lag.withheld for lag in self.lags.values())

    @property
    def subtraction(self) -> int:
        """HW minus committed offset, which other tools call lag."""
        return sum(lag.subtraction for lag in self.lags.values())

    @property
    def is_exact(self) -> bool:
        """False: the counts are of offsets in part, so at most so many records."""
        return all(p.exact for lag in self.lags.values() for p in lag.partitions)

    @property
    def stuck(self) -> tuple[str, ...]:
        """The topics of which it has read all it can, while a transaction withholds the rest."""
        return tuple(topic for topic, lag in self.lags.items() if lag.stuck)

    @property
    def stuck_behind(self) -> tuple[str, ...]:
        """Who holds these topics back, as far as it is known."""
        return tuple(
            dict.fromkeys(
                p.stuck_behind
                for topic in self.stuck
                for p in self.lags[topic].partitions
                if p.stuck_behind
            )
        )


def all_groups(
    address: Address, cluster: Overview, *, budget: LookBudget
) -> tuple[ClusterGroup, ...]:
    """Return every group that this client may describe, by name. `cluster` is a fresh look at the
    cluster. Raises ClusterError."""
    try:
        with connect(address) as kafka:
            return _all_groups(kafka, cluster, budget)
    except KafkaError as error:
        raise cluster_error(address, error) from error


def group_names(address: Address, *, budget: LookBudget) -> tuple[str, ...]:
    """Return the names of the groups that this client may list, in order, without asking any of
    them for anything. Raises ClusterError."""
    names: list[str] = []
    try:
        with connect(address) as kafka:
            for groups in budget.batches(list_groups(kafka), NAMES_AT_ONCE, GROUPS):
                budget.entries += len(groups)
                names += [short_name(group.group) for group in groups]
    except KafkaError as error:
        raise cluster_error(address, error) from error
    return tuple(names)


def _all_groups(
    kafka: Connection, cluster: Overview, budget: LookBudget
) -> tuple[ClusterGroup, ...]:
    topics = {topic.topic: topic for topic in cluster.topics}
    offsets_of: dict[str, dict[str, dict[int, int]]] = {}
    first: dict[str, dict[int, int]] = {}
    for group, committed in committed_offsets(kafka, budget):
        budget.entries += len(committed)
        for (topic, partition), offset in committed.items():
            if topic not in topics:
                continue
            offsets_of.setdefault(group.group, {}).setdefault(topic, {})[partition] = offset
            earliest = first.setdefault(topic, {})
            earliest[partition] = min(offset, earliest.get(partition, offset))
    counters = _counters(kafka, {topic: topics[topic].bounds for topic in first}, first)

    def lag(group: Group, topic: str, offsets: Mapping[int, int]) -> GroupLag:
        partitions = []
        for p in topics[topic].bounds.partitions:
            if p.partition not in offsets:
                continue
            records = counters.get((topic, p.partition))
            holder = holder_of_lso(p, topics[topic].opened)
            counted = partition_lag(p, offsets[p.partition], records or _offsets(p), holder)
            partitions.append(counted if records else replace(counted, exact=False))
        name = short_name(group.group)
        return GroupLag(name, group.kind, group.state, None, tuple(partitions))

    return tuple(
        ClusterGroup(
            short_name(group.group),
            group.kind,
            group.state,
            {
                topic: lag(group, topic, offsets)
                for topic, offsets in sorted(offsets_of.get(group.group, {}).items())
            },
        )
        for group in list_groups(kafka)
    )


def _counters(
    kafka: Connection, bounds: Mapping[str, Bounds], first: Mapping[str, Mapping[int, int]]
) -> dict[tuple[str, int], PartitionRecords]:
    """Count the records of each topic from the first offset that a group has yet to read; of the
    largest topics not, if all together are too large."""
    parts = [bounds_from(bounds[topic], first[topic]) for topic in first]
    counters = {}
    read = 0
    for part in sorted(parts, key=lambda part: part.offsets):
        read += part.offsets
        if read > COUNTED_OFFSETS_MAX:
            break
        ranges = fate_ranges(kafka.scan(part.topic, part), part)
        for p in part.partitions:
            counters[part.topic, p.partition] = records_of(ranges, p.partition)
    return counters


def _offsets(p: PartitionBounds) -> PartitionRecords:
    """Return a partition as if each offset held a committed record."""
    low, high = np.array([p.start], np.int64), np.array([p.hw - 1], np.int64)
    offsets = np.array([p.hw - p.start], np.int64)
    counter = RecordCounter(low, high, offsets, np.concatenate(([0], offsets.cumsum())))
    return PartitionRecords(counter, counter)
