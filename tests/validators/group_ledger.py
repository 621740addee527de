"""Hands aggregates to the validators: many pairs of topics as one ledger, each with partitions and
names of groups of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession, functions as F

from tests.validators.group_oracle import COUNT, COUNT_ALL, Input, Output, Pair, Policy
from tests.validators.history import BEGAN, SINK, SOURCE, History
from tests.validators.pair_ledger import APART, Row
from tests.validators.pair_oracle import COMMITTED
from topicproof.validators.aggregate import AggregatedValue, AggregateTerms, Function
from topicproof.validators.circumstances import Circumstances, Growth, Removed
from topicproof.validators.contract_terms import ContractTerms
from topicproof.validators.evidence import together
from topicproof.validators.expectation import OF_AGGREGATE, OF_LOG
from topicproof.validators.finding import Bounds, Order, PartitionBounds
from topicproof.validators.kinds.catalogue import VALIDATORS
from topicproof.validators.ledger.ledger import Ledger


def batch_of(pair: Pair) -> tuple[object, ...]:
    """Pairs with the same answer can share a ledger: some facts are of a whole topic."""
    return (
        *(pair.policy, pair.has_lost_inputs, pair.has_lost_outputs),
        *(pair.source_is_pending, pair.sink_is_pending),
    )


def rows_of(spark: SparkSession, folder: Path, pairs: Sequence[Pair]) -> list[Counter[Row]]:
    """For each pair of one ledger, how many rows of evidence there are by kind and cause."""
    ledger = ledger_of(spark, folder, pairs)
    if ledger.doubts:
        raise AssertionError(f"The readings of a pair are odd: {ledger.doubts}")
    frames = [
        (validator.NAME, rows)
        for validator in VALIDATORS
        if validator.NAME in (*OF_AGGREGATE, *OF_LOG)
        and (rows := validator.find(ledger)) is not None
    ]
    place = F.coalesce("partition", "source_partition").alias("place")
    every = together(
        [rows.select(F.lit(name).alias("kind"), "explained_by", place) for name, rows in frames]
    )
    counts: list[Counter[Row]] = [Counter() for _ in pairs]
    if every is not None:
        for row in every.groupBy("kind", "explained_by", "place").count().collect():
            counts[row["place"] // APART][row["kind"], row["explained_by"]] += row["count"]
    return counts


def terms_of(policy: Policy) -> AggregateTerms:
    function = (
        Function.COUNT if policy.function in (COUNT_ALL, COUNT) else Function(policy.function)
    )
    of = None if policy.function == COUNT_ALL else "value"
    return AggregateTerms("key", (AggregatedValue(function, of, None),), "key", policy.running)


def ledger_of(spark: SparkSession, folder: Path, pairs: Sequence[Pair]) -> Ledger:
    """All pairs as one, each with partitions and names of groups of its own."""
    policy = pairs[0].policy
    bounds: dict[str, list[PartitionBounds]] = {SOURCE: [], SINK: []}
    written = History(Bounds(SINK, ()), Bounds(SOURCE, ()))
    removed: dict[str, dict[int, Removed]] = {SOURCE: {}, SINK: {}}
    lsos, due = {}, {}
    for number, pair in enumerate(pairs):
        first = APART * number
        for topic, ranges in ((SOURCE, pair.source_ranges), (SINK, pair.sink_ranges)):
            for at, each in enumerate(ranges):
                bounds[topic].append(PartitionBounds(first + at, *each))
                if each.start:
                    removed[topic][first + at] = Removed(each.start)
        for at, each in enumerate(pair.source_ranges):
            lsos[first + at] = each.lso
            due[first + at] = (pair.offsets or {}).get(at, 0) if policy.group else each.lso
        _add_source(written, number, pair, removed[SOURCE])
        _add_sink(written, number, pair)
    cut = tuple(
        replace(each, lso=max(each.start, min(each.lso, due[each.partition])))
        for each in bounds[SOURCE]
    )
    written.source_bounds = Bounds(SOURCE, cut)
    written.sink_bounds = Bounds(SINK, tuple(bounds[SINK]))
    growth = (Growth("sink", 0, 1, 2),) if policy.moving else ()
    circumstances = Circumstances(
        looked=True,
        source_removed=removed[SOURCE],
        sink_removed=removed[SINK],
        growth=growth,
        watched=True,
        source_lso=lsos,
        due_told=policy.group,
    )
    agreed = ContractTerms(aggregate=terms_of(policy))
    return written.ledger(
        spark, folder, agreed=agreed, order=Order.NONE, circumstances=circumstances
    )


def _add_source(written: History, number: int, pair: Pair, removed: dict[int, Removed]) -> None:
    for record in pair.source:
        partition = APART * number + record.partition
        bounds = pair.source_ranges[record.partition]
        if record.removed:
            if record.offset >= bounds.start:
                before = removed.get(partition, Removed())
                removed[partition] = replace(before, inside=before.inside + 1)
            continue
        row = (partition, record.offset, BEGAN, *_bytes(number, record), None)
        if record.offset >= bounds.lso:
            written.pending.append(row)
        else:
            (written.source if record.fate == COMMITTED else written.aborted).append(row)


def _add_sink(written: History, number: int, pair: Pair) -> None:
    sequences: Counter[tuple[int, int]] = Counter()
    for record in sorted(pair.sink, key=lambda each: (each.partition, each.offset)):
        producer = -1 if record.transaction is None else 1_000 * (number + 1) + record.transaction
        sequence = sequences[record.partition, producer]
        sequences[record.partition, producer] += 1
        if record.removed:
            continue
        partition = APART * number + record.partition
        row = (partition, record.offset, BEGAN, *_bytes(number, record), None)
        written.uncommitted.append(row)
        if record.fate == COMMITTED and record.offset < pair.sink_ranges[record.partition].lso:
            written.committed.append(row)
        numbers = (-1, -1, -1, False) if producer < 0 else (producer, 0, sequence, True)
        written.batches.append(
            (partition, record.offset, record.offset, 1, *numbers, None, 0, 0, 100, "none", 0)
        )
    for marker in pair.markers:
        if marker.offset >= pair.sink_ranges[marker.partition].start:
            control = "COMMIT" if marker.commits else "ABORT"
            producer = 1_000 * (number + 1) + marker.transaction
            place = APART * number + marker.partition, marker.offset, marker.offset
            written.batches.append(
                (*place, 1, producer, 0, -1, True, control, 0, 0, 100, "none", 0)
            )
    written.batches.sort(key=lambda batch: batch[:2])


def _bytes(number: int, record: Input | Output) -> tuple[bytes | None, bytes | None]:
    key = None if record.group is None else f"{number}:{record.group}".encode()
    return key, None if record.value is None else record.value.encode()
