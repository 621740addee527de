"""Public reports of lost and repeated records, made with plain clients on a real broker. All broken
pipelines are judged at once, and all healthy twins at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.field.pairs import Pipeline, TopicPair
from tests.field.pipelines import CASES, Case
from tests.field.reports import REPORTS, require_sentence
from topicproof.backend.evidence.findings import PARQUET
from topicproof.backend.evidence.folder import EVIDENCE
from topicproof.validators.expectation import RANGE
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report


@dataclass(frozen=True)
class JudgedPipelines:
    """What was found in the pipelines of all cases."""

    pair: TopicPair
    report: Report
    findings: list[dict[str, Any]]

    def rows(self, case: Case) -> list[dict[str, Any]]:
        """Rows of kinds that break the verdict, in the partitions of a case."""
        broken = {each.kind for each in self.report.findings if each.outcome is Outcome.VIOLATED}
        first = first_partition(case)
        partitions = range(first, first + case.partitions)
        return [
            row
            for row in self.findings
            if row["kind"] in broken
            and row["explained_by"] not in (RANGE, "duplicate")
            and _partition(row) in partitions
        ]


def _partition(row: dict[str, Any]) -> int:
    """Return the source partition of a row, or that of the sink: they have the same numbers."""
    source: int | None = row["source_partition"]
    partition: int = row["partition"] if source is None else source
    return partition


def first_partition(case: Case) -> int:
    return sum(each.partitions for each in CASES[: CASES.index(case)])


def judge(bootstrap: str, spark: SparkSession, folder: Path, is_broken: bool) -> JudgedPipelines:
    pair = TopicPair(bootstrap, sum(case.partitions for case in CASES), "dead-letters")
    for number, case in enumerate(CASES):
        case.write(Pipeline(pair, f"job{number}", first_partition(case)), is_broken)
    pair.settle()
    report = pair.judge(spark, folder, group=pair.source)
    findings = pq.read_table(folder / "report" / EVIDENCE / PARQUET)
    return JudgedPipelines(pair, report, findings.to_pylist())


@pytest.fixture(scope="module")
def broken(
    bootstrap: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> JudgedPipelines:
    return judge(bootstrap, spark, tmp_path_factory.mktemp("broken"), is_broken=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.report)
def test_a_reported_pipeline_is_found(broken: JudgedPipelines, case: Case) -> None:
    """Story: each writer's docstring. All its rows are found, none more, and the sentence is the
    one of docs/FIELD.md."""
    rows = broken.rows(case)
    counts = Counter(
        row["kind"] + (f": {row['explained_by']}" if row["explained_by"] else "") for row in rows
    )
    assert counts == case.rows
    if case.rows:
        kind = REPORTS[case.report].kind
        sentences = [row["why"] for row in rows if row["kind"] == kind]
        require_sentence(case.report, broken.pair.text("\n".join(sentences)))


def test_the_healthy_twins_hold(bootstrap: str, spark: SparkSession, tmp_path: Path) -> None:
    """Story: the same pipelines without their faults, with aborts, takeovers, a change of the
    producer id (KAFKA-18660) and markers in the source. Nothing is wrong."""
    judged = judge(bootstrap, spark, tmp_path, is_broken=False)
    report = judged.report
    assert report.verdict is Outcome.HOLDS, report.why
    require_sentence("KAFKA-18660", judged.pair.terminal_text(report))
