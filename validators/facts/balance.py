"""The balance: batch headers and readings account for every offset of the bounds.

Each term has its own source: records from the readings, markers from the control batches, gone
offsets from the batch headers, pending offsets from the last stable offset. The remainder is
unexplained and must be 0. The one exception is a compacted batch that straddles the start of the
bounds. Its header counts the records on both sides, so the reading decides, within the limits of
the header.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from topicproof.validators.facts.log_facts import LogFacts
from topicproof.validators.finding import Balance, Bounds, PartitionBounds


class Straddle(NamedTuple):
    """A sparse batch that begins below the bounds. Its header limits how many of its offsets inside
    the bounds may be gone."""

    last: int
    width: int
    """Its offsets inside the bounds."""
    gone_min: int
    gone_max: int


class Headers(NamedTuple):
    """Counts from one partition's batch headers, from `start` up to the last stable offset."""

    covered: int
    """Offsets that lie in a batch."""
    markers: int
    emptied: int
    """Offsets inside batches that no longer hold anything, except in a straddling batch."""
    straddle: Straddle | None
    batches: int
    """Data batches. `sequenced` counts those of producers that number their records; `plain` counts
    those in no transaction."""
    sequenced: int
    plain: int
    holes: int
    """Batches with the anomalies in `FACT_COLUMNS` (validators/facts/log_facts.py)."""
    stale: int
    second_ends: int
    interleaved: int


class Records(NamedTuple):
    """Counts from one partition's readings."""

    committed: int
    aborted: int
    never_transactional: int
    straddling: int
    """Records of the sparse batch that straddles the start."""


def count_headers(facts: LogFacts, bounds: Bounds) -> dict[int, Headers]:
    """Counts by partition, without partitions that have no batch below their last stable offset."""
    headers = {}
    partitions = facts.batches["partition"].to_numpy()
    for partition_bounds in bounds.partitions:
        number = partition_bounds.partition
        rows = slice(*np.searchsorted(partitions, [number, number + 1]))
        batches = facts.batches.iloc[rows]
        batches = batches[
            (batches["last_offset"] >= partition_bounds.start)
            & (batches["base_offset"] < partition_bounds.lso)
        ]
        if len(batches) and partition_bounds.start < partition_bounds.lso:
            headers[number] = _headers(batches, partition_bounds)
    return headers


def _headers(batches: pd.DataFrame, bounds: PartitionBounds) -> Headers:
    """Counts the batches of one partition that reach into the bounds."""
    base, last, count = (
        batches[name].to_numpy(np.int64) for name in ("base_offset", "last_offset", "count")
    )
    data = batches["control"].isna().to_numpy(bool)
    width = last - base + 1
    below = base < bounds.start
    straddles = np.flatnonzero(below & (count < width))
    at = straddles[-1] if straddles.size else None
    return Headers(
        covered=int((np.minimum(last, bounds.lso - 1) - np.maximum(base, bounds.start) + 1).sum()),
        markers=int(count[~data].sum()),
        emptied=int((width - count)[~below].sum()),
        straddle=(
            None
            if at is None
            else _straddle(int(base[at]), int(last[at]), int(count[at]), bounds.start)
        ),
        batches=int(data.sum()),
        sequenced=int((data & (batches["producer_id"].to_numpy() >= 0)).sum()),
        plain=int((data & ~batches["transactional"].to_numpy(bool)).sum()),
        holes=int(batches["hole"].sum()),
        stale=int(batches["stale"].sum()),
        second_ends=int(batches["second_end"].sum()),
        interleaved=int(batches["interleaved"].sum()),
    )


def _straddle(base: int, last: int, count: int, start: int) -> Straddle:
    width, emptied = last - start + 1, last - base + 1 - count
    return Straddle(last, width, max(0, width - count), min(width, emptied))


def balance_of(bounds: PartitionBounds, records: Records, headers: Headers | None) -> Balance:
    """Computes one partition's balance with the raw log. `headers` is None if it has no batch."""
    headers = headers or Headers(0, 0, 0, None, 0, 0, 0, 0, 0, 0, 0)
    gone = bounds.lso - bounds.start - headers.covered + headers.emptied
    if headers.straddle:
        left = headers.straddle.width - records.straddling
        gone += min(max(left, headers.straddle.gone_min), headers.straddle.gone_max)
    return Balance(
        partition=bounds.partition,
        offsets=bounds.hw - bounds.start,
        committed=records.committed,
        aborted=records.aborted,
        pending=bounds.hw - bounds.lso,
        markers=headers.markers,
        gone=gone,
        no_record=None,
        unexplained=_rest(bounds, records) - headers.markers - gone,
        never_transactional=records.never_transactional,
    )


def balance_unheard(bounds: PartitionBounds, records: Records) -> Balance:
    """Computes one partition's balance without the raw log: nothing explains offsets without a
    record.

    So the remainder can only reveal too many records, never too few.
    """
    rest = _rest(bounds, records)
    return Balance(
        partition=bounds.partition,
        offsets=bounds.hw - bounds.start,
        committed=records.committed,
        aborted=records.aborted,
        pending=bounds.hw - bounds.lso,
        markers=None,
        gone=None,
        no_record=max(rest, 0),
        unexplained=min(rest, 0),
        never_transactional=None,
    )


def _rest(bounds: PartitionBounds, records: Records) -> int:
    return bounds.lso - bounds.start - records.committed - records.aborted
