"""At-least-once and at-most-once: a producer outside any transaction.

- At-least-once: produce, then commit the offset. Work that dies between the two is produced again.
- At-most-once: commit the offset, then produce. Work that dies between the two is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice

from topicproof.backend.errors import SinkError
from topicproof.backend.kafka.plain_producer import PlainProducer
from topicproof.backend.sink.batcher import Contents
from topicproof.backend.sink.delivery.protocol import Inputs, padding, records_of
from topicproof.backend.sink.group import GroupPosition
from topicproof.backend.sink.hooks import Step
from topicproof.backend.sink.outputs import Output
from topicproof.backend.sink.task import SinkTask


class PlainDelivery:
    def __init__(self, task: SinkTask, group: GroupPosition, inputs: Inputs) -> None:
        self.task, self.group, self.inputs = task, group, inputs
        sink = task.sink
        self.producer = PlainProducer(
            sink.address, sink.delivery.idempotence, sink.delivery.acks, **sink.client_settings
        )
        self.flush = self.producer.flush

    def open(self) -> None:
        self.producer.__enter__()

    def close(self) -> None:
        self.producer.__exit__(None, None, None)

    def prepare(self, contents: Contents) -> None:
        """Do nothing: nothing fences here."""

    def _produce(self, contents: Contents) -> None:
        """Produce all outputs and wait for their acknowledgements. Raises NotDelivered."""
        half = len(contents.outputs) // 2
        self._send(contents, contents.outputs[:half])
        self.task.step(Step.PRODUCING, contents, self.flush)
        self._send(contents, contents.outputs[half:])
        self.producer.flush()
        self.task.step(Step.PRODUCED, contents, self.flush)

    def _send(self, contents: Contents, outputs: Sequence[Output]) -> None:
        records = records_of(self.task, self.inputs, outputs)
        extra = padding(self.task, contents, outputs)
        self.producer.produce(chain(islice(records, 1), extra, records))

    def _commit_offset(self, contents: Contents) -> None:
        self.group.commit(contents)
        self.task.step(Step.OFFSET_SENT, contents, self.flush)


class AtLeastOnce(PlainDelivery):
    def attempt(self, contents: Contents, attempt: int) -> None:
        self.task.step(Step.BEGUN, contents, self.flush)
        self._produce(contents)
        self.task.hooks.maybe_abort(contents.sequence, attempt, self.flush)
        self._commit_offset(contents)

    def after_failure(self, contents: Contents, error: SinkError) -> Contents:  # noqa: ARG002
        return contents


class AtMostOnce(PlainDelivery):
    def attempt(self, contents: Contents, attempt: int) -> None:
        self.task.step(Step.BEGUN, contents, self.flush)
        self._commit_offset(contents)
        self.task.hooks.maybe_abort(contents.sequence, attempt, self.flush)
        self._produce(contents)

    def after_failure(self, contents: Contents, error: SinkError) -> None:
        """Retry nothing: the offset may be committed already."""
