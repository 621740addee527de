"""The committed offsets of every group of a cluster, as far as one look takes them in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

from topicproof.backend.kafka.cluster import COUNTER, INTERNAL_TOPICS
from topicproof.backend.kafka.coordination.groups import list_groups, members_first
from topicproof.backend.kafka.log.rawlog import Connection
from topicproof.backend.kafka.look import GROUPS, LookBudget
from topicproof.validators.coordinator import short_name

GROUPS_ASKED = 100
"""Groups in one request."""


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
    listed = [group for group in list_groups(kafka) if not group.share]
    names = [group.group for group in sorted(listed, key=members_first)]
    offsets: dict[Place, int] = {}
    for batch in budget.batches(names, GROUPS_ASKED, GROUPS):
        answers = kafka.with_retries(partial(kafka.admin.list_group_offsets, dict.fromkeys(batch)))
        for group in batch:
            for at, committed in answers[group].items():
                # A run counts its starts by an offset that nobody reads from. confluent-kafka sends
                # the zero at the end of C's strings along.
                counts = (committed.metadata or "").rstrip("\0") == COUNTER
                if committed.offset >= 0 and not counts and at.topic not in INTERNAL_TOPICS:
                    place = Place(short_name(group), at.topic, at.partition)
                    offsets[place] = committed.offset
                    budget.entries += 1
    return offsets
