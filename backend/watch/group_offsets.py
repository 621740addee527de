"""The committed offsets of every group of a cluster, as far as one look takes them in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from topicproof.backend.kafka.cluster import INTERNAL_TOPICS
from topicproof.backend.kafka.coordination.groups import committed_offsets
from topicproof.backend.kafka.log.rawlog import Connection
from topicproof.backend.kafka.look import LookBudget
from topicproof.validators.coordinator import short_name


class Place(NamedTuple):
    """Where a group has an offset."""

    group: str
    topic: str
    partition: int


def by_topic(offsets: Mapping[Place, int]) -> Iterator[tuple[str, str, Mapping[int, int]]]:
    """Yield the offsets of each group on each topic, by partition."""
    parts: dict[tuple[str, str], dict[int, int]] = {}
    for place, offset in offsets.items():
        parts.setdefault((place.group, place.topic), {})[place.partition] = offset
    for (group, topic), partitions in parts.items():
        yield group, topic, partitions


def group_offsets(kafka: Connection, budget: LookBudget) -> Mapping[Place, int]:
    """Return the offsets of all groups; those with members first if the budget does not allow for
    all, which it notes. Raises KafkaError, ClusterError."""
    offsets: dict[Place, int] = {}
    for group, committed in committed_offsets(kafka, budget):
        name = short_name(group.group)
        of_group = {
            Place(name, topic, partition): offset
            for (topic, partition), offset in committed.items()
            if topic not in INTERNAL_TOPICS
        }
        budget.entries += len(of_group)
        offsets |= of_group
    return offsets
