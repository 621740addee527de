"""The end of a command with a verdict: its output, JSON and exit code."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from topicproof.backend.commands.show import balances, progress_line, report_lines, side_effects
from topicproof.backend.commands.terminal import Styled, emit, err, out
from topicproof.backend.evidence.copy import without_values
from topicproof.backend.history.run_state import progress_fields
from topicproof.backend.trust.acting import DETACHED
from topicproof.validators.expectation import merge
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report, exit_code as exit_code_of
from topicproof.validators.shell_words import shell_word

if TYPE_CHECKING:
    from topicproof.backend.history.store import History, Run


def print_report(report: Report, all_kinds: bool = False) -> None:
    """Print a report; without the values of records if the output is kept for the dashboard.
    `all_kinds`: also each kind that holds, or was not looked for."""
    if os.environ.get(DETACHED):
        report = without_values(report)
    out.lines(report_lines(report, all_kinds))


def conclude_run(history: History, run_id: str, report: Report | None, json_: str | None) -> None:
    """End with a run's verdict; without a report, say how far the run has come."""
    run = history.get(run_id)
    if report is None:
        emit(json_, run_json(run))
        out.line(f"{run_id} is {run.state}: {progress_line(run.progress)}")
        return
    emit(json_, json.loads(report.to_json()))
    if json_ != "-":
        print_report(report)
        print_stages(run)
        if counted := side_effects(run.progress):
            out.line(counted)
        _print_closer(run.id)
        if run.error:
            for sentence in run.error.split("\n"):
                err.line(Styled(sentence, "red"))
    raise typer.Exit(exit_code(run, report))


def conclude_check(
    reports: Sequence[Report], json_: str | None, code: int, all_kinds: bool = False
) -> NoReturn:
    """End with the verdicts of a check of one or several sinks."""
    verdicts = [json.loads(report.to_json()) for report in reports]
    emit(json_, verdicts[0] if len(verdicts) == 1 else verdicts)
    if json_ != "-":
        for report in reports:
            print_report(report, all_kinds)
            if report.run is not None:
                _print_closer(report.run)
        if len(reports) > 1:
            sinks = ", ".join(f"{report.sink.topic} {report.verdict}" for report in reports)
            out.line(f"As a whole: {merge(report.verdict for report in reports)} ({sinks})")
    raise typer.Exit(code)


def _print_closer(run_id: str) -> None:
    out.line(f"Look closer: topicproof show {shell_word(run_id)}")


def print_stages(run: Run) -> None:
    """Print what each of several stages proves, and whether totals are right."""
    facts, results = run.facts, run.facts.results
    for kind, verdicts in (("stage", results.verdicts), ("values of", results.values)):
        for name, verdict in verdicts.items():
            out.line(f"{kind} {name}: {verdict.verdict}: {verdict.why}")
    if text := balances(facts):
        out.line(text)


def run_json(run: Run) -> dict[str, Any]:
    """Return a run's fields for `--json`."""
    topics = {name: getattr(run.facts, name) for name in ("source", "sink", "journal")}
    return {
        "run": run.id,
        "kind": run.kind,
        "state": run.state,
        "created_at": run.created_at.isoformat() + "Z",
        "ended_at": run.ended_at.isoformat() + "Z" if run.ended_at else None,
        "alive": run.alive,
        "verdict": run.verdict,
        "why": run.why,
        "error": run.error,
        "plan": run.plan,
        "topics": {name: topic for name, topic in topics.items() if topic},
        "progress": progress_fields(run.progress),
    }


def exit_code(run: Run, report: Report) -> int:
    """Return the exit code of the run's verdict, the worst of its stages. A failed run never
    passes."""
    worst = Outcome(run.verdict) if run.verdict else report.verdict
    code = report.exit_code if worst is report.verdict else exit_code_of(worst)
    return code or (3 if run.error else 0)
