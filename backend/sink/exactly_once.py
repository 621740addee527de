"""The exactly-once sink: `df.writeStream.format("kafka-transactional")`, a PySpark Python Data
Source.

Why it is exactly-once
----------------------
Spark may run a task twice, replay a batch, lose an executor, the driver or the checkpoint. So
nothing here relies on Spark to remember what was written. Each source partition has a transactional
id and a committed offset in a consumer group. Each transaction holds the outputs of some inputs
*and* the source offset that follows them. Kafka commits both or neither. Per Spark task and source
partition:

0. Creating a run commits an initial offset for every source partition, so an absent offset is an
   error, never a fresh start.
1. `init_transactions()` fences the earlier holder of the transactional id and settles its
   transaction. A late worker of a stopped or restarted query would fence the right one. Its
   generation reveals it, so it ends. The group counts generations at every start and stop, in its
   offset of the journal's partition 0.
2. The group's committed offset is read only now (read_committed). Rows below it are already in the
   sink, so they are skipped. With a journal, OffsetsMoved refuses an offset that was moved since
   the last transaction. The two are compared if the offset carries none of our sequences, and if
   rows arrive below it or after a gap. At a gap, a fetch from the expected offset, at the isolation
   level of the rows, must return exactly the next row. Then only markers, aborted or compacted
   records lie between. Otherwise it is a SourceGap. The same applies between two rows of a task: a
   repartition looks like that, and lost records in a test.
3. One transaction is buffered, then: begin, produce, send the next source offset, commit. No
   transaction stays open while Spark computes the next rows. If all rows are skipped, nothing is
   sent: a committed offset never moves backwards. If a connection has failed since the epoch began,
   step 1 and the read of step 2 come first. librdkafka repeats requests by itself. A first copy
   that arrives late would end this transaction (EndTxn, KAFKA-17754) or reset its offset
   (TxnOffsetCommit). The coordinator refuses both from an older epoch.
4. A retriable error is retried. An abortable error aborts and replays, up to a limit. Being fenced
   ends the task. A commit without an answer, and a transaction whose client hangs, are journalled
   as unknown; steps 1 and 2 of the next attempt settle them. If the brokers refuse an output, its
   input goes to the dead letters after a few tries; without them the task ends.
5. `commit()` on the driver is a receipt. It fails if two tasks report one source partition.

SPARK-28908 asked for one commit over all tasks, which Kafka does not offer. Here tasks are
independent.

Modules of the steps: group.py reads the position and fences (1, 2), batcher.py decides which inputs
make one transaction, delivery/ has one module for each guarantee (3), writer.py tries again (4).

The other two guarantees are real modes of the same sink, so that their damage can be shown. Nothing
fences their zombies. `at_least_once` produces, flushes, then commits the source offset: work that
dies in between is produced again. `at_most_once` commits the source offset, then produces: work
that dies in between is lost. Both skip committed inputs.

Limits of exactly-once: the outputs of one Spark batch become visible partition by partition; the
transformation must be deterministic; its side effects may happen more than once; duplicates in the
source stay duplicates; input trimmed past the committed offset is lost, and SourceGap reports it.

Use
---
    spark.dataSource.register(KafkaTransactionalSink)
    writer = rows.writeStream.format("kafka-transactional").options(**{...})
    writer.option("checkpointLocation", ...).start()

Input: one row per *input record*: `topic string, partition int, offset bigint` and either `outputs
array<struct<key binary, value binary, headers array<struct<key, value>>, topic string>>` (an empty
array: filtered out; headers and topic optional) or, for one-to-one, `key binary, value binary`.

Options, with their defaults:

- `kafka.bootstrap.servers`, `kafka.*` (required): the cluster and its client properties, in
  Kafka's Java names or librdkafka's, so Spark's source may share them.
- `topic` (required unless all outputs name one): the topic of outputs that name none.
- `group` (required): the consumer group whose offsets record what was processed.
- `transactionalIdPrefix` (required): `<prefix>-<source topic>-<partition>` is the transactional id.
- `sourceIsolation` (read_committed): how the rows were read, or read_uncommitted.
- `guarantee` (exactly_once): or at_least_once, or at_most_once.
- `bytesPerTransaction` (64000000): a transaction ends at the input that reaches this size.
- `recordsPerTransaction`, `attemptsMax` and all others of the delivery, with their defaults, are
  declared in backend/sink/delivery_options.py: `attempts_max` there is `attemptsMax` here.
- `journal` (none): the topic for the sink's declarations. Without it, a moved group offset goes
  undetected, and in real time a failed task is noticed late.
- `generation` (none): the number of this start of the query. Workers of earlier starts end
  (position.next_generation).
- `deadLetters` (none): exactly_once: the topic for inputs whose output the brokers refuse. Without
  it the sink stops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from topicproof.backend.errors import ShuffledInput
from topicproof.backend.sink.hooks import MakeHooks, NoHooks
from topicproof.backend.sink.options import FORMAT, SinkOptions
from topicproof.backend.sink.outputs import REMEDY_SHUFFLED, only_source, require_columns
from topicproof.backend.sink.writer import PartitionWriter, Receipt, partition_writer


class KafkaTransactionalSink(DataSource):
    """Registered with `spark.dataSource.register`; the module's docstring has the options and an
    example."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaTransactionalWriter:  # noqa: ARG002
        require_columns(schema)
        return KafkaTransactionalWriter(SinkOptions.parse(self.sink_options()), self.hooks())

    def sink_options(self) -> Mapping[str, str]:
        """Return the sink's own options."""
        return self.options

    def hooks(self) -> MakeHooks:
        return NoHooks


class KafkaTransactionalWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions, hooks: MakeHooks) -> None:
        self.sink = options
        self.hooks = hooks

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Receipt:
        with ExitStack() as stack:
            writer: PartitionWriter | None = None
            for batch in iterator:
                if batch.num_rows == 0:
                    continue
                source = only_source(batch, writer.task.source if writer else None)
                if writer is None:
                    writer = stack.enter_context(self._writer(source))
                writer.accept(batch)
            return writer.finish() if writer else Receipt(None, 0, 0, 0, 0)

    def _writer(self, source: tuple[str, int]) -> PartitionWriter:
        return partition_writer(self.sink, self.hooks, *source)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        sources = [m.source for m in messages if isinstance(m, Receipt) and m.source is not None]
        twice = sorted({f"{topic}-{p}" for topic, p in sources if sources.count((topic, p)) > 1})
        if twice:
            raise ShuffledInput(
                f"Batch {batchId}: two tasks wrote {', '.join(twice)}. {REMEDY_SHUFFLED}"
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Undo nothing: each task settled its own transactions."""
