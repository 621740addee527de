"""Judging a database table that backend/sink/table.py wrote: duplicates, gaps, order and rows
without an input, by the validators for topics.

A table has no aborted rows and no raw log. Its rows, ordered by id, are both readings of a single
partition. This process reads them, so a table has a limit (`TABLE_BYTES_MAX`). The evidence is the
same as for a topic, and `topicproof verify` can judge it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from sqlalchemy import RowMapping, select
from sqlalchemy.exc import DBAPIError

from topicproof.backend.address import Sides
from topicproof.backend.errors import SinkError
from topicproof.backend.evidence.folder import EVIDENCE
from topicproof.backend.judging.capture_store import COMMITTED, INPUTS, UNCOMMITTED, Capture, empty
from topicproof.backend.judging.circumstances import replaced_topics
from topicproof.backend.judging.judge import conclude
from topicproof.backend.judging.log_scan import scan_log, source_options
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.origin import fetch_origin
from topicproof.backend.sink.table import LINEAGE, connect_database, rows_of, shown
from topicproof.backend.storage import FrameFolder
from topicproof.validators.circumstances import Circumstances
from topicproof.validators.contract_terms import ContractTerms
from topicproof.validators.finding import Bounds, Origins, PartitionBounds, Witness
from topicproof.validators.lineage.headers import LINEAGE_HEADER, Lineage, format_lineage
from topicproof.validators.question import Question
from topicproof.validators.readings import COLUMNS, Readings, read
from topicproof.validators.report import Report

FETCHED_ROWS = 100
"""Rows that the database sends at once: all of them could be larger than the memory."""
TABLE_BYTES_MAX = 2_000_000_000
"""What all rows of a table may take in this process."""
SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
REQUIRED = ("duplicate", "gap", "order", "phantom")
NOTHING_ATTACHED: Mapping[str, Any] = MappingProxyType({})


def judge_table(
    spark: SparkSession,
    cluster: Cluster,
    url: str,
    question: Question,
    folder: Path,
    attachments: Mapping[str, Any] = NOTHING_ATTACHED,
) -> Report:
    """Judge the table that `question` names as its sink, in the database at `url`. Report and
    evidence go into `folder`, as in backend/judging/judge.py. `attachments`: further files of the
    evidence.

    Raises SinkError if the table cannot be read, EvidenceError, SparkError.
    """
    evidence, source = folder / EVIDENCE, question.source
    empty(spark, evidence)
    rows = read_table(url, question.sink)
    count = rows.num_rows
    sink = Bounds(question.sink, (PartitionBounds(0, 0, count, count),))
    frames = FrameFolder(evidence, sink.offsets + source.offsets)
    reading = (
        spark.createDataFrame(rows).selectExpr(*_typed())
        if count
        else spark.createDataFrame([], COLUMNS)
    )
    committed, uncommitted = (frames.keep(reading, name) for name in (COMMITTED, UNCOMMITTED))
    options = source_options(cluster.address, scan_log(spark, cluster.address, source))
    inputs = frames.keep(read(spark, options, source, Witness.READ_COMMITTED), INPUTS)
    origin = fetch_origin(cluster.address, source.topics)
    replaced = replaced_topics(Sides(cluster.address), question.topic_ids, Origins(origin))
    capture = Capture(
        replace(question, agreed=ContractTerms(require=REQUIRED)),
        sink,
        Readings(committed, uncommitted, inputs),
        batches=None,
        coordinator=None,
        circumstances=Circumstances(replaced=replaced),
        origin=origin,
    )
    return conclude(spark, capture, folder, attachments)


def read_table(url: str, table: str) -> pa.Table:
    """Read a table's rows as partition 0, with offsets that number them by id. Raises SinkError,
    also for rows that take more than `TABLE_BYTES_MAX`."""
    engine, rows = connect_database(url), rows_of(table)
    query = select(rows).order_by(rows.c.id).execution_options(yield_per=FETCHED_ROWS)
    parts, count, size = [SCHEMA.empty_table()], 0, 0
    try:
        with engine.connect() as connection:
            for records in connection.execute(query).mappings().partitions():
                parts.append(_arrow(records, first=count))
                count += len(records)
                size += parts[-1].nbytes
                if size > TABLE_BYTES_MAX:
                    raise SinkError(
                        f"Table {table} of {shown(engine)} is not judged: its rows take more than"
                        f" {TABLE_BYTES_MAX:,} bytes, and this process reads them all. The verdict"
                        " is UNKNOWN."
                    )
    except DBAPIError as error:
        reason = str(error.orig).splitlines()[0].rstrip(".")
        raise SinkError(f"Table {table} of {shown(engine)} cannot be read: {reason}.") from error
    return pa.concat_tables(parts).combine_chunks()


def _arrow(records: Sequence[RowMapping], first: int) -> pa.Table:
    """Return rows in the columns of `SCHEMA`, numbered from `first` on."""
    headers = [
        [
            {
                "key": LINEAGE_HEADER,
                "value": format_lineage(Lineage(*(row[name] for name in LINEAGE))),
            }
        ]
        for row in records
    ]
    columns = (
        range(first, first + len(records)),
        [row["key"] for row in records],
        [row["value"] for row in records],
        headers,
    )
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.table(arrays, schema=SCHEMA)


def _typed() -> tuple[str, ...]:
    return (
        "cast(0 as int) as partition",
        "offset",
        "cast(null as timestamp) as timestamp",
        "key",
        "value",
        "headers",
    )
