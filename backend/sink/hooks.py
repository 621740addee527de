"""Where somebody else may act in a transaction of a sink: at each of its steps. In a sink as it is,
nobody does.

`backend/faults/injecting.py` brings sinks whose hooks strike on purpose. Nothing here knows of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Protocol

from topicproof.backend.sink.journal import Entry, JournalWriter
from topicproof.backend.sink.options import SinkOptions


class Step(StrEnum):
    """Where a worker stands in a transaction, or in what stands for one under the other
    guarantees."""

    BEGUN = "begun"
    PRODUCING = "producing"
    """Half of the records are in the log."""
    PRODUCED = "produced"
    """All records are in the log; nothing is committed."""
    OFFSET_SENT = "offset_sent"
    """The next source offset is part of the transaction; without transactions it is committed."""
    COMMITTING = "committing"
    """The commit of the transaction has been sent, and its answer not received."""
    COMMITTED = "committed"
    """The answer to the commit was received; nobody has been told yet."""
    DECLARED = "declared"
    """The journal says what became of it."""


class Hooks(Protocol):
    """What acts in one source partition within one task."""

    entries: list[Entry]
    """What is known of the journal; empty where the hooks did not need to read it."""

    def prepare(self) -> None:
        """Called once, before the committed offset is read."""

    def client_settings(self) -> Mapping[str, int]:
        """Settings of the transactional producer that the hooks need, in librdkafka's names with
        underscores."""

    def defended(self) -> bool:
        """Whether the sink defends itself against requests that arrive late (KAFKA-17754)."""

    def is_due(self, step: Step, sequence: int) -> bool:
        """Whether the hooks want to act at this step of this transaction."""

    def reach(
        self,
        step: Step,
        sequence: int,
        inputs: tuple[int, int],
        journal: JournalWriter | None,
        flush: Callable[[], None],
    ) -> None:
        """A step was reached. `inputs` of the transaction are from the first offset to below the
        second; `flush` sends what is queued."""

    def before_commit(self, sequence: int, attempt: int, flush: Callable[[], None]) -> None:
        """The outputs are sent. Raises TransactionAborted to abort this attempt."""

    def take_extra_value(self) -> bytes | None:
        """The value of one more record for the first input of this attempt; None for no such
        record."""

    def drop_extra_value(self) -> None:
        """The input was replaced by a dead letter: there are no more such records."""


MakeHooks = Callable[[SinkOptions, tuple[str, int], str, str], Hooks]
"""Makes the hooks of a writer: from the sink's options, its source topic and partition, the name by
which the journal knows it, and the token of its task. Spark pickles it."""


class NoHooks:
    """Nobody acts."""

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

    def before_commit(self, sequence: int, attempt: int, flush: Callable[[], None]) -> None:
        pass

    def take_extra_value(self) -> bytes | None:
        return None

    def drop_extra_value(self) -> None:
        pass
