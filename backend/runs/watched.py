"""A check while it goes on: its step is published, and a request to stop it is heard."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.connect.shell.progress import ProgressHandler, StageInfo

from topicproof.backend.errors import CheckStopped, TopicproofError
from topicproof.backend.history.run_state import Progress
from topicproof.backend.history.store import History

LOOK_S = 0.5
"""How often the step is published, and a request to stop is looked for."""


class CheckWatch(ProgressHandler):
    """What a check has reached. Shared by the thread that judges and the one that publishes."""

    def __init__(self, history: History, run: str) -> None:
        self.run, self._history = run, history
        self._step = ""
        self._tasks: dict[str | None, int] = {}
        self._stop, self._ended = threading.Event(), threading.Event()

    def on_step(self, step: str) -> None:
        """Enter a step. Raises CheckStopped if somebody has stopped the check."""
        self._step = step
        self._publish()
        if self.stopped:
            raise CheckStopped("The check was stopped.")

    def __call__(
        self,
        stages: Iterable[StageInfo] | None,
        inflight_tasks: int,
        operation_id: str | None,
        done: bool,
    ) -> None:
        """Count the finished tasks of one of Spark's operations. Spark calls this by keyword."""
        del inflight_tasks, done
        self._tasks[operation_id] = sum(stage.num_completed_tasks for stage in stages or ())

    def _publish(self) -> None:
        """Publish the step in the history, and hear a request to stop."""
        tasks = sum(list(self._tasks.values()))
        if self._history.renew(self.run, Progress(stage=self._step, tasks=tasks)):
            self._stop.set()

    def follow(self, spark: SparkSession) -> None:
        """Publish until the check has ended. A request to stop interrupts Spark's work at once."""
        while not self._ended.wait(LOOK_S):
            try:
                self._publish()
            except TopicproofError:
                # The thread that judges meets the same error at its next step, and reports it.
                return
            if self.stopped:
                spark.interruptAll()

    def end(self) -> None:
        self._ended.set()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()


@contextmanager
def watched(history: History, run: str, spark: SparkSession) -> Iterator[CheckWatch]:
    """Watch a check while the block judges. Raises CheckStopped for any error after a request to
    stop, since interrupted work fails in many ways."""
    check = CheckWatch(history, run)
    spark.registerProgressHandler(check)
    thread = threading.Thread(target=check.follow, args=(spark,), name=f"watch-{run}")
    thread.start()
    try:
        yield check
    except (TopicproofError, PySparkException) as error:
        if check.stopped:
            raise CheckStopped("The check was stopped.") from error
        raise
    finally:
        check.end()
        thread.join()
        spark.removeProgressHandler(check)
