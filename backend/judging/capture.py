"""From two topics to a capture: bounds once, then the readings, the raw logs and the coordinators'
answers.

Readings are folded on arrival and not kept if the evidence needs no payloads and nothing is
irregular.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from topicproof.backend.address import Address, Sides
from topicproof.backend.errors import ClusterError, EvidenceError, RecordTooLarge, TopicproofError
from topicproof.backend.judging.capture_store import (
    ABORTED,
    COMMITTED,
    INPUTS,
    PENDING,
    UNCOMMITTED,
    Capture,
)
from topicproof.backend.judging.circumstances import vanished_topics, with_circumstances
from topicproof.backend.judging.log_scan import scan_log, source_options
from topicproof.backend.judging.mirrored import mirror_notes
from topicproof.backend.judging.presence import capture_of_nothing, interrupted_without
from topicproof.backend.judging.spark_tuning import tune
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.coordination.attribution import fetch_attribution
from topicproof.backend.kafka.coordination.coordinator import open_transactions
from topicproof.backend.kafka.coordination.unstable import unstable_offsets
from topicproof.backend.kafka.log import fates, rawlog
from topicproof.backend.kafka.log.inflation import largest_ratio
from topicproof.backend.kafka.origin import fetch_origins
from topicproof.backend.kafka.records_source import OVERFLOW, beyond_spark, read_clamped, register
from topicproof.backend.services.spark import failed
from topicproof.backend.storage import fetch, keep_in
from topicproof.backend.waiting import ask_until
from topicproof.validators.coordinator import NO_ATTRIBUTION, Attribution, Coordinator
from topicproof.validators.facts.log_facts import log_facts
from topicproof.validators.finding import Bounds, Origins, Witness
from topicproof.validators.folded.fold import Folded, spans_of
from topicproof.validators.folded.offset_runs import folded_pieces, words_of
from topicproof.validators.ledger.by_proof import provable_log
from topicproof.validators.ledger.ledger import ReadingsNeeded
from topicproof.validators.ledger.rows import content
from topicproof.validators.lineage.identity import (
    Identity,
    has_packed_lineage,
    names_packed_lineage,
)
from topicproof.validators.merged_topics import join, split
from topicproof.validators.question import Question
from topicproof.validators.readings import COLUMNS, Readings, read

SETTLE_S = 3.0
PACKED = (
    "the lineage of some records is packed in headers of others, which this version no longer"
    " reads. Topicproof 0.3.0 is the last release that does."
)

Reader = Callable[[Bounds, Witness], DataFrame]
"""Reads the records within bounds at one isolation level."""


class TimestampsBeyond(Exception):
    """Spark cannot read topics because it cannot hold their timestamps."""

    def __init__(self, topics: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(topics)))
        self.topics = topics


def capture_topics(
    spark: SparkSession,
    address: Address,
    question: Question,
    evidence: Path,
    source: Address | None = None,
) -> Capture:
    """Take the bounds, then everything within them. The readings are kept in the folder `evidence`.
    `source` is the source's cluster, if it is not the sink's.

    Raises ClusterError, TopicError, SparkError, EvidenceError.
    """
    before, sides = question.source, Sides(address, source)
    question, origins = identified(sides, question)
    try:
        with interrupted_without(spark, sides, origins):
            question, sink, group = _bounded(sides, question)
            try:
                capture = _capture(spark, sides, question, sink, evidence)
            except TimestampsBeyond as beyond:
                capture = _capture(spark, sides, question, sink, evidence, beyond.topics)
            capture = with_circumstances(sides, capture, before, group)
    except (TopicproofError, PySparkException) as error:
        replaced = _vanished_before(error, sides, origins)
        return capture_of_nothing(spark, question, replaced, evidence)
    if capture.circumstances.vanished:
        return capture_of_nothing(spark, question, capture.circumstances.replaced, evidence)
    return capture


def identified(sides: Sides, question: Question) -> tuple[Question, Origins]:
    """Return the question with the ids of its topics, and these. Raises TopicError,
    ClusterError."""
    origins = question.origins
    if origins is None:
        sources = () if question.agreed.unique else question.source.topics
        origins = fetch_origins(sides.sink, sides.other, sources, (question.sink, *question.also))
    return replace(question, origins=origins), origins


def _vanished_before(error: Exception, sides: Sides, origins: Origins) -> tuple[str, ...]:
    """Return a clause for each topic that vanished while it was read. Raises the error if none
    did, or if nobody can tell."""
    try:
        replaced = vanished_topics(sides, origins)
    except TopicproofError:
        raise error from None
    if not replaced:
        raise error
    return replaced


def _capture(
    spark: SparkSession,
    sides: Sides,
    question: Question,
    sink: Bounds,
    evidence: Path,
    clamped: frozenset[str] = frozenset(),
) -> Capture:
    """Capture the topics. `clamped`: topics whose timestamps are moved into Spark's range. Raises
    TimestampsBeyond if another topic needs that."""
    assert question.origins is not None
    source = question.source
    logs = _scan_logs(spark, sides, sink, source)
    read_source = _reader(spark, sides.source, logs.source, clamped)
    read_sink = _reader(spark, sides.sink, logs.sink, clamped)
    offsets = sink.offsets + source.offsets

    def reading(reader: Reader, bounds: Bounds, level: Witness, name: str) -> DataFrame:
        return keep_in(reader(bounds, level), evidence / name, offsets, COLUMNS)

    tune(spark, offsets)
    with ThreadPoolExecutor(4) as pool:
        # Concurrent, because each mostly waits for Kafka.
        committed = pool.submit(reading, read_sink, sink, Witness.READ_COMMITTED, COMMITTED)
        uncommitted = pool.submit(reading, read_sink, sink, Witness.READ_UNCOMMITTED, UNCOMMITTED)
        inputs = pool.submit(reading, read_source, source, Witness.READ_COMMITTED, INPUTS)
        answers = pool.submit(_ask_kafka, sides, sink, source, logs, foreign=question.foreign)
    kafka = answers.result()
    try:
        readings = Readings(committed.result(), uncommitted.result(), inputs.result())
        capture = Capture(
            question=question,
            sink=sink,
            readings=readings,
            batches=kafka.batches,
            coordinator=kafka.coordinator,
            source_batches=kafka.source_batches,
            aborted=_aborted(
                read_source, source, kafka.source_batches, readings.inputs, evidence, offsets
            ),
            pending=_pending(read_source, question, evidence, offsets),
            origin=question.origins.sink,
            notes=tuple(map(_clamped_note, sorted(clamped))),
            source_origin=question.origins.source,
            attribution=kafka.attribution,
        )
        fetch(spark, evidence)
        if sides.across:
            capture = replace(capture, notes=capture.notes + mirror_notes(sides, capture))
        try:
            return replace(capture, doubts=_packed_doubt(capture, evidence))
        except OSError as error:
            raise EvidenceError(
                f"The evidence in {evidence} cannot be written: {error.strerror}."
            ) from error
    except PySparkException as error:
        beyond = _beyond(error, (sink, kafka.batches), (source, kafka.source_batches))
        if beyond - clamped:
            raise TimestampsBeyond(beyond | clamped) from error
        raise failed(f"Spark could not read {question.sink}", error) from error


def _reader(
    spark: SparkSession, address: Address, batches: pa.Table, clamped: frozenset[str]
) -> Reader:
    options = source_options(address, batches)
    if clamped:
        register(spark)

    def reader(bounds: Bounds, level: Witness) -> DataFrame:
        if bounds.topic in clamped:
            return read_clamped(spark, address, bounds, level, largest_ratio(batches))
        return read(spark, options, bounds, level)

    return reader


def _beyond(error: PySparkException, *logs: tuple[Bounds, pa.Table]) -> frozenset[str]:
    """Return the topics whose timestamps may have made Spark fail, according to their raw logs. If
    none shows one and Spark reports an overflow, return all topics."""
    topics = frozenset(bounds.topic for bounds, batches in logs if beyond_spark(batches))
    return topics or frozenset(bounds.topic for bounds, _ in logs if OVERFLOW in str(error))


def _clamped_note(topic: str) -> str:
    return (
        f"{topic} holds timestamps that Spark cannot represent. They were moved into the years 1 to"
        " 9999; everything else was read unchanged."
    )


def capture_folded(spark: SparkSession, address: Address, question: Question) -> Capture:
    """Capture the topics as `capture_topics` does, but keep no reading: Spark folds the records on
    arrival. Also raises ReadingsNeeded if folded readings are not enough."""
    sides = Sides(address)
    question, origins = identified(sides, question)
    try:
        with interrupted_without(spark, sides, origins):
            capture = _capture_folded(spark, sides, question)
    except (TopicproofError, PySparkException) as error:
        _vanished_before(error, sides, origins)
        # `capture_topics` meets the same, and knows what to make of it.
        raise ReadingsNeeded from error
    if capture.circumstances.vanished:
        raise ReadingsNeeded
    return capture


def _capture_folded(spark: SparkSession, sides: Sides, question: Question) -> Capture:
    before, address = question.source, sides.sink
    question, sink, group = _bounded(sides, question)
    logs = _scan_logs(spark, sides, sink, question.source)
    options = source_options(address, logs.sink)
    offsets = sink.offsets + question.source.offsets
    of_source = source_options(address, logs.source)
    source = read(spark, of_source, question.source, Witness.READ_COMMITTED)
    committed = read(spark, options, sink, Witness.READ_COMMITTED)
    uncommitted = read(spark, options, sink, Witness.READ_UNCOMMITTED)
    tune(spark, offsets, folding=True)
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(
            _ask_kafka, sides, sink, question.source, logs, foreign=question.foreign
        )
        try:
            # One job after the other: each has a task per partition, so parallel jobs only contend.
            inputs = words_of(source, F.lit(0).cast("long"), offsets)
            kafka = answers.result()
            log = provable_log(
                log_facts(kafka.batches, sink),
                sink,
                aborted_inputs=_has_aborted(kafka.source_batches, question.source),
            )
            if log is None:
                raise ReadingsNeeded
            pieces = folded_pieces(uncommitted, content(), offsets, spans_of(log))
            committed_words = words_of(committed, content(), offsets)
        except PySparkException as error:
            kafka = answers.result()
            if _beyond(error, (sink, kafka.batches), (question.source, kafka.source_batches)):
                raise ReadingsNeeded from error
            raise failed(f"Spark could not read {question.sink}", error) from error
    assert question.origins is not None
    capture = Capture(
        question=question,
        sink=sink,
        readings=Folded(committed_words, pieces, inputs),
        batches=kafka.batches,
        coordinator=kafka.coordinator,
        source_batches=kafka.source_batches,
        origin=question.origins.sink,
        attribution=kafka.attribution,
    )
    return with_circumstances(sides, capture, before, group)


@dataclass(frozen=True)
class _Answers:
    """Kafka's answers apart from the records."""

    batches: pa.Table
    source_batches: pa.Table
    coordinator: Coordinator | None
    attribution: Attribution


@dataclass(frozen=True)
class _Logs:
    """The raw logs of both sides (`batches.SCHEMA`)."""

    sink: pa.Table
    source: pa.Table


def _scan_logs(spark: SparkSession, sides: Sides, sink: Bounds, source: Bounds) -> _Logs:
    """Scan both raw logs. This comes before Spark reads a record: a batch of a few kB may hold a
    record that would end the server. Raises RecordTooLarge naming it."""
    with ThreadPoolExecutor(2) as pool:
        of_sink = pool.submit(scan_log, spark, sides.sink, sink)
        of_source = pool.submit(scan_log, spark, sides.source, source)
    try:
        return _Logs(of_sink.result(), of_source.result())
    except RecordTooLarge as error:
        raise RecordTooLarge(f"{error} No record was read: the verdict is UNKNOWN.") from error


def _ask_kafka(
    sides: Sides, sink: Bounds, source: Bounds, logs: _Logs, *, foreign: bool
) -> _Answers:
    with ThreadPoolExecutor(2) as pool:
        coordinator = pool.submit(_ask_coordinator, sides, sink, source)
        # Records of our own runs name their transaction.
        attribution = (
            pool.submit(fetch_attribution, sides.sink, sink, logs.sink) if foreign else None
        )
    # Only readers need to know how large a batch becomes; evidence has the log's own columns.
    batches, source_batches = (log.drop_columns("inflated") for log in (logs.sink, logs.source))
    return _Answers(
        batches,
        source_batches,
        coordinator.result(),
        attribution.result() if attribution else NO_ATTRIBUTION,
    )


def _bounded(sides: Sides, question: Question) -> tuple[Question, Bounds, Mapping[int, int] | None]:
    """Return the question, the sink's bounds and the committed offsets of its group, all of this
    moment.

    The source's bounds are taken after the sink's, so that each output finds its input.
    """
    whole = join([settled_bounds(sides.sink, topic) for topic in (question.sink, *question.also)])
    starts = {p.partition: p.start for p in whole.partitions} | dict(question.sink_from)
    partitions = (replace(p, start=max(p.start, starts[p.partition])) for p in whole.partitions)
    sink = replace(whole, partitions=tuple(partitions))
    if question.agreed.unique:
        # The sink alone is judged: whatever it holds is below the same bounds on both sides.
        return replace(question, source=sink), sink, None
    if question.foreign:
        now = [
            rawlog.fetch_bounds(sides.source, topic_bounds.topic)
            for topic_bounds, _ in split(question.source)
        ]
        question = replace(question, source=join(now))
    if question.group is None or not question.foreign:
        return question, sink, None
    cluster = Cluster(sides.source)
    return question, sink, committed_offsets(cluster, question.group, question.source)


def settled_bounds(address: Address, topic: str) -> Bounds:
    """Return the topic's bounds once everything from the first look has settled.

    A commit is acknowledged before its markers are written. Bounds taken right after it may show
    offsets above the LSO that are about to settle. A transaction that is still open after
    `SETTLE_S` counts as open. Records after the first look are not awaited: a busy topic always has
    open transactions.
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


def committed_offsets(cluster: Cluster, group: str, source: Bounds) -> dict[int, int]:
    """Return the group's committed offsets of the source, by its consecutive partition numbers.
    Raises ClusterError, also for an offset whose transaction stays open."""
    return {
        first + partition: at
        for topic_bounds, first in split(source)
        for partition, at in _committed(cluster, group, topic_bounds.topic).items()
        if at >= 0
    }


def _committed(cluster: Cluster, group: str, topic: str) -> dict[int, int]:
    try:
        return cluster.committed(group, topic)
    except ClusterError as error:
        # Kafka does not say an offset that a transaction may still change, and clients ask again.
        with rawlog.connect(cluster.address) as kafka:
            _, unstable = unstable_offsets(kafka, topic)
        for unstable_offset in unstable:
            if unstable_offset.group == group:
                raise ClusterError(
                    f"{unstable_offset.why} Check again when it has ended."
                ) from error
        raise


def _pending(reader: Reader, question: Question, evidence: Path, offsets: int) -> DataFrame | None:
    """Read and keep the source's records at and above its last stable offset. None without any, or
    by lineage."""
    open_ = [p for p in question.source.partitions if p.lso < p.hw]
    if not question.foreign or question.identity is not Identity.KEY or not open_:
        return None
    above = replace(
        question.source,
        partitions=tuple(replace(p, start=max(p.start, p.lso)) for p in question.source.partitions),
    )
    reading = reader(above, Witness.READ_UNCOMMITTED)
    return keep_in(reading, evidence / PENDING, offsets, COLUMNS)


def _ask_coordinator(sides: Sides, sink: Bounds, source: Bounds) -> Coordinator | None:
    """Ask the coordinators; None without an answer. A client may read topics without the right to
    describe transactions and groups."""
    try:
        with rawlog.connect(sides.sink) as kafka:
            opened = tuple(
                replace(transaction, partition=first + transaction.partition)
                for topic_bounds, first in split(sink)
                for transaction in open_transactions(kafka, topic_bounds.topic, topic_bounds)
            )
        with rawlog.connect(sides.source) as kafka:
            answers = [
                unstable_offsets(kafka, topic_bounds.topic) for topic_bounds, _ in split(source)
            ]
    except ClusterError:
        return None
    unstable = tuple(offset for _, offsets in answers for offset in offsets)
    return Coordinator(len(sink.partitions), opened, sum(count for count, _ in answers), unstable)


def _aborted(
    reader: Reader,
    source: Bounds,
    batches: pa.Table,
    inputs: DataFrame,
    evidence: Path,
    offsets: int,
) -> DataFrame | None:
    """Read and keep the aborted records of the judged range. None if the raw log shows no aborted
    transaction."""
    if not _has_aborted(batches, source):
        return None
    judged = replace(source, partitions=tuple(replace(p, hw=p.lso) for p in source.partitions))
    every = reader(judged, Witness.READ_UNCOMMITTED)
    lost = every.join(inputs.select("partition", "offset"), ["partition", "offset"], "left_anti")
    return keep_in(lost.select(*inputs.columns), evidence / ABORTED, offsets)


def _has_aborted(batches: pa.Table, bounds: Bounds) -> bool:
    return bool((fates.transactions(batches, bounds)["outcome"] == "ABORTED").any())


def _packed_doubt(capture: Capture, evidence: Path) -> tuple[str, ...]:
    """Return a clause if inputs are known by lineage, and that of some records is packed."""
    by_lineage = capture.question.identity is Identity.LINEAGE
    is_packed = (
        by_lineage
        and names_packed_lineage(evidence / UNCOMMITTED)
        and has_packed_lineage(capture.uncommitted)
    )
    return (PACKED,) if is_packed else ()
