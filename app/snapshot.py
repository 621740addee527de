"""A topic at one moment: bounds, raw log, fates, balance. Taken again, it reads only what has come
since."""

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
"""What one may jump to, the most wanted first."""
SETTLE_S = 0.3
"""How long a snapshot waits for markers that may be in flight. What is above the LSO after that is
shown as pending."""
SETTLE_STEP_S = 0.05


@dataclass(frozen=True)
class Snapshot:
    """Everything the page says about a topic comes from one of these, so that no two numbers are of
    two moments."""

    bounds: Bounds
    taken_at: datetime
    """UTC."""
    took_s: float
    batches: pa.Table
    ranges: pd.DataFrame
    counts: pd.DataFrame
    """Offsets by partition (index) and fate (columns)."""

    @property
    def fates(self) -> dict[Fate, int]:
        return fates.total(self.counts)

    @cached_property
    def transactions(self) -> pd.DataFrame:
        """One row a transaction and partition: `fates.transactions`. The ranges refer to its
        index."""
        return fates.transactions(self.batches, self.bounds)

    @cached_property
    def over_partitions(self) -> pd.DataFrame:
        """One row a transaction: `over_partitions`."""
        return over_partitions(self.transactions)

    @cached_property
    def parts(self) -> Mapping[tuple[int, int], tuple[int, ...]]:
        """The partitions that a transaction wrote to, by partition and first offset of each of its
        parts."""
        whole = self.over_partitions
        return {
            place: partitions
            for partitions, firsts in zip(
                whole["partitions"], whole["first_offset_by_partition"], strict=True
            )
            for place in zip(partitions, firsts, strict=True)
        }

    def transaction_at(self, partition: int, offset: int) -> tuple[int, int] | None:
        """Partition and first offset of the transaction that an offset belongs to, its marker
        included."""
        own = self.ranges[
            (self.ranges["partition"] == partition) & (self.ranges["first_offset"] <= offset)
        ].tail(1)
        numbers = own["transaction"].dropna().astype("int64").tolist()
        return (
            (partition, int(self.transactions["first_offset"].iloc[numbers[0]]))
            if numbers
            else None
        )

    def partition(self, number: int) -> PartitionBounds:
        return next(p for p in self.bounds.partitions if p.partition == number)


@dataclass
class Watch:
    """The newest snapshot of one topic, shared by all who look at it."""

    topic: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    newest: Snapshot | None = None
    looked_at: float = 0.0
    """On the monotonic clock."""

    def get(self, address: Address, age_max_s: float) -> Snapshot:
        """The newest snapshot, taken anew when it is older than that. Raises ClusterError,
        TopicError."""
        with self.lock:
            if self.newest is None or time.monotonic() - self.looked_at > age_max_s:
                self.newest = take(address, self.topic, self.newest)
                self.looked_at = time.monotonic()
            return self.newest


def take(address: Address, topic: str, before: Snapshot | None = None) -> Snapshot:
    """The topic now. Of `before`, the batches that are still in the log are kept."""
    began = time.monotonic()
    with rawlog.connect(address) as kafka:
        bounds = _settled(kafka, topic, before)
        taken_at = datetime.now(UTC)
        known = before.batches if before is not None and _grown(before.bounds, bounds) else None
        batches = kafka.scan(topic, bounds, known)
    ranges = fates.fate_ranges(batches, bounds)
    counts = fates.balance(ranges, bounds)
    return Snapshot(bounds, taken_at, time.monotonic() - began, batches, ranges, counts)


def _settled(kafka: rawlog.Connection, topic: str, before: Snapshot | None) -> Bounds:
    """The bounds, taken anew for a moment while something is above an LSO that the snapshot before
    did not know: a commit is answered before its markers are in the partitions."""
    known = (
        {(p.partition, p.lso) for p in before.bounds.partitions if p.lso < p.hw}
        if before is not None
        else set()
    )
    deadline = time.monotonic() + SETTLE_S
    while True:
        bounds = kafka.bounds(topic)
        fresh = any(p.lso < p.hw and (p.partition, p.lso) not in known for p in bounds.partitions)
        if not fresh or time.monotonic() > deadline:
            return bounds
        time.sleep(SETTLE_STEP_S)


def _grown(before: Bounds, now: Bounds) -> bool:
    """Whether the log only went on. One that became shorter was made anew, and nothing known of it
    counts."""
    old = {p.partition: p for p in before.partitions}
    return all(p.partition not in old or p.hw >= old[p.partition].hw for p in now.partitions)


def next_of(
    ranges: pd.DataFrame, partition: int, offset: int, fate: Fate
) -> tuple[int, int] | None:
    """Where the next stretch of a fate begins behind this place: on this partition, else on the
    following ones, and around again. None when the topic has none."""
    own = ranges[ranges["fate"] == fate]
    if own.empty:
        return None
    behind = (own["partition"] == partition) & (own["first_offset"] > offset)
    following = own["partition"] > partition
    for chosen in (own[behind], own[following], own):
        if not chosen.empty:
            first = chosen.iloc[0]
            return int(first["partition"]), int(first["first_offset"])
    return None


def worst_place(ranges: pd.DataFrame, partition: int, first: int, end: int) -> int:
    """Where, within [first, end) of a partition, its worst fate begins: what a click on a cell is
    after."""
    own = ranges[
        (ranges["partition"] == partition)
        & (ranges["last_offset"] >= first)
        & (ranges["first_offset"] < end)
    ]
    for fate in fates.WORST_FIRST:
        places = own.loc[own["fate"] == fate, "first_offset"]
        if not places.empty:
            return max(first, int(places.iloc[0]))
    return first


def same_place(ranges: pd.DataFrame, partition: int, offset: int, count: int) -> list[int]:
    """Where a record of an aborted transaction may stand in what was tried again: at the same
    distance from the beginning of each of the next committed transactions of its partition."""
    data = ranges[
        (ranges["partition"] == partition)
        & ranges["control"].isna()
        & ranges["transaction"].notna()
    ]
    own = data[(data["first_offset"] <= offset) & (data["last_offset"] >= offset)]
    if own.empty:
        return []
    begun = data.loc[data["transaction"] == own["transaction"].iloc[0], "first_offset"].min()
    behind = data[(data["first_offset"] > offset) & (data["fate"] == Fate.COMMITTED)]
    spans = behind.groupby("transaction").agg({"first_offset": "min", "last_offset": "max"})
    spans = spans.sort_values("first_offset").head(count)
    places = spans["first_offset"] + (offset - begun)
    return [int(place) for place in places[places <= spans["last_offset"]]]


def fingerprint(snapshot: Snapshot, partition: int, first: int, end: int) -> str:
    """Changes when what a window shows may have changed: its offsets, or the fates of its
    transactions."""
    p = snapshot.partition(partition)
    own = snapshot.ranges[snapshot.ranges["partition"] == partition]
    inside = own[(own["last_offset"] >= first) & (own["first_offset"] < end)]
    related = own[own["transaction"].isin(inside["transaction"].dropna())]
    seen = pd.concat([inside, related]).drop(columns=["records"])
    edges = (max(p.start, first), min(p.lso, end), min(p.hw, end))
    return hashlib.sha256(seen.to_csv(index=False).encode() + repr(edges).encode()).hexdigest()
