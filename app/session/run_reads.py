"""Runs and checks of the history, their sign-offs, and their evidence as a zip file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import streamlit as st

from topicproof.app.session.access import open_history
from topicproof.backend.evidence.folder import evidence_hash
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.history.evidence_export import export_zip
from topicproof.backend.history.signoff import Signoff, signoffs, standing_text
from topicproof.backend.history.store import History, Run
from topicproof.backend.settings import Settings

RUNS_SHOWN = 200


def newest_runs(settings: Settings) -> list[Run]:
    return open_history(settings).list(RUNS_SHOWN)


def run_of_url(settings: Settings) -> Run | None:
    """Returns the run in the URL; None if the URL names none. Raises UsageError if there is no such
    run."""
    run_id = st.query_params.get("run")
    return open_history(settings).get(run_id) if run_id else None


def signoff_standings(settings: Settings, runs: Sequence[Run]) -> dict[str, str]:
    """Returns each run's sign-off standing in words."""
    signed: dict[str, list[Signoff]] = {}
    for signoff in signoffs(open_history(settings)):
        signed.setdefault(signoff.run, []).append(signoff)
    today = datetime.now(UTC).date()
    return {
        run.id: (standing_text(signed.get(run.id, []), evidence_hash(run.folder(settings)), today))
        for run in runs
    }


def zipped_evidence(history: History, run: Run, payloads: Payloads) -> bytes:
    """Packs the run's evidence and its sign-offs as a zip file. Raises EvidenceError,
    NotPermitted."""
    with TemporaryDirectory(prefix="topicproof-zip-") as folder:
        packed = Path(folder) / f"{run.id}.zip"
        export_zip(history, run, packed, payloads)
        return packed.read_bytes()
