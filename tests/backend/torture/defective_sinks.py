"""Sinks with one defect in each source partition, importable by Spark's workers. The verdict must
name every one.

A defect strikes in transaction `AT` of each source partition, or in all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from confluent_kafka import Producer, TopicPartition
from pyspark.sql.types import StructType

from topicproof.backend.errors import TransactionAborted
from topicproof.backend.faults.injecting import InjectingSink
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.kafka.transaction import TransactionalProducer, enqueue
from topicproof.backend.sink.batcher import Contents
from topicproof.backend.sink.delivery.protocol import PartitionInputs, records_of
from topicproof.backend.sink.delivery.transactional import ExactlyOnce
from topicproof.backend.sink.exactly_once import KafkaTransactionalWriter
from topicproof.backend.sink.group import GroupPosition
from topicproof.backend.sink.hooks import Step
from topicproof.backend.sink.options import SinkOptions
from topicproof.backend.sink.outputs import Output
from topicproof.backend.sink.position import Position
from topicproof.backend.sink.task import SinkTask
from topicproof.backend.sink.writer import PartitionWriter
from topicproof.validators.lineage.compact import format_in_transaction
from topicproof.validators.lineage.headers import Transaction

AT = 2


class ForgetfulPosition(GroupPosition):
    """Takes every row for new, as a sink does that trusts Spark to remember."""

    def read(self) -> Position:
        super().read()
        return Position(0, 0)


class Defective(ExactlyOnce):
    """The healthy delivery, step by step, for the defects to change."""

    def attempt(self, contents: Contents, attempt: int) -> None:
        with self.producer.transaction():
            self.send_all(contents, self.headers(contents, attempt))
            self.task.hooks.maybe_abort(contents.sequence, attempt, self.flush)
            self.send_offset(contents)

    def headers(self, contents: Contents, attempt: int) -> bytes:
        name = Transaction(
            *(self.task.name, contents.sequence, attempt, self.task.token, len(contents.outputs))
        )
        return format_in_transaction(name)

    def send_all(self, contents: Contents, headers: bytes) -> None:
        self.task.step(Step.BEGUN, contents, self.flush)
        self._produce(contents, headers)
        self.task.step(Step.PRODUCED, contents, self.flush)

    def send_offset(self, contents: Contents) -> None:
        self.producer.send_offset(self.group.following(contents), self.group.metadata)
        self.task.step(Step.OFFSET_SENT, contents, self.flush)


class WithoutFence(Defective):
    """Each task has a transactional id of its own, so that no zombie is fenced."""

    def _new_producer(self) -> TransactionalProducer:
        sink, name = self.task.sink, f"{self.task.name}-{self.task.token}"
        return TransactionalProducer(sink.address, name, sink.delivery.transaction_timeout_ms)


class OffsetFirst(Defective):
    """The offset has a transaction of its own, before that of the records."""

    def attempt(self, contents: Contents, attempt: int) -> None:
        with self.producer.transaction():
            self.producer.send_offset(self.group.following(contents), self.group.metadata)
        with self.producer.transaction():
            self.send_all(contents, self.headers(contents, attempt))


class OffsetAfterwards(Defective):
    """The offset is committed when the transaction is over."""

    def attempt(self, contents: Contents, attempt: int) -> None:
        with self.producer.transaction():
            self.send_all(contents, self.headers(contents, attempt))
        self.task.step(Step.OFFSET_SENT, contents, self.flush)
        self.group.commit(contents)


class WithoutOffset(Defective):
    """The offset is never committed."""

    def send_offset(self, contents: Contents) -> None:
        pass


class OffsetTooFar(Defective):
    """The offset is one too high."""

    def send_offset(self, contents: Contents) -> None:
        topic, partition = self.task.source
        beyond = TopicPartition(
            topic, partition, contents.following + 1, metadata=contents.metadata
        )
        self.producer.send_offset(beyond, self.group.metadata)


class Rewritten(Defective, ABC):
    """Other outputs than those that were asked for."""

    def attempt(self, contents: Contents, attempt: int) -> None:
        if contents.sequence == AT:
            contents = replace(contents, outputs=self.rewrite(contents.outputs))
        super().attempt(contents, attempt)

    @abstractmethod
    def rewrite(self, outputs: Sequence[Output]) -> Sequence[Output]:
        """The outputs that are sent instead."""


class Drops(Rewritten):
    """A record is left out."""

    def rewrite(self, outputs: Sequence[Output]) -> Sequence[Output]:
        return outputs[1:]


class Repeats(Rewritten):
    """A record is sent twice."""

    def rewrite(self, outputs: Sequence[Output]) -> Sequence[Output]:
        return [*outputs, outputs[-1]]


class Swaps(Rewritten):
    """The first record is sent last."""

    def rewrite(self, outputs: Sequence[Output]) -> Sequence[Output]:
        return [*outputs[1:], outputs[0]]


class Misnames(Rewritten):
    """The lineage of a record names the next input."""

    def rewrite(self, outputs: Sequence[Output]) -> Sequence[Output]:
        offset, *rest = outputs[0]
        return [(offset + 1, *rest), *outputs[1:]]  # type: ignore[list-item]


class Short(Defective):
    """A transaction commits fewer records than its headers say."""

    def send_all(self, contents: Contents, headers: bytes) -> None:
        if contents.sequence == AT:
            contents = replace(contents, outputs=contents.outputs[:-1])
        super().send_all(contents, headers)


class Splits(Defective):
    """The records of one name are committed in two transactions."""

    def attempt(self, contents: Contents, attempt: int) -> None:
        half, headers = len(contents.outputs) // 2, self.headers(contents, attempt)
        if contents.sequence == AT:
            with self.producer.transaction():
                self.send_all(replace(contents, outputs=contents.outputs[:half]), headers)
            contents = replace(contents, outputs=contents.outputs[half:])
        with self.producer.transaction():
            self.send_all(contents, headers)
            self.send_offset(contents)


class HidesAbort(Defective):
    """A transaction is aborted, and counted as committed."""

    def attempt(self, contents: Contents, attempt: int) -> None:
        if contents.sequence != AT:
            super().attempt(contents, attempt)
            return
        try:
            with self.producer.transaction():
                self.send_all(contents, self.headers(contents, attempt))
                self.flush()
                raise TransactionAborted("nobody is told")
        except TransactionAborted:
            self.group.commit(contents)


class CommitsAborted(Defective):
    """A transaction is committed, counted as aborted, and tried again."""

    def attempt(self, contents: Contents, attempt: int) -> None:
        if contents.sequence != AT or attempt > 1:
            super().attempt(contents, attempt)
            return
        with self.producer.transaction():
            self.send_all(contents, self.headers(contents, attempt))
        raise TransactionAborted("it is committed all the same")


class Outside(Defective):
    """The last record of a transaction is written outside of it, by another producer."""

    def send_all(self, contents: Contents, headers: bytes) -> None:
        if contents.sequence == AT:
            plain = Producer(idempotent_producer_config(self.task.sink.address))
            last = records_of(self.task, self.inputs, contents.outputs[-1:], headers)
            enqueue(plain, last)
            plain.flush()
            contents = replace(contents, outputs=contents.outputs[:-1])
        super().send_all(contents, headers)


class Defect(NamedTuple):
    """What a source partition is written with."""

    delivery: type[Defective] = Defective
    position: type[GroupPosition] = GroupPosition


QUIET = {
    "no defect": Defect(),
    "it commits no offset": Defect(WithoutOffset),
    "its offset is one too high": Defect(OffsetTooFar),
    "it drops a record": Defect(Drops),
    "it repeats a record": Defect(Repeats),
    "it swaps records": Defect(Swaps),
    "it names the wrong input": Defect(Misnames),
    "it commits too few records": Defect(Short),
    "it splits a transaction": Defect(Splits),
    "it hides an abort": Defect(HidesAbort),
    "it commits what it calls aborted": Defect(CommitsAborted),
    "it writes a record outside": Defect(Outside),
}
"""Those that show in a run without troubles."""
CRASHED = {
    "no defect": Defect(),
    "it trusts Spark to remember": Defect(position=ForgetfulPosition),
    "it commits the offset first": Defect(OffsetFirst),
    "it commits the offset afterwards": Defect(OffsetAfterwards),
}
"""Those that show when workers die."""
PAUSED = {"no defect": Defect(), "it skips its fence": Defect(WithoutFence)}
"""The one that shows when a worker pauses until its successor has begun."""


class DefectiveWriter(KafkaTransactionalWriter):
    defects: Sequence[Defect] = ()

    def _writer(self, source: tuple[str, int]) -> PartitionWriter:
        defect = self.defects[source[1]]
        task = SinkTask(self.sink, self.hooks, *source)
        position = defect.position(task)
        delivery = defect.delivery(task, position, PartitionInputs(task))
        return PartitionWriter(task, position, delivery)


class DefectiveSink(InjectingSink):
    """The sink of the run, in which each source partition has the defect with its number."""

    defects: Sequence[Defect]

    def streamWriter(self, schema: StructType, overwrite: bool) -> DefectiveWriter:  # noqa: ARG002
        writer = DefectiveWriter(SinkOptions.parse(self.sink_options()), self.hooks())
        writer.defects = self.defects
        return writer


class QuietSink(DefectiveSink):
    defects = tuple(QUIET.values())


class CrashedSink(DefectiveSink):
    defects = tuple(CRASHED.values())


class PausedSink(DefectiveSink):
    defects = tuple(PAUSED.values())
