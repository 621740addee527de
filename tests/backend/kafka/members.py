"""Consumers that are members of a group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from confluent_kafka import Consumer, TopicPartition

from tests.conftest import wait_until
from topicproof.backend.address import Address
from topicproof.backend.kafka.client_configs import READ_COMMITTED, consumer_config


@contextmanager
def member(
    bootstrap: str,
    group: str,
    topics: Sequence[str],
    protocol: str = "classic",
    client: str = "reader",
    beside: Sequence[Consumer] = (),
) -> Iterator[Consumer]:
    """A consumer in a group, from when it has partitions on. Those beside it take part in the
    rebalance."""
    options = {**consumer_config(Address(bootstrap), group, READ_COMMITTED)}
    options |= {"group.protocol": protocol, "client.id": client}
    consumer = Consumer({**options, "auto.offset.reset": "earliest"})
    assigned: list[TopicPartition] = []
    consumer.subscribe(list(topics), on_assign=lambda _consumer, given: assigned.extend(given))

    def given() -> bool:
        for each in (consumer, *beside):
            each.poll(0.1)
        return bool(assigned)

    try:
        wait_until(given, 30, f"an assignment in group {group}")
        yield consumer
    finally:
        consumer.close()
