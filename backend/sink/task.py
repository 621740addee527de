"""One source partition within one Spark task: its names, and its reports to the hooks and the
journal."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from topicproof.backend.sink.batcher import Contents
from topicproof.backend.sink.entries import Declared, TaskStarted, TransactionEnded
from topicproof.backend.sink.hooks import MakeHooks, Step
from topicproof.backend.sink.journal import JournalWriter
from topicproof.backend.sink.options import SinkOptions


class SinkTask:
    def __init__(self, sink: SinkOptions, hooks: MakeHooks, topic: str, partition: int) -> None:
        self.sink = sink
        self.source = (topic, partition)
        self.where = f"{topic}-{partition}"
        self.name = f"{sink.prefix}-{topic}-{partition}"
        """The transactional id. The journal also uses this name when there are no transactions."""
        self.token = uuid.uuid4().hex[:8]
        self.hooks = hooks(sink, self.source, self.name, self.token)
        self.journal: JournalWriter | None = None

    def open_journal(self, contents: Contents) -> None:
        """Declare before the first transaction that this task is about to write."""
        if self.journal is None and self.sink.journal is not None:
            self.journal = JournalWriter(self.sink.address, self.sink.journal)
            self.journal.append_acknowledged(
                TaskStarted(self.token, self.name, *self.source, contents.sequence, contents.first)
            )

    def declare(self, contents: Contents, attempt: int, outcome: Declared, reason: str) -> None:
        if self.journal is None:
            return
        self.journal.append(
            TransactionEnded(
                self.token,
                self.name,
                *self.source,
                contents.sequence,
                attempt,
                outcome,
                reason,
                contents.inputs,
                len(contents.outputs),
                contents.following,
            )
        )

    def step(self, step: Step, contents: Contents, flush: Callable[[], None]) -> None:
        inputs = contents.first, contents.following
        self.hooks.reach(step, contents.sequence, inputs, self.journal, flush)

    def flush(self) -> None:
        """Wait until the journal holds every entry. Raises ClusterError."""
        if self.journal is not None:
            self.journal.flush()

    def close(self) -> None:
        if self.journal is not None:
            self.journal.close()
        self.hooks.close()
