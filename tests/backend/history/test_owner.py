"""Whose run it is: found by its process, and written by its owner alone."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from topicproof.backend.errors import UsageError
from topicproof.backend.history.run_state import Facts, Progress
from topicproof.backend.history.store import History, State

Open = Callable[[], History]
OTHER = "elsewhere:1:0.00"


def give(history: History, run: str, owner: str | None) -> None:
    with history.engine.begin() as connection:
        connection.execute(
            sa.text("update runs set owner = :owner where id = :run"), {"owner": owner, "run": run}
        )


def test_a_run_that_another_process_has_resumed_is_not_written(open_history: Open) -> None:
    """Story: a machine sleeps longer than its lease. Another one resumes the run. When the first
    wakes, it publishes nothing, changes no state and does not end the run of the other."""
    history = open_history()
    run = history.create("run", "squares", {}).id
    history.enter(run, State.PROCESSING)
    give(history, run, OTHER)
    before = history.get(run)
    for write in (
        lambda: history.renew(run, Progress(processed=7)),
        lambda: history.enter(run, State.JUDGING),
        lambda: history.remember(run, Facts(filled=True)),
        lambda: history.end(run, State.FAILED, None, None, "fenced"),
    ):
        with pytest.raises(UsageError, match=f"taken over by another process .{OTHER}."):
            write()
    assert history.get(run) == before and before.owner == OTHER

    give(history, run, None)
    history.end(run, State.FAILED, None, None, "fenced")
    assert history.get(run).state is State.PROCESSING
    history.remember(run, Facts(filled=True))
    assert history.get(run).facts.filled


def test_all_runs_are_found(open_history: Open) -> None:
    """Story: the oldest of many runs is resumed. It is found by its process, and listed."""
    history = open_history()
    runs = [history.create("run", "squares", {}).id for _ in range(203)]
    for run in runs[1:]:
        history.end(run, State.DONE, "HOLDS", "")
    assert [run.id for run in history.list()] == runs[::-1]
    assert [run.id for run in history.list(3)] == runs[:-4:-1]
    me = f"{socket.gethostname()}:{os.getpid()}:"
    assert (history.owned_by(me), history.owned_by("%")) == ([runs[0]], [])
