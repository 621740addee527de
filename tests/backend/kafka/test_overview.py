"""A cluster at a glance, held against what the pages about one topic count."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.backend.kafka.hanging import hang
from tests.backend.kafka.members import member
from tests.backend.kafka.test_lag import commit, lags
from tests.backend.kafka.topics import Writer, ask, look
from topicproof.app.topic.snapshot import take
from topicproof.backend.address import Address
from topicproof.backend.kafka.browse import inspect
from topicproof.backend.kafka.browse.inspect import inspect_topic
from topicproof.backend.kafka.browse.overview import newest_records, overview
from topicproof.backend.kafka.cluster import COUNTER, Cluster
from topicproof.backend.kafka.coordination import lag, worst_lag as worst_lag_of
from topicproof.backend.kafka.coordination.worst_lag import bounds_from, offsets_behind, worst_lag
from topicproof.backend.kafka.log.rawlog import fetch_bounds
from topicproof.backend.kafka.look import GROUPS, LookBudget, LookLimits
from topicproof.validators.finding import Fate

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
    assert seen.held_back(mine[1]) == (f"{opened}-group",) and seen.held_back(mine[0]) == ()
    assert seen.withheld >= 8 and seen.withheld_records >= 7


def test_what_the_newest_offsets_hold(bootstrap: str, new_topic: NewTopic) -> None:
    """A topic aborted four of ten records lately. Older ones do not count. The time of the newest
    record is not that of its marker."""
    topic = new_topic()
    Writer(bootstrap, topic).write("n2500 A4 A- B6 B+")
    found = ask(Address(bootstrap), newest_records, fetch_bounds(Address(bootstrap), topic))
    assert found.fates[Fate.ABORTED] == 4 and found.fates[Fate.COMMITTED] == 2_000 - 4 - 2
    last = take(Address(bootstrap), topic).transactions.iloc[-1]
    assert found.written_ms == last["last_timestamp"] and last["outcome"] == "COMMITTED"


def test_the_worst_lag_is_that_of_the_lag_page(bootstrap: str, new_topic: NewTopic) -> None:
    """The group with the most offsets left has only aborted ones. Another one has fewer offsets and
    more records left: that is the worst."""
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
    monkeypatch.setattr(worst_lag_of, "GROUPS_ASKED", 1)
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
