"""Reads what is new of two topics, once: batch headers from the raw log, and the records that
read_committed delivers.

An increment of a partition ends at or below its last stable offset, and before the first
transaction whose marker was not read. So the fate of each offset in it is final. If the whole log
has no marker for a transaction below the last stable offset, the marker is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from topicproof.backend.kafka.log.batches import CONTROLS, ROW, Headers, table
from topicproof.backend.kafka.log.inflation import UnreadableBatch
from topicproof.backend.kafka.log.rawlog import Connection
from topicproof.validators.facts.log_facts import ABORTED, COMMITTED, attributed
from topicproof.validators.finding import Bounds, PartitionBounds
from topicproof.validators.increments.watched_pair import (
    SinkRows,
    SourceSpan,
    UnreadableRange,
    WatchedPair,
)

Ints = npt.NDArray[np.int64]
Spans = Mapping[int, tuple[int, int]]
"""The offsets [first, end) of each partition."""

BEYOND_OFFSETS = 10_000
"""So far behind an increment's end the markers of its transactions are looked for at first."""
SEARCHED_OFFSETS = 200_000
"""In so many offsets at once, markers farther behind are looked for."""
INFLATED_AT_ONCE = 2**26
"""Bytes after decompression that are read of all partitions of a topic before the state is written.
If all of it is headers, that takes some five seconds."""
LONG_TRANSACTIONS_MAX = 100_000
"""Transactions of one topic whose far markers are remembered."""
_ENDED_COLUMNS = {
    "partition": "int64",
    "producer_id": "int64",
    "first_offset": "int64",
    "marker_offset": "int64",
    "outcome": "object",
}
ABORTED_BYTES_MAX = 8_000_000
"""A consumer reads on until a record is visible. So of stretches without one, no more is read:
whoever aborts much would else make each increment read all that is aborted behind it. In shorter
ones a reader shows whether the broker withholds what was aborted."""


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
    spans: Spans,
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
    if readable:
        spans = within_bytes(spans, read_sizes(batches, refused))
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


class ReadSizes(NamedTuple):
    """What batches take after decompression."""

    partition: Ints
    base_offset: Ints
    inflated: Ints
    """Bytes; 0 of a batch that nobody reads."""

    def of(self, partition: int, end: int) -> tuple[Ints, Ints]:
        """Return first offset and size of the batches of a partition that begin below an offset."""
        is_inside = (self.partition == partition) & (self.base_offset < end)
        return self.base_offset[is_inside], self.inflated[is_inside]


def read_sizes(batches: pa.Table, unreadable: Iterable[UnreadableBatch]) -> ReadSizes:
    """Return the sizes of batches (`batches.SCHEMA`)."""
    partition, base_offset, last, inflated = (
        np.asarray(batches[name], np.int64)
        for name in ("partition", "base_offset", "last_offset", "inflated")
    )
    for batch in unreadable:
        inflated = np.where((partition == batch.partition) & (last == batch.last), 0, inflated)
    return ReadSizes(partition, base_offset, inflated)


def within_bytes(spans: Spans, sizes: ReadSizes) -> Spans:
    """Return the spans, each up to the batch with which it has its share of `INFLATED_AT_ONCE`, and
    up to the first one at least. `sizes`: of the batches of the spans and behind them."""
    share = INFLATED_AT_ONCE // max(1, sum(first < end for first, end in spans.values()))
    shorter = {}
    for partition, (first, end) in spans.items():
        bases, inflated = sizes.of(partition, end)
        beyond = bases[np.cumsum(inflated) - inflated > share]
        shorter[partition] = (first, max(first, int(beyond[0]))) if beyond.size else (first, end)
    return shorter


def with_unreadable(log: Sequence[LogSpan], batches: Sequence[UnreadableBatch]) -> list[LogSpan]:
    """Return the spans with what of them nobody reads. `batches`: also those behind the spans, and
    those of aborted transactions."""
    spans = []
    for span in log:
        of_partition = [batch for batch in batches if batch.partition == span.partition]
        lasts = visible_batches(span) if of_partition else frozenset()
        of_span = (batch for batch in of_partition if batch.last in lasts)
        spans.append(
            span._replace(unreadable=tuple(of_span), is_raw=span.is_raw or bool(of_partition))
        )
    return spans


def emptied(span: LogSpan) -> LogSpan:
    """Return the span of a partition of which nothing is read yet."""
    return LogSpan(span.partition, span.begin, span.begin, span.rows[:0], 0, 0, 0, ())


def visible_batches(span: LogSpan) -> frozenset[int]:
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


def unread_offsets(span: LogSpan) -> Ints:
    """Return the offsets of the batches that nobody reads."""
    return _offsets_of(span, span.unreadable)


def _offsets_of(span: LogSpan, batches: Iterable[UnreadableBatch]) -> Ints:
    parts = [
        np.arange(max(batch.first, span.begin), min(batch.last + 1, span.end), dtype=np.int64)
        for batch in batches
    ]
    return np.concatenate((np.zeros(0, np.int64), *parts))


def source_by_lineage(span: LogSpan, hw: int, visible: Ints) -> tuple[LogSpan, SourceSpan]:
    """Return what the offsets of a source partition are, whose inputs are known by their offsets
    alone, and the span with the batches that nobody reads and that leave a doubt: in the others
    each offset is an input."""
    dense = [batch for batch in span.unreadable if batch.is_dense]
    inputs = np.union1d(visible, _offsets_of(span, dense))
    of_source = source_span(span, hw, inputs, unread_offsets(span))
    sparse = tuple(batch for batch in span.unreadable if not batch.is_dense)
    return span._replace(unreadable=sparse), of_source


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
        if span.is_raw and not span.unreadable:
            pair.unobserved += delivered
        pair.counts.aborted += aborted
        pair.counts.undecided += span.undecided
        pair.counts.hidden += max(0, int(data["count"].sum()) - aborted - delivered)
        pair.sink_lost[span.partition] += span.end - span.begin - int(span.rows["count"].sum())
        pair.transactions["committed"] += span.commits
        pair.transactions["aborted"] += span.aborts
        pair.sink_ends[span.partition] = span.end
    return rows.take(is_output)
