"""Evidence and its sign-offs, given away: as a folder or as a zip file. Each export is in the audit
log."""

from __future__ import annotations

from pathlib import Path

from topicproof.backend.errors import NotPermitted
from topicproof.backend.evidence.attestation import attest_copy
from topicproof.backend.evidence.copy import copy_all, zip_evidence
from topicproof.backend.evidence.folder import evidence_in, holds_evidence, read_report
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.history.audit import allow, noting_refusal
from topicproof.backend.history.signoff import signoffs
from topicproof.backend.history.store import History, Run
from topicproof.backend.settings import Settings
from topicproof.backend.trust.identity import Action, Identity
from topicproof.backend.trust.login import Login, configured_login
from topicproof.backend.trust.masking import Field, masked_fields


def export_folder(history: History, run: Run, target: Path, payloads: Payloads) -> None:
    """Copy a run's evidence with its sign-offs. Raises NotPermitted, and as `copy_all`."""
    _allow(history, run, payloads)
    place = run.folder(history.settings)
    signed = [one.as_json() for one in signoffs(history, run.id)]
    copy_all(place, target, payloads, signed)
    attest_copy(history.settings, place, target)


def export_zip(history: History, run: Run, target: Path, payloads: Payloads) -> None:
    """Zip a run's evidence with its sign-offs. Raises NotPermitted, and as `zip_evidence`."""
    _allow(history, run, payloads)
    signed = [one.as_json() for one in signoffs(history, run.id)]
    place = run.folder(history.settings)
    zip_evidence(place, target, payloads, run.id, signed, history.settings)


def hidden_of(login: Login, settings: Settings, by: Identity, run: Run) -> tuple[Field, ...]:
    """Return what a person does not see of all topics that a run or check read. Histories of
    earlier versions name only the first of several sinks, so its reports are asked as well. Raises
    EvidenceError for a report that cannot be read."""
    if not login.masks:
        return ()
    folder = run.folder(settings)
    judged = [read_report(one) for one in evidence_in(folder)] if holds_evidence(folder) else []
    named = (name for one in judged for name in (*one.source.topics, *one.sink.topics))
    topics = dict.fromkeys([*run.facts.every_topic, *named])
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
