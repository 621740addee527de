"""How a transaction reaches the sink, and how its records name their inputs: in one header of each
(validators/lineage/compact.py). Each guarantee has a module, and databases have one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from topicproof.backend.address import Address
from topicproof.backend.errors import SinkError
from topicproof.backend.kafka.client_configs import REQUEST_TIMEOUT_MS, admin_config
from topicproof.backend.kafka.transaction import Record
from topicproof.backend.sink.batcher import Contents
from topicproof.backend.sink.delivery_options import OFF
from topicproof.backend.sink.outputs import Output
from topicproof.backend.sink.task import SinkTask
from topicproof.validators.lineage.compact import (
    COMPACT_HEADER,
    INDEXED,
    NO_TOPIC_ID,
    format_place,
    format_topic,
)

HeaderOf = Callable[[int, int], bytes]
"""Returns the header of an output, from its input's number in an Output and its index."""
TOPICS_REMEMBERED = 1_000


class Delivery(Protocol):
    def open(self) -> None:
        """Take over the source partition."""

    def close(self) -> None:
        """Close it, even if `open` has failed."""

    def prepare(self, contents: Contents) -> None:
        """Prepare an attempt; called before each one. Raises Fenced."""

    def attempt(self, contents: Contents, attempt: int) -> None:
        """Deliver the outputs and the offset. Raises TransactionAborted or NotDelivered if this
        attempt failed, another SinkError if the task must end."""

    def after_failure(self, contents: Contents, error: SinkError) -> Contents | None:
        """Return what to try next; None gives these inputs up. Raises SinkError to end the task."""

    def flush(self) -> None:
        """Send everything in the queue."""


def padding(task: SinkTask, contents: Contents, outputs: Sequence[Output]) -> list[Record]:
    """Return the record that the hooks add to the first input of a transaction, if `outputs` begin
    with that input."""
    if not outputs or outputs[0] is not contents.outputs[0] or task.sink.topic is None:
        return []
    value = task.hooks.take_extra_value()
    return [] if value is None else [(task.sink.topic, None, value, [])]


class Inputs(Protocol):
    """The inputs of a task, by their numbers in an Output."""

    def place(self, number: int) -> bytes:
        """Return `topic/partition/offset` of an input."""

    def header_of(self, transaction: bytes) -> HeaderOf:
        """Return how headers are made. `transaction` follows the input; empty without any."""


class PartitionInputs:
    """Inputs of the task's source partition, whose numbers are their offsets."""

    def __init__(self, task: SinkTask) -> None:
        self.source = task.source
        self.before, self.topic = _around(task, *task.source)

    def place(self, number: int) -> bytes:
        return "{}/{}/{}".format(*self.source, number).encode()

    def header_of(self, transaction: bytes) -> HeaderOf:
        # Only the offset and the index differ from record to record.
        before, after, indexed = self.before, self.topic + transaction, INDEXED.pack
        return lambda offset, index: before + indexed(offset, index) + after


class BatchInputs:
    """Inputs of many source partitions, numbered in the order of their rows."""

    def __init__(self, task: SinkTask) -> None:
        self.task = task
        self.rows: list[tuple[tuple[str, int], int]] = []
        self.around: dict[tuple[str, int], tuple[bytes, bytes]] = {}

    def append(self, topic: str, partition: int, offset: int) -> None:
        source = (topic, partition)
        if source not in self.around:
            self.around[source] = _around(self.task, *source)
        self.rows.append((source, offset))

    def place(self, number: int) -> bytes:
        source, offset = self.rows[number]
        return "{}/{}/{}".format(*source, offset).encode()

    def header_of(self, transaction: bytes) -> HeaderOf:
        def header(number: int, index: int) -> bytes:
            source, offset = self.rows[number]
            before, topic = self.around[source]
            return before + INDEXED.pack(offset, index) + topic + transaction

        return header


def records_of(
    task: SinkTask, inputs: Inputs, outputs: Iterable[Output], transaction: bytes = b""
) -> Iterator[Record]:
    """Return the records of outputs lazily. `transaction`: what names it in a header."""
    if task.sink.delivery.lineage == OFF:
        return ((topic, key, value, headers) for _, _, topic, key, value, headers in outputs)
    header = inputs.header_of(transaction)
    return (
        (topic, key, value, [*headers, (COMPACT_HEADER, header(number, index))])
        for number, index, topic, key, value, headers in outputs
    )


def _around(task: SinkTask, topic: str, partition: int) -> tuple[bytes, bytes]:
    """Return what stands before and after offset and index in each header of a source partition."""
    sink = task.sink
    if sink.delivery.lineage == OFF:
        return b"", b""
    try:
        topic_id = fetch_topic_id(sink.address, topic, sink.group, sink.generation)
    except KafkaException:
        # The sink may read the topic without the right to describe it, and needs no id to write.
        topic_id = NO_TOPIC_ID
    return format_place(topic_id, partition), format_topic(topic)


@lru_cache(maxsize=TOPICS_REMEMBERED)
def fetch_topic_id(address: Address, topic: str, group: str, generation: int) -> bytes:  # noqa: ARG001
    """Return the id of a topic. A worker lives longer than a task: it asks once for each start of a
    query, which `group` and `generation` name. Raises KafkaException."""
    admin = AdminClient(admin_config(address))
    described = admin.describe_topics(
        TopicCollection([topic]), request_timeout=REQUEST_TIMEOUT_MS / 1000
    )
    # Any: the stubs of the client lack both halves.
    topic_id: Any = described[topic].result().topic_id
    halves = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
    return b"".join((half % 2**64).to_bytes(8) for half in halves)
