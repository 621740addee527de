"""Other processes, for faults that a worker cannot inflict on itself.

Their arguments go through standard input: client properties may hold passwords, and every user of
the machine can read a command line.

Hijack: another process takes over the worker's transactional id, begins a transaction, and ends.
The broker fences the worker, and its task fails. The task's next attempt takes the id back.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from topicproof.backend.address import Address
from topicproof.backend.errors import InjectedError
from topicproof.backend.interpreter import ROOT, python_environment
from topicproof.backend.kafka.transaction import TransactionalProducer
from topicproof.backend.log_file import error_output


def start(module: str, **arguments: Any) -> subprocess.Popen[bytes]:
    """Run `module` in a process that outlives this one."""
    with error_output() as log:
        # Its Kafka client logs what a fault does to it: the terminal is for the run's progress.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
            cwd=ROOT,
            env=python_environment(),
        )
    assert process.stdin is not None
    process.stdin.write(json.dumps(arguments).encode())
    process.stdin.close()
    return process


def read_arguments() -> Mapping[str, Any]:
    """Return what `start` was called with, in the process that it started."""
    arguments: Mapping[str, Any] = json.load(sys.stdin)
    return arguments


DONE_WITHIN_S = 60.0


def hijack(address: Address, transactional_id: str) -> None:
    """Wait until another process has taken the id. Raises InjectedError if it failed."""
    ended = start(
        __name__,
        bootstrap=address.bootstrap,
        client=dict(address.client),
        transactional_id=transactional_id,
    )
    if ended.wait(DONE_WITHIN_S) != 0:
        raise InjectedError(
            f"{transactional_id}: it could not be hijacked; its process ended with"
            f" {ended.returncode}."
        )


def _take_over(bootstrap: str, client: Mapping[str, str], transactional_id: str) -> None:
    with TransactionalProducer(Address(bootstrap, client), transactional_id) as successor:
        successor.producer.begin_transaction()


if __name__ == "__main__":
    _take_over(**read_arguments())
