"""Crash and error: the worker ends in the middle of a transaction, by SIGKILL or by an exception of
its own."""

from __future__ import annotations

import os
import signal
from typing import Never

from topicproof.backend.errors import InjectedError
from topicproof.backend.faults.fault import Fault


def crash() -> None:
    """End this process: nothing is flushed, closed or told to anybody."""
    os.kill(os.getpid(), signal.SIGKILL)


def error(fault: Fault, where: str) -> Never:
    raise InjectedError(f"{where}: raised on purpose ({fault}).")
