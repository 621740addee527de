"""Runs as detached processes: one that cannot begin says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.backend.services.test_prefork_server import forking
from tests.backend.trust.people import ADA
from topicproof.backend.errors import EvidenceError, NotPermitted, SetupError
from topicproof.backend.history.audit import audit_entries
from topicproof.backend.history.kept_contracts import keep
from topicproof.backend.history.store import History
from topicproof.backend.runs.context import stop
from topicproof.backend.runs.launch import start_check, start_matrix, start_resume, start_run
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.settings import Settings, read_settings, socket_path

pytestmark = pytest.mark.services


@contextmanager
def opened(settings: Settings) -> Iterator[History]:
    history = History(settings)
    try:
        yield history
    finally:
        history.engine.dispose()


def test_a_process_that_ends_first_is_heard(tmp_path: Path) -> None:
    """Story: Kafka's address is wrong, so the run's process ends at once. What it said is the
    error."""
    settings = Settings(home=tmp_path, bootstrap="127.0.0.1:1", spark_remote="sc://127.0.0.1:1")
    heard: list[str] = []
    with opened(settings) as history:
        with pytest.raises(
            SetupError,
            match=r"ended before the run began. Its output: ClusterError: .*127\.0\.0\.1:1",
        ) as caught:
            start_run(history, make_plan({"records": 10}), heard.append)
        assert "Traceback" not in str(caught.value)
        with pytest.raises(SetupError, match="There is no run gone-1"):
            start_resume(history, "gone-1")


def test_a_warm_process_is_heard_as_well(tmp_path: Path) -> None:
    """Story: the same, and the run's process is forked from one that has done the imports."""
    settings = Settings(home=tmp_path, bootstrap="127.0.0.1:1", spark_remote="sc://127.0.0.1:1")
    with (
        opened(settings) as history,
        forking(socket_path(settings.spark)),
        pytest.raises(SetupError, match=r"Its output: ClusterError: .*127\.0\.0\.1:1"),
    ):
        start_run(history, make_plan({"records": 10}))


def test_a_home_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """Story: where the plan should be written there is a file. The error names it."""
    settings = read_settings(home=tmp_path)
    (tmp_path / "launches").write_text("in the way")
    with (
        opened(settings) as history,
        pytest.raises(EvidenceError, match=r"The plan .*launches.* cannot be written"),
    ):
        start_run(history, make_plan({}))


def test_who_may_not_launch_starts_no_process(tmp_path: Path) -> None:
    """Story: a viewer's browser asks for a run, a check, a resume and the matrix, whatever buttons
    it was shown. Nothing starts, and each is noted."""
    with opened(read_settings(home=tmp_path)) as everybody:
        history = everybody.acted_on_by(ADA)
        asks: list[Callable[[], object]] = [
            lambda: start_run(history, make_plan({})),
            lambda: start_check(history, "orders", "guarantee: exactly_once"),
            lambda: start_resume(history, "squares-a"),
            lambda: start_matrix(history),
            lambda: stop(history, "squares-a"),
            lambda: keep(history, "orders", "guarantee: exactly_once"),
        ]
        for ask in asks:
            with pytest.raises(NotPermitted, match="Ada Lovelace has the role viewer"):
                ask()
        assert [one.allowed for one in audit_entries(history)] == [False] * len(asks)
        assert {one.name for one in tmp_path.iterdir() if one.is_dir()} == set()
