"""Commits an open transaction of a dead program for an operator: first a plan, then the commit.

A two-phase commit flushes its records, notes the transaction in a checkpoint, and commits when the
checkpoint is complete. A program that dies between the last two leaves records that belong to a
complete checkpoint (FLINK-39218). If nobody starts it again, Kafka aborts them after their timeout.

The coordinator takes EndTxn from whoever names the producer's id and epoch, as Flink does when it
resumes a transaction. It tells both itself. From transaction version 2 on, the end also raises the
epoch (KIP-890), so a producer that is alive after all is fenced.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from kafka.errors import (
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
    TransactionalIdAuthorizationFailedError,
    for_code,
)
from kafka.protocol.producer import EndTxnRequest

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, UsageError
from topicproof.backend.kafka.coordination.abort import EndPlan, await_end, plan_end
from topicproof.backend.kafka.coordination.coordinator import described
from topicproof.backend.kafka.coordination.transaction_state import EPOCH_BUMPS
from topicproof.backend.kafka.log.rawlog import Connection, connect
from topicproof.validators.coordinator import ONGOING, PREPARED, OpenTransaction
from topicproof.validators.finding import PartitionBounds
from topicproof.validators.sentences import in_words
from topicproof.validators.shell_words import command_line

EPOCH_BUMP_VERSION, OLDER_VERSION = 5, 4
"""The versions of EndTxn: the first that raises the epoch, and the last that does not."""
NAMED_MAX = 5
"""How many other partitions a plan names."""


@dataclass(frozen=True)
class CommitPlan(EndPlan):
    """What a commit would do now."""

    others: tuple[str, ...]
    """The transaction's other partitions, as topic-number. They are committed with this one."""
    epoch: int
    """The producer's epoch, by its coordinator."""
    raises_epoch: bool
    """Whether the commit fences the producer."""

    @property
    def delivered(self) -> str:
        """What read_committed consumers get."""
        sentence = f"Delivered to every read_committed consumer, for good: {self.records}."
        if self.others:
            more = len(self.others) - NAMED_MAX
            names = ", ".join(self.others[:NAMED_MAX]) + (f" and {more:,} more" if more > 0 else "")
            sentence += (
                f" Committed with it: what the transaction wrote to {names}, consumers' offsets"
                " included."
            )
        return sentence

    @property
    def risk(self) -> str:
        """What only the operator can know."""
        age_ms = max(0, int(time.time() * 1000) - self.last_written_ms)
        return (
            f"Its last record here was written {in_words(age_ms)} ago. Kafka does not know"
            " whether the program had finished the transaction. If it had not, a part of its work"
            " is delivered. If it has started again, or will start from an earlier checkpoint, it"
            " writes these records a second time. Commit only what a complete checkpoint of a dead"
            " program names."
        )

    @property
    def means(self) -> str:
        """How the commit works, and who else is affected."""
        sentence = f"Its coordinator commits {self.found.transactional_id} on all its partitions."
        if self.raises_epoch:
            return f"{sentence} Its producer is fenced: if it is alive, its next call fails."
        return (
            f"{sentence} This cluster does not fence the producer with the commit"
            " (transaction.version is below 2): make sure that it is dead."
        )

    def to_json(self) -> dict[str, Any]:
        """Return a dict for `json.dumps`, every sentence included."""
        sentences = {name: getattr(self, name) for name in ("delivered", "gained", "risk", "means")}
        return asdict(self) | sentences | {"released": self.released}


def plan_commit(
    address: Address,
    topic: str,
    partition: int,
    offset: int | None = None,
    producer_id: int | None = None,
) -> CommitPlan:
    """Plan to commit the transaction that begins at `offset` or belongs to `producer_id`. Changes
    nothing.

    Raises UsageError when there is no such open transaction, when no coordinator knows it, or when
    its outcome is decided. Raises TopicError and ClusterError as `open_transactions` does.
    """
    with connect(address) as kafka:
        return _plan(kafka, topic, partition, offset, producer_id)


def commit(address: Address, plan: CommitPlan) -> PartitionBounds:
    """Commit, if the transaction is still the planned one; returns the partition's bounds
    afterwards.

    Raises UsageError when it has ended by itself, ClusterError when the coordinator refuses or the
    partition does not show the end in time.
    """
    transaction = plan.found
    with connect(address) as kafka:
        place = (plan.topic, transaction.partition)
        current = _plan(kafka, *place, transaction.start_offset, transaction.producer_id)
        if current.epoch != plan.epoch:
            raise UsageError(f"{transaction.name} has a new transaction. Plan again.")
        _end(kafka, plan)
        return await_end(kafka, plan, "commit")


def require_confirmed(plan: CommitPlan, transactional_id: str | None) -> None:
    """Raises UsageError unless the operator has named the transactional id that is committed."""
    name = plan.found.transactional_id
    if transactional_id == name:
        return
    named = "" if transactional_id is None else f", and {transactional_id} is another one"
    raise UsageError(
        f"A commit cannot be taken back. To commit the transaction of {name}, repeat its"
        f" transactional id after --confirm{named}. Nothing was committed."
    )


def _plan(
    kafka: Connection, topic: str, partition: int, offset: int | None, producer_id: int | None
) -> CommitPlan:
    plan = plan_end(kafka, topic, partition, offset, producer_id)
    name = _require_committable(plan.found)
    description = described(kafka, [name]).get(name)
    if description is None or description.state != ONGOING:
        raise UsageError(f"The transaction of {name} has ended in the meantime.")
    places = sorted(tuple(place) for place in description.topic_partitions)
    return CommitPlan(
        **vars(plan),
        others=tuple(
            f"{other}-{number}" for other, number in places if (other, number) != (topic, partition)
        ),
        epoch=description.producer_epoch,
        raises_epoch=_raises_epoch(kafka),
    )


def _require_committable(transaction: OpenTransaction) -> str:
    """Return the transaction's id. Raises UsageError for a transaction that only aborts can end, or
    whose end is decided."""
    if transaction.unseen:
        raise UsageError(
            f"{transaction.why} Only its coordinator can commit it, so nothing was committed. Grant"
            " this client Describe on all transactional ids (`topicproof rights --for inspect`"
            " prints the command), then try again."
        )
    if transaction.hanging or transaction.transactional_id is None:
        raise UsageError(
            f"{transaction.why} Only a coordinator can commit, on all partitions at once. A"
            " transaction that none knows can only be aborted: topicproof abort."
        )
    if transaction.state in PREPARED:
        raise UsageError(
            f"{transaction.transactional_id} is already decided ({transaction.state}). Its"
            " coordinator writes the markers. If that takes long, check the brokers that lead its"
            " partitions."
        )
    if transaction.state != ONGOING:
        raise UsageError(
            f"{transaction.transactional_id} cannot be committed: its coordinator says"
            f" {transaction.state}, and only an ongoing transaction can be."
        )
    return transaction.transactional_id


def _raises_epoch(kafka: Connection) -> bool:
    """Return whether the cluster has finalized the transaction version whose ends raise the
    epoch."""
    features = kafka.with_retries(kafka.admin.describe_features)
    finalized = features.get("transaction.version", {}).get("finalized", (0, 0))
    return bool(finalized[1] >= EPOCH_BUMPS)


def _end(kafka: Connection, plan: CommitPlan) -> None:
    """Ask the coordinator to commit. Raises ClusterError if it refuses."""
    transaction = plan.found
    name = transaction.transactional_id or ""
    request = EndTxnRequest(
        transactional_id=name,
        producer_id=transaction.producer_id,
        producer_epoch=plan.epoch,
        committed=True,
        max_version=EPOCH_BUMP_VERSION if plan.raises_epoch else OLDER_VERSION,
    )

    def ask() -> None:
        # The coordinator may have moved, so each try looks for it.
        node = described(kafka, [name])[name].coordinator_id
        code = kafka.send({node: request})[node].error_code
        if code:
            raise for_code(code)(f"a commit of {name}")

    try:
        kafka.with_retries(ask)
    except TransactionalIdAuthorizationFailedError as error:
        raise kafka.address.not_allowed(f"Write on transactional id {name}") from error
    except (
        InvalidProducerEpochError,
        InvalidProducerIdMappingError,
        InvalidTxnStateError,
        ProducerFencedError,
    ) as error:
        raise ClusterError(
            f"The coordinator of {name} refused the commit ({type(error).__name__}): its producer"
            f" has moved on. Look again: {command_line('topicproof inspect', plan.topic)}"
        ) from error
