"""What changed since the last verdict: pure, over two reports and two contracts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.app.test_history_page import HELD, TWICE, UNKNOWN
from topicproof.backend.history.contract_of_run import differences
from topicproof.backend.history.since_last import Shift, since_last
from topicproof.validators.finding import Example, Finding, JudgedInputs, NotChecked, Outcome
from topicproof.validators.report import Report


def finding(kind: str, count: int, offset: int = 7, outcome: Outcome | None = None) -> Finding:
    """A finding whose first row is the only example."""
    outcome = outcome or (Outcome.VIOLATED if count else Outcome.HOLDS)
    examples = (Example(0, offset, None, None, "x"),) if count else ()
    return Finding(kind, outcome, count, count, None, examples, "x")


def report(*findings: Finding, base: Report = TWICE, uncounted: str = "") -> Report:
    not_checked = (NotChecked(uncounted, "Not required."),) if uncounted else ()
    return replace(base, findings=findings, not_checked=not_checked)


UNJUDGED = finding("gap", 0, outcome=Outcome.UNKNOWN)


@pytest.mark.parametrize(
    ("before", "after", "shift"),
    [
        (report(finding("gap", 0)), report(finding("gap", 2)), Shift.NEW),
        (report(finding("gap", 2)), report(finding("gap", 0)), Shift.GONE),
        (report(finding("gap", 2)), report(finding("gap", 3)), Shift.MORE),
        (report(finding("gap", 3)), report(finding("gap", 2)), Shift.FEWER),
        (report(finding("gap", 1, 7)), report(finding("gap", 1, 9)), Shift.ELSEWHERE),
        (report(UNJUDGED), report(finding("gap", 2)), Shift.OTHERWISE),
        # Nobody looked, or it did not count: neither is it new, nor is it repaired.
        (report(), report(finding("gap", 2)), Shift.FIRST_JUDGED),
        (report(finding("gap", 2)), report(), Shift.NOT_JUDGED),
        (
            report(finding("gap", 2)),
            report(finding("gap", 2), uncounted="gap"),
            Shift.NOT_JUDGED,
        ),
        (report(finding("gap", 1)), report(finding("gap", 1)), None),
        # Of 30 rows only the worst are in the report.
        (report(finding("gap", 30, 7)), report(finding("gap", 30, 9)), Shift.ELSEWHERE),
        (report(finding("gap", 30, 7)), report(finding("gap", 30, 7)), None),
        (
            report(replace(finding("gap", 30, 7), primary=30)),
            report(replace(finding("gap", 30, 7), primary=29, explained_by="pending")),
            Shift.OTHERWISE,
        ),
        (report(finding("gap", 0)), report(finding("gap", 0)), None),
    ],
)
def test_how_a_finding_differs(before: Report, after: Report, shift: Shift | None) -> None:
    """Story: the same pipeline is judged twice. Each finding is new, gone, another or the same, and
    what was not judged both times is neither new nor repaired."""
    since = since_last(before, after)
    assert [each.shift for each in since.findings] == ([] if shift is None else [shift])
    assert since.is_quiet is (shift is None)


def test_it_is_one_line() -> None:
    """Story: QA reads one line: what is new first, then what changed, and by which terms."""
    before = report(finding("duplicate", 3), finding("order", 4), finding("gap", 0))
    after = report(finding("duplicate", 5), finding("order", 0), finding("gap", 2))
    terms = differences(
        {"identity": "key", "sink": {"topic": "a"}, "guarantee": "exactly_once"},
        {"identity": {"json": "$.id"}, "sink": {"topic": "a", "isolation": "read_committed"}},
    )
    assert [(term.name, term.before, term.after) for term in terms] == [
        ("identity", "key", '{"json": "$.id"}'),
        ("guarantee", "exactly_once", ""),
        ("sink.isolation", "", "read_committed"),
    ]
    since = since_last(before, after, terms)
    assert since.sentence({"gap": "Gaps"}) == (
        "New: Gaps (2). Changed: duplicate 3 → 5. Gone: order (4)."
        " The contract changed: identity, guarantee, sink.isolation."
    )
    unread = since_last(before, before, None)
    assert unread.is_quiet
    assert unread.sentence({}) == (
        "As last time: the same 2 findings, no new input. Whether the terms changed is not known:"
        " a contract cannot be read."
    )
    explained = replace(finding("gap", 30, 7), primary=29, explained_by="pending")
    otherwise = since_last(report(finding("gap", 30, 7)), report(explained))
    assert otherwise.sentence({}) == "Changed: gap (30, explained otherwise)."
    doubted = since_last(UNKNOWN, replace(UNKNOWN, doubts=("A header cannot be read.",)))
    assert not doubted.is_quiet and doubted.sentence({}) == "The doubts are others."
    grown = since_last(HELD, replace(HELD, inputs=JudgedInputs(1_100)))
    assert grown.sentence({}) == "As last time: no finding, 1,000 more inputs."
    # A verdict without a finding may still be another one.
    assert since_last(HELD, UNKNOWN).sentence({}) == "UNKNOWN after HOLDS."
