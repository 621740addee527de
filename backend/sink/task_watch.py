"""In real time: tells a query's starter at once that one of its tasks has failed.

Spark only listens to a worker when it has a row for it, or at the end of the batch. By then the
batch's time is over, so the next attempt gets no row and succeeds: Spark repeats the batch forever,
and never fails the query. So tasks report failures to the journal, and whoever has started the
query reads it there.

A killed worker reports nothing. So each task has a watcher, a shell that waits at a pipe. The
kernel closes the pipe however the worker ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.sql.streaming.query import StreamingQuery

from topicproof.backend import errors
from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, SparkError, TopicproofError
from topicproof.backend.interpreter import ROOT, python_environment
from topicproof.backend.sink.entries import TaskFailed
from topicproof.backend.sink.journal import JournalReader, append_to_journal
from topicproof.backend.sink.options import SinkOptions

LOOK_S = 0.2
"""Seconds between looks at the journal."""

_WATCHER = """
read -r told
read -r ended || printf "%s" "$told" | "$0" -P -m topicproof.backend.sink.task_watch
"""
"""A shell is much smaller than a Python process. What it is told may hold a password, so that goes
through pipes, which other users cannot read."""


@contextmanager
def watched(sink: SinkOptions, where: str) -> Iterator[None]:
    """Report to the journal if this process is killed before the block ends."""
    if sink.journal is None:
        yield
        return
    killed = TaskFailed(
        sink.generation,
        SparkError.__name__,
        f"The worker of {where} was killed. Look for the reason in the logs of its machine.",
    )
    message = {
        "bootstrap": sink.bootstrap,
        "client": dict(sink.client),
        "journal": sink.journal,
        "failed": [killed.generation, killed.error, killed.reason],
    }
    watcher = subprocess.Popen(
        ["/bin/sh", "-c", _WATCHER, sys.executable],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
        cwd=ROOT,
        env=python_environment(),
    )
    with watcher:
        assert watcher.stdin is not None
        print(json.dumps(message), file=watcher.stdin, flush=True)
        try:
            yield
        finally:
            with suppress(BrokenPipeError):  # Somebody has killed the watcher.
                print("ended", file=watcher.stdin, flush=True)


def report(sink: SinkOptions, error: BaseException) -> None:
    """Report this task's error to the journal, if there is one."""
    if sink.journal is None:
        return
    # The text of an unknown error could hold a part of a record.
    is_ours = isinstance(error, TopicproofError)
    reason = str(error) if is_ours else "Its text is in the log of Spark's worker."
    # Without the journal, Spark reports the error later.
    with suppress(ClusterError):
        append_to_journal(
            sink.address, sink.journal, TaskFailed(sink.generation, type(error).__name__, reason)
        )


def error_named(name: str, reason: str) -> TopicproofError | None:
    """Return a project's error by its name; None for any other name."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, TopicproofError):
        return kind(reason)
    return None


class FailedTasks:
    """Failures that the tasks of one start of a query report. Made before the query starts."""

    def __init__(self, address: Address, journal: str, generation: int) -> None:
        self.journal = JournalReader(address, journal, tail=0)
        self.generation = generation
        self.first()

    def first(self) -> TopicproofError | None:
        """Return the error of the first task that has failed since the last call. Raises
        ClusterError."""
        for entry in self.journal.news():
            # Late workers of earlier starts fail as they should.
            if isinstance(entry, TaskFailed) and entry.generation == self.generation:
                return error_named(entry.error, entry.reason) or SparkError(
                    f"The Spark query failed in a Python worker: {entry.error}. {entry.reason}"
                )
        return None

    def close(self) -> None:
        self.journal.close()


class RealTimeQuery:
    """A started query. With the option `journal` it ends when one of its tasks has failed."""

    def __init__(self, query: StreamingQuery, failed: FailedTasks | None) -> None:
        self.query = query
        """Spark's own."""
        self.failed = failed

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """Wait until the query has ended, or for `timeout` seconds. Returns whether it has ended.

        Raises the error of a task that has failed, after stopping the query; also whatever Spark's
        own `awaitTermination` raises.
        """
        ends_at = None if timeout is None else time.monotonic() + timeout
        while True:
            left = LOOK_S if ends_at is None else ends_at - time.monotonic()
            # PySpark's stubs want whole seconds, and Spark more than none.
            if self.query.awaitTermination(max(0.01, min(LOOK_S, left))):  # type: ignore[arg-type]
                self._close()
                return True
            error = self._failure()
            if error is not None:
                self.stop()
                raise error
            if left <= LOOK_S and ends_at is not None:
                return False

    def stop(self) -> None:
        """Stop the query."""
        self._close()
        self.query.stop()

    def _failure(self) -> TopicproofError | None:
        # Brokers that do not answer are no reason to end a query: its workers are more patient.
        with suppress(ClusterError):
            return self.failed.first() if self.failed is not None else None
        return None

    def _close(self) -> None:
        if self.failed is not None:
            self.failed.close()
        self.failed = None


def _report_killed() -> None:
    message = json.load(sys.stdin)
    address = Address(message["bootstrap"], message["client"])
    append_to_journal(address, message["journal"], TaskFailed(*message["failed"]))


if __name__ == "__main__":
    _report_killed()
