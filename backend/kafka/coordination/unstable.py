"""Committed offsets that an open transaction may still change (KIP-447).

A consumer that is assigned such a partition cannot start until the transaction ends. Candidates are
the transactions that are open on the group's partition of `__consumer_offsets`.
"""

from __future__ import annotations

from collections.abc import Collection

from kafka.errors import UnstableOffsetCommitError, for_code
from kafka.protocol.consumer import OffsetFetchRequest

from topicproof.backend.kafka.coordination.coordinator import open_transactions
from topicproof.backend.kafka.coordination.groups import list_groups
from topicproof.backend.kafka.coordination.transaction_state import partition_of
from topicproof.backend.kafka.log.rawlog import Connection
from topicproof.validators.coordinator import UnstableOffset

TOPIC = "__consumer_offsets"
VERSION_MIN, VERSION_MAX = 8, 9
"""One request covers many groups from version 8 on (KIP-709), and names topics only by id from 10
on."""


def unstable_offsets(kafka: Connection, topic: str) -> tuple[int, tuple[UnstableOffset, ...]]:
    """Count the groups' offsets on the topic, and return those that are unstable now, by group and
    partition."""
    groups = [each.group for each in list_groups(kafka) if not each.share]
    if not groups:
        return 0, ()
    partitions = sorted(kafka.leaders(topic))
    stable, unstable = kafka.with_retries(lambda: _offsets(kafka, topic, partitions, groups))
    if not unstable:
        return stable, ()
    holders = open_transactions(kafka, TOPIC)
    count = len(kafka.leaders(TOPIC))
    offsets = [
        UnstableOffset(
            group,
            topic,
            partition,
            tuple(each for each in holders if each.partition == partition_of(group, count)),
        )
        for group, partition in sorted(unstable)
    ]
    # Without a holder, the transaction has ended between the two requests.
    return stable + len(unstable), tuple(each for each in offsets if each.holders)


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
