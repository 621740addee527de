"""A Spark task's work on its rows: take over the source partition, then commit transaction by
transaction."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from topicproof.backend.errors import (
    AttemptsExhausted,
    ClientStuck,
    Fenced,
    InjectedError,
    NotAllowed,
    NotDelivered,
    OutcomeUnknown,
    SourceGap,
    TransactionAborted,
)
from topicproof.backend.sink.batcher import Batcher, Contents
from topicproof.backend.sink.delivery.protocol import Delivery, Inputs, PartitionInputs
from topicproof.backend.sink.delivery.transactional import ExactlyOnce
from topicproof.backend.sink.delivery.without_transactions import AtLeastOnce, AtMostOnce
from topicproof.backend.sink.entries import Declared, aborts, last_attempt
from topicproof.backend.sink.group import GroupPosition
from topicproof.backend.sink.hooks import MakeHooks, Step
from topicproof.backend.sink.options import SinkOptions
from topicproof.backend.sink.outputs import outputs_of
from topicproof.backend.sink.position import Position
from topicproof.backend.sink.task import SinkTask
from topicproof.validators.finding import Guarantee

DELIVERIES: dict[Guarantee, Callable[[SinkTask, GroupPosition, Inputs], Delivery]] = {
    Guarantee.EXACTLY_ONCE: ExactlyOnce,
    Guarantee.AT_LEAST_ONCE: AtLeastOnce,
    Guarantee.AT_MOST_ONCE: AtMostOnce,
}


@dataclass
class Receipt(WriterCommitMessage):
    """The result of one task. `source` is None for a task that got no rows."""

    source: tuple[str, int] | None
    inputs: int
    skipped: int
    committed: int
    """Transactions."""
    aborted: int


class TransactionWriter:
    """Commits transactions of one source partition within one Spark task."""

    def __init__(
        self, task: SinkTask, group: GroupPosition, delivery: Delivery, receipt: Receipt
    ) -> None:
        self.task, self.group, self.delivery, self.receipt = task, group, delivery, receipt
        self.opened = ExitStack()
        self.position = Position(0, 0)
        """The group's position when this task took over the source partition."""

    def __enter__(self) -> Self:
        """Take over the source partition: fence, then ask what is committed."""
        with ExitStack() as stack:
            stack.callback(self.group.close)
            stack.callback(self.delivery.close)
            stack.callback(self.task.close)
            # In this order. An offset that is read before the fence may be outdated at once: the
            # earlier holder of the transactional id could still commit.
            self.delivery.open()
            self.task.hooks.prepare()
            self.position = self.group.read()
            self.opened = stack.pop_all()
        return self

    def __exit__(self, *_raised: object) -> None:
        self.opened.close()

    def commit(self, contents: Contents) -> None:
        """Commit one transaction; retry a failed attempt as often as allowed."""
        task = self.task
        place = (*task.source, contents.sequence)
        # With the journal's entries, a task counts on where the one before it stopped: the limit is
        # for all of them, and no two attempts have the same number.
        attempt = last_attempt(task.hooks.entries, *place)
        aborted = aborts(task.hooks.entries, *place)
        while aborted < task.sink.delivery.attempts_max:
            attempt += 1
            self.delivery.prepare(contents)
            try:
                # Before the first record, so that the journal knows of a task that is killed.
                task.open_journal(contents)
                self.delivery.attempt(contents, attempt)
                task.step(Step.COMMITTED, contents, self.delivery.flush)
            except (TransactionAborted, NotDelivered) as error:
                # The attempt is over. The delivery decides whether there is anything to try again.
                task.declare(contents, attempt, Declared.ABORTED, str(error))
                self.receipt.aborted += 1
                aborted += 1
                remaining = self.delivery.after_failure(contents, error)
                if remaining is None:
                    return
                contents = remaining
                continue
            except Fenced as error:
                # Another producer has the id and goes on. Trying again would fence that one.
                task.declare(contents, attempt, Declared.FENCED, str(error))
                raise
            except (OutcomeUnknown, ClientStuck, NotAllowed, InjectedError) as error:
                # It may be committed. The next task finds out: it fences, then reads the offset.
                task.declare(contents, attempt, Declared.UNKNOWN, str(error))
                raise
            # Only after the broker's answer: the journal is a witness of what was committed.
            task.declare(contents, attempt, Declared.COMMITTED, "")
            task.step(Step.DECLARED, contents, self.delivery.flush)
            self.receipt.committed += 1
            self.receipt.inputs += contents.inputs
            return
        raise AttemptsExhausted(
            f"Transaction {contents.sequence} of {task.where} was aborted"
            f" {task.sink.delivery.attempts_max} times, as often"
            f" as the plan allows; its {contents.inputs} inputs from offset {contents.first} on are"
            " not in the sink."
        )


class PartitionWriter(TransactionWriter):
    """Accepts the rows of one source partition, in rising order."""

    def __init__(self, task: SinkTask, group: GroupPosition, delivery: Delivery) -> None:
        super().__init__(task, group, delivery, Receipt(task.source, 0, 0, 0, 0))

    def __enter__(self) -> Self:
        super().__enter__()
        self.batcher = Batcher(self.task.sink, self.task.where, self.position)
        return self

    def accept(self, batch: pa.RecordBatch) -> None:
        """Skip committed rows, and commit every full transaction."""
        offsets = batch.column("offset").to_numpy()
        # Rows below the group's offset are in the sink already: Spark replays a batch, or a task.
        first_new = int(np.searchsorted(offsets, self.batcher.position.offset))
        if first_new > 0 and self.receipt.skipped == 0:
            # Or somebody has moved the offset forward, and they were never processed.
            self.group.is_moved(self.batcher.position)
        self.receipt.skipped += first_new
        for first, row in self.batcher.holes(offsets[first_new:]):
            self._confirm_hole(first, row)
        new = outputs_of(batch.slice(first_new), self.task.sink.topic)
        for contents in self.batcher.take(offsets[first_new:], new):
            self.commit(contents)

    def finish(self) -> Receipt:
        if self.batcher.inputs:
            self.commit(self.batcher.cut())
        self.task.flush()
        return self.receipt

    def _confirm_hole(self, first: int, row: int) -> None:
        try:
            self.group.confirm_hole(first, row)
        except SourceGap:
            # Before a task's first transaction the group's offset may have been moved back.
            position = self.batcher.position
            begins = first == position.offset and not self.receipt.committed
            if not (begins and self.group.is_moved(position)):
                raise


def delivery_of(task: SinkTask, group: GroupPosition, inputs: Inputs) -> Delivery:
    """Return the delivery into Kafka for the sink's guarantee."""
    return DELIVERIES[task.sink.guarantee](task, group, inputs)


def partition_writer(
    sink: SinkOptions, hooks: MakeHooks, topic: str, partition: int
) -> PartitionWriter:
    task = SinkTask(sink, hooks, topic, partition)
    group = GroupPosition(task)
    return PartitionWriter(task, group, delivery_of(task, group, PartitionInputs(task)))
