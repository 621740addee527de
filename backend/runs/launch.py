"""Runs and watches as detached processes: they outlive their parent, and their output is kept.

A run's process owns its history entry. So the entry owned by the started process is the run.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import yaml

from topicproof.backend.errors import EvidenceError, SetupError
from topicproof.backend.evidence.folder import CONTRACT
from topicproof.backend.history.audit import require_noted
from topicproof.backend.history.kept_contracts import KeptContract, require_keepable
from topicproof.backend.history.store import History
from topicproof.backend.interpreter import ROOT, python_environment
from topicproof.backend.log_file import end_of
from topicproof.backend.runs.plan import RunPlan
from topicproof.backend.services.prefork_client import ask
from topicproof.backend.settings import (
    BROKER_START_TIMEOUT_S,
    SPARK_START_TIMEOUT_S,
    Settings,
    socket_path,
)
from topicproof.backend.trust.acting import environment_for
from topicproof.backend.trust.identity import Action
from topicproof.backend.waiting import ask_until
from topicproof.backend.watch.state_file import FOLDER, is_watched, state_name

MODULE = "topicproof.backend.cli"
PLAN, LOG = "plan.yaml", "process.log"
LINES_SHOWN = 15
WATCH_EVERY_S = "5"
"""Seconds from one look to the next of a watch that somebody follows on a page."""
_POLL_S = 0.1
_STARTED: list[subprocess.Popen[bytes]] = []
"""Processes started and not awaited by this one. A dropped handle would cause a warning."""


def start_run(
    history: History, plan: RunPlan, say: Callable[[str], None] = lambda _text: None
) -> str:
    """Start a run in its own process, for the person who acts through `history`. Returns its id
    once it is in the history. `say` receives its output until then.

    Raises NotPermitted, SetupError with the process's own words if it ended before that,
    EvidenceError if the home cannot be written.
    """
    require_noted(history, Action.LAUNCH, plan.scenario)
    settings = history.settings
    folder = settings.home / "launches" / secrets.token_hex(6)
    path = folder / PLAN
    try:
        folder.mkdir(parents=True)
        path.write_text(
            yaml.safe_dump(plan.model_dump(mode="json", by_alias=True), sort_keys=False),
            encoding="utf-8",
        )
    except OSError as error:
        raise EvidenceError(f"The plan {path} cannot be written: {error.strerror}.") from error
    run_id = _start(history, ["run", str(path)], folder / LOG, say)
    home = settings.runs / run_id
    home.mkdir(parents=True, exist_ok=True)
    # The process keeps writing to its log: open files survive a move.
    for name in (PLAN, LOG):
        (folder / name).rename(home / name)
    folder.rmdir()
    return run_id


def start_check(
    history: History, name: str, text: str, say: Callable[[str], None] = lambda _text: None
) -> str:
    """Start a check in its own process, by a contract, which is kept under the name once there is a
    verdict. Returns its id once it is in the history: of several sinks, the first. `say` receives
    its output until then. Raises as `start_run`."""
    require_noted(history, Action.CHECK, name)
    require_keepable(history, name, text)
    settings = history.settings
    folder = settings.home / "launches" / secrets.token_hex(6)
    path = folder / CONTRACT
    try:
        folder.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EvidenceError(f"{path} cannot be written: {error.strerror}.") from error
    command = ["check", "--contract", str(path), "--keep", name]
    run_id = _start(history, command, folder / LOG, say)
    home = settings.runs / run_id
    home.mkdir(parents=True, exist_ok=True)
    (folder / LOG).rename(home / LOG)
    # The process has read it, and wrote it into the check's folder.
    path.unlink()
    folder.rmdir()
    return run_id


def start_kept_check(
    history: History, contract: KeptContract, say: Callable[[str], None] = lambda _text: None
) -> str:
    """Start a check by a kept contract in its own process. Returns its id once it is in the
    history: of several sinks, the first. Raises as `start_run`."""
    require_noted(history, Action.CHECK, contract.label)
    settings = history.settings
    folder = settings.home / "launches" / secrets.token_hex(6)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise EvidenceError(f"{folder} cannot be made: {error.strerror}.") from error
    # With its version, the label is the name of no file.
    command = ["check", "--contract", contract.label]
    run_id = _start(history, command, folder / LOG, say)
    home = settings.runs / run_id
    home.mkdir(parents=True, exist_ok=True)
    (folder / LOG).rename(home / LOG)
    folder.rmdir()
    return run_id


def start_resume(
    history: History, run_id: str, say: Callable[[str], None] = lambda _text: None
) -> None:
    """Resume a run in its own process. Returns once that process owns it. Raises as `start_run`."""
    require_noted(history, Action.RESUME, run_id)
    settings = history.settings
    (settings.runs / run_id).mkdir(parents=True, exist_ok=True)
    _start(history, ["resume", run_id], settings.runs / run_id / LOG, say)


def start_matrix(history: History, say: Callable[[str], None] = lambda _text: None) -> None:
    """Start the small matrix in its own process. Returns once its first cell runs. Raises as
    `start_run`."""
    require_noted(history, Action.LAUNCH, "the matrix")
    settings = history.settings
    folder = settings.home / "matrix"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EvidenceError(f"{folder} cannot be made: {error.strerror}.") from error
    _start(history, ["matrix", "--small"], folder / LOG, say)


def start_watch(
    history: History,
    cluster_id: str,
    say: Callable[[str], None] = lambda _text: None,
) -> None:
    """Start a watch of the settings' cluster in its own process, unless one is running. It judges
    the contracts on the list of this home, and ends when none is left. Returns once it has the
    state of its cluster. Raises as `start_run`."""
    require_noted(history, Action.WATCH, cluster_id)
    settings = history.settings
    if is_watched(settings, cluster_id):
        return
    log = settings.home / FOLDER / f"{state_name(cluster_id)}.log"
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        log.write_bytes(b"")
    except OSError as error:
        raise EvidenceError(f"{log} cannot be written: {error.strerror}.") from error
    with _launched(history, ["watch", "--listed", "--every", WATCH_EVERY_S], log) as (process, _):
        last_line = ""

        def is_begun_or_ended() -> bool:
            nonlocal last_line
            if (line := _end(log).rpartition("\n")[2]) != last_line:
                last_line = line
                say(line)
            return process.ended() or is_watched(settings, cluster_id)

        ask_until(is_begun_or_ended, bool, BROKER_START_TIMEOUT_S, _POLL_S)
        # Another process may have been faster.
        if not is_watched(settings, cluster_id):
            raise SetupError(f"The watch did not begin. Its output: {_end(log) or 'nothing.'}")


def said(settings: Settings, run_id: str) -> str:
    """Return the last lines of a run's output; empty if the run was not started as a detached
    process."""
    return _end(settings.runs / run_id / LOG)


def _start(history: History, arguments: list[str], log: Path, say: Callable[[str], None]) -> str:
    """Start the command line detached, and wait until it owns a run. Returns the run's id."""
    with _launched(history, arguments, log) as (process, said_before):
        return _await_run(history, process, log, said_before, say)


@contextmanager
def _launched(
    history: History, arguments: list[str], log: Path
) -> Iterator[tuple[_RunProcess, int]]:
    """Start the command line detached. Yields its process, and the bytes that its log had before.
    The process goes on behind the block."""
    settings = history.settings
    environment = {
        **python_environment(),
        **settings.environment(),
        **environment_for(history.by),
    }
    with log.open("ab") as output:
        said_before = output.tell()
        process = _fork(settings, arguments, output, environment) or _spawn(
            arguments, output, environment
        )
    try:
        yield process, said_before
    finally:
        process.let_go()


@dataclass(frozen=True)
class _RunProcess:
    pid: int
    ended: Callable[[], bool]
    let_go: Callable[[], None]


def _fork(
    settings: Settings,
    arguments: list[str],
    output: IO[bytes],
    environment: Mapping[str, str],
) -> _RunProcess | None:
    """Fork the prefork server. None if there is none, as for an external Spark."""
    with Path(os.devnull).open() as nothing:
        streams = [nothing.fileno(), output.fileno(), output.fileno()]
        try:
            connection, pid = ask(
                str(socket_path(settings.spark)),
                [MODULE, *arguments],
                dict(environment),
                str(ROOT),
                streams,
                detached=True,
            )
        except OSError:
            return None
    return _RunProcess(
        pid, lambda: bool(select.select([connection], [], [], 0)[0]), connection.close
    )


def _spawn(arguments: list[str], output: IO[bytes], environment: Mapping[str, str]) -> _RunProcess:
    _STARTED[:] = [started for started in _STARTED if started.poll() is None]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        cwd=ROOT,
        env=environment,
    )
    _STARTED.append(process)
    return _RunProcess(process.pid, lambda: process.poll() is not None, lambda: None)


def _await_run(
    history: History, process: _RunProcess, log: Path, said_before: int, say: Callable[[str], None]
) -> str:
    mark = f"{socket.gethostname()}:{process.pid}:"
    last_line = ""

    def look() -> tuple[str | None, bool]:
        """Return the run's id, and whether the process ended before the history was read."""
        nonlocal last_line
        ended = process.ended()
        begun = history.owned_by(mark)
        if begun:
            return begun[0], ended
        if (line := _end(log, said_before).rpartition("\n")[2]) != last_line:
            last_line = line
            say(line)
        return None, ended

    timeout_s = BROKER_START_TIMEOUT_S + SPARK_START_TIMEOUT_S
    run_id, ended = ask_until(look, any, timeout_s, _POLL_S)
    if run_id is not None:
        return run_id
    if ended:
        raise SetupError(
            "The process of the run ended before the run began. Its output:"
            f" {_end(log, said_before) or 'nothing.'}"
        )
    raise SetupError(f"The run has not begun yet. Its process continues; its log is {log}.")


def _end(log: Path, since: int = 0) -> str:
    """Return the last lines written to a log after byte `since`."""
    # librdkafka's connection logs (`%3|...`) are skipped: the error that follows is clearer.
    lines = [line for line in end_of(log, since) if not line.startswith("%")]
    return "\n".join(lines[-LINES_SHOWN:])
