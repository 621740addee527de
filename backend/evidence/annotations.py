"""A verdict as annotations of a GitHub workflow, and as the Markdown of its summary.

The lines are workflow commands, `::error title=...::...`. GitHub shows ten of each kind for a step.
Names and sentences hold what strangers wrote. So no line of theirs is a command, and no text of
theirs is a link, a picture, a tag or a cell of the summary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from topicproof.backend.characters import visible, without_commands
from topicproof.validators.finding import Example, Finding, Outcome
from topicproof.validators.report import Report, place_of

FINDINGS_MAX = 9
EXAMPLES_MAX = 5
_MARKUP = re.compile(r"[\\`*_{}\[\]()<>#!|~&:/@$^=]")
"""What Markdown, or GitHub's own additions to it, may take for more than a character."""
_BULLET = re.compile(r"^([0-9]*)([-+.])")
"""What makes a list, a rule or a heading of a line that begins with it."""
_LINKED = re.compile(r"(?<=\\:)(?=\\/\\/)|(?<=www)(?=\.)|(?<=\\@)", re.IGNORECASE)
"""Where an address or a person's name begins, which GitHub links although it is escaped."""


def workflow_commands(report: Report) -> Iterator[str]:
    """Yield workflow commands: an error for a verdict that does not hold and for each finding
    behind it, and a warning for each exceeded threshold of the contract."""
    pair = f"{report.source.topic} -> {report.sink.topic}"
    if report.verdict is Outcome.HOLDS:
        yield _command("notice", f"{report.verdict} {pair}", report.why)
    else:
        yield _command("error", f"{report.verdict} {pair}", report.why)
        for finding in broken(report)[:FINDINGS_MAX]:
            lines = [
                finding.why,
                *(place(report, example) for example in finding.examples[:EXAMPLES_MAX]),
            ]
            yield _command("error", f"{finding.kind} in {report.sink.topic}", *lines)
    for warning in report.warnings:
        yield _command("warning", pair, warning)


def markdown(report: Report) -> str:
    """Return the summary: the verdict, then a table of what does not hold."""
    pair = as_markdown(f"{report.source.topic} → {report.sink.topic}")
    lines = [f"### {report.verdict}: {pair}", "", as_markdown(report.why)]
    if findings := broken(report):
        lines += ["", "| kind | found | for example |", "| --- | --- | --- |"]
        for finding in findings:
            example = place(report, finding.examples[0]) if finding.examples else ""
            kind = f"`{finding.kind}`" if finding.kind.isidentifier() else as_markdown(finding.kind)
            lines.append(f"| {kind} | {as_markdown(finding.why)} | {as_markdown(example)} |")
    lines += [f"\n⚠ {as_markdown(warning)}" for warning in report.warnings]
    return "\n".join(lines) + "\n"


def place(report: Report, example: Example) -> str:
    """Return where an example lies, and why it is one."""
    return f"{place_of(report, example) or 'no place'}: {example.why}"


def broken(report: Report) -> list[Finding]:
    """Return the findings behind a verdict that does not hold: those that count and have its
    outcome."""
    uncounted = {row.kind for row in report.not_checked}
    return [
        finding
        for finding in report.findings
        if finding.outcome is report.verdict is not Outcome.HOLDS and finding.kind not in uncounted
    ]


def as_markdown(text: str) -> str:
    """Escape a line for Markdown. A comment breaks what would be linked after escaping."""
    escaped = _MARKUP.sub(r"\\\g<0>", visible(text).strip(" "))
    return _LINKED.sub("<!-- -->", _BULLET.sub(r"\g<1>\\\g<2>", escaped))


def _command(level: str, title: str, *lines: str) -> str:
    escaped = _escaped(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={escaped}::{'%0A'.join(map(_escaped, lines))}"


def _escaped(text: str) -> str:
    """Escape a line for a workflow command. GitHub's older commands are read anywhere in a line."""
    return without_commands(visible(text)).replace("%", "%25")
