"""A topic's records as a batch data source for Spark, read by librdkafka, with timestamps that
Spark can hold.

Kafka stores any 64-bit number of milliseconds as a timestamp. Spark's Kafka source multiplies it by
1,000 and fails beyond the year 294,246, so a single record would make a topic impossible to judge.
`read_clamped` returns the rows of `topicproof.validators.readings.read`, with such timestamps moved
to the nearest one that Spark documents (years 1 to 9999). It is slower than Spark's own source, and
used only if that one fails.

Spark's Python workers import this module by name: on a cluster this project must be on their
PYTHONPATH.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.client_configs import READER_FETCH_BYTES, fetch_limits
from topicproof.backend.kafka.log.inflation import fetch_bytes
from topicproof.backend.kafka.reading import (
    NotText,
    RecordBudget,
    as_bytes,
    headers_in,
    open_consumer,
    read_range,
)
from topicproof.validators.finding import Bounds, Witness
from topicproof.validators.merged_topics import split
from topicproof.validators.readings import COLUMNS, end_of

FORMAT = "topicproof-records"
OVERFLOW = "java.lang.ArithmeticException: long overflow"
"""Spark's error when a timestamp overflows 64 bits."""
MIN_MS = int(datetime(1, 1, 1, tzinfo=UTC).timestamp()) * 1_000
MAX_MS = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 1_000 + 999
"""The documented range of Spark's timestamps, in ms."""
OFFSETS_PER_TASK = 1_000_000
RECORDS_AT_ONCE, BYTES_AT_ONCE = 1_000, 8_000_000
SILENCE_S = 30.0
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)


def beyond_spark(batches: pa.Table) -> bool:
    """Return whether batch headers show a timestamp outside the years 1 to 9999. Headers do not
    show the timestamps in the middle of a batch."""
    extremes = [pc.min_max(batches[name]).as_py() for name in ("first_timestamp", "max_timestamp")]
    return any(
        each["min"] is not None and (each["min"] < MIN_MS or each["max"] > MAX_MS)
        for each in extremes
    )


def register(spark: SparkSession) -> None:
    """Register the source with the session. Spark refuses two threads at once."""
    spark.dataSource.register(KafkaRecords)


def read_clamped(
    spark: SparkSession, address: Address, bounds: Bounds, level: Witness, ratio: float = 1.0
) -> DataFrame:
    """Return the records of `bounds` that are visible at `level`, as `COLUMNS`. Lazy: every use
    reads them again. The source must be registered. `ratio`: how many times larger a batch becomes
    at most."""
    options = {
        "bootstrap": address.bootstrap,
        "client": json.dumps(dict(address.client)),
        "level": level.value,
        "fetch": str(fetch_bytes(ratio, READER_FETCH_BYTES)),
    }
    frames = []
    for part, first in split(bounds):
        spans = {p.partition: (p.start, end_of(p, level)) for p in part.partitions}
        frame = (
            spark.read.format(FORMAT)
            .options(**options, topic=part.topic, spans=json.dumps(spans))
            .load()
        )
        frames.append(frame.withColumn("partition", F.col("partition") + first) if first else frame)
    return reduce(DataFrame.unionByName, frames)


@dataclass(frozen=True)
class Span(InputPartition):
    """The input of one task: the offsets [first, end) of a partition."""

    partition: int
    first: int
    end: int


class KafkaRecords(DataSource):
    """Read through `read_clamped`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: StructType) -> RecordsReader:  # noqa: ARG002
        return RecordsReader(self.options)


class RecordsReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.address = Address(options["bootstrap"], json.loads(options["client"]))
        self.topic, self.level = options["topic"], options["level"]
        self.limits = fetch_limits(int(options["fetch"]))
        self.spans: dict[str, tuple[int, int]] = json.loads(options["spans"])

    def partitions(self) -> list[InputPartition]:
        return [
            Span(int(partition), first, min(first + OFFSETS_PER_TASK, end))
            for partition, (start, end) in self.spans.items()
            for first in range(start, end, OFFSETS_PER_TASK)
        ]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        # Without a span, Spark still asks for one partition.
        if not isinstance(partition, Span):
            return
        span = {partition.partition: (partition.first, partition.end)}
        waiting: list[tuple[Any, ...]] = []
        budget, last_arrival = RecordBudget(BYTES_AT_ONCE), time.monotonic()
        with open_consumer(self.address, self.topic, self.level, self.limits) as consumer:
            for message in read_range(consumer, self.topic, span):
                if message is None:
                    if time.monotonic() - last_arrival > SILENCE_S:
                        raise ClusterError(
                            f"{self.topic}-{partition.partition} delivered nothing for"
                            f" {SILENCE_S:g} s. Try again."
                        )
                    continue
                last_arrival = time.monotonic()
                headers = _headers(message)
                waiting.append(_row(message, headers))
                budget.hold(as_bytes(message.key()), as_bytes(message.value()), headers)
                if len(waiting) >= RECORDS_AT_ONCE or budget.is_spent:
                    yield _rows(waiting)
                    waiting, budget = [], RecordBudget(BYTES_AT_ONCE)
        if waiting:
            yield _rows(waiting)


def _row(message: Message, headers: list[tuple[str, Any]]) -> tuple[Any, ...]:
    """Return a record in the columns of `SCHEMA`."""
    return (
        message.partition(),
        message.offset(),
        min(max(message.timestamp()[1], MIN_MS), MAX_MS) * 1_000,
        message.key(),
        message.value(),
        [{"key": name, "value": content} for name, content in headers] or None,
    )


def _rows(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _headers(message: Message) -> list[tuple[str, Any]]:
    """Raises ClusterError if they cannot be read."""
    try:
        return headers_in(message)
    except NotText as error:
        place = f"partition {message.partition()}, offset {message.offset()}"
        raise ClusterError(f"{message.topic()}, {place}: {error}, so it cannot be read.") from error
