"""A verdict as annotations of a GitHub workflow, and as the Markdown of its summary.

The lines are workflow commands, `::error title=...::...`. GitHub shows ten of each kind for a step.
"""

from __future__ import annotations

from collections.abc import Iterator

from topicproof.validators.finding import Example, Finding, Outcome
from topicproof.validators.lineage.headers import parse_lineage
from topicproof.validators.report import Report

FINDINGS_MAX = 9
EXAMPLES_MAX = 5


def workflow_commands(report: Report) -> Iterator[str]:
    """Yield workflow commands: an error for a verdict that does not hold and for each finding
    behind it, and a warning for each exceeded threshold of the contract."""
    pair = f"{report.source.topic} -> {report.sink.topic}"
    if report.verdict is Outcome.HOLDS:
        yield _command("notice", f"{report.verdict} {pair}", report.why)
    else:
        yield _command("error", f"{report.verdict} {pair}", report.why)
        for finding in broken(report)[:FINDINGS_MAX]:
            lines = [finding.why, *(place(report, one) for one in finding.examples[:EXAMPLES_MAX])]
            yield _command("error", f"{finding.kind} in {report.sink.topic}", "\n".join(lines))
    for warning in report.warnings:
        yield _command("warning", pair, warning)


def markdown(report: Report) -> str:
    """Return the summary: the verdict, then a table of what does not hold."""
    lines = [f"### {report.verdict}: {report.source.topic} → {report.sink.topic}", "", report.why]
    if found := broken(report):
        lines += ["", "| kind | found | for example |", "| --- | --- | --- |"]
        for finding in found:
            example = place(report, finding.examples[0]) if finding.examples else ""
            lines.append(f"| `{finding.kind}` | {_cell(finding.why)} | {_cell(example)} |")
    lines += [f"\n⚠ {warning}" for warning in report.warnings]
    return "\n".join(lines) + "\n"


def place(report: Report, example: Example) -> str:
    """Return where an example lies, why it is one, and the input behind it if that is known."""
    origin = parse_lineage((example.lineage or "").encode())
    read = None if origin is None else f"{origin.topic}-{origin.partition}@{origin.offset}"
    if example.partition is None:
        return f"{read or example.lineage or 'no place'}: {example.why}"
    topic, partition = report.sink.place(example.partition)
    known = "" if read is None else f" Its input: {read}."
    return f"{topic}-{partition}@{example.offset}: {example.why}{known}"


def broken(report: Report) -> list[Finding]:
    """Return the findings behind a verdict that does not hold: those that count and have its
    outcome."""
    uncounted = {one.kind for one in report.not_checked}
    return [
        finding
        for finding in report.findings
        if finding.outcome is report.verdict is not Outcome.HOLDS and finding.kind not in uncounted
    ]


def _command(level: str, title: str, text: str) -> str:
    escaped = _escaped(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={escaped}::{_escaped(text)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
