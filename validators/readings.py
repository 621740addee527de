"""A topic's records at one isolation level, within bounds taken beforehand.

The read_committed reading ends at the last stable offset, the read_uncommitted one at the high
watermark. Asked for more, Spark's read_committed read blocks until the open transaction ends, and
then returns the records of another moment. Only this file names Spark's Kafka source.

Independent queries on readings run at the same time (`in_parallel`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from topicproof.validators.finding import Bounds, PartitionBounds, Witness
from topicproof.validators.merged_topics import split

if TYPE_CHECKING:
    # Spark's workers import this module, and need no pandas.
    import pandas as pd

HEADERS_TYPE = "array<struct<key: string, value: binary>>"
COLUMNS = (
    "partition int, offset long, timestamp timestamp, key binary, value binary, "
    f"headers {HEADERS_TYPE}"
)
"""A reading's columns. `headers` is null for a record without headers."""


class Readings(NamedTuple):
    """The readings of two topics, with their records."""

    committed: DataFrame
    """The sink at read_committed."""
    uncommitted: DataFrame
    """The sink at read_uncommitted."""
    inputs: DataFrame
    """The source at read_committed."""


FEW_OFFSETS_MAX = 100_000
"""Up to this many offsets, of source and sink together, Spark's own overhead dominates."""


def read(
    spark: SparkSession, options: Mapping[str, str], bounds: Bounds, level: Witness
) -> DataFrame:
    """Returns the records of `bounds` that are visible at `level`, as `COLUMNS`. Lazy: every use
    reads again.

    `options` are the options of Spark's Kafka source without topic, offsets and isolation level.
    Raises ValueError for a level that is not a reading.
    """
    if not bounds.parts:
        return _read(spark, options, bounds, level)
    several = [
        _read(spark, options, topic_bounds, level).withColumn(
            "partition", F.col("partition") + first
        )
        for topic_bounds, first in split(bounds)
    ]
    return reduce(DataFrame.unionByName, several)


def _read(
    spark: SparkSession, options: Mapping[str, str], bounds: Bounds, level: Witness
) -> DataFrame:
    ends = {partition.partition: end_of(partition, level) for partition in bounds.partitions}
    starts = {
        partition.partition: partition.start
        for partition in bounds.partitions
        if partition.start < ends[partition.partition]
    }
    if not starts:
        return spark.createDataFrame([], schema_of(COLUMNS))
    # Only non-empty partitions are assigned: an empty range is not worth a consumer.
    records = (
        spark.read.format("kafka")
        .options(**options)
        .option("kafka.isolation.level", level.value)
        .option("assign", json.dumps({bounds.topic: sorted(starts)}))
        .option(
            "startingOffsets",
            json.dumps({bounds.topic: {str(p): start for p, start in starts.items()}}),
        )
        .option("endingOffsets", json.dumps({bounds.topic: {str(p): ends[p] for p in starts}}))
        .option("includeHeaders", "true")
        .load()
    )
    return records.select(
        "partition", "offset", "timestamp", "key", "value", F.col("headers").alias("headers")
    )


def end_of(bounds: PartitionBounds, level: Witness) -> int:
    """Returns the exclusive end of a reading of this partition."""
    match level:
        case Witness.READ_COMMITTED:
            return bounds.lso
        case Witness.READ_UNCOMMITTED:
            return bounds.hw
        case _:
            raise ValueError(f"{level} is not an isolation level.")


def union(*readings: DataFrame | None) -> DataFrame | None:
    """Joins the given readings into one; None if there are none."""
    present = [reading for reading in readings if reading is not None]
    return reduce(DataFrame.unionByName, present) if present else None


ARROW_TYPES = {"int": pa.int32(), "long": pa.int64(), "string": pa.string(), "boolean": pa.bool_()}

CHECKS = {"parquet.page.size.row.check.min": "1", "parquet.block.size.row.check.min": "1"}
"""Parquet first checks its memory use after 100 rows, and later when it expects too many. With
records of 10 MB, 100 rows exhaust the server's memory (PARQUET-99, PARQUET-2242). These settings
make it check from the first row."""


def keep(frame: DataFrame, url: str, offsets: int, columns: str | None = None) -> DataFrame:
    """Writes `frame` as Parquet under `url` and returns what was written: computed once, then
    evidence.

    `offsets`: the number of offsets that the frame covers, as in `gathered`. Leftovers of an
    interrupted run are replaced. `columns`: the frame's columns as a Spark schema string, if known;
    otherwise Spark analyses the frame again.
    """
    gathered(frame, offsets).write.mode("overwrite").options(**CHECKS).parquet(url)
    # With a known schema, Spark need not open the files to find it.
    return gathered(frame.sparkSession.read.schema(columns or frame.schema).parquet(url), offsets)


def gathered(frame: DataFrame, offsets: int) -> DataFrame:
    """Moves `frame` into one partition if it covers few offsets. Then Spark shuffles nothing; for
    so few records a shuffle takes longer than everything else."""
    return frame.coalesce(1) if offsets <= FEW_OFFSETS_MAX else frame


SPARK_TYPES: Mapping[str, DataType] = {
    "int": IntegerType(),
    "long": LongType(),
    "string": StringType(),
    "boolean": BooleanType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    HEADERS_TYPE: ArrayType(StructType().add("key", StringType()).add("value", BinaryType())),
}


@cache
def schema_of(columns: str) -> StructType:
    """Parses a Spark schema string with `SPARK_TYPES`. Spark's client asks the server to do so."""
    schema = StructType()
    for column in re.split(r", (?![^<]*>)", columns):
        name, _, kind = column.partition(" ")
        schema.add(name, SPARK_TYPES[kind])
    return schema


def column_names(columns: str) -> list[str]:
    """Returns the names in a Spark schema string, such as `"partition int, count long"`."""
    return [column.split()[0] for column in columns.split(", ")]


def frame_of(
    spark: SparkSession,
    rows: pa.Table | pd.DataFrame | Sequence[tuple[Any, ...]] | None,
    columns: str,
) -> DataFrame:
    """Creates a frame with these columns (a Spark schema string) from a table or rows; an empty one
    from None."""
    if rows is None or len(rows) == 0:
        return spark.createDataFrame([], schema_of(columns))
    if isinstance(rows, Sequence):
        return spark.createDataFrame(rows, schema_of(columns))
    names = [column.split() for column in columns.split(", ")]
    schema = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in names])
    if not isinstance(rows, pa.Table):
        return spark.createDataFrame(pa.Table.from_pandas(rows, schema, preserve_index=False))
    return spark.createDataFrame(rows.select(schema.names).cast(schema))


@dataclass(frozen=True)
class SourceLog:
    """Facts from the source's own log."""

    aborted: DataFrame | None = None
    """The aborted records of the source, as a reading, including those beyond the judged range;
    None if there are none."""
    pending: DataFrame | None = None
    """The records at and above its last stable offset, as a reading; None if there are none."""
    markers: DataFrame | None = None
    """The offsets of its markers: partition, offset. Only if records were removed: then an offset
    with neither a record nor a marker is gone."""


NOTHING_LOGGED = SourceLog()


def in_parallel(*questions: Callable[[], Any]) -> list[Any]:
    """Returns the results of independent queries, in their order. Small jobs leave cores idle."""
    with ThreadPoolExecutor(len(questions)) as pool:
        return [answer.result() for answer in [pool.submit(question) for question in questions]]
