"""Contracts kept by name, with versions. A version never changes; keeping another text adds one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Text, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, mapped_column

from topicproof.backend.contracts.contract import make_contract, parse_fields
from topicproof.backend.errors import EvidenceError, UsageError
from topicproof.backend.history.audit import note, require_noted
from topicproof.backend.history.store import Base, History
from topicproof.backend.trust.identity import Action

TRIES = 10
"""Attempts to keep a version. If two people keep one at once, one gets the next number and the
other tries again."""
NAMELESS = "(a name that is not allowed)"
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class _ContractRow(Base):
    __tablename__ = "contracts"
    name: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kept_at: Mapped[datetime]
    text: Mapped[str] = mapped_column(Text)


@dataclass(frozen=True)
class KeptContract:
    """One version of a contract."""

    name: str
    version: int
    """Counts from 1."""
    kept_at: datetime
    """UTC without a zone."""
    text: str
    """The contract as YAML."""

    @property
    def label(self) -> str:
        """`orders@3`"""
        return f"{self.name}@{self.version}"


def keep(history: History, name: str, text: str) -> KeptContract:
    """Keep a contract under a name, as its next version. If its newest version has the same text,
    return that one.

    Raises ContractError for a text that is not a contract, UsageError for a name that Kafka would
    not allow for a topic, EvidenceError, NotPermitted.
    """
    require_keepable(history, name, text)
    for _ in range(TRIES):
        newest = _newest(history, name)
        if newest is not None and newest.text == text:
            return newest
        number = 1 if newest is None else newest.version + 1
        contract = KeptContract(name, number, datetime.now(UTC).replace(tzinfo=None), text)
        if _add(history, contract):
            note(history, Action.KEEP, contract.label)
            return contract
    raise EvidenceError(
        f"The contract {name} was not kept: others keep versions of it all the time. Try again."
    )


def require_keepable(history: History, name: str, text: str) -> None:
    """Raises as `keep`. Ask it before a check, which keeps its contract only at its end."""
    allowed = _NAME.fullmatch(name) is not None and name not in (".", "..")
    # What is no name, such as that of an uploaded file, is not noted.
    require_noted(history, Action.KEEP, name if allowed else NAMELESS)
    if not allowed:
        raise UsageError(
            f"A contract cannot be named {name!r}. Use 1 to 249 letters, digits, dots, dashes and"
            " underscores."
        )
    make_contract(parse_fields(text, name))


def find(history: History, label: str) -> KeptContract:
    """Find a contract by `NAME`, or one of its versions by `NAME@VERSION`. Raises UsageError."""
    name, _, number = label.partition("@")
    with history.session() as session:
        query = select(_ContractRow).where(_ContractRow.name == name)
        if number.isascii() and number.isdecimal() and len(number) < 10:
            query = query.where(_ContractRow.version == int(number))
        row = session.scalars(query.order_by(_ContractRow.version.desc()).limit(1)).first()
        if row is not None and not (number and not number.isdecimal()):
            return _read(row)
    names = [contract.name for contract in contracts(history)]
    hint = f"Kept are {', '.join(names[:10])}." if names else "No contract has been kept."
    raise UsageError(f"There is no contract {label}. {hint}")


def contracts(history: History) -> list[KeptContract]:
    """Return the newest version of each contract, by name."""
    newest = (
        select(_ContractRow.name, func.max(_ContractRow.version).label("version"))
        .group_by(_ContractRow.name)
        .subquery()
    )
    same = (_ContractRow.name == newest.c.name) & (_ContractRow.version == newest.c.version)
    with history.session() as session:
        rows = session.scalars(select(_ContractRow).join(newest, same).order_by(_ContractRow.name))
        return [_read(row) for row in rows]


def versions(history: History, name: str) -> list[KeptContract]:
    """Return every version of a contract, newest first."""
    query = select(_ContractRow).where(_ContractRow.name == name)
    with history.session() as session:
        return [_read(row) for row in session.scalars(query.order_by(_ContractRow.version.desc()))]


def _newest(history: History, name: str) -> KeptContract | None:
    return next(iter(versions(history, name)), None)


def _add(history: History, contract: KeptContract) -> bool:
    """Add a version. Returns False if another process was faster."""
    with history.session() as session:
        try:
            session.add(_ContractRow(**vars(contract)))
            session.flush()
        except IntegrityError:
            session.rollback()
            return False
    return True


def _read(row: _ContractRow) -> KeptContract:
    return KeptContract(row.name, row.version, row.kept_at, row.text)
