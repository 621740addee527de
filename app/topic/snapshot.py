"""A topic at one moment: bounds, raw log, fates, balance. A later snapshot reads only what is new.
All pages share the newest snapshot of each topic."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property

import pandas as pd
import pyarrow as pa
import streamlit as st

from topicproof.app.wording import plain
from topicproof.backend.address import Address
from topicproof.backend.errors import LogTooLong, TopicError
from topicproof.backend.kafka.log import fates, rawlog
from topicproof.backend.kafka.log.over_partitions import over_partitions
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.backend.waiting import ask_until
from topicproof.validators.finding import Bounds, Fate, PartitionBounds

FATES_NEXT = (Fate.ABORTED, Fate.PENDING, Fate.MARKER, Fate.COMMITTED, Fate.GONE, Fate.UNEXPLAINED)
"""Fates to jump to, the most wanted first."""
BATCHES_MAX = 1_000_000
"""Batches of one topic that pages show. A snapshot takes some 800 bytes for each."""
BATCHES_KEPT_MAX = 1_500_000
"""Batches of all topics together."""
WATCHES_MAX = 12
KEPT_S = 3600.0
"""A snapshot that nobody looked at for so long is dropped."""
SETTLE_S = 0.3
"""How long a snapshot waits for markers in flight. Offsets still above the LSO afterwards are shown
as pending."""


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

    @property
    def batches(self) -> int:
        newest = self.newest
        return 0 if newest is None else newest.batches.num_rows

    def get(self, address: Address, age_max_s: float) -> Snapshot:
        """Returns the newest snapshot; takes a new one if it is older than `age_max_s`. Raises
        ClusterError, TopicError."""
        with self.lock:
            if self.newest is None or time.monotonic() - self.looked_at > age_max_s:
                self.newest = take(address, self.topic, self.newest)
                self.looked_at = time.monotonic()
            return self.newest


class Watches:
    """The watches of all topics that pages look at. Together they keep a bounded number of batches:
    snapshots that nobody has looked at for the longest time make room. Safe for several threads."""

    def __init__(self, batches_max: int = BATCHES_KEPT_MAX) -> None:
        self._batches_max = batches_max
        self._watches: OrderedDict[tuple[str, str], Watch] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, address: Address, topic: str, age_max_s: float) -> Snapshot:
        """Returns a snapshot of the topic that is at most so old. Raises ClusterError,
        TopicError."""
        key = address.bootstrap, topic
        with self._lock:
            watch = self._watches.setdefault(key, Watch(topic))
            self._watches.move_to_end(key)
        snapshot = watch.get(address, age_max_s)
        self._make_room()
        return snapshot

    def _make_room(self) -> None:
        with self._lock:
            expired = time.monotonic() - KEPT_S
            batches = 0
            for number, (key, watch) in enumerate(reversed([*self._watches.items()])):
                batches += watch.batches
                is_last_looked_at = number == 0
                too_many = number >= WATCHES_MAX or batches > self._batches_max
                if not is_last_looked_at and (too_many or watch.looked_at < expired):
                    # Whoever waits for its lock still gets its snapshot.
                    del self._watches[key]


def take(address: Address, topic: str, before: Snapshot | None = None) -> Snapshot:
    """Takes a snapshot now. Keeps the batches of `before` that are still in the log."""
    began = time.monotonic()
    with rawlog.connect(address) as kafka:
        bounds = _settled(kafka, topic, before)
        taken_at = datetime.now(UTC)
        earlier = before.batches if before is not None and _grown(before.bounds, bounds) else None
        batches = _scanned(kafka, topic, bounds, earlier)
    ranges = fates.fate_ranges(batches, bounds)
    counts = fates.balance(ranges, bounds)
    return Snapshot(bounds, taken_at, time.monotonic() - began, batches, ranges, counts)


def _scanned(
    kafka: rawlog.Connection, topic: str, bounds: Bounds, earlier: pa.Table | None
) -> pa.Table:
    """Reads the batch headers. Raises TopicError if there are more than pages show."""
    try:
        return kafka.scan(topic, bounds, earlier, batches_max=BATCHES_MAX)
    except LogTooLong as error:
        raise TopicError(
            f"{error} Pages show logs of up to {BATCHES_MAX:,} batches; `topicproof inspect` and"
            f" `topicproof check` examine {rawlog.BATCHES_MAX:,}."
        ) from error


def _settled(kafka: rawlog.Connection, topic: str, before: Snapshot | None) -> Bounds:
    """Reads the bounds. Retries for a moment while something is above an LSO that the previous
    snapshot did not know: a commit is acknowledged before its markers are in the partitions."""
    earlier = (
        {(p.partition, p.lso) for p in before.bounds.partitions if p.lso < p.hw}
        if before is not None
        else set()
    )

    def is_settled(bounds: Bounds) -> bool:
        return all(p.lso >= p.hw or (p.partition, p.lso) in earlier for p in bounds.partitions)

    return ask_until(lambda: kafka.bounds(topic), is_settled, SETTLE_S)


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


REOPENED_AGE_MAX_S = 5.0
"""Maximum age of a snapshot when a page has just been opened."""
LIVE_AGE_MAX_S = 1.5


def page_snapshot(settings: Settings, kafka: Services, topic: str, live: bool) -> Snapshot:
    """Returns the topic's snapshot: a recent one for a page that was just opened, a current one
    while the topic is `live`, otherwise the previous one."""
    is_shown = st.session_state.get("snapshot_of") == topic
    age_max_s = LIVE_AGE_MAX_S if live else float("inf") if is_shown else REOPENED_AGE_MAX_S
    if st.session_state.pop("look_again", None) == topic:
        age_max_s = 0.0
    with nullcontext() if live else st.spinner(f"Reading the batch headers of {plain(topic)}…"):
        snapshot = fresh_snapshot(settings, kafka, topic, age_max_s)
    st.session_state["snapshot_of"] = topic
    return snapshot


def fresh_snapshot(settings: Settings, kafka: Services, topic: str, age_max_s: float) -> Snapshot:
    """Returns a snapshot of the topic that is at most so old, whatever other pages keep. Raises
    ClusterError, TopicError."""
    return _watches().get(Address(kafka.bootstrap, settings.client), topic, age_max_s)


def request_new_snapshot(topic: str) -> None:
    """Makes the next snapshot of the topic a new one."""
    st.session_state["look_again"] = topic


@st.cache_resource(max_entries=1, show_spinner=False)
def _watches() -> Watches:
    return Watches()
