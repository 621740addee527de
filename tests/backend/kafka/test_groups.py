"""Groups and their members, as real coordinators tell them."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka.protocol.consumer import JoinGroupRequest

from tests.backend.kafka.members import member
from tests.backend.kafka.topics import Writer, ask
from tests.conftest import wait_until
from topicproof.backend.address import Address
from topicproof.backend.commands.show_topic import print_topic
from topicproof.backend.commands.terminal import Terminal
from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.browse.inspect import inspect_topic
from topicproof.backend.kafka.client_configs import READ_COMMITTED, consumer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.coordination.groups import (
    ASSIGNMENT_BYTES_MAX,
    Member,
    _classic_partitions,
    group_members,
    list_groups,
)
from topicproof.backend.kafka.log.rawlog import Connection

NewTopic = Callable[..., str]


def members_of(kafka: Connection, *names: str) -> Mapping[str, tuple[Member, ...] | None]:
    return group_members(kafka, [each for each in list_groups(kafka) if each.group in names])


@pytest.mark.parametrize(
    "assignment",
    [
        b"\x00",
        bytes.fromhex("0000000000010002fffe00000000ffffffff"),
        bytes.fromhex("00007fffffff"),
        bytes.fromhex("0000") + b"\xff" * 40,
        b"\x00" * (ASSIGNMENT_BYTES_MAX + 1),
    ],
)
def test_one_member_hides_no_group(assignment: bytes) -> None:
    """Story: the leader of one group assigns bytes that are no list of partitions. Brokers keep
    them as they are, and every page on groups asks for all groups."""
    member: Any = SimpleNamespace(member_assignment=assignment)
    assert _classic_partitions(member) == (set(), set())
    healthy = bytes.fromhex("000000000001000561626364650000000200000000000000 01 ffffffff")
    member.member_assignment = healthy
    assert _classic_partitions(member)[0] == {("abcde", 0), ("abcde", 1)}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("width", [80, 120])
def test_inspect_names_the_members_of_each_group(
    bootstrap: str, new_topic: NewTopic, protocol: str, width: int
) -> None:
    """Story: two members share a topic of two partitions, in the classic or the new consumer
    protocol. `topicproof inspect` says who has which, and the line fits the terminal."""
    topic = new_topic(partitions=2)
    Writer(bootstrap, topic).write("n3")
    group = f"g-{protocol}-{width}-{topic[-6:]}"
    with (
        member(bootstrap, group, [topic], protocol, "reader-a") as first,
        member(bootstrap, group, [topic], protocol, "reader-b", [first]),
    ):
        view = inspect_topic(Address(bootstrap), topic)
    (lag,) = view.lags
    assert (lag.group, lag.kind, lag.visible) == (group, protocol, 3)
    assert [(each.client, each.host) for each in lag.members or ()] == [
        ("reader-a", "127.0.0.1"),
        ("reader-b", "127.0.0.1"),
    ]
    owned = [each.partitions for each in lag.members or ()]
    assert sorted(owned) == [((topic, 0),), ((topic, 1),)]
    said = io.StringIO()
    print_topic(Terminal(file=said, width=width), view)
    assert max(map(len, said.getvalue().splitlines())) <= width
    rows = [line.split() for line in said.getvalue().splitlines() if "reader-" in line]
    assert [row[-3:] for row in rows] == [
        ["reader-a", "127.0.0.1", str(owned[0][0][1])],
        ["reader-b", "127.0.0.1", str(owned[1][0][1])],
    ]


def test_a_group_is_deleted_when_its_member_has_left(bootstrap: str, new_topic: NewTopic) -> None:
    """Story: a run is cleaned while somebody's consumer is a member of its group. The deletion
    waits for the member to leave. If it stays, the sentence says what to stop."""
    topic, group = new_topic(), f"left-{new_topic()}"
    cluster = Cluster(Address(bootstrap))
    with ThreadPoolExecutor() as pool:
        with member(bootstrap, group, [topic]):
            with pytest.raises(ClusterError, match=r"another consumer is a member of the group\."):
                cluster.delete_group(group)
            deletion = pool.submit(cluster.delete_group, group, 60)
        deletion.result()
    cluster.delete_group(group)
    assert group not in [each.group for each in ask(Address(bootstrap), list_groups)]


def test_a_partition_that_nobody_has_yet_belongs_to_who_waits_for_it(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """Story: a second member joins while the first is busy and gives nothing up (KIP-848). The
    partition that is moved still counts, and the second is shown to wait for it."""
    topic, group = new_topic(partitions=2), f"moving-{new_topic()}"
    Writer(bootstrap, topic).write("n2", partition=0)
    Writer(bootstrap, topic).write("n2", partition=1)
    with member(bootstrap, group, [topic], "consumer", "reader-a"):
        options = consumer_config(Address(bootstrap), group, READ_COMMITTED)
        second = Consumer({**options, "group.protocol": "consumer", "client.id": "reader-b"})
        second.subscribe([topic])

        def waits() -> bool:
            second.poll(0.1)
            members = ask(Address(bootstrap), members_of, group)[group] or ()
            return len(members) == 2 and bool(members[1].awaited)

        wait_until(waits, 30, "the second member's wait")
        view = inspect_topic(Address(bootstrap), topic)
        second.close()
    (lag,) = view.lags
    assert [p.visible for p in lag.partitions] == [2, 2]
    first_member, second_member = lag.members or ()
    assert second_member.partitions == () and len(second_member.awaited) == 1
    assert second_member.places(topic) == f"waits for {second_member.awaited[0][1]}"
    assert len(first_member.partitions) + len(second_member.awaited) >= 2


def test_members_that_are_no_consumers_are_not_guessed_at(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """Story: Kafka Connect's workers form a classic group too, and are assigned connectors. Their
    group has no lag and its members are unknown; one that is deleted meanwhile has none."""
    group, deleted = f"workers-{new_topic()}", f"deleted-{new_topic()}"

    def join(kafka: Connection) -> None:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="sessioned", metadata=b"")
        kafka.ask_coordinators(
            [group],
            lambda names: JoinGroupRequest(
                group_id=names[0],
                session_timeout_ms=6_000,
                rebalance_timeout_ms=6_000,
                member_id="",
                protocol_type="connect",
                protocols=[protocol],
                max_version=2,
            ),
        )

    ask(Address(bootstrap), join)
    topic = new_topic()
    consumer = Consumer(consumer_config(Address(bootstrap), deleted, READ_COMMITTED))
    consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    consumer.close()

    def described(kafka: Connection) -> Mapping[str, tuple[Member, ...] | None]:
        found = [each for each in list_groups(kafka) if each.group in (group, deleted)]
        kafka.admin.delete_groups([deleted])
        return group_members(kafka, found)

    assert ask(Address(bootstrap), described) == {group: None, deleted: ()}
