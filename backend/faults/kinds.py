"""The kinds of fault there are. Who adds one adds it here, and a file of its family that does the damage."""

from __future__ import annotations

from backend.faults.fault import TRANSACTION, Fault, Kind, Side, parse, step_key

CRASH = Kind(
    "crash",
    "The worker is killed with SIGKILL, as a power cut would end it.",
    Side.WORKER,
    (TRANSACTION, step_key()),
)
ERROR = Kind(
    "error",
    "The worker's code raises an exception, and Spark runs the task again.",
    Side.WORKER,
    (TRANSACTION, step_key()),
)

KINDS: tuple[Kind, ...] = (CRASH, ERROR)


def parse_fault(text: str) -> Fault:
    """Raises UsageError for anything that is not a known fault."""
    return parse(text, KINDS)
