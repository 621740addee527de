"""Sign-offs: a named person's decision on a report, bound to the evidence that it was made on.

The table only grows. Each entry holds the hash of the one before it, so that an entry that is
changed, exchanged or taken out later breaks the chain; what a chain cannot tell is that its newest
entries were taken off. A name is what the person says: nobody is asked for a password here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from enum import StrEnum

from sqlalchemy import Text, select
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Mapped, mapped_column

from topicproof.backend.errors import EvidenceError, UsageError
from topicproof.backend.evidence.folder import evidence_hash, evidence_in, read_report
from topicproof.backend.evidence.manifest import require_unchanged
from topicproof.backend.history.store import Base, History, Run
from topicproof.backend.settings import Settings
from topicproof.validators.expectation import merge
from topicproof.validators.finding import Finding, Outcome
from topicproof.validators.report import Report

FIRST = "0" * 64
"""What the first entry has for the hash of the one before it."""
TRIES = 10
"""Two people may sign at the same moment: one of them gets the next number, the other tries
again."""


class Decision(StrEnum):
    """What a person decides on a report."""

    ACCEPT = "accept"
    REJECT = "reject"
    WAIVE = "waive"
    """One kind of finding does not stand in the way of accepting, until a day, for a reason."""


class Standing(StrEnum):
    """How a report stands."""

    NONE = "not signed"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    EXPIRED = "waiver expired"
    """It was accepted under a waiver that has expired."""
    CHANGED = "evidence changed"
    """The evidence is no longer the one that was signed."""


class _SignoffRow(Base):
    __tablename__ = "signoffs"
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    run: Mapped[str] = mapped_column(index=True)
    made_at: Mapped[datetime]
    name: Mapped[str]
    decision: Mapped[str]
    comment: Mapped[str] = mapped_column(Text)
    kind: Mapped[str | None]
    until: Mapped[date | None]
    verdict: Mapped[str]
    evidence: Mapped[str]
    previous: Mapped[str]
    hash: Mapped[str]


@dataclass(frozen=True)
class Signoff:
    """One entry."""

    number: int
    """From 1 on, over all runs."""
    run: str
    made_at: datetime
    """UTC without a zone."""
    name: str
    decision: Decision
    comment: str
    kind: str | None
    """The kind of finding that is waived."""
    until: date | None
    """The last day of the waiver."""
    verdict: Outcome
    """Of the report that was signed."""
    evidence: str
    """SHA-256 of the evidence's manifest.json, or of all stages' manifests."""
    previous: str
    """`hash` of the entry before it."""
    hash: str = ""
    """SHA-256 of all the rest."""

    @property
    def said(self) -> str:
        """`2026-01-01 10:00:00 UTC Grace Hopper accepted HOLDS: comment`"""
        done = {Decision.ACCEPT: "accepted", Decision.REJECT: "rejected"}.get(
            self.decision, f"waived {self.kind} until {self.until} in"
        )
        comment = f": {self.comment}" if self.comment else ""
        return f"{self.made_at:%Y-%m-%d %H:%M:%S} UTC {self.name} {done} {self.verdict}{comment}"

    def hashed(self) -> str:
        """What `hash` must be."""
        said = {
            **asdict(self),
            "made_at": self.made_at.isoformat(),
            "until": self.until and self.until.isoformat(),
        }
        del said["hash"]
        return hashlib.sha256(
            json.dumps(said, sort_keys=True, ensure_ascii=False).encode()
        ).hexdigest()


def signable(settings: Settings, run: Run) -> tuple[list[Report], str]:
    """What a signature covers: the reports of all stages, and the hash of their unchanged evidence.

    Raises UsageError for a run that is still active, EvidenceError if the evidence is missing or
    was changed.
    """
    if run.alive:
        raise UsageError(f"Run {run.id} still goes on. Sign it when it has ended.")
    folder = run.folder(settings)
    found = evidence_in(folder)
    for evidence in found:
        require_unchanged(evidence)
    return [read_report(evidence) for evidence in found], evidence_hash(folder) or ""


def sign(
    history: History,
    run: str,
    reports: Sequence[Report],
    evidence: str,
    decision: Decision,
    name: str,
    comment: str = "",
    kind: str | None = None,
    until: date | None = None,
) -> Signoff:
    """Enter a decision on a run: on its report, or on those of its stages as one. `evidence` is
    `evidence_hash`.

    Raises UsageError for a decision that nobody can answer for: without a name; a waiver without a
    finding, a reason or a day that is still to come; an UNKNOWN that is accepted without a word; a
    VIOLATED one while a kind that breaks it is not waived.
    """
    name, comment = name.strip(), comment.strip()
    if not name:
        raise UsageError("A sign-off needs a name: --by NAME.")
    if decision is Decision.WAIVE:
        _require_waivable(reports, kind, until, comment)
    elif kind is not None or until is not None:
        raise UsageError("A kind and a day belong to a waiver only: --decision waive.")
    if decision is Decision.ACCEPT:
        _require_acceptable(reports, signoffs(history, run), evidence, comment)
    for _ in range(TRIES):
        made = _append(
            history,
            run,
            merge(one.verdict for one in reports),
            evidence,
            decision,
            name,
            comment,
            kind,
            until,
        )
        if made is not None:
            return made
    raise EvidenceError(
        "The sign-off could not be entered: too many others sign at the same time. Try again."
    )


def signoffs(history: History, run: str | None = None) -> list[Signoff]:
    """All entries, or those of one run, oldest first."""
    wanted = select(_SignoffRow).order_by(_SignoffRow.number)
    with history.session() as session:
        return [
            _read(row)
            for row in session.scalars(
                wanted if run is None else wanted.where(_SignoffRow.run == run)
            )
        ]


def broken(entries: Sequence[Signoff]) -> int | None:
    """The number of the first entry (of all, oldest first) that is not what was once entered; None
    if all are."""
    previous = FIRST
    for number, entry in enumerate(entries, start=1):
        if (entry.number, entry.previous, entry.hash) != (number, previous, entry.hashed()):
            return number
        previous = entry.hash
    return None


def standing(entries: Sequence[Signoff], evidence: str | None, today: date) -> Standing:
    """How a run stands by its entries, oldest first. `evidence`: the hash of its manifest now, None
    without one."""
    decided = next((one for one in reversed(entries) if one.decision is not Decision.WAIVE), None)
    if decided is None:
        return Standing.NONE
    if decided.evidence != evidence:
        return Standing.CHANGED
    if decided.decision is Decision.REJECT:
        return Standing.REJECTED
    # Of several waivers of one kind the one that lasts longest counts; only a violated verdict
    # rests on any.
    days: dict[str | None, date] = {}
    for one in entries:
        if one.decision is Decision.WAIVE and one.evidence == evidence and one.until:
            days[one.kind] = max(one.until, days.get(one.kind, one.until))
    rests = decided.verdict is Outcome.VIOLATED and any(day < today for day in days.values())
    return Standing.EXPIRED if rests else Standing.ACCEPTED


def breaking(*reports: Report) -> tuple[Finding, ...]:
    """The findings that make a verdict VIOLATED."""
    return tuple(
        one
        for report in reports
        for one in report.findings
        if one.outcome is Outcome.VIOLATED
        and one.kind not in {other.kind for other in report.not_checked}
    )


def _require_waivable(
    reports: Sequence[Report], kind: str | None, until: date | None, comment: str
) -> None:
    kinds = _kinds(reports)
    if kind not in kinds:
        there = f"These can: {', '.join(kinds)}." if kinds else "No finding breaks this verdict."
        raise UsageError(f"{kind or 'No kind'} cannot be waived. {there}")
    if until is None or until < _today():
        raise UsageError(
            "A waiver needs the last day it is good for, today or later: --until 2026-12-31."
        )
    if not comment:
        raise UsageError("A waiver needs its reason: --comment TEXT.")


def _require_acceptable(
    reports: Sequence[Report], entries: Sequence[Signoff], evidence: str, comment: str
) -> None:
    if any(one.verdict is Outcome.UNKNOWN for one in reports) and not comment:
        raise UsageError(
            "The verdict is UNKNOWN: accepting it needs a reason in words: --comment TEXT."
        )
    waived = {
        one.kind
        for one in entries
        if one.decision is Decision.WAIVE
        and one.evidence == evidence
        and one.until
        and one.until >= _today()
    }
    left = [kind for kind in _kinds(reports) if kind not in waived]
    if left:
        raise UsageError(
            f"The verdict is VIOLATED by {', '.join(left)}. Waive each first (--decision waive"
            f" --kind {left[0]} --until DAY --comment REASON), or reject."
        )


def _kinds(reports: Sequence[Report]) -> list[str]:
    return list(dict.fromkeys(one.kind for one in breaking(*reports)))


def _append(
    history: History,
    run: str,
    verdict: Outcome,
    evidence: str,
    decision: Decision,
    name: str,
    comment: str,
    kind: str | None,
    until: date | None,
) -> Signoff | None:
    """None when somebody else was given the number."""
    with history.session() as session:
        last = session.scalar(select(_SignoffRow).order_by(_SignoffRow.number.desc()).limit(1))
        number, previous = (last.number + 1, last.hash) if last else (1, FIRST)
        # Whole seconds: every database gives back what was hashed.
        now = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
        made = Signoff(
            number, run, now, name, decision, comment, kind, until, verdict, evidence, previous
        )
        made = replace(made, hash=made.hashed())
        session.add(_SignoffRow(**asdict(made)))
        try:
            session.flush()
        except (IntegrityError, OperationalError):
            session.rollback()
            return None
    return made


def _today() -> date:
    return datetime.now(UTC).date()


def _read(row: _SignoffRow) -> Signoff:
    fields = {name: getattr(row, name) for name in Signoff.__dataclass_fields__}
    return Signoff(
        **{**fields, "decision": Decision(row.decision), "verdict": Outcome(row.verdict)}
    )
