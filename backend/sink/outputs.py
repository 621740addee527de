"""The outputs of input rows, taken from whole Arrow columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from topicproof.backend.errors import ShuffledInput, UsageError
from topicproof.backend.sink.options import FORMAT

REMEDY_SHUFFLED = (
    "Write one row per input record, straight from Spark's Kafka source: without minPartitions or"
    " maxRecordsPerPartition, without repartition, join or aggregation before the sink, and with"
    " `outputs` empty instead of a filter."
)
REAL_TIME_SINCE = (4, 2)
"""The version of Spark from which Python can start a query in real time."""
Headers = Sequence[tuple[str, bytes | None]]
Output = tuple[int, int, str, bytes | None, bytes | None, Headers]
"""The input (its offset), the index among that input's outputs, topic, key, value, headers."""


@dataclass(frozen=True)
class Outputs:
    """The outputs of some input records, input by input."""

    records: list[Output]
    ends: np.ndarray[Any, np.dtype[np.int64]]
    """Where each input's outputs end in `records`."""
    weights: np.ndarray[Any, np.dtype[np.int64]]
    """Number of outputs up to and including each input. An input without outputs counts as one, so
    many of them also fill a transaction."""
    sizes: np.ndarray[Any, np.dtype[np.int64]]
    """Bytes of keys and values up to and including each input."""


def require_real_time(spark: SparkSession) -> None:
    """Raises UsageError for a version of Spark whose Python has no trigger for real time."""
    for what, version in (("pyspark here", pyspark.__version__), ("Spark", spark.version)):
        major, minor = map(int, version.split(".")[:2])
        if (major, minor) < REAL_TIME_SINCE:
            raise UsageError(
                f"Real time needs Spark {'.'.join(map(str, REAL_TIME_SINCE))} or later, and {what}"
                f" is {version}. Leave out the real time, or install a newer version."
            )


def require_columns(schema: StructType) -> None:
    """Raises UsageError if rows lack columns that the sinks need."""
    missing = {"topic", "partition", "offset"} - set(schema.names)
    if missing or not ({"outputs"} <= set(schema.names) or {"key", "value"} <= set(schema.names)):
        raise UsageError(
            f"{FORMAT}: rows need topic, partition, offset and either outputs or key and value; "
            f"these have {', '.join(schema.names)}."
        )


def only_source(batch: pa.RecordBatch, expected: tuple[str, int] | None) -> tuple[str, int]:
    """Return the one source partition of these rows. Raises ShuffledInput if there are several."""
    topics, partitions = pc.unique(batch.column("topic")), pc.unique(batch.column("partition"))
    source = (topics[0].as_py(), partitions[0].as_py())
    if len(topics) > 1 or len(partitions) > 1 or (expected is not None and source != expected):
        raise ShuffledInput(
            f"One task holds rows of several source partitions ({source[0]}). {REMEDY_SHUFFLED}"
        )
    return source


def outputs_of(batch: pa.RecordBatch, default_topic: str | None) -> Outputs:
    """Return the outputs of the rows. Raises UsageError if an output is null or has no topic."""
    # Column by column: row by row took more processor time than the rest of a transaction.
    offsets = batch.column("offset").to_numpy()
    if "outputs" in batch.schema.names:
        lists = batch.column("outputs")
        structs = lists.flatten()
        if structs.null_count:
            raise UsageError(f"{FORMAT}: an output is null. Leave it out of its list.")
        fields = dict(zip((field.name for field in structs.type), structs.flatten(), strict=True))
        counts = _numbers(pc.list_value_length(lists))
    else:
        fields = {name: batch.column(name) for name in ("key", "value")}
        counts = np.ones(offsets.size, np.int64)
    ends = np.cumsum(counts)
    total = int(counts.sum())
    indices = np.arange(total) - np.repeat(ends - counts, counts)
    keys, values = fields["key"], fields["value"]
    columns = (
        np.repeat(offsets, counts).tolist(),
        indices.tolist(),
        _topics(fields.get("topic"), default_topic, total),
        keys.to_numpy(zero_copy_only=False).tolist(),
        values.to_numpy(zero_copy_only=False).tolist(),
        _headers(fields.get("headers"), total),
    )
    sizes = _numbers(pc.binary_length(keys)) + _numbers(pc.binary_length(values))
    upto_record = np.concatenate(([0], np.cumsum(sizes)))
    return Outputs(
        list(zip(*columns, strict=True)), ends, np.cumsum(np.maximum(counts, 1)), upto_record[ends]
    )


def _numbers(column: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a numpy array, with 0 for null."""
    return np.asarray(pc.fill_null(column, 0).to_numpy(zero_copy_only=False), np.int64)


def _topics(output_topics: pa.Array | None, default: str | None, total: int) -> list[str]:
    """Return the topic of each output."""
    named = [None] * total if output_topics is None else output_topics.to_pylist()
    if default is None and None in named:
        raise UsageError(f"{FORMAT}: an output names no topic, and the option topic is not set.")
    return [str(default) if topic is None else topic for topic in named]


def _headers(output_headers: pa.Array | None, total: int) -> list[Headers]:
    """Return the outputs' own headers."""
    if output_headers is None or output_headers.null_count == total:
        return [()] * total
    return [
        [(header["key"], header["value"]) for header in headers or []]
        for headers in output_headers.to_pylist()
    ]
