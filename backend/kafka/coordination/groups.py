"""Groups and their members, as their coordinators know them.

A coordinator answers a request of its own for each kind of group: DescribeGroups for classic ones,
ConsumerGroupDescribe for those of the consumer protocol (KIP-848), and ShareGroupDescribe for share
groups (KIP-932).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from kafka.errors import GroupAuthorizationFailedError, GroupIdNotFoundError, for_code
from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from topicproof.backend.kafka.log.messages import (
    ConsumerGroupDescribeRequest,
    ShareGroupDescribeRequest,
)
from topicproof.backend.kafka.log.rawlog import Connection

ASSIGNMENT_BYTES_MAX = 1_000_000
"""Of one member's assignment: a hundred thousand partitions."""
CLASSIC, CONSUMER, SHARE = "classic", "consumer", "share"
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
    """Topic and partition of each that it has now, sorted. Coordinators do not tell those of a
    classic group that rebalances."""
    awaited: tuple[tuple[str, int], ...] = ()
    """Those that it is assigned and does not have yet, because another member gives them up first
    (KIP-848). Empty in classic groups."""

    def places(self, topic: str) -> str:
        """Say in words which partitions of the topic it has, and which it waits for."""
        now, then = (
            ", ".join(str(partition) for name, partition in those if name == topic)
            for those in (self.partitions, self.awaited)
        )
        waits = f"waits for {then}" if then else ""
        return "; ".join(filter(None, (now, waits)))


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


def group_members(
    kafka: Connection, groups: Collection[Group]
) -> Mapping[str, tuple[Member, ...] | None]:
    """Return the members of each group by name, sorted by client id and member id.

    None if their coordinator does not tell what they are assigned: groups of Kafka Connect and of
    Kafka Streams' own protocol (KIP-1071). A group that was deleted meanwhile has no members.

    Raises kafka-python's errors.
    """
    members_by_group: dict[str, tuple[Member, ...] | None] = dict.fromkeys(
        group.group for group in groups
    )
    classic = [
        group.group
        for group in groups
        if group.kind == CLASSIC and group.protocol in (CONSUMERS, "")
    ]
    consumer = [group.group for group in groups if group.kind == CONSUMER]
    share = [group.group for group in groups if group.share]
    for names, request, partitions in (
        (classic, _classic_request, _classic_partitions),
        (consumer, _consumer_request, _consumer_partitions),
        (share, _share_request, _share_partitions),
    ):
        if names:
            members_by_group |= kafka.with_retries(
                partial(_described, kafka, names, request, partitions)
            )
    return members_by_group


def _described(
    kafka: Connection,
    names: Collection[str],
    request: Callable[[list[str]], Any],
    partitions: Callable[[Any], tuple[set[tuple[str, int]], set[tuple[str, int]]]],
) -> dict[str, tuple[Member, ...]]:
    members_by_group: dict[str, tuple[Member, ...]] = {}
    for answer in kafka.ask_coordinators(names, request):
        for group in answer.groups:
            error = for_code(group.error_code)
            if error is GroupAuthorizationFailedError:
                raise kafka.address.not_allowed(f"Describe on group {group.group_id}")
            if group.error_code and error is not GroupIdNotFoundError:
                raise error(f"members of group {group.group_id}")
            members = []
            for member in group.members:
                now, then = partitions(member)
                identity = (
                    member.member_id,
                    member.client_id,
                    member.client_host.removeprefix("/"),
                )
                members.append(Member(*identity, tuple(sorted(now)), tuple(sorted(then - now))))
            members_by_group[group.group_id] = tuple(
                sorted(members, key=lambda member: (member.client, member.member))
            )
    return members_by_group


def _classic_request(names: list[str]) -> DescribeGroupsRequest:
    return DescribeGroupsRequest(groups=names)


def _consumer_request(names: list[str]) -> ConsumerGroupDescribeRequest:
    return ConsumerGroupDescribeRequest(group_ids=names)


def _share_request(names: list[str]) -> ShareGroupDescribeRequest:
    return ShareGroupDescribeRequest(group_ids=names)


def _classic_partitions(member: Any) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    """Return what a member has now, and what it is assigned. Neither is known of a member whose
    assignment is no list of partitions: one client must not hide the groups of all others."""
    if not member.member_assignment:
        return set(), set()
    # Brokers keep what the group's leader made up, without a look at it.
    if len(member.member_assignment) > ASSIGNMENT_BYTES_MAX:
        return set(), set()
    try:
        assignment = ConsumerProtocolAssignment.decode(member.member_assignment)
        now = {(place.topic, place.partition) for place in assignment.partitions()}
    except (struct.error, ValueError, TypeError, LookupError, MemoryError, OverflowError):
        return set(), set()
    return now, now


def _consumer_partitions(member: Any) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    """Return what a member has now, and what it is assigned."""
    return _places(member.assignment), _places(member.target_assignment)


def _share_partitions(member: Any) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    """Return what a member has now, twice: it gets partitions at once, and shares them."""
    now = _places(member.assignment)
    return now, now


def _places(assignment: Any) -> set[tuple[str, int]]:
    return {
        (each.topic_name, partition)
        for each in assignment.topic_partitions
        for partition in each.partitions
    }
