"""`junit.xml`: a report for CI servers, with one case per kind of finding and group of partitions.

A case fails if rows of its group break the guarantee. It is an error if nothing is known, and
skipped if the kind does not count. One more case is the verdict itself, so every report that does
not hold has at least one failure or error.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from topicproof.backend.characters import visible_lines
from topicproof.backend.evidence.findings import Place
from topicproof.validators.expectation import judge_rows
from topicproof.validators.finding import Example, Finding, Outcome
from topicproof.validators.report import Report, place_of

JUNIT = "junit.xml"
GROUPS_MAX = 8
"""Number of groups. With more partitions, neighbours share a group."""
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Group = tuple[int, ...]


def write_junit(path: Path, report: Report, places: Mapping[Place, int], made_at: str) -> None:
    """Write the file. Raises OSError."""
    suite = TestSuite(_text(f"{report.source.topic} -> {report.sink.topic}"))
    suite.timestamp = made_at
    for name, value in {
        "run": report.run or "",
        "guarantee": report.guarantee,
        **report.versions,
    }.items():
        suite.add_property(name, _text(value))
    suite.add_testcase(_verdict(report))
    uncounted = {row.kind: row.why for row in report.not_checked}
    for finding in report.findings:
        counts = {place: count for place, count in places.items() if place.kind == finding.kind}
        for group in groups(report, places):
            suite.add_testcase(_case(report, finding, group, counts, uncounted.get(finding.kind)))
        if any(place.partition is None for place in counts):
            suite.add_testcase(_case(report, finding, None, counts, uncounted.get(finding.kind)))
    looked_for = {row.kind for row in report.findings}
    for kind, why in uncounted.items():
        if kind not in looked_for:
            suite.add_testcase(_skipped(_named(report, kind, "not looked for"), why))
    suite.update_statistics()
    xml = JUnitXml("topicproof")
    xml.add_testsuite(suite)
    xml.update_statistics()
    xml.write(str(path), pretty=True)


def groups(report: Report, places: Mapping[Place, int]) -> Sequence[Group]:
    """Return the partitions of both topics, in at most `GROUPS_MAX` groups of neighbours."""
    numbers = {
        partition.partition
        for bounds in (report.sink, report.source)
        for partition in bounds.partitions
    }
    numbers |= {place.partition for place in places if place.partition is not None}
    partitions = sorted(numbers)
    size = -(-len(partitions) // GROUPS_MAX)
    return [tuple(partitions[first : first + size]) for first in range(0, len(partitions), size)]


def _verdict(report: Report) -> TestCase:
    case = _named(report, "verdict", str(report.guarantee))
    if report.verdict is Outcome.VIOLATED:
        case.result = [Failure(_text(report.why), report.verdict)]
    elif report.verdict is Outcome.UNKNOWN:
        case.result = [Error(_text(report.why), report.verdict)]
    case.system_out = _text(
        "\n".join([report.why, *(f"Warning: {warning}" for warning in report.warnings)])
    )
    # All cases are judged together, so this one has the total time.
    case.time = report.took_s
    return case


def _case(
    report: Report,
    finding: Finding,
    group: Group | None,
    counts: Mapping[Place, int],
    uncounted: str | None,
) -> TestCase:
    """Make a case. `group` None: rows without a partition."""
    case = _named(report, finding.kind, _name(group))
    causes: Counter[str | None] = Counter()
    for place, count in counts.items():
        if (place.partition in group) if group is not None else place.partition is None:
            causes[place.cause] += count
    if uncounted is not None:
        return _skipped(case, f"{uncounted} {finding.why}")
    outcome = judge_rows(finding.kind, causes, report.guarantee)
    if finding.outcome is Outcome.UNKNOWN:
        case.result = [Error(_text(finding.why), finding.outcome)]
    elif finding.outcome is Outcome.VIOLATED and outcome is not Outcome.HOLDS:
        failure = Failure(_text(f"{sum(causes.values()):,} here. {finding.why}"), outcome)
        failure.text = _text(
            "\n".join(
                _line(report, example) for example in finding.examples if _belongs(example, group)
            )
        )
        case.result = [failure]
    case.system_out = _text(finding.why)
    return case


def _named(report: Report, kind: str, group: str) -> TestCase:
    return TestCase(f"{kind} [{group}]", _text(f"{report.sink.topic}.{kind}"))


def _skipped(case: TestCase, why: str) -> TestCase:
    case.result = [Skipped(_text(why))]
    return case


def _name(group: Group | None) -> str:
    if group is None:
        return "no partition"
    if len(group) == 1:
        return f"partition {group[0]}"
    return f"partitions {group[0]} to {group[-1]}"


def _belongs(example: Example, group: Group | None) -> bool:
    partition = example.partition
    parts = (example.lineage or "").split("/")
    if partition is None and len(parts) >= 3 and parts[1].isdecimal():
        partition = int(parts[1])
    return partition is None if group is None else partition in group


def _line(report: Report, example: Example) -> str:
    return f"{place_of(report, example) or 'no place'}: {example.why}"


def _text(text: str) -> str:
    """Spell out characters that are not seen, or that XML cannot hold: names come from topics."""
    return _NOT_XML.sub("?", visible_lines(text))
