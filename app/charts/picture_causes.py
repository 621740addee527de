"""Why a box of the picture has a cross: what ended its transaction without a commit.

Pure. The coordinators' log proves some reasons, and the journal knows which worker was killed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence

from topicproof.app.charts.picture_log import Part
from topicproof.app.charts.picture_words import Place, planned_fault
from topicproof.backend.faults.by_hand import is_kill
from topicproof.backend.faults.kinds import CRASH
from topicproof.backend.kafka.coordination.reasons import DECLARED, FENCED, OPERATOR, TIMEOUT
from topicproof.backend.sink.entries import (
    Declared,
    FaultFired,
    StampedEntry,
    TaskStarted,
    TransactionEnded,
)
from topicproof.validators.facts.log_facts import ABORTED

KILLED, LOST = "killed", "lost"
"""Its worker was killed; nothing proves a cause."""
CAUSES: Mapping[str, str] = {
    KILLED: "killed",
    DECLARED: "aborted",
    FENCED: "fenced",
    TIMEOUT: "timed out",
    OPERATOR: "by an operator",
    LOST: "aborted",
}
"""What stands beside a cross."""
_DECLARED: Mapping[Declared, str] = {Declared.ABORTED: DECLARED, Declared.FENCED: FENCED}


def abort_causes(
    parts: Iterable[Part],
    writers: Mapping[int, Place | None],
    journal: Sequence[StampedEntry],
    reasons: Mapping[tuple[int, int], str],
) -> dict[Part, str]:
    """Returns a key of `CAUSES` for each aborted part. `writers`: the source partition of each
    producer id; `reasons`: proven ones, by partition and first offset of a transaction."""
    tasks = _tasks(journal)
    killed = _killed_tasks(journal)
    declared = _declared(journal)
    causes = {}
    for part in parts:
        if part.outcome != ABORTED:
            continue
        place = writers.get(part.producer)
        proven = reasons.get((part.partition, part.first), LOST)
        started = () if place is None else tasks.get(place, ())
        owner = bisect_right(started, (part.begins, "\uffff")) - 1
        if owner < 0:
            causes[part] = proven
            continue
        task = started[owner][1]
        outcomes = declared.get(task, [])
        number = bisect_left(outcomes, (part.begins,))
        outcome = outcomes[number][1] if number < len(outcomes) else None
        if outcome is not None and outcome in _DECLARED:
            causes[part] = _DECLARED[outcome]
        elif task in killed:
            # To Kafka it is fenced by its successor. To people it was killed.
            causes[part] = KILLED
        elif proven == LOST and owner + 1 < len(started):
            # A successor takes the transactional id over before it writes anything.
            causes[part] = FENCED
        else:
            causes[part] = proven
    return causes


def _tasks(journal: Sequence[StampedEntry]) -> dict[Place, list[tuple[int, str]]]:
    """Returns when each task took a source partition over, rising."""
    tasks: dict[Place, list[tuple[int, str]]] = {}
    for stamped in journal:
        entry = stamped.entry
        if isinstance(entry, TaskStarted):
            place = entry.source_topic, entry.source_partition
            tasks.setdefault(place, []).append((stamped.at_ms, entry.task))
    return {place: sorted(started) for place, started in tasks.items()}


def _killed_tasks(journal: Sequence[StampedEntry]) -> set[str]:
    return {
        stamped.entry.task
        for stamped in journal
        if isinstance(stamped.entry, FaultFired) and kills(stamped.entry)
    }


def kills(entry: FaultFired) -> bool:
    """Whether a fault kills its worker."""
    fault = planned_fault(entry)
    return is_kill(entry.fault) or (fault is not None and fault.kind.name == CRASH.name)


def _declared(journal: Sequence[StampedEntry]) -> dict[str, list[tuple[int, Declared]]]:
    """Returns when each task declared which outcome, rising."""
    declared: dict[str, list[tuple[int, Declared]]] = {}
    for stamped in journal:
        if isinstance(stamped.entry, TransactionEnded):
            outcome = stamped.at_ms, stamped.entry.outcome
            declared.setdefault(stamped.entry.task, []).append(outcome)
    return {task: sorted(outcomes) for task, outcomes in declared.items()}
