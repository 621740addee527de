"""Crash: the worker is killed with SIGKILL at a step of a transaction, as a power cut would end it."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from enum import StrEnum

from backend.errors import UsageError

_FORM = re.compile(r"crash@transaction=([1-9]\d*)(?:,step=(\w+))?")


class Step(StrEnum):
    """Where a worker stands in a transaction, or in what stands for one under the other guarantees."""

    BEGUN = "begun"
    PRODUCING = "producing"
    """Half of the records are in the log."""
    PRODUCED = "produced"
    """All records are in the log; nothing is committed."""
    OFFSET_SENT = "offset_sent"
    """The next source offset is part of the transaction; without transactions it is committed."""
    COMMITTED = "committed"
    """The answer to the commit is there; nobody has been told yet."""


@dataclass(frozen=True)
class Crash:
    """`crash@transaction=N,step=STEP`: once per source partition, in its N-th transaction."""

    transaction: int
    step: Step = Step.PRODUCED

    def __str__(self) -> str:
        step = "" if self.step is Step.PRODUCED else f",step={self.step}"
        return f"crash@transaction={self.transaction}{step}"

    def fire(self) -> None:
        """End this process: nothing is flushed, closed or told to anybody."""
        os.kill(os.getpid(), signal.SIGKILL)


def parse_fault(text: str) -> Crash:
    """Raises UsageError for anything that is not a known fault."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"Unknown fault {text!r}. Known: crash@transaction=N (N from 1), such as crash@transaction=3, with a step "
            f"if not {Step.PRODUCED}, such as crash@transaction=3,step={Step.BEGUN}."
        )
    step = found[2] or Step.PRODUCED.value
    if step not in set(Step):
        raise UsageError(f"Unknown step {step!r} in {text!r}. Known: {', '.join(Step)}.")
    return Crash(int(found[1]), Step(step))
