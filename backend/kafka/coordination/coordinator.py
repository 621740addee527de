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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from functools import partial
from heapq import nlargest
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd
from kafka import TopicPartition
from kafka.errors import (
    AuthorizationError,
    KafkaError,
    TransactionalIdAuthorizationFailedError,
    TransactionalIdNotFoundError,
    for_code,
)
from kafka.protocol.admin import DescribeProducersRequest

from topicproof.backend.errors import ClusterError, LogTooLong, TopicError
from topicproof.backend.kafka.coordination.lag import records_of
from topicproof.backend.kafka.coordination.transaction_state import (
    TOPIC as STATE_TOPIC,
    read_states,
)
from topicproof.backend.kafka.log.every_leader import Leaders, ask_every_leader
from topicproof.backend.kafka.log.fates import RANGE_COLUMNS, fate_ranges
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
COUNTS = "count of withheld records", "counts of withheld records"
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
    prepared_id: str
    """The whole transactional id of one whose outcome is decided; else empty."""
    state: str
    began_ms: int
    timeout_ms: int
    partitions: frozenset[tuple[str, int]]
    """Topics and partitions of it where its producer was found."""


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
    producers = {topic: _open_on_partitions(kafka, topic, partitions)}
    of_topics = transactions_of(
        kafka,
        producers,
        {} if bounds is None else {topic: bounds},
        {topic: ranges},
        budget=budget,
        has_whole_ids=has_whole_ids,
    )
    return of_topics.get(topic, ())


def open_producers(
    kafka: Connection, is_asked: Callable[[TopicPartition], bool]
) -> dict[str, list[_Producer]]:
    """Return the producers with an open transaction on these partitions: by topic, there by
    partition and start. A leader answers with every producer of the last day, so each is asked
    once. Raises kafka-python's errors, also for brokers older than Kafka 3.0."""
    partitions = ask_every_leader(kafka, is_asked, partial(_open_producers, kafka))
    producers: dict[str, list[_Producer]] = {}
    for place in sorted(partitions.answers):
        if of_partition := partitions.answers[place]:
            producers.setdefault(place.topic, []).extend(of_partition)
    return producers


def _open_producers(kafka: Connection, leaders: Leaders) -> dict[TopicPartition, list[_Producer]]:
    """Return the producers with an open transaction on each partition, by its start; without the
    partitions that are not where they were. Raises ClusterError for a missing right."""
    topics: dict[int, dict[str, list[int]]] = {}
    for place, leader in leaders.items():
        topics.setdefault(leader, {}).setdefault(place.topic, []).append(place.partition)
    topic_of = DescribeProducersRequest.TopicRequest
    requests: dict[int | None, DescribeProducersRequest] = {
        leader: DescribeProducersRequest(
            topics=[
                topic_of(name=name, partition_indexes=numbers)
                for name, numbers in of_leader.items()
            ]
        )
        for leader, of_leader in topics.items()
    }
    producers = {}
    for response in kafka.send(requests).values():
        for topic in response.topics:
            for partition in topic.partitions:
                number = partition.partition_index
                if issubclass(for_code(partition.error_code), AuthorizationError):
                    raise kafka.address.not_allowed(f"Read on topic {topic.name}")
                if not partition.error_code:
                    producers[TopicPartition(topic.name, number)] = sorted(
                        (
                            _producer(number, each, each.current_txn_start_offset)
                            for each in partition.active_producers
                            if each.current_txn_start_offset >= 0
                        ),
                        key=_place,
                    )
    return producers


def transactions_of(
    kafka: Connection,
    producers: Mapping[str, Sequence[_Producer]],
    bounds: Mapping[str, Bounds],
    ranges: Mapping[str, pd.DataFrame | None],
    *,
    budget: LookBudget,
    has_whole_ids: bool = False,
    batches_max: int | None = None,
) -> dict[str, tuple[OpenTransaction, ...]]:
    """Return the open transactions of these producers, by topic; see `open_transactions`. With
    `batches_max`, what is withheld behind more batches is not counted, which the budget notes.

    The first one of each partition of all topics comes before the second one of any: what a
    stranger opens on a topic of theirs must not hide who holds back the records of another.
    """
    first, later = _by_rank(producers, budget.limits.transactions - budget.transactions)
    budget.transactions += len(first) + len(later)
    every = sum(map(len, producers.values()))
    budget.leave_out(every - len(first) - len(later), OPEN_TRANSACTIONS)
    if not first:
        return {}
    transactions = _of_coordinators(kafka, first, later, budget, has_whole_ids)
    remaining, sees_all = _without_ended(kafka, producers, {*first, *later}, transactions)
    now_ms = int(time.time() * 1000)
    decided = _decided(kafka, filter(None, transactions.values()), now_ms, budget)
    opened = {}
    for topic, of_topic in remaining.items():
        try:
            edges = bounds[topic] if topic in bounds else kafka.bounds(topic)
            ranges_behind = ranges.get(topic)
            if ranges_behind is None:
                behind = _behind(edges, of_topic)
                batches = kafka.scan(topic, behind, batches_max=batches_max)
                ranges_behind = fate_ranges(batches, behind)
        except LogTooLong:
            if batches_max is None:
                raise
            budget.leave_out(1, COUNTS)
            ranges_behind = pd.DataFrame(columns=RANGE_COLUMNS)
        except TopicError:
            # Its transactions are gone with the topic.
            continue
        opened[topic] = tuple(
            _open_transaction(
                producer,
                transaction,
                counts=counts,
                now_ms=now_ms,
                decided_ms=None if transaction is None else decided.get(transaction.prepared_id),
                is_confirmed=_on_partition(transaction, topic, producer),
                sees_all=sees_all,
            )
            for producer, counts in _counted(of_topic, edges, ranges_behind)
            for transaction in [transactions[producer.producer_id]]
        )
    return opened


def _by_rank(
    producers: Mapping[str, Sequence[_Producer]], most: int
) -> tuple[list[tuple[str, _Producer]], list[tuple[str, _Producer]]]:
    """Return the first producer of each partition with its topic, which holds its last stable
    offset; then the second ones and so on, as long as there are at most so many in all. They are
    given by partition and start."""
    number: Counter[tuple[str, int]] = Counter()
    ranked = []
    for topic, of_topic in producers.items():
        for producer in of_topic:
            place = topic, producer.partition
            ranked.append((number[place], producer.last_timestamp, (topic, producer)))
            number[place] += 1
    ranked.sort(key=itemgetter(0, 1))
    first = [item for rank, _written, item in ranked if not rank]
    return first, [item for _rank, _written, item in ranked[len(first) : max(len(first), most)]]


def _without_ended(
    kafka: Connection,
    producers: Mapping[str, Sequence[_Producer]],
    chosen: Collection[tuple[str, _Producer]],
    transactions: Mapping[int, _Transaction | None],
) -> tuple[dict[str, list[_Producer]], bool]:
    """Return the producers that were chosen and asked about, without those that are unknown to the
    coordinators because they ended between the two requests; and whether this client is told of
    each: then an unknown one hangs."""
    remaining: dict[str, list[_Producer]] = {}
    has_unknown = False
    for topic, of_topic in producers.items():
        current = [
            producer
            for producer in of_topic
            if (topic, producer) in chosen and producer.producer_id in transactions
        ]
        unknown = {
            producer
            for producer in current
            if not _on_partition(transactions[producer.producer_id], topic, producer)
        }
        if unknown:
            has_unknown = True
            # It hangs only if it is still open from the same offset.
            still = {
                (producer.partition, producer.producer_id, producer.open_from)
                for producer in _still_open(kafka, topic, {each.partition for each in unknown})
            }
            current = [
                each
                for each in current
                if each not in unknown
                or (each.partition, each.producer_id, each.open_from) in still
            ]
        if current:
            remaining[topic] = current
    return remaining, not has_unknown or sees_every_id(kafka)


def _start(producer: _Producer) -> tuple[int, int, int | None]:
    return producer.partition, producer.producer_id, producer.open_from


def _still_open(kafka: Connection, topic: str, partitions: Collection[int]) -> list[_Producer]:
    try:
        return _open_on_partitions(kafka, topic, partitions)
    except TopicError:
        return []


def _counted(
    producers: Sequence[_Producer], bounds: Bounds, ranges: pd.DataFrame
) -> Iterator[tuple[_Producer, tuple[int, int]]]:
    """Yield each producer with the records of its transaction, and those that it withholds."""
    ends = {p.partition: p.hw for p in bounds.partitions}
    # Thousands of transactions may be open: the ranges are gone through once for all of them.
    counters = {
        partition: records_of(ranges, partition).every
        for partition in {producer.partition for producer in producers}
    }
    rows = ranges.groupby(["partition", "producer_id"]).indices
    firsts, counts = (ranges[name].to_numpy(np.int64) for name in ("first_offset", "records"))
    for producer in producers:
        start, end = producer.open_from or 0, ends.get(producer.partition, 0)
        of_producer = rows.get((producer.partition, producer.producer_id), ())
        records = sum(int(counts[row]) for row in of_producer if firsts[row] >= start)
        yield producer, (records, counters[producer.partition].between(start, end))


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
    *,
    counts: tuple[int, int],
    now_ms: int,
    decided_ms: int | None,
    is_confirmed: bool,
    sees_all: bool,
) -> OpenTransaction:
    """Join the views of partition and coordinator. The transaction hangs unless the coordinator
    knows it on this partition (`is_confirmed`)."""
    confirmed = transaction if is_confirmed else None
    records, withheld = counts
    is_unseen = transaction is None and not sees_all
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
        hanging=confirmed is None and not is_unseen,
        unseen=is_unseen,
        decided_ms=decided_ms,
    )


def _on_partition(transaction: _Transaction | None, topic: str, producer: _Producer) -> bool:
    """Return whether the coordinator knows the transaction on the producer's partition."""
    return transaction is not None and (topic, producer.partition) in transaction.partitions


def _on_partitions(
    kafka: Connection, topic: str, partitions: Collection[int] | None = None
) -> list[tuple[int, Any]]:
    """Return kafka-python's descriptions of all producers, each with its partition."""
    places = [
        TopicPartition(topic, partition)
        for partition in kafka.leaders(topic)
        if partitions is None or partition in partitions
    ]
    answer = kafka.with_retries(lambda: kafka.admin.describe_producers(places))
    return [
        (place.partition, producer)
        for place, state in answer.items()
        for producer in state.active_producers
    ]


def _open_on_partitions(
    kafka: Connection, topic: str, partitions: Collection[int] | None = None
) -> list[_Producer]:
    return _in_order(
        (partition, producer)
        for partition, producer in _on_partitions(kafka, topic, partitions)
        if producer.current_transaction_start_offset >= 0
    )


def _in_order(producers: Iterable[tuple[int, Any]]) -> list[_Producer]:
    """Return these producers by partition and first open offset."""
    return sorted(
        (
            _producer(partition, producer, producer.current_transaction_start_offset)
            for partition, producer in producers
        ),
        key=_place,
    )


def _producer(partition: int, producer: Any, start: int) -> _Producer:
    """`producer`: as kafka-python describes it; `start`: of its open transaction, negative without
    one."""
    return _Producer(
        partition,
        producer.producer_id,
        producer.producer_epoch,
        producer.last_sequence,
        producer.last_timestamp,
        producer.coordinator_epoch,
        start if start >= 0 else None,
    )


def _place(producer: _Producer) -> tuple[int, int, int]:
    start = -1 if producer.open_from is None else producer.open_from
    return producer.partition, start, producer.producer_id


def _last_written(producer: tuple[int, Any]) -> int:
    _partition, state = producer
    return int(state.last_timestamp)


def _of_coordinators(
    kafka: Connection,
    first: Sequence[tuple[str, _Producer]],
    later: Sequence[tuple[str, _Producer]],
    budget: LookBudget,
    has_whole_ids: bool,
) -> dict[int, _Transaction | None]:
    """Return the transactions of these producers, each with its topic, by producer id. None: no
    coordinator tells of it.

    `first` are asked about whatever bytes others take; they are as many as partitions. `later` as
    long as the budget lasts.
    """
    places: dict[int, set[tuple[str, int]]] = {}
    for topic, producer in (*first, *later):
        places.setdefault(producer.producer_id, set()).add((topic, producer.partition))
    first_ids = list(dict.fromkeys(producer.producer_id for _topic, producer in first))
    later_ids = [each for each in places if each not in set(first_ids)]
    transactions: dict[int, _Transaction | None] = {}
    for ids, is_counted in ((first_ids, has_whole_ids), (later_ids, True)):
        for batch in budget.batches(ids, DESCRIBED_AT_ONCE, OPEN_TRANSACTIONS):
            transactions |= dict.fromkeys(batch)
            names = {listing.transactional_id for listing in _listed(kafka, batch)}
            for name, description in described(kafka, sorted(names)).items():
                producer_id, state = description.producer_id, description.state.value
                partitions = description.topic_partitions
                if is_counted:
                    budget.size += sys.getsizeof(name) + PLACE_BYTES * len(partitions)
                of_id = {(place.topic, place.partition) for place in partitions}
                transactions[producer_id] = _Transaction(
                    name if has_whole_ids else short_name(name),
                    # The coordinators' log is searched for it.
                    name if state in PREPARED else "",
                    state,
                    description.transaction_start_time_ms,
                    description.transaction_timeout_ms,
                    frozenset(places.get(producer_id, set()) & of_id),
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
        each.prepared_id
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
