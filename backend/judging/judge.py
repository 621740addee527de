"""From two topics to a report: capture, ledger, verdict, evidence.

Each stage is computed once and handed on. After the capture, nothing asks Kafka again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from topicproof.backend.address import Address, Sides
from topicproof.backend.errors import ShellFailed
from topicproof.backend.evidence.folder import EVIDENCE, REPORT, complete
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.faults.by_hand import strike_notes
from topicproof.backend.formats.formats import Formats
from topicproof.backend.judging.capture import capture_folded, capture_topics, identified
from topicproof.backend.judging.capture_store import (
    NOTHING_RECORDED,
    Capture,
    RunAccounts,
    empty,
    keep_capture,
    write_text,
)
from topicproof.backend.judging.decoding import FOLDER as DECODED_FOLDER
from topicproof.backend.judging.decoding import decode, fetch_schemas
from topicproof.backend.judging.spark_tuning import limit_rows, tune
from topicproof.backend.kafka.log import fates
from topicproof.backend.services.spark import failed
from topicproof.backend.sink.entries import Entry, TaskStarted, TransactionEnded
from topicproof.backend.storage import discard, fetch, keep_in, spark_url
from topicproof.validators.expectation import MOVEMENT
from topicproof.validators.facts.journal import outcomes_of
from topicproof.validators.facts.raw_log import raw_log
from topicproof.validators.finding import Bounds, Fate, Guarantee, Order
from topicproof.validators.folded.fold import Folded
from topicproof.validators.judge import judge
from topicproof.validators.kinds import gap
from topicproof.validators.ledger.build import build_ledger
from topicproof.validators.ledger.by_proof import is_provable
from topicproof.validators.ledger.ledger import Accounts, Ledger, ReadingsNeeded
from topicproof.validators.ledger.rows import DECLARED_COLUMNS, Declared
from topicproof.validators.lineage.headers import (
    LINEAGE_HEADER,
    PACKED_HEADER,
    TRANSACTION_HEADER,
)
from topicproof.validators.lineage.identity import Identity, has_header
from topicproof.validators.merged_topics import split
from topicproof.validators.polled import POLLED_COLUMNS, Polled
from topicproof.validators.question import Question
from topicproof.validators.readings import Readings, frame_of
from topicproof.validators.report import Report
from topicproof.validators.source_log import SourceLog

VERSIONS = (
    "topicproof",
    "pyspark",
    "confluent-kafka",
    "kafka-python",
    "plotly",
    "junitparser",
    "pyarrow",
)
"""Packages that read, judge and render."""
READING, JUDGING, WRITING = "reading both topics", "judging", "writing the evidence"
STEPS = READING, JUDGING, WRITING
"""The steps of judging, as `judge_topics` announces them, in their order."""

OnStep = Callable[[str], None]
"""Takes the step that begins now. Whatever it raises ends the judging."""


def _ignore_step(_step: str) -> None:
    pass


# It starts from nothing: with an empty folder, and the bounds of the question.
@retry(retry=retry_if_exception_type(ShellFailed), stop=stop_after_attempt(2), reraise=True)
def judge_topics(
    spark: SparkSession,
    address: Address,
    question: Question,
    folder: Path,
    attachments: Mapping[str, Any] | None = None,
    payloads: Payloads = Payloads.ALL,
    on_step: OnStep = _ignore_step,
    formats: Formats | None = None,
    source: Address | None = None,
    source_formats: Formats | None = None,
    run_accounts: RunAccounts = NOTHING_RECORDED,
) -> Report:
    """Judge a sink topic against its source. Writes `report.json` and the evidence into `folder`.
    `source` is the source's cluster, if it is not the sink's, at `address`.

    `attachments` are added to the evidence by file name: the plan, the contract. `on_step` is
    called at the start of each step. With `payloads` none, readings are kept only if something is
    irregular. This takes less than half the time. Otherwise the evidence first holds them whole,
    and backend/evidence/copy.py removes payloads.
    `formats` decodes the fields that the question names; None: without a registry.
    `source_formats`: those of the source, if they are not the sink's. `run_accounts`: what the run
    that wrote the sink recorded.
    Raises ClusterError, TopicError, SparkError, EvidenceError.
    """
    evidence = folder / EVIDENCE
    question, _ = identified(Sides(address, source), question)
    empty(spark, evidence)
    on_step(READING)
    if payloads is Payloads.NONE and source is None and is_provable(question, folded=True):
        try:
            folded = capture_folded(spark, address, question)
            capture = replace(folded, run_accounts=run_accounts)
            return conclude(spark, capture, folder, attachments, payloads, on_step)
        except ReadingsNeeded:
            empty(spark, evidence)

    def captured(question: Question) -> Capture:
        capture = capture_topics(spark, address, question, evidence, source)
        try:
            schemas = fetch_schemas(capture, formats or Formats(), source_formats)
            # No other witness may speak about topics that vanished.
            vanished = capture.circumstances.vanished
            accounts = NOTHING_RECORDED if vanished else run_accounts
            return replace(capture, schemas=schemas, run_accounts=accounts)
        except PySparkException as error:
            raise failed(f"Spark could not read {question.sink}", error) from error

    report = conclude(spark, captured(question), folder, attachments, on_step=on_step)
    if question.order is Order.PER_SOURCE_PARTITION and _on_their_way(report):
        # Outputs are in order, so everything below the last committed one was due when it was read.
        # Outputs that are still missing at a second look will not come.
        due = {p.partition: p.lso for p in report.source.partitions}
        empty(spark, evidence)
        on_step(READING)
        second = captured(replace(question, due=due))
        report = conclude(spark, second, folder, attachments, on_step=on_step)
    return report


def _on_their_way(report: Report) -> bool:
    """Return whether missing outputs may still arrive, because the topics move."""
    return any(
        finding.kind == gap.NAME and finding.explained_by == MOVEMENT for finding in report.findings
    )


def conclude(
    spark: SparkSession,
    capture: Capture,
    folder: Path,
    attachments: Mapping[str, Any] | None = None,
    payloads: Payloads = Payloads.ALL,
    on_step: OnStep = _ignore_step,
) -> Report:
    """Judge a capture, and write report and evidence into `folder`, which already has the readings
    if they are kept. `payloads` describes them. Raises ReadingsNeeded if folded readings are not
    enough."""
    evidence = folder / EVIDENCE
    on_step(JUDGING)
    keep_capture(capture, evidence)
    report = judge_capture(spark, capture, evidence)
    on_step(WRITING)
    fetch(spark, evidence)
    complete(evidence, report, attachments or {}, payloads)
    write_text(folder / REPORT, report.to_json())
    return report


def judge_capture(spark: SparkSession, capture: Capture, evidence: Path) -> Report:
    """Judge a capture, new or read from evidence. Uses only Spark; intermediate results are kept in
    the folder `evidence`. Raises SparkError; ReadingsNeeded as `conclude`."""
    question = capture.question
    try:
        ledger = ledger_of(spark, capture, evidence)
        report = judge(
            ledger,
            question.guarantee,
            require=question.agreed.require,
            not_processed=question.not_processed + _not_due(capture, ledger.question.source),
            run=question.run,
            versions=versions(),
        )
        return replace(
            report,
            origin=capture.origin,
            notes=(*capture.notes, *strike_notes(capture.run_accounts.journal or ())),
            source_origin=capture.source_origin,
        )
    except PySparkException as error:
        raise failed(f"Spark could not judge {question.sink}", error) from error
    finally:
        # They can be made again from the readings and the schemas.
        discard(spark, evidence / DECODED_FOLDER)


def versions() -> dict[str, str]:
    return {name: version(name) for name in VERSIONS}


def ledger_of(spark: SparkSession, capture: Capture, evidence: Path) -> Ledger:
    """Build the ledger of a capture. Raises PySparkException; ReadingsNeeded as `conclude`.

    The judged range ends where outputs are no longer due. If the topics move and no due offsets are
    given, the ledger is built twice: the first one shows how far the outputs reach.
    """
    capture = decode(capture, evidence)
    question = capture.question
    if question.agreed.unique:
        return _ledger_of(spark, _of_sink_alone(capture, evidence), evidence)
    if question.due is not None:
        circumstances = replace(capture.circumstances, due_told=True)
        return _ledger_of(
            spark, _due(replace(capture, circumstances=circumstances), question.due), evidence
        )
    ledger = _ledger_of(spark, capture, evidence)
    if not capture.circumstances.moving:
        return ledger
    reached = _due(
        capture, {p.partition: ledger.after(p.partition) for p in question.source.partitions}
    )
    return (
        ledger
        if reached.question.source == question.source
        else _ledger_of(spark, reached, evidence)
    )


def _of_sink_alone(capture: Capture, evidence: Path) -> Capture:
    """Return the capture with the first committed record of each identity as the inputs, so that
    every later one repeats an output. Nothing else is known of a source."""
    identity = capture.question.agreed.match.of_sink()
    first = Window.partitionBy("identity").orderBy("partition", "offset")
    firsts = (
        capture.committed.withColumn("identity", identity)
        .where(F.col("identity").isNotNull())
        .withColumn("turn", F.row_number().over(first))
        .where(F.col("turn") == 1)
        .drop("identity", "turn")
    )
    inputs = keep_in(firsts, evidence / "ledger" / "inputs", capture.offsets)
    return replace(
        capture,
        readings=capture.kept._replace(inputs=inputs),
        source_batches=None,
        aborted=None,
        pending=None,
        circumstances=replace(capture.circumstances, source_removed={}, source_lso={}),
    )


def _due(capture: Capture, ends: Mapping[int, int]) -> Capture:
    """Limit the judged range to these source offsets. Later inputs stay in the reading, because an
    output may belong to one of them."""
    question = capture.question
    cut = tuple(
        replace(p, lso=max(p.start, min(p.lso, ends.get(p.partition, p.start))))
        for p in question.source.partitions
    )
    source = replace(question.source, partitions=cut)
    return replace(capture, question=replace(question, source=source))


def _not_due(capture: Capture, judged: Bounds) -> int:
    """Count the captured inputs beyond the judged range."""
    ends = {p.partition: p.lso for p in judged.partitions}
    source, batches = capture.question.source, capture.source_batches
    if batches is None or all(ends[p.partition] == p.lso for p in source.partitions):
        return 0
    ranges = fates.fate_ranges(batches, source)
    return sum(
        fates.records_between(ranges, p.partition, ends[p.partition], p.lso, [Fate.COMMITTED])
        for p in source.partitions
    )


def _ledger_of(spark: SparkSession, capture: Capture, evidence: Path) -> Ledger:
    guarantee = capture.question.guarantee
    agreed = replace(
        capture.question.agreed,
        repeats=guarantee is Guarantee.AT_LEAST_ONCE,
        losses=guarantee is Guarantee.AT_MOST_ONCE,
    )
    # Of folded readings, only batches and transactions are left to examine, no records.
    offsets = 0 if isinstance(capture.readings, Folded) else capture.offsets
    tune(spark, offsets)
    return build_ledger(
        spark,
        replace(capture.question, agreed=agreed),
        sink_bounds=capture.sink,
        readings=_judged_readings(spark, capture),
        evidence=spark_url(spark, evidence / "ledger"),
        accounts=_accounts(spark, capture, offsets),
        circumstances=capture.circumstances,
        doubts=capture.doubts,
    )


def _judged_readings(spark: SparkSession, capture: Capture) -> Readings | Folded:
    """Return the readings without headers that are no witness."""
    if isinstance(capture.readings, Folded):
        return capture.readings
    limit_rows(spark, capture.kept)
    question, (committed, uncommitted, inputs) = capture.question, capture.kept
    if question.across:
        committed, uncommitted, inputs = map(_unnamed, (committed, uncommitted, inputs))
    elif question.identity is not Identity.LINEAGE:
        committed, uncommitted = (
            _unnamed_copies(reading, question.source) for reading in (committed, uncommitted)
        )
    return Readings(committed, uncommitted, inputs)


def _unnamed(reading: DataFrame) -> DataFrame:
    """Remove the names of transactions: a mirror copies the headers, but not the transactions."""
    return reading.withColumn("headers", _without_names())


def _without_names() -> Column:
    return F.filter("headers", lambda one: one["key"] != TRANSACTION_HEADER)


def _unnamed_copies(reading: DataFrame, source: Bounds) -> DataFrame:
    """Remove the names of transactions from records whose lineage names another topic than the
    source: a program has handed on the headers of its input. Also from records with packed lineage,
    which had the name of their transaction for others too."""
    lineage = F.filter("headers", lambda one: one["key"] == LINEAGE_HEADER)
    value = F.try_element_at(lineage, F.lit(-1))["value"].cast("string")
    topics = [topic_bounds.topic for topic_bounds, _ in split(source)]
    copied = ~F.substring_index(value, "/", 1).isin(topics)
    return reading.withColumn(
        "headers",
        F.when(copied | has_header(PACKED_HEADER), _without_names()).otherwise(F.col("headers")),
    )


def _accounts(spark: SparkSession, capture: Capture, offsets: int) -> Accounts:
    """Return the accounts of the other witnesses. `offsets`: how many more records Spark
    examines."""
    journal, polled = capture.run_accounts
    return Accounts(
        raw_log=None
        if capture.batches is None
        else raw_log(spark, capture.batches, capture.sink, offsets, capture.attribution),
        declared=None if journal is None else _declared(spark, journal),
        coordinator=capture.coordinator,
        source_log=None
        if capture.source_batches is None
        else _source_log(spark, capture, capture.source_batches),
        polled=None if polled is None else _polled(spark, polled),
    )


def _source_log(spark: SparkSession, capture: Capture, batches: pa.Table) -> SourceLog:
    markers = None
    if any(removed.inside for removed in capture.circumstances.source_removed.values()):
        control = batches.filter(pc.is_valid(batches["control"]))
        table = pa.table({"partition": control["partition"], "offset": control["base_offset"]})
        markers = frame_of(spark, table, "partition int, offset long")
    return SourceLog(capture.aborted, capture.pending, markers)


def _declared(spark: SparkSession, journal: Sequence[Entry]) -> Declared:
    ended = [entry for entry in journal if isinstance(entry, TransactionEnded)]
    columns = ("transactional_id", "sequence", "attempt", "task", "outcome", "reason")
    rows = [tuple(getattr(entry, name) for name in columns) for entry in ended]
    started = [entry for entry in journal if isinstance(entry, TaskStarted)]
    rows += [
        (entry.transactional_id, entry.sequence, 0, entry.task, "STARTED", "") for entry in started
    ]
    table = pa.table(dict(zip(columns, zip(*rows, strict=True), strict=True))) if rows else None
    ids = frozenset(row[0] for row in rows)
    return Declared(frame_of(spark, table, DECLARED_COLUMNS), len(rows), ids, outcomes_of(rows))


def _polled(spark: SparkSession, table: pa.Table) -> Polled:
    widths = pc.subtract(table["last_offset"], table["first_offset"])
    records = (pc.sum(widths).as_py() or 0) + table.num_rows
    return Polled(frame_of(spark, table, POLLED_COLUMNS), records)
