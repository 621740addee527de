"""Open and hanging transactions of real topics, and who writes to them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from kafka.protocol.producer import ProduceRequest
from kafka.record import MemoryRecordsBuilder

from backend.errors import TopicError
from backend.kafka.coordinator import open_transactions, producers
from backend.kafka.fates import fate_ranges
from backend.kafka.rawlog import connect, fetch_bounds, scan
from backend.settings import TRANSACTION_TIMEOUT_MS
from tests.conftest import wait_until
from tests.kafka.topics import Writer, broker_setting
from validators.finding import PartitionBounds

NewTopic = Callable[..., str]

GHOST = 987_654
NOT_VERIFIED = 49


def test_an_open_transaction_is_named_with_what_it_withholds(bootstrap: str, new_topic: NewTopic) -> None:
    """One transaction is open, and four records of others wait behind its two. The other partition is free."""
    topic = new_topic(partitions=2)
    writer = Writer(bootstrap, topic)
    writer.write("A1 A+ B2 n3 A1 A+")
    writer.write("A5 A+", partition=1)
    (found,) = open_transactions(bootstrap, {}, topic)
    assert (found.partition, found.start_offset, found.withheld, found.hanging) == (0, 2, 6, False)
    assert found.transactional_id == writer.transactional_id("B")
    assert found.state == "Ongoing"
    assert found.timeout_ms == TRANSACTION_TIMEOUT_MS
    assert 0 <= found.age_ms < TRANSACTION_TIMEOUT_MS
    assert "is open for" in found.why and "withholds 6 records of partition 0 from offset 2 on" in found.why
    bounds = fetch_bounds(bootstrap, {}, topic)
    ranges = fate_ranges(scan(bootstrap, {}, topic, bounds), bounds)
    assert open_transactions(bootstrap, {}, topic, bounds, ranges)[0].withheld == 6
    writer.write("B-")
    assert open_transactions(bootstrap, {}, topic) == ()


def test_one_transaction_open_on_two_partitions_is_told_for_each(bootstrap: str, new_topic: NewTopic) -> None:
    """A transaction has written to both partitions, another one to the second only. Each place has its own start."""
    topic = new_topic(partitions=2)
    writer = Writer(bootstrap, topic)
    writer.write("A1")
    writer.write("B1 A2", partition=1)
    found = open_transactions(bootstrap, {}, topic)
    assert [(each.partition, each.start_offset, each.withheld) for each in found] == [(0, 0, 1), (1, 0, 3), (1, 1, 2)]
    assert [each.transactional_id for each in found] == [writer.transactional_id(who) for who in "ABA"]
    assert "withholds 1 record of" in found[0].why


def append_as_ghost(bootstrap: str, topic: str) -> int:
    """Produce one transactional record for a producer that no coordinator knows; the broker's error code."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=10_000)
    builder.set_producer_state(GHOST, 0, 0, True)
    builder.append(timestamp=int(time.time() * 1000), key=b"k", value=b"v", headers=[])
    builder.close()
    data = ProduceRequest.TopicProduceData
    records = data.PartitionProduceData(index=0, records=bytes(builder.buffer()))
    request = ProduceRequest(
        transactional_id="ghost",
        acks=-1,
        timeout_ms=5_000,
        topic_data=[data(name=topic, partition_data=[records])],
        # From version 12 on the broker itself tells the coordinator.
        max_version=11,
    )
    with connect(bootstrap, {}) as kafka:
        leader = kafka.leaders(topic)[0]
        answer = kafka.send({leader: request})[leader]
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


def test_a_hanging_transaction_is_found_from_its_partition(bootstrap: str, new_topic: NewTopic) -> None:
    """A late write opened a transaction that its coordinator never heard of. Nothing will end it, and that is said."""
    topic = new_topic()
    wait_until(lambda: append_as_ghost(bootstrap, topic) == NOT_VERIFIED, 10, "the refusal of today's brokers")
    # So did all brokers before Kafka 3.6 (KIP-890): append without asking the coordinator.
    with broker_setting(bootstrap, "transaction.partition.verification.enable", "false"):
        wait_until(lambda: append_as_ghost(bootstrap, topic) == 0, 10, "a broker without verification")
    Writer(bootstrap, topic).write("n2")
    assert fetch_bounds(bootstrap, {}, topic).partitions == (PartitionBounds(0, 0, 0, 3),)
    (found,) = open_transactions(bootstrap, {}, topic)
    assert found.hanging
    assert (found.producer_id, found.start_offset, found.withheld) == (GHOST, 0, 3)
    assert (found.transactional_id, found.state, found.timeout_ms) == (None, None, None)
    assert found.why.startswith(f"Hanging: producer {GHOST} last wrote")
    assert "withholds 3 records of partition 0 from offset 0 on until an operator aborts it" in found.why


def test_producers_of_a_topic(bootstrap: str, new_topic: NewTopic) -> None:
    """Three producers wrote: one committed, one is open, one is only idempotent. Each is told apart."""
    topic = new_topic()
    writer = Writer(bootstrap, topic)
    writer.write("A1 A+ B1 n1")
    found = producers(bootstrap, {}, topic)
    states = dict(zip(found["transactional_id"], found["state"], strict=True))
    assert states == {
        writer.transactional_id("A"): "CompleteCommit",
        writer.transactional_id("B"): "Ongoing",
        None: None,
    }
    assert found["open_from"].dropna().tolist() == [2]


def test_an_untouched_topic_has_neither(bootstrap: str, new_topic: NewTopic) -> None:
    """Nobody ever wrote here. Both answers are empty tables, and a missing topic is still an error."""
    topic = new_topic(partitions=2)
    assert open_transactions(bootstrap, {}, topic) == ()
    assert producers(bootstrap, {}, topic).empty
    with pytest.raises(TopicError):
        producers(bootstrap, {}, "no-such-topic")
