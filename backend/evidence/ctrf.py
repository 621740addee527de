"""A report in the Common Test Report Format (CTRF), which other tools of CI read: one test for the
verdict, and one for each kind of finding that was looked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from topicproof.backend.characters import visible
from topicproof.backend.evidence.annotations import place
from topicproof.validators.finding import Finding, Outcome
from topicproof.validators.report import Report

SPEC_VERSION = "0.0.0"
EXAMPLES_MAX = 5
STATUS = {Outcome.HOLDS: "passed", Outcome.VIOLATED: "failed", Outcome.UNKNOWN: "other"}
COUNTED = ("passed", "failed", "pending", "skipped", "other")


def as_ctrf(reports: Sequence[Report], ended_ms: int) -> dict[str, Any]:
    """Return the document of several reports. `ended_ms`: when judging ended, in ms since the
    epoch."""
    tests = [test for report in reports for test in _tests(report)]
    counts = Counter(test["status"] for test in tests)
    took_ms = round(sum(report.took_s for report in reports) * 1000)
    return {
        "reportFormat": "CTRF",
        "specVersion": SPEC_VERSION,
        "results": {
            "tool": {"name": "topicproof", "version": reports[0].versions.get("topicproof", "")},
            "summary": {
                "tests": len(tests),
                **{status: counts[status] for status in COUNTED},
                "start": ended_ms - took_ms,
                "stop": ended_ms,
            },
            "tests": tests,
        },
    }


def _tests(report: Report) -> list[dict[str, Any]]:
    uncounted = {finding.kind: finding.why for finding in report.not_checked}
    suite = [visible(f"{report.source.topic} -> {report.sink.topic}")]
    verdict = {
        "name": f"verdict: {report.guarantee}",
        "status": STATUS[report.verdict],
        "duration": round(report.took_s * 1000),
        "message": visible(report.why),
        "suite": suite,
    }
    return [verdict, *(_test(report, finding, suite, uncounted) for finding in report.findings)]


def _test(
    report: Report, finding: Finding, suite: list[str], uncounted: dict[str, str]
) -> dict[str, Any]:
    skipped = finding.kind in uncounted
    message = f"{uncounted[finding.kind]} {finding.why}" if skipped else finding.why
    test: dict[str, Any] = {
        "name": finding.kind,
        "status": "skipped" if skipped else STATUS[finding.outcome],
        # All kinds are judged together; the verdict has the time.
        "duration": 0,
        "message": visible(message),
        "suite": suite,
    }
    if test["status"] == "failed":
        examples = finding.examples[:EXAMPLES_MAX]
        test["trace"] = "\n".join(visible(place(report, example)) for example in examples)
    return test
