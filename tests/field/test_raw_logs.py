"""Public reports of brokers that answer wrongly. No healthy broker does so, so their logs and
readings are written by hand (tests/validators/history.py)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.field.reports import require_sentence
from tests.validators.history import history
from topicproof.backend.commands.show import report_lines
from topicproof.backend.commands.terminal import plain_text
from topicproof.validators.finding import Guarantee, Outcome
from topicproof.validators.judge import judge
from topicproof.validators.lineage.identity import Identity


@dataclass(frozen=True)
class Log:
    """A sink's partition, in the tokens of tests/validators/history.py."""

    line: str
    lso: int | None = None


def text_of(spark: SparkSession, folder: Path, log: Log) -> tuple[Outcome, dict[str, int], str]:
    """The verdict, the primary rows that break it, and what the terminal shows."""
    ledger = history(log.line, inputs=2, lso=log.lso).ledger(spark, folder, identity=Identity.KEY)
    report = judge(ledger, Guarantee.EXACTLY_ONCE)
    rows = {
        finding.kind: finding.primary
        for finding in report.findings
        if finding.outcome is Outcome.VIOLATED and finding.primary
    }
    lines = [plain_text(line) for line in report_lines(report)]
    return report.verdict, rows, "\n".join(lines)


@pytest.mark.parametrize(
    ("report_id", "broken", "healthy", "rows"),
    [
        # The cleaner keeps one marker of each kind for all producers: that of a has gone, and the
        # one of b must not count for it.
        (
            "redpanda-data/redpanda#15672",
            Log("a:0@* _ b:1@ b:A b:1@ b:C", lso=6),
            Log("a:0@ a:C b:1@ b:A b:1@ b:C"),
            {"resurrected": 1},
        ),
        # Where local segments and those in the remote tier meet, the list of aborted transactions
        # is cut too short: readers see what was aborted.
        (
            "KAFKA-17801",
            Log("a:0@ a:C a:1@* a:A a:1@ a:C"),
            Log("a:0@ a:C a:1@ a:A a:1@ a:C"),
            {"aborted_read": 1},
        ),
    ],
    ids=["markers compacted", "remote tier"],
)
def test_what_read_committed_shows_without_a_commit_is_found(
    spark: SparkSession,
    tmp_path: Path,
    report_id: str,
    broken: Log,
    healthy: Log,
    rows: dict[str, int],
) -> None:
    """Story: the comment of each log. The healthy twin has the marker, or a right reading."""
    verdict, violated, text = text_of(spark, tmp_path, broken)
    assert (verdict, violated) == (Outcome.VIOLATED, rows), text
    require_sentence(report_id, text)
    verdict, _, text = text_of(spark, tmp_path, healthy)
    assert verdict is Outcome.HOLDS, text


def test_a_reading_beyond_the_last_stable_offset_is_not_trusted(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: a broker serves read_committed a record of an open transaction. Nothing is judged. A
    reading that ends at the last stable offset leaves that record pending."""
    verdict, _, text = text_of(spark, tmp_path, Log("a:0@ a:C b:1@*"))
    assert verdict is Outcome.UNKNOWN, text
    require_sentence("redpanda-data/redpanda#10671", text)
    verdict, _, text = text_of(spark, tmp_path, Log("a:0@ a:C b:1@ b:C"))
    assert verdict is Outcome.HOLDS, text
