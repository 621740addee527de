"""The consumer group's offset of one source partition, and its fencing: steps 1 and 2 of
backend/sink/exactly_once.py."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property
from typing import Any

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from topicproof.backend.errors import Fenced, NotDelivered, OffsetMissing, SinkError, SourceGap
from topicproof.backend.kafka.client_configs import READ_COMMITTED, REQUEST_TIMEOUT_MS, fetch_limits
from topicproof.backend.kafka.consumers import record_consumer
from topicproof.backend.sink.batcher import Contents
from topicproof.backend.sink.journal import read_journal
from topicproof.backend.sink.outputs import REMEDY_SHUFFLED
from topicproof.backend.sink.position import (
    Position,
    agree,
    generation_partition,
    journalled,
    moved,
)
from topicproof.backend.sink.task import SinkTask

JOURNAL_TAIL = 5_000
"""A writer looks for its own last entry in this many entries at the journal's end."""
TIMEOUT_S = REQUEST_TIMEOUT_MS / 1000
HOLE_LIMITS = fetch_limits(2**16)
"""A worker measures nothing, as it has no kafka-python. It looks at one record that Spark has read,
so it fetches little, and nothing ahead."""


class GroupPosition:
    """The group's committed offset of one source partition."""

    def __init__(self, task: SinkTask) -> None:
        self.task = task
        self._opened = ExitStack()
        self.consumer = self._consumer(READ_COMMITTED)

    def read(self) -> Position:
        """Return the position to continue from. Raises OffsetMissing, OffsetsMoved, Fenced and
        SinkError."""
        try:
            answer = self.committed()
        except OffsetMissing:
            if not self.task.sink.delivery.offsets_forced or self.recorded is None:
                raise
            return self.recorded
        text = answer.metadata or ""
        position = Position(int(text) if text.isdecimal() else 0, answer.offset)
        if position.sequence > 0 and not self.task.hooks.entries:
            # The sink itself committed this offset. Reading the journal would cost each task time.
            return position
        self.is_moved(position)
        # No sequence is used twice, even if the offset was set by other means.
        used = self.recorded.sequence if self.recorded else 0
        return Position(max(position.sequence, used), position.offset)

    def committed(self) -> TopicPartition:
        """Return the group's committed offset and its metadata. Raises Fenced if the query has a
        later generation, OffsetMissing and SinkError."""
        sink, where = self.task.sink, self.task.where
        partitions = [TopicPartition(*self.task.source)]
        # The generation comes with the offset: a task of an earlier start must not go on from it.
        if sink.generation and sink.journal is not None:
            partitions.append(generation_partition(sink.journal))
        answer, *generations = self.consumer.committed(partitions, timeout=TIMEOUT_S)
        if answer.error is not None:
            raise SinkError(f"The offset of group {sink.group} for {where}: {answer.error.str()}.")
        if any(generation.offset > sink.generation for generation in generations):
            raise earlier_generation(self.task)
        if answer.offset == OFFSET_INVALID:
            raise OffsetMissing(
                f"Group {sink.group} has no committed offset for {where}: it was deleted or has"
                " expired, so it is unknown what was processed. Start a new run into an empty sink"
                " topic."
            )
        return answer

    def require(self, offset: int) -> None:
        """Require that the group's offset is still `offset`. Another producer may have held the
        transactional id meanwhile. Raises Fenced if it has committed."""
        if self.committed().offset != offset:
            raise Fenced(
                f"{self.task.name} was taken over by another producer, which has continued."
            )

    def commit(self, contents: Contents) -> None:
        """Commit outside a transaction. Raises NotDelivered."""
        try:
            self.consumer.commit(offsets=[self.following(contents)], asynchronous=False)
        except KafkaException as error:
            raise NotDelivered(
                f"{self.task.where}: its offset was not committed: {error.args[0].str()}."
            ) from error

    def following(self, contents: Contents) -> TopicPartition:
        return TopicPartition(*self.task.source, contents.following, metadata=contents.metadata)

    @cached_property
    def metadata(self) -> Any:
        """The group's name for the broker. Cached: the consumer never joins the group, so it never
        changes, and each lookup wakes a client thread."""
        return self.consumer.consumer_group_metadata()

    @cached_property
    def recorded(self) -> Position | None:
        """The position in the journal; None without a journal."""
        sink = self.task.sink
        if sink.journal is None:
            return None
        return journalled(
            self.task.hooks.entries
            or read_journal(sink.address, sink.journal, JOURNAL_TAIL, on_worker=True),
            self.task.name,
        )

    def is_moved(self, position: Position) -> bool:
        """Return whether the group's offset disagrees with the journal. Raises OffsetsMoved unless
        offsetsForced is set."""
        if self.recorded is None or agree(position, self.recorded):
            return False
        if not self.task.sink.delivery.offsets_forced:
            raise moved(self.task.sink.group, self.task.where, position.offset, self.recorded)
        return True

    def confirm_hole(self, first: int, row: int) -> None:
        """Fetch from `first`, at the isolation level of the rows: the result must be exactly `row`.

        Raises SourceGap.
        """
        where = self.task.where
        self._reader.assign([TopicPartition(*self.task.source, first)])
        message = self._reader.poll(TIMEOUT_S)
        error = message.error() if message is not None else None
        if error is not None and error.code() in {
            KafkaError._AUTO_OFFSET_RESET,
            KafkaError.OFFSET_OUT_OF_RANGE,
        }:
            raise SourceGap(
                f"{where}: offset {first} is next, but the source was trimmed past it, so those"
                " records are lost. Start a new run from what is left."
            )
        if message is None:
            content = "nothing"
        elif error is not None:
            content = error.str()
        elif message.offset() == row:
            return
        else:
            content = f"offset {message.offset()}"
        raise SourceGap(
            f"{where}: offset {first} is next, a {self.task.sink.source_isolation} consumer finds"
            f" {content} there, but the row that arrived has offset {row}. {REMEDY_SHUFFLED}"
        )

    @cached_property
    def _reader(self) -> Consumer:
        """A reader of the source at the isolation level of the rows. The group's offsets are always
        read at read_committed."""
        isolation = self.task.sink.source_isolation
        return self.consumer if isolation == READ_COMMITTED else self._consumer(isolation)

    def _consumer(self, isolation: str) -> Consumer:
        sink = self.task.sink
        consumer = record_consumer(sink.address, isolation, HOLE_LIMITS, sink.group)
        self._opened.callback(consumer.close)
        return consumer

    def close(self) -> None:
        self._opened.close()


def earlier_generation(task: SinkTask) -> Fenced:
    return Fenced(
        f"{task.name} is a worker of a query that was stopped or restarted in the meantime."
    )
