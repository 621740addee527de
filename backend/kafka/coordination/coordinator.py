"""Open transactions and producers of a topic, from its partitions and the transaction coordinators
(KIP-664).

The search starts from the partitions: each leader knows which producers have an open transaction
there, and its first offset. The coordinators' answers are joined to that. A transaction that is
open on a partition and unknown to the coordinators hangs. Only an operator can end it, and until
then every read_committed consumer stops there.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from functools import partial
from heapq import nlargest
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd
from kafka import TopicPartition
from kafka.errors import (
    KafkaError,
    TransactionalIdAuthorizationFailedError,
    TransactionalIdNotFoundError,
)

from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.coordination.lag import records_of
from topicproof.backend.kafka.coordination.transaction_state import (
    TOPIC as STATE_TOPIC,
    read_states,
)
from topicproof.backend.kafka.log.fates import fate_ranges
from topicproof.backend.kafka.log.rawlog import Connection
from topicproof.backend.kafka.look import IDS, OPEN_TRANSACTIONS, PRODUCERS, LookBudget
from topicproof.validators.coordinator import (
    PREPARED,
    STUCK_MS,
    OpenTransaction as OpenTransaction,
    short_name,
)
from topicproof.validators.finding import Bounds, PartitionBounds

DESCRIBED_AT_ONCE, LISTED_AT_ONCE = 50, 1_000
"""Transactions in one request. A description names each partition of a transaction, which may be
thousands; an entry of a list has one name."""
PLACE_BYTES = 100
"""What a partition of a described transaction counts in the budget."""


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
    partitions: frozenset[int]
    """Those of the topic looked at."""


def open_transactions(
    kafka: Connection,
    topic: str,
    bounds: Bounds | None = None,
    ranges: pd.DataFrame | None = None,
    *,
    budget: LookBudget,
    has_whole_ids: bool = False,
) -> tuple[OpenTransaction, ...]:
    """Return the transactions open on the topic now, by partition and start; the oldest of each
    partition if there are more than the budget allows. Long transactional ids are shortened for
    people (`short_name`), unless they are needed whole for a request.

    `bounds`: those of the partitions to look at, else of all. `ranges` are their
    `fates.fate_ranges`, used to count withheld records. Without them, the log is scanned from the
    first open transaction on. Raises TopicError for a missing topic,
    and kafka-python's errors, also for brokers older than Kafka 3.0.
    """
    partitions = None if bounds is None else {p.partition for p in bounds.partitions}
    every = [
        producer
        for producer in _open_on_partitions(kafka, topic)
        if partitions is None or producer.partition in partitions
    ]
    if not every:
        return ()
    oldest = _oldest(every, budget.limits.transactions - budget.transactions)
    budget.transactions += len(oldest)
    budget.leave_out(len(every) - len(oldest), OPEN_TRANSACTIONS)
    transactions = _of_coordinators(kafka, topic, oldest, budget)
    looked_at = {
        (producer.partition, producer.producer_id)
        for producer in oldest
        if producer.producer_id in transactions
    }
    producers = [
        producer for producer in every if (producer.partition, producer.producer_id) in looked_at
    ]
    matches = [
        _on_partition(transactions[producer.producer_id], producer) for producer in producers
    ]
    if not all(matches):
        # An unknown one may have ended between the two requests. It hangs only if it is still open
        # from the same offset.
        still = {
            (producer.partition, producer.producer_id, producer.open_from)
            for producer in _open_on_partitions(kafka, topic)
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
    decided = _decided(kafka, filter(None, transactions.values()), now_ms, budget)
    # Thousands of transactions may be open: the ranges are gone through once for all of them.
    counters = {
        partition: records_of(ranges, partition).every
        for partition in {producer.partition for producer in producers}
    }
    rows = ranges.groupby(["partition", "producer_id"]).indices
    firsts, counts = (ranges[name].to_numpy(np.int64) for name in ("first_offset", "records"))
    opened = []
    for producer in producers:
        start, end = producer.open_from or 0, ends.get(producer.partition, 0)
        withheld = counters[producer.partition].between(start, end)
        transaction = transactions[producer.producer_id]
        of_producer = rows.get((producer.partition, producer.producer_id), ())
        records = sum(int(counts[row]) for row in of_producer if firsts[row] >= start)
        open_transaction = _open_transaction(producer, transaction, records, withheld, now_ms)
        if transaction is None and not sees_all:
            open_transaction = replace(open_transaction, hanging=False, unseen=True)
        elif transaction is not None:
            name = transaction.transactional_id
            open_transaction = replace(
                open_transaction,
                transactional_id=name if has_whole_ids else short_name(name),
                decided_ms=decided.get(name),
            )
        opened.append(open_transaction)
    return tuple(opened)


def _oldest(producers: Sequence[_Producer], most: int) -> list[_Producer]:
    """Return the first producer of each partition, which holds its last stable offset; then the
    second ones and so on, as long as there are at most so many. They are given by partition and
    start."""
    number: Counter[int] = Counter()
    ranked = []
    for producer in producers:
        ranked.append((number[producer.partition], producer.last_timestamp, producer))
        number[producer.partition] += 1
    ranked.sort(key=itemgetter(0, 1))
    return [producer for _rank, _written, producer in ranked[: max(len(number), most)]]


def open_json(each: OpenTransaction) -> dict[str, Any]:
    """Return a dict for `json.dumps`, with its sentence."""
    return asdict(each) | {"overdue": each.overdue, "stuck": each.stuck, "why": each.why}


def topic_producers(
    kafka: Connection, topic: str, named: bool = True, *, budget: LookBudget
) -> pd.DataFrame:
    """Return one row (`PRODUCER_COLUMNS`) per partition and producer that its leader remembers; the
    latest to write if there are more than the budget allows.

    `open_from` is the first offset of its open transaction, else null. `transactional_id` and
    `state` come from the coordinator, null for a producer that is only idempotent. Unless `named`,
    they are null and no coordinator is asked. Raises the same errors as `open_transactions`.
    """
    every = _on_partitions(kafka, topic)
    latest = nlargest(budget.limits.producers, every, key=_last_written)
    budget.leave_out(len(every) - len(latest), PRODUCERS)
    producers = _in_order(latest)
    transactions = {}
    ids = sorted({producer.producer_id for producer in producers} if named else ())
    for batch in budget.batches(ids, LISTED_AT_ONCE, IDS):
        for listing in _listed(kafka, batch):
            budget.size += sys.getsizeof(listing.transactional_id)
            transactions[listing.producer_id] = listing
    rows = []
    for producer in producers:
        transaction = transactions.get(producer.producer_id)
        id_and_state = (
            (transaction.transactional_id, transaction.state.value) if transaction else (None,) * 2
        )
        rows.append((*astuple(producer), *id_and_state))
    return pd.DataFrame(rows, columns=list(PRODUCER_COLUMNS)).astype({"open_from": "Int64"})


def _open_transaction(
    producer: _Producer,
    transaction: _Transaction | None,
    records: int,
    withheld: int,
    now_ms: int,
) -> OpenTransaction:
    """Join the views of partition and coordinator. The transaction hangs unless the coordinator
    knows it on this partition."""
    confirmed = transaction if _on_partition(transaction, producer) else None
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


def _on_partition(transaction: _Transaction | None, producer: _Producer) -> bool:
    """Return whether the coordinator knows the transaction on the producer's partition."""
    return transaction is not None and producer.partition in transaction.partitions


def _on_partitions(kafka: Connection, topic: str) -> list[tuple[int, Any]]:
    """Return kafka-python's descriptions of all producers, each with its partition."""
    places = [TopicPartition(topic, partition) for partition in kafka.leaders(topic)]
    answer = kafka.with_retries(lambda: kafka.admin.describe_producers(places))
    return [
        (place.partition, producer)
        for place, state in answer.items()
        for producer in state.active_producers
    ]


def _open_on_partitions(kafka: Connection, topic: str) -> list[_Producer]:
    return _in_order(
        (partition, producer)
        for partition, producer in _on_partitions(kafka, topic)
        if producer.current_transaction_start_offset >= 0
    )


def _in_order(producers: Iterable[tuple[int, Any]]) -> list[_Producer]:
    """Return these producers by partition and first open offset."""
    return [
        _Producer(
            partition,
            producer.producer_id,
            producer.producer_epoch,
            producer.last_sequence,
            producer.last_timestamp,
            producer.coordinator_epoch,
            start if (start := producer.current_transaction_start_offset) >= 0 else None,
        )
        for partition, producer in sorted(producers, key=_place)
    ]


def _place(producer: tuple[int, Any]) -> tuple[int, int, int]:
    partition, state = producer
    return partition, state.current_transaction_start_offset, state.producer_id


def _last_written(producer: tuple[int, Any]) -> int:
    _partition, state = producer
    return int(state.last_timestamp)


def _of_coordinators(
    kafka: Connection, topic: str, producers: Iterable[_Producer], budget: LookBudget
) -> dict[int, _Transaction | None]:
    """Return the transactions of these producers, by producer id, as long as the budget lasts.
    None: no coordinator tells of it."""
    transactions: dict[int, _Transaction | None] = {}
    ids = list(dict.fromkeys(producer.producer_id for producer in producers))
    for batch in budget.batches(ids, DESCRIBED_AT_ONCE, OPEN_TRANSACTIONS):
        transactions |= dict.fromkeys(batch)
        names = {listing.transactional_id for listing in _listed(kafka, batch)}
        for name, description in described(kafka, sorted(names)).items():
            places = description.topic_partitions
            budget.size += sys.getsizeof(name) + PLACE_BYTES * len(places)
            transactions[description.producer_id] = _Transaction(
                name,
                description.state.value,
                description.transaction_start_time_ms,
                description.transaction_timeout_ms,
                frozenset(place.partition for place in places if place.topic == topic),
            )
    return transactions


def _listed(kafka: Connection, producer_ids: Sequence[int]) -> list[Any]:
    """Return kafka-python's listings of the transactional ids of these producers."""
    answer = kafka.with_retries(
        partial(kafka.admin.list_transactions, producer_id_filters=list(producer_ids))
    )
    return [listing for of_broker in answer.values() for listing in of_broker]


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
    kafka: Connection, transactions: Iterable[_Transaction], now_ms: int, budget: LookBudget
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
        states = read_states(kafka.address, kafka.bounds(STATE_TOPIC), names, budget=budget)
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
