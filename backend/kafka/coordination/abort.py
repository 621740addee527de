"""Aborts an open transaction for an operator: first a plan of what is lost, then the abort.

A hanging transaction gets an ABORT marker on its partition (WriteTxnMarkers, KIP-664): no
coordinator knows it, so none can contradict. An ordinary open transaction must never end that way,
because its coordinator might still commit it on other partitions. Instead its transactional id is
taken over: the coordinator aborts it everywhere and fences its producer. A transaction that its
coordinator has already decided is left alone: its marker is on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Any

import pyarrow.compute as pc
from kafka import TopicPartition
from kafka.admin._transactions import AbortTransactionSpec
from kafka.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    TransactionCoordinatorFencedError,
)

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, UsageError
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.coordination.coordinator import open_transactions
from topicproof.backend.kafka.log.fates import fate_ranges
from topicproof.backend.kafka.log.rawlog import Connection, connect
from topicproof.backend.kafka.look import LookBudget, LookLimits
from topicproof.backend.waiting import ask_until
from topicproof.validators.coordinator import PREPARED, OpenTransaction
from topicproof.validators.finding import Bounds, PartitionBounds
from topicproof.validators.shell_words import command_line

ABORT_LIMITS = LookLimits(transactions=100_000, size=500_000_000, seconds=600.0)
"""An operator names one transaction, which may be any of its partition."""
MOVE_S = 10.0
"""How long to wait until the partition shows the end of the transaction."""


@dataclass(frozen=True)
class EndPlan:
    """What an abort or a commit would end now."""

    topic: str
    found: OpenTransaction
    bytes: int
    """Size of the transaction's record batches on this partition, as stored."""
    last_offset: int
    """Offset of the transaction's last record on this partition."""
    last_written_ms: int
    """The time of that record, in ms since 1970."""
    bounds: PartitionBounds
    next_stable: int
    """The last stable offset afterwards: the next open transaction, else the end."""

    @property
    def released(self) -> int:
        """At most this many records of others become readable or settle; some may wait behind the
        next open transaction."""
        return self.found.withheld - self.found.records

    @property
    def whose(self) -> str:
        """The producer, in words."""
        name = (
            f"transactional id {self.found.transactional_id}, "
            if self.found.transactional_id
            else ""
        )
        return f"{name}producer {self.found.producer_id}, epoch {self.found.producer_epoch}"

    @property
    def records(self) -> str:
        """The transaction's records on this partition, in words."""
        return (
            f"{_records(self.found.records)} ({self.bytes:,} bytes as stored) at offsets"
            f" {self.found.start_offset:,} to {self.last_offset:,} of"
            f" {self.topic}-{self.found.partition}, written by {self.whose}"
        )

    @property
    def gained(self) -> str:
        """One sentence: what is no longer withheld."""
        moves = (
            f"The last stable offset moves from {self.bounds.lso:,} to {self.next_stable:,} or"
            " beyond"
        )
        if self.next_stable <= self.bounds.lso:
            moves = (
                f"The last stable offset stays at {self.bounds.lso:,}, where an earlier transaction"
                " is open"
            )
        return f"{moves}; {_records(self.released)} of other producers wait behind it."


@dataclass(frozen=True)
class AbortPlan(EndPlan):
    """What an abort would do now."""

    @property
    def lost(self) -> str:
        """One sentence: what read_committed consumers will never get."""
        return f"Lost for every read_committed consumer: {self.records}."

    @property
    def means(self) -> str:
        """How the abort works, and who else is affected."""
        if self.found.hanging:
            return (
                "An ABORT marker is written to this partition; no coordinator knows the"
                " transaction."
            )
        sentence = (
            f"Its coordinator aborts {self.found.transactional_id} on all its partitions, and its"
            " producer is fenced: if it is alive, its next call fails."
        )
        if self.found.two_phase:
            sentence += (
                " If the other system of the two-phase commit has committed, its data and Kafka's"
                " differ from then on."
            )
        return sentence

    def to_json(self) -> dict[str, Any]:
        """Return a dict for `json.dumps`, every sentence included."""
        sentences = {name: getattr(self, name) for name in ("lost", "gained", "means")}
        return asdict(self) | sentences | {"released": self.released}


def plan_abort(
    address: Address,
    topic: str,
    partition: int,
    offset: int | None = None,
    producer_id: int | None = None,
    open_too: bool = False,
    two_phase_too: bool = False,
) -> AbortPlan:
    """Plan to abort the transaction that begins at `offset` or belongs to `producer_id`. Changes
    nothing.

    Raises UsageError when there is no such open transaction; when it is not hanging, unless
    `open_too`; when it takes part in a two-phase commit, unless `two_phase_too`; and always when
    its coordinator has decided its outcome. Raises TopicError and ClusterError as
    `open_transactions` does.
    """
    with connect(address) as kafka:
        return _plan(kafka, topic, partition, offset, producer_id, open_too, two_phase_too)


def abort(address: Address, plan: AbortPlan) -> PartitionBounds:
    """Abort, if the transaction is still the planned one; returns the partition's bounds
    afterwards.

    Raises UsageError when it has ended by itself, ClusterError when the broker refuses or the
    partition does not show the end in time.
    """
    transaction = plan.found
    with connect(address) as kafka:
        _plan(
            kafka,
            plan.topic,
            transaction.partition,
            transaction.start_offset,
            transaction.producer_id,
            open_too=not transaction.hanging,
            two_phase_too=transaction.two_phase,
        )
        if transaction.hanging:
            _write_marker(kafka, plan)
        else:
            assert transaction.transactional_id is not None, (
                "a coordinator knows every transaction that is not hanging"
            )
            Cluster(address).fence_and_abort([transaction.transactional_id])
        return await_end(kafka, plan, "abort")


def _plan(
    kafka: Connection,
    topic: str,
    partition: int,
    offset: int | None,
    producer_id: int | None,
    open_too: bool,
    two_phase_too: bool,
) -> AbortPlan:
    plan = plan_end(kafka, topic, partition, offset, producer_id)
    _require_abortable(plan.found, open_too, two_phase_too)
    return AbortPlan(**vars(plan))


def plan_end(
    kafka: Connection, topic: str, partition: int, offset: int | None, producer_id: int | None
) -> EndPlan:
    """Return the transaction that begins at `offset` or belongs to `producer_id`, and what waits
    for its end. Raises UsageError when there is no such open transaction."""
    bounds = kafka.bounds(topic)
    p = next((p for p in bounds.partitions if p.partition == partition), None)
    if p is None:
        raise UsageError(
            f"Topic {topic} has no partition {partition}; it has {len(bounds.partitions)}."
        )
    behind = Bounds(topic, (PartitionBounds(partition, p.lso, p.lso, p.hw),))
    batches = kafka.scan(topic, behind)
    ranges = fate_ranges(batches, behind)
    budget = LookBudget(ABORT_LIMITS)
    opened = open_transactions(kafka, topic, behind, ranges, budget=budget, has_whole_ids=True)
    transaction = _chosen(opened, f"{topic}-{partition}", offset, producer_id, budget.note)
    data_batches = batches.filter(
        (pc.field("producer_id") == transaction.producer_id)
        & (pc.field("base_offset") >= transaction.start_offset)
        & pc.field("control").is_null()
    )
    return EndPlan(
        topic=topic,
        found=transaction,
        bytes=pc.sum(data_batches["size"]).as_py() or 0,
        last_offset=pc.max(data_batches["last_offset"]).as_py() or transaction.start_offset,
        last_written_ms=pc.max(data_batches["max_timestamp"]).as_py() or 0,
        bounds=p,
        next_stable=min(
            (other.start_offset for other in opened if other != transaction), default=p.hw
        ),
    )


def _chosen(
    opened: Sequence[OpenTransaction],
    place: str,
    offset: int | None,
    producer_id: int | None,
    note: str,
) -> OpenTransaction:
    """Return the transaction that was named. `note`: what was not looked at, for the error."""
    if offset is None and producer_id is None:
        raise UsageError("Say which transaction: its first offset, or --producer-id.")
    for transaction in opened:
        if offset in (None, transaction.start_offset) and producer_id in (
            None,
            transaction.producer_id,
        ):
            return transaction
    criteria = "" if offset is None else f" from offset {offset:,} on"
    criteria += "" if producer_id is None else f" by producer {producer_id}"
    listing = "; ".join(
        f"offset {transaction.start_offset:,} by producer {transaction.producer_id}"
        for transaction in opened
    )
    raise UsageError(
        f"{place} has no open transaction{criteria}. "
        + (f"Open there: {listing}." if listing else "None is open there.")
        + (f" {note}" if note else "")
    )


def _require_abortable(transaction: OpenTransaction, open_too: bool, two_phase_too: bool) -> None:
    if transaction.hanging:
        return
    if transaction.unseen:
        raise UsageError(
            f"{transaction.why} If it is still in progress, an ABORT marker would split it, so"
            " nothing was aborted. Grant this client Describe on all transactional ids (`topicproof"
            " rights --for inspect` prints the command), then try again."
        )
    if transaction.state in PREPARED:
        raise UsageError(
            f"{transaction.transactional_id} is already decided ({transaction.state}). Its"
            " coordinator writes the markers; another marker could split the transaction. If that"
            " takes long, check the brokers that lead its partitions."
        )
    if transaction.two_phase and not (open_too and two_phase_too):
        raise UsageError(
            f"{transaction.why} The system that coordinates the two-phase commit may count it as"
            " committed already: then its records would be lost. Ask that system first. To abort it"
            " anyway, add --open-too and --two-phase-too."
        )
    if not open_too:
        raise UsageError(
            f"This transaction is not hanging. {transaction.why} Its coordinator aborts it after"
            " its timeout. To abort it now and fence its producer, add --open-too."
        )


def _write_marker(kafka: Connection, plan: AbortPlan) -> None:
    transaction = plan.found
    spec = AbortTransactionSpec(
        TopicPartition(plan.topic, transaction.partition),
        transaction.producer_id,
        transaction.producer_epoch,
        # As in Java's tool. With an epoch below the one that the partition has seen, the leader
        # assumes a fenced coordinator.
        max(0, transaction.coordinator_epoch),
    )
    try:
        kafka.with_retries(lambda: kafka.admin.abort_transaction(spec))
    except (
        InvalidProducerEpochError,
        InvalidTxnStateError,
        TransactionCoordinatorFencedError,
    ) as error:
        raise ClusterError(
            f"The leader of {plan.topic}-{transaction.partition} refused the marker"
            f" ({type(error).__name__}): producer {transaction.producer_id} has moved on. Look"
            f" again: {command_line('topicproof inspect', plan.topic)}"
        ) from error


def await_end(kafka: Connection, plan: EndPlan, what: str) -> PartitionBounds:
    """Wait until the transaction has ended on the partition and the last stable offset has moved
    on. `what`: an abort or a commit, for the error. Returns the partition's bounds. Raises
    ClusterError."""
    transaction = plan.found
    at = TopicPartition(plan.topic, transaction.partition)

    def ask() -> tuple[bool, PartitionBounds]:
        state = kafka.with_retries(lambda: kafka.admin.describe_producers([at]))[at]
        (bounds,) = [
            p for p in kafka.bounds(plan.topic).partitions if p.partition == transaction.partition
        ]
        begun = {
            (producer.producer_id, producer.current_transaction_start_offset)
            for producer in state.active_producers
        }
        ended = (transaction.producer_id, transaction.start_offset) not in begun
        # The last stable offset follows the high watermark, which waits for the replicas.
        return ended and bounds.lso >= min(plan.next_stable, bounds.hw), bounds

    has_ended, bounds = ask_until(ask, itemgetter(0), MOVE_S)
    if not has_ended:
        raise ClusterError(
            f"The {what} was accepted, but {plan.topic}-{transaction.partition} does not show it"
            f" after {MOVE_S:.0f} s. Look again: {command_line('topicproof inspect', plan.topic)}"
        )
    return bounds


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"
