"""The events of a picture, each a moment to stop at and a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from topicproof.app.charts.picture_log import Part
from topicproof.backend.errors import UsageError
from topicproof.backend.faults.by_hand import is_by_hand, strike_sentence
from topicproof.backend.faults.fault import Fault, Side
from topicproof.backend.faults.kinds import CRASH, ERROR, HIJACK, OPEN, ZOMBIE, parse_fault
from topicproof.backend.sink.entries import (
    EVERY_PARTITION,
    Declared,
    Entry,
    FaultFired,
    FaultPhase,
    FaultReport,
    GenerationBegun,
    RunTopics,
    TaskFailed,
    TaskStarted,
    TransactionEnded,
    WorkerBegan,
    WorkerEnded,
)
from topicproof.validators.facts.log_facts import ABORTED, COMMITTED

Place = tuple[str, int]
"""Topic and partition."""
NAMED_MAX = 4
REASON_CHARACTERS = 160
_TOLD = {
    FaultPhase.DONE: "The fault is under way",
    FaultPhase.STRUCK: "The fault strikes again",
    FaultPhase.HEALED: "The fault ends",
    FaultPhase.FAILED: "The fault is impossible",
}


def worker_names(places: Sequence[Place]) -> dict[Place, str]:
    """Names the worker of each source partition: the topic only where there are several."""
    several = len({topic for topic, _partition in places}) > 1
    return {place: f"{place[0]} p{place[1]}" if several else f"p{place[1]}" for place in places}


def journal_event(entry: Entry, names: Mapping[Place, str], portions: bool) -> str | None:
    """Returns the sentence for an entry of the journal; None if the log tells the same better.
    `portions`: whether the run writes without transactions."""
    if isinstance(entry, RunTopics | WorkerBegan | WorkerEnded):
        return None
    if isinstance(entry, FaultReport):
        if entry.what is FaultPhase.DONE and is_by_hand(entry.fault):
            return None
        is_open = entry.fault.startswith(f"{OPEN.name}@") and entry.what is FaultPhase.HEALED
        begins_with = "The foreign transaction ends" if is_open else _TOLD[entry.what]
        return f"{begins_with}: {_cut(entry.said)}."
    if isinstance(entry, GenerationBegun):
        return (
            f"Spark starts the query again (generation {entry.generation}): new workers, and old"
            " ones are locked out."
        )
    if isinstance(entry, TaskFailed):
        return f"A task of Spark fails ({entry.error}). Spark runs it again."
    worker = names.get((entry.source_topic, entry.source_partition))
    if isinstance(entry, FaultFired) and entry.source_partition == EVERY_PARTITION:
        worker = "every source partition"
    if worker is None:
        return None
    if isinstance(entry, TaskStarted):
        return (
            f"A worker takes over {worker} at offset {entry.next_offset:,}. Earlier workers of"
            f" {worker} can no longer commit."
            if not portions
            else f"A worker takes over {worker} at offset {entry.next_offset:,}."
        )
    if isinstance(entry, FaultFired):
        return f"{strike_sentence(entry, worker) or _planned(entry, worker)}."
    return _ended(entry, worker, portions)


def strikes_worker(entry: FaultFired) -> bool:
    """Whether a fault strikes the worker that claims it. Others strike the brokers or the sink when
    a worker has come so far."""
    if is_by_hand(entry.fault):
        return True
    fault = planned_fault(entry)
    return fault is not None and fault.kind.side is Side.WORKER


def opens_foreign(entry: FaultFired) -> bool:
    """Whether a fault lets another producer open a transaction in the sink."""
    fault = planned_fault(entry)
    return fault is not None and fault.kind.name == OPEN.name


def stops_worker(entry: FaultFired) -> bool:
    """Whether a fault stops a worker, which wakes later."""
    fault = planned_fault(entry)
    return fault is not None and fault.kind.name == ZOMBIE.name


def planned_fault(entry: FaultFired) -> Fault | None:
    """Returns a planned fault; None for one of another version, or made up by whoever may write to
    the journal."""
    try:
        return parse_fault(entry.fault)
    except UsageError:
        return None


_STRIKES: Mapping[str, str] = {
    CRASH.name: "The worker of {worker} is killed",
    ERROR.name: "The worker of {worker} raises an error",
    ZOMBIE.name: "The worker of {worker} is stopped, but not killed,",
    HIJACK.name: "Another process takes over the transactional id of the worker of {worker}",
}
"""What happens to a worker, by kind of fault."""


def _planned(entry: FaultFired, worker: str) -> str:
    """Returns what a planned fault does when it fires, without a full stop."""
    fault = planned_fault(entry)
    if fault is None:
        return f"The fault {_cut(entry.fault)}, which this version does not know, fires at {worker}"
    when = f"in its transaction {entry.sequence} ({fault.kind.name})"
    if fault.kind.name == OPEN.name:
        return (
            "Another producer opens a transaction in the sink, and does not end it"
            f" ({fault.kind.name})"
        )
    if fault.kind.name in _STRIKES:
        return f"{_STRIKES[fault.kind.name].format(worker=worker)} {when}"
    if fault.kind.side is Side.WORKER:
        return f"The fault {fault.kind.name} strikes the worker of {worker} {when}"
    return f"The fault {fault.kind.name} begins, when {worker} is at transaction {entry.sequence}"


def _ended(entry: TransactionEnded, worker: str, portions: bool) -> str | None:
    if entry.outcome is Declared.COMMITTED:
        inputs = _count(entry.inputs, "input")
        return f"The worker of {worker} commits its offset: {inputs} done." if portions else None
    if entry.outcome is Declared.ABORTED:
        return f"The worker of {worker} aborts its transaction: {_cut(entry.reason)}."
    if entry.outcome is Declared.FENCED:
        return (
            f"The old worker of {worker} writes, and Kafka refuses it: a newer one has its"
            f" transactional id ({_cut(entry.reason)})."
        )
    return f"The worker of {worker} does not know how its transaction ended: {_cut(entry.reason)}."


def begins(writer: str, parts: Sequence[Part]) -> str:
    """Returns the sentence for the first record of a transaction."""
    return f"{writer} begins a transaction in {_places(parts)}. read_committed waits there."


def ends(writer: str, parts: Sequence[Part], waits: bool, released: int, cause: str = "") -> str:
    """Returns the sentence for the markers of a transaction. `waits`: an open transaction holds it
    back; `released`: records of other transactions that waited for this one; `cause`: why it was
    aborted, in a word or two."""
    records = _count(sum(part.records for part in parts), "record")
    where = _places(parts)
    outcome = {part.outcome for part in parts}
    if outcome == {COMMITTED}:
        says = f"COMMIT markers land in {where}: {records} of {_lower(writer)} are committed"
        says += ", and wait behind an open transaction." if waits else "."
    elif outcome == {ABORTED}:
        because = f" ({cause})" if cause else ""
        says = (
            f"ABORT markers land in {where}: {records} of {_lower(writer)}{because} stay in the"
            " log, and no read_committed consumer gets them."
        )
    else:
        says = f"Markers that disagree land in {where}: {records} of {_lower(writer)}."
    return says + (f" {_count(released, 'record')} that waited become visible." if released else "")


def _places(parts: Sequence[Part]) -> str:
    names = [f"p{number}" for number in sorted({part.partition for part in parts})]
    further = len(names) - NAMED_MAX
    if further > 0:
        return f"{', '.join(names[:NAMED_MAX])} and {further} more partitions"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _count(value: int, noun: str) -> str:
    return f"{value:,} {noun}" + ("" if value == 1 else "s")


def _cut(text: str) -> str:
    """Returns a reason without its full stop, and no longer than a line or two."""
    short = text if len(text) <= REASON_CHARACTERS else f"{text[:REASON_CHARACTERS]}…"
    return short.rstrip(".")


def _lower(writer: str) -> str:
    return writer[0].lower() + writer[1:]


def left_out(older: int, partitions: tuple[int, int], workers: tuple[int, int]) -> list[str]:
    """Returns what a picture lacks. `partitions` and `workers`: how many are drawn, of how many."""
    omissions = [f"{older:,} older " + ("box" if older == 1 else "boxes")] if older else []
    for (drawn, of), noun in ((partitions, "sink partition"), (workers, "worker")):
        if drawn < of:
            omissions.append(f"{of - drawn:,} of {_count(of, noun)}")
    return omissions
