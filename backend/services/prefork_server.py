"""Python processes of Spark and of runs, forked from a process with all imports done.

A streaming query starts two Python daemons: one plans the sink, one commits each batch. Each would
import PySpark, Arrow and the sink again, which takes 3.4 s in every run. Here one process, started
with the Spark server, imports them once. Spark's Python executable (`EXECUTABLE`) passes its
arguments, environment and standard streams to that process, which forks and runs the module. The
dashboard starts runs in the same way (launch.py) and saves 1.2 s.

No thread is started and no client opened before the fork, so forking is safe. If the process does
not answer, the executable becomes an ordinary Python: slower, but otherwise the same.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import shlex
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Never

import psutil

from topicproof.backend.services.local_servers import accept_all
from topicproof.backend.services.prefork_client import LENGTH_BYTES, SERVER
from topicproof.backend.services.processes import is_own

MODULES = (
    "pyspark.sql.connect.session",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
    "pyspark.daemon",
    "topicproof.backend.services.spark_channel",
    "topicproof.backend.faults.injecting",
    "topicproof.backend.commands.run_commands",
    "topicproof.backend.commands.topic_commands",
    "topicproof.backend.commands.up_commands",
)
BACKLOG = 64
IDLE_TICK_S = 30.0

EXECUTABLE = """#!/bin/sh
exec {python} -I -S {client} {address} {python} "$@"
"""
"""The script that Spark starts as its Python."""


def write_executable(path: Path, address: Path) -> None:
    """Write the PYSPARK_PYTHON file of a server whose forks are served at `address`."""
    client = Path(__file__).with_name("prefork_client.py")
    words = {"python": sys.executable, "client": str(client), "address": str(address)}
    quoted = {name: shlex.quote(word) for name, word in words.items()}
    path.write_text(EXECUTABLE.format(**quoted))
    path.chmod(0o700)


def serve(address: str) -> None:
    """Fork on request until standard input ends, which the parent process holds open."""
    for module in MODULES:
        importlib.import_module(module)
    # Spark's workers collect garbage after every task. Without the freeze they would scan all
    # imported modules each time: 100 ms.
    gc.collect()
    gc.freeze()
    # No parent waits for the children: clients notice the end of their connection.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    unfinished = Path(f"{address}.new")
    unfinished.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(unfinished))
        listener.listen(BACKLOG)
        # Renamed last: a socket with this name accepts connections.
        unfinished.rename(address)
        connections = accept_all(listener)
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            connection = next(connections)
            if is_own(connection) and os.fork() == 0:
                listener.close()
                _become(connection)
            connection.close()
    Path(address).unlink(missing_ok=True)


def _become(connection: socket.socket) -> Never:
    """Run the caller's module with its environment, folder and streams.

    The connection stays open while this process or one of its children lives.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, streams, _, _ = socket.recv_fds(connection, LENGTH_BYTES, 3)
    with connection.makefile("rb") as reader:
        request = json.loads(reader.read(int.from_bytes(head, "big")))
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if request["detached"]:
        os.setsid()
    connection.sendall(os.getpid().to_bytes(LENGTH_BYTES, "big"))
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # Nothing is searched in the working folder, which an empty or a relative path would name.
    sys.path += [path for path in paths if os.path.isabs(path) and path not in sys.path]  # noqa: PTH117
    sys.argv = request["arguments"]
    if not request["detached"]:
        _end_when_idle()
    if SERVER in os.environ:
        # PySpark's own sends a token without TLS only to `localhost`.
        # Imported late, because commands without Spark import this module too.
        importlib.import_module("topicproof.backend.services.spark_channel").use_for_all()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    raise SystemExit(0)


def _end_when_idle() -> None:
    """End this process when it has had no child for two ticks in a row.

    Spark never ends the two daemons of a query. It ends their workers after a minute, and restarts
    a daemon that is gone.
    """
    owner, was_idle = os.getpid(), False

    def look(_signal: int, _frame: FrameType | None) -> None:
        nonlocal was_idle
        idle = os.getpid() == owner and not psutil.Process(owner).children()
        if idle and was_idle:
            os.kill(owner, signal.SIGTERM)
        was_idle = idle

    signal.signal(signal.SIGALRM, look)
    # A fork of this process inherits the handler, but not the timer.
    signal.setitimer(signal.ITIMER_REAL, IDLE_TICK_S, IDLE_TICK_S)


if __name__ == "__main__":
    serve(sys.argv[1])
