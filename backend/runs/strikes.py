"""Requests to strike a live run by hand: kill a worker, freeze the network.

A request is a file in the run's folder, as a release is. The run's director (fault_director.py)
looks for it, strikes, and removes it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from topicproof.backend.errors import EvidenceError, UsageError
from topicproof.backend.faults.by_hand import Freeze, Kill, Strike
from topicproof.backend.history.audit import allow
from topicproof.backend.history.store import History, Run, State
from topicproof.backend.settings import Settings
from topicproof.backend.trust.identity import Action

FOLDER = "strikes"
_KINDS: dict[str, type[Strike]] = {"kill": Kill, "freeze": Freeze}


def why_not(run: Run) -> str | None:
    """Return why this run cannot be struck by hand now, as a sentence; None if it can."""
    if not run.plan.get("by_hand"):
        return (
            f"The plan of {run.id} does not allow it. Start a run with by_hand: true"
            " (--by-hand, or “Break it by hand” on the page Run)."
        )
    if not run.alive:
        return f"{run.id} has ended."
    if run.stop_requested or run.state is not State.PROCESSING:
        return f"{run.id} has no workers now: it is {run.state}."
    return None


def why_no_kill(run: Run) -> str | None:
    """Return why no worker of this run can be killed by hand now, as a sentence; None if one
    can."""
    if (why := why_not(run)) is None and run.progress.elsewhere:
        hosts = ", ".join(run.progress.elsewhere)
        return f"Its workers run on {hosts}, where the process of the run cannot kill them."
    return why


def why_no_freeze(settings: Settings, run: Run) -> str | None:
    """Return why the network of this run cannot be frozen by hand now, as a sentence; None if it
    can."""
    if (why := why_not(run)) is None and settings.spark_remote is not None:
        return (
            "Its workers belong to a Spark server that Topicproof did not start, and connect to the"
            " brokers directly."
        )
    return why


def sources(run: Run) -> list[tuple[str, int]]:
    """Return the source partitions whose workers can be killed."""
    of_stage = (run.facts.initial_offsets or {}).values()
    return sorted(
        (topic, int(partition))
        for of_topic in of_stage
        for topic, partitions in of_topic.items()
        for partition in partitions
    )


def strike(history: History, run: Run, request: Strike) -> None:
    """Ask for a strike. Raises UsageError if the run cannot be struck or has no such worker,
    NotPermitted, EvidenceError."""
    kills = isinstance(request, Kill)
    if why := why_no_kill(run) if kills else why_no_freeze(history.settings, run):
        raise UsageError(why)
    if isinstance(request, Kill):
        request = _addressed(run, request)
    allow(history, Action.STRIKE, run.id)
    folder = history.settings.runs / run.id / FOLDER
    kind = next(name for name, strike_class in _KINDS.items() if isinstance(request, strike_class))
    # Requests are heard in the order of their names.
    path = folder / f"{time.time_ns():020}-{uuid.uuid4().hex[:8]}.json"
    draft = path.with_suffix(".draft")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps({"kind": kind, **asdict(request)}), encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise EvidenceError(f"{path} cannot be written: {error.strerror}.") from error


def requests(folder: Path) -> Iterator[tuple[Path, Strike]]:
    """Yield the requests that wait, in their order."""
    for path in sorted(folder.glob("*.json")):
        fields = json.loads(path.read_text(encoding="utf-8"))
        yield path, _KINDS[fields.pop("kind")](**fields)


def _addressed(run: Run, request: Kill) -> Kill:
    """Return the same with its topic."""
    workers = sources(run)
    matches = [
        (topic, partition)
        for topic, partition in workers
        if partition == request.partition and request.topic in (None, topic)
    ]
    if len(matches) == 1:
        return Kill(request.partition, matches[0][0])
    if matches:
        topics = ", ".join(topic for topic, _ in matches)
        raise UsageError(f"{run.id} has several sources. Say which with --topic: {topics}.")
    where = ", ".join(f"{topic}-{partition}" for topic, partition in workers)
    prefix = f"{request.topic}-" if request.topic else "partition "
    raise UsageError(
        f"{run.id} has no worker of {prefix}{request.partition}. It has workers of {where}."
    )
