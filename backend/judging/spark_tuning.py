"""Spark settings that depend on the amount of data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from topicproof.backend.storage import local_path
from topicproof.validators.readings import FEW_OFFSETS_MAX

BYTES_AT_ONCE = 32 * 1024 * 1024
ROWS_AT_ONCE = 4_096
"""Spark's default."""
ARROW_ROWS, ROWS_FOLDED_AT_ONCE = "spark.sql.execution.arrow.maxRecordsPerBatch", 60_000
"""Folded records have no key and no value, so this many take a few megabytes."""


def tune(spark: SparkSession, offsets: int, folding: bool = False) -> None:
    """Let Spark interpret expressions, and plan each query once, if compiling and planning again
    take longer than the records. Send more rows at once if they are folded."""
    if folding:
        spark.conf.set(ARROW_ROWS, ROWS_FOLDED_AT_ONCE)
    else:
        spark.conf.unset(ARROW_ROWS)
    # Our files have no partitions to prune. To look for some, Spark writes out what a join's keys
    # are made of, which doubled with each step: 45 s for a run without lineage.
    spark.conf.set("spark.sql.optimizer.dynamicPartitionPruning.enabled", "false")
    small = offsets <= FEW_OFFSETS_MAX
    spark.conf.set("spark.sql.codegen.wholeStage", str(not small).lower())
    spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN" if small else "FALLBACK")
    if small:
        spark.conf.set("spark.sql.shuffle.partitions", "1")
        spark.conf.set("spark.sql.adaptive.enabled", "false")
    else:
        spark.conf.unset("spark.sql.shuffle.partitions")
        spark.conf.unset("spark.sql.adaptive.enabled")


def limit_rows(spark: SparkSession, readings: Sequence[DataFrame]) -> None:
    """Let Spark take fewer large rows into memory at once: 4,096 rows of 10 MB would kill the
    server.

    Row size is read from each Parquet footer. For files that are not here, Spark's default remains.
    """
    names = {name for reading in readings for name in reading.inputFiles()}
    paths = (local_path(spark, name) for name in names)
    largest = max((_row_bytes(path) for path in paths if path and path.is_file()), default=0)
    rows = int(min(ROWS_AT_ONCE, max(1, BYTES_AT_ONCE // max(1, largest))))
    spark.conf.set("spark.sql.parquet.columnarReaderBatchSize", str(rows))


def _row_bytes(file: Path) -> int:
    """Return the mean row size in the row group with the largest rows."""
    footer = pq.read_metadata(file)
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    return max(
        (group.total_byte_size // group.num_rows for group in groups if group.num_rows), default=0
    )
