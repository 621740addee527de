"""Evidence without Kafka: what a history of lines would have left in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.validators.history import SINK, History
from topicproof.backend.evidence.folder import complete
from topicproof.backend.evidence.manifest import ATTESTATION, read_manifest, write_manifest
from topicproof.backend.judging.capture_store import (
    COMMITTED,
    INPUTS,
    UNCOMMITTED,
    Capture,
    keep_capture,
)
from topicproof.backend.judging.judge import judge_capture
from topicproof.validators import readings
from topicproof.validators.facts.log_facts import BATCH_COLUMNS
from topicproof.validators.finding import Origin
from topicproof.validators.question import Question
from topicproof.validators.readings import Readings
from topicproof.validators.report import Report

ARROW = {"int": pa.int32(), "long": pa.int64(), "boolean": pa.bool_(), "string": pa.string()}


def mend(folder: Path) -> None:
    """Hash everything again and remove the signature, as a forger would to hide a change."""
    (folder / ATTESTATION).unlink(missing_ok=True)
    said = read_manifest(folder)
    write_manifest(folder, said.run, said.verdict, said.payloads, said.of, said.judged_at)


def judged(
    spark: SparkSession,
    folder: Path,
    made: History,
    contract: str | None = None,
    origin: Origin | None = None,
    **question: Any,
) -> Report:
    """Judge a history, and leave its evidence in `folder`."""
    folder.mkdir(parents=True)

    def kept(rows: list[tuple[Any, ...]], name: str) -> Any:
        return readings.keep(
            spark.createDataFrame(rows, readings.COLUMNS), (folder / name).as_uri(), len(rows)
        )

    schema = pa.schema(
        [(name, ARROW[kind]) for name, kind in map(str.split, BATCH_COLUMNS.split(", "))]
    )
    columns = zip(*made.batches, strict=True) if made.batches else [[] for _ in schema]
    taken = Capture(
        Question(made.source_bounds, SINK, **question),
        made.sink_bounds,
        Readings(
            kept(made.committed, COMMITTED),
            kept(made.uncommitted, UNCOMMITTED),
            kept(made.source, INPUTS),
        ),
        pa.table(
            [
                pa.array(list(column), field.type)
                for column, field in zip(columns, schema, strict=True)
            ],
            schema,
        ),
        None,
        origin=origin,
    )
    keep_capture(taken, folder)
    report = judge_capture(spark, taken, folder)
    complete(
        folder,
        report,
        {"plan.json": {"sink": SINK}, **({"contract.yaml": contract} if contract else {})},
    )
    return report
