"""Spark's Python processes, and those of runs, forked from one that has done the imports already.

A streaming query starts two Python daemons of its own, one to plan the sink and one to commit each
batch, and each imports PySpark, Arrow and the sink anew: 3.4 s of a run of 10,000 records that took
3.8 s. Here one process, started with the Spark server, imports them once. What Spark starts as its
Python executable (`EXECUTABLE`) hands its arguments, environment and standard streams to that
process, which forks and runs the module in them. So does the dashboard when it starts a run
(launch.py), which took 1.2 s to import.

Nothing here starts a thread or opens a client before the fork, so forking is safe. Where the
process does not answer, the executable becomes an ordinary Python: slower, and otherwise the same.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Never

import psutil

from topicproof.backend.services.prefork_client import LENGTH_BYTES

MODULES = (
    "pyspark.sql.connect.session",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
    "pyspark.daemon",
    "topicproof.backend.faults.injecting",
    "topicproof.backend.commands.runs",
    "topicproof.backend.commands.topics",
    "topicproof.backend.commands.up",
)
BACKLOG = 64
IDLE_TICK_S = 30.0

EXECUTABLE = """#!/bin/sh
exec "{python}" -I -S "{client}" "{address}" "{python}" "$@"
"""
"""What Spark is given as its Python."""


def write_executable(path: Path, address: Path) -> None:
    """Write the file to be named as PYSPARK_PYTHON of a server whose forks are served at
    `address`."""
    client = Path(__file__).with_name("prefork_client.py")
    path.write_text(EXECUTABLE.format(python=sys.executable, client=client, address=address))
    path.chmod(0o700)


def serve(address: str) -> None:
    """Fork for whoever asks, until standard input ends: its writer is the one who started this
    process."""
    for module in MODULES:
        importlib.import_module(module)
    # Spark's workers collect garbage after every task. What was imported is none: looking it
    # through again took 100 ms of each task, more than a small one's work.
    gc.collect()
    gc.freeze()
    # Nobody waits for the children; whoever asked for one sees the end of its connection.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    unfinished = Path(f"{address}.new")
    unfinished.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(unfinished))
        listener.listen(BACKLOG)
        # Whoever finds it can connect to it.
        unfinished.rename(address)
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _become(connection)
            connection.close()
    Path(address).unlink(missing_ok=True)


def _become(connection: socket.socket) -> Never:
    """Run the module that the caller was started for, in the caller's surroundings.

    The connection stays open as long as this process or a child of it lives.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, streams, _, _ = socket.recv_fds(connection, LENGTH_BYTES, 3)
    with connection.makefile("rb") as reader:
        asked = json.loads(reader.read(int.from_bytes(head, "big")))
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if asked["detached"]:
        os.setsid()
    connection.sendall(os.getpid().to_bytes(LENGTH_BYTES, "big"))
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path += [path for path in paths if path and path not in sys.path]
    sys.argv = asked["arguments"]
    if not asked["detached"]:
        _end_when_idle()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    raise SystemExit(0)


def _end_when_idle() -> None:
    """End this process when it has had no child for two ticks in a row.

    Spark keeps the daemons of every query for ever, two of each. Their workers it ends after a
    minute; a daemon that is gone it starts anew.
    """
    owner, was_idle = os.getpid(), False

    def look(_signal: int, _frame: FrameType | None) -> None:
        nonlocal was_idle
        idle = os.getpid() == owner and not psutil.Process(owner).children()
        if idle and was_idle:
            os.kill(owner, signal.SIGTERM)
        was_idle = idle

    signal.signal(signal.SIGALRM, look)
    # A fork of this process inherits the handler and not the timer.
    signal.setitimer(signal.ITIMER_REAL, IDLE_TICK_S, IDLE_TICK_S)


if __name__ == "__main__":
    serve(sys.argv[1])
