"""The exactly-once sink behind a stateful stage:
`df.writeStream.format("kafka-transactional-stateful")`.

Why it is exactly-once
----------------------
A stateful stage shuffles, so a task holds outputs of many source partitions. Its outputs depend on
state in the checkpoint. Here the checkpoint *is* the truth about processed inputs, and the batch is
the fence. Each shuffle partition has a transactional id and, in the consumer group, a committed
offset that counts batches. Each transaction holds all outputs of one batch in one shuffle partition
*and* the offset batch id + 1, with the query's id. Per Spark task:

1. `init_transactions()` fences the earlier holder of the transactional id and settles its
   transaction.
2. The committed offset is read only now. Equal to the batch's id: write. One above: the batch is in
   the sink and this is a replay, so skip it. Anything else, or another query's id: another
   checkpoint wrote this sink, and CheckpointMismatch says what to do. An offset without a query was
   set by hand, unless it is the initial one: OffsetsMoved refuses it if the journal has another.
3. Begin, produce, send the offset, commit. A partition without outputs commits its offset too.

The offsets belong to the topic of the option `batches`, which holds no record. It only needs as
many partitions as Spark's shuffle. Creating a run commits offset 0 for each, so an absent offset is
an error, never a fresh start.

A checkpoint restored to one batch earlier looks like a replay. So the offset's metadata also holds
a sum over the batch's outputs, and a replay with other outputs is refused. Two cases remain outside
the guarantee. A state restored to one batch earlier may produce the very same outputs from other
inputs. Replays of a transformation that is not deterministic are refused, although nothing is
wrong.

The driver's `commit()` records in the group how far each source partition is processed. This is for
people and tools; nothing here reads it.

Input: the rows of backend/sink/exactly_once.py, in any order and of any source partition. The
lineage of an output is the place of its input. Options: those of that sink, except that
recordsPerTransaction and bytesPerTransaction have no effect (a batch is a transaction: limit it
with the source's maxOffsetsPerTrigger), and

| option | meaning | default |
| --- | --- | --- |
| batches | the topic whose offsets count batches | `<group>-batches` |
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from topicproof.backend.errors import CheckpointMismatch, SparkError
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.sink.batcher import Contents
from topicproof.backend.sink.delivery.protocol import BatchInputs
from topicproof.backend.sink.group import GroupPosition
from topicproof.backend.sink.hooks import MakeHooks, NoHooks
from topicproof.backend.sink.options import SinkOptions
from topicproof.backend.sink.outputs import Output, outputs_of, require_columns
from topicproof.backend.sink.position import Position
from topicproof.backend.sink.task import SinkTask
from topicproof.backend.sink.writer import Receipt, TransactionWriter, delivery_of

STATEFUL_FORMAT = "kafka-transactional-stateful"
BATCH_ID, QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"
SUM_MODULUS = 2**64
REMEDY = (
    "Put back the checkpoint that belongs to this sink, or start a new run into an empty sink"
    " topic."
)


def batches_topic(group: str) -> str:
    return f"{group}-batches"


def commit_batch_floor(cluster: Cluster, group: str, partitions: int) -> str:
    """Create the topic that counts the group's batches, and commit 0 for each partition. Returns
    its name."""
    topic = batches_topic(group)
    cluster.create_topic(topic, partitions)
    cluster.commit_offsets(group, topic, dict.fromkeys(range(partitions), 0))
    return topic


class KafkaStatefulSink(DataSource):
    """Registered with `spark.dataSource.register`; the module's docstring lists the options."""

    @classmethod
    def name(cls) -> str:
        return STATEFUL_FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaStatefulWriter:  # noqa: ARG002
        require_columns(schema)
        options: Mapping[str, str] = {
            name: value for name, value in self.sink_options().items() if name.lower() != "batches"
        }
        sink = SinkOptions.parse(options)
        batches_option = next(
            (value for name, value in self.options.items() if name.lower() == "batches"), None
        )
        return KafkaStatefulWriter(sink, batches_option or batches_topic(sink.group), self.hooks())

    def sink_options(self) -> Mapping[str, str]:
        """Return the sink's own options."""
        return self.options

    def hooks(self) -> MakeHooks:
        return NoHooks


@dataclass
class BatchReceipt(Receipt):
    """The result of one task for one batch. `source` is the batches' topic and the shuffle
    partition."""

    reached: dict[str, dict[int, int]] = field(default_factory=dict)
    """By source topic and partition: the offset after the last input of these outputs."""


class KafkaStatefulWriter(DataSourceStreamArrowWriter):
    def __init__(self, sink: SinkOptions, batches: str, hooks: MakeHooks) -> None:
        self.sink = sink
        self.batches = batches
        self.hooks = hooks

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Receipt:
        task = TaskContext.get()
        batch, query = (
            (None, None) if task is None else map(task.getLocalProperty, (BATCH_ID, QUERY_ID))
        )
        if task is None or batch is None or query is None:
            raise SparkError(
                "Spark did not say which batch of which query a task writes; this needs Spark 4.2."
            )
        with BatchWriter(
            self.sink, self.hooks, self.batches, task.partitionId(), query, int(batch)
        ) as writer:
            for rows in iterator:
                writer.accept(rows)
            return writer.finish()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        reached: dict[str, dict[int, int]] = {}
        for message in messages:
            for topic, offsets in (
                message.reached.items() if isinstance(message, BatchReceipt) else ()
            ):
                ends = reached.setdefault(topic, {})
                ends.update({p: max(offset, ends.get(p, 0)) for p, offset in offsets.items()})
        if reached:
            cluster = Cluster(self.sink.address)
            for topic, offsets in reached.items():
                cluster.commit_offsets(self.sink.group, topic, offsets)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Undo nothing: each task settled its own transactions."""


class BatchPosition(GroupPosition):
    """The batch that the sink waits for. Its "source partition" counts batches."""

    def __init__(self, task: SinkTask, query: str, batch: int) -> None:
        super().__init__(task)
        self.query, self.batch = query, batch
        self.sum = ""
        """Sum over the outputs of the last committed batch."""

    def read(self) -> Position:
        """Return the position: the batch's number is also the sequence of the last committed
        transaction. Also raises CheckpointMismatch."""
        answer = self.committed()
        query, _, self.sum = (answer.metadata or "").partition(" ")
        if not query:
            # This is the initial offset, or was set by hand.
            self.is_moved(Position(0, answer.offset))
        if query and query != self.query:
            raise CheckpointMismatch(
                f"{self.task.where}: batches up to {answer.offset - 1} in the sink belong to query"
                f" {query}, but this is query {self.query}: its checkpoint, which holds the state,"
                f" was deleted or replaced. {REMEDY}"
            )
        if not self.batch <= answer.offset <= self.batch + 1:
            cause = (
                "an older one was put in its place"
                if answer.offset > self.batch
                else "the sink's was put back"
            )
            raise CheckpointMismatch(
                f"{self.task.where}: the sink waits for batch {answer.offset} of query"
                f" {self.query}, but the checkpoint is at batch {self.batch}: {cause}. {REMEDY}"
            )
        return Position(answer.offset, answer.offset)


class BatchWriter(TransactionWriter):
    """Writes one batch of one shuffle partition in one transaction."""

    def __init__(
        self,
        sink: SinkOptions,
        hooks: MakeHooks,
        batches: str,
        partition: int,
        query: str,
        batch: int,
    ) -> None:
        task = SinkTask(sink, hooks, batches, partition)
        self.batches = BatchPosition(task, query, batch)
        self.inputs = BatchInputs(task)
        delivery = delivery_of(task, self.batches, self.inputs)
        self.reached = BatchReceipt(task.source, 0, 0, 0, 0)
        super().__init__(task, self.batches, delivery, self.reached)
        self.outputs: list[Output] = []
        self.sum = 0
        """Sum over the outputs, in any order."""

    def accept(self, batch: pa.RecordBatch) -> None:
        places = zip(
            *(batch.column(name).to_pylist() for name in ("topic", "partition", "offset")),
            strict=True,
        )
        first = len(self.inputs.rows)
        for topic, partition, offset in places:
            self.inputs.append(topic, partition, offset)
            ends = self.reached.reached.setdefault(topic, {})
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        # `outputs_of` speaks of offsets, which are ambiguous among several source partitions.
        numbered = pa.array(range(first, len(self.inputs.rows)), pa.int64())
        batch = batch.set_column(batch.schema.get_field_index("offset"), "offset", numbered)
        for output in outputs_of(batch, self.task.sink.topic).records:
            number, index, sink, key, value, _headers = output
            self.outputs.append(output)
            parts = (
                b"%b/%d" % (self.inputs.place(number), index),
                sink.encode(),
                key or b"",
                value or b"",
            )
            # With lengths, so that no two outputs give the same text. Added up, because a shuffle
            # delivers the rows of a replay in another order.
            text = b"".join(b"%d:%b" % (len(part), part) for part in parts)
            self.sum += int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())

    def finish(self) -> Receipt:
        batch, inputs = self.batches.batch, len(self.inputs.rows)
        total = f"{self.sum % SUM_MODULUS:016x}"
        if self.position.offset == batch:
            # The sink waits for this batch. Otherwise it has it, and this is a replay.
            metadata = f"{self.batches.query} {total}"
            self.commit(Contents(batch + 1, batch, batch + 1, metadata, inputs, self.outputs))
        else:
            self.receipt.skipped = inputs
            if self.batches.sum and self.batches.sum != total:
                raise CheckpointMismatch(
                    f"Batch {batch} of {self.task.where} is in the sink with other records than it"
                    " makes now: the checkpoint was rolled back by one batch, or the stage is not"
                    f" deterministic. {REMEDY}"
                )
        self.task.flush()
        return self.receipt
