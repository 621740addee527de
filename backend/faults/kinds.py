"""The kinds of fault there are. Who adds one adds it here, and a file of its family that does the damage."""

from __future__ import annotations

from backend.faults.fault import TRANSACTION, Fault, Kind, Side, Step, parse, step_key

_OPEN = step_key(Step.BEGUN, Step.PRODUCING, Step.PRODUCED, Step.OFFSET_SENT)
"""The steps at which a transaction is open."""

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
ZOMBIE = Kind(
    "zombie",
    "The worker is cut off from Spark and stopped (SIGSTOP), and goes on when its successor has begun.",
    Side.WORKER,
    (TRANSACTION, _OPEN),
)
HIJACK = Kind(
    "hijack",
    "Another process takes the worker's transactional id over, begins a transaction, and leaves.",
    Side.WORKER,
    (TRANSACTION, _OPEN),
    needs_transactions=True,
)

KINDS: tuple[Kind, ...] = (CRASH, ERROR, ZOMBIE, HIJACK)


def parse_fault(text: str) -> Fault:
    """Raises UsageError for anything that is not a known fault."""
    return parse(text, KINDS)
