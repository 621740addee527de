"""Crash and error: SIGKILL or an exception ends the worker inside a transaction."""

from __future__ import annotations

import os
import signal
from typing import Never

from topicproof.backend.errors import InjectedError
from topicproof.backend.faults.fault import Fault


def crash() -> None:
    """End this process without flushing or closing anything."""
    os.kill(os.getpid(), signal.SIGKILL)


def error(fault: Fault, where: str) -> Never:
    raise InjectedError(f"{where}: raised on purpose ({fault}).")
