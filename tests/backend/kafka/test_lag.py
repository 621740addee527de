"""Lag counted in records, held against what consumers really get from the committed offset on."""

from __future__ import annotations

import io
from collections.abc import Callable

import pandas as pd
import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.backend.kafka.members import member
from tests.backend.kafka.test_fates import log
from tests.backend.kafka.topics import Writer, delete_below, delivered, look
from topicproof.backend.address import Address
from topicproof.backend.commands.show_topic import print_topic
from topicproof.backend.commands.terminal import Terminal
from topicproof.backend.kafka.browse.inspect import inspect_topic
from topicproof.backend.kafka.client_configs import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    consumer_config,
)
from topicproof.backend.kafka.coordination.coordinator import open_transactions
from topicproof.backend.kafka.coordination.lag import (
    GroupLag,
    group_lags,
    partition_lag,
    records_of,
)
from topicproof.backend.kafka.log.fates import fate_ranges
from topicproof.backend.kafka.log.rawlog import fetch_bounds, scan
from topicproof.validators.finding import Bounds

NewTopic = Callable[..., str]


def commit(bootstrap: str, topic: str, group: str, offset: int, partition: int = 0) -> None:
    consumer = Consumer(consumer_config(Address(bootstrap), group, READ_COMMITTED))
    consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)
    consumer.close()


def lags(bootstrap: str, topic: str) -> tuple[Bounds, dict[str, GroupLag]]:
    bounds = fetch_bounds(Address(bootstrap), topic)
    ranges = fate_ranges(scan(Address(bootstrap), topic, bounds), bounds)
    return bounds, {
        lag.group: lag for lag in look(Address(bootstrap), group_lags, topic, bounds, ranges)
    }


def test_lag_is_what_a_consumer_would_get(bootstrap: str, new_topic: NewTopic) -> None:
    """Groups are at every offset of a partition with records of every fate. Two consumers say what
    they get."""
    topic = new_topic()
    Writer(bootstrap, topic).write("A4 A+ B3 B- n2 A2 A- C2 n1 A1 A+")
    bounds = fetch_bounds(Address(bootstrap), topic)
    ranges = fate_ranges(scan(Address(bootstrap), topic, bounds), bounds)
    committed = delivered(bootstrap, bounds, READ_COMMITTED)
    uncommitted = delivered(bootstrap, bounds, READ_UNCOMMITTED)
    (p,) = bounds.partitions
    records = records_of(ranges, p.partition)
    for at in range(p.hw + 1):
        lag = partition_lag(p, at, records)
        assert lag.visible == sum(offset >= at for _, offset in committed), f"from {at} on"
        assert lag.uncommitted == sum(offset >= at for _, offset in uncommitted), f"from {at} on"
        assert lag.subtraction == p.hw - at and lag.exact
    assert not partition_lag(p, 0, records).stuck and partition_lag(p, p.lso, records).stuck


def test_groups_are_found_and_told_apart(bootstrap: str, new_topic: NewTopic) -> None:
    """One group has read all it can of one partition, one is stuck, one never was here. Subtraction
    shows two lags. Nobody owns the other partition of the first: it is named."""
    topic = new_topic(partitions=2)
    writer = Writer(bootstrap, topic)
    writer.write("A3 A+ B2 B-")
    writer.write("A1 A+ C2 n1", partition=1)
    done, stuck, elsewhere = (f"{topic}-{name}" for name in ("done", "stuck", "elsewhere"))
    commit(bootstrap, topic, done, 3)
    commit(bootstrap, topic, stuck, 1)
    commit(bootstrap, topic, stuck, 2, partition=1)
    commit(bootstrap, new_topic(), elsewhere, 0)
    _, found = lags(bootstrap, topic)
    assert elsewhere not in found
    first, untouched = found[done].partitions
    assert (first.visible, first.subtraction, first.stuck) == (0, 4, False)
    assert first.why == (
        "Nothing is left to read: the last 4 offsets hold only markers, aborted records or holes."
    )
    assert (untouched.committed, untouched.visible, untouched.subtraction) == (None, 1, 5)
    assert untouched.why == (
        "No committed offset: counted from the log start. 1 record to read; an open transaction"
        " from offset 2 on withholds 3 records."
    )
    first, second = found[stuck].partitions
    assert (first.visible, first.uncommitted, first.why) == (2, 4, "2 records to read.")
    assert (second.visible, second.withheld, second.stuck) == (0, 3, True)
    assert second.why == (
        "Stuck: nothing is left below the last stable offset, "
        "and an open transaction from offset 2 on withholds 3 records."
    )
    assert second.stuck_behind is None, "nobody asked the coordinators"
    opened = look(Address(bootstrap), open_transactions, topic)
    bounds = fetch_bounds(Address(bootstrap), topic)
    ranges = fate_ranges(scan(Address(bootstrap), topic, bounds), bounds)
    told = {
        lag.group: lag
        for lag in look(Address(bootstrap), group_lags, topic, bounds, ranges, opened)
    }
    assert [p.stuck_behind for p in told[stuck].partitions] == [None, writer.transactional_id("C")]
    assert (
        f"the open transaction of {writer.transactional_id('C')} from offset 2"
        in told[stuck].partitions[1].why
    )
    assert not found[stuck].stuck, "it still has something to read on the other partition"
    assert found[stuck].state == "Empty"


def test_offsets_outside_of_the_log_are_said(bootstrap: str, new_topic: NewTopic) -> None:
    """Records were deleted before one group read them; another group's offset lies beyond the end.
    Both are reported."""
    topic = new_topic()
    Writer(bootstrap, topic).write("n5")
    commit(bootstrap, topic, f"{topic}-late", 1)
    commit(bootstrap, topic, f"{topic}-ahead", 9)
    delete_below(bootstrap, topic, 3)
    _, found = lags(bootstrap, topic)
    (late,), (ahead,) = (found[f"{topic}-{name}"].partitions for name in ("late", "ahead"))
    explained = (("late", late), ("ahead", ahead))
    assert (late.visible, late.why) == (
        2,
        "2 offsets were deleted before it read them (records or transaction markers: the log no"
        " longer tells). 2 records to read.",
    )
    assert (ahead.visible, ahead.subtraction) == (0, -4)
    assert "beyond the end of the log" in ahead.why
    commit(bootstrap, topic, f"{topic}-done", 5)
    terminal = io.StringIO()
    print_topic(Terminal(file=terminal, width=300), inspect_topic(Address(bootstrap), topic))
    text = terminal.getvalue()
    assert all(f"{topic}-{name}, partition 0: {one.why}" in text for name, one in explained)
    assert f"{topic}-done " in text and f"{topic}-done, partition" not in text, "nothing to explain"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_partition_without_a_committed_offset_is_not_forgotten(
    bootstrap: str, new_topic: NewTopic, protocol: str
) -> None:
    """Story: a group is Stable and owns two partitions. All of the second is withheld, so its
    member got no record there and committed nothing. It was shown with lag 0; it is stuck."""
    topic, group = new_topic(partitions=2), f"owner-{protocol}-{new_topic()}"
    writer = Writer(bootstrap, topic)
    writer.write("A2 A+")
    writer.write("B1998", partition=1)
    with member(bootstrap, group, [topic], protocol) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
        _, found = lags(bootstrap, topic)
        first, second = found[group].partitions
        assert (found[group].state, found[group].kind) == ("Stable", protocol)
        assert (first.committed, first.visible, first.stuck) == (3, 0, False)
        assert (second.committed, second.visible, second.withheld) == (None, 0, 1998)
        assert second.stuck and found[group].stuck
        assert second.why == (
            "No committed offset: counted from the log start. Stuck: nothing is left below the last"
            " stable offset, and an open transaction from offset 0 on withholds 1,998 records."
        )
        assert first.owner is not None and first.owner == second.owner
        assert (first.owner.client, first.owner.host) == ("reader", "127.0.0.1")
        assert first.owner.partitions == ((topic, 0), (topic, 1))


def test_a_partition_that_a_group_neither_owns_nor_read_is_not_its_business(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """Story: a member owns another topic's partition, and its group once committed on one partition
    here. The other partition is left out while it has an owner elsewhere; a group that is empty
    names it. A member that committed nothing is counted from the start of the log, which moved."""
    topic, other = new_topic(partitions=2), new_topic()
    Writer(bootstrap, topic).write("n2")
    Writer(bootstrap, topic).write("n4", partition=1)
    commit(bootstrap, topic, f"{topic}-busy", 1)
    commit(bootstrap, topic, f"{topic}-empty", 1)
    delete_below(bootstrap, topic, 3, partition=1)
    with (
        member(bootstrap, f"{topic}-busy", [other]),
        member(bootstrap, f"{topic}-new", [topic]),
        member(bootstrap, f"{topic}-elsewhere", [other]),
    ):
        _, found = lags(bootstrap, topic)
    shown = {
        group.removeprefix(f"{topic}-"): [
            (p.partition, p.committed, p.visible) for p in lag.partitions
        ]
        for group, lag in found.items()
    }
    assert shown == {
        "busy": [(0, 1, 1)],
        "empty": [(0, 1, 1), (1, None, 1)],
        "new": [(0, None, 2), (1, None, 1)],
    }
    assert "deleted" not in found[f"{topic}-new"].partitions[1].why


@pytest.mark.parametrize(
    ("committed", "visible", "exact"), [(0, 3, True), (5, 1, False), (10, 0, True)]
)
def test_a_thinned_out_batch_is_estimated_and_said_so(
    committed: int, visible: int, exact: bool
) -> None:
    """Compaction left three records of ten offsets, and a group's offset lies among them. Headers
    cannot show which are left."""
    batches, bounds = log("n3/10")
    ranges: pd.DataFrame = fate_ranges(batches, bounds)
    lag = partition_lag(bounds.partitions[0], committed, records_of(ranges, 0))
    assert (lag.visible, lag.exact) == (visible, exact)
