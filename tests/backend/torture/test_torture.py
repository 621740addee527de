"""Random plans under several random faults at once, always the same ones: each is judged from its
sink, and shows no more damage than its guarantee allows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ports import free_ports
from topicproof.backend import cli
from topicproof.backend.commands.show_torture import line, markdown
from topicproof.backend.errors import ClusterError, SparkError, TopicproofError
from topicproof.backend.history.store import History, State
from topicproof.backend.matrix.matrix_table import TABLE
from topicproof.backend.runs import lifeline
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.backend.torture.schedule import NEVER_DRAWN, Schedule, draw
from topicproof.backend.torture.torture_run import Torture, TriedSchedule, drawn

SEED, SEEDS = 1, range(1, 1_001)


def subjects(schedule: Schedule) -> set[str]:
    """What a schedule tries: its guarantee, its troubles, and its troubles under exactly-once."""
    troubles = {name for name, _ in schedule.strikes}
    exact = {f"exactly_once under {name}" for name in troubles if schedule.name == "exactly_once"}
    return {schedule.name} | troubles | exact


def covering() -> list[Schedule]:
    """Of the schedules of all seeds a few that try everything that they all try."""
    schedules = [draw(seed) for seed in SEEDS]
    missing = set[str]().union(*map(subjects, schedules))
    covers = []
    while missing:
        most = max(schedules, key=lambda schedule: len(missing & subjects(schedule)))
        covers.append(most)
        missing -= subjects(most)
    return covers


def test_no_schedule_of_a_seed_is_a_surprise(settings: Settings, cluster: Services) -> None:
    """Story: the same random schedules as every time. Each trouble that one broker can have is
    among them, and each guarantee; exactly-once stays exact. The page names every run."""
    schedules, tried = covering(), list[TriedSchedule]()
    troubles = {name for schedule in schedules for name, _ in schedule.strikes}
    assert troubles == {t.name for t in TABLE if t.possible(1)} - NEVER_DRAWN
    Torture(settings, cluster, threading.Event()).try_all(iter(schedules), tried.append)
    assert [line(one) for one in tried if one.surprises] == []
    assert {one.schedule for one in tried} == set(schedules)
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
