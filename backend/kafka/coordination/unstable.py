"""Committed offsets of groups, and those that an open transaction may still change (KIP-447).

A consumer that is assigned such a partition cannot start until the transaction ends. Candidates are
the transactions that are open on the group's partition of `__consumer_offsets`.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from kafka.errors import UnstableOffsetCommitError, for_code
from kafka.protocol.consumer import OffsetFetchRequest

from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.coordination.coordinator import open_transactions
from topicproof.backend.kafka.coordination.groups import list_groups, members_first
from topicproof.backend.kafka.coordination.transaction_state import partition_of
from topicproof.backend.kafka.log.rawlog import Connection, connect
from topicproof.backend.kafka.look import GROUPS, UNSTABLE_OFFSETS, LookBudget
from topicproof.validators.coordinator import OpenTransaction, UnstableOffset, short_name
from topicproof.validators.finding import Bounds
from topicproof.validators.merged_topics import split

TOPIC = "__consumer_offsets"
HOLDERS_MAX = 3
"""Transactions that are named for one unstable offset."""
PLACES_ASKED = 20_000
"""Partitions of groups in one request."""
VERSION_MIN, VERSION_MAX = 8, 9
"""One request covers many groups from version 8 on (KIP-709), and names topics only by id from 10
on."""


def committed_offsets(cluster: Cluster, group: str, source: Bounds) -> dict[int, int]:
    """Return the group's committed offsets of the source, by its consecutive partition numbers.
    Raises ClusterError, also for an offset whose transaction stays open."""
    return {
        first + partition: at
        for topic_bounds, first in split(source)
        for partition, at in _committed(cluster, group, topic_bounds.topic).items()
        if at >= 0
    }


def _committed(cluster: Cluster, group: str, topic: str) -> dict[int, int]:
    try:
        return cluster.committed(group, topic)
    except ClusterError as error:
        # Kafka does not say an offset that a transaction may still change, and clients ask again.
        with connect(cluster.address) as kafka:
            _, unstable = unstable_offsets(kafka, topic, budget=LookBudget(), of_group=group)
        for unstable_offset in unstable:
            if unstable_offset.group == short_name(group):
                raise ClusterError(
                    f"{unstable_offset.why} Check again when it has ended."
                ) from error
        raise


def unstable_offsets(
    kafka: Connection, topic: str, *, budget: LookBudget, of_group: str | None = None
) -> tuple[int, tuple[UnstableOffset, ...]]:
    """Count the groups' offsets on the topic, and return those that are unstable now, by group and
    partition. `of_group`: look at this group alone."""
    partitions = sorted(kafka.leaders(topic))
    listed = [each for each in list_groups(kafka) if not each.share]
    groups = [each.group for each in sorted(listed, key=members_first)]
    if of_group is not None:
        groups = [of_group]
    stable = 0
    unstable: list[tuple[str, int]] = []
    at_once = max(1, PLACES_ASKED // max(1, len(partitions)))
    for batch in budget.batches(groups, at_once, GROUPS):
        counted, of_batch = kafka.with_retries(partial(_offsets, kafka, topic, partitions, batch))
        stable += counted
        unstable += sorted(of_batch)
        budget.entries += len(of_batch)
    most = max(0, budget.limits.transactions - budget.transactions)
    places = sorted(unstable[:most])
    budget.transactions += len(places)
    budget.leave_out(len(unstable) - most, UNSTABLE_OFFSETS)
    if not places:
        return stable + len(unstable), ()
    holders: dict[int, list[OpenTransaction]] = {}
    # Transactions on the topic are another question.
    budget_of_holders = LookBudget(budget.limits)
    for transaction in open_transactions(kafka, TOPIC, budget=budget_of_holders):
        holders.setdefault(transaction.partition, []).append(transaction)
    budget.left_out += budget_of_holders.left_out
    for of_partition in holders.values():
        of_partition.sort(key=lambda each: (not each.ends_by_itself, -each.age_ms))
    count = len(kafka.leaders(TOPIC))
    offsets = [
        UnstableOffset(
            short_name(group),
            topic,
            partition,
            tuple(of_partition[:HOLDERS_MAX]),
            max(0, len(of_partition) - HOLDERS_MAX),
            has_unseen_holders=bool(budget_of_holders.left_out),
        )
        for group, partition in places
        for of_partition in [holders.get(partition_of(group, count))]
        # Without a holder, the transaction has ended between the two requests.
        if of_partition
    ]
    return stable + len(unstable), tuple(offsets)


def _offsets(
    kafka: Connection, topic: str, partitions: Collection[int], groups: Collection[str]
) -> tuple[int, set[tuple[str, int]]]:
    """Count the stable offsets, and return the groups and partitions of unstable ones."""
    ask = OffsetFetchRequest.OffsetFetchRequestGroup
    request_topics = [ask.OffsetFetchRequestTopics(name=topic, partition_indexes=list(partitions))]

    def request(names: list[str]) -> OffsetFetchRequest:
        return OffsetFetchRequest(
            groups=[ask(group_id=name, topics=request_topics) for name in names],
            require_stable=True,
            min_version=VERSION_MIN,
            max_version=VERSION_MAX,
        )

    stable, unstable = 0, set()
    for answer in kafka.ask_coordinators(groups, request):
        for group in answer.groups:
            if group.error_code:
                raise for_code(group.error_code)(f"offsets of group {group.group_id}")
            for partition in group.topics[0].partitions:
                error = for_code(partition.error_code)
                if error is UnstableOffsetCommitError:
                    unstable.add((group.group_id, partition.partition_index))
                elif partition.error_code:
                    raise error(
                        f"offset of group {group.group_id} on {topic}-{partition.partition_index}"
                    )
                stable += partition.committed_offset >= 0
    return stable, unstable
