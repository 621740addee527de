"""Evidence and its sign-offs, given away: as a folder or as a zip file. Each export is in the audit
log."""

from __future__ import annotations

from pathlib import Path

from topicproof.backend.errors import EvidenceError, NotPermitted
from topicproof.backend.evidence.copy import Content, copy_all, zip_evidence
from topicproof.backend.evidence.folder import evidence_in, holds_evidence, read_report
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.evidence.signed import Entries
from topicproof.backend.history.audit import allow, noting_refusal
from topicproof.backend.history.run_reports import run_evidence_reports
from topicproof.backend.history.signoff import read_chain
from topicproof.backend.history.store import History, Run
from topicproof.backend.settings import Settings
from topicproof.backend.trust.identity import Action, Identity
from topicproof.backend.trust.login import Login, configured_login
from topicproof.backend.trust.masking import Field, masked_anywhere, masked_fields


def export_folder(history: History, run: Run, target: Path, payloads: Payloads) -> Content:
    """Copy a run's evidence with its sign-offs. Returns what was handed out. Raises NotPermitted,
    EvidenceError for a sign-off that nobody vouches for, and as `copy_all`."""
    _allow(history, run, payloads)
    place = _own_folder(history, run)
    return copy_all(place, target, payloads, _sound_signoffs(history, run), history.settings)


def export_zip(history: History, run: Run, target: Path, payloads: Payloads) -> None:
    """Zip a run's evidence with its sign-offs. Raises NotPermitted, EvidenceError for a sign-off
    that nobody vouches for, and as `zip_evidence`."""
    _allow(history, run, payloads)
    place = _own_folder(history, run)
    entries = _sound_signoffs(history, run)
    zip_evidence(place, target, payloads, run.id, entries, history.settings)


def _own_folder(history: History, run: Run) -> Path:
    """Return the folder of a run's evidence. Raises EvidenceError for evidence of another run."""
    run_evidence_reports(history.settings, run)
    return run.folder(history.settings)


def _sound_signoffs(history: History, run: Run) -> Entries:
    """Return the sign-offs of a run. A copy is signed, and its reader believes the signature: so
    raises EvidenceError for an entry that `topicproof keys chain` rejects."""
    signoffs = read_chain(history).of(run.id, run.verdict)
    for number, says in signoffs.doubts.items():
        raise EvidenceError(
            f"The evidence of {run.id} is not exported with its sign-offs, because of entry"
            f" {number}: {says} `topicproof keys chain` checks all entries."
        )
    return [entry.as_json() for entry in signoffs.entries]


def hidden_of(login: Login, settings: Settings, by: Identity, run: Run) -> tuple[Field, ...]:
    """Return what a person does not see of all topics that a run or check read. Histories of
    earlier versions name only the first of several sinks, so its reports are asked as well. What
    any rule masks is hidden if the topics are unknown. Raises EvidenceError for a report that
    cannot be read."""
    if not login.masks:
        return ()
    folder = run.folder(settings)
    judged = (
        [read_report(evidence) for evidence in evidence_in(folder)]
        if holds_evidence(folder)
        else []
    )
    named = (name for report in judged for name in (*report.source.topics, *report.sink.topics))
    topics = dict.fromkeys([*run.facts.every_topic, *named])
    if not topics or "facts" in run.damaged:
        # Whoever can damage a row of the history would undo the masks of its run.
        return masked_anywhere(login.masks, by)
    return tuple(field for topic in topics for field in masked_fields(login.masks, topic, by))


def _allow(history: History, run: Run, payloads: Payloads) -> None:
    """Ask and note as `allow`. Digests of masked fields could be guessed, so a person who does not
    see them exports no payloads at all."""
    what = f"{run.id} with payloads {payloads}"
    settings = history.settings
    login = configured_login(settings)
    with noting_refusal(history, Action.EXPORT, what):
        if (
            payloads is not Payloads.NONE
            and login is not None
            and hidden_of(login, settings, history.by, run)
        ):
            raise NotPermitted(
                f"Parts of the payloads of {run.id} are masked for your role. Export it without"
                " payloads (none)."
            )
    allow(history, Action.EXPORT, what)
