"""Sentences that a person has read: every text that a finding or a verdict shows is compared with a
file, section by section.

`WRITE_GOLDEN=1` writes the sections of the tests that run. Read what has changed before you commit
it: somebody who knows Kafka and not this program must understand what happened, to which records.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from topicproof.validators.finding import Outcome
from topicproof.validators.next_steps import next_step
from topicproof.validators.report import Report, identified_place, identified_sentence
from topicproof.validators.who import who_sentence

FOLDER = Path(__file__).parent / "golden"
_HEAD = re.compile(r"^== (.*) ==$", re.MULTILINE)


def compare(file: str, section: str, lines: Iterable[str]) -> None:
    """Compares lines with a section of a golden file."""
    path = FOLDER / file
    text = "\n".join(lines)
    sections = sections_of(path)
    if os.environ.get("WRITE_GOLDEN"):
        sections[section] = text
        whole = "\n\n".join(f"== {name} ==\n{body}" for name, body in sorted(sections.items()))
        path.write_text(f"{whole}\n", encoding="utf-8")
    assert text == sections.get(section), f"{path.name}, section {section!r}: {__doc__}"


def sections_of(path: Path) -> dict[str, str]:
    """The sections of a golden file, by name."""
    if not path.exists():
        return {}
    _, *parts = _HEAD.split(path.read_text(encoding="utf-8"))
    return dict(zip(parts[::2], (body.strip("\n") for body in parts[1::2]), strict=True))


def compare_report(file: str, report: Report) -> None:
    """Compares a report's sentences with the section of the running test. A test may compare
    several."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition("::")[2].rpartition(" ")[0]
    _reports[test] += 1
    number = f" ({_reports[test]})" if _reports[test] > 1 else ""
    compare(file, f"{test}{number}", _sentences(report))


_reports: Counter[str] = Counter()
"""How many reports each test has compared."""


def _sentences(report: Report) -> Iterator[str]:
    """The sentences of a report without kinds that hold."""
    yield f"{report.verdict} {report.scope}: {report.why}"
    if who := who_sentence(report):
        yield f"who: {who}"
    yield from (f"Warning: {warning}" for warning in report.warnings)
    for finding in report.findings:
        if finding.outcome is Outcome.HOLDS or finding in report.aside:
            continue
        yield f"  {finding.outcome:8} {finding.kind}: {finding.why}"
        if finding.story:
            yield f"             What happened: {finding.story}"
        for example in finding.examples[:3]:
            place = identified_place(report, example)
            sentence = identified_sentence(example)
            yield f"             {f'{place}: ' if place else ''}{sentence}"
        if step := next_step(finding):
            yield f"             Next: {step}"
