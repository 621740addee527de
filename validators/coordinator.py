"""Answers of the transaction coordinators and partition leaders, as a witness of a ledger.

Facts, not frames: there are few of them, they are counted on arrival, and a sound topic costs no
Spark job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from topicproof.validators.sentences import counted, in_words

CLEANUP_MS = 10_000
"""Default interval at which a coordinator looks for expired transactions
(`transaction.abort.timed.out.transaction.cleanup.interval.ms`): a transaction may exceed its
timeout by this much."""
STUCK_MS = 10_000
"""A marker that takes longer than this is stuck, not slow: brokers retry every few ms."""
ONGOING = "Ongoing"
"""A transaction that nobody has decided yet."""
PREPARED = ("PrepareCommit", "PrepareAbort")
"""The outcome is decided, and markers are on their way to the partitions. This should take
milliseconds."""
COMMITTED = "CompleteCommit"
"""Every partition has acknowledged its COMMIT marker."""

NAME_KEPT_MAX = 249
"""Characters of a transactional id, a group or a client that are kept and shown, as many as the
name of a topic may have. Kafka allows 32 kB."""

TWO_PHASE_TIMEOUT_MS = 2**31 - 1
"""The timeout of a transaction in a two-phase commit (KIP-939): its coordinator never aborts it.
Brokers give this timeout to no other transaction, and do not tell whether it is prepared."""


def short_name(name: str) -> str:
    """Returns a transactional id, or the name of a group or a client, in at most `NAME_KEPT_MAX`
    characters. A hash keeps long ones apart that begin alike."""
    if len(name) <= NAME_KEPT_MAX:
        return name
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:12]
    return f"{name[: NAME_KEPT_MAX - len(digest) - 1]}…{digest}"


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that one partition holds open."""

    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    """Epoch in the producer's last marker here; -1: no marker yet."""
    start_offset: int
    """Its first record here; read_committed readers stop at the smallest of these."""
    transactional_id: str | None
    """None when no coordinator knows the producer."""
    state: str | None
    """The coordinator's state: Ongoing, PrepareCommit, PrepareAbort; None if it does not know the
    producer. For a hanging transaction it may be anything, as it describes another transaction of
    the same producer."""
    age_ms: int
    """Time since it began, by the coordinator's record; for a hanging transaction, since its
    producer last wrote here."""
    timeout_ms: int | None
    """Its coordinator aborts it after this time; None for a hanging transaction, which nothing
    aborts."""
    records: int
    """Its own data records here."""
    withheld: int
    """Data records from its first one on: its own, and those of others that wait for it."""
    hanging: bool
    decided_ms: int | None = None
    """Time since its coordinator decided the outcome; None: undecided, or the coordinator's log was
    not read."""

    unseen: bool = False
    """Whether no coordinator told this client of it, and this client may not describe every
    transactional id. It may hang, or be under way: coordinators hide what a client may not see."""

    @property
    def name(self) -> str:
        """Its transactional id, or what else is known of it."""
        return self.transactional_id or f"producer {self.producer_id}"

    @property
    def overdue(self) -> bool:
        """Whether its coordinator should have aborted it by now."""
        return self.timeout_ms is not None and self.age_ms > self.timeout_ms + CLEANUP_MS

    @property
    def ends_by_itself(self) -> bool:
        """Whether it is in time, so that its producer or its coordinator ends it."""
        return not self.hanging and not self.overdue

    @property
    def two_phase(self) -> bool:
        """Whether another system decides its outcome, and may already consider it committed."""
        return self.timeout_ms == TWO_PHASE_TIMEOUT_MS

    @property
    def stuck(self) -> bool:
        """Whether it was decided, but its marker is still missing after all this time."""
        late = self.overdue if self.decided_ms is None else self.decided_ms > STUCK_MS
        return not self.hanging and self.state in PREPARED and late

    @property
    def condition(self) -> str:
        """What it is in a word or two: hanging, not known, stuck, overdue or open."""
        if self.hanging:
            return "hanging"
        if self.unseen:
            return "not known"
        if self.stuck:
            return "stuck"
        return "overdue" if self.overdue else "open"

    @property
    def marker_lost(self) -> str:
        """A warning if the records may belong to a transaction that its coordinator committed."""
        if self.state != COMMITTED:
            return ""
        return (
            " Its producer's last transaction is committed. If an unclean leader election lost the"
            " marker of that one here (KAFKA-20716), an abort loses committed records."
        )

    @property
    def why(self) -> str:
        """A sentence for a person."""
        return self.sentence(
            f"withholds {counted(self.withheld, 'record')} of partition {self.partition} from"
            f" offset {self.start_offset:,} on"
        )

    def sentence(self, effect: str) -> str:
        """Return a sentence for a person, with what the transaction does, such as `withholds 3
        records`."""
        age = in_words(self.age_ms)
        if self.hanging:
            name = f" of {self.transactional_id}" if self.transactional_id else ""
            return (
                f"Hanging: producer {self.producer_id}{name} last wrote {age} ago, no coordinator"
                f" knows of its transaction here, and it {effect} until an operator aborts it."
                f"{self.marker_lost}"
            )
        if self.unseen:
            return (
                f"Not known: producer {self.producer_id} last wrote {age} ago, and its open"
                f" transaction {effect}. It may be under way, or hang: coordinators hide it from a"
                " client without Describe on its transactional id. Ask for that right."
            )
        if self.two_phase and self.state not in PREPARED:
            return (
                f"{self.transactional_id} ({self.state}) takes part in a two-phase commit and has"
                f" been open for {age}. Only its owner ends it; until then it {effect}."
            )
        limit = in_words(self.timeout_ms or 0)
        if self.stuck:
            end = "commit" if self.state == PREPARED[0] else "abort"
            when = "" if self.decided_ms is None else f" {in_words(self.decided_ms)} ago"
            return (
                f"Stuck: {self.transactional_id} ({self.state}) began {age} ago (timeout {limit}),"
                f" its coordinator decided to {end} it{when}, but the marker is not here, and it"
                f" {effect}."
            )
        end = f"its timeout of {limit} is over" if self.overdue else f"aborted after {limit}"
        state = "" if self.state == ONGOING else f" ({self.state})"
        return f"{self.transactional_id}{state} has been open for {age} ({end}) and {effect}."


@dataclass(frozen=True)
class WholeTransaction:
    """An open transaction with all the partitions that hold it open, as far as they were asked."""

    parts: tuple[tuple[str, OpenTransaction], ...]
    """Topic and transaction for each partition, in this order; at least one."""

    @property
    def worst(self) -> tuple[str, OpenTransaction]:
        """The part that withholds most."""
        return max(self.parts, key=lambda part: part[1].withheld)

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(topic for topic, _part in self.parts))

    @property
    def withheld(self) -> int:
        """Data records that it withholds, over all its partitions."""
        return sum(part.withheld for _topic, part in self.parts)

    @property
    def hanging(self) -> bool:
        return self.worst[1].hanging

    @property
    def age_ms(self) -> int:
        return max(part.age_ms for _topic, part in self.parts)

    @property
    def why(self) -> str:
        """A sentence for a person."""
        worst = self.worst[1]
        if len(self.parts) == 1:
            return worst.why
        of = f"{len(self.parts):,} partitions"
        if len(self.topics) > 1:
            of += f" of {len(self.topics):,} topics"
        return worst.sentence(f"withholds {counted(self.withheld, 'record')} of {of}")


def whole_transactions(
    parts: Iterable[tuple[str, OpenTransaction]],
) -> tuple[WholeTransaction, ...]:
    """Join the partitions of each open transaction, given with their topics: hanging ones first,
    then the oldest.

    A producer has one transaction at a time. What hangs is what an earlier one left, so it is kept
    apart from a transaction that its coordinator knows.
    """
    by_producer: dict[tuple[int, bool], list[tuple[str, OpenTransaction]]] = {}
    for topic, part in parts:
        by_producer.setdefault((part.producer_id, part.hanging), []).append((topic, part))
    whole = (
        WholeTransaction(tuple(sorted(each, key=lambda part: (part[0], part[1].partition))))
        for each in by_producer.values()
    )
    return tuple(
        sorted(whole, key=lambda transaction: (not transaction.hanging, -transaction.age_ms))
    )


@dataclass(frozen=True)
class UnstableOffset:
    """A group's offset that an unfinished transaction is about to move: the next owner of the
    partition must wait."""

    group: str
    topic: str
    partition: int
    holders: tuple[OpenTransaction, ...]
    """The oldest transactions that are open on the group's partition of `__consumer_offsets`,
    behind those that will end by themselves. One of all of them holds the offset."""
    further: int = 0
    """How many more are open there."""
    has_unseen_holders: bool = False
    """Whether even more may be open there, which were not looked at: one of them may be in time."""

    @property
    def stuck(self) -> bool:
        """Whether no holder will end by itself."""
        return not self._is_in_time and not self.has_unseen_holders

    @property
    def _is_in_time(self) -> bool:
        return any(holder.ends_by_itself for holder in self.holders)

    @property
    def why(self) -> str:
        """A sentence for a person."""
        names = " or ".join(holder.name for holder in self.holders)
        if self.has_unseen_holders:
            names += " or another"
        elif self.further:
            names += f" or one of {self.further:,} more"
        age = in_words(max(holder.age_ms for holder in self.holders))
        if self.stuck:
            state = "which should have ended by now"
        else:
            state = "which is under way" if self._is_in_time else "which may be under way"
        return (
            f"The offset of group {self.group} on {self.topic}-{self.partition} is in the"
            f" transaction of {names}, {state} (open for {age}): a consumer that joins gets"
            " UNSTABLE_OFFSET_COMMIT until it ends."
        )


@dataclass(frozen=True)
class Coordinator:
    """The answers, taken once, beside the readings."""

    partitions: int
    """Sink partitions: the leader of each was asked for its producers."""
    open: tuple[OpenTransaction, ...]
    """Open transactions on the sink."""
    offsets: int
    """Offsets of groups on the source; each was requested as a stable offset."""
    unstable: tuple[UnstableOffset, ...]
    left_out: int = 0
    """Open transactions on the sink that were not looked at, because there are too many."""
    offsets_left_out: int = 0
    """The same for groups, their unstable offsets, and the transactions that hold these."""

    @property
    def left_out_note(self) -> str:
        """A sentence about what was not looked at; empty if nothing."""
        things = []
        if self.left_out:
            things.append(f"{counted(self.left_out, 'open transaction')} of the sink")
        if self.offsets_left_out:
            things.append(f"{self.offsets_left_out:,} groups, offsets or transactions of groups")
        return f"Left out, because there are too many: {' and '.join(things)}." if things else ""

    @property
    def hides(self) -> bool:
        """Whether a transaction may hang on the sink unseen."""
        return self.left_out > 0 or any(transaction.unseen for transaction in self.open)


class AbortReason(NamedTuple):
    """Why one partition's transaction was aborted."""

    partition: int
    first_offset: int
    """Of its data in the partition."""
    reason: str
    """declared, timeout, fenced or operator (backend/kafka/coordination/reasons.py)."""


@dataclass(frozen=True)
class Attribution:
    """Who wrote the sink's transactions, and why some were aborted, by the coordinators' own log.
    What is missing is unknown: the log is compacted, and not everybody may read it."""

    transactional_ids: Mapping[int, str] = field(default_factory=dict)
    """By producer id."""
    reasons: tuple[AbortReason, ...] = ()


NO_ATTRIBUTION = Attribution()
