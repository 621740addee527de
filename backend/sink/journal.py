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

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, LogTooLong
from topicproof.backend.kafka.client_configs import (
    READ_UNCOMMITTED,
    REQUEST_TIMEOUT_MS,
    UNCOMPRESSED,
    journal_producer_config,
)
from topicproof.backend.kafka.consumers import reading_errors, record_consumer
from topicproof.backend.kafka.reading import measure, receive
from topicproof.backend.sink.entries import Entry, StampedEntry, decode, encode

LOG = logging.getLogger("topicproof.journal")
TIMEOUT_S = REQUEST_TIMEOUT_MS / 1000
ENTRIES_MAX, BYTES_MAX = 2_000_000, 250_000_000
"""Of a journal that is read whole. Whoever may write to the topic can fill it. The evidence escapes
what is not ASCII, which makes three bytes of one, and `verify` reads a journal of 1 GB."""
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
    entries since the last call, of which `newest` passes over all but so many.

    What a new reader meets is measured, because a journal may be older than its setting
    (`KEEPS_UNCOMPRESSED`); what comes later, the broker has limited. A sink's worker does not
    measure: it has no kafka-python, and the run has measured before it starts.
    """

    def __init__(
        self,
        address: Address,
        topic: str,
        tail: int | None = None,
        on_worker: bool = False,
        newest: int | None = None,
    ) -> None:
        self.address = address
        self.topic = topic
        self.tail = tail
        self.newest = newest
        self.on_worker = on_worker
        self.consumer = record_consumer(address, READ_UNCOMMITTED, UNCOMPRESSED)
        self.place = TopicPartition(topic, 0)
        self.next_offset: int | None = None
        self.bytes_read = 0

    def news(self) -> Iterator[Entry]:
        """Yield entries up to the current end of the topic. Raises ClusterError when the journal
        cannot be read."""
        return (stamped.entry for stamped in self.stamped_news())

    def stamped_news(self) -> Iterator[StampedEntry]:
        """Yield the same with their times."""
        with reading_errors(self.address, self.topic):
            start, end = self._bounds()
            if self.next_offset is None:
                # By number: a new client that looks up the beginning itself first waits 0.5 s.
                self.next_offset = self._first(start, end)
            if self.newest is not None:
                self.next_offset = max(self.next_offset, end - self.newest)
            if self.next_offset >= end:
                return
            passed_over = 0
            for message in receive(self.consumer, self.topic, {0: (self.next_offset, end)}):
                self.next_offset = (message.offset() or 0) + 1
                self.bytes_read += len(message.value() or b"")
                try:
                    entry = decode(message.value() or b"")
                except ValueError as reason:
                    # Not by our sink. It must not end the run, nor the pages that show it.
                    passed_over += 1
                    if passed_over == 1:
                        LOG.warning(
                            "The record at offset %d of the journal %s is passed over: %s.",
                            message.offset(),
                            self.topic,
                            reason,
                        )
                    continue
                yield StampedEntry(message.timestamp()[1], entry)
            if passed_over > 1:
                LOG.warning("So are %d more records of %s.", passed_over - 1, self.topic)

    def _first(self, start: int, end: int) -> int:
        """Return the offset to begin with, after measuring what is there."""
        last = self.newest if self.tail is None else self.tail
        first = start if last is None else max(start, end - last)
        if not self.on_worker:
            limits = measure(self.address, self.topic, {0: (first, end)})
            if limits != UNCOMPRESSED:
                self.consumer.close()
                self.consumer = record_consumer(self.address, READ_UNCOMMITTED, limits)
        return first

    def _bounds(self) -> tuple[int, int]:
        retrying = Retrying(
            retry=retry_if_exception(_not_led_yet),
            stop=stop_after_delay(NEW_TOPIC_PATIENCE_S),
            wait=wait_fixed(0.1),
            reraise=True,
        )
        start, end = retrying(self.consumer.get_watermark_offsets, self.place, TIMEOUT_S)
        return int(start), int(end)

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


def read_journal(
    address: Address, topic: str, tail: int | None = None, on_worker: bool = False
) -> list[Entry]:
    """Return all entries of the journal, or its last `tail` entries. Raises ClusterError;
    LogTooLong beyond `ENTRIES_MAX` or `BYTES_MAX`; RecordTooLarge, except on a worker."""
    reader = JournalReader(address, topic, tail, on_worker)
    entries: list[Entry] = []
    try:
        for entry in reader.news():
            entries.append(entry)
            if len(entries) > ENTRIES_MAX or reader.bytes_read > BYTES_MAX:
                raise LogTooLong(
                    f"The journal {topic} at {address} has more than {ENTRIES_MAX:,} entries or"
                    f" {BYTES_MAX // 1_000_000:,} MB, which are read at once. If another program"
                    " writes to it, take that right away. `topicproof check` judges the run's"
                    " topics without a journal."
                )
        return entries
    finally:
        reader.close()
