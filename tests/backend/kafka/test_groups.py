"""Groups and their members, as real coordinators tell them."""

from __future__ import annotations

import io
import struct
import tracemalloc
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
    CLASSIC,
    CONSUMERS,
    EMPTY,
    GROUPS_ASKED,
    Assignment,
    Group,
    Member,
    TopicSize,
    _classic_assignments,
    group_members,
    list_groups,
)
from topicproof.backend.kafka.log.rawlog import Connection
from topicproof.backend.kafka.look import LookBudget, LookLimits
from topicproof.validators.coordinator import NAME_KEPT_MAX

NewTopic = Callable[..., str]


def members_of(
    kafka: Connection, topic: str, *names: str
) -> Mapping[str, tuple[Member, ...] | None]:
    groups = [each for each in list_groups(kafka) if each.group in names]
    return group_members(kafka, groups, TopicSize(topic, 2), budget=LookBudget())


def assignment(topics: Mapping[bytes, range]) -> bytes:
    """Return a ConsumerProtocolAssignment of these partitions."""
    lists = [
        struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers), *numbers)
        for name, numbers in topics.items()
    ]
    return struct.pack(">hi", 0, len(topics)) + b"".join(lists) + struct.pack(">i", -1)


@pytest.mark.parametrize(
    "assignment",
    [
        b"\x00",
        bytes.fromhex("0000000000010002fffe00000000ffffffff"),
        bytes.fromhex("00007fffffff"),
        bytes.fromhex("0000") + b"\xff" * 40,
        bytes.fromhex("00000000000100016100000002 00000000"),
        b"\x00" * 1_000_001,
    ],
)
def test_one_member_hides_no_group(assignment: bytes) -> None:
    """Story: the leader of one group assigns bytes that are no list of partitions. Brokers keep
    them as they are, and every page on groups asks for all groups."""
    member: Any = SimpleNamespace(member_assignment=assignment, member_metadata=b"")
    now, then = _classic_assignments(member, TopicSize("abcde", 2))
    assert not now.numbers and not then.numbers and not now.elsewhere
    healthy = bytes.fromhex("000000000001000561626364650000000200000000000000 01 ffffffff")
    member.member_assignment = healthy
    now, then = _classic_assignments(member, TopicSize("abcde", 2))
    assert now.numbers == then.numbers == {0, 1} and not now.elsewhere


def test_an_assignment_takes_no_more_than_the_topic_has() -> None:
    """Story: the leader of a group assigns its member a quarter of a million partitions, of one
    topic or of many names. Those that exist are shown, and the rest is a number."""
    made_up: Any = SimpleNamespace(
        member_assignment=assignment({b"abcde": range(249_900)}), member_metadata=b"ten bytes."
    )
    names = {b"t%d" % number: range(1) for number in range(50_000)} | {b"abcde": range(1, 3)}
    of_many: Any = SimpleNamespace(member_assignment=assignment(names), member_metadata=None)
    rebalances: Any = SimpleNamespace(member_assignment=b"", member_metadata=b"")
    tracemalloc.start()
    try:
        now, then = _classic_assignments(made_up, TopicSize("abcde", 2))
        many, _ = _classic_assignments(of_many, TopicSize("abcde", 2))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert now.numbers == then.numbers == {0, 1} and many.numbers == {1}
    assert now.elsewhere == then.elsewhere == 249_898 and many.elsewhere == 50_001
    assert many.size > len(of_many.member_assignment) and then.size == 10
    assert peak < 5_000_000
    assert _classic_assignments(rebalances, TopicSize("a", 1)) == (Assignment(), Assignment())


def test_a_long_client_id_is_cut() -> None:
    """Story: one client of 30 kB in its name is a member of a group on 1,000 partitions. A page has
    its name in each row."""
    member = SimpleNamespace(
        member_id="m" * 30_000,
        client_id="c" * 30_000,
        client_host="/127.0.0.1",
        member_assignment=b"",
        member_metadata=b"",
    )
    group = SimpleNamespace(group_id="g", error_code=0, members=[member])
    kafka: Any = SimpleNamespace(
        with_retries=lambda request: request(),
        ask_coordinators=lambda *_: [SimpleNamespace(groups=[group])],
    )
    groups = [Group("g", CLASSIC, "Stable", CONSUMERS)]
    answer = group_members(kafka, groups, TopicSize("a", 1), budget=LookBudget())["g"]
    assert answer is not None and len(answer[0].client) == len(answer[0].member) == NAME_KEPT_MAX


def test_members_of_made_up_groups_have_one_budget() -> None:
    """Story: somebody makes 200 groups of one member each, with 100 kB of assignment. Members are
    shown until the budget is spent; then coordinators are not asked any more, and a sentence says
    how many groups lack their members. Groups without members are still known to have none."""
    made_up = assignment({b"abcde": range(25_000)})
    member = SimpleNamespace(
        member_id="m",
        client_id="c",
        client_host="/127.0.0.1",
        member_assignment=made_up,
        member_metadata=b"",
    )
    requests: list[list[str]] = []

    class Brokers:
        def with_retries(self, ask: Callable[[], Any]) -> Any:
            return ask()

        def ask_coordinators(self, names: list[str], request: Callable[[list[str]], Any]) -> Any:
            requests.append(request(names).groups)
            groups = [SimpleNamespace(group_id=g, error_code=0, members=[member]) for g in names]
            return [SimpleNamespace(groups=groups)]

    kafka: Any = Brokers()
    groups = [Group(f"g{number:03}", CLASSIC, "Stable", CONSUMERS) for number in range(200)]
    groups += [Group("idle", CLASSIC, EMPTY, CONSUMERS)]
    budget = LookBudget(LookLimits(size=30 * (len(made_up) + 2_000)))
    members = group_members(kafka, groups, TopicSize("abcde", 2), budget=budget)
    described = [name for name, of_group in members.items() if of_group]
    assert len(requests) == 2 and max(map(len, requests)) == GROUPS_ASKED
    assert 20 < len(described) < 40 and members["idle"] == ()
    assert members["g000"] == (
        Member("m", "c", "127.0.0.1", (("abcde", 0), ("abcde", 1)), (), 24_998),
    )
    left_out = 200 - len(described)
    assert budget.note.startswith(f"Left out here: {left_out} lists of members. One look")
    assert LookBudget().note == ""


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
            members = ask(Address(bootstrap), members_of, topic, group)[group] or ()
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
        return group_members(kafka, found, TopicSize(topic, 1), budget=LookBudget())

    assert ask(Address(bootstrap), described) == {group: None, deleted: ()}
