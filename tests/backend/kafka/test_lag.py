"""Lag counted in records, held against what consumers really get from the committed offset on."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.backend.kafka.test_fates import log
from tests.backend.kafka.topics import Writer, ask, delete_below, delivered
from topicproof.backend.address import Address
from topicproof.backend.kafka.client_configs import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    consumer_config,
)
from topicproof.backend.kafka.coordination.coordinator import open_transactions
from topicproof.backend.kafka.coordination.lag import GroupLag, group_lags, partition_lag
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
        lag.group: lag for lag in ask(Address(bootstrap), group_lags, topic, bounds, ranges)
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
    for at in range(p.hw + 1):
        lag = partition_lag(p, at, ranges)
        assert lag.visible == sum(offset >= at for _, offset in committed), f"from {at} on"
        assert lag.uncommitted == sum(offset >= at for _, offset in uncommitted), f"from {at} on"
        assert lag.subtraction == p.hw - at and lag.exact
    assert not partition_lag(p, 0, ranges).stuck and partition_lag(p, p.lso, ranges).stuck


def test_groups_are_found_and_told_apart(bootstrap: str, new_topic: NewTopic) -> None:
    """One group has read all it can, one is stuck, one never was here. Subtraction shows two
    lags."""
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
    assert (found[done].visible, found[done].subtraction, found[done].stuck) == (0, 4, False)
    assert found[done].partitions[0].why == (
        "Nothing is left to read: the last 4 offsets hold only markers, aborted records or holes."
    )
    first, second = found[stuck].partitions
    assert (first.visible, first.uncommitted, first.why) == (2, 4, "2 records to read.")
    assert (second.visible, second.withheld, second.stuck) == (0, 3, True)
    assert second.why == (
        "Stuck: nothing is left below the last stable offset, "
        "and an open transaction from offset 2 on withholds 3 records."
    )
    assert second.stuck_behind is None, "nobody asked the coordinators"
    opened = ask(Address(bootstrap), open_transactions, topic)
    bounds = fetch_bounds(Address(bootstrap), topic)
    ranges = fate_ranges(scan(Address(bootstrap), topic, bounds), bounds)
    told = {
        lag.group: lag for lag in ask(Address(bootstrap), group_lags, topic, bounds, ranges, opened)
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
    assert (late.visible, late.why) == (
        2,
        "2 offsets were deleted before it read them. 2 records to read.",
    )
    assert (ahead.visible, ahead.subtraction) == (0, -4)
    assert "beyond the end of the log" in ahead.why


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
    lag = partition_lag(bounds.partitions[0], committed, ranges)
    assert (lag.visible, lag.exact) == (visible, exact)
