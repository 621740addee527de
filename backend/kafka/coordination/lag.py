"""Consumer lag, counted in records instead of subtracted in offsets.

High watermark minus committed offset also counts markers, aborted records, holes, and records that
an open transaction withholds. On a transactional topic it may never reach 0. Here records are
counted from batch headers, at both isolation levels.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pandas as pd
from kafka import TopicPartition

from topicproof.backend.kafka.log.fates import DATA_FATES, records_between
from topicproof.backend.kafka.log.rawlog import Connection
from topicproof.validators.coordinator import OpenTransaction
from topicproof.validators.finding import Bounds, Fate, PartitionBounds


@dataclass(frozen=True)
class PartitionLag:
    """One group on one partition."""

    partition: int
    committed: int
    """The offset that the group reads next."""
    visible: int
    """Records readable now at read_committed: committed ones from there to the LSO."""
    uncommitted: int
    """Records readable now at read_uncommitted: all data from there to the high watermark."""
    withheld: int
    """Records from there on, at or above the LSO."""
    subtraction: int
    """High watermark minus committed offset: the number shown by other tools."""
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


@dataclass(frozen=True)
class GroupLag:
    """One group with committed offsets on the topic."""

    group: str
    state: str
    """The group's state in Kafka's words: Stable, Empty, Dead. Empty if the broker does not report
    it."""
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
    """Return the lag of every group with a committed offset on the topic, by name.

    `ranges` are the `fates.fate_ranges` of `bounds`. `opened` are the open transactions of the
    topic, if known. Then the lag names the one that a stuck group waits for.
    """
    states = group_states(kafka)
    names = sorted(states)
    if not names:
        return ()
    partitions = [TopicPartition(topic, p.partition) for p in bounds.partitions]
    answers = kafka.with_retries(
        lambda: kafka.admin.list_group_offsets(dict.fromkeys(names, partitions))
    )
    found = []
    for name in names:
        committed = {
            at.partition: each.offset for at, each in answers[name].items() if each.offset >= 0
        }
        lags = [
            partition_lag(p, committed[p.partition], ranges, _blocker(p, opened))
            for p in bounds.partitions
            if p.partition in committed
        ]
        if lags:
            found.append(GroupLag(name, states[name], tuple(lags)))
    return tuple(found)


def group_states(kafka: Connection) -> dict[str, str]:
    """Return the state of every group that commits offsets, by name; empty if the broker does not
    report it."""
    listed = kafka.with_retries(kafka.admin.list_groups)
    # Share groups (KIP-932) have no committed offset.
    return {
        each["group_id"]: str(each.get("group_state", ""))
        for each in listed
        if str(each.get("group_type", "")).lower() != "share"
    }


def partition_lag(
    p: PartitionBounds, committed: int, ranges: pd.DataFrame, blocker: OpenTransaction | None = None
) -> PartitionLag:
    """Return the lag of a group that reads `committed` next. `blocker` is the transaction that
    holds the LSO, if known."""
    visible = records_between(ranges, p.partition, committed, p.lso, [Fate.COMMITTED])
    uncommitted = records_between(ranges, p.partition, committed, p.hw, DATA_FATES)
    withheld = records_between(ranges, p.partition, max(committed, p.lso), p.hw, DATA_FATES)
    own = ranges[(ranges["partition"] == p.partition) & (ranges["records"] > 0)]
    across = own[(own["first_offset"] < committed) & (own["last_offset"] >= committed)]
    span = across["last_offset"] - across["first_offset"] + 1
    stuck = visible == 0 and withheld > 0
    return PartitionLag(
        partition=p.partition,
        committed=committed,
        visible=visible,
        uncommitted=uncommitted,
        withheld=withheld,
        subtraction=p.hw - committed,
        exact=bool((across["records"] == span).all()),
        stuck=stuck,
        stuck_behind=blocker.name if stuck and blocker else None,
        why=_why(p, committed, visible, withheld, blocker),
    )


def _blocker(p: PartitionBounds, opened: Collection[OpenTransaction]) -> OpenTransaction | None:
    """Return the transaction that begins at the partition's LSO."""
    return next(
        (each for each in opened if (each.partition, each.start_offset) == (p.partition, p.lso)),
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
    if last:
        return (
            f"{deleted}Nothing is left to read: the last {last:,} offsets hold only markers,"
            " aborted records or holes."
        )
    return f"{deleted}Nothing is left to read."


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"
