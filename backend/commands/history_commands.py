"""Compare two reports, and follow one pipeline over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from topicproof.backend.characters import visible
from topicproof.backend.commands.shared_options import Json, settings_of
from topicproof.backend.commands.terminal import Styled, Table, emit, out
from topicproof.backend.errors import EvidenceError, UsageError
from topicproof.backend.history.comparison import compare as compare_reports
from topicproof.backend.history.run_reports import read_run_report
from topicproof.backend.history.signoff import Standing, run_standings
from topicproof.backend.history.store import History, Run
from topicproof.backend.history.trend import MEASURES, subject, topics
from topicproof.backend.settings import Settings
from topicproof.validators.report import Report

SHORT = {
    "findings that break the verdict": "broken by",
    "inputs judged": "inputs",
    "aborted share of the sink, %": "aborted",
    "pending offsets": "pending",
}
"""Measures that fit a terminal, with their short names."""


def compare(
    before: Annotated[str, typer.Argument(help="A run or check.", metavar="RUN")],
    after: Annotated[str, typer.Argument(help="Another one.", metavar="RUN")],
    json_: Json = None,
) -> None:
    """Compare two reports: counts, fates, and the findings that appeared or disappeared.

    Example: `topicproof compare squares-k3f9a2 squares-p7m4x8`
    """
    settings = settings_of()
    history = History(settings)
    runs = [history.get(name) for name in (before, after)]
    reports = [read_run_report(run, run.folder(settings)) for run in runs]
    comparison = compare_reports(*reports)
    emit(
        json_,
        {
            "runs": [before, after],
            "verdicts": [report.verdict for report in reports],
            "why": comparison.why,
            "figures": [
                asdict(figure) | {"change": figure.change} for figure in comparison.figures
            ],
            "kinds": [
                {
                    "kind": kind.kind,
                    "change": kind.word,
                    "outcomes": [
                        side.outcome if side else None for side in (kind.before, kind.after)
                    ],
                    "counts": [side.count if side else None for side in (kind.before, kind.after)],
                }
                for kind in comparison.kinds
            ],
        },
    )
    if json_ is not None:
        return
    out.line(comparison.why)
    table = Table(("", visible(before), visible(after), "change"))
    for figure in comparison.figures:
        table.add(figure.name, *map(_number, (figure.before, figure.after)), _signed(figure.change))
    for kind in comparison.kinds:
        sides = [
            f"{side.count:,} {side.outcome}" if side else "–" for side in (kind.before, kind.after)
        ]
        table.add(kind.kind, *sides, kind.word)
    out.table(table)


def trend(
    of: Annotated[
        str | None,
        typer.Argument(
            help="Part of a contract's name, a scenario or a topic. Default: everything."
        ),
    ] = None,
    json_: Json = None,
) -> None:
    """Show runs and checks of one contract or scenario over time, oldest first.

    Example: `topicproof trend orders.yaml`
    """
    settings = settings_of()
    history = History(settings)
    runs_by_subject: dict[str, list[Run]] = {}
    for run in reversed(history.list()):
        if run.verdict and (of is None or of in " ".join((subject(run), *topics(run)))):
            runs_by_subject.setdefault(subject(run), []).append(run)
    if of is not None and not runs_by_subject:
        raise UsageError(
            f"No run or check with a verdict is about {of}. `topicproof runs` lists all."
        )
    standings = run_standings(history, [run for runs in runs_by_subject.values() for run in runs])
    rows_by_subject = {
        name: _rows(settings, standings, runs) for name, runs in runs_by_subject.items()
    }
    emit(json_, [{"of": name, "reports": rows} for name, rows in rows_by_subject.items()])
    if json_ is not None:
        return
    if not rows_by_subject:
        out.line("No verdicts yet. Start a run: topicproof run")
    for name, rows in rows_by_subject.items():
        out.line(Styled(name, "bold"))
        table = Table(("run", "started (UTC)", "verdict", *SHORT.values(), "sign-off"))
        for row in rows:
            signed = "" if row["sign_off"] == Standing.NONE else row["sign_off"]
            figures = (_number(row["figures"][measure]) for measure in SHORT)
            table.add(row["run"], row["started"][:16], row["verdict"], *figures, signed)
        out.table(table)


def _rows(
    settings: Settings, standings: Mapping[str, str], runs: Sequence[Run]
) -> list[dict[str, Any]]:
    """Return the fields shown for each run. A figure is None if its report is gone."""
    return [
        {
            "run": run.id,
            "started": f"{run.created_at:%Y-%m-%d %H:%M:%S}",
            "verdict": run.verdict,
            "sign_off": standings[run.id],
            "figures": {
                name: measure(run, report) if report is not None else None
                for name, measure in MEASURES.items()
            },
        }
        for run in runs
        for report in [_report(settings, run)]
    ]


def _report(settings: Settings, run: Run) -> Report | None:
    try:
        return read_run_report(run, run.folder(settings))
    except EvidenceError:
        return None


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def _signed(value: float | None) -> str:
    if not value:
        return ""
    return f"{value:+,.1f}" if isinstance(value, float) else f"{value:+,}"
