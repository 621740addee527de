"""What the terminal says of a verdict, its page says too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.app.conftest import OpenPage, texts
from tests.app.test_history_page import HELD
from topicproof.backend.commands.show import report_lines
from topicproof.backend.commands.terminal import Styled
from topicproof.backend.evidence.folder import REPORT
from topicproof.backend.history.run_state import Facts
from topicproof.backend.history.store import History, State
from topicproof.backend.settings import read_settings
from topicproof.validators.finding import Example, Finding, Outcome
from topicproof.validators.next_steps import OF_VIOLATIONS
from topicproof.validators.report import Report

KINDS = sorted(OF_VIOLATIONS)


def _finding(kind: str, outcome: Outcome) -> Finding:
    example = Example(0, 7, "numbers/0/3/0", "id/1/1", f"Record 7 shows {kind}.", f"order-{kind}")
    return Finding(
        kind,
        outcome,
        count=1,
        primary=1,
        explained_by=None,
        examples=(example,),
        why=f"1 of 103 records is what {kind} means.",
        story=f"A client with {kind} was killed at 14:03.",
        next_step=f"Restart what made {kind}." if outcome is Outcome.VIOLATED else "",
    )


@pytest.mark.usefixtures("empty_home")
@pytest.mark.parametrize("outcome", [Outcome.VIOLATED, Outcome.UNKNOWN])
def test_the_page_says_what_the_terminal_says(outcome: Outcome, open_page: OpenPage) -> None:
    """Story: two colleagues speak about one verdict, one before a terminal and one before the page.
    What was found, in which record, what happened and what to do is the same for both, of each
    kind."""
    history = History(read_settings())
    run = history.create("check", "check", {})
    report = replace(
        HELD,
        run=run.id,
        verdict=outcome,
        why="Not exactly once: 1 of 103 records is twice in the sink.",
        findings=tuple(_finding(kind, outcome) for kind in KINDS),
        warnings=("The pipeline still runs.",),
        notes=("The topic was read twice.",),
    )
    history.remember(run.id, Facts(source=report.source.topic, sink=report.sink.topic))
    history.end(run.id, State.DONE, report.verdict, report.why)
    folder = run.folder(history.settings)
    folder.mkdir(parents=True)
    (folder / REPORT).write_text(report.to_json())
    app = open_page("verdict", run=run.id)
    assert not app.exception
    frames = (str(frame.value.to_dict("list")) for frame in app.dataframe)
    links = (link.label.replace("\\", "").replace("\u2060", "") for link in app.page_link)
    on_page = "\n".join((texts(app), *frames, *links))
    lines = ("".join(_text(piece) for piece in line) for line in report_lines(report))
    terminal = "\n".join(lines)
    for sentence in (report.why, *report.warnings, *report.notes, *map(str, _sentences(report))):
        assert sentence in terminal, f"the terminal: {sentence}"
        assert sentence in on_page, f"the page: {sentence}"


def _sentences(report: Report) -> Iterator[str]:
    for finding in report.findings:
        if finding in report.aside:
            continue
        example = finding.examples[0]
        assert example.identity is not None
        yield from (finding.why, finding.story, finding.next_step, example.why, example.identity)


def _text(piece: str | Styled) -> str:
    return piece.text if isinstance(piece, Styled) else piece
