"""A read_committed reader that runs alongside the pipeline and records its polls: the witness of
timely reads.

It belongs to no group, starts at the end of the existing sinks, and advances only by polling. It
measures what has arrived before it polls: a record that is too large ends its session. After each
poll it asks for the last stable offsets of the partitions received. Its account goes into the
run's folder as Parquet every few seconds, so a killed run loses little of it. A resumed run starts
a new reader session.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from topicproof.backend.errors import TopicproofError
from topicproof.backend.kafka.client_configs import READ_COMMITTED, fetch_limits
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.consumers import record_consumer
from topicproof.backend.kafka.log import rawlog
from topicproof.backend.kafka.log.inflation import records_within
from topicproof.validators.finding import Bounds, PartitionBounds
from topicproof.validators.merged_topics import split

log = logging.getLogger(__name__)

FOLDER = "reader"
"""Folder of the account in the run's folder."""
KEEP_S = 2.0
CATCH_UP_S = 20.0
"""Seconds that the reader may take after the pipeline to receive all stable records."""
POLL_RECORDS = 10_000
POLL_BYTES_MAX = 2**26
"""What the records of a poll may take: of larger ones there are fewer."""
POLL_S = 0.2
LIMITS = fetch_limits(2**16)
"""Little at once: what arrives during a poll is fetched with the rest, unmeasured."""


class Polled(NamedTuple):
    """One row of the account, documented in validators/polled.py."""

    topic: str
    session: str
    poll: int
    run: int
    at_ms: int
    partition: int
    first_offset: int
    last_offset: int
    lso: int


SCHEMA = pa.schema(
    [(name, pa.string() if name in ("topic", "session") else pa.int64()) for name in Polled._fields]
)

Place = tuple[str, int]
"""(topic, partition)"""


@contextmanager
def reading(
    cluster: Cluster, begin: Mapping[str, Mapping[str, int]], folder: Path
) -> Iterator[None]:
    """Read the topics of `begin` (offsets by topic and partition) until the block ends."""
    stop = threading.Event()
    reader = Reader(
        cluster,
        {(topic, int(p)): offset for topic, at in begin.items() for p, offset in at.items()},
        folder,
    )
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(reader.read, stop)
        try:
            yield
        finally:
            stop.set()
    work.result()


class Reader:
    """One session of a reader."""

    def __init__(self, cluster: Cluster, begin: Mapping[Place, int], folder: Path) -> None:
        self.cluster = cluster
        self.begin = begin
        self.folder = folder
        self.session = uuid.uuid4().hex[:8]
        self.next: dict[Place, int] = dict(begin)
        """Where the reader goes on."""
        self.measured: dict[Place, int] = dict(begin)
        """Records below these offsets are not too large to read."""
        self.poll_records = POLL_RECORDS
        """How many of these are received at once."""
        self.unread: set[Place] = set()
        """Partitions whose measured records it has not received yet."""
        self.rows: list[Polled] = []
        self.count = 0
        self.kept = 0

    def read(self, stop: threading.Event) -> None:
        """Read until `stop`, then until all stable records are received. An error ends the session
        but not the run: the account keeps the records received until then."""
        self.folder.mkdir(parents=True, exist_ok=True)
        consumer = record_consumer(self.cluster.address, READ_COMMITTED, LIMITS)
        try:
            self._read(consumer, stop)
        except (KafkaException, TopicproofError) as error:
            log.warning("The reader of the sinks ended early: %s", error)
        finally:
            consumer.close()
            self._keep()

    def _read(self, consumer: Consumer, stop: threading.Event) -> None:
        stable = self._stable(self.begin)
        for place, offset in self.begin.items():
            self._add(0, place, offset, offset - 1, stable[place])
        ends: dict[Place, int] = {}
        deadline, kept_at, poll = 0.0, time.monotonic(), 0
        with rawlog.connect(self.cluster.address) as log:
            while True:
                if stop.is_set() and not deadline:
                    ends, deadline = self._stable(self.begin), time.monotonic() + CATCH_UP_S
                if deadline and all(self.next[place] >= end for place, end in ends.items()):
                    return
                if deadline and time.monotonic() > deadline:
                    return
                if not self.unread and not self._measure(log, consumer):
                    time.sleep(POLL_S)
                    continue
                poll += 1
                self._hear(poll, consumer.consume(self.poll_records, POLL_S))
                if not self.unread:
                    consumer.unassign()
                if time.monotonic() - kept_at > KEEP_S:
                    self._keep()
                    kept_at = time.monotonic()

    def _measure(self, log: rawlog.Connection, consumer: Consumer) -> bool:
        """Measure what has arrived, and assign it to the consumer. Returns whether there is
        something. Raises RecordTooLarge."""
        self.poll_records = POLL_RECORDS
        for topic in sorted({topic for topic, _ in self.begin}):
            news = tuple(
                PartitionBounds(p.partition, measured, p.hw, p.hw)
                for p in self.cluster.bounds(topic).partitions
                if p.hw > (measured := self.measured.get((topic, p.partition), p.hw))
            )
            if news:
                batches = log.scan(topic, Bounds(topic, news), readable=True)
                most = records_within(batches, POLL_BYTES_MAX)
                self.poll_records = min(self.poll_records, most)
            for p in news:
                self.unread.add((topic, p.partition))
                self.measured[topic, p.partition] = p.hw
        consumer.assign([TopicPartition(*place, self.next[place]) for place in self.unread])
        return bool(self.unread)

    def _hear(self, poll: int, received: list[Message]) -> None:
        """Record a poll."""
        offsets: dict[Place, list[int]] = {}
        for message in received:
            error = message.error()
            place = str(message.topic()), int(message.partition() or 0)
            offset = int(message.offset() or 0)
            if error is None:
                offsets.setdefault(place, []).append(offset)
                self.next[place] = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF and place in self.next:
                self.next[place] = max(self.next[place], offset)
                self.unread.discard(place)
            elif error.fatal():
                raise KafkaException(error)
        self.unread = {place for place in self.unread if self.next[place] < self.measured[place]}
        if offsets:
            stable = self._stable(offsets)
            for place, received_offsets in offsets.items():
                for first, last in runs(received_offsets):
                    self._add(poll, place, first, last, stable[place])

    def _stable(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return the current last stable offsets."""
        partitions = set(places)
        topics = sorted({topic for topic, _ in partitions})
        bounds = {topic: self.cluster.bounds(topic) for topic in topics}
        every = {(topic, p.partition): p.lso for topic in topics for p in bounds[topic].partitions}
        return {place: every[place] for place in partitions}

    def _add(self, poll: int, place: Place, first: int, last: int, lso: int) -> None:
        at_ms = int(time.time() * 1000)
        self.rows.append(
            Polled(place[0], self.session, poll, self.count, at_ms, place[1], first, last, lso)
        )
        self.count += 1

    def _keep(self) -> None:
        if not self.rows:
            return
        table = pa.Table.from_pylist([row._asdict() for row in self.rows], SCHEMA)
        path = self.folder / f"{self.session}-{self.kept:06}.parquet"
        unfinished = path.with_suffix(".part")
        pq.write_table(table, unfinished)
        unfinished.rename(path)
        self.rows, self.kept = [], self.kept + 1


def runs(offsets: list[int]) -> list[tuple[int, int]]:
    """Return offsets, in order of receipt, as ranges (first, last)."""
    ranges: list[list[int]] = []
    for offset in offsets:
        if ranges and offset == ranges[-1][1] + 1:
            ranges[-1][1] = offset
        else:
            ranges.append([offset, offset])
    return [(first, last) for first, last in ranges]


def read_account(folder: Path, sinks: Bounds) -> pa.Table | None:
    """Read what was polled from the sinks, by consecutive partition numbers
    (validators/merged_topics.py). None without a reader."""
    files = sorted(folder.glob("*.parquet"))
    if not files:
        return None
    every = pa.concat_tables([pq.read_table(file) for file in files])
    parts: list[Any] = []
    for sink, first in split(sinks):
        part = every.filter(pc.field("topic") == sink.topic)
        place = part.schema.get_field_index("partition")
        parts.append(part.set_column(place, "partition", pc.add(part["partition"], first)))
    return pa.concat_tables(parts).drop_columns(["topic"])
