"""Runs and checks of the history, their sign-offs, and their evidence as a zip file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import streamlit as st

from topicproof.app import wording
from topicproof.app.session.access import open_history
from topicproof.backend.errors import EvidenceError
from topicproof.backend.evidence.folder import evidence_hash, evidence_in, holds_evidence
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.history.evidence_export import export_zip
from topicproof.backend.history.signoff import (
    RunSignoffs,
    Standing,
    run_standings,
    standing,
    standing_text,
)
from topicproof.backend.history.store import History, Run
from topicproof.backend.settings import Settings

DECIDED = frozenset({Standing.ACCEPTED, Standing.REJECTED})
RUNS_SHOWN = 200
DOWNLOAD_BYTES_MAX = 100_000_000
"""Bytes of evidence that the dashboard hands over. It packs them in its own memory."""


def newest_runs(settings: Settings) -> list[Run]:
    return open_history(settings).list(RUNS_SHOWN)


def run_of_url(settings: Settings) -> Run | None:
    """Returns the run in the URL; None if the URL names none. Raises UsageError if there is no such
    run."""
    run_id = st.query_params.get("run")
    return open_history(settings).get(run_id) if run_id else None


def signoff_standings(settings: Settings, runs: Sequence[Run]) -> dict[str, str]:
    """Returns each run's sign-off standing in words."""
    return run_standings(open_history(settings), runs)


def standing_of(settings: Settings, run: Run, signoffs: RunSignoffs) -> Standing:
    """Returns the sign-off status of a run."""
    if not signoffs.entries:
        # A list of many asks for no hash of what nobody has signed.
        return Standing.NONE
    return standing(signoffs, evidence_hash(run.folder(settings)), datetime.now(UTC).date())


def decision_line(settings: Settings, run: Run, signoffs: RunSignoffs) -> str:
    """Returns who decided on the run and how, or that nobody did, for Markdown."""
    if not signoffs.entries:
        return wording.badge(wording.STANDING_WORDS[Standing.NONE])
    digest, today = evidence_hash(run.folder(settings)), datetime.now(UTC).date()
    status = standing(signoffs, digest, today)
    badge = wording.badge(wording.STANDING_WORDS[status], standing_text(signoffs, digest, today))
    if status is Standing.NOT_VOUCHED:
        return badge
    if signoffs.decided is not None:
        return f"{badge} by {wording.plain(signoffs.decided.who)}"
    waivers = signoffs.waivers(digest)
    if not waivers:
        return badge
    kinds = wording.count(len({entry.kind for entry in waivers}), "finding")
    return f"{badge} {kinds} waived by {wording.plain(waivers[-1].who)}"


def evidence_bytes(settings: Settings, run: Run) -> int:
    """Returns the size of the files of a run's evidence, of its stages too."""
    folder_of_run = run.folder(settings)
    folders = evidence_in(folder_of_run) if holds_evidence(folder_of_run) else []
    return sum(path.lstat().st_size for folder in folders for path in folder.rglob("*"))


def zipped_evidence(history: History, run: Run, payloads: Payloads) -> bytes:
    """Packs the run's evidence and its sign-offs as a zip file. Raises EvidenceError, also for more
    than `DOWNLOAD_BYTES_MAX`; NotPermitted."""
    if evidence_bytes(history.settings, run) > DOWNLOAD_BYTES_MAX:
        raise EvidenceError(f"The evidence of {run.id} is too large for a page to hand over.")
    with TemporaryDirectory(prefix="topicproof-zip-") as folder:
        packed = Path(folder) / f"{run.id}.zip"
        export_zip(history, run, packed, payloads)
        return packed.read_bytes()
