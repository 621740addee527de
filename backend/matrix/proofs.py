"""Proof that a fault fired, from the journal and the report of its run: a sentence, or None without
proof."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from topicproof.backend.faults.proxy import IN_NEXT
from topicproof.backend.sink.entries import (
    Declared,
    Entry,
    FaultFired,
    FaultPhase,
    FaultReport,
    TaskStarted,
    TransactionEnded,
)
from topicproof.validators.finding import Guarantee
from topicproof.validators.report import Report


@dataclass(frozen=True)
class Trial:
    """The events of a cell: evidence for its proof."""

    entries: Sequence[Entry]
    """The run's journal."""
    report: Report
    partitions: int
    """Number of source partitions. A fault inside the worker fires once in each."""


def nothing_fired(trial: Trial) -> str | None:
    """Prove that no fault was planned and none fired."""
    loud = _fired(trial) or any(_is(entry, Declared.ABORTED) for entry in trial.entries)
    return None if loud else "no fault fired and no transaction was aborted"


def aborted(trial: Trial) -> str | None:
    """Prove that transactions were aborted."""
    declared = sum(_is(entry, Declared.ABORTED) for entry in trial.entries)
    return f"the journal declares {declared} aborted transactions" if declared else None


def taken_over(trial: Trial) -> str | None:
    """Prove that the fault fired in every partition, and another task took over each of them."""
    for number, fired in enumerate(trial.entries):
        if isinstance(fired, FaultFired) and not any(
            isinstance(later, TaskStarted)
            and later.source_partition == fired.source_partition
            and later.task != fired.task
            for later in trial.entries[number:]
        ):
            return None
    struck = len(_fired(trial))
    if struck < trial.partitions:
        return None
    return f"it fired in {struck} partitions, and another task took each of them over"


def fenced(trial: Trial) -> str | None:
    """Prove the same. With transactions, the journal must also declare the replaced worker
    fenced."""
    proof = taken_over(trial)
    if proof is None or trial.report.guarantee is not Guarantee.EXACTLY_ONCE:
        return proof
    replaced = {
        entry.source_partition
        for entry in trial.entries
        if isinstance(entry, TransactionEnded) and entry.outcome is Declared.FENCED
    }
    return f"{proof}; the journal declares it fenced" if len(replaced) == trial.partitions else None


def claimed(trial: Trial) -> str | None:
    """Prove that the fault fired at all."""
    struck = len(_fired(trial))
    return f"it fired in {struck} partitions" if struck else None


def _fired(trial: Trial) -> set[int]:
    """Return the partitions in which a fault fired."""
    return {entry.source_partition for entry in trial.entries if isinstance(entry, FaultFired)}


def reported(phase: FaultPhase) -> Callable[[Trial], str | None]:
    """Prove a fault by the reports of the run's own process."""

    def proof(trial: Trial) -> str | None:
        sentences = [
            entry.said
            for entry in trial.entries
            if isinstance(entry, FaultReport) and entry.what is phase
        ]
        # Retries repeat entries when the fault struck the journal's own leader.
        return "; ".join(dict.fromkeys(sentences)) or None

    return proof


def arrived_late(trial: Trial) -> str | None:
    """Prove that a request was struck and arrived late; with transactions, in the next one."""
    struck, arrived = reported(FaultPhase.STRUCK)(trial), reported(FaultPhase.HEALED)(trial)
    if struck is None or arrived is None:
        return None
    transactional = trial.report.guarantee is Guarantee.EXACTLY_ONCE
    return f"{struck}; {arrived}" if IN_NEXT in arrived or not transactional else None


def source_has_attempts(trial: Trial) -> str | None:
    """Prove that the source holds aborted records besides committed ones and markers."""
    offsets = sum(p.lso - p.start for p in trial.report.source.partitions)
    aborted = offsets - trial.report.source_records
    return (
        f"{aborted} of {offsets} offsets of the source are not committed records"
        if aborted > offsets / 3
        else None
    )


def _is(entry: Entry, outcome: Declared) -> bool:
    return isinstance(entry, TransactionEnded) and entry.outcome is outcome
