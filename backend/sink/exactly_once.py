"""The exactly-once sink: `df.writeStream.format("kafka-transactional")`, a PySpark Python Data
Source.

Why it is exactly-once
----------------------
Spark may run a task twice, replay a batch, lose an
executor, the driver or the checkpoint. So nothing here relies on Spark to remember what was
written. Each source partition has a transactional id and a committed offset in a consumer group,
and each transaction holds the outputs of some inputs *and* the source offset that follows them.
Kafka commits both or neither. Per Spark task and source partition:

0. Creating a run commits a floor for every source partition, so an absent offset is an error, never
   a fresh start.
1. `init_transactions()` fences the earlier holder of the transactional id and settles its
   transaction. A late worker of a stopped or restarted query would fence the right one. Its
   generation gives it away, so it ends: the group counts generations at every start and stop, as
   the offset of the journal's partition 0.
2. Only then is the group's committed offset read (read_committed). Rows below it are in the sink
   already, so they are skipped. With a journal, OffsetsMoved refuses an offset that was moved since
   the last transaction. The two are compared if the offset carries no sequence of ours, and if
   rows arrive below it or beyond the one that follows. If rows do not follow each other, a fetch
   from the expected offset, at the isolation level of the rows, must return exactly the next row:
   only markers, aborted or compacted records lie between. Otherwise it is a SourceGap. This holds
   between two rows of a task too: a repartition looks like that, and has lost records in a test.
3. One transaction is buffered, then: begin, produce, send the next source offset, commit. None
   stays open while Spark computes the next rows. If all rows are skipped, nothing is sent: a
   committed offset never moves backwards. If a connection has failed since the epoch began, step 1
   and the read of step 2 come first. librdkafka repeats requests by itself, and a first copy that
   arrives late would end this transaction (EndTxn, KAFKA-17754) or take its offset back
   (TxnOffsetCommit). The coordinator refuses both from an older epoch.
4. A retriable error is retried. An abortable one aborts and replays, a bounded number of times.
   Being fenced ends the task. A commit without an answer, and a transaction whose client hangs, are
   journalled as unknown; steps 1 and 2 of the next attempt settle them. If the brokers refuse an
   output, its input goes to the dead letters after a few tries; without those the task ends.
5. `commit()` on the driver is a receipt. It fails if two tasks report one source partition.

SPARK-28908 asked for one commit over all tasks, which Kafka cannot give. Here no task needs
another.

Where each step is: group.py reads the position and fences (1, 2), batcher.py decides which inputs
make one transaction, delivery/ has one module for each guarantee (3), writer.py tries again (4).

The other two guarantees are real modes of the same sink, so that their damage can be shown. Nothing
fences their zombies. `at_least_once` produces, flushes, then commits the source offset: what dies
between is produced again. `at_most_once` commits the source offset, then produces: what dies
between is lost. Both skip what is committed.

Lineage may be packed for exactly_once (validators/lineage/packs.py), into a sink topic that is not
compacted.

What exactly-once cannot promise: the outputs of one Spark batch become visible partition by
partition; the transformation must be deterministic; its side effects may happen more than once;
duplicates in the source are duplicates; a source that was trimmed past the committed offset is
lost, and SourceGap says so.

Use
---
    spark.dataSource.register(KafkaTransactionalSink)
    writer = rows.writeStream.format("kafka-transactional").options(**{...})
    writer.option("checkpointLocation", ...).start()

Input: one row per *input record*: `topic string, partition int, offset bigint` and either `outputs
array<struct<key binary, value binary, headers array<struct<key, value>>, topic string>>` (an empty
array: filtered out; headers and topic optional) or, for one-to-one, `key binary, value binary`.

Options, with their defaults:

- `kafka.bootstrap.servers`, `kafka.*` (required): the cluster and its client properties.
- `topic` (required unless all outputs name one): where outputs go that name no topic.
- `group` (required): the consumer group whose offsets say what was processed.
- `transactionalIdPrefix` (required): `<prefix>-<source topic>-<partition>` is the transactional id.
- `sourceIsolation` (read_committed): how the rows were read, or read_uncommitted.
- `guarantee` (exactly_once): or at_least_once, or at_most_once.
- `idempotence` (true): whether the producer of at_least_once is idempotent.
- `acks` (all): of at_most_once; 0 for a producer that waits for no answer.
- `lineage` (record): headers on each record say its input and transaction. packed: on one for
  many. off: none.
- `recordsPerTransaction` (1000), `bytesPerTransaction` (64000000): a transaction ends at the input
  that reaches either.
- `transactionTimeoutMs` (60000): after this the coordinator aborts an abandoned transaction.
- `attemptsMax` (10): how often a transaction is tried before the task gives up.
- `journal` (none): the topic for what the sink declares. Without one it cannot tell that the
  group's offset was moved.
- `generation` (none): which start of the query this is. A worker of an earlier one ends
  (position.next_generation).
- `offsetsForced` (false): go on where the group stands, although the journal says that it was
  moved.
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
        return KafkaTransactionalWriter(SinkOptions.parse(self.given()), self.hooks())

    def given(self) -> Mapping[str, str]:
        """The options that are the sink's own."""
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
        """Nothing to undo: every transaction was settled by its own task."""
