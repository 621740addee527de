"""Searches for records of a topic: a bounded search that reports where it stopped, and the newest
records.

The raw log's ranges determine the fate of an offset. So one read at read_uncommitted is enough, and
a search for a fate skips all other ranges without reading them.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush

import pandas as pd
import pyarrow as pa
from confluent_kafka import OFFSET_END, Consumer, Message, TopicPartition

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, RecordTooLarge, TopicError
from topicproof.backend.formats.frames import SCHEMA_HEADERS
from topicproof.backend.kafka import client_configs
from topicproof.backend.kafka.browse.field_conditions import Condition, Decode, all_hold
from topicproof.backend.kafka.browse.readable import Suspects, reader_limits, require_readable_spans
from topicproof.backend.kafka.browse.records import Headers, headers_of, shorten_headers
from topicproof.backend.kafka.consumers import GROUP, offset_consumer, reading_errors
from topicproof.backend.kafka.log.fates import DATA_FATES
from topicproof.backend.kafka.partitioner import partition_of
from topicproof.backend.kafka.reading import (
    RECORD_BYTES,
    RecordBudget,
    as_bytes,
    content_bytes,
    open_consumer,
    read_range,
)
from topicproof.validators.finding import Bounds, Fate, PartitionBounds

FOUND_MAX = 200
SHARE_MIN = 10
"""At least this many records of a partition are shown, however many partitions there are."""
SCAN_OFFSETS_MAX = 200_000
SCAN_BYTES_MAX = 64_000_000
"""What a search reads: the content of records, and the batches that are measured before."""
SUSPECTS_AT_ONCE = 8
"""Batches that may be too large to read are measured, so many before what is between is read."""
ROWS_BYTES_MAX = 64_000_000
"""What the records that a search has found may take together, before it goes on."""
SCAN_S_MAX = 10.0
KEPT_BYTES_MAX = 1_000_000
"""Longer keys, values and headers are cut; a single record can be fetched whole."""
LATEST_S_MAX = 5.0
LATEST_KEPT_BYTES_MAX = 1_000
"""The same limit for the newest records: many, only listed, and read repeatedly."""
HEADERS_KEPT_BYTES_MIN = 20_000
"""What the headers of one record may take together, if each may take less."""
LATEST_BYTES_MAX = 128_000_000
"""What the newest records may take together. Of larger ones fewer are kept."""
TOLD_EVERY = 5_000
WINDOW_OFFSETS = 10_000
"""A search that begins with the newest records reads this many offsets at a time."""
DECODED_WINDOW_OFFSETS = 1_000
"""The same where values are decoded, so a window is searched whole within the time."""
SKIPPED_MIN = 2_000
"""A stretch of other fates with at least this many offsets is skipped by a new fetch. Reading a
shorter one is faster."""


Text = Callable[[bytes, Headers], str | None]
"""Decodes a record's value to one line of JSON; None if it is unknown how."""


class Stop(StrEnum):
    """Why a search ended."""

    END = "END"
    FOUND = "FOUND"
    OFFSETS = "OFFSETS"
    BYTES = "BYTES"
    TIME = "TIME"


@dataclass(frozen=True)
class RecordQuery:
    """A query for records: bytes that must occur, ignoring case in ASCII. Empty matches
    anything."""

    key: bytes = b""
    value: bytes = b""
    header: bytes = b""
    """Must occur in `name=value` of a header."""
    fates: tuple[Fate, ...] = ()
    where: tuple[Condition, ...] = ()
    """Conditions on fields, which need a `Decode`."""

    @property
    def is_of_content(self) -> bool:
        """Whether it asks for anything that is in a record."""
        return bool(self.key or self.value or self.header or self.where)

    def fits(
        self, message: Message, text: Text | None = None, decode: Decode | None = None
    ) -> bool | None:
        """Whether a record matches. With `text` its value matches by its decoded text too. None: it
        is not known, because `where` asks for a field of what is not decoded."""
        if not _occurs(self.key, message.key()):
            return False
        if not (self.value or self.header or self.where):
            return True
        headers = headers_of(message)
        named = (_header_bytes(name, value) for name, value in headers)
        if self.header and not any(_occurs(self.header, header) for header in named):
            return False
        value = as_bytes(message.value())
        if not _occurs(self.value, value) and not (
            text is not None and value is not None and _occurs(self.value, text(value, headers))
        ):
            return False
        if not self.where or decode is None:
            return True
        return all_hold(self.where, as_bytes(message.key()), value, headers, decode)


ANYTHING = RecordQuery()


@dataclass(frozen=True)
class Row:
    """A record. Its key, value and headers are cut if very long: `KEPT_BYTES_MAX` in a search."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    size: int
    """Uncompressed bytes of key, value and headers, before cutting."""
    fate: Fate
    producer_id: int | None
    cut: frozenset[str] = frozenset()
    """Which of `key` and `value` are cut."""

    @property
    def kept_bytes(self) -> int:
        """What it takes in memory."""
        return RECORD_BYTES + content_bytes(self.key, self.value, self.headers)


@dataclass(frozen=True)
class Search:
    """The result of a search between `first` and `reached`."""

    rows: tuple[Row, ...]
    first: int
    reached: int
    """Every record between `first` and here was searched. The next search begins here."""
    end: int
    """Where the whole search ends. Below `first` if the newest records come first."""
    stop: Stop
    unread_at: tuple[int, ...] = ()
    """The offsets of records that the search covered, and of which it is not known whether they
    match: what it asks for is not decoded."""

    @property
    def unread(self) -> int:
        """Number of these."""
        return len(self.unread_at)

    @property
    def kept_bytes(self) -> int:
        """What its rows take in memory."""
        return sum(row.kept_bytes for row in self.rows)

    @property
    def searched(self) -> int:
        """Number of offsets searched."""
        return abs(self.reached - self.first)

    @property
    def offsets(self) -> int:
        """Number of offsets of the whole search."""
        return abs(self.end - self.first)


def search(
    address: Address,
    bounds: Bounds,
    ranges: pd.DataFrame,
    partition: int,
    first: int,
    query: RecordQuery,
    on_progress: Callable[[int, int], None] = lambda _offsets, _found: None,
    newest: bool = False,
    found_max: int | None = None,
    text: Text | None = None,
    end: int | None = None,
    decode: Decode | None = None,
) -> Search:
    """Return the matching records of a partition from `first` on, up to `end` (the high watermark),
    `found_max` (`FOUND_MAX`) or another limit.

    With `newest` the search goes from below `first` down to `end` (the log start). `ranges` are the
    `fates.fate_ranges` of `bounds`. `on_progress` is called regularly with the numbers of offsets
    searched and records found. With `text` a value matches by its decoded text too, and `decode`
    is for the conditions of the query. Raises TopicError when the partition is missing or its
    records were deleted meanwhile, ClusterError when nothing arrives in time.
    """
    p = _of(bounds, partition)
    first = min(max(first, p.start), p.hw)
    low, high = (p.start, first) if newest else (first, p.hw)
    end = (low if newest else high) if end is None else min(max(end, low), high)
    text = text if query.value else None
    decode = decode if query.where else None
    deadline = time.monotonic() + SCAN_S_MAX
    suspects = Suspects(address, bounds.topic, ranges, partition)
    fates = _Fates(ranges, partition)
    task = _SearchTask(bounds.topic, partition, fates, query, on_progress, suspects, text, decode)
    found_max = FOUND_MAX if found_max is None else found_max
    level, limits = client_configs.READ_UNCOMMITTED, reader_limits(ranges)
    with closing(suspects), open_consumer(address, bounds.topic, level, limits) as consumer:
        if newest:
            return _downwards(consumer, task, first, end, found_max, deadline)
        result = _upwards(consumer, task, first, end, found_max, deadline)
    if result.stop is Stop.TIME and result.reached == first:
        raise _nothing_came(task, first)
    return result


def search_all(
    address: Address,
    bounds: Bounds,
    ranges: pd.DataFrame,
    query: RecordQuery,
    on_progress: Callable[[int, int], None] = lambda _offsets, _found: None,
    newest: bool = False,
    text: Text | None = None,
    first: Mapping[int, int] | None = None,
    end: Mapping[int, int] | None = None,
    decode: Decode | None = None,
) -> dict[int, Search]:
    """Search every partition, each with the limits of `search`, as long as there is time and
    `FOUND_MAX` records, or `ROWS_BYTES_MAX` bytes of them, are not found.

    The partition of the query's key comes first. If the query wants nothing in particular, or the
    newest records, each partition gives its share of `FOUND_MAX`. `first` and `end` are those of
    `search` for each partition; None: all of it. `first` also names the partitions to search, in
    their order.

    Returns the partitions that were searched, in that order. Raises the same errors as `search`.
    """
    searches: dict[int, Search] = {}
    deadline = time.monotonic() + SCAN_S_MAX
    share = FOUND_MAX
    partitions = key_first(bounds, query.key) if first is None else list(first)
    if newest or not query.is_of_content:
        share = max(SHARE_MIN, FOUND_MAX // max(1, len(partitions)))
    for partition in partitions:
        rows = sum(len(result.rows) for result in searches.values())
        offsets = sum(result.searched for result in searches.values())
        kept_bytes = sum(result.kept_bytes for result in searches.values())
        is_full = rows >= FOUND_MAX or kept_bytes > ROWS_BYTES_MAX
        if searches and (is_full or time.monotonic() > deadline):
            break
        p = _of(bounds, partition)
        begin = (p.hw if newest else p.start) if first is None else first[partition]
        last = None if end is None else end[partition]

        def on_partition_progress(
            more: int, hits: int, offsets: int = offsets, rows: int = rows
        ) -> None:
            on_progress(offsets + more, rows + hits)

        searches[partition] = search(
            address,
            bounds,
            ranges,
            partition,
            begin,
            query,
            on_progress=on_partition_progress,
            newest=newest,
            found_max=share,
            text=text,
            end=last,
            decode=decode,
        )
    return searches


def key_first(bounds: Bounds, key: bytes) -> list[int]:
    """Return the topic's partitions, beginning with the one where Kafka's default partitioner puts
    the key."""
    partitions = [p.partition for p in bounds.partitions]
    if not key or len(partitions) < 2:
        return partitions
    home = partition_of(key, len(partitions))
    return sorted(partitions, key=lambda partition: (partition != home, partition))


@dataclass(frozen=True)
class _SearchTask:
    """A search of one partition."""

    topic: str
    partition: int
    fates: _Fates
    query: RecordQuery
    on_progress: Callable[[int, int], None]
    suspects: Suspects
    text: Text | None = None
    decode: Decode | None = None

    @property
    def decodes(self) -> bool:
        return self.text is not None or self.decode is not None

    def fits(self, message: Message) -> bool | None:
        fate, _producer = self.fates.of(message.offset() or 0)
        if fate not in (self.query.fates or DATA_FATES):
            return False
        return self.query.fits(message, self.text, self.decode)


def _upwards(
    consumer: Consumer, task: _SearchTask, first: int, end: int, found_max: int, deadline: float
) -> Search:
    """Search from `first` up to `end`, or to a batch that is too large to read. Raises
    RecordTooLarge if it begins with that batch."""
    spans, last = _bounded(task.fates.spans(first, end, task.query.fates), end)
    scan = _Scan(consumer, task, first, end, found_max, deadline)
    for low, high in spans:
        while low < high:
            if scan.at > first and (spent := scan.spent()) is not None:
                return scan.ended(spent)
            # What is measured is read at once: a partition may have thousands of such batches.
            part = task.suspects.readable(low, high, SUSPECTS_AT_ONCE, scan.is_spent)
            if part.refusal is not None and part.end <= first:
                raise part.refusal
            scan.bytes += part.measured_bytes
            stop = scan.read(low, part.end)
            if stop is None and part.refusal is not None:
                stop = Stop.OFFSETS
            if stop is not None:
                return scan.ended(stop)
            low = part.end
    scan.at = last
    return scan.ended(Stop.OFFSETS)


class _Scan:
    """One search from `first` upwards: where it is, and what it has read and found."""

    def __init__(
        self,
        consumer: Consumer,
        task: _SearchTask,
        first: int,
        end: int,
        found_max: int,
        deadline: float,
    ) -> None:
        self.consumer, self.task, self.first, self.end = consumer, task, first, end
        self.found_max, self.deadline = found_max, deadline
        self.at = first
        """Everything below was searched."""
        self.rows: list[Row] = []
        self.unread: list[int] = []
        self.held = RecordBudget(ROWS_BYTES_MAX)
        self.bytes = self.records = 0

    def spent(self, measured_bytes: int = 0) -> Stop | None:
        """Return what is spent, its bytes or its time. `measured_bytes`: what was measured since it
        last read."""
        if self.bytes + measured_bytes > SCAN_BYTES_MAX:
            return Stop.BYTES
        return Stop.TIME if time.monotonic() > self.deadline else None

    def is_spent(self, measured_bytes: int) -> bool:
        return self.spent(measured_bytes) is not None

    def ended(self, stop: Stop) -> Search:
        stop = Stop.END if self.at == self.end else stop
        return Search(tuple(self.rows), self.first, self.at, self.end, stop, tuple(self.unread))

    def read(self, low: int, high: int) -> Stop | None:
        """Search the offsets [low, high). Returns why it ended before, if so."""
        task = self.task
        self.at = low
        for message in read_range(self.consumer, task.topic, {task.partition: (low, high)}):
            if message is None:
                if time.monotonic() > self.deadline:
                    return Stop.TIME
                continue
            self.at = (message.offset() or 0) + 1
            if (stop := self._take(message)) is not None:
                return stop
        self.at = high
        return None

    def _take(self, message: Message) -> Stop | None:
        """Look at a record. Returns why the search ends with it, if so."""
        fits = self.task.fits(message)
        self.records += 1
        self.bytes += content_bytes(as_bytes(message.key()), as_bytes(message.value()))
        self.bytes += shorten_headers(message)
        if fits:
            row = _row(message, self.task.fates)
            self.held.hold(row.key, row.value, row.headers)
            self.rows.append(row)
        if fits is None:
            self.unread.append(message.offset() or 0)
        if len(self.rows) == self.found_max:
            return Stop.FOUND
        if self.bytes > SCAN_BYTES_MAX or self.held.is_spent:
            return Stop.BYTES
        regular = self.records % TOLD_EVERY == 0
        if regular:
            self.task.on_progress(self.at - self.first, len(self.rows))
        # Decoding may take milliseconds a record.
        if (regular or self.task.decodes) and time.monotonic() > self.deadline:
            return Stop.TIME
        return None


def _downwards(
    consumer: Consumer, task: _SearchTask, first: int, end: int, found_max: int, deadline: float
) -> Search:
    """Search from below `first` down to `end`, a window at a time. A window that could not be
    searched whole is left to the next search."""
    rows: list[Row] = []
    reached, stop, kept_bytes = first, Stop.END, 0
    unread: list[int] = []
    size = DECODED_WINDOW_OFFSETS if task.decodes else WINDOW_OFFSETS
    while reached > end and stop is Stop.END:
        low = task.suspects.last_few(max(end, reached - size), reached, SUSPECTS_AT_ONCE)
        try:
            window = _upwards(consumer, task, low, reached, size + 1, deadline)
        except RecordTooLarge:
            if reached == first:
                raise
            return Search(tuple(rows), first, reached, end, Stop.OFFSETS, tuple(unread))
        if window.reached < reached:
            if window.stop is Stop.TIME and window.reached == low and reached == first:
                raise _nothing_came(task, low)
            if window.stop is Stop.TIME or size == 1:
                return Search(tuple(rows), first, reached, end, window.stop, tuple(unread))
            if window.stop is Stop.OFFSETS:
                # It ends before a batch that is too large to read: the next one begins behind.
                size = max(1, reached - window.reached - 1)
            else:
                # Its records are too large for one window.
                size = max(1, min(size, reached - low) // 10)
            continue
        rows += reversed(window.rows)
        kept_bytes += window.kept_bytes
        reached = low
        task.on_progress(first - reached, len(rows))
        if len(rows) >= found_max:
            # The next search begins below the last record that is shown.
            del rows[found_max:]
            reached = rows[-1].offset
            unread += (offset for offset in window.unread_at if offset > reached)
            stop = Stop.FOUND
            break
        unread += window.unread_at
        if kept_bytes > ROWS_BYTES_MAX or task.suspects.measured_bytes > SCAN_BYTES_MAX:
            stop = Stop.BYTES
        elif first - reached >= SCAN_OFFSETS_MAX:
            stop = Stop.OFFSETS
        elif time.monotonic() > deadline:
            stop = Stop.TIME
    return Search(
        tuple(rows), first, reached, end, Stop.END if reached == end else stop, tuple(unread)
    )


def offsets_at(
    address: Address, bounds: Bounds, partitions: Sequence[int], timestamp_ms: int
) -> dict[int, int]:
    """Find the first offset with a record of that time or later in each partition; the high
    watermark if there is none.

    Raises TopicError for a missing partition, ClusterError when the broker does not answer.
    """
    partition_bounds = [_of(bounds, partition) for partition in partitions]
    with (
        reading_errors(address, bounds.topic),
        closing(offset_consumer(address, GROUP, client_configs.READ_UNCOMMITTED)) as consumer,
    ):
        answers = consumer.offsets_for_times(
            [TopicPartition(bounds.topic, p.partition, timestamp_ms) for p in partition_bounds],
            timeout=client_configs.REQUEST_TIMEOUT_MS / 1000,
        )
    for answer in answers:
        if answer.error is not None:
            raise ClusterError(
                f"{bounds.topic}-{answer.partition}: the offset of a time is unknown:"
                f" {answer.error.str()}."
            )
    offsets = {answer.partition: answer.offset for answer in answers}
    return {
        p.partition: p.hw
        if offsets[p.partition] == OFFSET_END
        else min(max(offsets[p.partition], p.start), p.hw)
        for p in partition_bounds
    }


def latest(
    address: Address,
    bounds: Bounds,
    ranges: pd.DataFrame,
    isolation: str,
    count: int,
    bytes_max: int = LATEST_KEPT_BYTES_MAX,
    seconds: float = LATEST_S_MAX,
    query: RecordQuery = ANYTHING,
    text: Text | None = None,
) -> tuple[Row, ...]:
    """Return the newest records of all partitions that a consumer at this level receives, newest
    first; with `query`, only those of them that match.

    Each key, value and header is cut to `bytes_max` bytes, and what they take together is limited
    by `LATEST_BYTES_MAX`: then fewer are returned. The records must arrive within `seconds`.
    `ranges` are the `fates.fate_ranges` of `bounds`. With `text` a value matches by its decoded
    text too. Raises the same errors as `search`.
    """
    committed = isolation == client_configs.READ_COMMITTED
    readable = (Fate.COMMITTED,) if committed else DATA_FATES
    by_partition = {p.partition: _Fates(ranges, p.partition) for p in bounds.partitions}
    spans = {}
    for p in bounds.partitions:
        end = p.lso if committed else p.hw
        low = by_partition[p.partition].last(readable, count)
        if low is not None and low < end:
            spans[p.partition] = low, end
    newest = _NewestRows(count)
    deadline = time.monotonic() + seconds
    late = ClusterError(
        f"The newest records of {bounds.topic} did not come within {seconds:.0f} s. Check that its"
        " brokers answer."
    )
    if not require_readable_spans(address, bounds.topic, ranges, spans, _is_past(deadline)):
        raise late
    with open_consumer(address, bounds.topic, isolation, reader_limits(ranges)) as consumer:
        for message in read_range(consumer, bounds.topic, spans):
            if message is not None:
                fits = bool(query.fits(message, text))
                # Cut at once: thousands of whole records may not fit into memory.
                shorten_headers(message)
                row = _row(message, by_partition[message.partition() or 0], bytes_max)
                newest.add(row, fits=fits)
            if time.monotonic() > deadline:
                raise late
    return newest.rows()


def _is_past(deadline: float) -> Callable[[int], bool]:
    return lambda _measured_bytes: time.monotonic() > deadline


class _NewestRows:
    """The newest records of all partitions: at most so many, within `LATEST_BYTES_MAX`."""

    def __init__(self, count: int) -> None:
        self.count, self.budget = count, RecordBudget(LATEST_BYTES_MAX)
        self.heap: list[tuple[tuple[int, int, int], Row | None]] = []
        """The oldest first. None for one that the query does not want: it counts all the same."""
        self.newest_gone = (-1, -1, -1)
        """Nothing older than what had to go is taken in its place."""

    def add(self, row: Row, *, fits: bool) -> None:
        at = row.timestamp_ms, row.offset, row.partition
        if at < self.newest_gone:
            return
        heappush(self.heap, (at, row if fits else None))
        if fits:
            self.budget.hold(row.key, row.value, row.headers)
        while len(self.heap) > self.count or self.budget.is_spent:
            self.newest_gone, oldest = heappop(self.heap)
            self.budget.release(oldest.kept_bytes if oldest else 0)

    def rows(self) -> tuple[Row, ...]:
        """Return those that the query wants, newest first."""
        ordered = sorted(self.heap, key=lambda entry: entry[0], reverse=True)
        return tuple(row for _at, row in ordered if row is not None)


def committed_chunks(
    address: Address,
    bounds: Bounds,
    ranges: pd.DataFrame,
    *,
    count: int,
    bytes_max: int,
    seconds: float,
    size: int,
) -> Iterator[tuple[tuple[Row, ...], bool]]:
    """Yield the committed records of all partitions, `size` at a time, or fewer that take
    `SCAN_BYTES_MAX`; at most the newest `count`; with each chunk, whether it ends all that the
    topic holds.

    No chunk ends it if the topic holds more than `count`, or if the time of `seconds` is over
    first. Keys, values and headers are cut to `bytes_max` bytes, and `ranges` are the
    `fates.fate_ranges` of `bounds`. Raises TopicError, ClusterError.
    """
    readable = (Fate.COMMITTED,)
    by_partition = {p.partition: _Fates(ranges, p.partition) for p in bounds.partitions}
    is_all = sum(fates.count(readable) for fates in by_partition.values()) <= count
    share = count if is_all else max(1, count // len(bounds.partitions))
    spans = {}
    for p in bounds.partitions:
        low = by_partition[p.partition].last(readable, share)
        if low is not None and low < p.lso:
            spans[p.partition] = low, p.lso
    rows: list[Row] = []
    budget = RecordBudget(SCAN_BYTES_MAX)
    deadline = time.monotonic() + seconds
    limits = reader_limits(ranges)
    if not require_readable_spans(address, bounds.topic, ranges, spans, _is_past(deadline)):
        yield (), False
        return
    with open_consumer(address, bounds.topic, client_configs.READ_COMMITTED, limits) as consumer:
        for message in read_range(consumer, bounds.topic, spans):
            if message is not None:
                shorten_headers(message)
                row = _row(message, by_partition[message.partition() or 0], bytes_max)
                budget.hold(row.key, row.value, row.headers)
                rows.append(row)
            if len(rows) == size or budget.is_spent:
                yield tuple(rows), False
                rows, budget = [], RecordBudget(SCAN_BYTES_MAX)
            if time.monotonic() > deadline:
                is_all = False
                break
    yield tuple(rows), is_all


class _Fates:
    """The fate ranges of one partition, for lookups by offset."""

    def __init__(self, ranges: pd.DataFrame, partition: int) -> None:
        rows = pa.Table.from_pandas(ranges[ranges["partition"] == partition], preserve_index=False)
        self.lows: list[int] = rows["first_offset"].to_pylist()
        self.highs: list[int] = rows["last_offset"].to_pylist()
        self.fates: list[Fate] = [Fate(fate) for fate in rows["fate"].to_pylist()]
        self.records: list[int] = rows["records"].to_pylist()
        self.producers: list[int | None] = rows["producer_id"].to_pylist()

    def of(self, offset: int) -> tuple[Fate, int | None]:
        """Return fate and producer id of an offset."""
        row = bisect_right(self.lows, offset) - 1
        return self.fates[row], self.producers[row]

    def spans(self, first: int, end: int, fates: Sequence[Fate]) -> list[tuple[int, int]]:
        """Return the spans within [first, end) that may hold records of these fates; without fates,
        everything."""
        if not fates:
            return [(first, end)] if first < end else []
        spans: list[tuple[int, int]] = []
        for low, high, fate, records in zip(
            self.lows, self.highs, self.fates, self.records, strict=True
        ):
            span = max(low, first), min(high + 1, end)
            if fate not in fates or not records or span[0] >= span[1]:
                continue
            if spans and span[0] - spans[-1][1] < SKIPPED_MIN:
                span = spans.pop()[0], span[1]
            spans.append(span)
        return spans

    def count(self, fates: Sequence[Fate]) -> int:
        """Count the records of these fates."""
        pairs = zip(self.fates, self.records, strict=True)
        return sum(records for fate, records in pairs if fate in fates)

    def last(self, fates: Sequence[Fate], count: int) -> int | None:
        """Return the offset where the last `count` records of these fates begin, estimated within
        the first range; None if there are none."""
        low = None
        for row in range(len(self.lows) - 1, -1, -1):
            if self.fates[row] in fates and self.records[row]:
                low = max(self.lows[row], self.highs[row] + 1 - count)
                count -= self.records[row]
                if count <= 0:
                    break
        return low


def _bounded(spans: Sequence[tuple[int, int]], end: int) -> tuple[list[tuple[int, int]], int]:
    """Return the part of the spans that one search may read, and its end."""
    room = SCAN_OFFSETS_MAX
    part = []
    for low, high in spans:
        part.append((low, min(high, low + room)))
        room -= high - low
        if room < 0:
            return part, part[-1][1]
    return part, end


def _nothing_came(task: _SearchTask, first: int) -> ClusterError:
    return ClusterError(
        f"{task.topic}-{task.partition} delivered nothing from offset {first} on in"
        f" {SCAN_S_MAX:.0f} s. Check that its broker answers, and try again."
    )


def _of(bounds: Bounds, partition: int) -> PartitionBounds:
    for p in bounds.partitions:
        if p.partition == partition:
            return p
    raise TopicError(
        f"Topic {bounds.topic} has no partition {partition}; it has {len(bounds.partitions)}."
    )


def _row(message: Message, fates: _Fates, bytes_max: int = KEPT_BYTES_MAX) -> Row:
    headers = headers_of(message)
    key, value = as_bytes(message.key()), as_bytes(message.value())
    fate, producer = fates.of(message.offset() or 0)
    return Row(
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        timestamp_ms=message.timestamp()[1],
        key=key and key[:bytes_max],
        value=value and value[:bytes_max],
        headers=_cut_headers(headers, bytes_max),
        size=len(key or b"")
        + len(value or b"")
        + sum(len(name) + len(content or b"") for name, content in headers),
        fate=fate,
        producer_id=producer,
        cut=frozenset(
            name
            for name, content in (("key", key), ("value", value))
            if len(content or b"") > bytes_max
        ),
    )


def _cut_headers(headers: Headers, bytes_max: int) -> Headers:
    """Return the headers with contents of `bytes_max` bytes. Once they take that together, or
    `HEADERS_KEPT_BYTES_MIN`, only those by which the record is decoded are kept of the rest."""
    left = max(bytes_max, HEADERS_KEPT_BYTES_MIN)
    cut: list[tuple[str, bytes | None]] = []
    for number, (name, content) in enumerate(headers):
        if left <= 0:
            rest = headers[number:]
            named = dict(rest)
            schemas = [(name, named[name]) for name in SCHEMA_HEADERS.values() if name in named]
            note = f"(headers left out here: {len(rest) - len(schemas):,})"
            return (*cut, (note, None), *((name, of and of[:bytes_max]) for name, of in schemas))
        content = content and content[: min(bytes_max, left)]
        left -= len(name) + len(content or b"")
        cut.append((name, content))
    return tuple(cut)


def _header_bytes(name: str, value: bytes | None) -> bytes:
    return name.encode() + b"=" + (value or b"")


def _occurs(needle: bytes, content: str | bytes | None) -> bool:
    return not needle or needle.lower() in (as_bytes(content) or b"").lower()
