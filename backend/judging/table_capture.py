"""From a topic and a table to a capture: the rows first, at one moment, then the topic.

The bounds of the source are taken before and after the rows are read. Each row then finds its
input, and a source or a table that changed meanwhile is judged as a topic that moves is: what may
only be late is no gap.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F

from topicproof.backend.address import Sides
from topicproof.backend.errors import RecordTooLarge
from topicproof.backend.judging.capture import guarded, keep_aborted, keep_pending, reader_of
from topicproof.backend.judging.capture_store import COMMITTED, INPUTS, UNCOMMITTED, Capture
from topicproof.backend.judging.circumstances import with_circumstances_of_source
from topicproof.backend.judging.log_scan import scan_log
from topicproof.backend.judging.spark_tuning import tune
from topicproof.backend.judging.table_rows import (
    TableReader,
    TableSink,
    open_table,
    read_error,
    reading_of,
    typed,
)
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.coordination.unstable import committed_offsets
from topicproof.backend.kafka.log import rawlog
from topicproof.backend.kafka.records_source import OVERFLOW, beyond_spark
from topicproof.backend.services.spark_session import failed
from topicproof.backend.storage import FrameFolder, fetch
from topicproof.validators.columns import COLUMN
from topicproof.validators.expected import Expect
from topicproof.validators.finding import Bounds, PartitionBounds, Witness
from topicproof.validators.merged_topics import join
from topicproof.validators.question import Question
from topicproof.validators.readings import COLUMNS, FEW_OFFSETS_MAX, Readings
from topicproof.validators.sentences import counted

MANY = FEW_OFFSETS_MAX + 1
"""The number of rows is not known before they are read."""


def capture_table(
    spark: SparkSession, sides: Sides, question: Question, sink: TableSink, evidence: Path
) -> Capture:
    """Read the table, then everything of its source. The readings are kept in the folder
    `evidence`.

    Raises ContractError for what the table does not have, SinkError if it cannot be read,
    ClusterError, TopicError, SparkError, EvidenceError.
    """

    def take() -> Capture:
        reader = open_table(spark, sink, question)
        capture = _read(spark, sides, typed(question, reader), reader, sink, evidence)
        offsets = None
        if question.group is not None:
            source = capture.question.source
            offsets = committed_offsets(Cluster(sides.source), question.group, source)
        rows = capture.sink.offsets
        try:
            changed_rows = rows if reader.has_changed(rows) else None
        except PySparkException as error:
            raise read_error(error, sink.table) from error
        return with_circumstances_of_source(
            capture,
            sides,
            question.source,
            changed_rows=changed_rows,
            group_offsets=offsets,
        )

    return guarded(spark, sides, question, evidence, take)


def _read(
    spark: SparkSession,
    sides: Sides,
    question: Question,
    reader: TableReader,
    sink: TableSink,
    evidence: Path,
) -> Capture:
    """Capture the rows, and then the source within the bounds of the moment after them."""
    reader.require_size()
    try:
        rows = FrameFolder(evidence, MANY).keep(reading_of(reader, question), COMMITTED, COLUMNS)
        bounds = _bounds_of(question.sink, rows)
    except PySparkException as error:
        raise read_error(error, sink.table) from error
    topics = [rawlog.fetch_bounds(sides.source, topic) for topic in question.source.topics]
    question = replace(question, source=join(topics))
    source = question.source
    try:
        batches = scan_log(spark, sides.source, source)
    except RecordTooLarge as error:
        raise RecordTooLarge(f"{error} No record was read: the verdict is UNKNOWN.") from error
    folder = FrameFolder(evidence, bounds.offsets + source.offsets)
    tune(spark, folder.offsets)
    log = batches.drop_columns("inflated")

    def keep(clamped: frozenset[str]) -> Capture:
        read_source = reader_of(spark, sides.source, batches, clamped)
        # A table shows one level, so both readings are the same rows.
        uncommitted = folder.keep(rows, UNCOMMITTED, COLUMNS)
        inputs = folder.keep(read_source(source, Witness.READ_COMMITTED), INPUTS, COLUMNS)
        return Capture(
            question=question,
            sink=bounds,
            readings=Readings(rows, uncommitted, inputs),
            batches=None,
            coordinator=None,
            source_batches=log,
            origin=question.origins.sink if question.origins is not None else None,
            aborted=keep_aborted(read_source, source, log, inputs, folder),
            pending=keep_pending(read_source, question, folder),
            notes=(reader.note,),
        )

    try:
        try:
            capture = keep(frozenset())
        except PySparkException as error:
            if not beyond_spark(log) and OVERFLOW not in str(error):
                raise
            # Some of its timestamps lie beyond Spark's.
            capture = keep(frozenset([source.topic]))
        fetch(spark, evidence)
    except PySparkException as error:
        raise failed(f"Spark could not read {source.topic}", error) from error
    return replace(
        capture, doubts=(*_repeated_keys(question, rows), *rows_without_key(question, rows))
    )


def _bounds_of(title: str, rows: DataFrame) -> Bounds:
    """Return the bounds of the rows: each partition's are numbered from 0."""
    counts = rows.groupBy("partition").agg(F.count("*").alias("rows")).collect()
    by_partition = {row["partition"]: row["rows"] for row in counts}
    last = max(by_partition, default=0)
    ends = ((number, by_partition.get(number, 0)) for number in range(last + 1))
    return Bounds(title, tuple(PartitionBounds(number, 0, end, end) for number, end in ends))


def _repeated_keys(question: Question, rows: DataFrame) -> tuple[str, ...]:
    """Return a doubt if rows of different inputs have one key: then it identifies no row, and the
    contract is wrong. A key that is the identity itself is judged instead: its repeats are
    duplicates."""
    terms, match = question.agreed.table, question.agreed.match
    if terms is None or not terms.key:
        return ()
    of_key = ("key", f"{COLUMN}:{terms.key[0]}" if len(terms.key) == 1 else "key")
    if question.by_key and match.sink in of_key:
        return ()
    identity = match.of_sink() if question.by_key else F.col("headers")[0].getField("value")
    keys = rows.where(F.col("key").isNotNull()).groupBy("key")
    repeated = keys.agg(F.min(identity).alias("first"), F.max(identity).alias("last"))
    count = repeated.where(F.col("first") != F.col("last")).count()
    if not count:
        return ()
    noun = counted(count, "value")
    return (
        f"the contract's `key` ({', '.join(terms.key)}) does not identify a row: {noun} of it"
        f" {'is' if count == 1 else 'are'} in rows of different inputs. Name the columns that do.",
    )


def rows_without_key(question: Question, rows: DataFrame) -> tuple[str, ...]:
    """Return a doubt if nothing tells several rows of one input apart: their key is NULL. Asked if
    inputs have several rows, and rows name their inputs. `rows`: the reading of the table."""
    terms = question.agreed.table
    if terms is None or question.by_key or question.expected.kind is not Expect.ONE_TO_MANY:
        return ()
    keyless = rows.where(F.col("key").isNull() & F.col("headers").isNotNull())
    inputs = keyless.groupBy(F.col("headers")[0].getField("value").alias("input"))
    count = inputs.agg(F.count("*").alias("rows")).where(F.col("rows") > 1).count()
    if not count:
        return ()
    return (
        f"the contract's `key` ({', '.join(terms.key)}) does not identify a row:"
        f" {counted(count, 'input')} {'has' if count == 1 else 'have'} several rows without it."
        " Name columns that are never NULL.",
    )
