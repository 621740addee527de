"""A check that is followed and stopped while Spark works for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from topicproof.backend.errors import CheckStopped
from topicproof.backend.history.store import History
from topicproof.backend.runs.watched import watched
from topicproof.backend.settings import read_settings


def test_a_stopped_check_ends_in_the_middle_of_a_query(spark: SparkSession, tmp_path: Path) -> None:
    """Story: a check reads a huge topic, and somebody presses Stop. Spark's query is interrupted,
    the step was visible until then, and no further step begins."""
    history = History(read_settings(home=tmp_path))
    run = history.create("check", "check", {}).id
    steps: list[str] = []

    def judge() -> None:
        with watched(history, run, spark) as watch:
            watch.on_step("reading both topics")
            steps.append(history.get(run).progress.stage)
            history.request_stop(run)
            # Many small tasks, which would take many minutes: a task itself cannot be stopped.
            spark.range(0, 10**12, 1, 100_000).selectExpr("sum(id % 7)").collect()

    with pytest.raises(CheckStopped):
        judge()
    assert steps == ["reading both topics"] and spark.range(3).count() == 3
    history.engine.dispose()
