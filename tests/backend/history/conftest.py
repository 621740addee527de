"""Histories on both databases."""

from __future__ import annotations

import gc
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.postgresql import new_database
from topicproof.backend.history.store import History
from topicproof.backend.settings import read_settings


@pytest.fixture(params=["sqlite", "postgresql"])
def database(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The address of an empty database, which is the history's."""
    url = f"sqlite:///{tmp_path / 'history.db'}"
    if request.param == "postgresql":
        url = new_database(request.getfixturevalue("postgresql"), uuid.uuid4().hex)
    monkeypatch.setenv("TOPICPROOF_DATABASE", url)
    return url


def removals(history: History, table: str) -> tuple[str, ...]:
    """Statements that remove or replace every row of a table, as the database spells them."""
    copy = f"{table} select * from {table}"
    if history.engine.dialect.name == "sqlite":
        return (
            f"delete from {table}",
            f"insert or replace into {copy} where true",
            f"replace into {copy}",
            f"insert into {copy} where true on conflict (number) do update set hash = ''",
        )
    return (
        f"delete from {table}",
        f"truncate {table}",
        f"truncate runs, {table} cascade",
        f"insert into {copy} on conflict (number) do update set hash = ''",
    )


@pytest.fixture
def open_history(database: str, tmp_path: Path) -> Iterator[Callable[[], History]]:
    """Opens the history, as another process would."""
    assert database
    settings = read_settings(home=tmp_path)
    histories: list[History] = []

    def opened() -> History:
        histories.append(History(settings))
        return histories[-1]

    yield opened
    for history in histories:
        history.engine.dispose()
    # A connection that is left open fails the test that left it, not one that runs when it is
    # collected.
    gc.collect()
