"""Histories on both databases."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from backend.history.store import History
from backend.settings import read_settings
from tests.postgresql import new_database


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty database, which is the history's."""
    url = f"sqlite:///{tmp_path / 'history.db'}"
    if request.param == "postgresql":
        url = new_database(request.getfixturevalue("postgresql"), uuid.uuid4().hex)
    monkeypatch.setenv("TOPICPROOF_DATABASE", url)
    return url


@pytest.fixture
def open_history(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[], History]:
    """Opens the history, as another process would."""
    assert database
    settings = read_settings(home=tmp_path)

    def opened() -> History:
        history = History(settings)
        request.addfinalizer(history.engine.dispose)
        return history

    return opened
