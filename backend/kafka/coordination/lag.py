"""Consumer lag, counted in records instead of subtracted in offsets.

High watermark minus committed offset also counts markers, aborted records, holes, and records that
an open transaction withholds. On a transactional topic it may never reach 0. Here records are
counted from batch headers, at both isolation levels.

A partition without a committed offset counts too, if a member of the group owns it. Its members
begin where their `auto.offset.reset` says, which no broker knows, so it is counted from the log
start. A group without any owner, as of a program that assigns its partitions itself, is expected to
read the whole topic once it has committed on one partition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from kafka import TopicPartition

from topicproof.backend.kafka.coordination.groups import (
    Group,
    Member,
    TopicSize,
    group_members,
    list_groups,
    members_first,
)
from topicproof.backend.kafka.log.fates import DATA_FATES
from topicproof.backend.kafka.log.rawlog import Connection
from topicproof.backend.kafka.look import GROUPS, LookBudget
from topicproof.validators.coordinator import OpenTransaction, short_name
from topicproof.validators.finding import Bounds, Fate, PartitionBounds

PLACES_ASKED = 20_000
"""Partitions of groups in one request; each takes some 400 bytes."""
NO_OFFSET = "No committed offset: counted from the log start. "
NOTHING_LEFT = "Nothing is left to read."


@dataclass(frozen=True)
class PartitionLag:
    """One group on one partition."""

    partition: int
    committed: int | None
    """The offset that the group reads next. None: it has committed none, and is counted from the
    log start."""
    owner: Member | None
    """The member that has the partition, or is assigned it. None: no member, or its coordinator
    does not tell it."""
    visible: int
    """Records readable now at read_committed: committed ones from there to the LSO."""
    uncommitted: int
    """Records readable now at read_uncommitted: all data from there to the high watermark."""
    withheld: int
    """Records from there on, at or above the LSO."""
    subtraction: int
    """High watermark minus committed offset, or minus the log start: the number shown by other
    tools."""
    exact: bool
    """False if the committed offset lies inside a batch that compaction thinned out. The count of
    that batch is an estimate."""
    stuck: bool
    """Nothing is left below the LSO, and an open transaction withholds the rest."""
    stuck_behind: str | None
    """The holder of the LSO, if known: a transactional id, or the producer of a hanging
    transaction."""
    why: str
    """One sentence for people."""

    @property
    def is_plain(self) -> bool:
        """Whether `why` adds nothing to the counts: whatever is left can be read now."""
        return self.exact and self.why in (f"{_records(self.visible)} to read.", NOTHING_LEFT)


@dataclass(frozen=True)
class GroupLag:
    """One group that owns partitions of the topic or has committed offsets on it."""

    group: str
    kind: str
    """As `groups.Group.kind`."""
    state: str
    """As `groups.Group.state`."""
    members: tuple[Member, ...] | None
    """Members of the group, also those that own nothing of the topic. None: not known, as in
    `groups.group_members`."""
    partitions: tuple[PartitionLag, ...]

    @property
    def visible(self) -> int:
        return sum(p.visible for p in self.partitions)

    @property
    def uncommitted(self) -> int:
        return sum(p.uncommitted for p in self.partitions)

    @property
    def withheld(self) -> int:
        return sum(p.withheld for p in self.partitions)

    @property
    def subtraction(self) -> int:
        return sum(p.subtraction for p in self.partitions)

    @property
    def stuck(self) -> bool:
        """Whether it waits for an open transaction on one partition, and can read nothing on
        any."""
        return self.visible == 0 and any(p.stuck for p in self.partitions)


def group_lags(
    kafka: Connection,
    topic: str,
    bounds: Bounds,
    ranges: pd.DataFrame,
    opened: Collection[OpenTransaction] = (),
    *,
    budget: LookBudget,
) -> tuple[GroupLag, ...]:
    """Return the lag of every group that owns partitions of the topic or has committed offsets on
    it, by name; those with members first if the budget does not allow for all.

    `ranges` are the `fates.fate_ranges` of `bounds`. `opened` are the open transactions of the
    topic, if known. Then the lag names the one that a stuck group waits for. Raises kafka-python's
    errors, and ClusterError for a group that may not be described.
    """
    groups = [each for each in list_groups(kafka) if not each.share]
    groups.sort(key=members_first)
    counters = {p.partition: records_of(ranges, p.partition) for p in bounds.partitions}
    holders = {p.partition: holder_of_lso(p, opened) for p in bounds.partitions}
    at_once = max(1, PLACES_ASKED // max(1, len(bounds.partitions)))
    lags: list[GroupLag] = []
    for batch in budget.batches(groups, at_once, GROUPS):
        of_batch = _lags_of(kafka, topic, bounds, batch, budget, counters, holders)
        budget.entries += sum(len(lag.partitions) for lag in of_batch)
        lags += of_batch
    return tuple(sorted(lags, key=lambda lag: lag.group))


def _lags_of(
    kafka: Connection,
    topic: str,
    bounds: Bounds,
    groups: Sequence[Group],
    budget: LookBudget,
    counters: Mapping[int, PartitionRecords],
    holders: Mapping[int, OpenTransaction | None],
) -> list[GroupLag]:
    """Return the lags of these groups, as `group_lags`. `counters` and `holders` are those of each
    partition: its records, and the transaction that holds its LSO."""
    partitions = [TopicPartition(topic, p.partition) for p in bounds.partitions]
    # Members first: an offset that is committed between the two requests is not missed.
    members = group_members(kafka, groups, topic_size(bounds), budget=budget)
    answers = kafka.with_retries(
        lambda: kafka.admin.list_group_offsets(dict.fromkeys((g.group for g in groups), partitions))
    )
    lags_of_groups = []
    for group in groups:
        committed = {
            at.partition: each.offset
            for at, each in answers[group.group].items()
            if each.offset >= 0
        }
        owners = _owners(members[group.group] or (), topic)
        partition_numbers = committed.keys() | owners.keys()
        if committed and _without_owner(members[group.group]):
            partition_numbers = {p.partition for p in bounds.partitions}
        lags = [
            partition_lag(
                p,
                committed.get(p.partition),
                counters[p.partition],
                holders[p.partition],
                owners.get(p.partition),
            )
            for p in bounds.partitions
            if p.partition in partition_numbers
        ]
        if lags:
            current_members = members[group.group]
            lags_of_groups.append(
                GroupLag(
                    short_name(group.group), group.kind, group.state, current_members, tuple(lags)
                )
            )
    return lags_of_groups


def topic_size(bounds: Bounds) -> TopicSize:
    """Return the topic of the bounds, with the number of its partitions."""
    numbers = (p.partition for p in bounds.partitions)
    return TopicSize(bounds.topic, 1 + max(numbers, default=-1))


def _owners(members: Collection[Member], topic: str) -> dict[int, Member]:
    """Return who has each partition. If nobody has it, who is assigned it."""
    now, then = (
        {
            partition: member
            for member in members
            for name, partition in getattr(member, those)
            if name == topic
        }
        for those in ("partitions", "awaited")
    )
    return then | now


def _without_owner(members: Collection[Member] | None) -> bool:
    """Return whether it is known that no member owns a partition of any topic. In a classic group
    that rebalances nobody does."""
    return members is not None and not any(member.has_assignment for member in members)


@dataclass(frozen=True)
class RecordCounter:
    """Ranges of records of one partition, in the order of their offsets. Thousands of groups ask
    for counts of the same partition."""

    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]
    records: npt.NDArray[np.int64]
    before: npt.NDArray[np.int64]
    """Records of the ranges before each one, and of all."""

    def between(self, first: int, end: int) -> int:
        """Count records at the offsets [first, end), as `fates.records_between`."""
        begin = int(np.searchsorted(self.last, first))
        stop = int(np.searchsorted(self.first, end))
        if begin >= stop:
            return 0
        whole = int(self.before[stop] - self.before[begin])
        edges = {begin, stop - 1}
        return whole - sum(
            int(self.records[each]) - self._inside(each, first, end) for each in edges
        )

    def _inside(self, number: int, first: int, end: int) -> int:
        low, high = int(self.first[number]), int(self.last[number]) + 1
        inside = max(0, min(high, end) - max(low, first))
        return int(self.records[number]) * inside // (high - low)

    def is_exact_at(self, offset: int) -> bool:
        """Return whether a count from this offset on is exact: it lies in no thinned-out range."""
        number = int(np.searchsorted(self.last, offset))
        if number == len(self.first) or self.first[number] >= offset:
            return True
        return bool(self.records[number] == self.last[number] - self.first[number] + 1)


@dataclass(frozen=True)
class PartitionRecords:
    """The records of one partition."""

    committed: RecordCounter
    every: RecordCounter
    """Those of all fates that a record can have."""


def records_of(ranges: pd.DataFrame, partition: int) -> PartitionRecords:
    """Return the records of a partition in `fates.fate_ranges`."""
    of_partition = ranges[(ranges["partition"] == partition) & (ranges["records"] > 0)]

    def counter(fates: Sequence[Fate]) -> RecordCounter:
        rows = of_partition[of_partition["fate"].isin(list(fates))]
        first, last, records = (
            rows[name].to_numpy(np.int64) for name in ("first_offset", "last_offset", "records")
        )
        return RecordCounter(first, last, records, np.concatenate(([0], records.cumsum())))

    return PartitionRecords(counter([Fate.COMMITTED]), counter(DATA_FATES))


def partition_lag(
    p: PartitionBounds,
    committed: int | None,
    records: PartitionRecords,
    blocker: OpenTransaction | None = None,
    owner: Member | None = None,
) -> PartitionLag:
    """Return the lag of a group that reads `committed` next; None: the log start. `blocker` is the
    transaction that holds the LSO, if known."""
    first = p.start if committed is None else committed
    visible = records.committed.between(first, p.lso)
    uncommitted = records.every.between(first, p.hw)
    withheld = records.every.between(max(first, p.lso), p.hw)
    stuck = visible == 0 and withheld > 0
    return PartitionLag(
        partition=p.partition,
        committed=committed,
        owner=owner,
        visible=visible,
        uncommitted=uncommitted,
        withheld=withheld,
        subtraction=p.hw - first,
        exact=records.every.is_exact_at(first),
        stuck=stuck,
        stuck_behind=blocker.name if stuck and blocker else None,
        why=NO_OFFSET * (committed is None) + _why(p, first, visible, withheld, blocker),
    )


def holder_of_lso(
    p: PartitionBounds, opened: Collection[OpenTransaction]
) -> OpenTransaction | None:
    """Return the transaction that begins at the partition's LSO."""
    return next(
        (
            transaction
            for transaction in opened
            if (transaction.partition, transaction.start_offset) == (p.partition, p.lso)
        ),
        None,
    )


def _why(
    p: PartitionBounds, committed: int, visible: int, withheld: int, blocker: OpenTransaction | None
) -> str:
    if committed > p.hw:
        return (
            f"The committed offset {committed:,} lies beyond the end of the log ({p.hw:,}). Was the"
            " topic recreated?"
        )
    deleted = _deleted(p.start - committed) if committed < p.start else ""
    who = "an open transaction"
    if blocker:
        who = f"the {'hanging' if blocker.hanging else 'open'} transaction of {blocker.name}"
    behind = f"{who} from offset {p.lso:,} on withholds {_records(withheld)}"
    if visible:
        rest = f"; {behind}" if withheld else ""
        return f"{deleted}{_records(visible)} to read{rest}."
    if withheld:
        return f"{deleted}Stuck: nothing is left below the last stable offset, and {behind}."
    last = p.hw - max(committed, p.start)
    if last == 1:
        return (
            f"{deleted}Nothing is left to read: the last offset holds a marker, an aborted record"
            " or a hole."
        )
    if last:
        return (
            f"{deleted}Nothing is left to read: the last {last:,} offsets hold only markers,"
            " aborted records or holes."
        )
    return f"{deleted}{NOTHING_LEFT}"


def _deleted(count: int) -> str:
    was, them = ("offset was", "it") if count == 1 else ("offsets were", "them")
    return (
        f"{count:,} {was} deleted before it read {them} (records or transaction markers: the log"
        " no longer tells). "
    )


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"
