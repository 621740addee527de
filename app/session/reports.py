"""Reports of runs and checks, and what they found in a topic, as this person may see them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import streamlit as st
from pyarrow import ArrowInvalid

from topicproof.app.session.access import open_history
from topicproof.app.session.byte_budget import byte_budget
from topicproof.app.session.page_masks import hidden_fields, hides_parts
from topicproof.app.session.run_reads import newest_runs
from topicproof.app.topic.topic_findings import TopicFindings, read_topic_findings
from topicproof.app.wording import plain
from topicproof.backend.errors import NotPermitted, TopicproofError, UsageError
from topicproof.backend.evidence.copy import without_headers, without_values
from topicproof.backend.evidence.findings import PARQUET
from topicproof.backend.evidence.folder import REPORT, evidence_hash, evidence_in
from topicproof.backend.evidence.manifest import require_unchanged_file
from topicproof.backend.evidence.read_limits import read_bytes
from topicproof.backend.history.run_reports import contradiction, require_report_of
from topicproof.backend.history.store import Run
from topicproof.backend.runs.stage_verdicts import stage_folder
from topicproof.backend.settings import Settings
from topicproof.validators.report import Report

PARSED = 8
"""Bytes of a parsed report for each character of its JSON, roughly."""
MARK_BYTES = 1_000


def report_text(settings: Settings, run: Run, stage: str | None = None) -> str | None:
    """Reads the report of the run, or of one of its stages, from its folder; None if there is none
    yet. Raises UsageError or EvidenceError if it cannot be read."""
    path = report_folder(settings, run, stage) / REPORT
    try:
        return read_bytes(path).decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no UTF-8"
        raise UsageError(f"The report {path} cannot be read: {why}.") from error


def report_folder(settings: Settings, run: Run, stage: str | None) -> Path:
    """Returns the folder of the report of the run, or of one of its stages."""
    folder = run.folder(settings)
    # The name is from an address, so only one that the run has may become a path.
    if stage is None or stage not in run.facts.results.verdicts:
        return folder
    return stage_folder(folder, stage)


def parsed_report(text: str) -> Report:
    """Returns the report of a JSON text, parsed once."""
    key = ("report", hashlib.sha256(text.encode()).hexdigest())
    return byte_budget().get(key, lambda: Report.from_json(text), lambda _: PARSED * len(text))


def shown_report(settings: Settings, run: Run, report: Report) -> Report:
    """Returns the report without the values and transactions in its examples, if parts of the run's
    topics are masked for this person; otherwise the same one."""
    if not _hidden(settings, run, report):
        return report
    return without_headers(without_values(report))


def _hidden(settings: Settings, run: Run, report: Report) -> bool:
    topics = (*report.source.topics, *report.sink.topics)
    return bool(hidden_fields(settings, *topics)) or hides_parts(settings, run)


def kept_report(settings: Settings, run: Run, stage: str | None = None) -> Report | None:
    """Returns the report of the run or of one of its stages; None if there is no readable one, or
    if it is not the one of the run's evidence. Raises NotPermitted if this person's login has
    ended."""
    try:
        text = report_text(settings, run, stage)
        if text is None:
            return None
        report = parsed_report(text)
        require_report_of(run, report, stage)
        if contradiction(run, report_folder(settings, run, stage), report) is not None:
            return None
        return shown_report(settings, run, report)
    except NotPermitted:
        raise
    except (TopicproofError, ValueError, KeyError, TypeError):
        return None


def judged_run(runs: Sequence[Run], topic: str) -> Run | None:
    """Returns the first of these runs and checks that has a verdict on the topic, as its sink
    before its source."""
    judged = [run for run in runs if run.verdict is not None]
    return next(
        (
            run
            for of in ("sink", "source")
            for run in judged
            if getattr(run.facts, of) == topic and not run.facts.database
        ),
        None,
    )


def verdict_findings(
    settings: Settings, topic: str, run_id: str = "", stage: str | None = None
) -> TopicFindings | None:
    """Returns what a verdict found in the topic: that of the run, or of one of its stages; without
    a run the newest verdict on the topic. None without a verdict. Shows a notice if the run has
    none on this topic, and why if its evidence cannot be read."""
    runs = newest_runs(settings)
    run = judged_run(runs, topic)
    report = None
    if run_id:
        try:
            run = open_history(settings).get(run_id)
            stage = stage if stage in run.facts.results.verdicts else None
            report = kept_report(settings, run, stage)
            missing = report is None or topic not in (*report.source.topics, *report.sink.topics)
        except UsageError:
            missing = True
        if missing:
            st.warning(
                f"{plain(run_id)} has no verdict on {plain(topic)}. What is marked is of the newest"
                " verdict on it.",
                icon=":material/info:",
            )
            return verdict_findings(settings, topic)
    elif run is not None:
        report = kept_report(settings, run)
    if run is None or report is None:
        return None
    return findings_of(settings, run, report, topic, stage if run_id else None)


def findings_of(
    settings: Settings, run: Run, report: Report, topic: str, stage: str | None = None
) -> TopicFindings | None:
    """Returns what the run's verdict, or that of one of its stages, found in the topic; nothing if
    parts of its topics are masked for this person, whose values it could tell. Shows why if its
    evidence cannot be read."""
    if _hidden(settings, run, report):
        return None
    try:
        evidence = evidence_in(report_folder(settings, run, stage))[0]
        require_unchanged_file(evidence, PARQUET)
        key = ("findings", evidence_hash(evidence), topic, run.id)
        return byte_budget().get(
            key, lambda: read_topic_findings(evidence, report, run.id, topic, stage), _size_of
        )
    except (TopicproofError, OSError, ArrowInvalid) as error:
        st.warning(
            plain(f"No findings are drawn: the evidence of {run.id} cannot be read: {error}")
        )
        return None


def _size_of(findings: TopicFindings) -> int:
    return int(findings.rows.memory_usage(deep=True).sum()) + MARK_BYTES * len(findings.marks)
