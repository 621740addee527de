"""From two topics to what a verdict rests on: bounds once, then the readings, the raw logs, the
coordinators' answers.

Without payloads in the evidence, readings are folded as they come and never kept, as long as
nothing is odd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, EvidenceError, SparkError
from topicproof.backend.judging.capture_store import (
    ABORTED,
    COMMITTED,
    INPUTS,
    PACKS,
    PENDING,
    SOURCE_PACKS,
    UNCOMMITTED,
    Capture,
    Question,
    Readings,
)
from topicproof.backend.judging.spark_tuning import tune
from topicproof.backend.kafka.browse.describe import cleanup_policy
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.coordination.coordinator import open_transactions
from topicproof.backend.kafka.coordination.unstable import unstable_offsets
from topicproof.backend.kafka.log import fates, rawlog
from topicproof.backend.kafka.origin import fetch_origin, topic_names
from topicproof.backend.kafka.records_source import OVERFLOW, beyond_spark, read_clamped, register
from topicproof.backend.services.spark import first_line
from topicproof.backend.settings import READ_COMMITTED, spark_source_options
from topicproof.backend.waiting import ask_until
from topicproof.validators.circumstances import Circumstances, Growth, Removed
from topicproof.validators.coordinator import Coordinator
from topicproof.validators.facts.balance import TRANSACTION_COLUMNS
from topicproof.validators.fast_path.offset_runs import folded_pieces, words_of
from topicproof.validators.fast_path.proof import Folded, spans_of
from topicproof.validators.fast_path.proof_log import sound_log
from topicproof.validators.finding import Bounds, Fate, Witness
from topicproof.validators.ledger.ledger import ReadingsNeeded
from topicproof.validators.ledger.rows import content
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.lineage.packed import keep_packs, packs_in
from topicproof.validators.merged_topics import join, split
from topicproof.validators.readings import COLUMNS, keep, read

SETTLE_S = 3.0


Reader = Callable[[Bounds, Witness], DataFrame]
"""Gives the records within bounds at one isolation level."""


class TimestampsBeyond(Exception):
    """Spark cannot read the topics of these bounds because of timestamps that it cannot hold."""

    def __init__(self, topics: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(topics)))
        self.topics = topics


def take(spark: SparkSession, address: Address, question: Question, evidence: Path) -> Capture:
    """Bounds first, then everything within them. The readings are kept in the folder `evidence`."""
    asked, sink = question, _sink_bounds(address, question)
    question, group = (_again(address, question), _group_offsets(address, question))
    try:
        taken = _take(spark, address, question, sink, evidence)
    except TimestampsBeyond as beyond:
        taken = _take(spark, address, question, sink, evidence, beyond.topics)
    return _with_circumstances(address, taken, asked.source, group)


def _take(
    spark: SparkSession,
    address: Address,
    question: Question,
    sink: Bounds,
    evidence: Path,
    clamped: frozenset[str] = frozenset(),
) -> Capture:
    """`clamped`: topics that are read with timestamps that Spark can hold. Raises TimestampsBeyond
    where one more topic needs that."""
    source = question.source
    reader = _reader(spark, address, clamped)
    offsets = sink.offsets + source.offsets

    def reading(bounds: Bounds, level: Witness, name: str) -> DataFrame:
        return keep(reader(bounds, level), (evidence / name).as_uri(), offsets, COLUMNS)

    tune(spark, offsets)
    with ThreadPoolExecutor(7) as pool:
        # All of them at once: each waits for Kafka more than it computes.
        committed = pool.submit(reading, sink, Witness.READ_COMMITTED, COMMITTED)
        uncommitted = pool.submit(reading, sink, Witness.READ_UNCOMMITTED, UNCOMMITTED)
        inputs = pool.submit(reading, source, Witness.READ_COMMITTED, INPUTS)
        batches = pool.submit(_scan, address, sink)
        source_batches = pool.submit(_scan, address, source)
        coordinator = pool.submit(_ask_coordinator, address, sink, source)
        origin = pool.submit(fetch_origin, address, topic_names(source, sink))
    try:
        taken = Capture(
            *(question, sink, Readings(committed.result(), uncommitted.result(), inputs.result())),
            *(batches.result(), coordinator.result(), source_batches.result()),
            _aborted(reader, source, source_batches.result(), inputs.result(), evidence, offsets),
            pending=_pending(reader, question, evidence, offsets),
            origin=origin.result(),
            notes=tuple(map(_clamped_note, sorted(clamped))),
        )
        try:
            return _with_packs(taken, evidence)
        except OSError as error:
            raise EvidenceError(
                f"The evidence in {evidence} cannot be written: {error.strerror}."
            ) from error
    except PySparkException as error:
        beyond = _beyond(error, (sink, batches.result()), (source, source_batches.result()))
        if beyond - clamped:
            raise TimestampsBeyond(beyond | clamped) from error
        raise SparkError(f"Spark could not read {question.sink}: {first_line(error)}") from error


def _reader(spark: SparkSession, address: Address, clamped: frozenset[str]) -> Reader:
    options = spark_source_options(address, READ_COMMITTED)
    if clamped:
        register(spark)

    def reader(bounds: Bounds, level: Witness) -> DataFrame:
        if bounds.topic in clamped:
            return read_clamped(spark, address, bounds, level)
        return read(spark, options, bounds, level)

    return reader


def _beyond(error: PySparkException, *logs: tuple[Bounds, pa.Table]) -> frozenset[str]:
    """The topics, as their bounds name them, whose timestamps may be why Spark failed: those whose
    raw log shows one, or all of them where it shows none and Spark says that a number
    overflowed."""
    shown = frozenset(bounds.topic for bounds, batches in logs if beyond_spark(batches))
    return shown or frozenset(bounds.topic for bounds, _ in logs if OVERFLOW in str(error))


def _clamped_note(topic: str) -> str:
    return (
        f"{topic} holds timestamps that Spark cannot hold. They were moved into the years 1 to"
        " 9999; all else was read as it is."
    )


def take_folded(spark: SparkSession, address: Address, question: Question) -> Capture:
    """As `take`, but nothing is kept: Spark folds the records as they come. Raises ReadingsNeeded
    where that will not do, and as `take`."""
    asked, sink = question, _sink_bounds(address, question)
    question, group = (_again(address, question), _group_offsets(address, question))
    options = spark_source_options(address, READ_COMMITTED)
    offsets = sink.offsets + question.source.offsets
    source = read(spark, options, question.source, Witness.READ_COMMITTED)
    committed, uncommitted = (
        read(spark, options, sink, level)
        for level in (Witness.READ_COMMITTED, Witness.READ_UNCOMMITTED)
    )
    tune(spark, offsets, folding=True)
    with ThreadPoolExecutor(4) as pool:
        batches = pool.submit(_scan, address, sink)
        source_batches = pool.submit(_scan, address, question.source)
        coordinator = pool.submit(_ask_coordinator, address, sink, question.source)
        origin = pool.submit(fetch_origin, address, topic_names(question.source, sink))
        try:
            # One job after the other: each has a task for every partition, and side by side they
            # only contend.
            inputs = words_of(source, F.lit(0).cast("long"), offsets)
            log = sound_log(batches.result(), transactions_in(batches.result(), sink), sink)
            if log is None or _has_aborted(source_batches.result(), question.source):
                raise ReadingsNeeded
            pieces = folded_pieces(uncommitted, content(), offsets, spans_of(log))
            seen = words_of(committed, content(), offsets)
        except PySparkException as error:
            if _beyond(error, (sink, batches.result()), (question.source, source_batches.result())):
                raise ReadingsNeeded from error
            raise SparkError(
                f"Spark could not read {question.sink}: {first_line(error)}"
            ) from error
    folded = Folded(seen, pieces, inputs)
    logs = batches.result(), coordinator.result(), source_batches.result()
    taken = Capture(question, sink, folded, *logs, origin=origin.result())
    return _with_circumstances(address, taken, asked.source, group)


def _sink_bounds(address: Address, question: Question) -> Bounds:
    topics = (question.sink, *question.also)
    return _from(join([settled_bounds(address, topic) for topic in topics]), question.sink_from)


def settled_bounds(address: Address, topic: str) -> Bounds:
    """The topic's bounds, as soon as all is settled that was there at the first look.

    A commit is answered before its markers are in the partitions, so bounds taken right after it
    may show offsets above the LSO that are about to settle. What is still open after `SETTLE_S` is
    an open transaction, and judged as such. In a topic that is being written to, something is
    always open: what came after the first look is not waited for.
    """
    first: dict[int, int] = {}

    def ask() -> Bounds:
        bounds = rawlog.fetch_bounds(address, topic)
        for p in bounds.partitions:
            first.setdefault(p.partition, p.hw)
        return bounds

    def settled(bounds: Bounds) -> bool:
        return all(p.lso >= first[p.partition] for p in bounds.partitions)

    return ask_until(ask, settled, SETTLE_S)


def _again(address: Address, question: Question) -> Question:
    """The question with the source's bounds of this moment: after the sink's, so that each output
    finds its input."""
    if not question.foreign:
        return question
    now = [rawlog.fetch_bounds(address, own.topic) for own, _ in split(question.source)]
    return replace(question, source=join(now))


def _group_offsets(address: Address, question: Question) -> Mapping[int, int] | None:
    """The group's committed offsets of this moment, after the sink's bounds; None without a
    group."""
    if question.group is None:
        return None
    return committed_offsets(Cluster(address), question.group, question.source)


def committed_offsets(cluster: Cluster, group: str, source: Bounds) -> dict[int, int]:
    """The group's committed offsets of the source, its partitions numbered through."""
    return {
        first + partition: at
        for own, first in split(source)
        for partition, at in cluster.committed(group, own.topic).items()
        if at >= 0
    }


def _with_circumstances(
    address: Address, taken: Capture, before: Bounds, group: Mapping[int, int] | None
) -> Capture:
    """The same, with what was seen of the topics beside their records. `before`: the source's
    bounds at the first look. Runs know their range, so that only what compaction took from it is
    asked for."""
    question, sink = taken.question, taken.sink
    assert taken.batches is not None and taken.source_batches is not None
    if not question.foreign:
        inside = (
            gone_inside(taken.batches, sink),
            gone_inside(taken.source_batches, question.source),
        )
        seen = Circumstances(
            looked=True,
            source_removed={p: Removed(inside=gone) for p, gone in inside[1].items()},
            sink_removed={p: Removed(inside=gone) for p, gone in inside[0].items()},
        )
        return replace(taken, circumstances=seen)
    topics = [[own.topic for own, _ in split(bounds)] for bounds in (question.source, sink)]
    with rawlog.connect(address) as kafka:
        ends = [join([kafka.bounds(topic) for topic in side]) for side in topics]
        policies = {topic: cleanup_policy(kafka, topic) for side in topics for topic in side}
    growth = [*_growth("source", before, ends[0]), *_growth("sink", sink, ends[1])]
    seen = Circumstances(
        looked=True,
        source_removed=_removed(taken.source_batches, question.source, ends[0]),
        sink_removed=_removed(taken.batches, sink, ends[1]),
        growth=tuple(growth),
        watched=True,
        source_lso={p.partition: p.lso for p in question.source.partitions},
        offsets_after=group,
        policies=policies,
    )
    return replace(taken, circumstances=seen)


def _growth(side: str, before: Bounds, after: Bounds) -> list[Growth]:
    ends = {p.partition: p.hw for p in after.partitions}
    pairs = [(p.partition, p.hw, ends.get(p.partition, p.hw)) for p in before.partitions]
    return [
        Growth(side, partition, first, last) for partition, first, last in pairs if last != first
    ]


def _removed(batches: pa.Table, bounds: Bounds, now: Bounds) -> dict[int, Removed]:
    """What the whole topic has lost. `now`: its bounds after the readings, as retention may have
    passed meanwhile."""
    inside = gone_inside(batches, bounds)
    starts = {p.partition: p.start for p in now.partitions}
    found = {
        p.partition: Removed(
            max(p.start, min(starts.get(p.partition, p.start), p.hw)), inside.get(p.partition, 0)
        )
        for p in bounds.partitions
    }
    return {partition: one for partition, one in found.items() if one.offsets}


def gone_inside(batches: pa.Table, bounds: Bounds) -> dict[int, int]:
    """How many offsets of the bounds hold nothing any more, by partition; those that lost none are
    left out."""
    counts = fates.balance(fates.fate_ranges(batches, bounds), bounds)[Fate.GONE]
    gone = zip(counts.index.tolist(), counts.tolist(), strict=True)
    return {partition: offsets for partition, offsets in gone if offsets}


def _pending(reader: Reader, question: Question, evidence: Path, offsets: int) -> DataFrame | None:
    """The source's records at and above its last stable offset, kept; None without any, or where
    lineage names them."""
    open_ = [p for p in question.source.partitions if p.lso < p.hw]
    if not question.foreign or question.identity is not Identity.KEY or not open_:
        return None
    above = replace(
        question.source,
        partitions=tuple(replace(p, start=max(p.start, p.lso)) for p in question.source.partitions),
    )
    reading = reader(above, Witness.READ_UNCOMMITTED)
    return keep(reading, (evidence / PENDING).as_uri(), offsets, COLUMNS)


def _from(bounds: Bounds, first: Mapping[int, int]) -> Bounds:
    return replace(
        bounds,
        partitions=tuple(
            replace(p, start=max(p.start, first.get(p.partition, p.start)))
            for p in bounds.partitions
        ),
    )


def _ask_coordinator(address: Address, sink: Bounds, source: Bounds) -> Coordinator | None:
    """None where it is not heard: a client may read topics without the right to describe
    transactions and groups."""
    try:
        with rawlog.connect(address) as kafka:
            opened = tuple(
                replace(one, partition=first + one.partition)
                for own, first in split(sink)
                for one in open_transactions(kafka, own.topic, own)
            )
            asked = [unstable_offsets(kafka, own.topic) for own, _ in split(source)]
    except ClusterError:
        return None
    unstable = tuple(one for _, found in asked for one in found)
    return Coordinator(len(sink.partitions), opened, sum(offsets for offsets, _ in asked), unstable)


def _scan(address: Address, sink: Bounds) -> pa.Table:
    """The raw log within the bounds."""
    found = []
    for own, first in split(sink):
        table = rawlog.scan(address, own.topic, own)
        place = table.schema.get_field_index("partition")
        numbered = pc.add(table.column("partition"), first).cast(table.schema.field(place).type)
        found.append(
            table.set_column(place, table.schema.field(place), numbered) if first else table
        )
    return pa.concat_tables(found)


def _aborted(
    reader: Reader,
    source: Bounds,
    batches: pa.Table,
    inputs: DataFrame,
    evidence: Path,
    offsets: int,
) -> DataFrame | None:
    """The aborted records of the judged range, kept; None where the raw log shows no aborted
    transaction."""
    if not _has_aborted(batches, source):
        return None
    judged = replace(source, partitions=tuple(replace(p, hw=p.lso) for p in source.partitions))
    every = reader(judged, Witness.READ_UNCOMMITTED)
    lost = every.join(inputs.select("partition", "offset"), ["partition", "offset"], "left_anti")
    return keep(lost.select(*inputs.columns), (evidence / ABORTED).as_uri(), offsets)


def _has_aborted(batches: pa.Table, bounds: Bounds) -> bool:
    return bool((fates.transactions(batches, bounds)["outcome"] == "ABORTED").any())


def _with_packs(taken: Capture, evidence: Path) -> Capture:
    """The same, with where the packs lie, kept, where lineage is packed."""
    assert taken.batches is not None and taken.source_batches is not None
    with ThreadPoolExecutor(2) as pool:
        sink = pool.submit(
            _keep_packs, taken.uncommitted, evidence / UNCOMMITTED, taken.batches, evidence / PACKS
        )
        folder = evidence / SOURCE_PACKS
        source = pool.submit(
            _keep_packs, taken.inputs, evidence / INPUTS, taken.source_batches, folder
        )
    return replace(taken, packs=sink.result(), source_packs=source.result())


def _keep_packs(reading: DataFrame, kept: Path, batches: pa.Table, folder: Path) -> Path | None:
    """Where it is said where the packs lie; None where there are none. They lie in transactions, so
    that other topics need not be looked at."""
    if not pc.any(batches["transactional"]).as_py() or not packs_in(kept):
        return None
    return folder if keep_packs(reading, batches, folder) else None


def transactions_in(batches: pa.Table, bounds: Bounds) -> pa.Table:
    names = [column.split()[0] for column in TRANSACTION_COLUMNS.split(", ")]
    return pa.Table.from_pandas(fates.transactions(batches, bounds)[names], preserve_index=False)
