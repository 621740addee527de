"""The life of a run's process: stopped, killed and resumed, it loses nothing and leaves no
transaction open."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.conftest import wait_until
from tests.runs import read_all
from tests.test_cli import call as exit_code_of
from topicproof.backend.address import Address
from topicproof.backend.evidence.folder import EVIDENCE
from topicproof.backend.evidence.manifest import Payloads, read_manifest
from topicproof.backend.history.run_state import Names
from topicproof.backend.history.store import History, Run, State
from topicproof.backend.kafka.client_configs import (
    READ_COMMITTED,
    consumer_config,
    transactional_producer_config,
)
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import ROOT, Settings

WAIT_S = 300
ENDLESS = (
    "run",
    "--rate",
    "2000",
    "--until-stopped",
    "--partitions",
    "2",
    "--per-transaction",
    "100",
)


def start(settings: Settings, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "topicproof.backend.cli", *arguments],
        cwd=ROOT,
        env={**os.environ, **settings.environment()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(
    settings: Settings,
    cluster: Services,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Call:
    """Call a command that nobody kills, in this process: `call("runs")` returns its exit code, and
    what it prints."""
    assert cluster.bootstrap
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)

    def call(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = exit_code_of(*arguments)
        return code, "".join(capsys.readouterr())

    return call


@pytest.fixture
def endless(settings: Settings, cluster: Services) -> Iterator[tuple[subprocess.Popen[str], Run]]:
    """A run in a process of its own that fills and squares until somebody stops it, with something
    committed."""
    assert cluster.bootstrap
    history = History(settings)
    before = {run.id for run in history.list()}
    process = start(settings, *ENDLESS)
    wait_until(
        lambda: {run.id for run in history.list()} > before, WAIT_S, "the entry in the history"
    )
    run_id = ({run.id for run in history.list()} - before).pop()
    await_processed(history, run_id, 1)
    yield process, history.get(run_id)
    with process:
        process.kill()


def await_processed(history: History, run_id: str, least: int) -> int:
    def processed() -> int:
        return int(history.get(run_id).progress.processed)

    wait_until(lambda: processed() >= least, WAIT_S, f"{least} committed inputs of {run_id}")
    return processed()


def assert_closed_and_exact(settings: Settings, cluster: Services, run: Run) -> int:
    """No transaction is open, and the sink holds exactly what the group's offsets say; gives how
    many."""
    kafka = Cluster(Address(cluster.bootstrap, settings.client))
    assert all(p.lso == p.hw for p in kafka.bounds(run.facts.sink).partitions)
    committed = sum(kafka.committed(run.facts.group, run.facts.source).values())
    values = [int(m.value or b"") for m in read_all(cluster.bootstrap, run.facts.sink)]
    assert len(values) == len(set(values)) == committed
    return committed


@pytest.fixture
def leave_open(cluster: Services) -> Iterator[Callable[[Names], None]]:
    """Open a transaction with the first transactional id of a stage, as its worker would: with a
    record, and the offset of the next input. It would stay open for ten minutes."""
    address, kept = Address(cluster.bootstrap), []

    def open_one(names: Names) -> None:
        source = TopicPartition(names.source, 0, 1)
        worker = Producer(
            transactional_producer_config(address, f"{names.prefix}-{names.source}-0", 600_000)
        )
        reader = Consumer(consumer_config(address, names.group, READ_COMMITTED))
        kept.extend([worker, reader])
        worker.init_transactions(30)
        worker.begin_transaction()
        worker.produce(names.sink, b"never seen", b"0")
        worker.flush(30)
        worker.send_offsets_to_transaction([source], reader.consumer_group_metadata(), 30)

    def is_open(names: Names) -> bool:
        # The orphaned query's task may take the id back in the middle.
        try:
            open_one(names)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._FENCED:
                raise
            return False
        return True

    def leave_open(names: Names) -> None:
        wait_until(partial(is_open, names), WAIT_S, "a transaction with the id of the worker")

    yield leave_open
    kept.clear()


def test_a_run_is_stopped_killed_and_ended_by_ctrl_c(
    settings: Settings,
    cluster: Services,
    endless: tuple[subprocess.Popen[str], Run],
    leave_open: Callable[[Names], None],
    call: Call,
) -> None:
    """Story: an endless run is stopped by the command, and resumed. While it lives no other process
    may take it. Then its process is killed -9, so its query continues in Spark, unwatched. A worker
    that stands still has left a transaction open, which hides the group's offset. Resume takes
    over, until Ctrl-C ends it. Each end is judged on what was committed, leaves nothing open, and
    the sink is exact."""
    process, run = endless
    history = History(settings)
    code, told = call("stop", run.id, "--json")
    assert code == 0 and json.loads(told)["state"] == State.STOPPED, told
    told, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0 and "HOLDS" in told, told
    first = assert_closed_and_exact(settings, cluster, run)

    with start(settings, "resume", run.id) as killed:
        try:
            before = await_processed(history, run.id, first + 1)
            code, told = call("resume", run.id)
            assert code == 64 and "is in use by another process" in told
        finally:
            killed.kill()
    assert not history.get(run.id).alive
    leave_open(run.facts.stages[0])

    resumed = start(settings, "resume", run.id)
    await_processed(history, run.id, before + 1)
    resumed.send_signal(signal.SIGINT)
    told, _ = resumed.communicate(timeout=WAIT_S)
    assert resumed.returncode == 0 and "HOLDS" in told, told
    assert assert_closed_and_exact(settings, cluster, run) > before


@pytest.mark.parametrize("scenario", ["chain", "totals"])
def test_a_run_that_is_killed_in_every_state_is_exact(
    settings: Settings, cluster: Services, scenario: str
) -> None:
    """Story: the process of a run is killed -9 while it fills, while it processes, and while it
    judges, and resumed each time. In the end every record is there once, and the verdict holds."""
    history = History(settings)
    before = {run.id for run in history.list()}
    plan = (
        "--scenario",
        scenario,
        "--records",
        "900",
        "--rate",
        "300",
        "--partitions",
        "2",
        "--per-transaction",
        "50",
    )
    process = start(settings, "run", *plan)
    wait_until(
        lambda: {run.id for run in history.list()} > before, WAIT_S, "the entry in the history"
    )
    run_id = ({run.id for run in history.list()} - before).pop()
    for state, figure in (
        (State.FILLING, "filled"),
        (State.PROCESSING, "committed"),
        (State.JUDGING, "processed"),
    ):
        with process:
            try:
                wait_until(
                    partial(reached, history, run_id, state, figure), WAIT_S, f"{state} of {run_id}"
                )
            finally:
                process.kill()
        assert history.get(run_id).state is state
        process = start(settings, "resume", run_id)
    with process:
        # A chain has four verdicts.
        told, _ = process.communicate(timeout=2 * WAIT_S)
    assert process.returncode == 0 and "HOLDS" in told, told
    facts = history.get(run_id).facts
    assert len(read_all(cluster.bootstrap, facts.source)) == 900
    made = [json.loads(m.value or b"") for m in read_all(cluster.bootstrap, facts.sink)]
    if scenario == "chain":
        assert sorted(int(one["square"]) for one in made) == [n * n for n in range(0, 900, 2)]
    else:
        assert (
            sorted(int(one["id"]) for one in made) == list(range(900))
            and facts.results.wrong_by == {}
        )


def reached(history: History, run_id: str, state: State, figure: str) -> bool:
    """Whether the run is in this state and has done something."""
    run = history.get(run_id)
    return run.state is state and bool(getattr(run.progress, figure))


def test_clean_removes_what_a_killed_run_left(
    settings: Settings,
    cluster: Services,
    endless: tuple[subprocess.Popen[str], Run],
    call: Call,
) -> None:
    """Story: a killed run is not wanted any more. Its orphaned query is stopped, its topics, folder
    and entry go."""
    process, run = endless
    process.kill()
    process.wait()
    code, told = call("clean", run.id)
    assert code == 0 and "is gone" in told, told
    left = set(Cluster(Address(cluster.bootstrap)).topics())
    assert not left & {run.facts.source, run.facts.sink, run.facts.journal}
    assert not Path(settings.runs / run.id).exists()
    assert run.id not in {one.id for one in History(settings).list()}


def test_the_three_parts_work_alone(settings: Settings, call: Call, tmp_path: Path) -> None:
    """Story: fill, process and check are called one by one, as on three days. The verdict is that
    of a whole run."""
    code, told = call("fill", "--topic", "three-numbers", "--records", "500", "--partitions", "2")
    assert code == 0 and "holds 500 integers" in told, told
    code, told = call("process", "--source", "three-numbers", "--sink", "three-squares")
    assert code == 0, told
    report = tmp_path / "report.json"
    names = ("--source", "three-numbers", "--sink", "three-squares")
    code, told = call("check", *names, "--out", str(tmp_path / "whole"), "--json", str(report))
    assert code == 0 and "HOLDS" in told, told
    assert json.loads(report.read_text())["sink"]["fates"]["committed"] == 500
    # Without payloads, as CI does where nobody may copy what records say.
    bare = ("--payloads", "none", "--out", str(tmp_path / "bare"))
    code, told = call("check", *names, *bare, "--json", str(report))
    assert code == 0 and "HOLDS" in told, told
    run = json.loads(report.read_text())["run"]
    for evidence in (tmp_path / "bare", settings.runs / run / EVIDENCE):
        assert read_manifest(evidence).payloads is Payloads.NONE
        assert not list(evidence.rglob("sink-read_*/*"))
    code, told = call("verify", str(tmp_path / "bare"))
    assert code == 0, told
    # By key, no proof can be led from offsets: the readings are looked at, and go without keys and
    # values.
    code, told = call(
        "check",
        *names,
        "--identity",
        "key",
        "--payloads",
        "none",
        "--json",
        str(report),
    )
    assert code == 0 and "HOLDS" in told, told
    assert json.loads(report.read_text())["sink"]["fates"]["committed"] == 500
    evidence = settings.runs / json.loads(report.read_text())["run"] / EVIDENCE
    assert read_manifest(evidence).payloads is Payloads.NONE and list(
        evidence.rglob("sink-read_*/*")
    )
    code, told = call("check", *names, "--payloads", "none", "--self-test")
    assert code == 64 and "Leave one of them out" in told
    code, told = call("fill", "--topic", "three-numbers")
    assert code == 64 and "holds 500 offsets already" in told


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("check", "--source", "no-such-topic", "--sink", "three-squares"),
            "There is no topic no-such-topic",
        ),
        (("inspect", "no-such-topic"), "There is no topic no-such-topic"),
        (("run", "--source", "no-such-topic"), "There is no topic no-such-topic"),
    ],
)
def test_a_missing_topic_is_exit_code_3(call: Call, arguments: tuple[str, ...], says: str) -> None:
    """Story: the topic's name is misspelt. Exit code 3 and one sentence, never a pass and never a
    traceback."""
    code, told = call(*arguments)
    assert code == 3 and says in told and "Traceback" not in told, told
