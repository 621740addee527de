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
1. `init_transactions()` fences whoever held the transactional id and settles its transaction. A
   worker that comes late, of a query that was stopped or started anew meanwhile, would fence the
   right one: it is told by its generation, which the group counts at every start and stop (as the
   offset of the journal's partition 0), and ends.
2. Only then is the group's committed offset read (read_committed). Rows below it are in the sink
   already: skipped. With a journal, an offset that was moved since the last transaction is refused
   (OffsetsMoved): it is compared wherever it carries no sequence of ours, or rows arrive that lie
   below it or beyond what follows it. Where rows do not follow each other, a fetch from the
   expected offset, read_committed unless told otherwise, must return exactly the next row (what
   lies between are markers, aborted or compacted records); otherwise SourceGap. This holds between
   two rows of a task too: a repartition of one partition's rows looks just like that, and was seen
   to lose records.
3. One transaction is buffered, then: begin, produce, send the next source offset, commit. None
   stays open while Spark computes the next rows. A chunk that was skipped whole sends nothing: a
   committed offset never moves backwards. If a connection has failed since the epoch began, step 1
   and the read of step 2 come first: librdkafka repeats requests by itself, and a first copy that
   arrives late would end this transaction (EndTxn, KAFKA-17754) or take its offset back
   (TxnOffsetCommit). The coordinator refuses both from an older epoch.
4. A retriable error is retried; an abortable one aborts and replays, a bounded number of times;
   being fenced ends the task. A commit without an answer, and a transaction whose client does not
   come back, is journalled as unknown and settled by steps 1 and 2 of the next attempt. An input of
   which the brokers refuse an output goes to the dead letters after a few tries; without those the
   task ends.
5. `commit()` on the driver is a receipt. It fails if two tasks report one source partition.

SPARK-28908 asked for one commit over all tasks, which Kafka cannot give. Here no task needs
another.

The other two guarantees are real modes of the same sink, so that their damage can be shown; nothing
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

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, repeat
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from topicproof.backend.errors import (
    AttemptsExhausted,
    ClientStuck,
    Fenced,
    InjectedError,
    NotAllowed,
    NotDelivered,
    OffsetMissing,
    OutcomeUnknown,
    RecordRefused,
    ShuffledInput,
    SinkError,
    SourceGap,
    TransactionAborted,
)
from topicproof.backend.kafka.partitioner import partitions_of
from topicproof.backend.kafka.plain import PlainProducer
from topicproof.backend.kafka.transaction import (
    Delivered,
    Record,
    TransactionalProducer,
    is_refused,
)
from topicproof.backend.settings import READ_COMMITTED, REQUEST_TIMEOUT_MS, consumer_config
from topicproof.backend.sink.hooks import MakeHooks, NoHooks, Step
from topicproof.backend.sink.journal import (
    Declared,
    JournalWriter,
    TaskStarted,
    TransactionEnded,
    last_attempt,
    read_journal,
)
from topicproof.backend.sink.options import FORMAT, OFF, PACKED, SinkOptions
from topicproof.backend.sink.outputs import (
    REMEDY_SHUFFLED,
    Output,
    Outputs,
    by_topic,
    only_source,
    outputs_of,
    packs_of,
    require_columns,
)
from topicproof.backend.sink.position import (
    Position,
    agree,
    generation_partition,
    journalled,
    moved,
)
from topicproof.validators.finding import Guarantee
from topicproof.validators.lineage.headers import (
    LINEAGE_HEADER,
    REASON_HEADER,
    TRANSACTION_HEADER,
    Transaction,
    format_transaction,
)
from topicproof.validators.lineage.packs import PACKED_HEADER

REFUSALS_MAX = 3
"""How often a transaction is tried of which the brokers refuse a record; after the first time with
each record in a batch of its own, which tells whose it is and lets small records of a large batch
pass."""
JOURNAL_TAIL = 5_000
"""Entries at the end of the journal in which a writer looks for its own last one."""
TIMEOUT_S = REQUEST_TIMEOUT_MS / 1000


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


@dataclass
class Receipt(WriterCommitMessage):
    """What one task did. `source` is None for a task that got no rows."""

    source: tuple[str, int] | None
    inputs: int
    skipped: int
    committed: int
    """Transactions."""
    aborted: int


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
                source = only_source(batch, writer.source if writer else None)
                if writer is None:
                    writer = stack.enter_context(self._writer(source))
                writer.accept(batch)
            return writer.finish() if writer else Receipt(None, 0, 0, 0, 0)

    def _writer(self, source: tuple[str, int]) -> PartitionWriter:
        return PartitionWriter(self.sink, self.hooks, *source)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        sources = [m.source for m in messages if isinstance(m, Receipt) and m.source is not None]
        twice = sorted({f"{topic}-{p}" for topic, p in sources if sources.count((topic, p)) > 1})
        if twice:
            raise ShuffledInput(
                f"Batch {batchId}: two tasks wrote {', '.join(twice)}. {REMEDY_SHUFFLED}"
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to undo: every transaction was settled by its own task."""


class PartitionWriter:
    """One source partition within one Spark task: steps 1 to 4 of the protocol."""

    def __init__(
        self, sink: SinkOptions, hooks: MakeHooks, source_topic: str, source_partition: int
    ) -> None:
        self.sink = sink
        self.source = (source_topic, source_partition)
        self.task = uuid.uuid4().hex[:8]
        self.buffer: list[Output] = []
        """Of the transaction that comes next, and of how many inputs; the offset of the last
        one."""
        self.inputs = self.weight = self.size = 0
        self.last = -1
        self.receipt = Receipt(self.source, 0, 0, 0, 0)
        self.journal: JournalWriter | None = None
        self.name = f"{sink.prefix}-{source_topic}-{source_partition}"
        """The transactional id; without transactions the name that the journal knows this writer
        by."""
        self.hooks = hooks(sink, self.source, self.name, self.task)
        self.producer: TransactionalProducer | PlainProducer
        self.one_by_one = False
        """Whether each record is sent in a batch of its own, and heard of."""
        if sink.guarantee is Guarantee.EXACTLY_ONCE:
            self.producer = self._transactional()
        else:
            self.producer = PlainProducer(sink.address, sink.idempotence, sink.acks)
        self.consumer = Consumer(consumer_config(sink.address, sink.group, READ_COMMITTED))
        self.next_offset = self.sequence = self.expected = 0
        self.places_begin = f"{source_topic}/{source_partition}/".encode()
        self.refused: set[int] = set()
        """The inputs in the buffer of which an output was refused."""
        self.sending = -1
        """The input of which an output is being produced."""
        self.partitions: dict[str, int] = {}
        """How many the topics have that packs were sent to, since the take-over."""
        self.packs = 0
        """How often packs were sent: their records without a key take turns in the partitions."""
        self.opened = ExitStack()

    def __enter__(self) -> Self:
        """Take the source partition over: fence, then ask what is committed."""
        with ExitStack() as stack:
            stack.callback(self.consumer.close)
            stack.callback(lambda: self.producer.__exit__(None, None, None))
            self.producer.__enter__()
            self.hooks.prepare()
            self.next_offset, self.sequence = self._committed()
            self.expected = self.next_offset
            self.opened = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.opened.__exit__(kind, error, trace)

    @property
    def where(self) -> str:
        return f"{self.source[0]}-{self.source[1]}"

    def accept(self, batch: pa.RecordBatch) -> None:
        """Take rows of this partition, in rising order; commit every transaction that is full."""
        offsets = batch.column("offset").to_numpy()
        first_new = int(np.searchsorted(offsets, self.next_offset))
        if first_new > 0 and self.receipt.skipped == 0:
            self._moved(Position(self.sequence, self.next_offset))
        self.receipt.skipped += first_new
        self._check_continuity(offsets[first_new:])
        self._take(offsets[first_new:], outputs_of(batch.slice(first_new), self.sink.topic))

    def _take(self, offsets: np.ndarray[Any, np.dtype[np.int64]], new: Outputs) -> None:
        """Buffer inputs; commit at each that makes the transaction large enough."""
        begin = record = weight = size = 0
        while begin < offsets.size:
            heavy = weight + self.sink.records_per_transaction - self.weight
            large = size + self.sink.bytes_per_transaction - self.size
            full = min(
                int(np.searchsorted(new.weights, heavy)), int(np.searchsorted(new.sizes, large))
            )
            last = min(full, offsets.size - 1)
            self.buffer += new.records[record : int(new.ends[last])]
            self.inputs += last + 1 - begin
            self.last = int(offsets[last])
            self.weight += int(new.weights[last]) - weight
            self.size += int(new.sizes[last]) - size
            begin, record, weight, size = (
                last + 1,
                int(new.ends[last]),
                int(new.weights[last]),
                int(new.sizes[last]),
            )
            if full == last:
                self._commit_buffer()

    def finish(self) -> Receipt:
        if self.inputs:
            self._commit_buffer()
        if self.journal is not None:
            self.journal.flush()
        return self.receipt

    def _committed(self) -> tuple[int, int]:
        """The next offset to process and the sequence of the last committed transaction (0 for a
        floor)."""
        try:
            answer = self._ask_committed()
        except OffsetMissing:
            if not self.sink.offsets_forced or self.known is None:
                raise
            return self.known.offset, self.known.sequence
        said = answer.metadata or ""
        found = Position(int(said) if said.isdecimal() else 0, answer.offset)
        if found.sequence > 0 and not self.hooks.entries:
            return found.offset, found.sequence
        self._moved(found)
        # Whoever set the offset, a sequence is never used twice.
        return found.offset, max(found.sequence, self.known.sequence if self.known else 0)

    @cached_property
    def known(self) -> Position | None:
        """The position that the journal knows; None without a journal."""
        sink = self.sink
        if sink.journal is None:
            return None
        return journalled(
            self.hooks.entries or read_journal(sink.address, sink.journal, JOURNAL_TAIL),
            self.name,
        )

    def _moved(self, found: Position) -> bool:
        """Whether the group's offset is not where the journal says. Raises OffsetsMoved unless told
        to go on so."""
        if self.known is None or agree(found, self.known):
            return False
        if not self.sink.offsets_forced:
            raise moved(self.sink.group, self.where, found.offset, self.known)
        return True

    def _ask_committed(self) -> TopicPartition:
        """What the group has committed for this partition: an offset and its metadata."""
        asked = [TopicPartition(*self.source)]
        if self.sink.generation and self.sink.journal is not None:
            asked.append(generation_partition(self.sink.journal))
        answer, *generations = self.consumer.committed(asked, timeout=TIMEOUT_S)
        if answer.error is not None:
            raise SinkError(
                f"The offset of group {self.sink.group} for {self.where}: {answer.error.str()}."
            )
        if any(one.offset > self.sink.generation for one in generations):
            raise Fenced(
                f"{self.name} is a worker of a query that was stopped or started anew meanwhile."
            )
        if answer.offset == OFFSET_INVALID:
            raise OffsetMissing(
                f"Group {self.sink.group} has no committed offset for {self.where}: it was deleted"
                " or has expired, so nobody knows what was processed. Start a new run into an"
                " empty sink topic."
            )
        return answer

    def _check_continuity(self, offsets: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Every row must follow the one before it, with nothing between them that read_committed
        would deliver."""
        if offsets.size == 0:
            return
        expected = np.concatenate(([self.expected], offsets[:-1] + 1))
        if (offsets < expected).any():
            raise ShuffledInput(
                f"Offsets of {self.where} do not rise within one task. {REMEDY_SHUFFLED}"
            )
        for hole in np.flatnonzero(offsets > expected):
            try:
                self._confirm_hole(int(expected[hole]), int(offsets[hole]))
            except SourceGap:
                # Before a task's first transaction the group's offset may have been moved back.
                begins = expected[hole] == self.next_offset and not self.receipt.committed
                if not (begins and self._moved(Position(self.sequence, self.next_offset))):
                    raise
        self.expected = int(offsets[-1]) + 1

    @cached_property
    def reader(self) -> Consumer:
        """Reads the source as the rows were read. The group's offsets are always asked for
        read_committed."""
        sink = self.sink
        if sink.source_isolation == READ_COMMITTED:
            return self.consumer
        reader = Consumer(consumer_config(sink.address, sink.group, sink.source_isolation))
        self.opened.callback(reader.close)
        return reader

    def _confirm_hole(self, first: int, row: int) -> None:
        """A fetch from `first`, at the isolation level of the rows, must return exactly `row`."""
        self.reader.assign([TopicPartition(*self.source, first)])
        message = self.reader.poll(TIMEOUT_S)
        error = message.error() if message is not None else None
        if error is not None and error.code() in {
            KafkaError._AUTO_OFFSET_RESET,
            KafkaError.OFFSET_OUT_OF_RANGE,
        }:
            raise SourceGap(
                f"{self.where}: offset {first} is next, but the source was trimmed past it, so"
                " those records are lost. Start a new run from what is left."
            )
        if message is None or error is not None or message.offset() != row:
            found = (
                "nothing"
                if message is None
                else error.str()
                if error is not None
                else f"offset {message.offset()}"
            )
            raise SourceGap(
                f"{self.where}: offset {first} is next, a {self.sink.source_isolation} consumer"
                f" finds {found} there, but the row that arrived has offset {row}."
                f" {REMEDY_SHUFFLED}"
            )

    def _commit_buffer(self) -> None:
        """One transaction: try, and try again when it was aborted, as often as allowed."""
        sequence = self.sequence + 1
        attempt = last_attempt(self.hooks.entries, *self.source, sequence)
        refusals = 0
        while attempt < self.sink.attempts_max:
            attempt += 1
            self._renew_if_unsure()
            try:
                self._attempt(sequence, attempt)
            except RecordRefused as error:
                self._declare(sequence, attempt, Declared.ABORTED, str(error))
                self.receipt.aborted += 1
                refusals += 1
                if refusals >= REFUSALS_MAX:
                    self._send_dead_letters(error)
                self._start_one_by_one()
                continue
            except (TransactionAborted, NotDelivered) as error:
                self._declare(sequence, attempt, Declared.ABORTED, str(error))
                self.receipt.aborted += 1
                if self.sink.guarantee is Guarantee.AT_MOST_ONCE:
                    self._pass_on(sequence)
                    return
                continue
            except Fenced as error:
                self._declare(sequence, attempt, Declared.FENCED, str(error))
                raise
            except (OutcomeUnknown, ClientStuck, NotAllowed, InjectedError) as error:
                self._declare(sequence, attempt, Declared.UNKNOWN, str(error))
                raise
            self._declare(sequence, attempt, Declared.COMMITTED, "")
            self._step(Step.DECLARED, sequence)
            self.receipt.committed += 1
            self.receipt.inputs += self.inputs
            self._pass_on(sequence)
            return
        raise AttemptsExhausted(
            f"Transaction {sequence} of {self.where} was aborted {attempt} times, as often as the"
            f" plan allows; its {self.inputs} inputs from offset {self.next_offset} on are not in"
            " the sink."
        )

    def _open_journal(self, sequence: int) -> None:
        """Say that this task is about to write; once."""
        if self.journal is None and self.sink.journal is not None:
            self.journal = JournalWriter(self.sink.address, self.sink.journal)
            self.opened.callback(self.journal.close)
            self.journal.append_acknowledged(
                TaskStarted(self.task, self.name, *self.source, sequence, self.next_offset)
            )

    def _attempt(self, sequence: int, attempt: int) -> None:
        self._open_journal(sequence)
        if isinstance(self.producer, TransactionalProducer):
            self._transact(self.producer, sequence, attempt)
        elif self.sink.guarantee is Guarantee.AT_LEAST_ONCE:
            self._step(Step.BEGUN, sequence)
            self._produce(sequence, [])
            self.producer.flush()
            self._step(Step.PRODUCED, sequence)
            self._before_commit(sequence, attempt)
            self._commit_offset(sequence)
            self._step(Step.OFFSET_SENT, sequence)
        else:
            self._step(Step.BEGUN, sequence)
            self._commit_offset(sequence)
            self._step(Step.OFFSET_SENT, sequence)
            self._before_commit(sequence, attempt)
            self._produce(sequence, [])
            self.producer.flush()
            self._step(Step.PRODUCED, sequence)
        self._step(Step.COMMITTED, sequence)

    def _transactional(self) -> TransactionalProducer:
        sink, special = self.sink, dict(self.hooks.client_settings())
        if self.one_by_one:
            # One in flight: those behind a refused record would be out of sequence, and hide why it
            # was refused.
            special |= {"batch_num_messages": 1, "max_in_flight_requests_per_connection": 1}
        return TransactionalProducer(
            sink.address, self.name, sink.transaction_timeout_ms, **special
        )

    def _renew_if_unsure(self) -> None:
        """Close the path of late requests: see step 3 of the module's argument. Raises Fenced."""
        producer = self.producer
        if not isinstance(producer, TransactionalProducer) or not self.hooks.defended():
            return
        if producer.renew_if_unsure():
            self._require_position()

    def _require_position(self) -> None:
        """Between two producers somebody else may have held the id. Raises Fenced."""
        if self._ask_committed().offset != self.next_offset:
            raise Fenced(f"{self.name} was taken over by another producer, which went on.")

    def _start_one_by_one(self) -> None:
        """Go on with another producer whose batches hold one record each: of one that was refused a
        record the client goes on counting behind the gap, which the brokers then refuse as well.
        Raises Fenced."""
        self.producer.__exit__(None, None, None)
        self.one_by_one = True
        self.producer = self._transactional()
        self.producer.__enter__()
        self._require_position()

    def _send_dead_letters(self, error: RecordRefused) -> None:
        """Put a dead letter in the place of every input of which an output was refused. Raises
        RecordRefused when that cannot be done."""
        topic = self.sink.dead_letters
        of = ", ".join(self._place(one).decode() for one in sorted(self.refused)) or "unknown"
        if topic is None or any(one[2] == topic for one in self.buffer if one[0] in self.refused):
            remedy = (
                "Set deadLetters to a topic for such inputs"
                if topic is None
                else "It is a dead letter already"
            )
            raise RecordRefused(
                f"{error} The input is {of}. {remedy}; nothing was skipped."
            ) from error
        if not self.refused:
            raise error
        self.buffer = [one for one in self.buffer if one[0] not in self.refused]
        for one in sorted(self.refused):
            reason = (REASON_HEADER, str(error).encode())
            self.buffer.append((one, 0, topic, None, self._place(one), [reason]))
        self.refused.clear()
        self.hooks.drop_extra_value()

    def _transact(self, producer: TransactionalProducer, sequence: int, attempt: int) -> None:
        transaction = format_transaction(
            Transaction(self.name, sequence, attempt, self.task, len(self.buffer))
        )
        with producer.transaction():
            self._step(Step.BEGUN, sequence)
            self._produce(sequence, [(TRANSACTION_HEADER, transaction)])
            self._step(Step.PRODUCED, sequence)
            self._before_commit(sequence, attempt)
            producer.send_offset(self._following(sequence), self.group)
            self._step(Step.OFFSET_SENT, sequence)
            if self.hooks.is_due(Step.COMMITTING, sequence):
                producer.send_commit()
                self._step(Step.COMMITTING, sequence)

    def _produce(self, sequence: int, more: list[tuple[str, bytes]]) -> None:
        half = len(self.buffer) // 2
        try:
            self._send(self.buffer[:half], more)
            self._step(Step.PRODUCING, sequence)
            self._send(self.buffer[half:], more)
        except RecordRefused:
            # By the client itself, unless the brokers were heard to refuse one that was sent before
            # it.
            if self.one_by_one and self.producer.failed is None:
                self.refused.add(self.sending)
            # Those before it go first: aborted while its partitions are being added, a transaction
            # is unknown to the brokers, which is fatal to the client.
            self.producer.flush()
            raise
        if self.one_by_one:
            self.producer.flush()

    def _send(self, outputs: Sequence[Output], more: list[tuple[str, bytes]]) -> None:
        if self.sink.lineage == OFF:
            more = []
        if (
            self.sink.lineage == PACKED
            and not self.one_by_one
            and isinstance(self.producer, TransactionalProducer)
        ):
            self._send_packed(self.producer, outputs, more)
            return
        records = self._records(outputs, more)
        padding = self._padding(outputs, more)
        if padding:
            records = chain(islice(records, 1), padding, records)
            outputs = [outputs[0], *outputs]
        if isinstance(self.producer, TransactionalProducer) and self.one_by_one:
            # Hearing of every record has its price: it is paid once one was refused.
            for output, record in zip(outputs, records, strict=True):
                self.sending = output[0]
                self.producer.produce([record], self._hearing())
        else:
            self.producer.produce(records)

    def _send_packed(
        self,
        producer: TransactionalProducer,
        outputs: Sequence[Output],
        more: list[tuple[str, bytes]],
    ) -> None:
        """Send outputs of which the first of a pack has the lineage of all of it."""
        producer.produce(self._padding(outputs, more))
        for topic, own in by_topic(outputs):
            if topic not in self.partitions:
                self.partitions[topic] = producer.partitions(topic)
            count = self.partitions[topic]
            if count == 0:
                producer.produce(self._records(own, more))
                continue
            self.packs += 1
            # Column by column: zip(*own) takes twice as long.
            keys, values, headers = (
                [one[3] for one in own],
                [one[4] for one in own],
                [one[5] for one in own],
            )
            offsets, indices = [one[0] for one in own], [one[1] for one in own]
            partitions = partitions_of(keys, count, self.packs % count)
            for position, packed in packs_of(*self.source, offsets, indices, partitions):
                headers[position] = [*headers[position], (PACKED_HEADER, packed), *more]
            producer.produce_placed(zip(repeat(topic), keys, values, headers, partitions.tolist()))

    def _padding(self, outputs: Sequence[Output], more: list[tuple[str, bytes]]) -> list[Record]:
        """What the hooks add to the first input of a transaction."""
        if not outputs or outputs[0] is not self.buffer[0] or self.sink.topic is None:
            return []
        value = self.hooks.take_extra_value()
        return [] if value is None else [(self.sink.topic, None, value, more)]

    def _records(
        self, outputs: Iterable[Output], more: list[tuple[str, bytes]]
    ) -> Iterator[Record]:
        """What is sent for outputs, each made when it is asked for."""
        if self.sink.lineage == OFF:
            return ((topic, key, value, headers) for _, _, topic, key, value, headers in outputs)
        place = self._place
        return (
            (topic, key, value, [*headers, (LINEAGE_HEADER, b"%b/%d" % (place(one), index)), *more])
            for one, index, topic, key, value, headers in outputs
        )

    def _hearing(self) -> Delivered:
        """Hears what becomes of the record that is being produced."""
        assert isinstance(self.producer, TransactionalProducer)
        heard, sending = self.producer.heard, self.sending

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None and is_refused(error):
                self.refused.add(sending)
            heard(error, message)

        return delivered

    def _place(self, one: int) -> bytes:
        """`topic/partition/offset` of an input."""
        return b"%b%d" % (self.places_begin, one)

    @cached_property
    def group(self) -> Any:
        """Names the group to the broker. The consumer never joins it, so what it says of itself
        does not change, and another of its threads has to be woken to say it."""
        return self.consumer.consumer_group_metadata()

    @property
    def following(self) -> int:
        """The offset that follows the buffer."""
        return self.last + 1

    def _following(self, sequence: int) -> TopicPartition:
        """The source offset that follows the buffer, with the sequence for whoever takes over."""
        return TopicPartition(*self.source, self.following, metadata=str(sequence))

    def _commit_offset(self, sequence: int) -> None:
        try:
            self.consumer.commit(offsets=[self._following(sequence)], asynchronous=False)
        except KafkaException as error:
            raise NotDelivered(
                f"{self.where}: its offset was not committed: {error.args[0].str()}."
            ) from error

    def _pass_on(self, sequence: int) -> None:
        """The buffer is dealt with."""
        self.sequence = sequence
        self.next_offset = self.following
        self.buffer, self.inputs, self.weight, self.size = [], 0, 0, 0

    def _step(self, step: Step, sequence: int) -> None:
        inputs = self.next_offset, self.following
        self.hooks.reach(step, sequence, inputs, self.journal, self.producer.flush)

    def _before_commit(self, sequence: int, attempt: int) -> None:
        self.hooks.before_commit(sequence, attempt, self.producer.flush)

    def _declare(self, sequence: int, attempt: int, outcome: Declared, reason: str) -> None:
        if self.journal is None:
            return
        self.journal.append(
            TransactionEnded(
                self.task,
                self.name,
                *self.source,
                sequence,
                attempt,
                outcome,
                reason,
                self.inputs,
                len(self.buffer),
                self.following,
            )
        )
