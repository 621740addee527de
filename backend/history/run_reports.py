"""The report and the evidence of a run, bound to its id.

Whoever can write to the history, to a run's folder or to storage can put there what is genuine, and
belongs to another run: to its evidence a genuine signature, and to it a verdict that people want to
see. So nothing is shown, exported or signed as a run's unless it names that run and its topics.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from topicproof.backend.characters import visible
from topicproof.backend.errors import EvidenceError
from topicproof.backend.evidence.folder import (
    EVIDENCE,
    REPORT,
    evidence_in,
    holds_evidence,
    read_report,
)
from topicproof.backend.evidence.manifest import read_manifest
from topicproof.backend.history.run_state import Facts
from topicproof.backend.history.store import Run
from topicproof.backend.settings import Settings
from topicproof.validators.finding import JOINED_BY
from topicproof.validators.report import Report

NAME_CHARACTERS_MAX = 80
"""Characters shown of a name in a report that belongs to another run."""


def read_run_report(run: Run, folder: Path, stage: str | None = None) -> Report:
    """Read the report of a run or of one of its stages from its folder. Raises EvidenceError, also
    for a report of another run, or of other evidence than lies beside it."""
    report = read_report(folder)
    require_report_of(run, report, stage)
    if (says := contradiction(run, folder, report)) is not None:
        raise EvidenceError(says)
    return report


def run_evidence(settings: Settings, run: Run) -> list[Path]:
    """Find all evidence of a run, as `evidence_in`. Raises EvidenceError without any, and for
    evidence of another run."""
    folder = run.folder(settings)
    parts = evidence_in(folder)
    for part in parts:
        _require_evidence_of(run, part)
    return parts


def run_evidence_reports(settings: Settings, run: Run) -> list[Report]:
    """Read the report of each evidence of a run, whose manifest has its hash. Raises EvidenceError,
    also for one of another run or of another stage."""
    folder = run.folder(settings)
    reports = []
    for part in run_evidence(settings, run):
        listed = read_manifest(part).files.get(REPORT)
        if listed is None:
            raise EvidenceError(f"The evidence in {part} has no report.")
        report = read_report(part, listed.sha256)
        require_report_of(run, report, _stage_of(folder, part))
        reports.append(report)
    return reports


def require_report_of(run: Run, report: Report, stage: str | None = None) -> None:
    """Raises EvidenceError for a report that is not of this run, or not of this stage of it; None:
    end to end."""
    if report.run != run.id:
        raise EvidenceError(f"The report of {run.id} is that of {_shown(report.run)}.")
    names = _topics(run.facts, stage)
    topics = (report.source.topic, report.sink.topic)
    if any(name not in (None, topic) for name, topic in zip(names, topics, strict=True)):
        raise EvidenceError(
            f"The report of {_part(run, stage)} is on {_shown(topics[0])} and {_shown(topics[1])},"
            " which are other topics than its own."
        )


def contradiction(run: Run, folder: Path, report: Report) -> str | None:
    """Return why a report is not the one that the evidence beside it proves, in one sentence; None
    if it is, or if no evidence is there. `folder`: that of the run or of one of its stages. Raises
    EvidenceError for evidence of another run."""
    if not holds_evidence(folder):
        return None
    part = evidence_in(folder)[0]
    _require_evidence_of(run, part)
    digest = hashlib.sha256(f"{report.to_json()}\n".encode()).hexdigest()
    listed = read_manifest(part).files.get(REPORT)
    if (listed is not None and listed.sha256 == digest) or is_same_verdict(
        report, read_report(part)
    ):
        return None
    return (
        f"The report in {folder} is not the one of its evidence: somebody changed it, or the run is"
        " being judged again."
    )


def is_same_verdict(report: Report, other: Report) -> bool:
    """Return whether two reports differ in nothing but their examples: evidence without payloads
    quotes no record."""
    first, second = (
        replace(each, findings=tuple(replace(row, examples=()) for row in each.findings)).to_json()
        for each in (report, other)
    )
    return first == second


def _require_evidence_of(run: Run, evidence: Path) -> None:
    of = read_manifest(evidence).run
    if of != run.id:
        raise EvidenceError(f"The evidence in {evidence} is that of {_shown(of)}, not of {run.id}.")


def _stage_of(folder: Path, evidence: Path) -> str | None:
    """Return the stage whose evidence this is; None for evidence end to end."""
    return None if evidence in (folder, folder / EVIDENCE) else evidence.parent.name


def _topics(facts: Facts, stage: str | None) -> tuple[str | None, str | None]:
    """Return the source and the sink of a run or of one of its stages, as reports name them. None
    where the history does not know it: of a check, of a run of earlier versions, of a table."""
    stages = [names for names in facts.stages if stage in (None, names.stage)]
    if not stages:
        return None, None
    sink = None if stages[-1].database is not None else JOINED_BY.join(stages[-1].sinks)
    return JOINED_BY.join(stages[0].sources), sink


def _part(run: Run, stage: str | None) -> str:
    return run.id if stage is None else f"stage {_shown(stage)} of {run.id}"


def _shown(name: str | None) -> str:
    return "no run" if name is None else visible(name)[:NAME_CHARACTERS_MAX]
