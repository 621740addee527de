"""Reads records at given offsets with a consumer that is in no group.

Their sizes are measured in the raw log first: a client of Kafka decompresses whatever a broker
sends, and one record of 3 kB may become 100 MB. What arrives between the measurement and the read
is fetched with the rest, unmeasured.

A record may be small in the log and large in memory: its key, its value, the names and contents of
its headers, and Python's objects for them. Every reader that holds more than one record counts each
by a `RecordBudget`. `tests/test_tidy.py` has the readers that hold one at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from operator import methodcaller
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, TopicError
from topicproof.backend.kafka.client_configs import (
    READER_FETCH_BYTES,
    REQUEST_TIMEOUT_MS,
    UNCOMPRESSED,
    FetchLimits,
    fetch_limits,
)
from topicproof.backend.kafka.consumers import reading_errors, record_consumer
from topicproof.validators.finding import Bounds, PartitionBounds

POLL_S = 0.1
SILENCE_S = REQUEST_TIMEOUT_MS / 1000
Spans = Mapping[int, tuple[int, int]]
"""The offsets [first, end) of each partition."""
RECORD_BYTES, HEADER_BYTES = 1_000, 200
"""What Python needs for a record, and for a header, beside their content."""
_CHARACTER_BYTES_MAX = 4


def read_records(
    address: Address, topic: str, isolation: str, spans: Spans, from_earliest: bool = False
) -> Iterator[Message]:
    """Measure the spans, then yield their visible records as they arrive, in order within each
    partition.

    `from_earliest`: begin with the first record left if the first offset was deleted. Raises
    RecordTooLarge for one that is too large to read, TopicError for a deleted first offset,
    ClusterError, also when nothing arrives in time.
    """
    limits = measure(address, topic, spans)
    with open_consumer(address, topic, isolation, limits, from_earliest) as consumer:
        yield from receive(consumer, topic, spans)


def measure(address: Address, topic: str, spans: Spans) -> FetchLimits:
    """Measure the spans in the raw log; return the limits of a consumer that reads them. Raises
    RecordTooLarge naming the first record that is too large to read, TopicError, ClusterError."""
    bounds = tuple(
        PartitionBounds(partition, first, end, end)
        for partition, (first, end) in sorted(spans.items())
        if first < end
    )
    if not bounds:
        return UNCOMPRESSED
    # Late: the sink has no kafka-python. What uses it alone measures nothing.
    from topicproof.backend.kafka.log import rawlog
    from topicproof.backend.kafka.log.inflation import fetch_bytes, largest_client_ratio

    batches = rawlog.scan(address, topic, Bounds(topic, bounds), readable=True)
    return fetch_limits(fetch_bytes(largest_client_ratio(batches), READER_FETCH_BYTES))


@contextmanager
def open_consumer(
    address: Address,
    topic: str,
    isolation: str,
    limits: FetchLimits,
    from_earliest: bool = False,
) -> Iterator[Consumer]:
    """Open a consumer for `read_range`. Raises ClusterError, also for errors inside the block."""
    with (
        reading_errors(address, topic),
        closing(
            record_consumer(address, isolation, limits, from_earliest=from_earliest)
        ) as consumer,
    ):
        yield consumer


def read_range(consumer: Consumer, topic: str, spans: Spans) -> Iterator[Message | None]:
    """Yield the visible records of [first, end) of each partition, as they arrive.

    Yields None when nothing arrived for `POLL_S`, so that the caller can check the clock. Ends when
    each partition has shown a record at or beyond its end, or the end of what the consumer may see.
    Raises TopicError when the first offset was deleted, KafkaException.
    """
    left = {partition: end for partition, (first, end) in spans.items() if first < end}
    begins = [TopicPartition(topic, partition, spans[partition][0]) for partition in left]
    consumer.assign(begins)
    # One that an earlier range has paused stays paused.
    consumer.resume(begins)
    going_on = set(left)
    while left:
        if len(left) < len(going_on):
            # Otherwise the client would read on there, and let the others wait.
            consumer.pause([TopicPartition(topic, done) for done in going_on - left.keys()])
            going_on &= left.keys()
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


def receive(consumer: Consumer, topic: str, spans: Spans) -> Iterator[Message]:
    """Yield the records of `read_range`. Raises ClusterError too, when nothing arrives for
    `SILENCE_S`."""
    last_arrival = time.monotonic()
    for message in read_range(consumer, topic, spans):
        if message is not None:
            yield message
            last_arrival = time.monotonic()
        elif time.monotonic() - last_arrival > SILENCE_S:
            raise ClusterError(f"Topic {topic} could not be read: nothing came in time. Try again.")


def as_bytes(value: str | bytes | None) -> bytes | None:
    """Return bytes: confluent-kafka types keys, values and headers as text or bytes."""
    return value.encode() if isinstance(value, str) else value


# Not `message.headers()`: for a name that is not UTF-8, the client returns half of a list and an
# error at once, which Python notices only in calls that are not optimised. Reading the list would
# crash the process.
_ASK = methodcaller("headers")


class NotText(ValueError):
    """The name of a header is not UTF-8."""


def headers_in(message: object) -> list[tuple[str, Any]]:
    """Return the headers of a message, or of a record of the raw log, in order; names may repeat.
    Raises NotText."""
    try:
        headers = _ASK(message) or []
    except SystemError as error:
        if not isinstance(error.__cause__, UnicodeDecodeError):
            raise
        # The client keeps the half list, and would hand it out the next time.
        if isinstance(message, Message):
            message.set_headers([])
        raise NotText("the name of a header is not UTF-8") from error
    return list(headers.items() if isinstance(headers, dict) else headers)


def content_bytes(
    key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes | None]] = ()
) -> int:
    """Return the bytes of key, value and headers in memory."""
    return (
        len(key or b"")
        + len(value or b"")
        + sum(HEADER_BYTES + _text_bytes(name) + len(content or b"") for name, content in headers)
    )


def _text_bytes(text: str) -> int:
    # One character of another alphabet makes all others of a text as large.
    return len(text) if text.isascii() else len(text) * _CHARACTER_BYTES_MAX


class RecordBudget:
    """Counts the records that a reader holds, against a limit of bytes."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        """What the records take that are held."""

    @property
    def is_spent(self) -> bool:
        """Whether the records take more than the limit. The last one may be larger than all of it:
        its own size has a limit (`inflation.py`)."""
        return self.bytes > self.bytes_max

    def hold(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> int:
        """Count a record that is held from now on. Returns its bytes."""
        size = RECORD_BYTES + content_bytes(key, value, headers)
        self.bytes += size
        return size

    def release(self, size: int) -> None:
        """Count a record of so many bytes as no longer held."""
        self.bytes -= size
