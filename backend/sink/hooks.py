"""Hooks at each step of a transaction. The plain sinks use NoHooks.

The sinks of `backend/faults/injecting.py` have hooks that cause faults. Nothing here knows of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Protocol

from topicproof.backend.sink.entries import Entry
from topicproof.backend.sink.journal import JournalWriter
from topicproof.backend.sink.options import SinkOptions


class Step(StrEnum):
    """A step of a transaction, or its counterpart under the other guarantees."""

    BEGUN = "begun"
    PRODUCING = "producing"
    """Half of the records are in the log."""
    PRODUCED = "produced"
    """All records are in the log; nothing is committed."""
    OFFSET_SENT = "offset_sent"
    """The next source offset is in the transaction; without transactions it is committed."""
    COMMITTING = "committing"
    """The commit of the transaction was sent, but its answer was not received."""
    COMMITTED = "committed"
    """The answer to the commit was received, but the journal does not have it yet."""
    DECLARED = "declared"
    """The journal has the outcome."""


class Hooks(Protocol):
    """Hooks of one source partition within one task."""

    entries: list[Entry]
    """The journal's entries; empty if the hooks need none."""

    def prepare(self) -> None:
        """Prepare; called once, before the committed offset is read."""

    def client_settings(self) -> Mapping[str, int]:
        """Return settings that the hooks need in the transactional producer: librdkafka's names,
        with underscores for dots."""

    def defended(self) -> bool:
        """Return whether the sink defends itself against late requests (KAFKA-17754)."""

    def is_due(self, step: Step, sequence: int) -> bool:
        """Return whether the hooks want to act at this step of this transaction."""

    def reach(
        self,
        step: Step,
        sequence: int,
        inputs: tuple[int, int],
        journal: JournalWriter | None,
        flush: Callable[[], None],
    ) -> None:
        """Act on a step. `inputs` are the transaction's first offset and the one after its last;
        `flush` sends queued records."""

    def maybe_abort(self, sequence: int, attempt: int, flush: Callable[[], None]) -> None:
        """Abort this attempt, or let it go on. Called between outputs and offset, whichever the
        guarantee sends first. Raises TransactionAborted."""

    def take_extra_value(self) -> bytes | None:
        """Return the value of an extra record for the first input of this attempt, or None."""

    def drop_extra_value(self) -> None:
        """Add no more records: a dead letter replaced the input."""

    def close(self) -> None:
        """Called once, when the task ends by itself, with or without an error."""


MakeHooks = Callable[[SinkOptions, tuple[str, int], str, str], Hooks]
"""Makes a writer's hooks from the sink's options, source topic and partition, name in the journal,
and task token. Spark pickles it."""


class NoHooks:
    """Does nothing."""

    def __init__(self, sink: SinkOptions, source: tuple[str, int], name: str, task: str) -> None:  # noqa: ARG002
        self.entries: list[Entry] = []

    def prepare(self) -> None:
        pass

    def client_settings(self) -> Mapping[str, int]:
        return {}

    def defended(self) -> bool:
        return True

    def is_due(self, step: Step, sequence: int) -> bool:  # noqa: ARG002
        return False

    def reach(
        self,
        step: Step,
        sequence: int,
        inputs: tuple[int, int],
        journal: JournalWriter | None,
        flush: Callable[[], None],
    ) -> None:
        pass

    def maybe_abort(self, sequence: int, attempt: int, flush: Callable[[], None]) -> None:
        pass

    def take_extra_value(self) -> bytes | None:
        return None

    def drop_extra_value(self) -> None:
        pass

    def close(self) -> None:
        pass
