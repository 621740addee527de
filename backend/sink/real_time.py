"""The sink in Spark's Real-Time Mode: `start_real_time(rows, options)`.

Spark hands rows over as they come, instead of batch by batch. It ships no exactly-once sink for
this mode, and a Python data source cannot be one: it refuses the output mode `update`, which the
mode requires. So the transactions are made inside an operator (`mapInArrow`), one Python process
for each source partition. It passes nothing on, and Spark's own sink is `noop`.

The protocol is that of backend/sink/exactly_once.py, step for step. Nothing in it relies on Spark's
checkpoint. Three things differ:

- A transaction also ends by time, `commitIntervalMs` after its first input came. A thread of its
  own writes, so a transaction need not wait for the next row. While no row comes, none is open.
- Spark sends about one message for each row, which is quick but costly. Rows that come while a
  transaction is open or being committed are taken together, so a busy sink writes large
  transactions. A caller that knows the rate chooses another `Pace`.
- Spark ends a real-time batch after `batch_s` seconds and starts the next one. Each batch takes
  every source partition over again: it fences, reads the offset, and skips what is committed.

Spark does not notice in time that a task has failed, or never (backend/sink/task_watch.py). So
tasks report failures to the journal, and `awaitTermination` stops the query and raises the error.
The caller has to start it again: from the group's offsets and with a new checkpoint. An old one
would repeat the rows of a whole batch, only for them to be skipped.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from topicproof.backend.errors import UsageError
from topicproof.backend.sink.hooks import MakeHooks, NoHooks
from topicproof.backend.sink.options import BATCH_S, FORMAT, REAL_TIME_LINGER_MS, SinkOptions
from topicproof.backend.sink.outputs import only_source, require_columns, require_real_time
from topicproof.backend.sink.task_watch import FailedTasks, RealTimeQuery, report, watched
from topicproof.backend.sink.writer import PartitionWriter, partition_writer

MESSAGE_ROWS = 4
"""Rows of a message from Spark to the Python worker, and empty rows after each row: see
`_followed`."""
TAKEN_AT_ONCE = 16
"""Inputs of a transaction that the writer takes one by one, as they come: nothing is left to do
when the time is over. A busy sink saves processor time by taking the rest together."""
BUFFER_BYTES = 64_000_000
BUFFER_ROWS = 20_000
"""Rows that wait for the writer. Beyond either limit Spark has to wait."""

ALLOWLIST = "spark.sql.streaming.realTimeMode.allowlistCheck"
"""The list of operators and sinks that Spark's developers have tried lacks mapInArrow. Spark reads
this setting from the session of the query whenever it plans a batch, so it stays off."""


@dataclass(frozen=True)
class Pace:
    """How rows go from Spark to the Python worker. Spark sends a message when it is full and
    another row is known to follow; it has no time limit."""

    message_rows: int = MESSAGE_ROWS
    fast: frozenset[tuple[str, int]] = frozenset()
    """Source partitions, as topic and number, whose rows come fast enough to fill the messages. The
    last rows before a pause wait there until the query is started at another pace. A row of any
    other partition is followed by empty rows, so it never waits."""

    @property
    def settings(self) -> dict[str, str]:
        """The settings that a query copies from its session when it starts."""
        return {
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(self.message_rows),
            # Less than the smallest message, so that none waits in a buffer for the next.
            "spark.sql.execution.pandas.udf.buffer.size": "256",
        }


FOLLOWED = Pace()


def start_real_time(
    rows: DataFrame,
    options: Mapping[str, str],
    batch_s: int = BATCH_S,
    hooks: MakeHooks = NoHooks,
    pace: Pace = FOLLOWED,
) -> RealTimeQuery:
    """Start a query in real time. `rows` and `options` are those of the format
    `kafka-transactional`. Raises UsageError, ClusterError.

    `checkpointLocation` is a new folder at each start, `startingOffsets` are the group's offsets.
    """
    require_columns(rows.schema)
    require_real_time(rows.sparkSession)
    sink = replace(SinkOptions.parse(options), client_defaults={"linger_ms": REAL_TIME_LINGER_MS})
    by_name = {name.lower(): value for name, value in options.items()}
    if "checkpointlocation" not in by_name:
        raise UsageError(f"{FORMAT}: the option checkpointLocation is required.")
    failed = (
        None if sink.journal is None else FailedTasks(sink.address, sink.journal, sink.generation)
    )
    rows.sparkSession.conf.set(ALLOWLIST, "false")
    with _settings(rows.sparkSession, pace.settings):
        writer: Any = (
            _followed(rows, pace)
            .mapInArrow(partial(write, sink, hooks), "inputs long")
            .writeStream.format("noop")
            .outputMode("update")
            .option("checkpointLocation", by_name["checkpointlocation"])
        )
        # Any: PySpark's stubs lack this trigger.
        return RealTimeQuery(writer.trigger(realTime=f"{batch_s} seconds").start(), failed)


def _followed(rows: DataFrame, pace: Pace) -> DataFrame:
    """Add as many empty rows as a message has after each row that is not of a fast partition.

    The empty rows fill the message and follow it, wherever in a message the row lies. Messages cost
    the most: five of four rows carry four rows. Messages of one row, with one empty row after each,
    would be eight.
    """
    real = F.array(F.lit(True), *[F.lit(False)] * pace.message_rows)
    if pace.fast:
        real = F.when(_is_of(pace.fast), F.array(F.lit(True))).otherwise(real)
    again = rows.select("*", F.explode(real).alias("real"))
    return again.select(*(F.when(F.col("real"), F.col(name)).alias(name) for name in rows.columns))


def _is_of(places: Iterable[tuple[str, int]]) -> Column:
    """Return whether a row is of one of these source partitions."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        topics.setdefault(topic, []).append(partition)
    conditions = [
        (F.col("topic") == topic) & F.col("partition").isin(partitions)
        for topic, partitions in topics.items()
    ]
    return reduce(lambda left, right: left | right, conditions)


@contextmanager
def _settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of the session until the block ends."""
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value_before in before.items():
            if value_before is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value_before)


def write(
    sink: SinkOptions, hooks: MakeHooks, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write one task's rows. Yields nothing: `mapInArrow` asks for a generator."""
    buffer = RowBuffer()
    writer = threading.Thread(target=_write, args=(sink, hooks, buffer), name="writer", daemon=True)
    writer.start()
    try:
        for batch in batches:
            buffer.put(batch)
        buffer.end()
    except BaseException:
        # Spark has gone, or the writer has failed. A commit in progress is finished.
        buffer.abandon()
        raise
    finally:
        writer.join()
    buffer.raise_failure()
    yield from ()


class RowBuffer:
    """Rows on their way from the thread that receives them to the thread that writes them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.batches: deque[pa.RecordBatch] = deque()
        self.rows = self.size = 0
        self.since = 0.0
        """When the first row that is held came, on the monotonic clock."""
        self.ended = False
        """Whether no more rows will come."""
        self.failure: BaseException | None = None
        """Why the writer has ended early."""

    def put(self, batch: pa.RecordBatch) -> None:
        """Hand rows over; waits while too many are held. Raises the writer's failure."""
        rows = batch.num_rows - batch.column("offset").null_count
        if rows == 0:
            return
        with self.changed:
            self.changed.wait_for(lambda: self.failure is not None or not self._full())
            self.raise_failure()
            if not self.batches:
                self.since = time.monotonic()
            self.batches.append(batch)
            self.rows += rows
            self.size += batch.nbytes
            self.changed.notify_all()

    def take(self, wait_s: float | None, least: int = 1) -> list[pa.RecordBatch] | None:
        """Return all that is held, as soon as it is `least` rows or full, or after `wait_s`.
        Empty rows do not count. Returns None after the last rows."""
        with self.changed:
            self.changed.wait_for(lambda: self.rows >= least or self._full() or self.ended, wait_s)
            batches = list(self.batches)
            if not batches and self.ended:
                return None
            self.batches.clear()
            self.rows = self.size = 0
            self.changed.notify_all()
            return batches

    def end(self) -> None:
        """No more rows will come."""
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def abandon(self) -> None:
        """Like `end`, and rows that are held are not written."""
        with self.changed:
            self.batches.clear()
            self.failure = self.failure or GeneratorExit()
        self.end()

    def fail(self, error: BaseException) -> None:
        """The writer has ended early."""
        with self.changed:
            self.failure = error
            self.changed.notify_all()

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _full(self) -> bool:
        return self.rows >= BUFFER_ROWS or self.size >= BUFFER_BYTES


def _write(sink: SinkOptions, hooks: MakeHooks, buffer: RowBuffer) -> None:
    try:
        with ExitStack() as stack:
            writer = _write_until_end(sink, hooks, buffer, stack)
            if writer is not None and buffer.failure is None:
                writer.finish()
    except BaseException as error:
        given_up = buffer.failure is not None
        # Raised again in Spark's thread.
        buffer.fail(error)
        if not given_up:
            report(sink, error)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch | None:
    """Return the rows without the empty ones, or None if no row is left."""
    if not batches:
        return None
    rows = pa.Table.from_batches(batches)
    rows = rows.filter(rows["offset"].is_valid()).combine_chunks()
    return rows.to_batches()[0] if rows.num_rows else None


def _write_until_end(
    sink: SinkOptions, hooks: MakeHooks, buffer: RowBuffer, stack: ExitStack
) -> PartitionWriter | None:
    """Commit by size and by time until no more rows come. Returns the writer if there were rows."""
    writer: PartitionWriter | None = None
    interval_s, due_at = sink.delivery.commit_interval_ms / 1000, 0.0
    while True:
        waiting = 0 if writer is None else writer.batcher.inputs
        left_s = max(0.0, due_at - time.monotonic()) if waiting else None
        least = sink.delivery.records_per_transaction if waiting >= TAKEN_AT_ONCE else 1
        batches = buffer.take(left_s, least)
        came_at = buffer.since
        if batches is None:
            return writer
        batch = _joined(batches)
        if batch is not None:
            source = only_source(batch, writer.task.source if writer else None)
            if writer is None:
                stack.enter_context(watched(sink, f"{source[0]}-{source[1]}"))
                writer = stack.enter_context(partition_writer(sink, hooks, *source))
            before = writer.receipt.committed
            writer.accept(batch)
            if not waiting or writer.receipt.committed > before:
                due_at = came_at + interval_s
        if writer is not None and writer.batcher.inputs and time.monotonic() >= due_at:
            writer.commit(writer.batcher.cut())
