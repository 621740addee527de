"""How a transaction reaches the sink: one module for each guarantee, and one for databases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from topicproof.backend.errors import SinkError
from topicproof.backend.kafka.transaction import Record
from topicproof.backend.sink.batcher import Contents
from topicproof.backend.sink.lineage import Headers
from topicproof.backend.sink.outputs import Output
from topicproof.backend.sink.task import SinkTask


class Delivery(Protocol):
    def open(self) -> None:
        """Take the source partition over."""

    def close(self) -> None:
        """Also called when `open` has failed."""

    def prepare(self, contents: Contents) -> None:
        """Called before every attempt. Raises Fenced."""

    def attempt(self, contents: Contents, attempt: int) -> None:
        """Deliver the outputs and the offset. Raises TransactionAborted or NotDelivered if this
        attempt failed, and another SinkError if the task must end."""

    def after_failure(self, contents: Contents, error: SinkError) -> Contents | None:
        """What to try next; None to give these inputs up. Raises SinkError to end the task."""

    def flush(self) -> None:
        """Send everything that is queued."""


def padding(
    task: SinkTask, contents: Contents, outputs: Sequence[Output], more: Headers
) -> list[Record]:
    """The record that the hooks add to the first input of a transaction, if `outputs` begin with
    that input."""
    if not outputs or outputs[0] is not contents.outputs[0] or task.sink.topic is None:
        return []
    value = task.hooks.take_extra_value()
    return [] if value is None else [(task.sink.topic, None, value, more)]
