"""Offsets that a transaction is about to move, on real groups."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.backend.kafka.topics import look
from tests.conftest import wait_until
from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, TopicError
from topicproof.backend.kafka import cluster
from topicproof.backend.kafka.client_configs import (
    READ_COMMITTED,
    TRANSACTION_TIMEOUT_MS,
    consumer_config,
    transactional_producer_config,
)
from topicproof.backend.kafka.coordination.unstable import committed_offsets, unstable_offsets
from topicproof.backend.kafka.log.rawlog import fetch_bounds

NewTopic = Callable[..., str]


def test_an_offset_in_an_open_transaction_is_unstable_until_it_ends(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline sent its group's offset into a transaction. It is reported until the end, with its
    holder. A check that needs the offset waits, then says the same."""
    topic = new_topic(partitions=2)
    consumer = Consumer(consumer_config(Address(bootstrap), f"{topic}-group", READ_COMMITTED))
    consumer.commit(offsets=[TopicPartition(topic, p, 0) for p in range(2)], asynchronous=False)
    before, none = look(Address(bootstrap), unstable_offsets, topic)
    assert (before, none) == (2, ())
    producer = Producer(transactional_producer_config(Address(bootstrap), f"{topic}-pipeline"))
    producer.init_transactions()
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        [TopicPartition(topic, 1, 5)], consumer.consumer_group_metadata()
    )
    count, (found,) = look(Address(bootstrap), unstable_offsets, topic)
    assert (count, found.group, found.partition, found.stuck) == (2, f"{topic}-group", 1, False)
    assert f"{topic}-pipeline" in [each.transactional_id for each in found.holders]
    assert [each.timeout_ms for each in found.holders if each.name.startswith(topic)] == [
        TRANSACTION_TIMEOUT_MS
    ]
    assert f"The offset of group {topic}-group on {topic}-1 is in the transaction of" in found.why
    assert "which is under way" in found.why and "UNSTABLE_OFFSET_COMMIT" in found.why
    monkeypatch.setattr(cluster, "HIDDEN_TIMEOUT_S", 1)
    bounds = fetch_bounds(Address(bootstrap), topic)
    with pytest.raises(ClusterError, match=r"The offset of group .* is in the .* Check again when"):
        committed_offsets(cluster.Cluster(Address(bootstrap)), f"{topic}-group", bounds)
    producer.commit_transaction()
    wait_until(
        lambda: look(Address(bootstrap), unstable_offsets, topic) == (2, ()),
        10,
        "the commit of the offset",
    )
    consumer.close()
    with pytest.raises(TopicError):
        look(Address(bootstrap), unstable_offsets, "no-such-topic")
