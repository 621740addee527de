"""From two topics to a report: bounds once, the readings, the raw log, the ledger, the verdict, the evidence.

Each stage is computed once and handed on; nothing after the readings asks Kafka again.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from backend.errors import EvidenceError, SparkError
from backend.kafka import fates, rawlog
from backend.pipeline.journal import Entry, TransactionEnded
from backend.services import Services
from backend.settings import READ_COMMITTED, spark_source_options
from backend.spark import connect, first_line
from validators.balance import BATCH_COLUMNS, TRANSACTION_COLUMNS, RawLog
from validators.finding import Bounds, Guarantee, Witness
from validators.identity import Identity
from validators.ledger import DECLARED_COLUMNS, build_ledger
from validators.readings import keep, read
from validators.report import Report, judge

REPORT = "report.json"
EVIDENCE = "evidence"


@dataclass(frozen=True)
class Judgement:
    """A report and the folder that proves it."""

    report: Report
    folder: Path


def judge_topics(
    services: Services,
    client: Mapping[str, str],
    source: Bounds,
    sink: str,
    guarantee: Guarantee,
    folder: Path,
    identity: Identity = Identity.LINEAGE,
    journal: Sequence[Entry] | None = None,
    sink_from: Mapping[int, int] | None = None,
    run: str | None = None,
    not_processed: int = 0,
) -> Judgement:
    """Judge the sink topic against the source's range, and write `report.json` and the evidence into `folder`.

    `sink_from` are the offsets of the sink before which nothing is judged. Raises ClusterError, TopicError, SparkError,
    EvidenceError.
    """
    evidence = folder / EVIDENCE
    _empty(evidence)
    with ThreadPoolExecutor(1) as pool:
        # The raw log is read by this process while Spark reads the records.
        bounds = _from(rawlog.fetch_bounds(services.bootstrap, client, sink), sink_from or {})
        scanning = pool.submit(rawlog.scan, services.bootstrap, client, sink, bounds)
        spark = connect(services.spark_remote)
        try:
            report = _judge(
                spark, services, client, source, bounds, guarantee, evidence, identity, journal, run, not_processed,
                scanning.result,
            )  # fmt: skip
        except PySparkException as error:
            raise SparkError(f"Spark could not judge {sink}: {first_line(error)}") from error
        finally:
            spark.stop()
    _write(folder / REPORT, report.to_json())
    return Judgement(report, folder)


def _judge(  # type: ignore[no-untyped-def]
    spark: SparkSession,
    services: Services,
    client: Mapping[str, str],
    source: Bounds,
    sink: Bounds,
    guarantee: Guarantee,
    evidence: Path,
    identity: Identity,
    journal: Sequence[Entry] | None,
    run: str | None,
    not_processed: int,
    scanned,
) -> Report:
    options = spark_source_options(services.bootstrap, client, READ_COMMITTED)

    def reading(bounds: Bounds, level: Witness, name: str) -> DataFrame:
        return keep(read(spark, options, bounds, level), (evidence / name).as_uri())

    committed = reading(sink, Witness.READ_COMMITTED, "sink-read_committed")
    uncommitted = reading(sink, Witness.READ_UNCOMMITTED, "sink-read_uncommitted")
    inputs = reading(source, Witness.READ_COMMITTED, "source-read_committed")
    ledger = build_ledger(
        committed,
        uncommitted,
        inputs,
        sink,
        source,
        (evidence / "ledger").as_uri(),
        raw_log=_raw_log(spark, scanned(), sink),
        declared=_declared(spark, journal) if journal is not None else None,
        identity=identity,
    )
    versions = {name: version(name) for name in ("topicproof", "pyspark", "confluent-kafka", "kafka-python")}
    return judge(ledger, guarantee, not_processed=not_processed, run=run, versions=versions)


def _raw_log(spark: SparkSession, batches: pa.Table, bounds: Bounds) -> RawLog:
    found = fates.transactions(batches, bounds)
    names = [column.split()[0] for column in TRANSACTION_COLUMNS.split(", ")]
    transactions = pa.Table.from_pandas(found[names], preserve_index=False)
    return RawLog(_frame(spark, batches, BATCH_COLUMNS), _frame(spark, transactions, TRANSACTION_COLUMNS))


def _declared(spark: SparkSession, journal: Sequence[Entry]) -> DataFrame:
    ended = [entry for entry in journal if isinstance(entry, TransactionEnded)]
    columns = ("transactional_id", "sequence", "attempt", "task", "outcome")
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
