"""Another process, for faults that a worker cannot inflict on itself.

Its arguments go through standard input: client properties may hold passwords, and every user of the
machine can read a command line.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from topicproof.backend.interpreter import ROOT, python_environment
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
