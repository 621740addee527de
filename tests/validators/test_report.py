"""The verdict: what is merged, what is said, and what is never a pass."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.validators.history import history
from validators.finding import Outcome


def test_a_healthy_topic_holds_in_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    """Story: ten inputs in two transactions, the second aborted once and replayed. All is as promised."""
    report = history("0 1 2 3 4 C 5 6 A 5 6 7 8 9 C", inputs=10).report(spark, tmp_path)
    assert (report.verdict, report.why) == (
        Outcome.HOLDS,
        "10 of 10 inputs committed exactly once, in order; 2 aborted records stayed invisible.",
    )
