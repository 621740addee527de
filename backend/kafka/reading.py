"""Reads records at given offsets with a consumer that is in no group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import methodcaller
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from topicproof.backend.address import Address
from topicproof.backend.errors import TopicError
from topicproof.backend.kafka.client_configs import consumer_config
from topicproof.backend.kafka.cluster import cluster_error

GROUP = "topicproof"
"""Every consumer must name a group. Nothing is committed to this one, so the cluster never stores
it."""
POLL_S = 0.1


@contextmanager
def open_consumer(
    address: Address, topic: str, isolation: str, settings: Mapping[str, str | int] | None = None
) -> Iterator[Consumer]:
    """Open a consumer for `read_range`. Raises ClusterError, also for errors inside the block."""
    consumer = Consumer({**consumer_config(address, GROUP, isolation), **(settings or {})})
    try:
        yield consumer
    except KafkaException as error:
        raise cluster_error(error, address, f"reading {topic}", f"Read on topic {topic}") from error
    finally:
        consumer.close()


def read_range(
    consumer: Consumer, topic: str, spans: Mapping[int, tuple[int, int]]
) -> Iterator[Message | None]:
    """Yield the visible records of [first, end) of each partition, as they arrive.

    Yields None when nothing arrived for `POLL_S`, so that the caller can check the clock. Ends when
    each partition has shown a record at or beyond its end, or the end of what the consumer may see.
    Raises TopicError when the first offset was deleted, KafkaException.
    """
    left = {partition: end for partition, (first, end) in spans.items() if first < end}
    consumer.assign([TopicPartition(topic, partition, spans[partition][0]) for partition in left])
    while left:
        message = consumer.poll(POLL_S)
        if message is None:
            yield None
            continue
        partition, offset, error = message.partition() or 0, message.offset() or 0, message.error()
        if error is None and offset < left.get(partition, 0):
            yield message
            if offset + 1 == left[partition]:
                left.pop(partition)
        elif error is None or error.code() == KafkaError._PARTITION_EOF:
            left.pop(partition, None)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise TopicError(
                f"Records of {topic}-{partition} were deleted after the bounds were taken. Read it"
                " again."
            )
        # A client without a right to the group may still read: it is not a member.
        elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise KafkaException(error)


def as_bytes(value: str | bytes | None) -> bytes | None:
    """Return bytes: confluent-kafka types keys, values and headers as text or bytes."""
    return value.encode() if isinstance(value, str) else value


# Not `message.headers()`: for a name that is not UTF-8, the client returns half of a list and an
# error at once, which Python notices only in calls that are not optimised. Reading the list would
# crash the process.
_ASK = methodcaller("headers")


class NotText(ValueError):
    """The name of a header is not UTF-8."""


def headers_in(message: Message) -> list[tuple[str, Any]]:
    """Return the headers of a message in order; names may repeat. Raises NotText."""
    try:
        headers = _ASK(message) or []
    except SystemError as error:
        if not isinstance(error.__cause__, UnicodeDecodeError):
            raise
        # The client keeps the half list, and would hand it out the next time.
        message.set_headers([])
        raise NotText("the name of a header is not UTF-8") from error
    return list(headers.items() if isinstance(headers, dict) else headers)
