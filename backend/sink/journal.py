"""The journal: a topic for each run, in which the sink declares its transactions and their
outcomes.

It is not transactional, so it survives the transactions that it describes. Each task writes one
acknowledged record before its first produce. Each transaction adds one, sent without waiting and
flushed at the task's end, so the cost is per task. A transaction without an outcome is unknown, and
the log settles it. A fault is claimed here before it fires, because the process that it strikes
could not remember it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

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
from topicproof.backend.sink.entries import Entry, StampedEntry, decode, encode

LOG = logging.getLogger("topicproof.journal")
TIMEOUT_S = REQUEST_TIMEOUT_MS / 1000
NEW_TOPIC_PATIENCE_S = 2.0
"""How long a broker may not have heard of a new journal yet."""


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
        return (stamped.entry for stamped in self.stamped_news())

    def stamped_news(self) -> Iterator[StampedEntry]:
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
                try:
                    entry = decode(message.value() or b"")
                except ValueError as reason:
                    # Not by our sink. It must not end the run, nor the pages that show it.
                    LOG.warning(
                        "The record at offset %d of the journal %s is passed over: %s.",
                        message.offset(),
                        self.topic,
                        reason,
                    )
                    continue
                yield StampedEntry(message.timestamp()[1], entry)
            elif error.code() == KafkaError._PARTITION_EOF:
                # The last offsets may be of markers, which no client returns.
                self.next_offset = max(self.next_offset, message.offset() or 0)
            else:
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
