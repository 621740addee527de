"""Groups and their members, as their coordinators know them.

A coordinator answers a request of its own for each kind of group: DescribeGroups for classic ones,
ConsumerGroupDescribe for those of the consumer protocol (KIP-848), and ShareGroupDescribe for share
groups (KIP-932).
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from kafka.errors import GroupAuthorizationFailedError, GroupIdNotFoundError, for_code
from kafka.protocol.admin import DescribeGroupsRequest

from topicproof.backend.kafka.cluster import COUNTER
from topicproof.backend.kafka.log.messages import (
    ConsumerGroupDescribeRequest,
    ShareGroupDescribeRequest,
)
from topicproof.backend.kafka.log.rawlog import Connection
from topicproof.backend.kafka.look import GROUPS, MEMBERS, LookBudget
from topicproof.validators.coordinator import short_name

MEMBER_BYTES, NAME_BYTES, PARTITION_BYTES, PLACE_BYTES = 1_000, 100, 4, 300
"""What counts in the budget for a member besides its texts, for each name of a topic in its
assignment, for each partition there, and for each that is kept. Brokers keep what the leader of a
group made up, a megabyte a group."""
GROUPS_ASKED, EMPTY_GROUPS_ASKED = 20, 1_000
"""Groups in one request. An answer comes whole, whatever it takes; a group without members takes
nothing."""
GROUPS_ASKED_FOR_OFFSETS = 100
"""Groups in one request for their offsets."""
CLASSIC, CONSUMER, SHARE = "classic", "consumer", "share"
EMPTY = "Empty"
CONSUMERS = "consumer"
"""The protocol type of classic groups whose members are consumers. Kafka Connect's workers are
members of classic groups too, and are not assigned partitions."""


@dataclass(frozen=True)
class Group:
    """A group in the list of its coordinator."""

    group: str
    kind: str
    """Kafka's type in lower case: classic, consumer (KIP-848), share (KIP-932), streams (KIP-1071).
    Brokers before 3.7 do not tell it; their groups are classic."""
    state: str
    """The group's state in Kafka's words: Stable, Empty, Dead. Empty if the broker does not report
    it."""
    protocol: str
    """The protocol type: consumer, connect; empty for a group that never had a member."""

    @property
    def share(self) -> bool:
        """Share groups have no committed offsets."""
        return self.kind == SHARE


@dataclass(frozen=True)
class Member:
    """One client in a group."""

    member: str
    client: str
    """Its `client.id`."""
    host: str
    """The address that its coordinator sees."""
    partitions: tuple[tuple[str, int], ...]
    """Topic and partition of each that it has now, of the topic looked at, sorted. Coordinators do
    not tell those of a classic group that rebalances."""
    awaited: tuple[tuple[str, int], ...] = ()
    """Those that it is assigned and does not have yet, because another member gives them up first
    (KIP-848). Empty in classic groups."""
    elsewhere: int = 0
    """How many partitions it is assigned besides: of other topics, or that do not exist."""

    @property
    def has_assignment(self) -> bool:
        """Whether it is assigned a partition of any topic."""
        return bool(self.partitions or self.awaited or self.elsewhere)

    def places(self, topic: str) -> str:
        """Say in words which partitions of the topic it has, and which it waits for."""
        now, then = (
            ", ".join(str(partition) for name, partition in those if name == topic)
            for those in (self.partitions, self.awaited)
        )
        waits = f"waits for {then}" if then else ""
        return "; ".join(filter(None, (now, waits)))


class Assignment(NamedTuple):
    """The partitions in one list of a coordinator."""

    numbers: frozenset[int] = frozenset()
    """Those of the topic looked at that exist."""
    elsewhere: int = 0
    """How many more there are."""
    size: int = 0
    """Bytes that it counts in the budget."""


class TopicSize(NamedTuple):
    """The topic looked at."""

    name: str
    partitions: int


def list_groups(kafka: Connection) -> tuple[Group, ...]:
    """Return every group that this client may describe, by name. Raises kafka-python's errors."""
    listed = kafka.with_retries(kafka.admin.list_groups)
    return tuple(
        Group(
            listing["group_id"],
            str(listing.get("group_type") or CLASSIC).lower(),
            str(listing.get("group_state", "")),
            str(listing.get("protocol_type", "")),
        )
        for listing in sorted(listed, key=lambda listing: str(listing["group_id"]))
    )


def members_first(group: Group) -> tuple[bool, str]:
    """Key for sorting: a group without members costs whoever makes it nothing."""
    return group.state == EMPTY, group.group


def committed_offsets(
    kafka: Connection, budget: LookBudget
) -> Iterator[tuple[Group, Mapping[tuple[str, int], int]]]:
    """Yield each group with its committed offsets by topic and partition; groups with members come
    first if the budget does not allow for all. Raises kafka-python's errors."""
    listed = sorted((group for group in list_groups(kafka) if not group.share), key=members_first)
    for batch in budget.batches(listed, GROUPS_ASKED_FOR_OFFSETS, GROUPS):
        names: dict[str, None] = dict.fromkeys(group.group for group in batch)
        answers = kafka.with_retries(partial(kafka.admin.list_group_offsets, names))
        for group in batch:
            # A run counts its starts by an offset that nobody reads from. confluent-kafka sends the
            # zero at the end of C's strings along.
            yield (
                group,
                {
                    (at.topic, at.partition): committed.offset
                    for at, committed in answers[group.group].items()
                    if committed.offset >= 0 and (committed.metadata or "").rstrip("\0") != COUNTER
                },
            )


def group_members(
    kafka: Connection, groups: Collection[Group], topic: TopicSize, *, budget: LookBudget
) -> Mapping[str, tuple[Member, ...] | None]:
    """Return the members of each group by name, sorted by client id and member id, with their
    partitions of the topic.

    None if their coordinator does not tell what they are assigned: groups of Kafka Connect and of
    Kafka Streams' own protocol (KIP-1071). Also None once the budget is spent. A group that was
    deleted meanwhile has no members.

    Raises kafka-python's errors.
    """
    members_by_group: dict[str, tuple[Member, ...] | None] = dict.fromkeys(
        group.group for group in groups
    )
    classic = [
        group for group in groups if group.kind == CLASSIC and group.protocol in (CONSUMERS, "")
    ]
    consumer = [group for group in groups if group.kind == CONSUMER]
    share = [group for group in groups if group.share]
    for of_kind, request, assignments in (
        (classic, _classic_request, _classic_assignments),
        (consumer, _consumer_request, _consumer_assignments),
        (share, _share_request, _share_assignments),
    ):
        for names, are_empty in _requests(of_kind):
            if budget.is_spent:
                if are_empty:  # As their coordinators list them.
                    members_by_group |= dict.fromkeys(names, ())
                else:
                    budget.leave_out(len(names), MEMBERS)
                continue
            for group in kafka.with_retries(partial(_described, kafka, names, request)):
                members_by_group[group.group_id] = _members(group, assignments, topic, budget)
    return members_by_group


def _requests(groups: Sequence[Group]) -> Iterator[tuple[list[str], bool]]:
    """Yield the names of groups for one request each, and whether these groups have no members."""
    for are_empty, size in ((False, GROUPS_ASKED), (True, EMPTY_GROUPS_ASKED)):
        names = [group.group for group in groups if (group.state == EMPTY) is are_empty]
        for first in range(0, len(names), size):
            yield names[first : first + size], are_empty


def _described(
    kafka: Connection, names: Collection[str], request: Callable[[list[str]], Any]
) -> list[Any]:
    """Return the groups as their coordinators describe them."""
    groups = [group for answer in kafka.ask_coordinators(names, request) for group in answer.groups]
    for group in groups:
        error = for_code(group.error_code)
        if error is GroupAuthorizationFailedError:
            raise kafka.address.not_allowed(f"Describe on group {group.group_id}")
        if group.error_code and error is not GroupIdNotFoundError:
            raise error(f"members of group {group.group_id}")
    return groups


def _members(
    group: Any,
    assignments: Callable[[Any, TopicSize], tuple[Assignment, Assignment]],
    topic: TopicSize,
    budget: LookBudget,
) -> tuple[Member, ...] | None:
    """Return the members of a group that was described; None once the budget is spent."""
    members = []
    for member in group.members:
        whole = member.member_id, member.client_id, member.client_host.removeprefix("/")
        member_id, client, host = map(short_name, whole)
        if not budget.is_spent:
            now, then = assignments(member, topic)
            awaited = then.numbers - now.numbers
            budget.size += MEMBER_BYTES + _text_bytes(whole) + now.size + then.size
            budget.size += PLACE_BYTES * (len(now.numbers) + len(awaited))
        if budget.is_spent:
            budget.leave_out(1, MEMBERS)
            return None
        members.append(
            Member(
                member_id,
                client,
                host,
                tuple((topic.name, number) for number in sorted(now.numbers)),
                tuple((topic.name, number) for number in sorted(awaited)),
                max(now.elsewhere, then.elsewhere),
            )
        )
    return tuple(sorted(members, key=lambda member: (member.client, member.member)))


def _text_bytes(texts: Iterable[str | None]) -> int:
    """Return the memory that texts take."""
    return sum(map(sys.getsizeof, texts))


def _classic_request(names: list[str]) -> DescribeGroupsRequest:
    return DescribeGroupsRequest(groups=names)


def _consumer_request(names: list[str]) -> ConsumerGroupDescribeRequest:
    return ConsumerGroupDescribeRequest(group_ids=names)


def _share_request(names: list[str]) -> ShareGroupDescribeRequest:
    return ShareGroupDescribeRequest(group_ids=names)


def _classic_assignments(member: Any, topic: TopicSize) -> tuple[Assignment, Assignment]:
    """Return what a member has now, and what it is assigned. Neither is known of a member whose
    assignment is no list of partitions: one client must not hide the groups of all others."""
    encoded = member.member_assignment or b""
    try:
        now = _decoded(encoded, topic) if encoded else Assignment()
    except (struct.error, ValueError):
        now = Assignment(size=len(encoded))
    # What its client sent along when it joined comes with it.
    return now, Assignment(now.numbers, now.elsewhere, len(member.member_metadata or b""))


def _decoded(encoded: bytes, topic: TopicSize) -> Assignment:
    """Return the partitions in a ConsumerProtocolAssignment. No object is made for what nobody asks
    for: a leader can make up a hundred thousand partitions. Raises struct.error or ValueError for
    other bytes."""
    name = topic.name.encode()
    lists: list[bytes] = []
    _version, topics = struct.unpack_from(">hi", encoded)
    at, listed = 6, 0
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", encoded, at)
        begin = at + 2 + length
        (count,) = struct.unpack_from(">i", encoded, begin)
        if length < 0 or count < 0:
            raise ValueError("a name or a list of negative length")
        if encoded[at + 2 : begin] == name:
            lists.append(encoded[begin + 4 : begin + 4 + PARTITION_BYTES * count])
        at = begin + 4 + PARTITION_BYTES * count
        listed += count
    if at > len(encoded):
        raise ValueError("a list that is longer than the assignment")
    partitions = np.frombuffer(b"".join(lists), ">i4")
    exist = (partitions >= 0) & (partitions < topic.partitions)
    numbers = frozenset(np.unique(partitions[exist]).tolist())
    size = len(encoded) + NAME_BYTES * max(0, topics)
    return Assignment(numbers, listed - len(numbers), size)


def _consumer_assignments(member: Any, topic: TopicSize) -> tuple[Assignment, Assignment]:
    """Return what a member has now, and what it is assigned."""
    now, then = _listed(member.assignment, topic), _listed(member.target_assignment, topic)
    subscribed = _text_bytes((*member.subscribed_topic_names, member.subscribed_topic_regex))
    return now, then._replace(size=then.size + subscribed)


def _share_assignments(member: Any, topic: TopicSize) -> tuple[Assignment, Assignment]:
    """Return what a member has now, twice: it gets partitions at once, and shares them."""
    now = _listed(member.assignment, topic)
    return now, Assignment(now.numbers, now.elsewhere, _text_bytes(member.subscribed_topic_names))


def _listed(assignment: Any, topic: TopicSize) -> Assignment:
    """Return the partitions in a list that a coordinator wrote itself."""
    topics = assignment.topic_partitions
    numbers = frozenset(
        partition
        for each in topics
        if each.topic_name == topic.name
        for partition in each.partitions
        if 0 <= partition < topic.partitions
    )
    listed = sum(len(each.partitions) for each in topics)
    size = NAME_BYTES * len(topics) + PARTITION_BYTES * listed
    return Assignment(numbers, listed - len(numbers), size)
