"""What a watch alarms of, by two looks at a cluster one after the other.

A *condition* is wrong for as long as it lasts: a hanging transaction, a group behind a transaction
that is open for too long, a committed offset outside its log. An *event* happened between the two
looks: a group's offset moved backwards or vanished, a topic was deleted and made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from topicproof.backend.kafka.browse.causes import Cause, CauseKind, Severity, causes
from topicproof.backend.kafka.browse.overview import Overview
from topicproof.backend.watch.group_offsets import Place, by_topic
from topicproof.validators.sentences import counted

TOPICS_MAX = 100_000
"""Topics whose ids are remembered."""
NAMES_MAX = 20
"""Topics, groups or partitions that an alarm names. It counts the others."""
PATIENCE_S = 60.0
"""Default age from which on an open transaction that a group waits for is a condition."""


class Kind(StrEnum):
    """A kind of condition or event. The value is its name in JSON and a label of metrics."""

    HANGING = "hanging_transaction"
    """No coordinator knows of it (KIP-664): only an operator ends it."""
    OVERDUE = "overdue_transaction"
    """Its coordinator should have ended it, or its marker is missing."""
    WAITING = "waiting_group"
    """A group has read all it can, and waits for a transaction that is open for too long."""
    BELOW_START = "offset_below_log_start"
    """Retention has overtaken the group: records that it did not read are gone."""
    BEYOND_END = "offset_beyond_log_end"
    """The log was truncated, or the offset is another topic's."""
    BACKWARDS = "offset_moved_backwards"
    VANISHED = "offset_vanished"
    REPLACED = "topic_replaced"
    """The topic was deleted and made again: it has another id (KIP-516)."""
    VIOLATED = "contract_violated"
    """A kind of finding breaks a contract that is watched."""
    UNKNOWN = "contract_unknown"
    """A premise of a contract that is watched is broken: it cannot be judged any more."""
    UNSENT = "notices_unsent"
    """More notices waited than a watch remembers. The least important were never sent."""


EVENTS = frozenset({Kind.BACKWARDS, Kind.VANISHED, Kind.REPLACED, Kind.UNSENT})
"""Kinds that happen. All others last."""
OF_CONTRACTS = frozenset({Kind.VIOLATED, Kind.UNKNOWN})
OF_TRANSACTIONS = frozenset({Kind.HANGING, Kind.OVERDUE, Kind.WAITING})
OF_GROUPS = frozenset({Kind.BELOW_START, Kind.BEYOND_END, Kind.BACKWARDS, Kind.VANISHED})
"""Whoever may commit offsets makes as many of them as he likes."""


@dataclass(frozen=True)
class Condition:
    """Something that is wrong at one look, or that happened before it."""

    kind: Kind
    holder: str
    """Who or what it is about: the same at each look, as long as it lasts."""
    sentence: str
    topics: tuple[str, ...]
    """At most `NAMES_MAX`."""
    groups: tuple[str, ...] = ()
    """Groups that it holds back; at most `NAMES_MAX`."""
    next_step: str = ""
    """What an operator does about it, in sentences."""
    offsets: tuple[tuple[str, int, int], ...] = ()
    """Topic, partition and offset where it is seen; at most `NAMES_MAX`."""
    contract: str = ""
    """The contract that it is about; empty without one."""
    finding: str = ""
    """Its kind of finding, as a report names it."""
    count: int = 1
    """How many conditions or notices it stands for."""

    @property
    def key(self) -> str:
        """Its identity. Two looks at the same condition have the same."""
        return f"{self.kind} {self.holder}"


@dataclass(frozen=True)
class ClusterLook:
    """A cluster at one moment."""

    overview: Overview
    group_offsets: Mapping[Place, int]
    """Committed offsets, read before the overview, so that none is newer than its log's end
    there."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """By topic, as Kafka's tools print them. Brokers before 2.8 have none (KIP-516)."""
    notes: tuple[str, ...] = ()
    """What could not be looked at, or was left out. What is missing then is no all-clear."""

    @property
    def is_whole(self) -> bool:
        return not (self.notes or self.overview.not_heard)

    @property
    def clear_kinds(self) -> frozenset[Kind]:
        """Kinds whose absence is an all-clear: all that they need was looked at."""
        of_transactions = frozenset() if self.overview.not_heard else OF_TRANSACTIONS
        return of_transactions | (frozenset() if self.notes else frozenset(Kind) - OF_TRANSACTIONS)

    @cached_property
    def left_out(self) -> frozenset[str]:
        """Topics that exist and were not looked at: those with a partition without a leader, and
        Kafka's own."""
        return frozenset(self.topic_ids.keys() - {topic.topic for topic in self.overview.topics})

    @property
    def log_starts(self) -> dict[tuple[str, int], int]:
        """The first offset of each partition, by topic and partition."""
        return {
            (topic.topic, p.partition): p.start
            for topic in self.overview.topics
            for p in topic.bounds.partitions
        }


@dataclass(frozen=True)
class Baseline:
    """What the next look is compared with."""

    offsets: Mapping[Place, int] = field(default_factory=dict)
    """Of the groups."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Also of topics that are gone by now: one may be made again."""
    log_starts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """By topic and partition."""

    def after(self, look: ClusterLook) -> Baseline:
        """Return what the look behind this one is compared with."""
        topic_ids = {**self.topic_ids, **look.topic_ids}
        newest = list(topic_ids.items())[-TOPICS_MAX:]
        offsets = look.group_offsets
        if look.notes and not offsets:
            # They could not be read. What moves meanwhile is seen at the next look that can.
            offsets = self.offsets
        starts = {place: at for place, at in self.log_starts.items() if place[0] in look.left_out}
        return Baseline(offsets, dict(newest), {**starts, **look.log_starts})


NOTHING_BEFORE = Baseline()


def conditions(
    before: Baseline, now: ClusterLook, *, patience_s: float = PATIENCE_S, options: str
) -> tuple[Condition, ...]:
    """Return what is wrong now, and what has happened since the look before.

    `patience_s`: from which age on an open transaction is wrong that a group waits for. `options`:
    those that name the cluster on a command line, each after a space.
    """
    listed = causes(now.overview, options)
    starts = {
        (part.producer_id, topic, part.partition): part.start_offset
        for transaction in now.overview.opened
        for topic, part in transaction.parts
    }
    current = [
        _of_cause(cause, kind, starts)
        for cause in listed
        if (kind := _kind_of(cause, patience_s)) is not None
    ]
    current += _outside_of_log(before, now)
    current += _replaced(before, now)
    current += _moved(before, now)
    return tuple(current)


def _kind_of(cause: Cause, patience_s: float) -> Kind | None:
    """Return as what a cause of trouble is alarmed of; None if it may end by itself soon."""
    if cause.kind is CauseKind.HANGING_TRANSACTION:
        return Kind.HANGING
    if cause.kind is not CauseKind.OPEN_TRANSACTION:
        return None
    if cause.severity is Severity.ERROR:
        return Kind.OVERDUE
    # One that this client may not see is under way, or hangs: nobody can tell.
    is_old = cause.timeout_ms is not None and (cause.age_ms or 0) > patience_s * 1_000
    return Kind.WAITING if cause.groups and is_old else None


def _of_cause(cause: Cause, kind: Kind, starts: Mapping[tuple[int, str, int], int]) -> Condition:
    """`starts`: the first offset of each transaction by producer, topic and partition."""
    producer = cause.producer_id
    assert producer is not None, "a transaction has a producer"
    steps = [cause.advice, *(f"Dry run: {command}" for command in cause.commands[:1])]
    return Condition(
        kind=kind,
        holder=f"producer {producer}",
        sentence=cause.sentence,
        topics=cause.topics[:NAMES_MAX],
        groups=cause.groups[:NAMES_MAX],
        next_step=" ".join(steps),
        offsets=tuple(
            (topic, partition, starts[producer, topic, partition])
            for topic, partition in cause.places[:NAMES_MAX]
        ),
    )


def _outside_of_log(before: Baseline, now: ClusterLook) -> Iterator[Condition]:
    """Yield a condition for each group and topic with offsets outside of the log.

    A log start may pass an offset between two answers of one look. So an offset counts as too low
    when it is below the start of the look before.
    """
    starts = before.log_starts
    ends = {
        (topic.topic, p.partition): p.hw
        for topic in now.overview.topics
        for p in topic.bounds.partitions
    }
    for group, topic, offsets in by_topic(now.group_offsets):
        low = {p: offset for p, offset in offsets.items() if offset < starts.get((topic, p), 0)}
        if low:
            lost = sum(starts[topic, p] - offset for p, offset in low.items())
            yield _of_group(
                Kind.BELOW_START,
                (group, topic),
                low,
                f"Group {group} has not read {counted(lost, 'offset')} of {topic} that retention"
                f" has deleted, on {counted(len(low), 'partition')}.",
                "Its consumers jump by auto.offset.reset. Look in the source for what they missed.",
            )
        high = {
            p: offset
            for p, offset in offsets.items()
            if (topic, p) in ends and offset > ends[topic, p]
        }
        if high:
            yield _of_group(
                Kind.BEYOND_END,
                (group, topic),
                high,
                f"The offset of group {group} lies beyond the end of {topic}, on"
                f" {counted(len(high), 'partition')}: its log was truncated, or the offset is not"
                " of this topic.",
                "Reset the group's offset; what it read may not be what is there now.",
            )


def _replaced(before: Baseline, now: ClusterLook) -> Iterator[Condition]:
    for topic, topic_id in now.topic_ids.items():
        earlier = before.topic_ids.get(topic, topic_id)
        if earlier != topic_id:
            yield Condition(
                kind=Kind.REPLACED,
                holder=f"{topic} {topic_id}",
                sentence=f"Topic {topic} was deleted and made again: its id was {earlier} and is"
                f" {topic_id}. Offsets of the old one say nothing about the new one.",
                topics=(topic,),
                next_step="Watch on from its beginning; earlier verdicts are about the old topic.",
            )


def _moved(before: Baseline, now: ClusterLook) -> Iterator[Condition]:
    """Yield an event for each group and topic whose offsets went back or are gone."""
    later = now.group_offsets
    is_same = {
        topic.topic
        for topic in now.overview.topics
        if before.topic_ids.get(topic.topic) == now.topic_ids.get(topic.topic)
    }
    for group, topic, offsets in by_topic(before.offsets):
        if topic not in is_same:
            continue
        back = {
            p: later[Place(group, topic, p)]
            for p, offset in offsets.items()
            if later.get(Place(group, topic, p), offset) < offset
        }
        if back:
            again = sum(offsets[p] - offset for p, offset in back.items())
            yield _of_group(
                Kind.BACKWARDS,
                (group, topic),
                back,
                f"The offset of group {group} went back by {counted(again, 'offset')} of {topic},"
                f" on {counted(len(back), 'partition')}: it reads them again.",
                "If nobody reset it, look for two programs that use the same group.",
            )
        gone = {p: offset for p, offset in offsets.items() if Place(group, topic, p) not in later}
        if gone and not now.notes:
            yield _of_group(
                Kind.VANISHED,
                (group, topic),
                gone,
                f"Group {group} has no offset any more for {counted(len(gone), 'partition')} of"
                f" {topic}: deleted, or expired (offsets.retention.minutes).",
                "Its consumers begin by auto.offset.reset: again from the start, or at the end.",
            )


def _of_group(
    kind: Kind,
    place: tuple[str, str],
    offsets: Mapping[int, int],
    sentence: str,
    next_step: str,
) -> Condition:
    group, topic = place
    return Condition(
        kind=kind,
        holder=f"{group} {topic}",
        sentence=sentence,
        topics=(topic,),
        groups=(group,),
        next_step=next_step,
        offsets=tuple(
            (topic, partition, offset) for partition, offset in sorted(offsets.items())[:NAMES_MAX]
        ),
    )
