"""The audit log: who launched, stopped, aborted, exported, signed and looked at payloads, and whom
this was refused.

The table only grows: triggers refuse any other change, and each entry has the hash of the previous
one. Payloads and secrets are never in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Text, select
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Mapped, mapped_column

from topicproof.backend.characters import visible
from topicproof.backend.errors import EvidenceError, NotPermitted
from topicproof.backend.evidence.read_limits import parse_json
from topicproof.backend.history.store import Base, Flag, History, Moment, require_types
from topicproof.backend.trust.identity import Action, Identity, read_identity, require

FIRST = "0" * 64
"""The first entry's hash of the previous one."""
WHAT_MAX = 1_000
"""Characters of `what` in an entry."""
TRIES = 50
"""Attempts to add an entry. Of several people who act at once, one gets the next number."""


class _AuditRow(Base):
    __tablename__ = "audit"
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    made_at: Mapped[datetime] = mapped_column(Moment)
    identity: Mapped[str] = mapped_column(Text)
    action: Mapped[str]
    what: Mapped[str] = mapped_column(Text)
    allowed: Mapped[bool] = mapped_column(Flag)
    previous: Mapped[str]
    hash: Mapped[str]


@dataclass(frozen=True)
class Entry:
    """Something that somebody did, or wanted to do."""

    number: int
    """Counts from 1."""
    made_at: datetime
    """UTC without a zone."""
    by: Identity
    action: Action
    what: str
    """The run, the topic or the transaction."""
    allowed: bool
    previous: str
    hash: str
    correct: str
    """What `hash` must be."""

    @property
    def said(self) -> str:
        """`2026-01-01 10:00:00 UTC Ada (unauthenticated): launch a run squares-a`"""
        refused = "" if self.allowed else "refused: "
        return f"{self.made_at:%Y-%m-%d %H:%M:%S} UTC {self.by.shown}: {refused}{self.action}" + (
            f" {self.what}" if self.what else ""
        )


def allow(history: History, action: Action, what: str = "") -> None:
    """Note who asks for an action, and refuse those whose roles do not allow it. Raises
    NotPermitted, EvidenceError: without the note nothing is done."""
    require_noted(history, action, what)
    note(history, action, what)


def require_noted(history: History, action: Action, what: str = "") -> None:
    """Raises NotPermitted as `allow`, and notes only that. For what another process notes, or for
    what has no name yet."""
    with noting_refusal(history, action, what):
        require(history.by, action)


@contextmanager
def noting_refusal(history: History, action: Action, what: str = "") -> Iterator[None]:
    """Note the NotPermitted that the block raises."""
    try:
        yield
    except NotPermitted:
        note(history, action, what, allowed=False)
        raise


def note(history: History, action: Action, what: str = "", *, allowed: bool = True) -> None:
    """Add an entry. What does not print is spelled in it, and it has a limited length. Raises
    EvidenceError."""
    what = visible(what[:WHAT_MAX]) + ("…" if len(what) > WHAT_MAX else "")
    who = json.dumps(history.by.as_json(), sort_keys=True, ensure_ascii=False)
    for _ in range(TRIES):
        if _append(history, who, action, what, allowed):
            return
    raise EvidenceError("The audit log cannot be written: too many people act at once. Try again.")


def audit_entries(history: History) -> list[Entry]:
    """Return the whole log, oldest first. Raises EvidenceError."""
    with history.session() as session:
        rows = list(session.scalars(select(_AuditRow).order_by(_AuditRow.number)))
    try:
        return [_read(row) for row in rows]
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise EvidenceError(f"The audit log cannot be read: {error}.") from error


def broken_audit(entries: Sequence[Entry]) -> int | None:
    """Return the number of the first entry that was changed, or before which one is missing; None
    if all are intact. Takes all entries, oldest first."""
    previous = FIRST
    for number, entry in enumerate(entries, start=1):
        if (entry.number, entry.previous, entry.hash) != (number, previous, entry.correct):
            return number
        previous = entry.hash
    return None


def _append(history: History, who: str, action: Action, what: str, allowed: bool) -> bool:
    """Add an entry. Returns whether its number was still free."""
    with history.session() as session:
        last = session.scalar(select(_AuditRow).order_by(_AuditRow.number.desc()).limit(1))
        number, previous = (last.number + 1, last.hash) if last else (1, FIRST)
        row = _AuditRow(
            number=number,
            # Whole seconds, so that every database returns exactly what was hashed.
            made_at=datetime.now(UTC).replace(tzinfo=None, microsecond=0),
            identity=who,
            action=str(action),
            what=what,
            allowed=allowed,
            previous=previous,
        )
        row.hash = _hash(row)
        session.add(row)
        try:
            session.flush()
        except (IntegrityError, OperationalError):
            session.rollback()
            return False
    return True


def _hash(row: _AuditRow) -> str:
    fields = [row.number, row.made_at.isoformat(), row.identity, row.action, row.what]
    text = json.dumps([*fields, row.allowed, row.previous], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _read(row: _AuditRow) -> Entry:
    require_types(row)
    by, action = read_identity(parse_json(row.identity)), Action(row.action)
    columns = row.number, row.made_at, by, action, row.what, row.allowed, row.previous, row.hash
    return Entry(*columns, _hash(row))
