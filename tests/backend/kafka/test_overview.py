"""A cluster at a glance, held against what the pages about one topic count."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient

from tests.backend.kafka.hanging import hang
from tests.backend.kafka.members import member
from tests.backend.kafka.test_lag import commit, lags
from tests.backend.kafka.topics import Writer, ask, look
from tests.conftest import wait_until
from tests.test_cli import call
from topicproof.app.topic.snapshot import take
from topicproof.backend.address import Address
from topicproof.backend.kafka.browse import (
    all_groups as all_groups_of,
    causes as causes_of,
    inspect,
    overview as overviews,
)
from topicproof.backend.kafka.browse.all_groups import all_groups
from topicproof.backend.kafka.browse.causes import CauseKind, Severity, causes, exit_code
from topicproof.backend.kafka.browse.inspect import inspect_topic
from topicproof.backend.kafka.browse.overview import (
    Overview,
    TopicOverview,
    newest_records,
    overview,
    without_leader,
)
from topicproof.backend.kafka.client_configs import admin_config
from topicproof.backend.kafka.cluster import COUNTER, Cluster
from topicproof.backend.kafka.coordination import coordinator, groups, lag
from topicproof.backend.kafka.coordination.worst_lag import (
    Lag,
    StuckGroup,
    bounds_from,
    offsets_behind,
    stuck_groups,
    worst_lag,
)
from topicproof.backend.kafka.log.rawlog import Connection, fetch_bounds
from topicproof.backend.kafka.look import GROUPS, LookBudget, LookLimits
from topicproof.backend.settings import ROOT
from topicproof.validators.coordinator import OpenTransaction
from topicproof.validators.finding import Bounds, Fate, PartitionBounds

NewTopic = Callable[..., str]


def test_every_topic_at_a_glance(bootstrap: str, new_topic: NewTopic) -> None:
    """One topic withholds records behind an open transaction on two partitions, one behind a
    hanging one, one is empty. The overview has the figures of each, and the oldest trouble
    first."""
    opened, hung, empty = new_topic(partitions=2), new_topic(), new_topic()
    writer = Writer(bootstrap, opened)
    writer.write("B2 B- A3 C2 C+")
    writer.write("A1", partition=1)
    producer_id = hang(bootstrap, hung)
    commit(bootstrap, opened, f"{opened}-group", 0)
    seen = overview(Address(bootstrap))
    assert seen.not_heard == ()
    topics = {each.topic: each for each in seen.topics}
    found = topics[opened]
    assert found.bounds == fetch_bounds(Address(bootstrap), opened)
    assert (found.transactions, found.withheld) == (1, 7)
    assert found.size and topics[empty].size == 0 and topics[empty].behind is None
    assert found.behind and found.behind.group == f"{opened}-group" and found.behind.records == 3
    mine = [each for each in seen.opened if {*each.topics} & {opened, hung}]
    assert [(each.topics, each.hanging, each.withheld) for each in mine] == [
        ((hung,), True, 1),
        ((opened,), False, 6),
    ]
    assert mine[0].worst[1].producer_id == producer_id
    assert "withholds 6 records of 2 partitions" in mine[1].why
    # The three offsets that the group has left are aborted records and their marker.
    assert [(each.group, each.topic, each.partitions) for each in found.stuck] == [
        (f"{opened}-group", opened, (0,))
    ]
    listed = [each for each in causes(seen) if {*each.topics} & {opened, hung}]
    assert [(each.kind, each.severity, each.groups) for each in listed] == [
        (CauseKind.HANGING_TRANSACTION, Severity.ERROR, ()),
        (CauseKind.OPEN_TRANSACTION, Severity.NOTE, (f"{opened}-group",)),
    ]
    assert listed[1].sentence.startswith(
        f"{opened}-A holds back 6 records on 2 partitions of {opened}, and group {opened}-group."
        " It has been open for "
    )
    assert seen.withheld >= 8
    every = all_groups(Address(bootstrap), seen, budget=LookBudget())
    (waiting,) = (group for group in every if group.group == f"{opened}-group")
    assert (waiting.stuck, waiting.stuck_behind) == ((opened,), (f"{opened}-A",))
    assert (waiting.visible, waiting.uncommitted, waiting.withheld) == (0, 7, 5)


def deleting(monkeypatch: pytest.MonkeyPatch, bootstrap: str, topic: str, at: int) -> None:
    """Delete the topic as soon as metadata has been asked for so many times."""
    ask_for_metadata, counts = Connection.metadata_of_all, iter(range(1, 1_000))
    admin = AdminClient(admin_config(Address(bootstrap)))

    def metadata_of_all(kafka: Connection) -> Any:
        answer = ask_for_metadata(kafka)
        if next(counts) == at:
            admin.delete_topics([topic])[topic].result()
            wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, 20, "the end")
        return answer

    monkeypatch.setattr(Connection, "metadata_of_all", metadata_of_all)


@pytest.mark.parametrize("at", [1, 2])
def test_a_topic_that_is_deleted_during_a_look_is_left_out(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Story: somebody makes topics with open transactions and deletes them all the time. Each look
    shows all others, and says nothing about what is gone."""
    topic, gone = new_topic(), new_topic()
    for name in (topic, gone):
        Writer(bootstrap, name).write("A1")
    with monkeypatch.context() as patch:
        deleting(patch, bootstrap, gone, at)
        cluster = overview(Address(bootstrap))
    assert [topic] in [list(each.topics) for each in cluster.opened]
    names = {each.topic for each in cluster.topics}
    assert topic in names and cluster.not_heard == ()
    assert (gone in names) is (at == 2) and gone not in str(cluster.opened)


def test_open_transactions_of_one_topic_hide_none_of_another(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: somebody opens transactions with long names on a topic that sorts first, more than one
    look takes in. Who holds back the records of another topic is found all the same. The leaders
    are asked once about the producers of a topic on which nothing hangs."""
    crowded, other = sorted([new_topic(), new_topic()])
    Writer(bootstrap, crowded).write("A1 B1 C1")
    Writer(bootstrap, other).write("D1")
    describe, topics = KafkaAdminClient.describe_producers, set[str]()

    def describe_producers(admin: Any, places: Any) -> Any:
        topics.update(place.topic for place in places)
        return describe(admin, places)

    monkeypatch.setattr(KafkaAdminClient, "describe_producers", describe_producers)
    monkeypatch.setattr(coordinator, "DESCRIBED_AT_ONCE", 1)
    monkeypatch.setattr(overviews, "OVERVIEW_LIMITS", LookLimits(size=0))
    cluster = {each.topic: each for each in overview(Address(bootstrap)).topics}
    assert cluster[crowded].opened[0].name == f"{crowded}-A"
    assert [each.name for each in cluster[other].opened] == [f"{other}-D"]
    assert not topics & {crowded, other}


def test_the_terminal_lists_the_same_causes(
    bootstrap: str,
    new_topic: NewTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Story: an operator asks what is wrong, and a script asks the same. One transaction hangs,
    one has been open for long on three partitions, and a group waits for that one."""
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(causes_of, "LONG_OPEN_MS", 0)
    topic, hung = new_topic(partitions=3), new_topic()
    writer = Writer(bootstrap, topic)
    for partition in range(3):
        writer.write("n1 A4", partition)
        commit(bootstrap, topic, f"{topic}-billing", 1, partition)
    hang(bootstrap, hung)
    file = tmp_path / "status.json"
    assert call("status", "--bootstrap", bootstrap, "--json", str(file)) == 1
    status = json.loads(file.read_text())
    assert status["exit_code"] == 1 and status["not_heard"] == []
    (hanging,) = (cause for cause in status["causes"] if cause["topics"] == [hung])
    (opened,) = (cause for cause in status["causes"] if cause["topics"] == [topic])
    assert (hanging["kind"], hanging["severity"]) == ("hanging_transaction", "error")
    command = f"topicproof abort {hung} 0 0 --bootstrap {bootstrap}"
    assert hanging["commands"] == [command] and hanging["timeout_ms"] is None
    assert (opened["kind"], opened["severity"]) == ("open_transaction", "warning")
    assert opened["holder"] == f"{topic}-A" and opened["timeout_ms"] == 60_000
    assert opened["partitions"] == [{"topic": topic, "partitions": [0, 1, 2]}]
    assert (opened["records"], opened["groups"]) == (12, [f"{topic}-billing"])
    began = datetime.fromisoformat(status["taken_at"]) - timedelta(milliseconds=opened["age_ms"])
    assert datetime.fromisoformat(opened["since"]) == began
    assert documented_fields() == ({*status}, {*opened})

    assert call("status", "--bootstrap", bootstrap) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert f"open {opened['holder']} {opened['sentence'].partition(' ')[2][:40]}" in text
    assert f"on 3 partitions of {topic}, and group {topic}-billing. It has been open for" in text
    assert "no coordinator knows of it. Since 20" in text and command in text


def documented_fields() -> tuple[set[str], set[str]]:
    """The fields of the list, and those of a cause, as the section of docs/COMMANDS.md has them."""
    text = (ROOT / "docs" / "COMMANDS.md").read_text(encoding="utf-8")
    section = text.partition("## What is wrong now\n")[2].partition("\n## ")[0]
    sentence, _, table = section.partition("With `--json`: ")[2].partition("| field | holds |")
    rows = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    return set(re.findall(r"`(\w+)`", sentence)), set(re.findall(r"`(\w+)`", " ".join(rows)))


def cluster_with(*topics: TopicOverview, not_heard: tuple[str, ...] = ()) -> Overview:
    return Overview(datetime.now(UTC), "c", 1, topics, None, not_heard)


class _CountedPartitions(tuple[PartitionBounds, ...]):
    walks = 0

    def __iter__(self) -> Iterator[PartitionBounds]:
        type(self).walks += 1
        return super().__iter__()


def test_partitions_are_walked_once_for_all_groups() -> None:
    """Story: 1,000 groups read a topic of 1,000 partitions, each one of them."""
    partitions = _CountedPartitions(PartitionBounds(number, 0, 5, 9) for number in range(1_000))
    bounds = Bounds("payments", partitions)
    ends = {number: bounds_from(bounds, {number: 7, 5_000: 1}) for number in (3, 4)}
    assert ends[3] == Bounds("payments", (PartitionBounds(3, 7, 7, 9),))
    parts = [
        (Lag(f"g{at}", "payments", 0, True), Bounds("payments", (PartitionBounds(at, 5, 5, 9),)))
        for at in range(1_000)
    ]
    _CountedPartitions.walks = 0
    no_records: Any = None
    stuck = stuck_groups(no_records, {"payments": bounds}, {"payments": parts})
    assert [group.partitions for group in stuck] == [(at,) for at in range(1_000)]
    assert _CountedPartitions.walks == 1


def test_only_what_does_not_end_by_itself_is_wrong() -> None:
    """Story: a script watches a cluster by the exit code. Programs with young transactions and
    groups without members are no trouble. A transaction in time may end by itself, one that hangs
    may not, and silence is no health."""
    bounds = Bounds("payments", (PartitionBounds(0, 0, 5, 600_005),))
    young = OpenTransaction(0, 7, 0, -1, 5, "svc", "Ongoing", 90, 900_000, 2, 0, False)
    group = Lag("old", "payments", 185_000, False, has_members=False)
    usual = TopicOverview(bounds, 1, (young,), group, lags=(group,))
    old = replace(usual, opened=(replace(young, age_ms=39_000),))
    waits = replace(old, stuck=(StuckGroup("billing", "payments", (0,)),), lags=())
    # Its producer gave its last write a time before all dates.
    ghost = replace(young, hanging=True, timeout_ms=None, age_ms=2**62)
    hangs = replace(usual, opened=(ghost,))
    late = replace(usual, opened=(replace(young, age_ms=911_000),))
    hidden = replace(young, unseen=True, timeout_ms=None)
    unseen = replace(usual, opened=(replace(hidden, age_ms=39_000),))
    busy = replace(usual, opened=(), lags=(replace(group, has_members=True),))
    for cluster, code in (
        (cluster_with(), 0),
        (cluster_with(usual), 0),
        (cluster_with(old), 2),
        (cluster_with(unseen), 2),
        (cluster_with(replace(usual, opened=(hidden,))), 0),
        (cluster_with(busy), 2),
        (cluster_with(old, not_heard=("no rights",)), 3),
        (cluster_with(not_heard=("no rights",)), 3),
        (cluster_with(hangs, not_heard=("no rights",)), 1),
        (cluster_with(late), 1),
    ):
        assert exit_code(causes(cluster), cluster.not_heard) == code
    (cause,) = causes(cluster_with(waits))
    # So many are not counted one by one.
    assert cause.effect == "holds back at most 600,000 records on partition 0 of payments, and" + (
        " group billing"
    )
    # Silence about a topic is no health either.
    (note,) = without_leader(["lost", "payments"], {"payments"})
    assert note == "Left out, because a partition has no leader now: lost."
    # A transaction that ended during the look left a group behind; but who knows without rights.
    alone = replace(waits, opened=())
    (seen,) = causes(cluster_with(alone))
    (unknown,) = causes(cluster_with(alone, not_heard=("no rights",)))
    assert (seen.severity, unknown.severity) == (Severity.NOTE, Severity.WARNING)


def test_what_the_newest_offsets_hold(bootstrap: str, new_topic: NewTopic) -> None:
    """A topic aborted four of ten records lately. Older ones do not count. The time of the newest
    record is not that of its marker."""
    topic = new_topic()
    Writer(bootstrap, topic).write("n2500 A4 A- B6 B+")
    found = ask(Address(bootstrap), newest_records, fetch_bounds(Address(bootstrap), topic))
    assert found.fates[Fate.ABORTED] == 4 and found.fates[Fate.COMMITTED] == 2_000 - 4 - 2
    last = take(Address(bootstrap), topic).transactions.iloc[-1]
    assert found.written_ms == last["last_timestamp"] and last["outcome"] == "COMMITTED"


def test_the_worst_lag_is_that_of_the_lag_page(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group with the most offsets left has only aborted ones. Another one has fewer offsets and
    more records left: that is the worst. The list of all groups counts each as the page of its
    topic does, or says that it counts at most."""
    topic = new_topic()
    Writer(bootstrap, topic).write("A90 A- B20 B+")
    commit(bootstrap, topic, f"{topic}-all", 0)
    commit(bootstrap, topic, f"{topic}-half", 100)
    other = new_topic()
    Writer(bootstrap, other).write("A30 A+")
    commit(bootstrap, other, f"{other}-all", 0)
    # A run counts its starts by an offset of its journal, which it does not read.
    Cluster(Address(bootstrap)).commit_offsets(f"{other}-run", other, {0: 1}, COUNTER)
    every = {name: fetch_bounds(Address(bootstrap), name) for name in (topic, other)}
    behind = look(Address(bootstrap), offsets_behind, every)
    assert sorted((lag.group, lag.records) for lag, _part in behind[topic]) == [
        (f"{topic}-all", 112),
        (f"{topic}-half", 12),
    ]
    assert [lag.group for lag, _part in behind[other]] == [f"{other}-all"]
    worst = ask(Address(bootstrap), worst_lag, behind)
    assert worst is not None and (worst.group, worst.exact) == (f"{other}-all", True)
    assert worst.records == lags(bootstrap, other)[1][worst.group].visible == 30
    assert bounds_from(every[topic], {}).partitions == ()
    seen = overview(Address(bootstrap))
    listed = all_groups(Address(bootstrap), seen, budget=LookBudget())
    monkeypatch.setattr(all_groups_of, "COUNTED_OFFSETS_MAX", 0)
    not_counted = all_groups(Address(bootstrap), seen, budget=LookBudget())
    for group, at_most in zip(listed, not_counted, strict=True):
        for name in {topic, other} & group.lags.keys():
            counted = lags(bootstrap, name)[1][group.group]
            assert replace(counted, members=None) == group.lags[name]
            assert group.is_exact and not at_most.is_exact
            assert at_most.visible >= group.visible and at_most.subtraction == group.subtraction


def test_of_many_groups_only_so_many_are_looked_at(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: somebody commits offsets for thousands of groups, none of which has a member, on a
    topic of many partitions. The group with a member is looked at first, and what was left out is
    said."""
    topic = new_topic(partitions=2)
    Writer(bootstrap, topic).write("n3")
    for number in range(3):
        commit(bootstrap, topic, f"a-{topic}-{number}", 0)
    monkeypatch.setattr(groups, "GROUPS_ASKED_FOR_OFFSETS", 1)
    monkeypatch.setattr(lag, "PLACES_ASKED", 2)
    monkeypatch.setattr(inspect, "LookBudget", lambda: LookBudget(LookLimits(entries=2)))
    budget = LookBudget(LookLimits(entries=1))
    bounds = fetch_bounds(Address(bootstrap), topic)
    with member(bootstrap, f"z-{topic}", [topic]):
        behind = ask(Address(bootstrap), offsets_behind, {topic: bounds}, budget=budget)
        view = inspect_topic(Address(bootstrap), topic)
    assert len(behind[topic]) == 1 and budget.left_out[GROUPS] >= 2
    assert [group.group for group in view.lags] == [f"z-{topic}"]
    assert any(why.startswith("consumer groups: Left out here") for why in view.not_heard)
