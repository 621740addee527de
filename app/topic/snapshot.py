"""A topic at one moment: bounds, raw log, fates, balance. A later snapshot reads only what is
new."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property

import pandas as pd
import pyarrow as pa

from topicproof.backend.address import Address
from topicproof.backend.kafka.log import fates, rawlog
from topicproof.backend.kafka.log.over_partitions import over_partitions
from topicproof.validators.finding import Bounds, Fate, PartitionBounds

FATES_NEXT = (Fate.ABORTED, Fate.PENDING, Fate.MARKER, Fate.COMMITTED, Fate.GONE, Fate.UNEXPLAINED)
"""Fates to jump to, the most wanted first."""
SETTLE_S = 0.3
"""How long a snapshot waits for markers in flight. Offsets still above the LSO afterwards are shown
as pending."""
SETTLE_STEP_S = 0.05


@dataclass(frozen=True)
class Snapshot:
    """The only source of what a page shows about a topic, so all numbers are from the same
    moment."""

    bounds: Bounds
    taken_at: datetime
    """UTC."""
    took_s: float
    batches: pa.Table
    ranges: pd.DataFrame
    counts: pd.DataFrame
    """Number of offsets, by partition (index) and fate (columns)."""

    @property
    def fates(self) -> dict[Fate, int]:
        return fates.total(self.counts)

    @cached_property
    def transactions(self) -> pd.DataFrame:
        """One row per transaction and partition: `fates.transactions`. The ranges refer to its
        index."""
        return fates.transactions(self.batches, self.bounds)

    @cached_property
    def over_partitions(self) -> pd.DataFrame:
        """One row per transaction: `over_partitions`."""
        return over_partitions(self.transactions)

    @cached_property
    def parts(self) -> Mapping[tuple[int, int], tuple[int, ...]]:
        """The partitions of each transaction, by partition and first offset of each of its
        parts."""
        whole = self.over_partitions
        return {
            place: partitions
            for partitions, firsts in zip(
                whole["partitions"], whole["first_offset_by_partition"], strict=True
            )
            for place in zip(partitions, firsts, strict=True)
        }

    @cached_property
    def numbers(self) -> Mapping[tuple[int, int], int]:
        """The row in `over_partitions` of each transaction, by partition and first offset of each
        of its parts."""
        whole = self.over_partitions
        pairs = zip(whole["partitions"], whole["first_offset_by_partition"], strict=True)
        return {
            place: number
            for number, (partitions, firsts) in enumerate(pairs)
            for place in zip(partitions, firsts, strict=True)
        }

    def transaction_at(self, partition: int, offset: int) -> tuple[int, int] | None:
        """Returns partition and first offset of the transaction that an offset, possibly its
        marker, belongs to."""
        covering = self.ranges[
            (self.ranges["partition"] == partition) & (self.ranges["first_offset"] <= offset)
        ].tail(1)
        numbers = covering["transaction"].dropna().astype("int64").tolist()
        return (
            (partition, int(self.transactions["first_offset"].iloc[numbers[0]]))
            if numbers
            else None
        )

    def partition(self, number: int) -> PartitionBounds:
        return next(p for p in self.bounds.partitions if p.partition == number)


@dataclass
class Watch:
    """The newest snapshot of one topic, shared by all its viewers."""

    topic: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    newest: Snapshot | None = None
    looked_at: float = 0.0
    """Monotonic clock."""

    def get(self, address: Address, age_max_s: float) -> Snapshot:
        """Returns the newest snapshot; takes a new one if it is older than `age_max_s`. Raises
        ClusterError, TopicError."""
        with self.lock:
            if self.newest is None or time.monotonic() - self.looked_at > age_max_s:
                self.newest = take(address, self.topic, self.newest)
                self.looked_at = time.monotonic()
            return self.newest


def take(address: Address, topic: str, before: Snapshot | None = None) -> Snapshot:
    """Takes a snapshot now. Keeps the batches of `before` that are still in the log."""
    began = time.monotonic()
    with rawlog.connect(address) as kafka:
        bounds = _settled(kafka, topic, before)
        taken_at = datetime.now(UTC)
        earlier = before.batches if before is not None and _grown(before.bounds, bounds) else None
        batches = kafka.scan(topic, bounds, earlier)
    ranges = fates.fate_ranges(batches, bounds)
    counts = fates.balance(ranges, bounds)
    return Snapshot(bounds, taken_at, time.monotonic() - began, batches, ranges, counts)


def _settled(kafka: rawlog.Connection, topic: str, before: Snapshot | None) -> Bounds:
    """Reads the bounds. Retries for a moment while something is above an LSO that the previous
    snapshot did not know: a commit is acknowledged before its markers are in the partitions."""
    earlier = (
        {(p.partition, p.lso) for p in before.bounds.partitions if p.lso < p.hw}
        if before is not None
        else set()
    )
    deadline = time.monotonic() + SETTLE_S
    while True:
        bounds = kafka.bounds(topic)
        is_new = any(
            p.lso < p.hw and (p.partition, p.lso) not in earlier for p in bounds.partitions
        )
        if not is_new or time.monotonic() > deadline:
            return bounds
        time.sleep(SETTLE_STEP_S)


def _grown(before: Bounds, now: Bounds) -> bool:
    """Whether the log only grew. A shorter log was created again, so nothing known of it counts."""
    old = {p.partition: p for p in before.partitions}
    return all(p.partition not in old or p.hw >= old[p.partition].hw for p in now.partitions)


def next_of(
    ranges: pd.DataFrame, partition: int, offset: int, fate: Fate
) -> tuple[int, int] | None:
    """Finds the next stretch of a fate: later in this partition, then in the following ones, then
    from the first again. None if the topic has none."""
    stretches = ranges[ranges["fate"] == fate]
    if stretches.empty:
        return None
    behind = (stretches["partition"] == partition) & (stretches["first_offset"] > offset)
    following = stretches["partition"] > partition
    for chosen in (stretches[behind], stretches[following], stretches):
        if not chosen.empty:
            first = chosen.iloc[0]
            return int(first["partition"]), int(first["first_offset"])
    return None


def worst_place(ranges: pd.DataFrame, partition: int, first: int, end: int) -> int:
    """Finds where the worst fate within [first, end) of a partition begins: the target of a click
    on a cell."""
    overlapping = ranges[
        (ranges["partition"] == partition)
        & (ranges["last_offset"] >= first)
        & (ranges["first_offset"] < end)
    ]
    for fate in fates.WORST_FIRST:
        places = overlapping.loc[overlapping["fate"] == fate, "first_offset"]
        if not places.empty:
            return max(first, int(places.iloc[0]))
    return first


def same_place(ranges: pd.DataFrame, partition: int, offset: int, count: int) -> list[int]:
    """Returns where a record of an aborted transaction may be in a retry: at the same distance from
    the start of each of the next committed transactions of its partition."""
    data = ranges[
        (ranges["partition"] == partition)
        & ranges["control"].isna()
        & ranges["transaction"].notna()
    ]
    covering = data[(data["first_offset"] <= offset) & (data["last_offset"] >= offset)]
    if covering.empty:
        return []
    begun = data.loc[data["transaction"] == covering["transaction"].iloc[0], "first_offset"].min()
    behind = data[(data["first_offset"] > offset) & (data["fate"] == Fate.COMMITTED)]
    spans = behind.groupby("transaction").agg({"first_offset": "min", "last_offset": "max"})
    spans = spans.sort_values("first_offset").head(count)
    places = spans["first_offset"] + (offset - begun)
    return [int(place) for place in places[places <= spans["last_offset"]]]


def fingerprint(snapshot: Snapshot, partition: int, first: int, end: int) -> str:
    """Hashes what determines a window's content: its offsets and the fates of its transactions."""
    p = snapshot.partition(partition)
    in_partition = snapshot.ranges[snapshot.ranges["partition"] == partition]
    inside = in_partition[
        (in_partition["last_offset"] >= first) & (in_partition["first_offset"] < end)
    ]
    related = in_partition[in_partition["transaction"].isin(inside["transaction"].dropna())]
    rows = pd.concat([inside, related]).drop(columns=["records"])
    edges = (max(p.start, first), min(p.lso, end), min(p.hw, end))
    return hashlib.sha256(rows.to_csv(index=False).encode() + repr(edges).encode()).hexdigest()
