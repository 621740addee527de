"""Kills while a run works: its own process, or one that it needs. `resume` must end with the exact
result each time."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO

import psutil

from tests.conftest import wait_until
from tests.kills.kill import Kill
from tests.runs import read_all
from topicproof.backend.history.store import ENDED, History, State
from topicproof.backend.services.keeper import services
from topicproof.backend.settings import ROOT, Settings

PLAN = (
    *("run", "--records", "1200", "--rate", "300", "--partitions", "2"),
    *("--per-transaction", "50", "--abort-probability", "0.1"),
)
REAL_TIME = (*PLAN, "--real-time")
START_S, END_S, RESUME_S = 300, 60, 600
"""What a busy machine needs to begin; what a run may take to end after a kill; and to resume."""
DELAY_S = 3.0
"""The kill comes up to this long after the state was entered."""
STATES = (State.FILLING, State.PROCESSING, State.JUDGING)


def start(
    settings: Settings, *arguments: str, out: IO[str] | int = subprocess.PIPE
) -> subprocess.Popen[str]:
    """Start a command of ours on a home. Its messages go to `out`."""
    return subprocess.Popen(
        [sys.executable, "-m", "topicproof.backend.cli", *arguments],
        cwd=ROOT,
        env={**os.environ, **settings.environment()},
        stdout=out,
        stderr=subprocess.STDOUT,
        text=True,
    )


def kill_once(
    settings: Settings,
    victim: str,
    state: State,
    chance: random.Random,
    plan: Sequence[str] = PLAN,
) -> Kill:
    """Start a run, kill the victim in the given state, and resume the run until it is judged."""
    history = History(settings)
    before = {one.id for one in history.list()}
    process = start(settings, *plan)
    wait_until(lambda: {one.id for one in history.list()} > before, START_S, "the run's entry")
    run_id = ({one.id for one in history.list()} - before).pop()
    wait_until(
        lambda: history.get(run_id).state in (state, *ENDED) or process.poll() is not None,
        START_S,
        f"the state {state}",
    )
    delay = chance.uniform(0, DELAY_S)
    time.sleep(delay)
    found = history.get(run_id)
    moment = f"{found.state} + {delay:.1f} s"
    killed = time.monotonic()
    for pid in VICTIMS[victim](settings, process.pid, chance):
        psutil.Process(pid).kill()
    try:
        told, _ = process.communicate(timeout=RESUME_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return Kill(victim, moment, time.monotonic() - killed, "", "the run never ended")
    ended_s = time.monotonic() - killed
    last = (told.strip().splitlines() or [""])[-1]
    surprise = _surprise(settings, history, run_id, told, process.returncode, victim, ended_s)
    return Kill(victim, moment, ended_s, last, surprise)


def _surprise(
    settings: Settings,
    history: History,
    run_id: str,
    told: str,
    code: int,
    victim: str,
    ended_s: float,
) -> str:
    """Return what is wrong after the process ended, having resumed the run if it is not done."""
    if "Traceback" in told:
        return f"a traceback: {told[-600:]}"
    run = history.get(run_id)
    if run.alive:
        return "the run still has an owner"
    if victim != "run" and code not in (0, 3):
        return f"exit code {code}: {told[-300:]}"
    if run.state is not State.DONE:
        if ended_s > END_S:
            return f"it took {ended_s:.0f} s to end"
        if victim != "run" and run.state not in ENDED:
            return f"the run was left as {run.state}"
        resumed = start(settings, "resume", run_id)
        try:
            again, _ = resumed.communicate(timeout=RESUME_S)
        except subprocess.TimeoutExpired:
            resumed.kill()
            return "resume never ended"
        if resumed.returncode != 0 or "HOLDS" not in again:
            return f"resume: exit code {resumed.returncode}: {again[-600:]}"
    return wrong(settings, run_id)


def wrong(settings: Settings, run_id: str) -> str:
    """Return what is wrong with a run that is done: its evidence, and what a plain client reads."""
    folder = settings.runs / run_id / "evidence"
    verify = start(settings, "verify", str(folder), "--require-signature")
    told, _ = verify.communicate(timeout=RESUME_S)
    if verify.returncode != 0:
        return f"verify: exit code {verify.returncode}: {told[-300:]}"
    facts = History(settings).get(run_id).facts
    with services(settings, spark=False) as found:
        squares = [int(m.value or b"") for m in read_all(found.bootstrap, facts.sink)]
    if sorted(squares) != [n * n for n in range(1200)]:
        return f"a plain client reads {len(squares)} records, {len(set(squares))} different ones"
    start(settings, "clean", run_id).communicate(timeout=RESUME_S)
    return ""


def _own(_settings: Settings, run: int, _chance: random.Random) -> list[int]:
    return [run]


def _services(settings: Settings) -> dict[str, psutil.Process]:
    """The keeper and what it owns, by name."""
    record = json.loads((settings.services / "running.json").read_text())
    found = {}
    for pid in map(int, record):
        if not psutil.pid_exists(pid):
            continue
        process = psutil.Process(pid)
        command = " ".join(process.cmdline())
        found["spark" if "SparkConnectServer" in command else "broker"] = process
        if (parent := process.parent()) is not None and parent.pid != 1:
            found["keeper"] = parent
    for child in found["keeper"].children() if "keeper" in found else []:
        # The keeper has children that have just ended.
        with suppress(psutil.NoSuchProcess):
            if "prefork_server" in " ".join(child.cmdline()):
                found["prefork"] = child
    return found


def _named(name: str) -> Callable[[Settings, int, random.Random], list[int]]:
    def pids(settings: Settings, _run: int, _chance: random.Random) -> list[int]:
        found = _services(settings).get(name)
        return [found.pid] if found is not None else []

    return pids


def _worker(settings: Settings, _run: int, chance: random.Random) -> list[int]:
    """One of the Python processes that Spark has at this moment."""
    forks = _services(settings).get("prefork")
    workers = forks.children(recursive=True) if forks is not None else []
    return [chance.choice(workers).pid] if workers else []


VICTIMS = {
    "run": _own,
    "keeper": _named("keeper"),
    "spark": _named("spark"),
    "broker": _named("broker"),
    "prefork": _named("prefork"),
    "worker": _worker,
}
