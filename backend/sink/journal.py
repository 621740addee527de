"""The journal: a topic for each run, in which the sink declares its transactions and their
outcomes.

It is not transactional, so it survives the transactions that it describes. Each task writes one
acknowledged record before its first produce. Each transaction adds one, sent without waiting and
flushed at the task's end, so the cost is per task. A transaction without an outcome is unknown, and
the log settles it. A fault is claimed here before it fires, because the process that it strikes
could not remember it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.client_configs import (
    READ_UNCOMMITTED,
    REQUEST_TIMEOUT_MS,
    consumer_config,
    journal_producer_config,
)

TIMEOUT_S = REQUEST_TIMEOUT_MS / 1000
NEW_TOPIC_PATIENCE_S = 2.0
"""How long a broker may not have heard of a new journal yet."""
EVERY_PARTITION = -1


class Declared(StrEnum):
    """A transaction's outcome as the sink declares it."""

    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"
    FENCED = "FENCED"
    """Another producer took over the transactional id, and settles the transaction."""
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True)
class TaskStarted:
    """A Spark task took over a source partition and is about to produce."""

    task: str
    transactional_id: str
    source_topic: str
    source_partition: int
    sequence: int
    """Sequence of its first transaction."""
    next_offset: int
    """The group's committed offset at that moment."""


@dataclass(frozen=True)
class TransactionEnded:
    task: str
    transactional_id: str
    source_topic: str
    source_partition: int
    sequence: int
    attempt: int
    outcome: Declared
    reason: str
    """Why it is aborted, fenced or unknown; empty if committed."""
    inputs: int
    records: int
    next_offset: int
    """The source offset that it commits, or would have committed."""


@dataclass(frozen=True)
class FaultFired:
    """A fault is about to strike a worker."""

    task: str
    fault: str
    source_topic: str
    source_partition: int
    """`EVERY_PARTITION` for a strike by hand at all workers."""
    sequence: int
    """0 for strikes by hand, which do not choose a transaction."""


class Told(StrEnum):
    """How far the run's process is with a fault."""

    DONE = "DONE"
    """The fault is under way; the waiting worker may continue."""
    STRUCK = "STRUCK"
    """The fault struck once more."""
    HEALED = "HEALED"
    FAILED = "FAILED"
    """The fault is impossible."""


@dataclass(frozen=True)
class FaultTold:
    """The run's process reports on a fault outside the worker."""

    fault: str
    what: Told
    said: str


@dataclass(frozen=True)
class GenerationBegun:
    """The query was stopped or restarted: workers of earlier generations must not write."""

    generation: int


@dataclass(frozen=True)
class TaskFailed:
    """In real time: a task has failed (backend/sink/task_watch.py)."""

    generation: int
    error: str
    """Name of the error's class."""
    reason: str


@dataclass(frozen=True)
class WorkerBegan:
    """In a run that may be struck by hand: the process of a task, so that it can be killed."""

    task: str
    source_topic: str
    source_partition: int
    host: str
    pid: int
    created: float
    """When the process began, in seconds since 1970. A later process may get the same number."""


@dataclass(frozen=True)
class WorkerEnded:
    """The same task has ended by itself. Its process may go on with another one."""

    task: str
    source_topic: str
    source_partition: int


Entry = (
    TaskStarted
    | TransactionEnded
    | FaultFired
    | FaultTold
    | GenerationBegun
    | TaskFailed
    | WorkerBegan
    | WorkerEnded
)


@dataclass(frozen=True)
class Stamped:
    """An entry, and when its writer sent it."""

    at_ms: int
    entry: Entry


_KINDS: dict[str, type[Entry]] = {
    "task": TaskStarted,
    "transaction": TransactionEnded,
    "fault": FaultFired,
    "told": FaultTold,
    "generation": GenerationBegun,
    "failure": TaskFailed,
    "worker": WorkerBegan,
    "worker_ended": WorkerEnded,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def encode(entry: Entry) -> bytes:
    return json.dumps({"kind": _NAMES[type(entry)], **asdict(entry)}).encode()


def decode(value: bytes) -> Entry:
    fields: dict[str, Any] = json.loads(value)
    kind = _KINDS[fields.pop("kind")]
    if kind is TransactionEnded:
        fields["outcome"] = Declared(fields["outcome"])
    elif kind is FaultTold:
        fields["what"] = Told(fields["what"])
    elif kind is FaultFired:
        # Kept evidence may hold anything.
        fields["fault"] = str(fields["fault"])
    return kind(**fields)


class JournalWriter:
    """Appends to a run's journal. Raises ClusterError when a required acknowledgement does not
    arrive."""

    def __init__(self, address: Address, topic: str) -> None:
        self.topic = topic
        self.producer = Producer(journal_producer_config(address))
        self._failed: KafkaError | None = None

    def append(self, entry: Entry) -> None:
        """Send without waiting."""
        self.producer.produce(self.topic, encode(entry), on_delivery=self._delivered)
        self.producer.poll(0)

    def append_acknowledged(self, entry: Entry) -> None:
        self.append(entry)
        self.flush()

    def flush(self) -> None:
        left = self.producer.flush(TIMEOUT_S)
        if left > 0 or self._failed is not None:
            why = self._failed.str() if self._failed is not None else "no answer in time"
            raise ClusterError(f"The journal {self.topic} could not be written: {why}.")

    def close(self) -> None:
        """Send queued entries: a failed task must not lose its declarations."""
        self.producer.flush(TIMEOUT_S)
        self.producer.close()

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        self._failed = self._failed or error


def append_to_journal(address: Address, topic: str, entry: Entry) -> None:
    """Append one acknowledged entry. Raises ClusterError."""
    writer = JournalWriter(address, topic)
    try:
        writer.append_acknowledged(entry)
    finally:
        writer.close()


class JournalReader:
    """Reads a run's journal from its beginning, or from its last `tail` entries. `news` yields the
    entries since the last call."""

    def __init__(self, address: Address, topic: str, tail: int | None = None) -> None:
        self.topic = topic
        self.tail = tail
        self.consumer = Consumer(consumer_config(address, f"{topic}-reader", READ_UNCOMMITTED))
        self.place = TopicPartition(topic, 0)
        self.next_offset: int | None = None

    def news(self) -> Iterator[Entry]:
        """Yield entries up to the current end of the topic. Raises ClusterError when the journal
        cannot be read."""
        return (one.entry for one in self.stamped_news())

    def stamped_news(self) -> Iterator[Stamped]:
        """Yield the same with their times."""
        # Up to the high watermark: the client reports "end of partition" only once until new
        # entries arrive.
        start, end = self._bounds()
        if self.next_offset is None:
            # By number: a new client that looks up the beginning itself first waits 0.5 s.
            self.next_offset = start if self.tail is None else max(start, end - self.tail)
            self.consumer.assign([TopicPartition(self.topic, 0, self.next_offset)])
        while self.next_offset < end:
            message = self.consumer.poll(TIMEOUT_S)
            if message is None:
                raise ClusterError(f"The journal {self.topic} could not be read in time.")
            error = message.error()
            if error is None:
                self.next_offset = (message.offset() or 0) + 1
                yield Stamped(message.timestamp()[1], decode(message.value() or b""))
            elif error.code() != KafkaError._PARTITION_EOF:
                raise ClusterError(f"The journal {self.topic} could not be read: {error.str()}.")

    def _bounds(self) -> tuple[int, int]:
        retrying = Retrying(
            retry=retry_if_exception(_not_led_yet),
            stop=stop_after_delay(NEW_TOPIC_PATIENCE_S),
            wait=wait_fixed(0.1),
            reraise=True,
        )
        try:
            start, end = retrying(self.consumer.get_watermark_offsets, self.place, TIMEOUT_S)
            return int(start), int(end)
        except KafkaException as error:
            raise ClusterError(
                f"The journal {self.topic} could not be read: {error.args[0].str()}."
            ) from error

    def close(self) -> None:
        self.consumer.close()


def _not_led_yet(error: BaseException) -> bool:
    """Return whether a broker may only not have heard of the topic or its leader yet: it is new, or
    the brokers have just started."""
    return isinstance(error, KafkaException) and error.args[0].code() in (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    )


def read_journal(address: Address, topic: str, tail: int | None = None) -> list[Entry]:
    """Return all entries of the journal, or its last `tail` entries."""
    reader = JournalReader(address, topic, tail)
    try:
        return list(reader.news())
    finally:
        reader.close()


def last_attempt(
    entries: Iterable[Entry], source_topic: str, source_partition: int, sequence: int
) -> int:
    """Return the number of the last attempt at this transaction in the journal; 0 without any."""
    found = _attempts(entries, (source_topic, source_partition, sequence))
    return max((entry.attempt for entry in found), default=0)


def aborts(
    entries: Iterable[Entry], source_topic: str, source_partition: int, sequence: int
) -> int:
    """Return how many attempts at this transaction the journal declares aborted."""
    found = _attempts(entries, (source_topic, source_partition, sequence))
    return sum(entry.outcome is Declared.ABORTED for entry in found)


def _attempts(
    entries: Iterable[Entry], transaction: tuple[str, int, int]
) -> Iterator[TransactionEnded]:
    for entry in entries:
        if (
            isinstance(entry, TransactionEnded)
            and (entry.source_topic, entry.source_partition, entry.sequence) == transaction
        ):
            yield entry
