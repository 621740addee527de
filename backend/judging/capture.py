"""From two topics to a capture: bounds once, then the readings, the raw logs and the coordinators'
answers.

Readings are folded on arrival and not kept if the evidence needs no payloads and nothing is
irregular.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F

from topicproof.backend.address import Address, Sides
from topicproof.backend.errors import ClusterError, EvidenceError, RecordTooLarge, TopicproofError
from topicproof.backend.judging.bounded_question import BoundedQuestion, bound, origins_of
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
from topicproof.backend.kafka.coordination.attribution import fetch_attribution
from topicproof.backend.kafka.coordination.coordinator import open_transactions
from topicproof.backend.kafka.coordination.unstable import unstable_offsets
from topicproof.backend.kafka.log import fates, rawlog
from topicproof.backend.kafka.log.inflation import largest_client_ratio
from topicproof.backend.kafka.look import LookBudget
from topicproof.backend.kafka.records_source import OVERFLOW, beyond_spark, read_clamped, register
from topicproof.backend.services.spark_session import failed
from topicproof.backend.storage import FrameFolder, fetch
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
from topicproof.validators.merged_topics import split
from topicproof.validators.question import Question
from topicproof.validators.readings import COLUMNS, Readings, read

PACKED = (
    "the lineage of some records is packed in headers of others, which this version no longer"
    " reads. Topicproof 0.3.0 is the last release that does."
)

Reader = Callable[[Bounds, Witness], DataFrame]
"""Reads the records within bounds at one isolation level."""


def capture_topics(
    spark: SparkSession, sides: Sides, question: Question, evidence: Path, *, folded: bool = False
) -> Capture:
    """Take the bounds, then everything within them. `question` has the ids of its topics.

    The readings are kept in the folder `evidence`. If `folded`, none is kept: Spark folds the
    records on arrival.

    Raises ClusterError, TopicError, SparkError, EvidenceError; ReadingsNeeded if folded readings
    are not enough.
    """

    def take() -> Capture:
        bounded = bound(sides, question)
        capture = _fold(spark, bounded) if folded else _read(spark, bounded, evidence)
        return with_circumstances(capture, bounded)

    return guarded(spark, sides, question, evidence, take, folded=folded)


def guarded(
    spark: SparkSession,
    sides: Sides,
    question: Question,
    evidence: Path,
    take: Callable[[], Capture],
    *,
    folded: bool = False,
) -> Capture:
    """Return what `take` captures; a capture of nothing if a topic vanished meanwhile. Raises what
    `take` raises; ReadingsNeeded if that happened and readings are `folded`."""
    origins = origins_of(question)
    try:
        with interrupted_without(spark, sides, origins):
            capture = take()
        replaced = capture.circumstances.replaced
        if not capture.circumstances.vanished:
            return capture
    except (TopicproofError, PySparkException) as error:
        replaced = _vanished_before(error, sides, origins)
    if folded:
        # With readings, the same is met again.
        raise ReadingsNeeded
    return capture_of_nothing(spark, question, replaced, evidence)


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


def _read(
    spark: SparkSession,
    bounded: BoundedQuestion,
    evidence: Path,
    clamped: frozenset[str] = frozenset(),
) -> Capture:
    """Capture the topics with their readings. `clamped`: topics whose timestamps are moved into
    Spark's range, since it cannot hold them."""
    sides, sink, source = bounded.sides, bounded.sink, bounded.source
    logs = _scan_logs(spark, bounded)
    read_source = reader_of(spark, sides.source, logs.source, clamped)
    read_sink = reader_of(spark, sides.sink, logs.sink, clamped)
    folder = FrameFolder(evidence, bounded.offsets)

    def reading(reader: Reader, bounds: Bounds, level: Witness, name: str) -> DataFrame:
        return folder.keep(reader(bounds, level), name, COLUMNS)

    tune(spark, bounded.offsets)
    with ThreadPoolExecutor(4) as pool:
        # Concurrent, because each mostly waits for Kafka.
        committed = pool.submit(reading, read_sink, sink, Witness.READ_COMMITTED, COMMITTED)
        uncommitted = pool.submit(reading, read_sink, sink, Witness.READ_UNCOMMITTED, UNCOMMITTED)
        inputs = pool.submit(reading, read_source, source, Witness.READ_COMMITTED, INPUTS)
        answers = pool.submit(_ask_kafka, bounded, logs)
    kafka = answers.result()
    try:
        readings = Readings(committed.result(), uncommitted.result(), inputs.result())
        capture = replace(
            _capture(bounded, readings, kafka),
            aborted=keep_aborted(
                read_source, source, kafka.source_batches, readings.inputs, folder
            ),
            pending=keep_pending(read_source, bounded.question, folder),
        )
        capture = replace(capture, notes=(*capture.notes, *map(_clamped_note, sorted(clamped))))
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
        beyond = _beyond(error, bounded, kafka)
        if beyond - clamped:
            return _read(spark, bounded, evidence, beyond | clamped)
        raise failed(f"Spark could not read {bounded.question.sink}", error) from error


def _capture(bounded: BoundedQuestion, readings: Readings | Folded, kafka: _Answers) -> Capture:
    return Capture(
        question=bounded.question,
        sink=bounded.sink,
        readings=readings,
        batches=kafka.batches,
        coordinator=kafka.coordinator,
        source_batches=kafka.source_batches,
        origin=bounded.origins.sink,
        source_origin=bounded.origins.source,
        attribution=kafka.attribution,
        notes=_left_out_notes(kafka.coordinator),
    )


def reader_of(
    spark: SparkSession, address: Address, batches: pa.Table, clamped: frozenset[str]
) -> Reader:
    options = source_options(address, batches)
    if clamped:
        register(spark)

    def reader(bounds: Bounds, level: Witness) -> DataFrame:
        if bounds.topic in clamped:
            return read_clamped(spark, address, bounds, level, largest_client_ratio(batches))
        return read(spark, options, bounds, level)

    return reader


def _beyond(error: PySparkException, bounded: BoundedQuestion, kafka: _Answers) -> frozenset[str]:
    """Return the topics whose timestamps may have made Spark fail, according to their raw logs. If
    none shows one and Spark reports an overflow, return all topics."""
    logs = ((bounded.sink.topic, kafka.batches), (bounded.source.topic, kafka.source_batches))
    topics = frozenset(topic for topic, batches in logs if beyond_spark(batches))
    return topics or frozenset(topic for topic, _ in logs if OVERFLOW in str(error))


def _left_out_notes(coordinator: Coordinator | None) -> tuple[str, ...]:
    return () if coordinator is None else tuple(filter(None, [coordinator.left_out_note]))


def _clamped_note(topic: str) -> str:
    return (
        f"{topic} holds timestamps that Spark cannot represent. They were moved into the years 1 to"
        " 9999; everything else was read unchanged."
    )


def _fold(spark: SparkSession, bounded: BoundedQuestion) -> Capture:
    """Capture the topics with folded readings. Raises ReadingsNeeded if these are not enough."""
    sides, sink, offsets = bounded.sides, bounded.sink, bounded.offsets
    logs = _scan_logs(spark, bounded)
    source_log, sink_log = (
        source_options(sides.source, logs.source),
        source_options(sides.sink, logs.sink),
    )
    source = read(spark, source_log, bounded.source, Witness.READ_COMMITTED)
    committed = read(spark, sink_log, sink, Witness.READ_COMMITTED)
    uncommitted = read(spark, sink_log, sink, Witness.READ_UNCOMMITTED)
    tune(spark, offsets, folding=True)
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(_ask_kafka, bounded, logs)
        try:
            # One job after the other: each has a task per partition, so parallel jobs only contend.
            inputs = words_of(source, F.lit(0).cast("long"), offsets)
            kafka = answers.result()
            log = provable_log(
                log_facts(kafka.batches, sink),
                sink,
                aborted_inputs=_has_aborted(kafka.source_batches, bounded.source),
            )
            if log is None:
                raise ReadingsNeeded
            pieces = folded_pieces(uncommitted, content(), offsets, spans_of(log))
            folded = Folded(words_of(committed, content(), offsets), pieces, inputs)
        except PySparkException as error:
            if _beyond(error, bounded, answers.result()):
                raise ReadingsNeeded from error
            raise failed(f"Spark could not read {bounded.question.sink}", error) from error
    return _capture(bounded, folded, kafka)


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


def _scan_logs(spark: SparkSession, bounded: BoundedQuestion) -> _Logs:
    """Scan both raw logs. This comes before Spark reads a record: a batch of a few kB may hold a
    record that would end the server. Raises RecordTooLarge naming it."""
    sides = bounded.sides
    with ThreadPoolExecutor(2) as pool:
        of_sink = pool.submit(scan_log, spark, sides.sink, bounded.sink)
        of_source = pool.submit(scan_log, spark, sides.source, bounded.source)
    try:
        return _Logs(of_sink.result(), of_source.result())
    except RecordTooLarge as error:
        raise RecordTooLarge(f"{error} No record was read: the verdict is UNKNOWN.") from error


def _ask_kafka(bounded: BoundedQuestion, logs: _Logs) -> _Answers:
    with ThreadPoolExecutor(2) as pool:
        coordinator = pool.submit(_ask_coordinator, bounded)
        # Records of our own runs name their transaction.
        attribution = (
            pool.submit(fetch_attribution, bounded.sides.sink, bounded.sink, logs.sink)
            if bounded.question.foreign
            else None
        )
    # Only readers need to know how large a batch becomes; evidence has the log's own columns.
    batches, source_batches = (log.drop_columns("inflated") for log in (logs.sink, logs.source))
    return _Answers(
        batches,
        source_batches,
        coordinator.result(),
        attribution.result() if attribution else NO_ATTRIBUTION,
    )


def keep_pending(reader: Reader, question: Question, folder: FrameFolder) -> DataFrame | None:
    """Read and keep the source's records at and above its last stable offset. None without any, or
    by lineage."""
    open_ = [p for p in question.source.partitions if p.lso < p.hw]
    if not question.foreign or question.identity is not Identity.KEY or not open_:
        return None
    above = replace(
        question.source,
        partitions=tuple(replace(p, start=max(p.start, p.lso)) for p in question.source.partitions),
    )
    return folder.keep(reader(above, Witness.READ_UNCOMMITTED), PENDING, COLUMNS)


def _ask_coordinator(bounded: BoundedQuestion) -> Coordinator | None:
    """Ask the coordinators; None without an answer. A client may read topics without the right to
    describe transactions and groups."""
    sink, sides = bounded.sink, bounded.sides
    of_sink, of_source = LookBudget(), LookBudget()
    try:
        with rawlog.connect(sides.sink) as kafka:
            opened = tuple(
                replace(transaction, partition=first + transaction.partition)
                for topic_bounds, first in split(sink)
                for transaction in open_transactions(
                    kafka, topic_bounds.topic, topic_bounds, budget=of_sink
                )
            )
        with rawlog.connect(sides.source) as kafka:
            answers = [
                unstable_offsets(kafka, topic, budget=of_source) for topic in bounded.source.topics
            ]
    except ClusterError:
        return None
    unstable = tuple(offset for _, offsets in answers for offset in offsets)
    return Coordinator(
        len(sink.partitions),
        opened,
        sum(count for count, _ in answers),
        unstable,
        left_out=of_sink.left_out.total(),
        offsets_left_out=of_source.left_out.total(),
    )


def keep_aborted(
    reader: Reader,
    source: Bounds,
    batches: pa.Table,
    inputs: DataFrame,
    folder: FrameFolder,
) -> DataFrame | None:
    """Read and keep the aborted records of the judged range. None if the raw log, `batches`, shows
    no aborted transaction."""
    if not _has_aborted(batches, source):
        return None
    judged = replace(source, partitions=tuple(replace(p, hw=p.lso) for p in source.partitions))
    every = reader(judged, Witness.READ_UNCOMMITTED)
    lost = every.join(inputs.select("partition", "offset"), ["partition", "offset"], "left_anti")
    return folder.keep(lost.select(*inputs.columns), ABORTED)


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
