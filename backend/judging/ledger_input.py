"""From a capture to its ledger: the range is cut to what is due, headers that are no witness are
removed, and the other witnesses' accounts are made of what was captured. Uses only Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, Window, functions as F

from topicproof.backend.judging.capture_store import Capture
from topicproof.backend.judging.decoding import decode
from topicproof.backend.judging.spark_tuning import limit_rows, tune
from topicproof.backend.kafka.log import fates
from topicproof.backend.sink.entries import Entry, TaskStarted, TransactionEnded
from topicproof.backend.storage import keep_in, spark_url
from topicproof.validators.facts.header_transactions import outcomes_of
from topicproof.validators.facts.raw_log import raw_log
from topicproof.validators.finding import Bounds, Fate, Guarantee
from topicproof.validators.folded.fold import Folded
from topicproof.validators.ledger.build import build_ledger
from topicproof.validators.ledger.ledger import Accounts, Ledger, LedgerInput
from topicproof.validators.ledger.rows import DECLARED_COLUMNS, Declared
from topicproof.validators.lineage.dead_letters import OriginHeaders, lineage_of
from topicproof.validators.lineage.header_columns import (
    LINEAGE_TEXT,
    has_header,
    with_last,
    with_lineage_text,
)
from topicproof.validators.lineage.headers import LINEAGE_HEADER, PACKED_HEADER, TRANSACTION_HEADER
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.polled import POLLED_COLUMNS, Polled
from topicproof.validators.readings import Readings, SourceLog, frame_of, gathered


def ledger_of(spark: SparkSession, capture: Capture, evidence: Path) -> Ledger:
    """Build the ledger of a capture. Raises PySparkException; ReadingsNeeded as `conclude`.

    The judged range ends where outputs are no longer due. If the topics move and no due offsets are
    given, the ledger is built twice: the first one shows how far the outputs reach.
    """
    capture = decode(capture, evidence)
    question, due = capture.question, capture.question.due
    # Outputs of many inputs do not show how far they reach.
    has_no_reach = question.agreed.unique or question.agreed.aggregate is not None
    is_final = has_no_reach or due is not None or not capture.circumstances.moving
    if question.agreed.unique:
        capture = _of_sink_alone(capture, evidence)
    elif due is not None:
        circumstances = replace(capture.circumstances, due_told=True)
        capture = _due(replace(capture, circumstances=circumstances), due)
    ledger = build_ledger(_ledger_input(spark, capture, evidence))
    if is_final:
        return ledger
    reached = _due(
        capture, {p.partition: ledger.after(p.partition) for p in question.source.partitions}
    )
    if reached.question.source == question.source:
        return ledger
    return build_ledger(_ledger_input(spark, reached, evidence))


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
    output may belong to one of them; they count as not processed."""
    question = capture.question
    cut = tuple(
        replace(p, lso=max(p.start, min(p.lso, ends.get(p.partition, p.start))))
        for p in question.source.partitions
    )
    source = replace(question.source, partitions=cut)
    not_processed = question.not_processed + _count_beyond(capture, source)
    return replace(capture, question=replace(question, source=source, not_processed=not_processed))


def _count_beyond(capture: Capture, judged: Bounds) -> int:
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


def _ledger_input(spark: SparkSession, capture: Capture, evidence: Path) -> LedgerInput:
    guarantee = capture.question.guarantee
    agreed = replace(
        capture.question.agreed,
        repeats=guarantee is Guarantee.AT_LEAST_ONCE,
        losses=guarantee is Guarantee.AT_MOST_ONCE,
    )
    # Of folded readings, only batches and transactions are left to examine, no records.
    offsets = 0 if isinstance(capture.readings, Folded) else capture.offsets
    tune(spark, offsets)
    return LedgerInput(
        spark,
        replace(capture.question, agreed=agreed),
        sink_bounds=capture.sink,
        readings=_judged_readings(spark, capture),
        evidence=spark_url(spark, evidence / "ledger"),
        accounts=_accounts(spark, capture, offsets),
        circumstances=capture.circumstances,
        doubts=capture.doubts,
        source_ids=_source_ids(capture),
    )


def _source_ids(capture: Capture) -> dict[str, str]:
    """Return the ids of the source's topics, as far as the capture has them."""
    origin = capture.source_origin or capture.origin
    ids = {} if origin is None else origin.topics
    return {
        topic: topic_id
        for topic in capture.question.source.topics
        if (topic_id := ids.get(topic)) is not None
    }


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
    first = question.first_of_letters(capture.sink)
    if question.agreed.letters is not None and first is not None:
        headers = question.agreed.letters.headers
        committed, uncommitted = (
            _with_named_inputs(reading, first, headers) for reading in (committed, uncommitted)
        )
    return Readings(committed, uncommitted, inputs)


def _with_named_inputs(reading: DataFrame, first: int, named_in: OriginHeaders | None) -> DataFrame:
    """Make the input that a dead letter names its lineage, and remove the name of a transaction: a
    program hands on the headers of the input, which may be an output of ours. Those of the dead
    letters are the partitions from `first` on. `named_in`: the headers that name a place; None if
    a dead letter holds an identity."""
    lineage = F.lit(None) if named_in is None else lineage_of(named_in)
    named = with_last(LINEAGE_HEADER, lineage)
    name = F.struct(
        F.lit(TRANSACTION_HEADER).alias("key"), F.lit(None).cast("binary").alias("value")
    )
    headers = F.when(F.col("partition") >= first, F.concat(named, F.array(name)))
    return reading.withColumn("headers", headers.otherwise(F.col("headers")))


def _unnamed(reading: DataFrame) -> DataFrame:
    """Remove the names of transactions: a mirror copies the headers, but not the transactions."""
    return reading.withColumn("headers", _without_names())


def _without_names() -> Column:
    return F.when(F.col("headers").isNotNull(), with_last(TRANSACTION_HEADER, F.lit(None)))


def _unnamed_copies(reading: DataFrame, source: Bounds) -> DataFrame:
    """Remove the names of transactions from records whose lineage names another topic than the
    source: a program has handed on the headers of its input. Also from records with packed lineage,
    which had the name of their transaction for others too."""
    copied = ~F.substring_index(LINEAGE_TEXT, "/", 1).isin(list(source.topics))
    headers = F.when(copied | has_header(PACKED_HEADER), _without_names())
    unnamed = with_lineage_text(reading).withColumn("headers", headers.otherwise(F.col("headers")))
    return unnamed.select(*reading.columns)


def _accounts(spark: SparkSession, capture: Capture, offsets: int) -> Accounts:
    """Return the accounts of the other witnesses. `offsets`: how many more records Spark
    examines."""
    journal, polled = capture.run_accounts
    return Accounts(
        raw_log=None
        if capture.batches is None
        else raw_log(spark, capture.batches, capture.sink, offsets, capture.attribution),
        declared=None if journal is None else _declared(spark, journal, offsets),
        coordinator=capture.coordinator,
        source_log=None
        if capture.source_batches is None
        else _source_log(spark, capture, capture.source_batches),
        polled=None if polled is None else _polled(spark, polled, offsets),
    )


def _source_log(spark: SparkSession, capture: Capture, batches: pa.Table) -> SourceLog:
    markers = None
    if any(removed.inside for removed in capture.circumstances.source_removed.values()):
        control = batches.filter(pc.is_valid(batches["control"]))
        table = pa.table({"partition": control["partition"], "offset": control["base_offset"]})
        markers = frame_of(spark, table, "partition int, offset long")
    return SourceLog(capture.aborted, capture.pending, markers)


def _declared(spark: SparkSession, journal: Sequence[Entry], offsets: int) -> Declared:
    ended = [entry for entry in journal if isinstance(entry, TransactionEnded)]
    columns = ("transactional_id", "sequence", "attempt", "task", "outcome", "reason")
    rows = [tuple(getattr(entry, name) for name in columns) for entry in ended]
    started = [entry for entry in journal if isinstance(entry, TaskStarted)]
    rows += [
        (entry.transactional_id, entry.sequence, 0, entry.task, "STARTED", "") for entry in started
    ]
    table = pa.table(dict(zip(columns, zip(*rows, strict=True), strict=True))) if rows else None
    ids = frozenset(row[0] for row in rows)
    declared = gathered(frame_of(spark, table, DECLARED_COLUMNS), offsets)
    return Declared(declared, len(rows), ids, outcomes_of(rows))


def _polled(spark: SparkSession, table: pa.Table, offsets: int) -> Polled:
    widths = pc.subtract(table["last_offset"], table["first_offset"])
    records = (pc.sum(widths).as_py() or 0) + table.num_rows
    return Polled(gathered(frame_of(spark, table, POLLED_COLUMNS), offsets), records)
