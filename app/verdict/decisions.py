"""Who decided on a verdict, in a line."""

from __future__ import annotations

from datetime import UTC, datetime

from topicproof.app import wording
from topicproof.backend.evidence.folder import evidence_hash
from topicproof.backend.history.signoff import RunSignoffs, Standing, standing, standing_text
from topicproof.backend.history.store import Run
from topicproof.backend.settings import Settings

DECIDED = frozenset({Standing.ACCEPTED, Standing.REJECTED})


def standing_of(settings: Settings, run: Run, signoffs: RunSignoffs) -> Standing:
    """Returns the sign-off status of a run."""
    if not signoffs.entries:
        # A list of many asks for no hash of what nobody has signed.
        return Standing.NONE
    return standing(signoffs, evidence_hash(run.folder(settings)), datetime.now(UTC).date())


def decision_line(settings: Settings, run: Run, signoffs: RunSignoffs) -> str:
    """Returns who decided on the run and how, or that nobody did, for Markdown."""
    status = standing_of(settings, run, signoffs)
    word = wording.STANDING_WORDS[status]
    if not signoffs.entries:
        return wording.badge(word)
    digest, today = evidence_hash(run.folder(settings)), datetime.now(UTC).date()
    badge = wording.badge(word, standing_text(signoffs, digest, today))
    if status is Standing.NOT_VOUCHED:
        return badge
    if signoffs.decided is not None:
        return f"{badge} by {wording.plain(signoffs.decided.who)}"
    waivers = signoffs.waivers(digest)
    if not waivers:
        return badge
    kinds = wording.count(len({entry.kind for entry in waivers}), "finding")
    return f"{badge} {kinds} waived by {wording.plain(waivers[-1].who)}"
