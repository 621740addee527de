"""A read_committed reader that runs alongside the pipeline and records its polls: the witness of
timely reads.

It belongs to no group, starts at the end of the existing sinks, and advances only by polling. After
each poll it asks for the last stable offsets of the partitions received. Its account goes into the
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
from topicproof.backend.kafka.client_configs import READ_COMMITTED, consumer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.validators.finding import Bounds
from topicproof.validators.merged_topics import split

log = logging.getLogger(__name__)

FOLDER = "reader"
"""Folder of the account in the run's folder."""
KEEP_S = 2.0
CATCH_UP_S = 20.0
"""Seconds that the reader may take after the pipeline to receive all stable records."""
POLL_RECORDS = 10_000
POLL_S = 0.2


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
        self.rows: list[Polled] = []
        self.count = 0
        self.kept = 0

    def read(self, stop: threading.Event) -> None:
        """Read until `stop`, then until all stable records are received. An error ends the session
        but not the run: the account keeps the records received until then."""
        self.folder.mkdir(parents=True, exist_ok=True)
        group = f"{self.session}-reader"
        consumer = Consumer(consumer_config(self.cluster.address, group, READ_COMMITTED))
        try:
            self._read(consumer, stop)
        except (KafkaException, TopicproofError) as error:
            log.warning("The reader of the sinks ended early: %s", error)
        finally:
            consumer.close()
            self._keep()

    def _read(self, consumer: Consumer, stop: threading.Event) -> None:
        consumer.assign(
            [
                TopicPartition(topic, partition, offset)
                for (topic, partition), offset in self.begin.items()
            ]
        )
        stable = self._stable(self.begin)
        for (topic, partition), offset in self.begin.items():
            self._add(0, (topic, partition), offset, offset - 1, stable[topic, partition])
        ends: dict[Place, int] = {}
        reached: dict[Place, int] = {}
        deadline, kept_at, poll = 0.0, time.monotonic(), 0
        while True:
            if stop.is_set() and not deadline:
                ends, deadline = self._stable(self.begin), time.monotonic() + CATCH_UP_S
            if deadline and all(reached.get(place, -1) >= end for place, end in ends.items()):
                return
            if deadline and time.monotonic() > deadline:
                return
            poll += 1
            received = consumer.consume(POLL_RECORDS, POLL_S)
            for place, offset in self._hear(poll, received):
                reached[place] = max(reached.get(place, -1), offset)
            if time.monotonic() - kept_at > KEEP_S:
                self._keep()
                kept_at = time.monotonic()

    def _hear(self, poll: int, received: list[Message]) -> Iterator[tuple[Place, int]]:
        """Record a poll. Yields each partition whose end it reached, with the offset."""
        offsets: dict[Place, list[int]] = {}
        for message in received:
            error = message.error()
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF and topic is not None:
                    yield (topic, partition or 0), offset or 0
                elif error.fatal():
                    raise KafkaException(error)
                continue
            offsets.setdefault((str(topic), int(partition or 0)), []).append(int(offset or 0))
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
