"""Open transactions and producers of a topic, from its partitions and the transaction coordinators
(KIP-664).

The search starts from the partitions: each leader knows which producers have an open transaction
there, and its first offset. The coordinators' answers are joined to that. A transaction that is
open on a partition and unknown to the coordinators hangs. Only an operator can end it, and until
then every read_committed consumer stops there.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from functools import partial
from typing import Any

import pandas as pd
from kafka import TopicPartition
from kafka.errors import (
    KafkaError,
    TransactionalIdAuthorizationFailedError,
    TransactionalIdNotFoundError,
)

from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.coordination.transaction_state import TOPIC as STATE_TOPIC
from topicproof.backend.kafka.coordination.transaction_state import read_states
from topicproof.backend.kafka.log.fates import DATA_FATES, fate_ranges, records_between
from topicproof.backend.kafka.log.rawlog import Connection
from topicproof.validators.coordinator import PREPARED, STUCK_MS
from topicproof.validators.coordinator import OpenTransaction as OpenTransaction
from topicproof.validators.finding import Bounds, PartitionBounds


@dataclass(frozen=True)
class _Producer:
    """A producer as one partition's leader remembers it."""

    partition: int
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    open_from: int | None


PRODUCER_COLUMNS = (*(one.name for one in fields(_Producer)), "transactional_id", "state")


@dataclass(frozen=True)
class _Transaction:
    """A transactional id as its coordinator describes it."""

    transactional_id: str
    state: str
    began_ms: int
    timeout_ms: int
    partitions: frozenset[tuple[str, int]]


def open_transactions(
    kafka: Connection, topic: str, bounds: Bounds | None = None, ranges: pd.DataFrame | None = None
) -> tuple[OpenTransaction, ...]:
    """Return the transactions open on the topic now, by partition and start.

    `ranges` are the `fates.fate_ranges` of `bounds`, used to count withheld records. Without them,
    the log is scanned from the first open transaction on. Raises TopicError for a missing topic,
    and kafka-python's errors, also for brokers older than Kafka 3.0.
    """
    producers = [
        producer for producer in _on_partitions(kafka, topic) if producer.open_from is not None
    ]
    if not producers:
        return ()
    transactions = _of_coordinators(kafka, {producer.producer_id for producer in producers})
    matches = [
        _on_partition(transactions.get(producer.producer_id), topic, producer)
        for producer in producers
    ]
    if not all(matches):
        # An unknown one may have ended between the two requests. It hangs only if it is still open
        # from the same offset.
        still = {
            (producer.partition, producer.producer_id, producer.open_from)
            for producer in _on_partitions(kafka, topic)
        }
        producers = [
            producer
            for producer, is_match in zip(producers, matches, strict=True)
            if is_match or (producer.partition, producer.producer_id, producer.open_from) in still
        ]
    bounds = kafka.bounds(topic) if bounds is None else bounds
    if ranges is None:
        behind = _behind(bounds, producers)
        ranges = fate_ranges(kafka.scan(topic, behind), behind)
    ends = {p.partition: p.hw for p in bounds.partitions}
    sees_all = all(matches) or sees_every_id(kafka)
    now_ms = int(time.time() * 1000)
    decided = _decided(kafka, transactions.values(), now_ms)
    opened = []
    for producer in producers:
        start, end = producer.open_from or 0, ends.get(producer.partition, 0)
        withheld = records_between(ranges, producer.partition, start, end, DATA_FATES)
        transaction = transactions.get(producer.producer_id)
        records = _own_records(ranges, producer)
        open_transaction = _open_transaction(
            topic, producer, transaction, records, withheld, now_ms
        )
        if open_transaction.transactional_id is None and not sees_all:
            open_transaction = replace(open_transaction, hanging=False, unseen=True)
        opened.append(
            replace(
                open_transaction, decided_ms=decided.get(open_transaction.transactional_id or "")
            )
        )
    return tuple(opened)


def open_json(each: OpenTransaction) -> dict[str, Any]:
    """Return a dict for `json.dumps`, with its sentence."""
    return asdict(each) | {"overdue": each.overdue, "stuck": each.stuck, "why": each.why}


def topic_producers(kafka: Connection, topic: str, named: bool = True) -> pd.DataFrame:
    """Return one row (`PRODUCER_COLUMNS`) per partition and producer that its leader remembers.

    `open_from` is the first offset of its open transaction, else null. `transactional_id` and
    `state` come from the coordinator, null for a producer that is only idempotent. Unless `named`,
    they are null and no coordinator is asked. Raises the same errors as `open_transactions`.
    """
    producers = _on_partitions(kafka, topic)
    listed = kafka.with_retries(kafka.admin.list_transactions) if producers and named else {}
    transactions = {
        listing.producer_id: listing for of_broker in listed.values() for listing in of_broker
    }
    rows = []
    for producer in producers:
        transaction = transactions.get(producer.producer_id)
        id_and_state = (
            (transaction.transactional_id, transaction.state.value) if transaction else (None,) * 2
        )
        rows.append((*astuple(producer), *id_and_state))
    return pd.DataFrame(rows, columns=list(PRODUCER_COLUMNS)).astype({"open_from": "Int64"})


def _open_transaction(
    topic: str,
    producer: _Producer,
    transaction: _Transaction | None,
    records: int,
    withheld: int,
    now_ms: int,
) -> OpenTransaction:
    """Join the views of partition and coordinator. The transaction hangs unless the coordinator
    knows it on this partition."""
    confirmed = transaction if _on_partition(transaction, topic, producer) else None
    return OpenTransaction(
        partition=producer.partition,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        coordinator_epoch=producer.coordinator_epoch,
        start_offset=producer.open_from or 0,
        transactional_id=transaction.transactional_id if transaction else None,
        state=transaction.state if transaction else None,
        # The coordinator's clock may be ahead of ours.
        age_ms=max(0, now_ms - (confirmed.began_ms if confirmed else producer.last_timestamp)),
        timeout_ms=confirmed.timeout_ms if confirmed else None,
        records=records,
        withheld=withheld,
        hanging=confirmed is None,
    )


def _on_partition(transaction: _Transaction | None, topic: str, producer: _Producer) -> bool:
    """Return whether the coordinator knows the transaction on the producer's partition."""
    return transaction is not None and (topic, producer.partition) in transaction.partitions


def _own_records(ranges: pd.DataFrame, producer: _Producer) -> int:
    """Count data records of the producer's open transaction."""
    producer_ranges = ranges[
        (ranges["partition"] == producer.partition)
        & (ranges["producer_id"] == producer.producer_id)
        & (ranges["first_offset"] >= (producer.open_from or 0))
    ]
    return int(producer_ranges["records"].sum())


def _on_partitions(kafka: Connection, topic: str) -> list[_Producer]:
    places = [TopicPartition(topic, partition) for partition in kafka.leaders(topic)]
    answer = kafka.with_retries(lambda: kafka.admin.describe_producers(places))
    return [
        _Producer(
            place.partition,
            producer.producer_id,
            producer.producer_epoch,
            producer.last_sequence,
            producer.last_timestamp,
            producer.coordinator_epoch,
            start if (start := producer.current_transaction_start_offset) >= 0 else None,
        )
        for place, state in sorted(answer.items())
        for producer in sorted(
            state.active_producers,
            key=lambda producer: (producer.current_transaction_start_offset, producer),
        )
    ]


def _of_coordinators(kafka: Connection, producer_ids: Collection[int]) -> dict[int, _Transaction]:
    """Return the transactions of these producers, by producer id."""
    listed = kafka.with_retries(
        lambda: kafka.admin.list_transactions(producer_id_filters=sorted(producer_ids))
    )
    names = {listing.transactional_id for of_broker in listed.values() for listing in of_broker}
    return {
        description.producer_id: _Transaction(
            name,
            description.state.value,
            description.transaction_start_time_ms,
            description.transaction_timeout_ms,
            frozenset((place.topic, place.partition) for place in description.topic_partitions),
        )
        for name, description in described(kafka, sorted(names)).items()
    }


def sees_every_id(kafka: Connection) -> bool:
    """Return whether this client may describe any transactional id. Coordinators leave the others
    out of their answers without a word."""
    try:
        kafka.with_retries(partial(kafka.admin.describe_transactions, [f"any-{uuid.uuid4().hex}"]))
    except TransactionalIdAuthorizationFailedError:
        return False
    except TransactionalIdNotFoundError:
        pass
    return True


def described(kafka: Connection, names: Sequence[str]) -> dict[str, Any]:
    """Return kafka-python's descriptions of these transactional ids, without those that expired
    since they were listed. One request asks each coordinator for all of its ids."""
    if not names:
        return {}
    try:
        return dict(kafka.with_retries(partial(kafka.admin.describe_transactions, list(names))))
    except TransactionalIdNotFoundError:
        if len(names) == 1:
            return {}
    # The error names none of them.
    half = len(names) // 2
    return described(kafka, names[:half]) | described(kafka, names[half:])


def _decided(
    kafka: Connection, transactions: Collection[_Transaction], now_ms: int
) -> dict[str, int]:
    """Return how many ms ago transactions were decided, by transactional id. Only the coordinators'
    log shows this.

    It is read only for transactions that may be stuck. Without the right to read it, callers use
    their age.
    """
    names = {
        each.transactional_id
        for each in transactions
        if each.state in PREPARED and now_ms - each.began_ms > STUCK_MS
    }
    if not names:
        return {}
    try:
        states = read_states(kafka.address, kafka.bounds(STATE_TOPIC), names)
    except (KafkaError, ClusterError):
        return {}
    return {
        each.transactional_id: max(0, now_ms - each.updated_ms)
        for each in states
        if each.state in PREPARED
    }


def _behind(bounds: Bounds, producers: Collection[_Producer]) -> Bounds:
    """Return the bounds from the first open transaction of each partition on, without partitions
    that have none."""
    first: dict[int, int] = {}
    for producer in producers:
        start = producer.open_from or 0
        first[producer.partition] = min(first.get(producer.partition, start), start)
    starts = {p.partition: max(p.start, first.get(p.partition, p.hw)) for p in bounds.partitions}
    return Bounds(
        bounds.topic,
        tuple(
            PartitionBounds(p.partition, starts[p.partition], starts[p.partition], p.hw)
            for p in bounds.partitions
            if starts[p.partition] < p.hw
        ),
    )
