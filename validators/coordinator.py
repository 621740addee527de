"""What the transaction coordinators and the leaders of the partitions answered, as a witness of a
ledger.

Facts, not frames: there are few of them, they are counted when they come, and a sound topic costs
no Spark job.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from topicproof.validators.evidence import COLUMNS

CLEANUP_MS = 10_000
"""How often a coordinator looks for transactions beyond their timeout, by default
(`transaction.abort.timed.out.transaction.cleanup.interval.ms`): one may be that much older."""
STUCK_MS = 10_000
"""A marker that is on its way for longer than this is stuck, not slow: it is tried again every few
ms."""
PREPARED = ("PrepareCommit", "PrepareAbort")
"""The outcome is decided and on its way to the partitions as markers. It should take
milliseconds."""

TWO_PHASE_TIMEOUT_MS = 2**31 - 1
"""The timeout of a transaction that takes part in a two-phase commit (KIP-939): its coordinator
never aborts it. Brokers give it to no other, and do not tell whether it is prepared."""


@dataclass(frozen=True)
class OpenTransaction:
    """One transaction that one partition holds open."""

    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    """Of the last marker that its producer has here; -1: none yet."""
    start_offset: int
    """Its first record here; read_committed readers stop at the smallest of these."""
    transactional_id: str | None
    """None when no coordinator knows the producer."""
    state: str | None
    """The coordinator's word: Ongoing, PrepareCommit, PrepareAbort; None when it does not know the
    producer. Of a hanging one it may be anything: it is said of another transaction of the same
    producer."""
    age_ms: int
    """Since it began, by the coordinator's record; for a hanging one, since its producer last wrote
    here."""
    timeout_ms: int | None
    """After this long its coordinator aborts it; None for a hanging one, which nothing aborts."""
    records: int
    """Its own data records here."""
    withheld: int
    """Data records from its first one on: its own, and those of others that wait behind it."""
    hanging: bool
    decided_ms: int | None = None
    """How long ago its coordinator decided how it ends; None: it has not, or its log was not
    read."""

    @property
    def name(self) -> str:
        """Its transactional id, or what is known instead."""
        return self.transactional_id or f"producer {self.producer_id}"

    @property
    def overdue(self) -> bool:
        """Its coordinator should have aborted it by now."""
        return self.timeout_ms is not None and self.age_ms > self.timeout_ms + CLEANUP_MS

    @property
    def two_phase(self) -> bool:
        """Another system decides how it ends, and may count it as committed already."""
        return self.timeout_ms == TWO_PHASE_TIMEOUT_MS

    @property
    def stuck(self) -> bool:
        """It was decided, but after all this time its marker is not here."""
        late = self.overdue if self.decided_ms is None else self.decided_ms > STUCK_MS
        return not self.hanging and self.state in PREPARED and late

    @property
    def why(self) -> str:
        """One sentence for a person."""
        records = "1 record" if self.withheld == 1 else f"{self.withheld:,} records"
        effect = (
            f"withholds {records} of partition {self.partition} from offset"
            f" {self.start_offset:,} on"
        )
        age = f"{self.age_ms / 1000:.1f} s"
        if self.hanging:
            name = f" of {self.transactional_id}" if self.transactional_id else ""
            return (
                f"Hanging: producer {self.producer_id}{name} last wrote {age} ago, no coordinator"
                f" knows of its transaction here, and it {effect} until an operator aborts it."
            )
        if self.two_phase and self.state not in PREPARED:
            return (
                f"{self.transactional_id} ({self.state}) takes part in a two-phase commit and is"
                f" open for {age}. Only its owner ends it; until then it {effect}."
            )
        limit = f"{(self.timeout_ms or 0) / 1000:.1f} s"
        if self.stuck:
            end = "commit" if self.state == PREPARED[0] else "abort"
            when = "" if self.decided_ms is None else f" {self.decided_ms / 1000:.1f} s ago"
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
    """A group's offset that a transaction wants to move and has not: whoever takes the partition
    over must wait."""

    group: str
    topic: str
    partition: int
    holders: tuple[OpenTransaction, ...]
    """Transactions that are open on the group's partition of `__consumer_offsets`; one of them
    holds the offset."""

    @property
    def stuck(self) -> bool:
        """Nothing that ends by itself holds it."""
        return all(each.hanging or each.overdue for each in self.holders)

    @property
    def why(self) -> str:
        """One sentence for a person."""
        names = " or ".join(each.name for each in self.holders)
        age = f"{max(each.age_ms for each in self.holders) / 1000:.1f} s"
        said = "which should have ended by now" if self.stuck else "which is under way"
        return (
            f"The offset of group {self.group} on {self.topic}-{self.partition} is in the"
            f" transaction of {names}, {said} (open for {age}): a consumer that joins gets"
            " UNSTABLE_OFFSET_COMMIT until it ends."
        )


@dataclass(frozen=True)
class Coordinator:
    """Asked once, beside the readings."""

    partitions: int
    """Of the sink: the leader of each was asked for its producers."""
    open: tuple[OpenTransaction, ...]
    """On the sink."""
    offsets: int
    """Offsets that groups have on the source: each was asked for with the wish that it be
    stable."""
    unstable: tuple[UnstableOffset, ...]


class Row(NamedTuple):
    """A row of evidence that is about a transaction, not about a record."""

    partition: int | None
    """None for a place that is not in the sink."""
    offset: int | None
    transaction: str
    explained_by: str | None
    badness: int
    why: str


def row(each: OpenTransaction, why: str, explained_by: str | None = None) -> Row:
    """A row at the transaction's place in the sink; the more it withholds, the worse it is."""
    return Row(each.partition, each.start_offset, each.name, explained_by, each.withheld, why)


def told(spark: SparkSession, rows: Iterable[Row]) -> DataFrame | None:
    """The rows as evidence, None if there is none."""
    found = [(one.partition, one.offset, None, None, None, None, *one[2:]) for one in rows]
    return spark.createDataFrame(found, COLUMNS) if found else None
