"""How a transaction reaches the sink. Each guarantee has a module, and databases have one."""

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
        """Take over the source partition."""

    def close(self) -> None:
        """Close it, even if `open` has failed."""

    def prepare(self, contents: Contents) -> None:
        """Prepare an attempt; called before each one. Raises Fenced."""

    def attempt(self, contents: Contents, attempt: int) -> None:
        """Deliver the outputs and the offset. Raises TransactionAborted or NotDelivered if this
        attempt failed, another SinkError if the task must end."""

    def after_failure(self, contents: Contents, error: SinkError) -> Contents | None:
        """Return what to try next; None gives these inputs up. Raises SinkError to end the task."""

    def flush(self) -> None:
        """Send everything in the queue."""


def padding(
    task: SinkTask, contents: Contents, outputs: Sequence[Output], more: Headers
) -> list[Record]:
    """Return the record that the hooks add to the first input of a transaction, if `outputs` begin
    with that input."""
    if not outputs or outputs[0] is not contents.outputs[0] or task.sink.topic is None:
        return []
    value = task.hooks.take_extra_value()
    return [] if value is None else [(task.sink.topic, None, value, more)]
