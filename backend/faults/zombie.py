"""Zombie: the worker is stopped inside a transaction, and resumes when its successor has begun.

A merely paused worker has no successor, because Spark waits for it. So the worker shuts down its
connection to Spark, as a lost network would. Spark considers it dead and runs the task again. Then
the worker stops itself (SIGSTOP). A watcher, started before, resumes it (SIGCONT) when the journal
shows that another task has taken over the transactional id. It also does so when the query was
stopped or restarted: the worker may hold the lock that stopping waits for. The resumed worker
continues where it was, and the broker must fence it.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import dropwhile

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, InjectedError
from topicproof.backend.faults.other_process import read_arguments, start
from topicproof.backend.sink.entries import Entry, GenerationBegun, TaskStarted
from topicproof.backend.sink.journal import JournalReader

SUCCESSOR_WITHIN_S = 120.0
"""A worker without a successor is resumed after this long."""
LOOK_S = 0.1


def stop_until_succeeded(address: Address, journal: str, transactional_id: str, task: str) -> None:
    """Stop this worker until the watcher resumes it. Raises InjectedError when it finds no
    connection to Spark."""
    connections = _connections_to_spark()
    if not connections:
        raise InjectedError(
            f"{transactional_id}: its worker has no connection to Spark's daemon that it could"
            " leave."
        )
    start(
        __name__,
        bootstrap=address.bootstrap,
        client=dict(address.client),
        journal=journal,
        transactional_id=transactional_id,
        task=task,
        stopped=os.getpid(),
    )
    for descriptor in connections:
        with socket.socket(fileno=os.dup(descriptor)) as connection, suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
    os.kill(os.getpid(), signal.SIGSTOP)


def _connections_to_spark() -> list[int]:
    """Return the descriptors of this worker's connection to Spark, accepted by its parent, the
    daemon."""
    import psutil  # late: a worker needs it for this fault alone

    listening = {
        connection.laddr
        for connection in psutil.Process(os.getppid()).net_connections("all")
        if connection.laddr and not connection.raddr
    }
    return [
        connection.fd
        for connection in psutil.Process().net_connections("all")
        if connection.laddr in listening
    ]


def _watch(
    bootstrap: str,
    client: Mapping[str, str],
    journal: str,
    transactional_id: str,
    task: str,
    stopped: int,
) -> None:
    """Resume the process once it has stopped and a successor has begun."""
    import psutil

    process = psutil.Process(stopped)
    reader = JournalReader(Address(bootstrap, client), journal, on_worker=True)
    deadline = time.monotonic() + SUCCESSOR_WITHIN_S
    entries: list[Entry] = []
    with suppress(psutil.NoSuchProcess):
        while time.monotonic() < deadline:
            with suppress(ClusterError):  # A broker may be away for a moment.
                entries += reader.news()
            if process.status() == psutil.STATUS_STOPPED and _is_over(
                entries, transactional_id, task
            ):
                break
            time.sleep(LOOK_S)
        process.send_signal(signal.SIGCONT)
    reader.close()


def _is_over(entries: Iterable[Entry], transactional_id: str, task: str) -> bool:
    """Return whether, since `task` started, another task has taken over the id or a new generation
    began."""
    since = dropwhile(
        lambda entry: not (isinstance(entry, TaskStarted) and entry.task == task), entries
    )
    return any(
        isinstance(entry, GenerationBegun)
        or (
            isinstance(entry, TaskStarted)
            and entry.transactional_id == transactional_id
            and entry.task != task
        )
        for entry in since
    )


if __name__ == "__main__":
    _watch(**read_arguments())
