"""The events of a picture, each a moment to stop at and a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from topicproof.app.charts.picture_log import Part
from topicproof.backend.faults.by_hand import is_by_hand, strike_sentence
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
        return f"{_TOLD[entry.what]}: {_cut(entry.said)}."
    if isinstance(entry, GenerationBegun):
        return (
            f"Generation {entry.generation} of the query begins: workers of earlier ones can no"
            " longer write."
        )
    if isinstance(entry, TaskFailed):
        return f"A task fails: {entry.error}."
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
        by_hand = strike_sentence(entry, worker)
        return f"{by_hand or f'The fault {entry.fault} strikes the worker of {worker}'}."
    return _ended(entry, worker, portions)


def _ended(entry: TransactionEnded, worker: str, portions: bool) -> str | None:
    if entry.outcome is Declared.COMMITTED:
        inputs = _count(entry.inputs, "input")
        return f"The worker of {worker} commits its offset: {inputs} done." if portions else None
    if entry.outcome is Declared.ABORTED:
        return f"The worker of {worker} aborts its transaction: {_cut(entry.reason)}."
    if entry.outcome is Declared.FENCED:
        return f"The worker of {worker} is fenced: {_cut(entry.reason)}."
    return f"The worker of {worker} does not know how its transaction ended: {_cut(entry.reason)}."


def begins(writer: str, parts: Sequence[Part]) -> str:
    """Returns the sentence for the first record of a transaction."""
    return f"{writer} begins a transaction in {_places(parts)}. read_committed waits there."


def ends(writer: str, parts: Sequence[Part], waits: bool, released: int) -> str:
    """Returns the sentence for the markers of a transaction. `waits`: an open transaction holds it
    back; `released`: records of other transactions that waited for this one."""
    records = _count(sum(part.records for part in parts), "record")
    where = _places(parts)
    outcome = {part.outcome for part in parts}
    if outcome == {COMMITTED}:
        says = f"COMMIT markers land in {where}: {records} of {_lower(writer)} are committed"
        says += ", and wait behind an open transaction." if waits else "."
    elif outcome == {ABORTED}:
        says = (
            f"ABORT markers land in {where}: {records} of {_lower(writer)} stay in the log, and no"
            " read_committed consumer gets them."
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
