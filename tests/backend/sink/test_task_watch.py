"""Failures of tasks in real time reach whoever has started the query, without Spark's help."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql.streaming.query import StreamingQuery

from tests.backend.sink.test_real_time import options, row
from tests.conftest import wait_until
from topicproof.backend.address import Address
from topicproof.backend.errors import OffsetMissing, SparkError, TopicproofError
from topicproof.backend.sink.entries import TaskFailed
from topicproof.backend.sink.hooks import NoHooks
from topicproof.backend.sink.journal import append_to_journal, read_journal
from topicproof.backend.sink.real_time import write
from topicproof.backend.sink.task_watch import FailedTasks, RealTimeQuery, report, watched

WORKER = """
import os, signal, sys
from tests.backend.sink.test_real_time import options
from topicproof.backend.sink.task_watch import watched

with watched(options(*sys.argv[1:], generation="2"), "source-0"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def first(failed: FailedTasks) -> TopicproofError:
    """The next failure, once it is in the journal."""
    found: list[TopicproofError | None] = []

    def looked() -> bool:
        found.append(failed.first())
        return found[-1] is not None

    wait_until(looked, 60, "the report of a failure")
    error = found[-1]
    assert error is not None
    return error


def test_a_killed_worker_is_reported(bootstrap: str, new_topic: Callable[..., str]) -> None:
    """Story: a worker is killed. Its watcher reports it to the start that it belonged to. A later
    start learns nothing: it has workers of its own."""
    source, journal = new_topic(), new_topic()
    told = [FailedTasks(Address(bootstrap), journal, generation) for generation in (2, 3)]
    dead = subprocess.run(
        [sys.executable, "-c", WORKER, bootstrap, source, source, journal], check=False
    )
    assert dead.returncode == -signal.SIGKILL
    error = first(told[0])
    assert isinstance(error, SparkError)
    assert "The worker of source-0 was killed" in str(error)
    assert told[1].first() is None
    for one in told:
        one.close()


def test_a_worker_that_ends_is_not_reported(bootstrap: str, new_topic: Callable[..., str]) -> None:
    """Story: a task ends, by itself and by an error that it reports itself. Its watcher is gone
    then, and has written nothing."""
    source, journal = new_topic(), new_topic()
    sink = options(bootstrap, source, source, journal)
    with watched(sink, "source-0"):
        pass
    with pytest.raises(SparkError), watched(sink, "source-0"):
        raise SparkError("an error")
    append_to_journal(Address(bootstrap), journal, last := TaskFailed(9, "last", ""))
    assert read_journal(Address(bootstrap), journal) == [last]


def test_a_failure_is_reported_while_the_source_is_quiet(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: the group has no offset, so the writer refuses the first row. No second one comes.
    Whoever started the query learns why before the task has ended."""
    source, journal = new_topic(), new_topic()
    failed = FailedTasks(Address(bootstrap), journal, 1)
    errors = []

    def rows() -> Iterator[pa.RecordBatch]:
        yield row(0, source)
        errors.append(first(failed))

    with pytest.raises(OffsetMissing):
        list(write(options(bootstrap, source, source, journal), NoHooks, rows()))
    assert [type(error) for error in errors] == [OffsetMissing]
    failed.close()


def test_the_text_of_an_unknown_error_is_not_reported(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: code fails with a text that holds a record's value. The journal gets the error's name
    only."""
    source, journal = new_topic(), new_topic()
    failed = FailedTasks(Address(bootstrap), journal, 1)
    report(options(bootstrap, source, source, journal), ValueError("secret"))
    error = first(failed)
    assert isinstance(error, SparkError)
    assert "ValueError" in str(error)
    assert "secret" not in str(error)
    failed.close()


class Going:
    """Stands in for Spark's query, which never notices that a task has failed. As Spark does, it
    refuses to wait for no time."""

    stopped = 0

    def awaitTermination(self, timeout: float) -> bool:
        assert timeout > 0
        return False

    def stop(self) -> None:
        self.stopped += 1


def test_a_query_ends_when_its_task_has_failed(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: a program waits for its query, first for a moment and then without a limit. A task of
    an earlier start fails, then one of its own. The program gets the second error, and the query is
    stopped."""
    address, journal, spark = Address(bootstrap), new_topic(), Going()
    query = RealTimeQuery(cast(StreamingQuery, spark), FailedTasks(address, journal, 2))
    append_to_journal(address, journal, TaskFailed(1, "Fenced", "taken over"))
    assert not query.awaitTermination(0)
    append_to_journal(address, journal, TaskFailed(2, "OffsetMissing", "no committed offset"))
    with pytest.raises(OffsetMissing, match="no committed offset"):
        query.awaitTermination()
    assert spark.stopped == 1
