"""The history's database: made, brought up to date, and left alone when it is."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from topicproof.backend.errors import EvidenceError
from topicproof.backend.history import kept_contracts, signoff
from topicproof.backend.history.run_state import Facts
from topicproof.backend.history.store import MIGRATIONS, REVISION, Base, History, State
from topicproof.backend.settings import read_settings

BEFORE = """
create table runs (
    id varchar not null primary key, kind varchar not null, created_at {time} not null,
    ended_at {time},
    state varchar not null, owner varchar, renewed_at {time}, stop_requested boolean not null,
    plan text not null,
    facts text not null, progress text not null, verdict varchar, why text, error text
)
"""
"""The history of before there were migrations."""


def test_the_newest_step_is_the_one_that_the_program_asks_for() -> None:
    """Story: somebody adds a step. The constant that spares every process the look at the steps
    must follow."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_current_head() == REVISION


def test_the_steps_lead_to_the_tables_that_the_program_uses(
    open_history: Callable[[], History],
) -> None:
    """Story: an empty database. After the steps it differs in nothing from what the program's
    classes describe."""
    with open_history().engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_a_history_of_before_keeps_all_its_runs(
    database: str, open_history: Callable[[], History]
) -> None:
    """Story: somebody has used Topicproof since before there were migrations. Opened by this
    version, the history has every run it had, and can do what is new."""
    engine = sa.create_engine(database)
    with engine.begin() as connection:
        connection.execute(
            sa.text(BEFORE.format(time="datetime" if engine.name == "sqlite" else "timestamp"))
        )
        connection.execute(
            sa.text(
                "insert into runs values ('squares-abc', 'run', '2026-01-01 10:00:00', '2026-01-01"
                " 10:01:00', 'done', null, null, false, '{\"records\": 7}', '{\"sink\":"
                " \"squares\"}', '{}', 'HOLDS', 'all of it', null)"
            )
        )
    engine.dispose()
    history = open_history()
    kept = history.get("squares-abc")
    assert kept.plan == {"records": 7} and kept.facts == Facts(sink="squares")
    assert kept.state is State.DONE and kept.why == "all of it"
    assert history.create("run", "squares", {}).id in {run.id for run in history.list()}
    assert signoff.signoffs(history) == [] and kept_contracts.contracts(history) == []


def test_many_processes_may_open_a_new_history_at_once(open_history: Callable[[], History]) -> None:
    """Story: a dashboard and three runs start in an empty home. One of them makes the tables, the
    others wait."""
    with ThreadPoolExecutor(4) as pool:
        histories = list(pool.map(lambda _: open_history(), range(4)))
    made = [history.create("run", "squares", {}).id for history in histories]
    assert {run.id for run in histories[0].list()} == set(made)


def test_a_database_that_is_being_made_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: one process has begun to make the SQLite file when another opens it. SQLite refuses at
    once to change the journal of a file that somebody writes to, whatever its busy time-out; the
    second waits all the same."""
    monkeypatch.setenv("TOPICPROOF_DATABASE", f"sqlite:///{tmp_path / 'history.db'}")
    first = sqlite3.connect(tmp_path / "history.db", isolation_level=None, check_same_thread=False)
    first.execute("begin immediate")
    refused = threading.Event()

    def told(statement: str) -> None:
        if "journal_mode" in statement:
            refused.set()

    def opened(connection: sqlite3.Connection, _record: object) -> None:
        connection.set_trace_callback(told)

    sa.event.listen(sa.Engine, "connect", opened, insert=True)
    try:
        with ThreadPoolExecutor(1) as pool:
            second = pool.submit(History, read_settings(home=tmp_path))
            assert refused.wait(30)
            first.execute("rollback")
            history = second.result(timeout=30)
    finally:
        sa.event.remove(sa.Engine, "connect", opened)
        first.close()
    assert history.list() == []
    history.engine.dispose()


def test_a_newer_history_is_refused(open_history: Callable[[], History]) -> None:
    """Story: a colleague's newer version has changed the shared history. The older one says so, and
    changes nothing."""
    history = open_history()
    with history.engine.begin() as connection:
        connection.execute(sa.text("update alembic_version set version_num = '9999'"))
    with pytest.raises(EvidenceError, match="written by a newer Topicproof"):
        open_history()


def test_being_up_to_date_is_known_without_the_steps(tmp_path: Path) -> None:
    """Story: every command opens the history. Only the first one pays for looking at the steps."""
    script = (
        "import sys; from pathlib import Path; from backend.history.store import History; from"
        " backend.settings import read_settings; History(read_settings(home=Path(sys.argv[1])));"
        " print('alembic.command' in sys.modules)"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for _ in range(2)
    ]
    assert said == ["True", "False"]
    with sqlite3.connect(tmp_path / "history.db") as connection:
        assert connection.execute("select version_num from alembic_version").fetchone() == (
            REVISION,
        )
    connection.close()
