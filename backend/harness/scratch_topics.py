"""Topics of a test, and records with a chosen fate."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import pandas as pd
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from topicproof.backend.kafka.client_configs import READ_UNCOMMITTED, transactional_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.consumers import offset_consumer
from topicproof.backend.kafka.log.fates import fate_ranges, records_between
from topicproof.backend.kafka.log.rawlog import scan
from topicproof.validators.finding import Bounds, Fate

Value = str | bytes | int
Record = Value | tuple[Value | None, Value | None]
"""A key and a value. A single value is its own key."""

OPEN_TIMEOUT_MS = 900_000
"""How long a transaction of a test may stay open. Brokers allow no more by default."""
TIMEOUT_S = 30.0


@dataclass
class OpenTransaction:
    """A transaction whose records are in the log, and which has not ended."""

    producer: Producer = field(repr=False)
    ended: bool = False

    def commit(self) -> None:
        """Raises KafkaException."""
        self.producer.commit_transaction(TIMEOUT_S)
        self.ended = True

    def abort(self) -> None:
        """Raises KafkaException."""
        self.producer.abort_transaction(TIMEOUT_S)
        self.ended = True


@dataclass
class Topic:
    """A topic that this test has made. `str(topic)` is its name."""

    name: str
    cluster: Cluster = field(repr=False)
    transactions: list[OpenTransaction] = field(default_factory=list, repr=False)
    asking: dict[str, Consumer] = field(default_factory=dict, repr=False)
    """Consumers that ask for offsets, by group. They are no members."""
    last_fates: tuple[Bounds, pd.DataFrame] | None = field(default=None, repr=False)
    """The fates of its offsets (`fate_ranges`), and the bounds at that moment."""

    def __str__(self) -> str:
        return self.name

    def committed(self, records: Iterable[Record]) -> None:
        """Write records in a transaction, and commit it. Raises KafkaException."""
        self.open(records).commit()

    def aborted(self, records: Iterable[Record]) -> None:
        """Write records in a transaction, and abort it when they are in the log."""
        self.open(records).abort()

    def open(self, records: Iterable[Record]) -> OpenTransaction:
        """Write records in a transaction, and leave it open. It is aborted after the test."""
        config = transactional_producer_config(
            self.cluster.address, f"{self.name}-{uuid.uuid4().hex[:8]}", OPEN_TIMEOUT_MS
        )
        producer = Producer(config)
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        for record in records:
            key, value = record if isinstance(record, tuple) else (record, record)
            _produce(producer, self.name, _bytes(key), _bytes(value))
        if producer.flush(TIMEOUT_S) > 0:
            raise AssertionError(f"Kafka did not take all records of {self.name} in time.")
        self.transactions.append(OpenTransaction(producer))
        return self.transactions[-1]

    def end(self) -> int:
        """Return how many offsets the topic has, over all partitions: records of every fate, and
        the markers of transactions."""
        return sum(p.hw - p.start for p in self.cluster.bounds(self.name).partitions)

    def settled(self) -> bool:
        """Return whether no transaction is open."""
        return all(p.lso == p.hw for p in self.cluster.bounds(self.name).partitions)

    def processed(self, group: str) -> int:
        """Return how many offsets a consumer group has committed, over all partitions."""
        starts = {p.partition: p.start for p in self.cluster.bounds(self.name).partitions}
        committed = self._committed(group)
        return sum(offset - starts[partition] for partition, offset in committed.items())

    def processed_by(self, group: str) -> bool:
        """Return whether no committed record lies at or above a group's offsets. A consumer commits
        the offset after its last record, so the markers behind that do not count."""
        committed = self._committed(group)
        bounds = self.cluster.bounds(self.name)
        if self.last_fates is None or self.last_fates[0] != bounds:
            batches = scan(self.cluster.address, self.name, bounds)
            self.last_fates = (bounds, fate_ranges(batches, bounds))
        ranges = self.last_fates[1]
        return not any(
            records_between(
                ranges, p.partition, committed.get(p.partition, p.start), p.lso, [Fate.COMMITTED]
            )
            for p in bounds.partitions
        )

    def start_group(self, group: str) -> None:
        """Commit the beginning of every partition for a group, as `topicproof floor` does."""
        starts = {p.partition: p.start for p in self.cluster.bounds(self.name).partitions}
        self.cluster.commit_offsets(group, self.name, starts)

    def _committed(self, group: str) -> dict[int, int]:
        # At read_committed the coordinator would not answer while a transaction holds an offset
        # back, and a frozen program never ends its transaction.
        if group not in self.asking:
            self.asking[group] = offset_consumer(self.cluster.address, group, READ_UNCOMMITTED)
        partitions = [
            TopicPartition(self.name, number) for number in self.cluster.partitions(self.name)
        ]
        positions = self.asking[group].committed(partitions, timeout=TIMEOUT_S)
        return {p.partition: p.offset for p in positions if p.offset >= 0}

    def close(self) -> None:
        """Abort what is still open."""
        for consumer in self.asking.values():
            consumer.close()
        for transaction in self.transactions:
            if not transaction.ended:
                # The program under test may have fenced it, or a broker may be gone.
                with suppress(KafkaException):
                    transaction.abort()


def _produce(producer: Producer, topic: str, key: bytes | None, value: bytes | None) -> None:
    while True:
        try:
            producer.produce(topic, value, key)
            return
        except BufferError:
            producer.poll(0.05)


def _bytes(value: Value | None) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode()
