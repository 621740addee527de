"""The sink's log as the picture shows it: boxes, and how far each consumer could read over time.

Pure. Times are in ms since 1970.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any

import pandas as pd

from topicproof.validators.facts.log_facts import COMMITTED, UNEXPLAINED

PLAIN = "PLAIN"
"""The outcome of a batch outside of any transaction: every consumer gets it at once."""
_BEGINS, _WRITTEN, _ENDED = range(3)


@dataclass(frozen=True)
class Part:
    """The records of one transaction in one partition, or a batch outside of transactions."""

    partition: int
    producer: int
    epoch: int
    first: int
    end: int
    """After the last record."""
    records: int
    outcome: str
    marker: int | None
    """Offset of its marker; None: it is open, or in no transaction."""
    begins: int
    written: int
    ended: int | None
    """When it counted, or was aborted; None: it is open."""

    @property
    def visible(self) -> bool:
        return self.outcome in (COMMITTED, PLAIN)

    @property
    def until(self) -> float:
        """When nothing more can happen to it."""
        return float("inf") if self.ended is None else self.ended

    @property
    def points(self) -> Iterator[tuple[int, int, int]]:
        """What happens to it: offset, time, what."""
        yield self.first, self.begins, _BEGINS
        yield self.end - 1, self.written, _WRITTEN
        if self.ended is not None:
            yield self.end - 1 if self.marker is None else self.marker, self.ended, _ENDED


def parts_of(
    transactions: pd.DataFrame,
    plain: pd.DataFrame,
    before: Mapping[int, int],
    period: tuple[int, int],
) -> list[Part]:
    """Returns the boxes of `transactions` (rows of `fates.transactions`) and of `plain` (batches
    outside of them) from the offsets `before` on, by partition and offset.

    Producers may set any timestamp. A log is written in the order of its offsets, so times are
    moved into the period, and made to rise with the offsets.
    """
    parts = [
        *(_transaction(row) for row in transactions.to_dict("records")),
        *(_batch(row) for row in plain.to_dict("records")),
    ]
    run_parts = [part for part in parts if part.first >= before.get(part.partition, 0)]
    rising = []
    for partition in sorted({part.partition for part in run_parts}):
        partition_parts = sorted(
            (part for part in run_parts if part.partition == partition), key=_first
        )
        rising += _rising(partition_parts, period)
    return rising


def _transaction(row: Mapping[Any, Any]) -> Part:
    marker = None if pd.isna(row["marker_offset"]) else int(row["marker_offset"])
    ended = None if marker is None else int(row["marker_timestamp"])
    if row["outcome"] == UNEXPLAINED:  # It holds nothing back, although it has no marker.
        ended = int(row["last_timestamp"])
    return Part(
        int(row["partition"]),
        int(row["producer_id"]),
        int(row["producer_epoch"]),
        int(row["first_offset"]),
        int(row["last_offset"]) + 1,
        int(row["records"]),
        str(row["outcome"]),
        marker,
        int(row["first_timestamp"]),
        int(row["last_timestamp"]),
        ended,
    )


def _batch(row: Mapping[Any, Any]) -> Part:
    return Part(
        int(row["partition"]),
        int(row["producer_id"]),
        int(row["producer_epoch"]),
        int(row["base_offset"]),
        int(row["last_offset"]) + 1,
        int(row["count"]),
        PLAIN,
        None,
        int(row["first_timestamp"]),
        int(row["max_timestamp"]),
        int(row["max_timestamp"]),
    )


def _first(part: Part) -> int:
    return part.first


def _rising(parts: Sequence[Part], period: tuple[int, int]) -> list[Part]:
    """Returns the parts of one partition with times that never fall from offset to offset."""
    points = sorted(
        (offset, what, number, at)
        for number, part in enumerate(parts)
        for offset, at, what in part.points
    )
    low, high = period
    # Brokers give markers their time, so nothing before a marker is later than it.
    latest = []
    for _offset, what, number, at in reversed(points):
        if what == _ENDED and parts[number].marker is not None:
            high = min(high, max(low, at))
        latest.append(high)
    times: dict[tuple[int, int], int] = {}
    for (_offset, what, number, at), most in zip(points, reversed(latest), strict=True):
        low = times[number, what] = max(low, min(at, most))
    return [
        replace(
            part,
            begins=times[number, _BEGINS],
            written=times[number, _WRITTEN],
            ended=times.get((number, _ENDED)),
        )
        for number, part in enumerate(parts)
    ]


def newest(parts: Sequence[Part], transactions: int, batches: int) -> tuple[list[Part], list[Part]]:
    """Divides the boxes into at most so many that ended last, and older ones. Boxes of one moment
    stay together, and open ones are always among the first."""
    inside = sorted(part.until for part in parts if part.outcome != PLAIN)
    outside = sorted(part.until for part in parts if part.outcome == PLAIN)
    # A transaction has a box in several partitions.
    wide = max(1, len({part.partition for part in parts if part.outcome != PLAIN}))
    since = max(_limit(inside, transactions * wide), _limit(outside, batches))
    return (
        [part for part in parts if part.until > since],
        [part for part in parts if part.until <= since],
    )


def _limit(ends: Sequence[float], most: int) -> float:
    """Returns the moment after which at most this many ended."""
    last = ends[-most - 1] if len(ends) > most else -1.0
    return last if last < float("inf") else -1.0


@dataclass
class PartitionHistory:
    """How far one partition reached over time: pairs of a moment and an offset."""

    start: int
    hw: list[tuple[int, int]] = field(default_factory=list)
    lso: list[tuple[int, int]] = field(default_factory=list)
    delivered: dict[Part, int] = field(default_factory=dict)
    """When a read_committed consumer could receive each visible part; absent: not yet."""


def sweep(parts: Sequence[Part], start: int) -> PartitionHistory:
    """Follows one partition from its oldest moment to its newest. The last stable offset is the
    first offset of the oldest open transaction, else the high watermark."""
    points = sorted(
        (at, offset, what, number)
        for number, part in enumerate(parts)
        for offset, at, what in part.points
    )
    history, hw = PartitionHistory(start), start
    opened: list[tuple[int, int]] = []
    """First offset and number of open transactions; ended ones leave when they are the first."""
    waiting: list[tuple[int, int]] = []
    """End and number of visible parts that are not delivered."""
    ended: set[int] = set()
    for at, offset, what, number in points:
        part = parts[number]
        if what == _BEGINS and part.outcome != PLAIN:
            heappush(opened, (part.first, number))
        elif what == _ENDED:
            ended.add(number)
            if part.visible:
                heappush(waiting, (part.end, number))
        while opened and opened[0][1] in ended:
            heappop(opened)
        hw = max(hw, offset + 1)
        lso = opened[0][0] if opened else hw
        while waiting and waiting[0][0] <= lso:
            history.delivered[parts[heappop(waiting)[1]]] = at
        history.hw.append((at, hw))
        history.lso.append((at, lso))
    return history
