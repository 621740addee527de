"""Runs as detached processes: one that cannot begin says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backend.services.test_prefork_server import forking
from topicproof.backend.errors import EvidenceError, SetupError
from topicproof.backend.runs.launch import start_resume, start_run
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.settings import Settings, read_settings, socket_path

pytestmark = pytest.mark.services


def test_a_process_that_ends_first_is_heard(tmp_path: Path) -> None:
    """Story: Kafka's address is wrong, so the run's process ends at once. What it said is the
    error."""
    settings = Settings(home=tmp_path, bootstrap="127.0.0.1:1", spark_remote="sc://127.0.0.1:1")
    heard: list[str] = []
    with pytest.raises(
        SetupError, match=r"ended before the run began. Its output: ClusterError: .*127\.0\.0\.1:1"
    ) as caught:
        start_run(settings, make_plan({"records": 10}), heard.append)
    assert "Traceback" not in str(caught.value)
    with pytest.raises(SetupError, match="There is no run gone-1"):
        start_resume(settings, "gone-1")


def test_a_warm_process_is_heard_as_well(tmp_path: Path) -> None:
    """Story: the same, and the run's process is forked from one that has done the imports."""
    settings = Settings(home=tmp_path, bootstrap="127.0.0.1:1", spark_remote="sc://127.0.0.1:1")
    with (
        forking(socket_path(settings.spark)),
        pytest.raises(SetupError, match=r"Its output: ClusterError: .*127\.0\.0\.1:1"),
    ):
        start_run(settings, make_plan({"records": 10}))


def test_a_home_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """Story: where the plan should be written there is a file. The error names it."""
    settings = read_settings(home=tmp_path)
    (tmp_path / "launches").write_text("in the way")
    with pytest.raises(EvidenceError, match=r"The plan .*launches.* cannot be written"):
        start_run(settings, make_plan({}))
