"""Crash: the worker is killed with SIGKILL between produce and commit, so its records are in the log, uncommitted."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass

from backend.errors import UsageError

_FORM = re.compile(r"crash@transaction=([1-9]\d*)")


@dataclass(frozen=True)
class Crash:
    """`crash@transaction=N`: once per source partition, in its N-th transaction."""

    transaction: int

    def __str__(self) -> str:
        return f"crash@transaction={self.transaction}"

    def fire(self) -> None:
        """End this process as a power cut would: nothing is flushed, closed or told to anybody."""
        os.kill(os.getpid(), signal.SIGKILL)


def parse_fault(text: str) -> Crash:
    """Raises UsageError for anything that is not a known fault."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"Unknown fault {text!r}. Known: crash@transaction=N (N from 1), such as crash@transaction=3.")
    return Crash(int(found.group(1)))
