"""Judging a database table that backend/sink/table.py wrote: duplicates, gaps, order and rows
without an input, by the validators for topics.

A table has no aborted rows and no raw log. Its rows, ordered by id, are both readings of a single
partition. This process reads them, so a table must fit into its memory. The evidence is the same as
for a topic, and `topicproof verify` can judge it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from topicproof.backend.address import Sides
from topicproof.backend.errors import SinkError
from topicproof.backend.evidence.folder import EVIDENCE
from topicproof.backend.judging.capture_store import COMMITTED, INPUTS, UNCOMMITTED, Capture, empty
from topicproof.backend.judging.circumstances import replaced_topics
from topicproof.backend.judging.judge import conclude
from topicproof.backend.judging.log_scan import scan_log, source_options
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.origin import fetch_origin, topic_names
from topicproof.backend.sink.table import LINEAGE, connect_database, rows_of, shown
from topicproof.backend.storage import keep_in
from topicproof.validators.circumstances import Circumstances
from topicproof.validators.contract_terms import ContractTerms
from topicproof.validators.finding import Bounds, Guarantee, Origins, PartitionBounds, Witness
from topicproof.validators.lineage.headers import LINEAGE_HEADER, Lineage, format_lineage
from topicproof.validators.question import Question
from topicproof.validators.readings import COLUMNS, Readings, read
from topicproof.validators.report import Report

REQUIRED = ("duplicate", "gap", "order", "phantom")


def judge_table(
    spark: SparkSession,
    cluster: Cluster,
    url: str,
    table: str,
    source: Bounds,
    folder: Path,
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
    run: str | None = None,
    not_processed: int = 0,
    attachments: Mapping[str, Any] | None = None,
    topic_ids: Mapping[str, str | None] | None = None,
) -> Report:
    """Judge a table; report and evidence go into `folder`, as in backend/judging/judge.py.
    `topic_ids`: the ids that the source and the journal had at the run's creation.

    Raises SinkError if the table cannot be read, EvidenceError, SparkError.
    """
    evidence = folder / EVIDENCE
    empty(spark, evidence)
    rows = read_table(url, table)
    count = rows.num_rows
    sink = Bounds(table, (PartitionBounds(0, 0, count, count),))
    offsets = sink.offsets + source.offsets
    reading = (
        spark.createDataFrame(rows).selectExpr(*_typed())
        if count
        else spark.createDataFrame([], COLUMNS)
    )
    committed, uncommitted = (
        keep_in(reading, evidence / name, offsets) for name in (COMMITTED, UNCOMMITTED)
    )
    options = source_options(cluster.address, scan_log(spark, cluster.address, source))
    inputs = keep_in(
        read(spark, options, source, Witness.READ_COMMITTED), evidence / INPUTS, offsets
    )
    question = Question(
        source=source,
        sink=table,
        guarantee=guarantee,
        agreed=ContractTerms(require=REQUIRED),
        run=run,
        not_processed=not_processed,
        topic_ids=topic_ids or {},
    )
    origin = fetch_origin(cluster.address, topic_names(source))
    readings = Readings(committed, uncommitted, inputs)
    capture = Capture(question, sink, readings, batches=None, coordinator=None, origin=origin)
    replaced = replaced_topics(Sides(cluster.address), question.topic_ids, Origins(origin))
    capture = replace(capture, circumstances=Circumstances(replaced=replaced))
    return conclude(spark, capture, folder, attachments)


def read_table(url: str, table: str) -> pa.Table:
    """Read a table's rows as partition 0, with offsets that number them by id."""
    engine, rows = connect_database(url), rows_of(table)
    try:
        with engine.connect() as connection:
            records = connection.execute(select(rows).order_by(rows.c.id)).mappings().all()
    except DBAPIError as error:
        reason = str(error.orig).splitlines()[0].rstrip(".")
        raise SinkError(f"Table {table} of {shown(engine)} cannot be read: {reason}.") from error
    headers = [
        [
            {
                "key": LINEAGE_HEADER,
                "value": format_lineage(Lineage(*(row[name] for name in LINEAGE))),
            }
        ]
        for row in records
    ]
    return pa.table(
        {
            "offset": pa.array(range(len(records)), pa.int64()),
            "key": pa.array([row["key"] for row in records], pa.binary()),
            "value": pa.array([row["value"] for row in records], pa.binary()),
            "headers": pa.array(
                headers, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            ),
        }
    )


def _typed() -> tuple[str, ...]:
    return (
        "cast(0 as int) as partition",
        "offset",
        "cast(null as timestamp) as timestamp",
        "key",
        "value",
        "headers",
    )
