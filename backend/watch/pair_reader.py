"""Reads what is new of two topics, once: batch headers from the raw log, and the records that
read_committed delivers.

An increment of a partition ends at or below its last stable offset, and before the first
transaction whose marker was not read. So the fate of each offset in it is final. If the whole log
has no marker for a transaction below the last stable offset, the marker is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
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
from topicproof.backend.kafka.log.batches import CONTROLS, ROW, Headers, table
from topicproof.backend.kafka.log.inflation import UnreadableBatch, fetch_bytes, largest_ratio
from topicproof.backend.kafka.log.raw_records import RawRecord, raw_records
from topicproof.backend.kafka.log.rawlog import Connection
from topicproof.backend.kafka.reading import NotText, as_bytes, headers_in, open_consumer, receive
from topicproof.backend.watch.identities import digest, numbers_of
from topicproof.validators.facts.log_facts import ABORTED, COMMITTED, attributed
from topicproof.validators.finding import Bounds, PartitionBounds
from topicproof.validators.increments.watched_pair import (
    NO_PARTITION,
    NO_ROWS,
    SinkRows,
    SourceSpan,
    UnreadableRange,
    WatchedPair,
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

Ints = npt.NDArray[np.int64]

BEYOND_OFFSETS = 10_000
"""So far behind an increment's end the markers of its transactions are looked for at first."""
SEARCHED_OFFSETS = 200_000
"""In so many offsets at once, markers farther behind are looked for."""
LONG_TRANSACTIONS_MAX = 100_000
"""Transactions of one topic whose far markers are remembered."""
_ENDED_COLUMNS = {
    "partition": "int64",
    "producer_id": "int64",
    "first_offset": "int64",
    "marker_offset": "int64",
    "outcome": "object",
}
PENDING_OFFSETS_MAX = 200_000
"""Offsets at and above the last stable ones in which late outputs are looked for."""
ABORTED_BYTES_MAX = 8_000_000
"""A consumer reads on until a record is visible. So of stretches without one, no more is read:
whoever aborts much would else make each increment read all that is aborted behind it. In shorter
ones a reader shows whether the broker withholds what was aborted."""
PENDING_BYTES_MAX = 32_000_000
"""Of the log, that are read for these at once. The rest waits for the next look."""
PENDING_STEP_MIN = 100
"""Offsets of these that are read at first, before it is known how large they are."""
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


class LogSpan(NamedTuple):
    """What the new offsets of one partition are, by their batch headers."""

    partition: int
    begin: int
    end: int
    rows: pd.DataFrame
    """Its batches (`attributed`), with the `outcome` of their transaction."""
    commits: int
    """Markers."""
    aborts: int
    undecided: int
    """Records of transactions whose marker is lost."""
    runs: tuple[tuple[int, int], ...]
    """The offsets [first, end) that are received: all but large stretches without a committed
    record."""
    unreadable: tuple[UnreadableBatch, ...] = ()
    """Its batches that nobody reads, unless they were aborted."""
    is_raw: bool = False
    """Whether its records are decoded from the raw log. A consumer would decompress a batch there
    that nobody reads."""

    @property
    def is_whole(self) -> bool:
        """Whether each offset is a record or a marker."""
        return int(self.rows["count"].sum()) == self.end - self.begin


class LongTransactions:
    """The transactions of one topic whose markers lie far behind what was read of it.

    They are looked for once. Without that, each increment below the marker of one transaction that
    was open for long would scan the log up to it anew."""

    def __init__(self) -> None:
        self.ended = pd.DataFrame(
            {name: pd.Series(dtype=kind) for name, kind in _ENDED_COLUMNS.items()}
        )
        """Those whose marker lies more than `BEYOND_OFFSETS` behind their first record. Of a
        partition the earliest ones, so no later one of a producer stands for an earlier one."""
        self.lost: dict[tuple[int, int], int] = {}
        """Up to where the log has no marker, by partition and producer id: that of a transaction
        below the last stable offset is lost then."""

    def note(self, transactions: pd.DataFrame) -> None:
        """Remember those of `TRANSACTION_COLUMNS` that are long and ended."""
        distance = transactions["marker_offset"] - transactions["first_offset"]
        ended = transactions[(distance > BEYOND_OFFSETS).fillna(False).astype(bool)]
        ended = ended[ended["outcome"].isin((COMMITTED, ABORTED))]
        if not len(ended):
            return
        ended = ended[list(_ENDED_COLUMNS)].astype(_ENDED_COLUMNS)
        both = pd.concat((self.ended, ended)) if len(self.ended) else ended
        both = both.sort_values("first_offset", kind="stable")
        both = both.drop_duplicates(["partition", "marker_offset"])
        most = LONG_TRANSACTIONS_MAX // both["partition"].nunique()
        self.ended = both.groupby("partition").head(most)

    def are_lost(self, transactions: pd.DataFrame) -> npt.NDArray[np.bool_]:
        """Return which transactions have lost their markers."""
        places = zip(transactions["partition"], transactions["producer_id"], strict=True)
        ends = np.array([self.lost.get(place, 0) for place in places], np.int64)
        return np.asarray(transactions["first_offset"].to_numpy(np.int64) < ends, bool)

    def forget(self, spans: Iterable[LogSpan]) -> None:
        """Forget those that ended before the end of what was read."""
        if len(self.ended):
            ends = {span.partition: span.end for span in spans}
            reached = self.ended["partition"].map(ends).fillna(0)
            self.ended = self.ended[self.ended["marker_offset"] >= reached]

    def markers(self, scanned: Mapping[int, int]) -> Headers:
        """Return the markers at and behind where a scan ended, by partition."""
        reached = self.ended["partition"].map(scanned)
        ended = self.ended[self.ended["marker_offset"] >= reached]
        rows = np.zeros(len(ended), ROW)
        for name in ("partition", "producer_id"):
            rows[name] = ended[name]
        rows["base_offset"] = rows["last_offset"] = ended["marker_offset"]
        rows["count"], rows["transactional"] = 1, True
        is_aborted = (ended["outcome"] == ABORTED).to_numpy(bool)
        rows["control"] = np.where(is_aborted, CONTROLS.index("ABORT"), CONTROLS.index("COMMIT"))
        return rows


def read_log(
    kafka: Connection,
    topic: str,
    bounds: Bounds,
    spans: Mapping[int, tuple[int, int]],
    long_transactions: LongTransactions,
    *,
    readable: bool,
) -> tuple[list[LogSpan], pa.Table]:
    """Return the spans [first, end) of partitions up to the first transaction whose marker was not
    read, and the batches. A span ends with a batch: before the one that its end cuts, or behind
    that if it is the first. No span ends above the last stable offset. `readable`: their records
    will be received, so batches that nobody reads are told apart. Raises ClusterError, and
    kafka-python's errors."""
    ends = {p.partition: p.hw for p in bounds.partitions}
    part = Bounds(
        topic,
        tuple(
            PartitionBounds(p, first, end, min(ends[p], end + BEYOND_OFFSETS))
            for p, (first, end) in sorted(spans.items())
            if first < end
        ),
    )
    # Only where the log was read up to, or begins, a batch is cut.
    whole = Bounds(topic, tuple(replace(p, hw=ends[p.partition]) for p in part.partitions))
    refused: list[UnreadableBatch] = []
    batches = kafka.scan(
        topic, part, part_of=whole, readable=readable, on_unreadable=refused.append
    )
    scanned = {p.partition: p.hw for p in part.partitions}
    complete = {p for p, hw in scanned.items() if hw >= ends[p]}

    def spans_of_log() -> tuple[list[LogSpan], pd.DataFrame]:
        markers = long_transactions.markers(scanned)
        marked = table(batches, [markers]) if markers.size else batches
        rows, transactions = attributed(marked.drop_columns("inflated"), part)
        long_transactions.note(transactions)
        is_decided = transactions["outcome"].isin((COMMITTED, ABORTED))
        unended = transactions[~is_decided & ~long_transactions.are_lost(transactions)]
        log = [
            _log_span(p, span, rows, transactions, unended, is_scanned=p in complete)
            for p, span in spans.items()
        ]
        return log, unended

    log, unended = spans_of_log()
    stuck = [span.partition for span in log if span.end == span.begin < spans[span.partition][1]]
    for partition in stuck:
        last = batches.filter(pc.equal(batches["partition"], partition))["last_offset"]
        begin = max(scanned[partition], pc.max(last).as_py() + 1)
        span = PartitionBounds(partition, begin, spans[partition][1], ends[partition])
        of = unended[unended["partition"] == partition]
        _find_ends(kafka, topic, span, of, long_transactions)
    if stuck:
        log, _ = spans_of_log()
    long_transactions.forget(log)
    return with_unreadable(log, refused), batches


def with_unreadable(log: Sequence[LogSpan], batches: Sequence[UnreadableBatch]) -> list[LogSpan]:
    """Return the spans with what of them nobody reads. `batches`: also those behind the spans, and
    those of aborted transactions."""
    spans = []
    for span in log:
        of_partition = [batch for batch in batches if batch.partition == span.partition]
        lasts = _visible_batches(span) if of_partition else frozenset()
        of_span = (batch for batch in of_partition if batch.last in lasts)
        spans.append(span._replace(unreadable=tuple(of_span), is_raw=bool(of_partition)))
    return spans


def _visible_batches(span: LogSpan) -> frozenset[int]:
    """Return the last offsets of the batches that read_committed delivers."""
    rows = span.rows
    is_visible = rows["control"].isna() & (rows["outcome"] != ABORTED)
    return frozenset(rows["last_offset"][is_visible].tolist())


def _find_ends(
    kafka: Connection,
    topic: str,
    span: PartitionBounds,
    transactions: pd.DataFrame,
    long_transactions: LongTransactions,
) -> None:
    """Scan on from the span's start until each of the open transactions that begin below its last
    stable offset has its marker, or the log ends."""
    begin = span.start
    while (unended := transactions[transactions["first_offset"] < span.lso]).size:
        if begin >= span.hw:
            producers = unended["producer_id"].astype(int)[:LONG_TRANSACTIONS_MAX]
            if len(long_transactions.lost) + len(producers) > LONG_TRANSACTIONS_MAX:
                long_transactions.lost.clear()
            long_transactions.lost |= {(span.partition, each): span.hw for each in producers}
            return
        until = min(span.hw, begin + SEARCHED_OFFSETS)
        part = Bounds(topic, (replace(span, start=begin, hw=until),))
        whole = Bounds(topic, (replace(span, start=begin),))
        batches = kafka.scan(topic, part, part_of=whole)
        if batches.num_rows:
            until = max(until, pc.max(batches["last_offset"]).as_py() + 1)
        rows = np.zeros(len(transactions), ROW)
        rows["base_offset"] = rows["last_offset"] = transactions["first_offset"]
        rows["partition"], rows["producer_id"] = span.partition, transactions["producer_id"]
        rows["count"], rows["transactional"] = 1, True
        of_transactions = batches.filter(batches["transactional"])
        _, both = attributed(table(of_transactions, [rows]).drop_columns("inflated"), part)
        long_transactions.note(both)
        transactions = both[~both["outcome"].isin((COMMITTED, ABORTED))]
        begin = until


def _log_span(
    partition: int,
    span: tuple[int, int],
    rows: pd.DataFrame,
    transactions: pd.DataFrame,
    unended: pd.DataFrame,
    *,
    is_scanned: bool,
) -> LogSpan:
    """`unended`: transactions whose marker was not read, and may be farther behind. `is_scanned`:
    the batches reach up to the end of the log."""
    first, end = span
    unended = unended[unended["partition"] == partition]
    if len(unended) and not is_scanned:
        end = max(first, min(end, int(unended["first_offset"].min())))
    every = rows[rows["partition"] == partition]
    outcomes = every["transaction"].where(every["transaction"] >= 0).map(transactions["outcome"])
    every = every.assign(outcome=outcomes)
    of = every[every["base_offset"] < end]
    if len(of) and int(of["last_offset"].iloc[-1]) >= end:
        # Headers do not tell how many records of a batch lie below an offset.
        if int(of["base_offset"].iloc[-1]) > first:
            end, of = int(of["base_offset"].iloc[-1]), of.iloc[:-1]
        else:
            end = int(of["last_offset"].iloc[-1]) + 1
    assert int(of["count"].sum()) <= end - first, "more records than offsets"
    outcome = of["outcome"]
    return LogSpan(
        partition,
        first,
        end,
        of,
        int((of["control"] == "COMMIT").sum()),
        int((of["control"] == "ABORT").sum()),
        int(of["count"][outcome.notna() & ~outcome.isin((COMMITTED, ABORTED))].sum()),
        _runs(every, (first, end), is_scanned=is_scanned),
    )


def _runs(
    rows: pd.DataFrame, span: tuple[int, int], *, is_scanned: bool
) -> tuple[tuple[int, int], ...]:
    """Return the parts of a span that a consumer reads. `rows`: the batches of the partition from
    there on, also behind the span."""
    first, end = span
    base, last = rows["base_offset"].to_numpy(np.int64), rows["last_offset"].to_numpy(np.int64)
    is_data = rows["control"].isna().to_numpy(bool)
    is_inside = base < end
    # Behind the span, a transaction without its marker may still be aborted.
    is_hidden = rows["outcome"].eq(ABORTED) | (~is_inside & rows["outcome"].notna())
    is_hidden &= ~(~is_inside & rows["outcome"].eq(COMMITTED))
    is_visible = is_data & ~is_hidden.to_numpy(bool)
    if not (is_data & is_inside).any():
        return ()
    size = rows["size"].to_numpy(np.int64)
    # The bytes of each stretch without a visible record: before, between and behind those.
    bytes_before = np.concatenate(([0], np.cumsum(np.where(is_visible, 0, size))))
    at = np.flatnonzero(is_visible)
    stretches = np.diff(np.concatenate(([0], bytes_before[at], bytes_before[-1:])))
    is_large = stretches > ABORTED_BYTES_MAX
    # Behind the last stable offset nothing is delivered, so a consumer stops there.
    is_large[-1] |= not is_scanned
    inside = int(is_visible[is_inside].sum())
    at, is_large = at[:inside], is_large[: inside + 1]
    if not inside:
        return () if is_large[0] else (span,)
    cuts = np.flatnonzero(is_large[1:-1])
    begins = base[at[np.concatenate(([0], cuts + 1))]].tolist()
    ends = (last[at[np.concatenate((cuts, [inside - 1]))]] + 1).tolist()
    begins[0] = begins[0] if is_large[0] else first
    ends[-1] = ends[-1] if is_large[-1] else end
    return tuple(zip(begins, ends, strict=True))


def source_span(
    span: LogSpan, hw: int, visible: Ints | None, unread: Ints | None = None
) -> SourceSpan:
    """Return what the offsets of a source partition are. `visible`: those that read_committed
    delivered; None: by the headers alone, of a log without holes. `unread`: those of inputs that
    nobody reads; they count as none."""
    rows = span.rows
    data = rows["control"].isna()
    aborted_rows = rows[data & (rows["outcome"] == ABORTED)]
    aborted = _offsets_in(aborted_rows, span.end)
    if visible is None:
        visible = _offsets_in(rows[data & (rows["outcome"] != ABORTED)], span.end)
    gone = np.zeros(0, np.int64)
    if not span.is_whole:
        control = _offsets_in(rows[~data], span.end)
        every = np.arange(span.begin, span.end)
        unread = np.zeros(0, np.int64) if unread is None else unread
        gone = np.setdiff1d(every, np.concatenate((aborted, visible, control, unread)))
    return SourceSpan(span.partition, span.begin, span.end, hw, visible, aborted, gone)


def _offsets_in(rows: pd.DataFrame, end: int) -> Ints:
    """Return the offsets of batches."""
    first = rows["base_offset"].to_numpy(np.int64)
    width = np.minimum(rows["last_offset"].to_numpy(np.int64), end - 1) - first + 1
    width = np.maximum(width, 0)
    if not first.size:
        return np.zeros(0, np.int64)
    starts = np.repeat(first - (np.cumsum(width) - width), width)
    return starts + np.arange(int(width.sum()))


def unread_offsets(span: LogSpan, *, is_dense: bool) -> Ints:
    """Return the offsets of the batches that nobody reads. `is_dense`: only of those with a record
    at each offset."""
    parts = [
        np.arange(max(batch.first, span.begin), min(batch.last + 1, span.end), dtype=np.int64)
        for batch in span.unreadable
        if not is_dense or batch.records == batch.last - batch.first + 1
    ]
    return np.concatenate((np.zeros(0, np.int64), *parts))


def note_unreadable(pair: WatchedPair, span: LogSpan, *, is_source: bool) -> None:
    """Fold the batches of a span that nobody reads."""
    for batch in span.unreadable:
        pair.note_unreadable(UnreadableRange(is_source, *batch))


def revoked(span: LogSpan, offsets: Ints) -> Ints:
    """Return the delivered offsets whose transaction the raw log aborts."""
    rows = span.rows
    if not offsets.size or not len(rows):
        return np.zeros(0, np.int64)
    at = np.searchsorted(rows["base_offset"].to_numpy(np.int64), offsets, "right") - 1
    outcomes = (rows["outcome"] == ABORTED).to_numpy(bool)
    return offsets[outcomes[np.maximum(at, 0)]]


def fold_log(pair: WatchedPair, rows: SinkRows, log: Sequence[LogSpan]) -> SinkRows:
    """Fold what the raw log says of new offsets of the sink. Returns those of the delivered rows
    that are outputs: a transaction that the log aborts has none, whoever received them."""
    is_output = np.ones(rows.size, bool)
    for span in log:
        of_span = rows.partition == span.partition
        offsets = rows.offset[of_span]
        aborted_rows = revoked(span, offsets)
        pair.add_revoked(span.partition, aborted_rows)
        is_output[of_span] = ~np.isin(offsets, aborted_rows)
        data = span.rows[span.rows["control"].isna()]
        aborted = int(data["count"][data["outcome"] == ABORTED].sum())
        delivered = int(offsets.size - aborted_rows.size)
        delivered += sum(batch.records for batch in span.unreadable)
        note_unreadable(pair, span, is_source=False)
        pair.counts.aborted += aborted
        pair.counts.undecided += span.undecided
        pair.counts.hidden += max(0, int(data["count"].sum()) - aborted - delivered)
        pair.sink_lost[span.partition] += span.end - span.begin - int(span.rows["count"].sum())
        pair.transactions["committed"] += span.commits
        pair.transactions["aborted"] += span.aborts
        pair.sink_ends[span.partition] = span.end
    return rows.take(is_output)


class RecordReader:
    """Reads the committed records of one topic: by librdkafka, or from the raw log where that
    cannot be."""

    def __init__(
        self, kafka: Connection, topic: str, batches: pa.Table, log: Sequence[LogSpan]
    ) -> None:
        self.kafka, self.topic, self.spans = kafka, topic, log
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
                lasts = _visible_batches(span) - {batch.last for batch in span.unreadable}
                for first, end in span.runs:
                    yield from raw_records(
                        self.kafka,
                        self.topic,
                        span.partition,
                        (max(first, reached.get(span.partition, 0)), end),
                        partial(_is_among, lasts),
                        self._refused.append,
                    )


def _is_among(lasts: frozenset[int], row: Any) -> bool:
    return int(row["last_offset"]) in lasts


def _limits(batches: pa.Table, raw: Sequence[int]) -> FetchLimits:
    """Return the limits of a consumer that reads some batches, but not those of the partitions that
    are read raw."""
    is_raw = pc.is_in(batches["partition"], pa.array(raw, pa.int32()))
    ratio = largest_ratio(batches.filter(pc.invert(is_raw)))
    return fetch_limits(fetch_bytes(ratio, READER_FETCH_BYTES))


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
        places: list[tuple[int, ...]] = []
        digests: list[bytes] = []
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
            places.append((message.partition() or 0, message.offset() or 0, timestamp_ms, *place))
            digests.append(digest(identity))
        table = np.array(places, np.int64).reshape(-1, 6)
        columns = (*numbers_of(digests), np.ones(len(places), np.int64))
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
    """The records of the sink that an open transaction, or one before them, still withholds. Each
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
                size = int(np.asarray(batches["size"]).sum())
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
