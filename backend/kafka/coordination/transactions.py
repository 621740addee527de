"""All transactional ids of a cluster, the transactions that are open on any topic, and those that
ended last.

Partitions are asked first for open transactions, as in `coordinator`, which also finds hanging
ones. The protocol of each transactional id comes from the coordinators' own log.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kafka.errors import KafkaError

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, TopicError
from topicproof.backend.kafka.coordination.coordinator import (
    described,
    open_json,
    open_producers,
    transactions_of,
)
from topicproof.backend.kafka.coordination.ended import EndedTransaction, ended_transactions
from topicproof.backend.kafka.coordination.transaction_state import (
    TOPIC as STATE_TOPIC,
    StateEntry,
    client_versions,
    is_exposed,
    read_states,
)
from topicproof.backend.kafka.log.rawlog import Connection, connect
from topicproof.backend.kafka.look import LookBudget
from topicproof.validators.coordinator import PREPARED, OpenTransaction

UNDER_WAY = ("Ongoing", *PREPARED, "PrepareEpochFence")


@dataclass(frozen=True)
class TransactionalId:
    """One transactional id as its coordinator describes it."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int | None
    """None while no transaction is under way. So are the fields below, but `partitions` is then
    empty."""
    timeout_ms: int | None
    age_ms: int | None
    partitions: tuple[tuple[str, int], ...]
    """The partitions of its transaction. Offsets in it count as partitions of
    `__consumer_offsets`."""
    client_version: int | None = None
    """The transaction version of its client (KIP-890): 2, or 0 for an older protocol. None: the
    coordinators' log does not show it."""

    @property
    def exposed(self) -> bool | None:
        """See `is_exposed`."""
        return is_exposed(self.client_version)


@dataclass(frozen=True)
class TransactionsOfCluster:
    """Open transactions, and all transactional ids."""

    open: Mapping[str, tuple[OpenTransaction, ...]]
    """By topic, including Kafka's own topics; topics without any are left out."""
    ids: tuple[TransactionalId, ...]
    """Ids with a transaction under way first, oldest first; then by name."""
    note: str = ""
    """What was left out; empty if nothing was."""
    ended: tuple[EndedTransaction, ...] = ()
    """Those that ended last, the latest first; none without the right to read the coordinators'
    log."""

    def to_json(self) -> dict[str, Any]:
        """Return a dict for `json.dumps`, every sentence included."""
        opened = [
            {"topic": topic} | open_json(each)
            for topic, transactions in self.open.items()
            for each in transactions
        ]
        ids = [asdict(each) | {"exposed": each.exposed} for each in self.ids]
        return {
            "open": opened,
            "ended": [each.to_json() for each in self.ended],
            "ids": ids,
            "protocols": self.protocols,
            "note": self.note,
        }

    @property
    def protocols(self) -> str:
        """How many ids use each protocol, in words."""
        counts = Counter(each.exposed for each in self.ids)
        words = {
            False: "take a new epoch for each transaction",
            True: "use an older protocol and are exposed to KAFKA-17754",
            None: "use an unknown protocol",
        }
        return ", ".join(
            f"{counts[key]:,} {phrase}" for key, phrase in words.items() if counts[key]
        )


def cluster_transactions(address: Address, batches_max: int | None = None) -> TransactionsOfCluster:
    """Ask every partition and every coordinator once. `batches_max`: what is withheld on a topic is
    not counted beyond so many batches.

    Raises ClusterError when the brokers do not answer, or are too old for these requests (before
    Kafka 3.0).
    """
    with connect(address) as kafka:
        budget = LookBudget()
        producers = open_producers(kafka, lambda _place: True)
        states = _states(kafka)
        return TransactionsOfCluster(
            transactions_of(kafka, producers, {}, {}, budget=budget, batches_max=batches_max),
            _ids(kafka, states),
            budget.note,
            ended_transactions(states),
        )


def recently_ended(address: Address, *, budget: LookBudget) -> tuple[EndedTransaction, ...]:
    """Return the transactions of the cluster that ended last, the latest first.

    Raises ClusterError when the coordinators' log cannot be read, which needs a right of its own.
    """
    with connect(address) as kafka:
        try:
            bounds = kafka.bounds(STATE_TOPIC)
        except TopicError:
            return ()  # Nobody has begun a transaction yet.
        return ended_transactions(read_states(address, bounds, budget=budget, every_decision=True))


def _ids(kafka: Connection, states: Sequence[StateEntry]) -> tuple[TransactionalId, ...]:
    listed = kafka.with_retries(kafka.admin.list_transactions)
    versions = client_versions(states)
    every = [each for of_broker in listed.values() for each in of_broker]
    # A cluster may have many thousands of ids: only those under way are asked about.
    under_way = [each.transactional_id for each in every if each.state.value in UNDER_WAY]
    descriptions = described(kafka, under_way)
    ids = [
        replace(
            _joined(each, descriptions.get(each.transactional_id)),
            client_version=versions.get(each.transactional_id),
        )
        for each in every
    ]
    return tuple(
        sorted(
            ids,
            key=lambda each: (each.age_ms is None, -(each.age_ms or 0), each.transactional_id),
        )
    )


def _states(kafka: Connection) -> tuple[StateEntry, ...]:
    """Return the coordinators' log; empty without the right to read it."""
    try:
        bounds = kafka.bounds(STATE_TOPIC)
        return read_states(kafka.address, bounds, budget=LookBudget(), every_decision=True)
    except (KafkaError, ClusterError):
        return ()


def _joined(listed: Any, description: Any) -> TransactionalId:
    """Join an id of the list with its description, if it has one."""
    name = listed.transactional_id
    # It may have ended since it was listed.
    if description is None or description.transaction_start_time_ms < 0:
        return TransactionalId(name, listed.state.value, listed.producer_id, None, None, None, ())
    age_ms = max(0, int(time.time() * 1000) - description.transaction_start_time_ms)
    places = sorted((place.topic, place.partition) for place in description.topic_partitions)
    return TransactionalId(
        name,
        description.state.value,
        description.producer_id,
        description.producer_epoch,
        description.transaction_timeout_ms,
        age_ms,
        tuple(places),
    )
