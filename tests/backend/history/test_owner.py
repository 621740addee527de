"""Whose run it is: found by its process, and written by its owner alone."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from topicproof.backend.errors import EvidenceError, UsageError
from topicproof.backend.history.run_state import Facts, Progress
from topicproof.backend.history.store import DOCUMENT_CHARACTERS_MAX, SENTENCE_MAX, History, State
from topicproof.backend.settings import read_settings

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


@pytest.mark.parametrize("name", ["..", ".", "/root", "a/../../x", "", "a\nb"])
def test_a_run_is_named_as_its_folder_can_be(open_history: Open, name: str) -> None:
    """Story: an administrator of the database enters a run whose folder would be another place, and
    waits for somebody to delete the run."""
    history = open_history()
    run = history.create("run", "squares", {}).id
    history.end(run, State.DONE, "HOLDS", "")
    with history.engine.begin() as connection:
        connection.execute(
            sa.text("update runs set id = :name where id = :run"), {"name": name, "run": run}
        )
    for look in (history.get, history.take):
        with pytest.raises(EvidenceError, match="which Topicproof does not name so"):
            look(name)
    assert history.list() == []
    with pytest.raises(UsageError, match="The history is empty"):
        history.get("squares-none")


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("progress", '{"kept": 1' + "0" * 4_300 + "}"),
        ("facts", '{"stages": 7}'),
        ("plan", "[]"),
        ("state", "asleep"),
        ("kind", "walk"),
        ("verdict", "MAYBE"),
        ("plan", '{"records": NaN}'),
        ("plan", '{"records": 1e999}'),
        ("plan", f'{{"records": {2**63}}}'),
        ("plan", '{"scenario": "\\ud800"}'),
        ("plan", "[" * 100_000),
        ("plan", f'{{"scenario": "{"x" * DOCUMENT_CHARACTERS_MAX}"}}'),
        ("progress", '{"stage": "x", "seconds_left": Infinity}'),
        ("facts", '{"source": 7}'),
    ],
    ids=lambda value: value[:30],
)
def test_a_damaged_row_hides_no_other(open_history: Open, column: str, text: str) -> None:
    """Story: one row of the history cannot be read. All others can, and it says what is wrong with
    it, so that somebody can clean it."""
    history = open_history()
    sound, damaged = (history.create("run", "squares", {"records": 5}) for _ in range(2))
    give(history, damaged.id, None)
    with history.engine.begin() as connection:
        connection.execute(
            sa.text(f"update runs set {column} = :text where id = :run"),
            {"text": text, "run": damaged.id},
        )
    by_id = {run.id: run for run in history.list()}
    assert by_id[sound.id] == sound and by_id[damaged.id].damaged == (column,)
    run = history.take(damaged.id)
    assert run.error == f"Its row in the history is damaged ({column})."
    history.forget(damaged.id)
    assert [run.id for run in history.list()] == [sound.id]


@pytest.mark.parametrize("column", ["created_at", "ended_at", "owner", "renewed_at", "why", "plan"])
def test_a_value_of_another_type_hides_no_other(tmp_path: Path, column: str) -> None:
    """Story: SQLite keeps values of any type in any column: a word as a time, bytes as a text, a
    text that is not UTF-8. The other rows are listed, and so is this one."""
    history = History(read_settings(home=tmp_path))
    sound, damaged = (history.create("run", "squares", {}) for _ in range(2))
    for value in ("'soon'", "x'ff00'", "cast(x'ff' as text)", "-1e300", "'a:b:c'", "''"):
        with history.engine.begin() as connection:
            connection.exec_driver_sql(
                f"update runs set {column} = {value} where id = ?", (damaged.id,)
            )
        by_id = {run.id: run for run in history.list()}
        assert by_id[sound.id] == sound, value
        run = by_id[damaged.id]
        assert run == history.get(damaged.id) and run.alive in (True, False) and run.age_s
        f"{run.created_at:%Y} {run.why} {run.owner} {run.error}".encode()
    history.engine.dispose()


def test_a_sentence_names_what_no_database_takes(open_history: Open) -> None:
    """Story: a stranger's transactional id has a NUL byte, which PostgreSQL refuses, or half of a
    character. The verdict that names it is in the history all the same."""
    history = open_history()
    run = history.create("check", "check", {}).id
    history.renew(run, Progress(stage="judging", trouble="No answer for a\0b."))
    assert history.get(run).progress.trouble == r"No answer for a\x00b."
    history.end(run, State.DONE, "VIOLATED", "By pay\0ments,\nand \ud800." + "x" * 20_000, "\0")
    ended = history.get(run)
    assert (ended.verdict, ended.error) == ("VIOLATED", r"\x00")
    assert ended.why is not None and len(ended.why) == SENTENCE_MAX
    assert ended.why.startswith("By pay\\x00ments,\nand \\ud800.xx")
