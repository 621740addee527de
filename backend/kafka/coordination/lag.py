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

from collections.abc import Collection
from dataclasses import dataclass

import pandas as pd
from kafka import TopicPartition

from topicproof.backend.kafka.coordination.groups import (
    Member,
    group_members,
    list_groups,
)
from topicproof.backend.kafka.log.fates import DATA_FATES, records_between
from topicproof.backend.kafka.log.rawlog import Connection
from topicproof.validators.coordinator import OpenTransaction
from topicproof.validators.finding import Bounds, Fate, PartitionBounds

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
    """Members of the group, also those that own nothing of the topic. None: as in
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
) -> tuple[GroupLag, ...]:
    """Return the lag of every group that owns partitions of the topic or has committed offsets on
    it, by name.

    `ranges` are the `fates.fate_ranges` of `bounds`. `opened` are the open transactions of the
    topic, if known. Then the lag names the one that a stuck group waits for. Raises kafka-python's
    errors, and ClusterError for a group that may not be described.
    """
    groups = [each for each in list_groups(kafka) if not each.share]
    if not groups:
        return ()
    partitions = [TopicPartition(topic, p.partition) for p in bounds.partitions]
    # Members first: an offset that is committed between the two requests is not missed.
    members = group_members(kafka, groups)
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
                ranges,
                holder_of_lso(p, opened),
                owners.get(p.partition),
            )
            for p in bounds.partitions
            if p.partition in partition_numbers
        ]
        if lags:
            current_members = members[group.group]
            lags_of_groups.append(
                GroupLag(group.group, group.kind, group.state, current_members, tuple(lags))
            )
    return tuple(lags_of_groups)


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
    return members is not None and not any(
        member.partitions or member.awaited for member in members
    )


def partition_lag(
    p: PartitionBounds,
    committed: int | None,
    ranges: pd.DataFrame,
    blocker: OpenTransaction | None = None,
    owner: Member | None = None,
) -> PartitionLag:
    """Return the lag of a group that reads `committed` next; None: the log start. `blocker` is the
    transaction that holds the LSO, if known."""
    first = p.start if committed is None else committed
    visible = records_between(ranges, p.partition, first, p.lso, [Fate.COMMITTED])
    uncommitted = records_between(ranges, p.partition, first, p.hw, DATA_FATES)
    withheld = records_between(ranges, p.partition, max(first, p.lso), p.hw, DATA_FATES)
    data_ranges = ranges[(ranges["partition"] == p.partition) & (ranges["records"] > 0)]
    across = data_ranges[
        (data_ranges["first_offset"] < first) & (data_ranges["last_offset"] >= first)
    ]
    span = across["last_offset"] - across["first_offset"] + 1
    stuck = visible == 0 and withheld > 0
    return PartitionLag(
        partition=p.partition,
        committed=committed,
        owner=owner,
        visible=visible,
        uncommitted=uncommitted,
        withheld=withheld,
        subtraction=p.hw - first,
        exact=bool((across["records"] == span).all()),
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
    deleted = (
        f"{p.start - committed:,} offsets were deleted before it read them. "
        if committed < p.start
        else ""
    )
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


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"
