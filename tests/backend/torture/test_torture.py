"""Random plans under several random faults at once, always the same ones: each is judged from its
sink, and shows no more damage than its guarantee allows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from topicproof.backend import cli
from topicproof.backend.commands.show_torture import line, markdown
from topicproof.backend.errors import ClusterError, SparkError, TopicproofError
from topicproof.backend.history.store import History, State
from topicproof.backend.runs import lifeline
from topicproof.backend.services.keeper import Services
from topicproof.backend.services.processes import free_ports
from topicproof.backend.settings import Settings
from topicproof.backend.torture.schedule import Schedule
from topicproof.backend.torture.torture_run import Torture, TriedSchedule, drawn

SEED, RUNS, MINUTES = 1, 70, 3
"""A slow machine tries fewer schedules, but the same."""


def test_no_schedule_of_a_seed_is_a_surprise(settings: Settings, cluster: Services) -> None:
    """Story: the same random schedules as every time. Half of them are exactly-once, and stay
    exact. Every fault is proven to have fired, and the page names every run."""
    tried: list[TriedSchedule] = []
    stop = threading.Event()
    torture = Torture(settings, cluster, stop)
    torture.try_all(drawn(SEED, 1, RUNS, MINUTES, stop), tried.append)
    assert [line(one) for one in tried if one.surprises] == []
    assert sorted(one.schedule.seed for one in tried) == list(range(SEED, SEED + len(tried)))
    assert sum(one.schedule.name == "exactly_once" for one in tried) >= len(tried) / 3 > 0
    lines = [line(one) for one in tried]
    page = markdown("it", [one.schedule for one in tried], lines, 0)
    assert all(one in page for one in lines)
    assert f"{len(tried)} runs" in page and "0 surprises" in page


def test_a_run_whose_spark_is_gone_ends_the_torture(
    settings: Settings, cluster: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: Spark dies in the middle of a torture. Its run can be resumed, nobody waits for Spark
    any longer, and no surprise is reported: the run has shown nothing."""
    monkeypatch.setattr(lifeline, "LOOK_S", 0.01)
    monkeypatch.setattr(lifeline, "PATIENCE_S", 0.05)
    gone = replace(cluster, spark_remote=f"sc://localhost:{free_ports(1)[0]}/")
    stop, said = threading.Event(), list[TopicproofError]()
    torture = Torture(settings, gone, stop, said.append)
    with pytest.raises(SparkError, match=r"does not answer any more\. Run .* shows nothing"):
        torture.try_one(next(drawn(SEED, 1, 1, None, stop)))
    (error,) = said
    newest = next(iter(History(settings).list()))
    assert isinstance(error, SparkError) and f"topicproof resume {newest.id}" in str(error)
    assert newest.state is State.FAILED


def test_an_error_takes_nothing_away_from_what_was_tried(
    settings: Settings,
    cluster: Services,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Story: after the first run the cluster is gone. The command ends with the error, and still
    prints and writes what the first run has shown."""

    def try_all(
        torture: Torture,
        schedules: Iterator[Schedule],
        on_result: Callable[[TriedSchedule], None],
        _: int,
    ) -> None:
        tried = torture.try_one(next(schedules))
        assert tried is not None
        on_result(tried)
        raise ClusterError("The cluster is gone.")

    assert cluster.bootstrap
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Torture, "try_all", try_all)
    page = tmp_path / "torture.md"
    with pytest.raises(SystemExit) as ended:
        cli.main(["torture", "--runs", "2", "--seed", str(SEED), "--markdown", str(page)])
    told = capsys.readouterr()
    assert ended.value.code == ClusterError.exit_code and "The cluster is gone." in told.err
    assert "1 run, " in told.out and "1 run, " in page.read_text(encoding="utf-8")
