"""The producer's `with` block on a real Kafka: what a failing transaction is called."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.conftest import wait_until
from tests.runs import read_all
from topicproof.backend.errors import RecordRefused
from topicproof.backend.kafka.transaction import Record, TransactionalProducer

CLIENT_TAKES_BYTES = 10_000_000


def test_a_record_refused_while_others_are_queued_is_named(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: the broker refuses a record while the producer goes on queueing others. Then the
    client takes no more and says only that its state is erroneous; what is raised says that a
    record was refused, and why. The transaction is aborted, and the next producer commits."""
    topic = new_topic()
    refused: Record = (topic, None, os.urandom(2_000_000), [])

    def go_on(producer: TransactionalProducer) -> bool:
        producer.produce([(topic, None, b"behind", [])])
        return False

    def fail(producer: TransactionalProducer) -> None:
        with producer.transaction():
            producer.produce([refused])
            wait_until(lambda: go_on(producer), 10, "that the client takes no more records")

    large = TransactionalProducer(
        bootstrap, {}, f"{topic}-id", message_max_bytes=CLIENT_TAKES_BYTES
    )
    with large as producer, pytest.raises(RecordRefused, match="MSG_SIZE_TOO_LARGE"):
        fail(producer)
    with TransactionalProducer(bootstrap, {}, f"{topic}-id") as producer, producer.transaction():
        producer.produce([(topic, None, b"after", [])])
    assert [message.value for message in read_all(bootstrap, topic)] == [b"after"]
