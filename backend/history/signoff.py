"""Sign-offs: a named person's decision on a report, bound to its evidence.

The table only grows. Each entry holds the hash of the previous one, so changing, swapping or
removing an entry breaks the chain. Each entry is also signed with the key of the installation that
entered it (anchor.py), so nobody else can compute the chain again. With a login (trust/login.py) an
entry has the identity that the login established; without one it says "unauthenticated".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from sqlalchemy import Text, select
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Mapped, mapped_column

from topicproof.backend.errors import EvidenceError, NotPermitted, UsageError
from topicproof.backend.evidence.attestation import Trust, vouching
from topicproof.backend.evidence.folder import evidence_hash
from topicproof.backend.evidence.manifest import require_unchanged
from topicproof.backend.evidence.read_limits import parse_json
from topicproof.backend.evidence.signed import entry_hash, hashed_fields
from topicproof.backend.history.anchor import (
    Anchored,
    anchored,
    missing,
    remember,
    sign_entry,
    signed_here,
)
from topicproof.backend.history.audit import note, noting_refusal, require_noted
from topicproof.backend.history.run_reports import run_evidence, run_evidence_reports
from topicproof.backend.history.store import Base, Day, History, Moment, Run, require_types
from topicproof.backend.settings import Settings
from topicproof.backend.trust.identity import Action, How, Identity, read_identity, unauthenticated
from topicproof.backend.trust.keyring import Keyring, read_keyring
from topicproof.backend.trust.login import configured_login
from topicproof.validators.expectation import merge
from topicproof.validators.finding import Finding, Outcome
from topicproof.validators.report import Report

FIRST = "0" * 64
"""The first entry's hash of the previous one."""
COMMENT_CHARACTERS_MAX = 10_000
"""The envelope of an entry holds the comment, and a longer envelope is not read."""
TRIES = 10
"""Attempts to enter a sign-off. If two people sign at once, one gets the next number and the other
tries again."""


class Decision(StrEnum):
    """A person's decision on a report."""

    ACCEPT = "accept"
    REJECT = "reject"
    WAIVE = "waive"
    """Accept one kind of finding until a given day, for a given reason."""


class Standing(StrEnum):
    """Sign-off status of a report."""

    NONE = "not signed"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    EXPIRED = "waiver expired"
    """Accepted under a waiver that has expired."""
    CHANGED = "evidence changed"
    """The evidence has changed since it was signed."""
    NOT_VOUCHED = "not vouched for"
    """No trusted key vouches for what the history says of it."""
    OTHER = "another verdict signed"
    """Accepted with another verdict than the history has of the run."""


class _SignoffRow(Base):
    __tablename__ = "signoffs"
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    run: Mapped[str] = mapped_column(index=True)
    made_at: Mapped[datetime] = mapped_column(Moment)
    name: Mapped[str]
    decision: Mapped[str]
    comment: Mapped[str] = mapped_column(Text)
    kind: Mapped[str | None]
    until: Mapped[date | None] = mapped_column(Day)
    verdict: Mapped[str]
    evidence: Mapped[str]
    previous: Mapped[str]
    hash: Mapped[str]
    envelope: Mapped[str | None] = mapped_column(Text)
    identity: Mapped[str | None] = mapped_column(Text)


@dataclass(frozen=True)
class Signoff:
    """One entry."""

    number: int
    """Counts from 1, over all runs."""
    run: str
    made_at: datetime
    """UTC without a zone."""
    name: str
    decision: Decision
    comment: str
    kind: str | None
    """The waived kind of finding."""
    until: date | None
    """The last day of the waiver."""
    verdict: Outcome
    """The verdict of the signed report."""
    evidence: str
    """SHA-256 of the evidence's manifest.json, or of all stages' manifests."""
    previous: str
    """`hash` of the previous entry."""
    hash: str = ""
    """SHA-256 of all other fields but `envelope`."""
    envelope: str | None = None
    """The signature (anchor.py); None in entries of earlier versions."""
    identity: Identity | None = None
    """Who signed, as the login established it, or unauthenticated; None in entries of versions
    without a login, which were unauthenticated too."""

    @property
    def who(self) -> str:
        """`Grace Hopper (unauthenticated)`"""
        return (self.identity or unauthenticated(self.name)).shown

    @property
    def said(self) -> str:
        """`2026-01-01 10:00:00 UTC Grace Hopper (unauthenticated) accepted HOLDS: comment`"""
        done = {Decision.ACCEPT: "accepted", Decision.REJECT: "rejected"}.get(
            self.decision, f"waived {self.kind} until {self.until} in"
        )
        comment = f": {self.comment}" if self.comment else ""
        return f"{self.made_at:%Y-%m-%d %H:%M:%S} UTC {self.who} {done} {self.verdict}{comment}"

    def fields(self) -> dict[str, Any]:
        """Return what is hashed and signed, as JSON has it."""
        return hashed_fields(self.as_json())

    def hashed(self) -> str:
        """Compute the correct `hash`."""
        return entry_hash(self.as_json())

    def as_json(self) -> dict[str, Any]:
        """Return all fields, as they are kept beside evidence. Entries of earlier versions have no
        identity, so that their hashes stay."""
        fields = {
            **asdict(self),
            "made_at": self.made_at.isoformat(),
            "until": self.until and self.until.isoformat(),
        }
        del fields["identity"]
        return fields if self.identity is None else {**fields, "identity": self.identity.as_json()}


@dataclass(frozen=True)
class RunSignoffs:
    """The sign-offs of one run, and what each is worth here. Only a chain makes them."""

    entries: tuple[Signoff, ...]
    """Oldest first."""
    doubts: Mapping[int, str]
    """Why an entry does not count, in one sentence, by its number."""
    verdict: str | None
    """The run's verdict in the history; None before there is one."""

    @property
    def decided(self) -> Signoff | None:
        """The last decision that counts."""
        vouched = (entry for entry in reversed(self.entries) if entry.number not in self.doubts)
        return next((entry for entry in vouched if entry.decision is not Decision.WAIVE), None)

    def waivers(self, evidence: str | None) -> list[Signoff]:
        """Return the waivers of findings on this evidence, also those that do not count."""
        return [
            entry
            for entry in self.entries
            if entry.decision is Decision.WAIVE and entry.evidence == evidence
        ]


@dataclass(frozen=True)
class SignoffChain:
    """All sign-offs of a history, and what each is worth here. Whoever can write to the database
    can write rows; so what is shown of a sign-off is taken from here."""

    entries: tuple[Signoff, ...]
    """Oldest first."""
    broken: int | None
    """The first entry that was tampered with; None if the hashes agree."""
    unanchored: tuple[Anchored, ...]
    """The entries that no trusted key vouches for, then those that this installation signed and
    that somebody removed. Each needs a signature of its own, also one of a version that did not
    sign: whoever can write to the database could append an entry, and the hash that the next
    person signs would cover it."""
    doubts: Mapping[int, str]
    """Why an entry does not count, in one sentence, by its number."""
    damage: str | None
    """Why none of them counts: one may have been removed that decides otherwise."""

    def of(self, run: str, verdict: str | None) -> RunSignoffs:
        """Return the sign-offs of a run. `verdict`: what the history says of it."""
        entries = tuple(self._by_run.get(run, ()))
        doubts = {
            entry.number: says
            for entry in entries
            if (says := self.doubts.get(entry.number, self.damage)) is not None
        }
        return RunSignoffs(entries, doubts, verdict)

    @cached_property
    def _by_run(self) -> Mapping[str, Sequence[Signoff]]:
        entries: dict[str, list[Signoff]] = {}
        for entry in self.entries:
            entries.setdefault(entry.run, []).append(entry)
        return entries


def signable(
    settings: Settings, run: Run, displayed: str | None = None
) -> tuple[list[Report], str]:
    """Return what a signature covers: the reports of all stages, and the hash of their unchanged
    evidence. `displayed`: the hash of the evidence that the signer has looked at, if it is known.

    Raises UsageError if the run is still active or its evidence is another than was shown,
    EvidenceError if the evidence is missing or changed, or if it is that of another run.
    """
    if run.alive:
        raise UsageError(f"Run {run.id} is still running. Sign it when it has ended.")
    keyring = read_keyring(settings)
    for evidence in run_evidence(settings, run):
        require_unchanged(evidence)
        _require_vouched(settings, evidence, keyring)
    digest = evidence_hash(run.folder(settings)) or ""
    if displayed is not None and digest != displayed:
        raise UsageError(
            f"The evidence of run {run.id} is another one by now ({digest[:12]}…, before"
            f" {displayed[:12]}…): the run was judged again. Look at its verdict, then sign."
        )
    reports = run_evidence_reports(settings, run)
    if evidence_hash(run.folder(settings)) != digest:
        raise EvidenceError(
            f"The evidence of run {run.id} was changed while it was read. Sign again."
        )
    return reports, digest


def _require_vouched(settings: Settings, evidence: Path, keyring: Keyring) -> None:
    """Raises EvidenceError for evidence that `topicproof verify` refuses by its signature."""
    vouched = vouching(evidence, keyring)
    lacks_signature = settings.require_signature and vouched.trust is not Trust.VOUCHED
    if vouched.trust.refused or lacks_signature:
        raise EvidenceError(f"The evidence in {evidence} is not signed off. {vouched.says}")


def sign(
    history: History,
    run: str,
    reports: Sequence[Report],
    evidence: str,
    decision: Decision,
    name: str | None = None,
    comment: str = "",
    kind: str | None = None,
    until: date | None = None,
) -> Signoff:
    """Enter a decision on a run: on its report, or on those of its stages as one. `evidence` is
    `evidence_hash`. A person who has signed in signs under the name of the login; `name` is
    for the others.

    Raises NotPermitted if the person's roles do not allow it, or if four eyes are required and they
    would be two. Raises UsageError for a decision without a name. A waiver also needs a finding, a
    reason and a day that is not past. Accepting UNKNOWN, or a run that did not reach all its
    inputs, needs a comment. Accepting VIOLATED needs a waiver for each kind that breaks the
    verdict. No comment is longer than `COMMENT_CHARACTERS_MAX`.
    """
    comment = comment.strip()
    if len(comment) > COMMENT_CHARACTERS_MAX:
        raise UsageError(
            f"The comment has {len(comment):,} characters, and {COMMENT_CHARACTERS_MAX:,} are the"
            " most. Name a document that says more."
        )
    by = require_signer(history, run, evidence, decision, name)
    if decision is Decision.WAIVE:
        _require_waivable(reports, kind, until, comment)
    elif kind is not None or until is not None:
        raise UsageError("A kind and a day belong to a waiver only.")
    if decision is Decision.ACCEPT:
        require_acceptable(history, run, reports, evidence, comment)
        comment = " ".join([*filter(None, [_covered(reports)]), comment]).strip()
    note(history, _action(decision), run)
    for _ in range(TRIES):
        entry = _append(
            history,
            run,
            merge(report.verdict for report in reports),
            evidence,
            decision,
            by,
            comment,
            kind,
            until,
        )
        if entry is not None:
            return entry
    raise EvidenceError(
        "The sign-off could not be entered: too many people sign at the same time. Try again."
    )


def require_signer(
    history: History, run: str, evidence: str, decision: Decision, name: str | None
) -> Identity:
    """Return who would sign this decision. Ask it before the judge tests itself, which takes a
    while. Raises NotPermitted and UsageError as `sign` does for the person and the name."""
    action = _action(decision)
    require_noted(history, action, run)
    with noting_refusal(history, action, run):
        by = _signer(history.by, name)
        if decision is Decision.ACCEPT and history.settings.four_eyes:
            # A waiver that nobody vouches for still keeps its person from accepting.
            waived = [entry for entry in signoffs(history, run) if entry.evidence == evidence]
            _require_known_people(history.settings)
            _require_other_eyes(by, history.get(run).facts.launched_by, waived)
    return by


def signoffs(history: History, run: str | None = None) -> list[Signoff]:
    """Return the rows of all entries, or of those of one run, oldest first, as the database has
    them. What they are worth is for `read_chain` to say."""
    query = select(_SignoffRow).order_by(_SignoffRow.number)
    with history.session() as session:
        return [
            _read(row)
            for row in session.scalars(
                query if run is None else query.where(_SignoffRow.run == run)
            )
        ]


def broken(entries: Sequence[Signoff]) -> int | None:
    """Return the number of the first entry that was tampered with; None if all are intact. Takes
    all entries, oldest first."""
    previous = FIRST
    for number, entry in enumerate(entries, start=1):
        if (entry.number, entry.previous, entry.hash) != (number, previous, entry.hashed()):
            return number
        previous = entry.hash
    return None


def read_chain(history: History) -> SignoffChain:
    """Read all sign-offs, and check their hashes and signatures. Raises EvidenceError, and
    UsageError for a damaged keyring."""
    signed = signed_here(history.settings)
    entries = tuple(signoffs(history))
    keyring = read_keyring(history.settings)
    number_broken = broken(entries)
    anchors = [anchored(entry.number, entry.hash, entry.envelope, keyring) for entry in entries]
    doubtful = [entry for entry in anchors if not entry.trusted]
    removed = missing(signed, [entry.hash for entry in entries])
    doubts = {entry.number: entry.says for entry in doubtful}
    damage = None
    if number_broken is not None:
        damage = f"The chain of sign-offs is broken at entry {number_broken}."
        doubts |= {
            entry.number: "It was changed after it was entered."
            for entry in entries
            if entry.hash != entry.hashed()
        }
    elif removed:
        damage = f"This installation signed entry {removed[0]}, and it is not in the history."
    gone = (
        Anchored(number, False, "This installation signed it, and it is not in the history.")
        for number in removed
    )
    return SignoffChain(entries, number_broken, (*doubtful, *gone), doubts, damage)


def standing(signoffs: RunSignoffs, evidence: str | None, today: date) -> Standing:
    """Return a run's status. `evidence`: the current hash of its manifest, None without one.

    A sign-off that does not count, and that is newer than the last decision that does, makes the
    status NOT_VOUCHED: it may have been a rejection before somebody changed it.
    """
    decided = signoffs.decided
    if any(decided is None or number > decided.number for number in signoffs.doubts):
        return Standing.NOT_VOUCHED
    if decided is None:
        return Standing.NONE
    if decided.evidence != evidence:
        return Standing.CHANGED
    if decided.decision is Decision.REJECT:
        return Standing.REJECTED
    if signoffs.verdict is not None and signoffs.verdict != decided.verdict:
        return Standing.OTHER
    if decided.verdict is not Outcome.VIOLATED:
        return Standing.ACCEPTED
    # Only a VIOLATED verdict depends on waivers.
    days = _waived_until(signoffs, evidence)
    if any(entry.kind not in days for entry in signoffs.waivers(evidence)):
        return Standing.NOT_VOUCHED
    return Standing.EXPIRED if any(day < today for day in days.values()) else Standing.ACCEPTED


def _waived_until(signoffs: RunSignoffs, evidence: str | None) -> dict[str | None, date]:
    """Return the last day of each kind that is waived on the evidence. The longest of several
    waivers of one kind counts."""
    days: dict[str | None, date] = {}
    for entry in signoffs.waivers(evidence):
        if entry.number not in signoffs.doubts and entry.until:
            days[entry.kind] = max(entry.until, days.get(entry.kind, entry.until))
    return days


def waivers(signoffs: RunSignoffs, evidence: str | None) -> int:
    """Return how many kinds of finding are waived on the evidence in a verdict that is accepted; 0
    if it does not depend on waivers."""
    decided = signoffs.decided
    if decided is None or decided.decision is Decision.REJECT:
        return 0
    if decided.verdict is not Outcome.VIOLATED or decided.evidence != evidence:
        return 0
    return len(
        {
            entry.kind
            for entry in signoffs.waivers(evidence)
            if entry.number < decided.number and entry.number not in signoffs.doubts
        }
    )


def standing_text(signoffs: RunSignoffs, evidence: str | None, today: date) -> str:
    """Return a run's status in words: `accepted with 3 waivers`. Takes what `standing` takes."""
    status, waived = standing(signoffs, evidence, today), waivers(signoffs, evidence)
    if status is not Standing.ACCEPTED or not waived:
        return str(status)
    return f"{status} with {waived} {'waiver' if waived == 1 else 'waivers'}"


def run_standings(history: History, runs: Iterable[Run]) -> dict[str, str]:
    """Return the status of each run in words, by its id. Raises as `read_chain`."""
    chain = read_chain(history)
    today = _today()
    return {
        run.id: standing_text(
            chain.of(run.id, run.verdict), evidence_hash(run.folder(history.settings)), today
        )
        for run in runs
    }


def breaking(*reports: Report) -> tuple[Finding, ...]:
    """Return the findings that make a verdict VIOLATED."""
    return tuple(
        finding
        for report in reports
        for finding in report.findings
        if finding.outcome is Outcome.VIOLATED
        and finding.kind not in {other.kind for other in report.not_checked}
    )


def _require_waivable(
    reports: Sequence[Report], kind: str | None, until: date | None, comment: str
) -> None:
    kinds = _kinds(reports)
    if kind not in kinds:
        choice = f"These can: {', '.join(kinds)}." if kinds else "No finding breaks this verdict."
        if kind is None:
            raise UsageError(f"Name the kind of finding to waive: --kind KIND. {choice}")
        raise UsageError(f"{kind} does not break this verdict, so it cannot be waived. {choice}")
    if until is None or until < _today():
        raise UsageError("A waiver needs its last valid day, today or later, such as 2026-12-31.")
    if not comment:
        raise UsageError("A waiver needs its reason, as its comment.")


def waived_kinds(signoffs: RunSignoffs, evidence: str) -> set[str]:
    """Return the kinds of finding that are waived today on this evidence."""
    days = _waived_until(signoffs, evidence)
    return {kind for kind, day in days.items() if kind is not None and day >= _today()}


def require_acceptable(
    history: History, run: str, reports: Sequence[Report], evidence: str, comment: str
) -> None:
    """Ask it before the judge tests itself, which takes a while. Raises UsageError as `sign` does
    if the verdict needs a waiver or a comment to be accepted."""
    comment = comment.strip()
    if any(report.verdict is Outcome.UNKNOWN for report in reports) and not comment:
        raise UsageError(
            "The verdict is UNKNOWN: accepting it needs a reason in words, as its comment."
        )
    covered = _covered(reports)
    if covered and not comment:
        raise UsageError(
            f"The verdict {covered} Accepting it needs a reason in words, as its comment."
        )
    signoffs = read_chain(history).of(run, None)
    waived = waived_kinds(signoffs, evidence)
    left = [kind for kind in _kinds(reports) if kind not in waived]
    if left:
        doubtful = next(
            (
                f" The waiver of entry {entry.number} does not count. {says}"
                for entry in signoffs.waivers(evidence)
                if entry.kind in left and (says := signoffs.doubts.get(entry.number))
            ),
            "",
        )
        raise UsageError(
            f"The verdict is VIOLATED by {', '.join(left)}. Waive each of these kinds first, until"
            f" a day and with a reason, or reject.{doubtful}"
        )


def _action(decision: Decision) -> Action:
    return Action.WAIVE if decision is Decision.WAIVE else Action.SIGN


def _signer(by: Identity, name: str | None) -> Identity:
    """Return who signs: the person who has signed in, or somebody of this name."""
    if by.how is How.PASSED_ON:
        raise NotPermitted("A process that the dashboard started does not sign.")
    name = (name or "").strip()
    if by.authenticated:
        if name not in ("", by.name):
            raise UsageError(f"You have signed in as {by.name}. Leave out the name {name}.")
        return by
    if not name:
        raise UsageError("A sign-off needs a name.")
    return unauthenticated(name)


def _require_known_people(settings: Settings) -> None:
    """Raises NotPermitted if one person may seem to be two, on the dashboard and on the command
    line."""
    login = configured_login(settings)
    if login is not None and login.provider is not None and not login.provider.knows_people:
        raise NotPermitted(
            "Four eyes are required (TOPICPROOF_FOUR_EYES), and the provider may call one person"
            " two names: the dashboard and the command line are two clients of it. Name in"
            " openid.person of the login a claim that is the same for both, such as oid, or sub if"
            " subjects are the same in all clients."
        )


def _require_other_eyes(
    by: Identity, launched_by: Sequence[Identity], entries: Sequence[Signoff]
) -> None:
    """Raises NotPermitted unless `by` is another person than those who launched or resumed the run
    and who waived findings of it."""
    waived_by = [
        entry.identity or unauthenticated(entry.name)
        for entry in entries
        if entry.decision is Decision.WAIVE
    ]
    need = "Four eyes are required (TOPICPROOF_FOUR_EYES)"
    if not by.authenticated:
        raise NotPermitted(f"{need}, so accepting needs a login.")
    for did, people in (("launched it", launched_by), ("waived its findings", waived_by)):
        if by.person and any(person.authenticated and not person.person for person in people):
            raise NotPermitted(
                f"{need}, and it is not known who {did}: that was before openid.person was set."
            )
        if any(by.is_same_person(person) for person in people):
            raise NotPermitted(f"{need}, and {by.name} {did}. Somebody else must accept it.")
        if any(not person.authenticated for person in people):
            raise NotPermitted(f"{need}, and nobody knows who {did}: that was without a login.")
    if not launched_by:
        raise NotPermitted(f"{need}, and nobody knows who launched it: that was without a login.")


def _covered(reports: Sequence[Report]) -> str:
    """Return which part of the input the verdict covers, if the run did not reach all of it."""
    part = min(
        (report for report in reports if report.covered_share is not None),
        key=lambda report: report.covered_share or 0,
        default=None,
    )
    if part is None or part.covered_share is None:
        return ""
    return (
        f"covers {part.covered_share:.0%} of the input: {part.not_processed:,} inputs were not"
        " processed."
    )


def _kinds(reports: Sequence[Report]) -> list[str]:
    return list(dict.fromkeys(finding.kind for finding in breaking(*reports)))


def _append(
    history: History,
    run: str,
    verdict: Outcome,
    evidence: str,
    decision: Decision,
    by: Identity,
    comment: str,
    kind: str | None,
    until: date | None,
) -> Signoff | None:
    """Append an entry. Returns None if somebody else got its number."""
    with history.session() as session:
        last = session.scalar(select(_SignoffRow).order_by(_SignoffRow.number.desc()).limit(1))
        number, previous = (last.number + 1, last.hash) if last else (1, FIRST)
        # Whole seconds, so that every database returns exactly what was hashed.
        now = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
        content = decision, comment, kind, until, verdict, evidence, previous
        entry = Signoff(number, run, now, by.name, *content, identity=by)
        entry = replace(entry, hash=entry.hashed())
        entry = replace(
            entry, envelope=sign_entry(history.settings, entry.fields(), entry.hash, evidence)
        )
        identity = json.dumps(by.as_json(), sort_keys=True, ensure_ascii=False)
        session.add(_SignoffRow(**{**asdict(entry), "identity": identity}))
        try:
            session.flush()
        except (IntegrityError, OperationalError):
            session.rollback()
            return None
    remember(history.settings, entry.number, entry.hash)
    return entry


def _today() -> date:
    return datetime.now(UTC).date()


def _read(row: _SignoffRow) -> Signoff:
    """Raises EvidenceError for a row whose values are of other types, or cannot be parsed."""
    fields = {name: getattr(row, name) for name in Signoff.__dataclass_fields__}
    try:
        require_types(row)
        fields["identity"] = row.identity and read_identity(parse_json(row.identity))
        return Signoff(
            **{**fields, "decision": Decision(row.decision), "verdict": Outcome(row.verdict)}
        )
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise EvidenceError(
            f"Entry {row.number} of the sign-offs cannot be read: {error}."
        ) from error
