"""Keys are looked for where our producers put them."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Producer

from tests.runs import read_all
from topicproof.backend.address import Address
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.kafka.partitioner import partition_of

PARTITIONS = 5


def test_a_key_is_looked_for_where_the_producer_puts_it(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: keys of all lengths, with bytes above 127, are sent by our producer."""
    keys = [bytes(range(256))[-n:] * m for n in range(9) for m in (1, 100, 1_000)]
    topic = new_topic(partitions=PARTITIONS)
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    for key in keys:
        producer.produce(topic, b"", key)
    assert producer.flush(10) == 0
    messages = read_all(bootstrap, topic)
    assert len(messages) == len(keys)
    assert {(message.key, message.partition) for message in messages} == {
        (key, partition_of(key, PARTITIONS)) for key in keys
    }
