"""The fate of every offset, folded from batch headers. Pure: tables in, tables out.

validators/facts/log_facts.py assigns batches to transactions and determines how each one ended.

`batches` is the table of `rawlog.scan`, read within the same `bounds`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from topicproof.backend.kafka.log.inflation import (
    BATCH_RECORDS_MAX,
    BEYOND,
    RECORD_BYTES_MAX,
    client_bytes,
)
from topicproof.validators.facts.log_facts import ABORTED, COMMITTED, attributed, lso_of
from topicproof.validators.finding import Bounds, Fate

FATES = (Fate.COMMITTED, Fate.ABORTED, Fate.PENDING, Fate.MARKER, Fate.GONE, Fate.UNEXPLAINED)
"""Fates that the raw log shows, in the order of the balance."""

DATA_FATES = (Fate.COMMITTED, Fate.ABORTED, Fate.PENDING, Fate.UNEXPLAINED)
"""Fates that a record can have."""

WORST_FIRST = (Fate.UNEXPLAINED, Fate.ABORTED, Fate.PENDING, Fate.COMMITTED, Fate.GONE, Fate.MARKER)
"""The fates by priority, when a bin of several offsets needs one colour. The first three matter
most, so they show among any number of committed records. Markers and compaction gaps are
everywhere: ranked before COMMITTED, they would cover a healthy topic. They show in bins that hold
nothing else, so at one offset a bin they always show."""

RANGE_COLUMNS = (
    "partition",
    "first_offset",
    "last_offset",
    "fate",
    "records",
    "producer_id",
    "transactional",
    "control",
    "transaction",
    "inflated",
    "ratio",
)

_NONE = -1

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def transactions(batches: pa.Table, bounds: Bounds) -> pd.DataFrame:
    """Return one row (`TRANSACTION_COLUMNS`) per transaction and partition that has data in the
    bounds, by first offset.

    `records` and `bytes` count its data (bytes as stored, so compressed); `producer_epoch` is the
    last one of its data; timestamps are in ms; `marker_offset`, `marker_timestamp` and
    `marker_epoch` are nullable Int64. The column `transaction` of `fate_ranges` refers to the
    index.
    """
    return attributed(batches, bounds)[1]


def fate_ranges(batches: pa.Table, bounds: Bounds) -> pd.DataFrame:
    """Return ranges (`RANGE_COLUMNS`) that cover [start, hw) of every partition without a gap, in
    offset order.

    `first_offset` and `last_offset` are inclusive. `records` counts data records: 0 for markers and
    gone offsets, and less than the span for a batch that compaction thinned out. Headers do not
    show which of its offsets remain; `balance` counts the rest as gone. `producer_id` is null
    without a producer. `control` is COMMIT, ABORT or OTHER for a control batch, even a pending one,
    else null. `transaction` is the row of `transactions` for data and the final marker, else null.
    `inflated` is the most bytes that a batch of the range may take after decompression; a batch
    that may be too large to read is a range of its own. `ratio`: how many times larger a batch of
    the range becomes in a client at most.
    """
    rows, ended = attributed(batches, bounds)
    return _merged(_ranges(rows, ended, bounds))


def balance(ranges: pd.DataFrame, bounds: Bounds) -> pd.DataFrame:
    """Count offsets by fate: a row for each partition (the index), a column for each of `FATES`.

    Each row sums to hw - start. Raises AssertionError if not: the ranges belong to other bounds.
    """
    row = {p.partition: number for number, p in enumerate(bounds.partitions)}
    counts = np.zeros((len(row), len(FATES)), np.int64)
    partition = ranges["partition"].map(row).to_numpy(np.int64)
    span = (ranges["last_offset"] - ranges["first_offset"] + 1).to_numpy(np.int64)
    remaining = _kept(ranges, span)
    np.add.at(counts, (partition, _codes(ranges["fate"])), remaining)
    np.add.at(counts[:, FATES.index(Fate.GONE)], partition, span - remaining)
    for p, offsets in zip(bounds.partitions, counts.sum(axis=1), strict=True):
        assert offsets == p.hw - p.start, (
            f"partition {p.partition}: {offsets} fates for {p.hw - p.start} offsets"
        )
    return pd.DataFrame(counts, pd.Index(row, name="partition"), list(FATES))


def total(counts: pd.DataFrame) -> dict[Fate, int]:
    """Sum a balance over its partitions."""
    return {fate: int(counts[fate].sum()) for fate in FATES}


@dataclass(frozen=True)
class Bins:
    """The overview strip: a row of bins for each partition, on one offset axis."""

    partitions: tuple[int, ...]
    edges: Ints
    """Bin i covers the offsets [edges[i], edges[i + 1]); every bin has the same width."""
    counts: Ints
    """Offset counts by partition row, bin and fate (the order of `FATES`)."""
    worst: npt.NDArray[np.int8]
    """Index into `FATES` of the worst fate, per partition row and bin; -1 outside the
    partition."""


def bins(
    ranges: pd.DataFrame, bounds: Bounds, columns: int, window: tuple[int, int] | None = None
) -> Bins:
    """Count fates in at most `columns` bins over `window` ([first, end) in offsets), or over the
    whole bounds.

    The worst fate wins (`WORST_FIRST`), not the most frequent one. Records of a batch that
    compaction thinned out count as evenly spread.
    """
    first = min((p.start for p in bounds.partitions), default=0) if window is None else window[0]
    end = max((p.hw for p in bounds.partitions), default=0) if window is None else window[1]
    width = max(1, -(-(end - first) // columns))
    edges = first + width * np.arange(-(-max(end - first, 0) // width) + 1, dtype=np.int64)
    counts = np.zeros((len(bounds.partitions), len(edges) - 1, len(FATES)), np.int64)
    codes = _codes(ranges["fate"])
    partition = ranges["partition"].to_numpy()
    for row, p in enumerate(bounds.partitions):
        of = slice(*np.searchsorted(partition, [p.partition, p.partition + 1]))
        if p.hw > p.start:
            counts[row] = np.diff(
                _before(ranges.iloc[of], codes[of], np.clip(edges, p.start, p.hw)), axis=0
            )
    order = [FATES.index(fate) for fate in WORST_FIRST]
    present = counts[:, :, order] > 0
    worst = np.where(present.any(axis=2), np.asarray(order)[present.argmax(axis=2)], -1).astype(
        np.int8
    )
    return Bins(tuple(p.partition for p in bounds.partitions), edges, counts, worst)


def records_between(
    ranges: pd.DataFrame, partition: int, first: int, end: int, fates: Sequence[Fate]
) -> int:
    """Count data records of these fates at the offsets [first, end) of a partition.

    Exact, except for a thinned-out batch that crosses `first` or `end`: its records count as evenly
    spread.
    """
    fate_rows = ranges[(ranges["partition"] == partition) & ranges["fate"].isin(list(fates))]
    low, high, records = (
        fate_rows[name].to_numpy(np.int64) for name in ("first_offset", "last_offset", "records")
    )
    span = high - low + 1
    inside = np.clip(np.minimum(high + 1, end) - np.maximum(low, first), 0, None)
    return int((records * inside // span).sum())


def _before(ranges: pd.DataFrame, codes: npt.NDArray[np.int8], at: Ints) -> Ints:
    """Count offsets of each fate below each of `at`. The ranges cover one partition without a
    gap."""
    low = ranges["first_offset"].to_numpy(np.int64)
    span = ranges["last_offset"].to_numpy(np.int64) + 1 - low
    remaining = _kept(ranges, span)
    gone = FATES.index(Fate.GONE)
    below = np.zeros((len(low) + 1, len(FATES)), np.int64)
    np.add.at(below, (np.arange(1, len(low) + 1), codes), remaining)
    below[1:, gone] += span - remaining
    below = below.cumsum(axis=0)
    row = np.searchsorted(low, at, side="right") - 1
    into = np.minimum(at - low[row], span[row])
    part = remaining[row] * into // span[row]
    counts = np.asarray(below[row], np.int64)
    np.add.at(counts, (np.arange(len(at)), codes[row]), part)
    counts[:, gone] += into - part
    return counts


def _kept(ranges: pd.DataFrame, span: Ints) -> Ints:
    """Count the offsets of each range that have its fate; the others are gone.

    Only thinned-out data has fewer than the span. At or above the LSO every offset is pending.
    """
    data = ranges["fate"].isin([Fate.COMMITTED, Fate.ABORTED, Fate.UNEXPLAINED]).to_numpy(bool)
    return np.where(data, ranges["records"].to_numpy(np.int64), span)


def _codes(fates: pd.Series[Any]) -> npt.NDArray[np.int8]:
    """Return each fate as its index in FATES."""
    return np.asarray(pd.Categorical(fates, categories=list(FATES)).codes, np.int8)


def _ranges(rows: pd.DataFrame, transaction_rows: pd.DataFrame, bounds: Bounds) -> pd.DataFrame:
    """Return batches and the gaps between them, cut at the last stable offset, each with its
    fate."""
    # Evidence has no such column, and nobody reads records by it.
    inflated = rows["inflated"].fillna(0) if "inflated" in rows else rows["count"] * 0
    # Beyond every limit, so that it is looked at as one that may be too large.
    inflated = inflated.astype(np.int64).mask(rows["count"] > BATCH_RECORDS_MAX, BEYOND)
    batch_ranges = pd.DataFrame(
        {
            "partition": rows["partition"].astype(np.int64),
            "first_offset": rows["base_offset"],
            "last_offset": rows["last_offset"],
            "records": rows["count"].astype(np.int64).where(rows["control"].isna(), 0),
            "producer_id": rows["producer_id"].astype("Int64").mask(rows["producer_id"] < 0),
            "transactional": rows["transactional"],
            "control": rows["control"],
            "transaction": rows["transaction"].astype("Int64").mask(rows["transaction"] < 0),
            "empty": rows["count"] == 0,
            "inflated": inflated,
            "ratio": client_bytes(inflated, rows["count"].astype(np.int64))
            / rows["size"].clip(lower=1),
        }
    )
    ranges = _cut_at_lso(
        pd.concat([batch_ranges, _gaps(batch_ranges, bounds)], ignore_index=True), bounds
    )
    ranges = ranges.sort_values(["partition", "first_offset"], kind="stable", ignore_index=True)
    outcome = ranges["transaction"].map(transaction_rows["outcome"])
    ranges["fate"] = np.select(
        [
            ranges["pending"],
            ranges["empty"],
            ranges["control"].notna(),
            ~ranges["transactional"].astype(bool) | (outcome == COMMITTED),
            outcome == ABORTED,
        ],
        [Fate.PENDING, Fate.GONE, Fate.MARKER, Fate.COMMITTED, Fate.ABORTED],
        Fate.UNEXPLAINED,
    )
    return ranges


def _gaps(ranges: pd.DataFrame, bounds: Bounds) -> pd.DataFrame:
    """Return the offsets of [start, hw) that lie in no batch, as empty ranges."""
    partition = [p.partition for p in bounds.partitions]
    # Start and end act as batches, so every gap lies between two batches.
    edges = pd.DataFrame(
        {
            "partition": partition * 2,
            "first_offset": (
                [p.start for p in bounds.partitions] + [p.hw for p in bounds.partitions]
            ),
            "last_offset": (
                [p.start - 1 for p in bounds.partitions] + [p.hw for p in bounds.partitions]
            ),
        }
    )
    both = pd.concat([ranges[["partition", "first_offset", "last_offset"]], edges])
    both = both.sort_values(["partition", "first_offset", "last_offset"], kind="stable")
    low = both["last_offset"].to_numpy()[:-1] + 1
    high = both["first_offset"].to_numpy()[1:] - 1
    same = both["partition"].to_numpy()[1:] == both["partition"].to_numpy()[:-1]
    gap = same & (high >= low)
    return pd.DataFrame(
        {
            "partition": both["partition"].to_numpy()[1:][gap],
            "first_offset": low[gap],
            "last_offset": high[gap],
            "records": 0,
            "producer_id": pd.array([pd.NA] * int(gap.sum()), dtype="Int64"),
            "transactional": False,
            "control": pd.Series([None] * int(gap.sum()), dtype=object),
            "transaction": pd.array([pd.NA] * int(gap.sum()), dtype="Int64"),
            "empty": True,
            "inflated": 0,
            "ratio": 0.0,
        }
    )


def _cut_at_lso(ranges: pd.DataFrame, bounds: Bounds) -> pd.DataFrame:
    """Cut the ranges that cross the last stable offset: gaps, and batches if the caller chose the
    bounds. Adds `pending`: whether a range lies at or above it."""
    lso = lso_of(ranges["partition"], bounds)
    low, high, records = (
        ranges[name].to_numpy(np.int64) for name in ("first_offset", "last_offset", "records")
    )
    across = (low < lso) & (high >= lso)
    below = np.where(across, records * (lso - low) // (high + 1 - low), records)
    lower = ranges.assign(
        last_offset=np.where(across, lso - 1, high), records=below, pending=low >= lso
    )
    upper = ranges[across].assign(
        first_offset=lso[across], records=(records - below)[across], pending=across[across]
    )
    return pd.concat([lower, upper], ignore_index=True)


def _merged(ranges: pd.DataFrame) -> pd.DataFrame:
    """Merge equal neighbours. Thinned-out ranges stay separate, so that their gaps do not
    spread."""
    whole = (ranges["last_offset"] - ranges["first_offset"] + 1) == ranges["records"]
    alone = ranges["control"].notna() | (~whole & (ranges["records"] > 0))
    alone |= ranges["inflated"] > RECORD_BYTES_MAX
    begins = alone.to_numpy(bool).copy()
    begins[1:] |= begins[:-1]
    begins[:1] = True
    for name in ("partition", "fate", "producer_id", "transactional", "transaction"):
        values = ranges[name].fillna(_NONE).to_numpy()
        begins[1:] |= values[1:] != values[:-1]
    begins[1:] |= whole.to_numpy(bool)[1:] != whole.to_numpy(bool)[:-1]
    group = np.cumsum(begins)
    merged = ranges.groupby(group, sort=False).agg(
        dict.fromkeys(RANGE_COLUMNS, "first")
        | {"last_offset": "last", "records": "sum"}
        | dict.fromkeys(("inflated", "ratio"), "max")
    )
    return merged.reset_index(drop=True)[list(RANGE_COLUMNS)]
