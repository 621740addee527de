"""From two topics to a report: bounds once, the readings, the raw log, the ledger, the verdict, the evidence.

Each stage is computed once and handed on; nothing after the readings asks Kafka again.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from backend.errors import ClusterError, EvidenceError, SparkError
from backend.kafka import fates, rawlog
from backend.kafka.coordinator import ask_open_transactions
from backend.kafka.unstable import ask_unstable_offsets
from backend.pipeline.journal import Entry, TransactionEnded
from backend.settings import READ_COMMITTED, spark_source_options
from backend.spark import first_line
from validators.balance import BATCH_COLUMNS, TRANSACTION_COLUMNS, RawLog
from validators.coordinator import Coordinator
from validators.finding import Bounds, Guarantee, Witness
from validators.identity import Identity
from validators.ledger import DECLARED_COLUMNS, build_ledger
from validators.readings import keep, read
from validators.report import Report, judge

SETTLE_S = 3.0
SETTLE_STEP_S = 0.05
INTERPRETED_OFFSETS_MAX = 100_000
REPORT = "report.json"
EVIDENCE = "evidence"
VERSIONS = ("topicproof", "pyspark", "confluent-kafka", "kafka-python")


@dataclass(frozen=True)
class Question:
    """What is to be judged."""

    source: Bounds
    """The judged range of the source: an input counts from `start` to below `lso`."""
    sink: str
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    identity: Identity = Identity.LINEAGE
    journal: Sequence[Entry] | None = None
    """What the run declared; None: there is no such witness."""
    sink_from: Mapping[int, int] = field(default_factory=dict)
    """Offsets of the sink before which nothing is judged, by partition."""
    run: str | None = None
    not_processed: int = 0
    """Inputs beyond the judged range."""


def judge_topics(
    spark: SparkSession, bootstrap: str, client: Mapping[str, str], question: Question, folder: Path
) -> Report:
    """Judge a sink topic against its source, and write `report.json` and the evidence into `folder`.

    Raises ClusterError, TopicError, SparkError, EvidenceError.
    """
    evidence = folder / EVIDENCE
    _empty(evidence)
    sink = _from(settled_bounds(bootstrap, client, question.sink), question.sink_from)
    options = spark_source_options(bootstrap, client, READ_COMMITTED)
    _suit(spark, sink.offsets + question.source.offsets)

    def reading(bounds: Bounds, level: Witness, name: str) -> DataFrame:
        return keep(read(spark, options, bounds, level), (evidence / name).as_uri())

    try:
        with ThreadPoolExecutor(5) as pool:
            # All five at once: each waits for Kafka more than it computes.
            committed = pool.submit(reading, sink, Witness.READ_COMMITTED, "sink-read_committed")
            uncommitted = pool.submit(reading, sink, Witness.READ_UNCOMMITTED, "sink-read_uncommitted")
            inputs = pool.submit(reading, question.source, Witness.READ_COMMITTED, "source-read_committed")
            batches = pool.submit(rawlog.scan, bootstrap, client, question.sink, sink)
            coordinator = pool.submit(_ask_coordinator, bootstrap, client, sink, question.source)
        ledger = build_ledger(
            committed.result(),
            uncommitted.result(),
            inputs.result(),
            sink,
            question.source,
            (evidence / "ledger").as_uri(),
            raw_log=_raw_log(spark, batches.result(), sink),
            declared=None if question.journal is None else _declared(spark, question.journal),
            identity=question.identity,
            coordinator=coordinator.result(),
        )
        report = judge(
            ledger,
            question.guarantee,
            not_processed=question.not_processed,
            run=question.run,
            versions={name: version(name) for name in VERSIONS},
        )
    except PySparkException as error:
        raise SparkError(f"Spark could not judge {question.sink}: {first_line(error)}") from error
    _write(folder / REPORT, report.to_json())
    return report


def settled_bounds(bootstrap: str, client: Mapping[str, str], topic: str) -> Bounds:
    """The topic's bounds, taken anew for a moment as long as something is pending.

    A commit is answered before its markers are in the partitions, so bounds taken right after it may show offsets above
    the LSO that are about to settle. What is still open after `SETTLE_S` is an open transaction, and judged as such.
    """
    deadline = time.monotonic() + SETTLE_S
    while True:
        bounds = rawlog.fetch_bounds(bootstrap, client, topic)
        if all(p.lso == p.hw for p in bounds.partitions) or time.monotonic() > deadline:
            return bounds
        time.sleep(SETTLE_STEP_S)


def _suit(spark: SparkSession, offsets: int) -> None:
    """Let Spark interpret its expressions where compiling them would take longer than all the records do."""
    small = offsets <= INTERPRETED_OFFSETS_MAX
    spark.conf.set("spark.sql.codegen.wholeStage", str(not small).lower())
    spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN" if small else "FALLBACK")
    if small:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    else:
        spark.conf.unset("spark.sql.shuffle.partitions")


def _ask_coordinator(bootstrap: str, client: Mapping[str, str], sink: Bounds, source: Bounds) -> Coordinator | None:
    """None where it is not heard: a client may read topics without the right to describe transactions and groups."""
    try:
        with rawlog.connect(bootstrap, client) as kafka:
            opened = ask_open_transactions(kafka, sink.topic, sink)
            offsets, unstable = ask_unstable_offsets(kafka, source.topic, [p.partition for p in source.partitions])
    except ClusterError:
        return None
    return Coordinator(len(sink.partitions), opened, offsets, unstable)


def _raw_log(spark: SparkSession, batches: pa.Table, bounds: Bounds) -> RawLog:
    found = fates.transactions(batches, bounds)
    names = [column.split()[0] for column in TRANSACTION_COLUMNS.split(", ")]
    transactions = pa.Table.from_pandas(found[names], preserve_index=False)
    return RawLog(_frame(spark, batches, BATCH_COLUMNS), _frame(spark, transactions, TRANSACTION_COLUMNS))


def _declared(spark: SparkSession, journal: Sequence[Entry]) -> DataFrame:
    ended = [entry for entry in journal if isinstance(entry, TransactionEnded)]
    columns = ("transactional_id", "sequence", "attempt", "task", "outcome", "reason")
    table = pa.table({name: [getattr(entry, name) for entry in ended] for name in columns}) if ended else None
    return _frame(spark, table, DECLARED_COLUMNS)


def _frame(spark: SparkSession, table: pa.Table | None, columns: str) -> DataFrame:
    if table is None or table.num_rows == 0:
        return spark.createDataFrame([], columns)
    casts = [f"cast({name} as {kind}) as {name}" for name, kind in (one.split() for one in columns.split(", "))]
    return spark.createDataFrame(table).selectExpr(*casts)


def _from(bounds: Bounds, first: Mapping[int, int]) -> Bounds:
    return replace(
        bounds,
        partitions=tuple(replace(p, start=max(p.start, first.get(p.partition, p.start))) for p in bounds.partitions),
    )


def _empty(folder: Path) -> None:
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
    except OSError as error:
        raise EvidenceError(f"The evidence folder {folder} cannot be written: {error.strerror}.") from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise EvidenceError(f"{path} cannot be written: {error.strerror}.") from error
