"""Figures of many reports over time, grouped by pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from topicproof.backend.history.signoff import breaking
from topicproof.backend.history.store import Run
from topicproof.validators.report import Report

MEASURES: Mapping[str, Callable[[Run, Report], float | None]] = {
    "findings that break the verdict": lambda _run, report: sum(
        one.primary for one in breaking(report)
    ),
    "inputs judged": lambda _run, report: report.source_records,
    "aborted share of the sink, %": lambda _run, report: _share(report.fates["aborted"], report),
    "pending offsets": lambda _run, report: report.fates["pending"],
    "transactions aborted": lambda _run, report: report.transactions.aborted,
    "run took, s": lambda run, _report: took_s(run),
    "judged in, s": lambda _run, report: report.took_s,
}
"""Measures by their display names."""


def scenario(run: Run) -> str:
    """Return the run's scenario, or `check` for a check."""
    return str(run.plan.get("scenario", run.kind))


def topics(run: Run) -> list[str]:
    """Return the topics that the run is about."""
    return [name for name in (run.facts.source, run.facts.sink) if name]


def subject(run: Run) -> str:
    """Return what runs share to be comparable over time: a scenario and guarantee, a version of a
    contract, or two topics and a guarantee."""
    guarantee = run.plan.get("guarantee", "")
    if label := contract_label(run):
        return f"{label}: {' → '.join(topics(run))} · {guarantee}"
    if run.kind == "check":
        return f"{' → '.join(topics(run))} · {guarantee}"
    return f"{scenario(run)} · {guarantee}"


def contract_label(run: Run) -> str:
    """Return the contract of a check, such as `orders@2` or `orders.yaml`; empty without one."""
    version = run.plan.get("contract_version")
    return str(run.plan.get("contract", "")) + (f"@{version}" if version else "")


def is_comparable(before: Run, after: Run) -> bool:
    """Whether both answer one question, as far as their plans tell."""
    matched = (run.plan.get("identity") for run in (before, after))
    return subject(before) == subject(after) and len({str(identity) for identity in matched}) == 1


def took_s(run: Run) -> float | None:
    """Return the seconds from start to end; None before the end."""
    return None if run.ended_at is None else (run.ended_at - run.created_at).total_seconds()


def frame(runs: Sequence[Run], reports: Mapping[str, Report], measure: str) -> pd.DataFrame:
    """Make a frame with one row per report, in the order of `runs`: run, started, verdict,
    figure."""
    return pd.DataFrame(
        {
            "run": [run.id for run in runs],
            "started": [run.created_at for run in runs],
            "verdict": [str(reports[run.id].verdict) for run in runs],
            "figure": [MEASURES[measure](run, reports[run.id]) for run in runs],
        }
    )


def _share(count: int | None, report: Report) -> float | None:
    return (
        None
        if count is None or not report.sink.offsets
        else round(100 * count / report.sink.offsets, 2)
    )
