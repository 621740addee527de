"""Strikes by hand: somebody kills a worker or freezes the network of a live run.

The plan has to allow it (`by_hand`). Then each task tells the journal its process, and the workers
reach the brokers through a proxy (proxy.py). The run's own process strikes
(backend/runs/fault_director.py). It claims each strike in the journal first, as planned faults are.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from topicproof.backend.address import Address
from topicproof.backend.errors import UsageError
from topicproof.backend.faults.kinds import ISOLATED
from topicproof.backend.sink.entries import Entry, FaultFired, WorkerBegan, WorkerEnded
from topicproof.backend.sink.journal import JournalWriter
from topicproof.validators.lineage.compact import TOPIC_NAME

if TYPE_CHECKING:
    import psutil

FREEZE_S = 10
"""Seconds that the network is frozen unless somebody says otherwise."""
FREEZE_MOST_S = 120
NAMED_MAX = 20
"""Strikes that a report names."""
_KILL, _FREEZE = "kill@by_hand=", "freeze@by_hand="
CUT_OFF = f"{ISOLATED.name}@", _FREEZE
"""How the names of faults begin that cut every worker off from the brokers."""
_KILL_NAMES = re.compile(rf"{_KILL}[0-9]{{1,9}}")
_FREEZE_NAMES = re.compile(rf"{_FREEZE}[0-9]{{1,9}},seconds=([0-9]{{1,3}})")
_FORKS = "topicproof.backend.services.prefork_server"
_OF_SPARK = "pyspark.daemon", "pyspark.worker"
"""The modules in a worker's command line: it is forked by us, or started by Spark itself."""
_Place = tuple[str, int]


@dataclass(frozen=True)
class Kill:
    """Kill the worker of a source partition, as if by a power cut."""

    partition: int
    topic: str | None = None
    """None: the run's only source."""

    def __post_init__(self) -> None:
        if self.partition < 0:
            raise UsageError(f"Partition {self.partition}: partitions count from 0.")

    def name(self, number: int) -> str:
        """Return what the journal calls this strike, the run's Nth by hand."""
        return f"{_KILL}{number}"


@dataclass(frozen=True)
class Freeze:
    """Let nothing pass between the workers and the brokers for some seconds."""

    seconds: int = FREEZE_S

    def __post_init__(self) -> None:
        if not 1 <= self.seconds <= FREEZE_MOST_S:
            raise UsageError(
                f"Freeze for {self.seconds} s: choose 1 to {FREEZE_MOST_S} whole seconds."
            )

    def name(self, number: int) -> str:
        """Return what the journal calls this strike, the run's Nth by hand."""
        return f"{_FREEZE}{number},seconds={self.seconds}"


Strike = Kill | Freeze


def is_by_hand(fault: str) -> bool:
    """Return whether a fault of the journal is a strike by hand. Anybody who may write to the
    journal can name a fault, and a report names strikes: only the names that this module gives
    count."""
    return bool(_KILL_NAMES.fullmatch(fault) or _FREEZE_NAMES.fullmatch(fault))


def is_kill(fault: str) -> bool:
    """Return whether a fault of the journal is a worker killed by hand."""
    return _KILL_NAMES.fullmatch(fault) is not None


def strikes(entries: Iterable[Entry]) -> list[FaultFired]:
    """Return the claims of strikes by hand, in their order."""
    return [
        entry
        for entry in entries
        if isinstance(entry, FaultFired)
        and is_by_hand(entry.fault)
        and re.fullmatch(TOPIC_NAME, entry.source_topic)
    ]


def strike_sentence(claim: FaultFired, who: str) -> str | None:
    """Return a strike by hand in words, without a full stop; None for a planned fault. `who`: the
    source partition of the worker."""
    if _KILL_NAMES.fullmatch(claim.fault):
        return f"Somebody kills the worker of {who} with SIGKILL"
    if freeze := _FREEZE_NAMES.fullmatch(claim.fault):
        return f"Somebody freezes the network of every worker for {freeze[1]} s"
    return None


def strike_notes(entries: Iterable[Entry]) -> tuple[str, ...]:
    """Return one note for a report that names the strikes by hand; none if there was none."""
    claims = strikes(entries)
    if not claims:
        return ()
    lines = [f"{number}. {_noted(claim)}" for number, claim in enumerate(claims, start=1)]
    more = f"; and {len(lines) - NAMED_MAX:,} more" if len(lines) > NAMED_MAX else ""
    return (f"This run was struck by hand: {'; '.join(lines[:NAMED_MAX])}{more}.",)


def _noted(claim: FaultFired) -> str:
    if freeze := _FREEZE_NAMES.fullmatch(claim.fault):
        return f"the network of every worker frozen for {freeze[1]} s"
    return f"the worker of {claim.source_topic}-{claim.source_partition} killed with SIGKILL"


class Presence:
    """Tells the journal the process of one task, and when the task has ended."""

    def __init__(self, address: Address, journal: str, task: str, source: _Place) -> None:
        """Raises ClusterError if the journal cannot be written."""
        import psutil  # late: a worker needs it for strikes by hand alone

        self.task, self.source = task, source
        self.writer = JournalWriter(address, journal)
        created = psutil.Process().create_time()
        began = WorkerBegan(task, *source, socket.gethostname(), os.getpid(), created)
        self.writer.append_acknowledged(began)

    def close(self) -> None:
        self.writer.append(WorkerEnded(self.task, *self.source))
        self.writer.close()


class Workers:
    """The tasks at work and their processes, by the journal."""

    def __init__(self) -> None:
        self._by_partition: dict[_Place, WorkerBegan] = {}

    def hear(self, entry: Entry) -> None:
        """Follow an entry of the journal."""
        if isinstance(entry, WorkerBegan):
            self._by_partition[entry.source_topic, entry.source_partition] = entry
        elif isinstance(entry, WorkerEnded):
            worker = self._by_partition.get((entry.source_topic, entry.source_partition))
            # The predecessor's end may come after its successor's beginning.
            if worker is not None and worker.task == entry.task:
                del self._by_partition[entry.source_topic, entry.source_partition]

    def of(self, topic: str, partition: int) -> WorkerBegan | None:
        """Return the worker of a source partition; None while there is none."""
        return self._by_partition.get((topic, partition))

    def forget(self, worker: WorkerBegan) -> None:
        """Note that a worker's process is gone."""
        self._by_partition.pop((worker.source_topic, worker.source_partition), None)


def is_elsewhere(worker: WorkerBegan) -> bool:
    """Return whether a worker runs on another machine, where this process can kill nothing."""
    return worker.host != socket.gethostname()


def require_nearby(worker: WorkerBegan) -> None:
    """Raises UsageError if a worker runs on another machine."""
    if is_elsewhere(worker):
        raise UsageError(
            f"the worker of {worker.source_topic}-{worker.source_partition} runs on {worker.host},"
            " where the run's process cannot kill it"
        )


@contextmanager
def stopped(worker: WorkerBegan) -> Iterator[psutil.Process | None]:
    """Stop a worker's process (SIGSTOP) while the block decides whether to kill it. Yields None if
    the process is gone: its number may belong to another one by now. Raises UsageError if it
    belongs to another user, or is no worker."""
    import psutil

    process = _process(worker)
    if process is None:
        yield None
        return
    try:
        yield process
    finally:
        # A killed process is gone, or waits to be.
        with suppress(psutil.NoSuchProcess):
            process.resume()


def _process(worker: WorkerBegan) -> psutil.Process | None:
    """Return a worker's process, stopped; None if it is gone."""
    import psutil

    try:
        process = psutil.Process(worker.pid)
        same = round(process.create_time(), 2) == round(worker.created, 2)
        if not same or process.status() == psutil.STATUS_ZOMBIE:
            return None
        if not _is_worker(process):
            # Whoever may write to the journal can name any process of this user.
            raise UsageError(
                f"process {worker.pid}, which the journal names as the worker of"
                f" {worker.source_topic}-{worker.source_partition}, is no Python worker of Spark,"
                " and is not killed"
            )
        process.suspend()
    except (psutil.NoSuchProcess, ProcessLookupError):
        return None
    except psutil.AccessDenied as error:
        raise UsageError(
            f"process {worker.pid}, the worker of {worker.source_topic}-{worker.source_partition},"
            " belongs to another user, and cannot be killed from here"
        ) from error
    return process


def _is_worker(process: psutil.Process) -> bool:
    """Return whether a process is a Python worker of Spark, by its command line."""
    import psutil

    module = _module(process)
    if module != _FORKS:
        return module in _OF_SPARK
    # A fork has the command line of the prefork server and stays in its session. The process of a
    # run is such a fork too, but leads a session of its own.
    server = psutil.Process(os.getsid(process.pid))
    parent = server.parent()
    is_server = _module(server) == _FORKS and (parent is None or _module(parent) != _FORKS)
    return is_server and server != process


def _module(process: psutil.Process) -> str:
    """Return the module that a Python process runs; empty if its command line names none."""
    words = process.cmdline()
    return next((word for option, word in pairwise(words) if option == "-m"), "")
