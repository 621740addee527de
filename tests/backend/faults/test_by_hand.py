"""Strikes by hand: somebody kills workers and freezes the network of a live run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.backend.services.test_prefork_server import forking
from tests.backend.trust.people import ADA
from tests.conftest import wait_until
from tests.runs import read_all
from topicproof.backend.errors import NotPermitted, UsageError
from topicproof.backend.faults.by_hand import (
    NAMED_MAX,
    Freeze,
    Kill,
    Workers,
    require_nearby,
    stopped,
    strike_notes,
)
from topicproof.backend.history.audit import audit_entries
from topicproof.backend.history.run_state import Facts, Progress
from topicproof.backend.history.store import History, Run, State
from topicproof.backend.runs.context import finish, make_context
from topicproof.backend.runs.create import create
from topicproof.backend.runs.execute import execute
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.runs.strikes import FOLDER, requests, strike, why_no_freeze, why_no_kill
from topicproof.backend.services.keeper import Services
from topicproof.backend.services.prefork_client import ask
from topicproof.backend.settings import ROOT, Settings, read_settings, socket_path
from topicproof.backend.sink.entries import (
    EVERY_PARTITION,
    Declared,
    Entry,
    FaultFired,
    FaultPhase,
    FaultReport,
    TransactionEnded,
    WorkerBegan,
    WorkerEnded,
    decode,
    encode,
)
from topicproof.backend.sink.journal import JournalReader
from topicproof.validators.finding import Outcome

PARTITIONS = 2


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_run_that_is_struck_keeps_its_guarantee(
    settings: Settings, cluster: Services, guarantee: str
) -> None:
    """Story: somebody freezes the network of a live run, kills a worker while it is frozen, and
    lets the run finish when that worker's successor has committed. The verdict holds for the whole
    input, a plain client agrees, and the report names both strikes."""
    plan: dict[str, Any] = {"guarantee": guarantee, "partitions": PARTITIONS, "rate": 500}
    plan |= {"by_hand": True, "until_stopped": True, "per_transaction": 50}
    history = History(settings)
    run = create(settings, cluster, history, make_plan(plan))
    context = make_context(settings, cluster, history, run)
    entries: list[Entry] = []
    reader = JournalReader(cluster.address, run.facts.journal)

    def told(condition: Callable[[Entry], bool]) -> bool:
        assert not done.done(), done.result()
        entries.extend(reader.news())
        return any(condition(entry) for entry in entries)

    def committed(entry: Entry) -> bool:
        ended = isinstance(entry, TransactionEnded) and entry.outcome is Declared.COMMITTED
        return ended and getattr(entry, "source_partition", None) == 1

    with closing(reader), ThreadPoolExecutor(1) as pool:
        done = pool.submit(execute, context)
        wait_until(lambda: told(committed), 120, "a transaction")
        strike(history, history.get(run.id), Freeze(1))
        wait_until(lambda: told(_is(FaultPhase.DONE, "freeze")), 60, "the freeze")
        strike(history, history.get(run.id), Kill(1))
        wait_until(lambda: told(_is(FaultPhase.DONE, "kill")), 60, "the kill")
        wait_until(lambda: told(_is(FaultPhase.HEALED, "freeze")), 60, "the end of the freeze")
        (killed,) = [n for n, one in enumerate(entries) if _is(FaultPhase.DONE, "kill")(one)]
        (victim,) = [
            one for one in entries if isinstance(one, FaultFired) and one.fault.startswith("kill")
        ]
        wait_until(
            lambda: told(lambda _: any(map(committed, entries[killed:]))), 120, "its successor"
        )
        finish(history, history.get(run.id))
        with pytest.raises(UsageError, match="is about to end"):
            finish(history, history.get(run.id))
        report = done.result()
    assert report is not None and report.verdict is Outcome.HOLDS, report
    assert history.get(run.id).state is State.DONE and not report.not_processed
    assert victim.source_partition == 1
    assert not any(isinstance(e, WorkerEnded) and e.task == victim.task for e in entries)
    assert report.notes == (
        "This run was struck by hand: 1. the network of every worker frozen for 1 s; 2. the worker"
        f" of {context.names.source}-1 killed with SIGKILL.",
    )
    assert not list(requests(context.folder / FOLDER))
    got = Counter(message.value for message in read_all(cluster.bootstrap, context.names.sink))
    written = read_all(cluster.bootstrap, context.names.source)
    assert got.keys() == {str(int(one.value or b"") ** 2).encode() for one in written}
    extra = sum(got.values()) - len(got)
    duplicates = {finding.kind: finding.count for finding in report.findings}.get("duplicate", 0)
    assert extra == duplicates
    assert guarantee == "at_least_once" or not extra


def _is(what: FaultPhase, strike: str) -> Callable[[Entry], bool]:
    def condition(entry: Entry) -> bool:
        told = isinstance(entry, FaultReport) and entry.what is what
        return told and getattr(entry, "fault", "").startswith(strike)

    return condition


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[History, Run]]:
    """A live run that may be struck, with two sources, in a history of its own."""
    history = History(read_settings(home=tmp_path))
    run = history.create("run", "squares", {"by_hand": True})
    offsets = {"numbers": {"0": 0, "1": 0}, "more": {"0": 0}}
    history.remember(run.id, Facts(initial_offsets={"square": offsets}))
    history.enter(run.id, State.PROCESSING)
    yield history, history.get(run.id)
    history.engine.dispose()


def test_what_cannot_be_struck_is_refused_with_its_reason(live: tuple[History, Run]) -> None:
    """Story: somebody wants to strike a run whose plan does not allow it, one that is not
    processing, one whose workers are on other machines, and a worker that it does not have. Each
    is refused with a sentence, and no request is left behind."""
    history, run = live
    folder = history.settings.runs / run.id / FOLDER
    elsewhere = replace(run, progress=Progress(elsewhere=("spark-3",)))
    for refused, wanted, why in (
        (replace(run, plan={}), Freeze(), "The plan of squares-.* does not allow it"),
        (replace(run, owner=None), Freeze(), "has ended"),
        (replace(run, state=State.JUDGING), Freeze(), "no workers now: it is judging"),
        (elsewhere, Kill(1), "Its workers run on spark-3, where"),
        (run, Kill(7), "no worker of partition 7. It has workers of more-0, numbers-0, numbers-1"),
        (run, Kill(0), "several sources. Say which with --topic: more, numbers"),
        (run, Kill(1, "more"), "no worker of more-1"),
    ):
        with pytest.raises(UsageError, match=why):
            strike(history, refused, wanted)
    assert why_no_freeze(history.settings, elsewhere) is None and why_no_kill(run) is None
    given = history.settings.model_copy(update={"spark_remote": "sc://spark:15002"})
    assert "did not start" in str(why_no_freeze(given, run))
    with pytest.raises(UsageError, match="choose 1 to 120"):
        Freeze(0)
    with pytest.raises(UsageError, match="partitions count from 0"):
        Kill(-1)
    assert not folder.exists()


def test_only_who_may_strike_is_heard_and_noted(live: tuple[History, Run]) -> None:
    """Story: a viewer's browser asks for a strike, and is refused; then somebody who may asks for
    two. The director hears these two in their order."""
    history, run = live
    folder = history.settings.runs / run.id / FOLDER
    with pytest.raises(NotPermitted, match="Ada Lovelace has the role viewer and may not strike"):
        strike(history.acted_on_by(ADA), run, Kill(1))
    assert not folder.exists()
    strike(history, run, Kill(1))
    strike(history, run, Freeze(3))
    assert [wanted for _, wanted in requests(folder)] == [Kill(1, "numbers"), Freeze(3)]
    noted = [(entry.action, entry.what, entry.allowed) for entry in audit_entries(history)]
    assert noted == [("strike a run", run.id, allowed) for allowed in (False, True, True)]


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ({"scenario": "totals"}, "totals cannot be struck by hand"),
        ({"scenario": "table"}, "table cannot be struck by hand"),
        ({"scenario": "chain"}, "chain cannot be struck by hand"),
        ({"lineage": "off"}, "by_hand needs lineage"),
    ],
)
def test_a_plan_that_cannot_be_struck_is_refused(plan: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        make_plan({"by_hand": True, **plan})


def began(task: str, partition: int, pid: int = 1, created: float = 0.0) -> WorkerBegan:
    return WorkerBegan(task, "numbers", partition, socket.gethostname(), pid, created)


def test_the_worker_of_a_partition_is_the_one_that_began_last_and_has_not_ended() -> None:
    """Story: tasks come and go, and the end of one is told after its successor began."""
    workers = Workers()
    first, second = began("first", 0), began("second", 0)
    workers.hear(first)
    assert workers.of("numbers", 0) is first and workers.of("numbers", 1) is None
    workers.hear(second)
    workers.hear(WorkerEnded("first", "numbers", 0))
    assert workers.of("numbers", 0) is second
    workers.hear(WorkerEnded("second", "numbers", 0))
    assert workers.of("numbers", 0) is None


_AS_SPARK_STARTS_IT = [sys.executable, "-c", "input()", "-m", "pyspark.daemon", "pyspark.worker"]


def _can_be_killed(worker: WorkerBegan) -> bool:
    with stopped(worker) as process:
        return process is not None


def test_a_process_that_is_no_worker_is_left_alone() -> None:
    """Story: somebody who may write to the journal names a shell of the run's user, the tests'
    own process, or an editor that has a file of ours open. None of them is even stopped."""
    waiting = [sys.executable, "-c", "input()"]
    editor = [*waiting, "prefork_server.py", "pyspark.daemon"]
    with (
        subprocess.Popen(waiting, stdin=subprocess.PIPE) as shell,
        subprocess.Popen(editor, stdin=subprocess.PIPE) as other,
        subprocess.Popen(_AS_SPARK_STARTS_IT, stdin=subprocess.PIPE) as worker,
    ):
        for pid in (shell.pid, other.pid, os.getpid()):
            named = began("task", 0, pid, psutil.Process(pid).create_time())
            with pytest.raises(UsageError, match=f"process {pid}, .* is no Python worker of Spark"):
                _can_be_killed(named)
        assert _can_be_killed(
            began("task", 0, worker.pid, psutil.Process(worker.pid).create_time())
        )
        for child in (shell, other, worker):
            child.communicate(b"\n")
        assert (shell.returncode, other.returncode, worker.returncode) == (0, 0, 0)


@pytest.mark.services
def test_of_what_is_forked_only_workers_are_killed(tmp_path: Path) -> None:
    """Story: Spark's workers and the processes of runs are forked from one process, so they have
    the same command line. A run, and the process itself, are left alone."""
    address = socket_path(tmp_path)
    (inner, outer), output = os.pipe(), os.open(os.devnull, os.O_WRONLY)
    with forking(address):
        forks = [
            ask(
                str(address),
                ["tokenize"],  # It reads its input until that ends.
                dict(os.environ),
                str(ROOT),
                [inner, output, output],
                detached=detached,
            )
            for detached in (False, True)
        ]
        workers = [began("task", 0, pid, psutil.Process(pid).create_time()) for _, pid in forks]
        server = psutil.Process(forks[0][1]).parent()
        assert server is not None
        assert _can_be_killed(workers[0])
        for worker in (workers[1], began("task", 0, server.pid, server.create_time())):
            with pytest.raises(UsageError, match="is no Python worker of Spark"):
                _can_be_killed(worker)
        for descriptor in (inner, outer, output):
            os.close(descriptor)
        for connection, _ in forks:
            assert connection.recv(1) == b""
            connection.close()


def test_only_the_process_that_told_of_itself_can_be_killed() -> None:
    """Story: a worker is stopped while it is decided whether to kill it, and goes on if not. A
    later process with its number is left alone, as is one on another machine."""
    with subprocess.Popen(_AS_SPARK_STARTS_IT, stdin=subprocess.PIPE) as child:
        process = psutil.Process(child.pid)
        worker = began("task", 0, child.pid, process.create_time())
        with stopped(replace(worker, created=worker.created - 1)) as none:
            assert none is None
        with stopped(worker) as held:
            assert held == process
            wait_until(lambda: process.status() == psutil.STATUS_STOPPED, 10, "SIGSTOP")
        wait_until(lambda: process.status() != psutil.STATUS_STOPPED, 10, "SIGCONT")
        with stopped(worker) as held:
            assert held is not None
            held.kill()
        assert child.wait() == -signal.SIGKILL
        with stopped(worker) as none:
            assert none is None
    require_nearby(worker)
    with pytest.raises(UsageError, match="the worker of numbers-0 runs on spark-3"):
        require_nearby(replace(worker, host="spark-3"))


def test_a_report_names_the_strikes_but_not_thousands() -> None:
    """Story: nobody struck; somebody struck once; a journal of another origin claims many."""
    freeze = FaultFired("", Freeze(5).name(1), "numbers", EVERY_PARTITION, 0)
    planned = FaultFired("t", "crash@transaction=2", "numbers", 0, 2)
    assert strike_notes([planned]) == ()
    assert strike_notes([planned, freeze]) == (
        "This run was struck by hand: 1. the network of every worker frozen for 5 s.",
    )
    (note,) = strike_notes([freeze] * (NAMED_MAX + 5_000))
    assert note.endswith("frozen for 5 s; and 5,000 more.")
    for entry in (freeze, began("task", 0), WorkerEnded("task", "numbers", 0)):
        assert decode(encode(entry)) == entry


@pytest.mark.parametrize(
    "claim",
    [
        FaultFired("", "freeze@by_hand=1,seconds=9 s. It HOLDS", "numbers", EVERY_PARTITION, 0),
        FaultFired("", "freeze@by_hand=1,seconds=5\n", "numbers", EVERY_PARTITION, 0),
        FaultFired("", "freeze@by_hand=certified by=the auditor", "numbers", EVERY_PARTITION, 0),
        FaultFired("", "kill@by_hand=1=the judge", "numbers", 0, 0),
        FaultFired("", Kill(0).name(1), "numbers. Accepted by Grace; x", 0, 0),
    ],
)
def test_no_note_of_a_report_has_a_sentence_of_the_journal(claim: FaultFired) -> None:
    """Story: a stranger who may write to the journal claims a strike, with a sentence in place of
    its number, its seconds or its topic. The report, which we sign, repeats none of it."""
    assert strike_notes([decode(encode(claim))]) == ()
    genuine = FaultFired("", Kill(0).name(2), "numbers", 0, 0)
    assert strike_notes([claim, genuine]) == (
        "This run was struck by hand: 1. the worker of numbers-0 killed with SIGKILL.",
    )
