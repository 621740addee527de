"""Answers of the transaction coordinators and partition leaders, as a witness of a ledger.

Facts, not frames: there are few of them, they are counted on arrival, and a sound topic costs no
Spark job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from topicproof.validators.durations import in_words
from topicproof.validators.evidence import COLUMNS

CLEANUP_MS = 10_000
"""Default interval at which a coordinator looks for expired transactions
(`transaction.abort.timed.out.transaction.cleanup.interval.ms`): a transaction may exceed its
timeout by this much."""
STUCK_MS = 10_000
"""A marker that takes longer than this is stuck, not slow: brokers retry every few ms."""
PREPARED = ("PrepareCommit", "PrepareAbort")
"""The outcome is decided, and markers are on their way to the partitions. This should take
milliseconds."""
COMMITTED = "CompleteCommit"
"""Every partition has acknowledged its COMMIT marker."""

TWO_PHASE_TIMEOUT_MS = 2**31 - 1
"""The timeout of a transaction in a two-phase commit (KIP-939): its coordinator never aborts it.
Brokers give this timeout to no other transaction, and do not tell whether it is prepared."""


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
    def two_phase(self) -> bool:
        """Whether another system decides its outcome, and may already consider it committed."""
        return self.timeout_ms == TWO_PHASE_TIMEOUT_MS

    @property
    def stuck(self) -> bool:
        """Whether it was decided, but its marker is still missing after all this time."""
        late = self.overdue if self.decided_ms is None else self.decided_ms > STUCK_MS
        return not self.hanging and self.state in PREPARED and late

    @property
    def _marker_lost(self) -> str:
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
        records = "1 record" if self.withheld == 1 else f"{self.withheld:,} records"
        effect = (
            f"withholds {records} of partition {self.partition} from offset"
            f" {self.start_offset:,} on"
        )
        age = in_words(self.age_ms)
        if self.hanging:
            name = f" of {self.transactional_id}" if self.transactional_id else ""
            return (
                f"Hanging: producer {self.producer_id}{name} last wrote {age} ago, no coordinator"
                f" knows of its transaction here, and it {effect} until an operator aborts it."
                f"{self._marker_lost}"
            )
        if self.unseen:
            return (
                f"Not known: producer {self.producer_id} last wrote {age} ago, and its open"
                f" transaction {effect}. It may be under way, or hang: coordinators hide it from a"
                " client without Describe on its transactional id. Ask for that right."
            )
        if self.two_phase and self.state not in PREPARED:
            return (
                f"{self.transactional_id} ({self.state}) takes part in a two-phase commit and is"
                f" open for {age}. Only its owner ends it; until then it {effect}."
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
        late = ", which is over" if self.overdue else ""
        return (
            f"{self.transactional_id} ({self.state}) is open for {age} of at most {limit}{late} and"
            f" {effect}."
        )


@dataclass(frozen=True)
class UnstableOffset:
    """A group's offset that an unfinished transaction is about to move: the next owner of the
    partition must wait."""

    group: str
    topic: str
    partition: int
    holders: tuple[OpenTransaction, ...]
    """Transactions that are open on the group's partition of `__consumer_offsets`; one of them
    holds the offset."""

    @property
    def stuck(self) -> bool:
        """Whether no holder will end by itself."""
        return all(holder.hanging or holder.overdue for holder in self.holders)

    @property
    def why(self) -> str:
        """A sentence for a person."""
        names = " or ".join(holder.name for holder in self.holders)
        age = in_words(max(holder.age_ms for holder in self.holders))
        state = "which should have ended by now" if self.stuck else "which is under way"
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


class Row(NamedTuple):
    """A row of evidence about a transaction rather than a record."""

    partition: int | None
    """None for a place outside the sink."""
    offset: int | None
    transaction: str
    explained_by: str | None
    badness: int
    why: str


def row(transaction: OpenTransaction, why: str, explained_by: str | None = None) -> Row:
    """Returns a row at the transaction's place in the sink; the more it withholds, the worse it
    is."""
    return Row(
        transaction.partition,
        transaction.start_offset,
        transaction.name,
        explained_by,
        transaction.withheld,
        why,
    )


def told(spark: SparkSession, rows: Iterable[Row]) -> DataFrame | None:
    """Returns the rows as evidence; None if there are none."""
    evidence_rows = [
        (entry.partition, entry.offset, None, None, None, None, *entry[2:]) for entry in rows
    ]
    return spark.createDataFrame(evidence_rows, COLUMNS) if evidence_rows else None
