"""Share groups (KIP-932): where each begins to read, and how many records it has left.

A share group has no committed offsets. Its members share partitions and acknowledge records one by
one. All records below the start offset of a partition are done; above it, some may be. No request
of a client tells which. The coordinator tells how many offsets are not done (KIP-1226). So what is
left is an upper bound in records: no more than lie above the start offset, nor than that lag.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
from kafka.admin import ConfigResource
from kafka.errors import (
    GroupAuthorizationFailedError,
    GroupIdNotFoundError,
    TopicAuthorizationFailedError,
    for_code,
)

from topicproof.backend.kafka.client_configs import READ_COMMITTED
from topicproof.backend.kafka.coordination.groups import (
    Group,
    Member,
    group_members,
    list_groups,
    members_first,
)
from topicproof.backend.kafka.coordination.lag import (
    PLACES_ASKED,
    PartitionRecords,
    holder_of_lso,
    partition_lag,
    records_of,
    topic_size,
)
from topicproof.backend.kafka.log.messages import DescribeShareGroupOffsetsRequest
from topicproof.backend.kafka.log.rawlog import Connection
from topicproof.backend.kafka.look import SHARE_GROUPS, LookBudget
from topicproof.validators.coordinator import OpenTransaction, short_name
from topicproof.validators.finding import Bounds, PartitionBounds

GROUPS_ASKED = 100
"""Groups in one request, unless the topic has many partitions."""
ISOLATION, RESET = "share.isolation.level", "share.auto.offset.reset"


@dataclass(frozen=True)
class SharePartition:
    """One share group on one partition."""

    partition: int
    start_offset: int | None
    """All records below it are done; above it, some may be. None: no record was acknowledged."""
    left: int | None
    """At most this many records are left to deliver, at the group's isolation level. None: unknown
    before the first acknowledgement, or without the isolation level."""
    withheld: int
    """Data records from the start offset on, at or above the LSO."""
    reported: int | None
    """The coordinator's lag in offsets, which counts markers and aborted records too. None: the
    broker does not tell it, or no record was acknowledged."""
    stuck: bool
    """It reads read_committed, nothing is left below the LSO, and an open transaction withholds the
    rest."""
    why: str
    """One sentence for people."""


@dataclass(frozen=True)
class ShareGroup:
    """One share group that has a start offset on the topic, or members that are assigned it."""

    group: str
    state: str
    """In Kafka's words: Stable, Empty, Dead."""
    isolation: str | None
    """Its `share.isolation.level`. None: it may not be read."""
    members: tuple[Member, ...]
    partitions: tuple[SharePartition, ...]

    @property
    def left(self) -> int | None:
        """At most this many records are left on all partitions that are known."""
        counts = [p.left for p in self.partitions if p.left is not None]
        return sum(counts) if counts else None

    @property
    def stuck(self) -> bool:
        return self.left == 0 and any(p.stuck for p in self.partitions)

    @property
    def trap(self) -> str | None:
        """One sentence if transactions do not protect its members."""
        if self.isolation is None:
            return (
                f"It is unknown whether {self.group} receives records of aborted transactions: this"
                f" client lacks DescribeConfigs on group {self.group}."
            )
        if self.isolation == READ_COMMITTED:
            return None
        return (
            f"{self.group} also receives records of open and aborted transactions: a share group"
            f" reads {self.isolation} unless its group configuration sets"
            f" {ISOLATION}={READ_COMMITTED}."
        )


def share_json(group: ShareGroup) -> dict[str, Any]:
    """Return a dict for `json.dumps`, with its sentences."""
    return asdict(group) | {"left": group.left, "stuck": group.stuck, "trap": group.trap}


def share_groups(
    kafka: Connection,
    topic: str,
    bounds: Bounds,
    ranges: pd.DataFrame,
    opened: Collection[OpenTransaction] = (),
    *,
    budget: LookBudget,
) -> tuple[ShareGroup, ...]:
    """Return every share group of the topic, by name; those with members first if the budget does
    not allow for all.

    `ranges` are the `fates.fate_ranges` of `bounds`. `opened` are the open transactions of the
    topic, if known. Raises ClusterError for a group or topic that may not be described, and
    kafka-python's errors, also for brokers before Kafka 4.1 that have share groups.
    """
    every = sorted((each for each in list_groups(kafka) if each.share), key=members_first)
    if not every:
        return ()
    records = {p.partition: records_of(ranges, p.partition) for p in bounds.partitions}
    holders = {p.partition: holder_of_lso(p, opened) for p in bounds.partitions}
    views: list[ShareGroup] = []
    at_once = min(GROUPS_ASKED, max(1, PLACES_ASKED // max(1, len(bounds.partitions))))
    for batch in budget.batches(every, at_once, SHARE_GROUPS):
        views += _views(kafka, topic, bounds, batch, budget, records, holders)
        # All partitions are asked about, whatever the answer is.
        budget.entries += len(batch) * len(bounds.partitions)
    return tuple(sorted(views, key=lambda view: view.group))


def _views(
    kafka: Connection,
    topic: str,
    bounds: Bounds,
    groups: Sequence[Group],
    budget: LookBudget,
    records: Mapping[int, PartitionRecords],
    holders: Mapping[int, OpenTransaction | None],
) -> list[ShareGroup]:
    """Return these groups, as `share_groups`. `records` and `holders` are those of each partition:
    what it holds, and the transaction that holds its LSO."""
    names = [each.group for each in groups]
    members = group_members(kafka, groups, topic_size(bounds), budget=budget)
    partitions = [p.partition for p in bounds.partitions]
    starts = kafka.with_retries(lambda: _starts(kafka, topic, partitions, names))
    configs = _configs(kafka, names)
    views = []
    for group in groups:
        current_members, config = members[group.group] or (), configs[group.group]
        assigned_partitions = {
            partition
            for member in current_members
            for name, partition in member.partitions
            if name == topic
        }
        offsets = starts.get(group.group, {})
        share_partitions = [
            _partition(
                p,
                *offsets.get(p.partition, (-1, -1)),
                config,
                records[p.partition],
                holders[p.partition],
            )
            for p in bounds.partitions
            if p.partition in assigned_partitions or offsets.get(p.partition, (-1, -1))[0] >= 0
        ]
        if share_partitions:
            level = config.get(ISOLATION)
            views.append(
                ShareGroup(
                    short_name(group.group),
                    group.state,
                    level,
                    current_members,
                    tuple(share_partitions),
                )
            )
    return views


def _starts(
    kafka: Connection, topic: str, partitions: Collection[int], names: Collection[str]
) -> dict[str, dict[int, tuple[int, int]]]:
    """Return start offset and lag of each partition, -1 if unknown, by group. A group that was
    deleted meanwhile has none."""
    ask = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
    request_topic = ask.DescribeShareGroupOffsetsRequestTopic(
        topic_name=topic, partitions=[*partitions]
    )

    def request(groups: list[str]) -> DescribeShareGroupOffsetsRequest:
        return DescribeShareGroupOffsetsRequest(
            groups=[ask(group_id=name, topics=[request_topic]) for name in groups]
        )

    starts: dict[str, dict[int, tuple[int, int]]] = {}
    for answer in kafka.ask_coordinators(names, request):
        for group in answer.groups:
            _require(kafka, group.error_code, topic, group.group_id)
            starts[group.group_id] = {}
            for each in (p for answered in group.topics for p in answered.partitions):
                _require(kafka, each.error_code, topic, group.group_id)
                starts[group.group_id][each.partition_index] = (each.start_offset, each.lag)
    return starts


def _require(kafka: Connection, error_code: int, topic: str, group: str) -> None:
    error = for_code(error_code)
    if error is GroupAuthorizationFailedError:
        raise kafka.address.not_allowed(f"Describe on group {group}")
    if error is TopicAuthorizationFailedError:
        raise kafka.address.not_allowed(f"Describe on topic {topic}")
    if error_code and error is not GroupIdNotFoundError:
        raise error(f"start offsets of share group {group} on {topic}")


def _configs(kafka: Connection, names: Collection[str]) -> dict[str, dict[str, str]]:
    """Return the settings of each group; none for one whose settings may not be read."""
    resources = [ConfigResource("GROUP", name) for name in names]
    answer = kafka.with_retries(
        lambda: kafka.admin.describe_configs(resources, config_filter="all")
    )
    return {
        name: {key: str(each["value"]) for key, each in answer["group"][name].items()}
        for name in names
    }


def _partition(
    p: PartitionBounds,
    start: int,
    reported: int,
    config: Mapping[str, str],
    records: PartitionRecords,
    holder: OpenTransaction | None,
) -> SharePartition:
    """Count from the start offset on. -1 stands for an unknown start or lag. `holder` is the
    transaction that holds the LSO, if known."""
    if start < 0:
        reset = config.get(RESET, "unknown to this client")
        why = f"No record was acknowledged yet. The group begins where {RESET} says: {reset}."
        return SharePartition(p.partition, None, None, 0, None, False, why)
    lag = partition_lag(p, start, records, holder)
    broker_lag = None if reported < 0 else reported
    most = lag.uncommitted if broker_lag is None else min(broker_lag, lag.uncommitted)
    level = config.get(ISOLATION)
    if level is None:
        why = f"At most {most:,} to read."
        return SharePartition(p.partition, start, None, lag.withheld, broker_lag, False, why)
    if level != READ_COMMITTED:
        unsafe = min(lag.uncommitted - lag.visible, most)
        why = f"At most {most:,} to read" if most else "Nothing is left to read"
        why += f", up to {unsafe:,} of them in open or aborted transactions" if unsafe else ""
        return SharePartition(p.partition, start, most, lag.withheld, broker_lag, False, f"{why}.")
    # No record above the LSO is delivered, so none of them is done.
    below = p.lso - start if broker_lag is None else max(0, broker_lag - (p.hw - p.lso))
    left = min(lag.visible, below)
    why = f"At most {left:,} to read."
    if not left:
        why = partition_lag(p, max(start, p.lso), records, holder).why
    stuck = left == 0 and lag.withheld > 0
    return SharePartition(p.partition, start, left, lag.withheld, broker_lag, stuck, why)
