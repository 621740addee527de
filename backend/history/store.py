"""The history of runs and checks: SQLAlchemy on SQLite by default, PostgreSQL by URL
(TOPICPROOF_DATABASE).

A run has one owner at a time: the process that holds its lease. Another process may take over a
lease that is not renewed, or whose local process is gone. `resume` and `clean` do that after a kill
-9.
"""

from __future__ import annotations

import builtins
import json
import os
import re
import secrets
import socket
import sqlite3
import weakref
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import psutil
from sqlalchemy import (
    Boolean,
    ColumnElement,
    Date,
    DateTime,
    Dialect,
    Engine,
    String,
    Text,
    TypeDecorator,
    case,
    create_engine,
    event,
    func,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random

from topicproof.backend.characters import visible_lines
from topicproof.backend.errors import EvidenceError, SetupError, UsageError
from topicproof.backend.evidence.read_limits import parse_json
from topicproof.backend.history.own_file import require_own_file
from topicproof.backend.history.run_state import (
    Facts,
    Progress,
    facts_json,
    progress_json,
    read_facts,
    read_progress,
    require_plan_fields,
)
from topicproof.backend.settings import Settings
from topicproof.backend.trust.acting import acting
from topicproof.backend.trust.identity import Identity
from topicproof.validators.finding import Outcome
from topicproof.validators.shell_words import shell_word

LEASE_S = 30
"""A lease from another machine is lost after this long without a renewal."""
MIGRATIONS = Path(__file__).with_name("migrations")
REVISION = "0006"
"""The newest step of the migrations."""
BUSY_S = 10
"""How long a process waits for other writers of the same SQLite file."""
ID_LETTERS = "23456789abcdefghjkmnpqrstvwxyz"
"""Letters and digits that are hard to confuse."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,299}", re.ASCII)
SENTENCE_MAX = 10_000
"""Characters of a run's reason or error: each page reads those of all runs that it lists."""
DOCUMENTS = ("plan", "facts", "progress")
"""Columns with JSON."""
DOCUMENT_CHARACTERS_MAX = 5_000_000
"""Characters of one of them. Offsets of 100,000 partitions have fewer."""
LONG_MAX, LONG_DIGITS_MAX = 2**63 - 1, 20
DAMAGED = "Its row in the history is damaged"
UNKNOWN_TIME = datetime(1970, 1, 1)
"""Stands for a time that cannot be read."""
LOCK = 0x70697070
"""Our number among PostgreSQL's advisory locks."""


T = TypeVar("T")


class Kind(StrEnum):
    """What an entry of the history is."""

    RUN = "run"
    CHECK = "check"


class State(StrEnum):
    """State of a run. The last three are final unless the run is resumed."""

    CREATED = "created"
    FILLING = "filling"
    PROCESSING = "processing"
    JUDGING = "judging"
    STOPPING = "stopping"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


ENDED = frozenset({State.DONE, State.STOPPED, State.FAILED})


class Base(DeclarativeBase):
    pass


class Lenient(TypeDecorator[Any]):
    """A column of SQLite may hold a value of any type. One that is none of its own is None, where
    SQLAlchemy would end the query of all rows."""

    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        process = super().result_processor(dialect, coltype) or (lambda value: value)

        def read(value: Any) -> Any:
            try:
                return process(value)
            except (ValueError, TypeError, OverflowError):
                return None

        return read


class Moment(Lenient):
    impl = DateTime
    cache_ok = True


class Day(Lenient):
    impl = Date
    cache_ok = True


class Flag(Lenient):
    impl = Boolean
    cache_ok = True


class _RunRow(Base):
    __tablename__ = "runs"
    id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(Moment)
    ended_at: Mapped[datetime | None] = mapped_column(Moment)
    state: Mapped[str]
    owner: Mapped[str | None]
    renewed_at: Mapped[datetime | None] = mapped_column(Moment)
    stop_requested: Mapped[bool] = mapped_column(Flag, default=False)
    plan: Mapped[str] = mapped_column(Text)
    facts: Mapped[str] = mapped_column(Text, default="{}")
    progress: Mapped[str] = mapped_column(Text, default="{}")
    verdict: Mapped[str | None]
    why: Mapped[str | None] = mapped_column(Text)
    error: Mapped[str | None] = mapped_column(Text)


@dataclass(frozen=True)
class Run:
    """One execution of a plan, or one check of two topics, in the history."""

    id: str
    kind: str
    """run or check"""
    created_at: datetime
    ended_at: datetime | None
    state: State
    owner: str | None
    renewed_at: datetime | None
    stop_requested: bool
    plan: dict[str, Any]
    facts: Facts = field(default_factory=Facts)
    progress: Progress = field(default_factory=Progress)
    """The latest live figures."""
    verdict: str | None = None
    why: str | None = None
    error: str | None = None
    damaged: tuple[str, ...] = ()
    """Columns of its row that cannot be read; they have their defaults here."""

    @property
    def age_s(self) -> float:
        """Seconds since the run was created."""
        return (_now() - self.created_at).total_seconds()

    def folder(self, settings: Settings) -> Path:
        """Return the folder of its report and evidence."""
        return Path(self.facts.folder or settings.runs / self.id)

    @property
    def alive(self) -> bool:
        """Whether its owner is still working on it."""
        return self.owner is not None and _holds(self.owner, self.renewed_at)


class _Connections:
    """Shared by a history and its copies. The last of them closes the connections: since Python
    3.13, one to SQLite that nobody closes is a ResourceWarning."""


class History:
    """All access to the database. Raises EvidenceError if it cannot be read or written."""

    def __init__(self, settings: Settings, by: Identity | None = None) -> None:
        """`by`: who acts through it. None: who acts through this process (trust/acting.py)."""
        self.settings = settings
        self.engine = _engine(settings.database_url, settings.home)
        self._connections = _Connections()
        weakref.finalize(self._connections, self.engine.dispose)
        self._by = by

    @property
    def by(self) -> Identity:
        """Who acts. Raises as `acting`."""
        if self._by is None:
            self._by = acting(self.settings)
        return self._by

    def acted_on_by(self, by: Identity, settings: Settings | None = None) -> History:
        """Return the same history for another person, with the same connections. `settings`: of the
        cluster on which they act; None: the same. What they start runs there."""
        history = copy(self)
        history._by = by
        history.settings = settings or self.settings
        return history

    def create(self, kind: str, name: str, plan: Mapping[str, Any]) -> Run:
        """Create a run owned by this process, with a globally unique id. Two clusters may share a
        history, or two laptops a cluster, but no two runs may share a transactional id."""
        row = _RunRow(
            id=f"{name}-{''.join(secrets.choice(ID_LETTERS) for _ in range(6))}",
            kind=kind,
            created_at=_now(),
            state=State.CREATED,
            owner=_me(),
            renewed_at=_now(),
            stop_requested=False,
            plan=json.dumps(plan),
            facts="{}",
            progress="{}",
        )
        with self.session() as session:
            session.add(row)
            session.flush()
            return _read(row)

    def get(self, run: str) -> Run:
        """Return a run. Raises UsageError for an unknown one, naming the newest runs."""
        with self.session() as session:
            query = select(*_bounded_columns()).where(_RunRow.id == run)
            row = session.execute(query).one_or_none()
            if row is not None:
                _require_name(row.id)
                return _read(row)
            ids = session.scalars(select(_RunRow.id).order_by(_RunRow.created_at.desc()).limit(3))
            newest = [name for name in ids if NAME.fullmatch(name)]
        hint = f"The newest are {', '.join(newest)}." if newest else "The history is empty."
        raise UsageError(f"There is no run {run}. {hint} `topicproof runs` lists all.")

    def list(self, limit: int | None = None, kind: Kind | None = None) -> list[Run]:
        """Return the runs, newest first; at most `limit`, of one kind or of all. A row whose id is
        no name of a folder is nobody's run: it is passed over."""
        return self._listed(limit, *(() if kind is None else (_RunRow.kind == str(kind),)))

    def judged_before(self, run: Run, naming: str, limit: int) -> Sequence[Run]:
        """Return older runs of the same kind that have a verdict, newest first; only those whose
        plan or facts have this name somewhere."""
        quoted = json.dumps(naming)
        return self._listed(
            limit,
            _RunRow.kind == run.kind,
            _RunRow.created_at < run.created_at,
            _RunRow.verdict.is_not(None),
            or_(
                *(
                    column.contains(quoted, autoescape=True)
                    for column in (_RunRow.plan, _RunRow.facts)
                )
            ),
        )

    def _listed(self, limit: int | None, *where: ColumnElement[bool]) -> builtins.list[Run]:
        query = select(*_bounded_columns()).where(*where).order_by(_RunRow.created_at.desc())
        with self.session() as session:
            rows = session.execute(query.limit(limit))
            return [_read(row) for row in rows if NAME.fullmatch(row.id)]

    def owned_by(self, process: str) -> Sequence[str]:
        """Return the ids of the runs whose owner begins with these words, newest first."""
        query = select(_RunRow.id).where(_RunRow.owner.startswith(process, autoescape=True))
        with self.session() as session:
            ids = session.scalars(query.order_by(_RunRow.created_at.desc())).all()
        return [run for run in ids if NAME.fullmatch(run)]

    def take(self, run: str) -> Run:
        """Become the owner. Raises UsageError while another live process owns the run."""
        current = self.get(run)
        if current.alive and current.owner != _me():
            raise UsageError(
                f"Run {run} is in use by another process ({current.owner}). Stop it first:"
                f" topicproof stop {shell_word(run)}"
            )
        same_owner = (
            _RunRow.owner.is_(None) if current.owner is None else _RunRow.owner == current.owner
        )
        values = {
            "owner": _me(),
            "renewed_at": _now(),
            "stop_requested": False,
            "error": None,
            "ended_at": None,
        }
        with self.session() as session:
            # Only if the owner has not changed since: of two concurrent attempts, one wins.
            won = session.execute(
                update(_RunRow).where(_RunRow.id == run, same_owner).values(**values)
            )
            if won.rowcount != 1:  # type: ignore[attr-defined]
                raise UsageError(
                    f"Run {run} was just taken by another process. Look: topicproof show"
                    f" {shell_word(run)}"
                )
        return self.get(run)

    def renew(self, run: str, progress: Progress) -> bool:
        """Renew the lease and publish live figures. Returns whether a stop was requested
        meanwhile. Raises UsageError if another process has taken the run."""
        if progress.trouble is not None:
            progress = replace(progress, trouble=_storable(progress.trouble))
        self._update(run, True, renewed_at=_now(), progress=progress_json(progress))
        return self.get(run).stop_requested

    def remember(self, run: str, facts: Facts) -> None:
        """Replace the facts. Raises as `renew`."""
        self._update(run, True, facts=facts_json(facts))

    def replace_plan(self, run: str, plan: Mapping[str, Any]) -> None:
        """Replace the plan. Raises as `renew`."""
        self._update(run, True, plan=json.dumps(plan))

    def enter(self, run: str, state: State) -> None:
        """Enter a state. Raises as `renew`."""
        self._update(run, True, state=state)

    def request_stop(self, run: str) -> None:
        with self.session() as session:
            session.execute(update(_RunRow).where(_RunRow.id == run).values(stop_requested=True))

    def end(
        self, run: str, state: State, verdict: str | None, why: str | None, error: str | None = None
    ) -> None:
        """Record the final state of a run, and release the lease. The first end counts. Raises as
        `renew`."""
        self._update(
            run,
            False,
            state=state,
            verdict=verdict,
            why=None if why is None else _storable(why),
            error=None if error is None else _storable(error),
            ended_at=_now(),
            owner=None,
            stop_requested=False,
        )

    def forget(self, run: str) -> None:
        with self.session() as session:
            row = session.get(_RunRow, run)
            if row is not None:
                session.delete(row)

    def _update(self, run: str, also_ended: bool, **values: Any) -> None:
        """Write to a run of this process, or to one that has ended. A process that slept longer
        than its lease must not write to a run that another has resumed meanwhile."""
        is_ours = _RunRow.owner == _me()
        if also_ended:
            is_ours = or_(is_ours, _RunRow.owner.is_(None))
        with self.session() as session:
            session.execute(update(_RunRow).where(_RunRow.id == run, is_ours).values(**values))
            owner = session.scalar(select(_RunRow.owner).where(_RunRow.id == run))
        if owner not in (None, _me()):
            raise UsageError(
                f"Run {run} was taken over by another process ({owner}) and continues there. Look:"
                f" topicproof show {shell_word(run)}"
            )

    def session(self) -> _Translated:
        """Return a transaction for a `with` block."""
        return _Translated(self.engine)


class _Translated:
    """A database transaction that turns SQLAlchemy's errors into EvidenceError."""

    def __init__(self, engine: Engine) -> None:
        self.session = Session(engine, expire_on_commit=False)

    def __enter__(self) -> Session:
        return self.session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: object
    ) -> None:
        try:
            if kind is None:
                self.session.commit()
        except SQLAlchemyError as failure:
            error = failure
        finally:
            self.session.close()
        if isinstance(error, SQLAlchemyError):
            raise EvidenceError(_cannot(error)) from error


def _engine(url: str, home: Path) -> Engine:
    _require_usable(url, home)
    try:
        engine = create_engine(url)
        if engine.dialect.name == "sqlite":
            # Readers of a live run must not wait for its writer, and a short lock must not fail the
            # writer.
            event.listen(engine, "connect", _prepare_sqlite)
        if _revision(engine) != REVISION:
            try:
                _upgrade(engine)
            except BaseException:
                engine.dispose()
                raise
    except SQLAlchemyError as error:
        raise EvidenceError(_cannot(error)) from error
    return engine


def _require_usable(url: str, home: Path) -> None:
    """Raises SetupError for an address that no history can have. It is quoted in no message,
    because it may hold a password."""
    try:
        address = make_url(url)
        if address.get_backend_name() not in ("sqlite", "postgresql"):
            raise SetupError(
                f"{_WRONG} a history is kept in PostgreSQL (postgresql+psycopg://) or SQLite, and"
                " the address is of another database."
            )
        # Drivers fail in their own ways on what they cannot read.
        engine = create_engine(address)
        if engine.dialect.name == "sqlite":
            require_own_file(engine.dialect.create_connect_args(address)[0][0], home)
        engine.connect().close()
        engine.dispose()
    except ImportError as error:
        raise SetupError(
            f"{_WRONG} the package {error.name}, which its driver needs, is not installed. For"
            " PostgreSQL, begin the address with postgresql+psycopg://."
        ) from error
    except (ValueError, TypeError, AttributeError, OSError) as error:
        raise SetupError(
            f"{_WRONG} the address cannot be read. It is postgresql+psycopg://USER@HOST:PORT/NAME,"
            " with a number as PORT."
        ) from error
    except SQLAlchemyError as error:
        raise EvidenceError(_cannot(error)) from error


_WRONG = "The setting TOPICPROOF_DATABASE is wrong:"


def _revision(engine: Engine) -> str | None:
    """Return the newest migration of the database; None for a new one, or one older than
    migrations."""
    with engine.connect() as connection:
        try:
            revision: str | None = connection.scalar(
                text("select version_num from alembic_version")
            )
        except SQLAlchemyError:
            # Either the table is missing or the database cannot be reached. The upgrade that
            # follows distinguishes them.
            return None
    return revision


def _upgrade(engine: Engine) -> None:
    """Apply the missing migrations, all or none. A concurrent process waits and then has nothing to
    do."""
    # Imported late, because opening an up-to-date history must stay fast.
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.connect() as connection:
        alone = (
            "begin immediate"
            if engine.dialect.name == "sqlite"
            else f"select pg_advisory_xact_lock({LOCK})"
        )
        connection.execute(text(alone))
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise EvidenceError(
                "The history database was written by a newer Topicproof. Update this one, or choose"
                " another database with TOPICPROOF_DATABASE or another home with TOPICPROOF_HOME."
            ) from error
        connection.commit()


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.execute(f"pragma busy_timeout={BUSY_S * 1000}")
    # A text that is not UTF-8 would end the query of all rows.
    connection.text_factory = lambda data: data.decode(errors="backslashreplace")
    # SQLite does not wait when it changes the journal mode of a database that another process is
    # creating, so we do.
    for attempt in Retrying(
        retry=retry_if_exception_type(sqlite3.OperationalError),
        stop=stop_after_delay(BUSY_S),
        wait=wait_random(0.01, 0.05),
        reraise=True,
    ):
        with attempt:
            connection.execute("pragma journal_mode=wal")


def _cannot(error: SQLAlchemyError) -> str:
    cause = str(getattr(error, "orig", None) or error).splitlines()[0]
    return (
        f"The history database cannot be used: {cause}. Check TOPICPROOF_DATABASE or the home"
        " folder."
    )


def _now() -> datetime:
    """Return the time as UTC without a zone, as SQLite can store it."""
    return datetime.now(UTC).replace(tzinfo=None)


def _me() -> str:
    process = psutil.Process()
    return f"{socket.gethostname()}:{os.getpid()}:{process.create_time():.2f}"


def _holds(owner: str, renewed_at: datetime | None) -> bool:
    host, *process_name = owner.rsplit(":", 2)
    if host == socket.gethostname() and len(process_name) == 2:
        pid, started = process_name
        try:
            process = psutil.Process(int(pid))
            return (
                f"{process.create_time():.2f}" == started
                and process.status() != psutil.STATUS_ZOMBIE
            )
        except (psutil.NoSuchProcess, ValueError, OverflowError):
            return False
    return renewed_at is not None and _now() - renewed_at < timedelta(seconds=LEASE_S)


def _require_name(run: str) -> None:
    """Raises EvidenceError for an id that is no name of a folder. Another hand may have entered it,
    and a run's folder is named, written and removed by its id."""
    if not NAME.fullmatch(run):
        raise EvidenceError(f"The history has a run {run!r}, which Topicproof does not name so.")


def _bounded_columns() -> list[ColumnElement[Any]]:
    """Return the columns of a run without what is longer than any of ours: each page reads those
    of all runs that it lists."""
    bounded: list[ColumnElement[Any]] = []
    for column in _RunRow.__table__.columns:
        if not isinstance(column.type, String):
            bounded.append(column)
        elif column.name in DOCUMENTS:
            is_ours = func.length(column) <= DOCUMENT_CHARACTERS_MAX
            bounded.append(case((is_ours, column), else_=None).label(column.name))
        else:
            cut = column if column.name == "id" else func.substr(column, 1, SENTENCE_MAX)
            bounded.append(cut.label(column.name))
    return bounded


def _read(row: Any) -> Run:
    """Read a row. What is damaged in it takes its default, and `error` says so: one row must not
    hide all others."""
    damaged: list[str] = []

    def read(name: str, parse: Callable[[], T], default: T) -> T:
        try:
            return parse()
        except (ValueError, TypeError, AttributeError, RecursionError):
            damaged.append(name)
            return default

    state = read("state", lambda: State(row.state), State.FAILED)
    plan: dict[str, Any] = read("plan", lambda: _plan(row.plan), {})
    facts = read("facts", lambda: read_facts(_document(row.facts)), Facts())
    progress = read("progress", lambda: read_progress(_document(row.progress)), Progress())
    # Without a kind that is known it is nothing that could be resumed.
    kind = read("kind", lambda: Kind(row.kind), Kind.CHECK)
    created_at = read("created_at", lambda: _moment(row.created_at), UNKNOWN_TIME)
    verdict = read("verdict", lambda: row.verdict and str(Outcome(row.verdict)), None)
    sentences = {
        name: read(name, partial(_text, getattr(row, name)), None)
        for name in ("owner", "why", "error")
    }
    error = f"{DAMAGED} ({', '.join(damaged)})." if damaged else sentences["error"]
    return Run(
        id=row.id,
        kind=str(kind),
        created_at=created_at,
        ended_at=row.ended_at,
        state=state,
        owner=sentences["owner"],
        renewed_at=row.renewed_at,
        stop_requested=bool(row.stop_requested),
        plan=plan,
        facts=facts,
        progress=progress,
        verdict=verdict,
        why=sentences["why"],
        error=error,
        damaged=tuple(damaged),
    )


def _storable(sentence: str) -> str:
    """Return a sentence as every database takes it: names in it are any text that a Kafka client
    has sent, and PostgreSQL takes no NUL."""
    return visible_lines(sentence)[:SENTENCE_MAX]


def _plan(text: object) -> dict[str, Any]:
    """Parse a plan. Raises ValueError for anything else."""
    value = parse_json(_document(text))
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    require_plan_fields(value)
    return value


def _document(text: object) -> str:
    """Return a JSON document whose numbers are finite and no larger than a long. Raises ValueError
    for another one: figures are compared, formatted and put into tables of longs."""
    if not isinstance(text, str):
        raise ValueError("it is no text, or longer than any of ours")
    json.loads(text, parse_constant=_finite, parse_float=_finite, parse_int=_long)
    return text


def require_types(row: Base) -> None:
    """Raises ValueError for a row with a value of another type than its column has, as SQLite
    keeps."""
    for column in row.__table__.columns:
        value = getattr(row, column.name)
        if value is None and column.nullable:
            continue
        kind = column.type
        kind = kind.impl_instance if isinstance(kind, TypeDecorator) else kind
        if not isinstance(value, kind.python_type):
            raise ValueError(f"its {column.name} is none")


def _finite(number: str) -> float:
    value = float(number)
    if not isfinite(value):
        raise ValueError("it has a number that is not finite")
    return value


def _long(number: str) -> int:
    if len(number) > LONG_DIGITS_MAX or not -LONG_MAX <= int(number) <= LONG_MAX:
        raise ValueError("it has a number that is no long")
    return int(number)


def _moment(value: object) -> datetime:
    if not isinstance(value, datetime):
        raise ValueError("it is no time")
    return value


def _text(value: object) -> str | None:
    if not isinstance(value, str | None):
        raise ValueError("it is no text")
    return value
