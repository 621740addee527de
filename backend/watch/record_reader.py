"""Reads the records of a watched pair: which input each names, and what identifies it.

They are received by a consumer, or decoded from the raw log where a consumer would decompress a
batch that nobody reads.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message

from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.client_configs import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    READER_FETCH_BYTES,
    FetchLimits,
    fetch_limits,
)
from topicproof.backend.kafka.consumers import is_undecodable
from topicproof.backend.kafka.log.inflation import (
    UnreadableBatch,
    fetch_bytes,
    largest_client_ratio,
)
from topicproof.backend.kafka.log.rawlog import Connection
from topicproof.backend.kafka.raw_records import RawRecord, raw_records
from topicproof.backend.kafka.reading import NotText, as_bytes, headers_in, open_consumer, receive
from topicproof.backend.watch.identities import digest, numbers_of
from topicproof.backend.watch.pair_reader import (
    INFLATED_AT_ONCE,
    LogSpan,
    ReadSizes,
    emptied,
    read_sizes,
    visible_batches,
    with_unreadable,
)
from topicproof.validators.finding import Bounds
from topicproof.validators.increments.watched_pair import (
    NO_PARTITION,
    NO_ROWS,
    SinkRows,
    rows_together,
)
from topicproof.validators.lineage.compact import (
    BYTES_MAX,
    COMPACT_HEADER,
    OFFSET_AT,
    PLACE_BYTES,
    parse_compact,
)
from topicproof.validators.lineage.headers import LINEAGE_HEADER, parse_lineage

PENDING_OFFSETS_MAX = 200_000
"""Offsets at and above the last stable ones in which late outputs are looked for."""
PENDING_BYTES_MAX = 32_000_000
"""Of them after decompression, that are read at once. The rest waits for the next look."""
PENDING_STEP_MIN = 100
"""Offsets of these that are read at first, before it is known how large they are."""
RECORDS_AT_ONCE = 200_000
"""No further partition is read behind so many records. What is known of each takes some 100
bytes."""
KNOWN_HEADERS_MAX = 10_000
CACHED_BYTES_MAX = 1_000
"""A longer header is parsed each time: many of them would take much memory."""
NAMESAKE, UNREADABLE = -3, -4
"""In place of `source_partition`: the input is of another topic of the source's name; the headers
cannot be read, because a name among them is not UTF-8."""


@dataclass(frozen=True)
class MatchTerms:
    """What identifies an input: its lineage, or what both records hold (`Match`)."""

    by_key: bool
    source: str = "key"
    sink: str = "key"
    topic_id: str | None = None
    """Of the source."""


class RecordReader:
    """Reads the committed records of one topic: by librdkafka, or from the raw log where that
    cannot be."""

    def __init__(
        self, kafka: Connection, topic: str, batches: pa.Table, log: Sequence[LogSpan], turn: int
    ) -> None:
        self.kafka, self.topic = kafka, topic
        self.spans = within_memory(
            log, read_sizes(batches, (batch for span in log for batch in span.unreadable)), turn
        )
        self.limits = _limits(batches, [span.partition for span in log if span.is_raw])
        self._refused: list[UnreadableBatch] = []

    @property
    def log(self) -> list[LogSpan]:
        """The spans, with what proved to be unreadable while it was read, too."""
        batches = [*self._refused, *(batch for span in self.spans for batch in span.unreadable)]
        return with_unreadable(self.spans, batches)

    def messages(self) -> Iterator[Message | RawRecord]:
        """Yield the records of the spans' runs as they arrive, each partition's in their order.
        Whoever takes them keeps what identifies them alone: together they may be larger than the
        memory. Raises TopicError, ClusterError."""
        by_client = {span.partition: span.runs for span in self.spans if not span.is_raw}
        reached: dict[int, int] = {}
        is_failed = False
        try:
            for message in received(self.kafka, self.topic, by_client, self.limits, READ_COMMITTED):
                reached[message.partition() or 0] = (message.offset() or 0) + 1
                yield message
        except ClusterError as error:
            if not is_undecodable(error):
                raise
            is_failed = True
        for span in self.spans:
            if span.is_raw or is_failed:
                lasts = visible_batches(span) - {batch.last for batch in span.unreadable}
                for first, end in span.runs:
                    yield from raw_records(
                        self.kafka,
                        self.topic,
                        span.partition,
                        (max(first, reached.get(span.partition, 0)), end),
                        partial(_is_among, lasts),
                        self._refused.append,
                    )


def within_memory(log: Sequence[LogSpan], sizes: ReadSizes, turn: int) -> list[LogSpan]:
    """Return the spans as far as they have `RECORDS_AT_ONCE` records and `INFLATED_AT_ONCE` bytes
    together, the others empty. A span is longer than its share if a batch is, and there may be
    hundreds of partitions. `sizes`: of their batches. `turn`: by how many partitions the first that
    is read moves on, so that each has its turn."""
    first = turn % max(1, len(log))
    spans, records, inflated = list(log), RECORDS_AT_ONCE, INFLATED_AT_ONCE
    for number in (*range(first, len(log)), *range(first)):
        span = log[number]
        if min(records, inflated) <= 0:
            spans[number] = emptied(span)
            continue
        records -= int(span.rows["count"].sum())
        inflated -= int(sizes.of(span.partition, span.end)[1].sum())
    return spans


def _is_among(lasts: frozenset[int], row: Any) -> bool:
    return int(row["last_offset"]) in lasts


def _limits(batches: pa.Table, raw: Sequence[int]) -> FetchLimits:
    """Return the limits of a consumer that reads some batches, but not those of the partitions that
    are read raw."""
    is_raw = pc.is_in(batches["partition"], pa.array(raw, pa.int32()))
    ratio = largest_client_ratio(batches.filter(pc.invert(is_raw)))
    # Nothing ahead: what lies behind these batches was not measured.
    return fetch_limits(min(fetch_bytes(ratio, READER_FETCH_BYTES), READER_FETCH_BYTES - 1))


def received(
    kafka: Connection,
    topic: str,
    runs: Mapping[int, Sequence[tuple[int, int]]],
    limits: FetchLimits,
    isolation: str,
) -> Iterator[Message]:
    """Yield the records of runs of offsets [first, end) that a consumer receives. Raises
    TopicError, ClusterError."""
    rounds = max(map(len, runs.values()), default=0)
    if not rounds:
        return
    with open_consumer(kafka.address, topic, isolation, limits) as consumer:
        for number in range(rounds):
            spans = {p: of[number] for p, of in runs.items() if number < len(of)}
            yield from receive(consumer, topic, spans)


class PlaceReader:
    """Reads which input each record of the sink names."""

    def __init__(self, topic: str, match: MatchTerms) -> None:
        self.topic, self.match = topic, match
        self.headers: dict[bytes, tuple[int, int]] = {}
        """Partition and output index by a header without its offset: few differ in more."""

    def rows(self, messages: Iterable[Message | RawRecord]) -> SinkRows:
        """Return what the records name, by partition and offset as they come."""
        places = array("q")
        digests = bytearray()
        by_key = self.match.by_key
        for message in messages:
            place, identity = (NO_PARTITION, 0, 0), None
            try:
                if by_key:
                    identity = held(message, self.match.sink)
                else:
                    place = self.place(message)
            except NotText:
                place = (UNREADABLE, 0, 0)
            _, timestamp_ms = message.timestamp()
            places.extend((message.partition() or 0, message.offset() or 0, timestamp_ms, *place))
            digests += digest(identity)
        table = np.frombuffer(places, np.int64).reshape(-1, 6)
        columns = (*numbers_of(digests), np.ones(len(table), np.int64))
        return SinkRows(*np.column_stack((table, *columns)).T)

    def place(self, message: Message | RawRecord) -> tuple[int, int, int]:
        """Return partition, offset and output index. Raises NotText if its headers cannot be
        read."""
        last = None
        for header in headers_in(message):
            if header[0] == COMPACT_HEADER or header[0] == LINEAGE_HEADER:
                last = header
        if last is None:
            return NO_PARTITION, 0, 0
        name, value = last[0], as_bytes(last[1])
        if name == LINEAGE_HEADER or value is None or len(value) < PLACE_BYTES:
            lineage = parse_lineage(value) if name == LINEAGE_HEADER else None
            if lineage is None or lineage.topic != self.topic:
                return NO_PARTITION, 0, 0
            return lineage.partition, lineage.offset, lineage.output_index
        if len(value) > BYTES_MAX:
            return NO_PARTITION, 0, 0
        offset = int.from_bytes(value[OFFSET_AT : OFFSET_AT + 8], "big", signed=True)
        alike = value[:OFFSET_AT] + value[OFFSET_AT + 8 :]
        place = self.headers.get(alike)
        if place is None:
            place = self._place_of(value)
            if len(self.headers) >= KNOWN_HEADERS_MAX:
                self.headers.clear()
            if len(alike) <= CACHED_BYTES_MAX:
                self.headers[alike] = place
        number, index = place
        return (number, offset, index) if offset >= 0 else (NO_PARTITION, 0, 0)

    def _place_of(self, value: bytes) -> tuple[int, int]:
        # Whether its offset is valid is not what the next record with the same rest asks.
        origin = parse_compact(value[:OFFSET_AT] + bytes(8) + value[OFFSET_AT + 8 :])
        if origin is None or origin.lineage.topic != self.topic:
            return NO_PARTITION, 0
        if origin.topic_id not in (None, self.match.topic_id or origin.topic_id):
            return NAMESAKE, 0
        return origin.lineage.partition, origin.lineage.output_index


def held(message: Message | RawRecord, by: str) -> bytes | None:
    """Return what identifies a record (`Match`). Raises NotText if its headers cannot be read."""
    carrier, _, name = by.partition(":")
    if carrier == "header":
        last = None
        for key, value in headers_in(message):
            last = as_bytes(value) if key == name else last
        return last
    return as_bytes(message.key() if carrier == "key" else message.value())


class WithheldRows:
    """The records of a topic that an open transaction, or one before them, still withholds. Each
    of them is received once."""

    def __init__(self) -> None:
        self.rows = NO_ROWS
        self.unread: dict[tuple[int, int], int] = {}
        """Records of batches that nobody reads, by partition and last offset."""
        self.ends: dict[int, int] = {}
        """Up to where they were received, by partition."""

    def read(
        self,
        kafka: Connection,
        places: PlaceReader,
        log: Sequence[LogSpan],
        bounds: Bounds,
    ) -> SinkRows | None:
        """Return what the records name. None if there are too many, or if not all of them were
        received yet. Raises ClusterError, and kafka-python's errors."""
        reached = {span.partition: span.end for span in log}
        firsts = {p.partition: reached.get(p.partition, p.lso) for p in bounds.partitions}
        self._forget(firsts, bounds)
        if sum(p.hw - firsts[p.partition] for p in bounds.partitions) > PENDING_OFFSETS_MAX:
            return None
        left = PENDING_BYTES_MAX
        for p in bounds.partitions:
            first = max(firsts[p.partition], self.ends.get(p.partition, 0))
            step = PENDING_STEP_MIN
            while first < p.hw:
                if left <= 0:
                    return None
                whole = replace(p, start=first)
                part = replace(whole, hw=min(p.hw, first + step))
                refused: list[UnreadableBatch] = []
                batches = kafka.scan(
                    bounds.topic,
                    Bounds(bounds.topic, (part,)),
                    part_of=Bounds(bounds.topic, (whole,)),
                    readable=True,
                    on_unreadable=refused.append,
                )
                until = part.hw
                if batches.num_rows:
                    until = max(until, pc.max(batches["last_offset"]).as_py() + 1)
                span = (first, until)
                rows = (
                    self._read_raw(kafka, places, bounds.topic, p.partition, span, refused)
                    if refused
                    else self._receive(kafka, places, bounds.topic, p.partition, span, batches)
                )
                self.rows = rows_together((self.rows, rows))
                self.ends[p.partition] = first = until
                size = int(np.asarray(batches["inflated"]).sum())
                left -= size
                step *= 4 if size < PENDING_BYTES_MAX // 16 else 1
        return self.rows

    def _receive(
        self,
        kafka: Connection,
        places: PlaceReader,
        topic: str,
        partition: int,
        span: tuple[int, int],
        batches: pa.Table,
    ) -> SinkRows:
        """Return what the records of a span name. `batches`: those of the span."""
        if not batches.num_rows:
            return NO_ROWS
        limits = _limits(batches, ())
        try:
            return places.rows(
                received(kafka, topic, {partition: [span]}, limits, READ_UNCOMMITTED)
            )
        except ClusterError as error:
            if not is_undecodable(error):
                raise
            return self._read_raw(kafka, places, topic, partition, span, [])

    def _read_raw(
        self,
        kafka: Connection,
        places: PlaceReader,
        topic: str,
        partition: int,
        span: tuple[int, int],
        refused: list[UnreadableBatch],
    ) -> SinkRows:
        """Return what the records of a span name, but for the batches that nobody reads."""
        lasts = {batch.last for batch in refused}
        rows = places.rows(
            raw_records(
                kafka,
                topic,
                partition,
                span,
                lambda row: int(row["last_offset"]) not in lasts,
                refused.append,
            )
        )
        self.unread |= {(batch.partition, batch.last): batch.records for batch in refused}
        return rows

    def _forget(self, firsts: Mapping[int, int], bounds: Bounds) -> None:
        """Forget what is decided by now, and all of a partition whose log became shorter."""
        for p in bounds.partitions:
            if self.ends.get(p.partition, 0) > p.hw:
                del self.ends[p.partition]
        numbers = self.rows.partition.tolist()
        first = np.array([firsts.get(number, 0) for number in numbers], np.int64)
        end = np.array([self.ends.get(number, 0) for number in numbers], np.int64)
        self.rows = self.rows.take((self.rows.offset >= first) & (self.rows.offset < end))
        self.unread = {
            (number, last): records
            for (number, last), records in self.unread.items()
            if firsts.get(number, 0) <= last < self.ends.get(number, 0)
        }
