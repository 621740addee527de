"""The entries of a journal: what the sink and the run's process declare, as JSON.

Nothing here asks Kafka; backend/sink/journal.py writes and reads the topic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import isfinite
from typing import Any, get_origin, get_type_hints

EVERY_PARTITION = -1
ENTRY_BYTES_MAX = 100_000
NAME_MAX = 1_000
"""Characters of a name: a topic's has at most 249, and our transactional ids are built of it."""
SENTENCES = {"reason", "said", "error"}
SENTENCE_MAX = 4_000
"""A longer sentence is cut; a longer name is refused, because what is left would name another."""
LONGS = {"next_offset", "sequence"}
LONG_MAX, NUMBER_MAX = 2**63 - 1, 2**31 - 1
"""What Kafka and Spark have room for: an offset or a sequence, and any other number."""


class Declared(StrEnum):
    """A transaction's outcome as the sink declares it."""

    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"
    FENCED = "FENCED"
    """Another producer took over the transactional id, and settles the transaction."""
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True)
class RunTopics:
    """The first entry: the run's topics with the ids that Kafka had given them."""

    ids: Mapping[str, str | None]


@dataclass(frozen=True)
class TaskStarted:
    """A Spark task took over a source partition and is about to produce."""

    task: str
    transactional_id: str
    source_topic: str
    source_partition: int
    sequence: int
    """Sequence of its first transaction."""
    next_offset: int
    """The group's committed offset at that moment."""


@dataclass(frozen=True)
class TransactionEnded:
    task: str
    transactional_id: str
    source_topic: str
    source_partition: int
    sequence: int
    attempt: int
    outcome: Declared
    reason: str
    """Why it is aborted, fenced or unknown; empty if committed."""
    inputs: int
    records: int
    next_offset: int
    """The source offset that it commits, or would have committed."""


@dataclass(frozen=True)
class FaultFired:
    """A fault is about to strike a worker."""

    task: str
    fault: str
    source_topic: str
    source_partition: int
    """`EVERY_PARTITION` for a strike by hand at all workers."""
    sequence: int
    """0 for strikes by hand, which do not choose a transaction."""


class FaultPhase(StrEnum):
    """How far the run's process is with a fault."""

    DONE = "DONE"
    """The fault is under way; the waiting worker may continue."""
    STRUCK = "STRUCK"
    """The fault struck once more."""
    HEALED = "HEALED"
    FAILED = "FAILED"
    """The fault is impossible."""


@dataclass(frozen=True)
class FaultReport:
    """The run's process reports on a fault outside the worker."""

    fault: str
    what: FaultPhase
    said: str


@dataclass(frozen=True)
class GenerationBegun:
    """The query was stopped or restarted: workers of earlier generations must not write."""

    generation: int


@dataclass(frozen=True)
class TaskFailed:
    """In real time: a task has failed (backend/sink/task_watch.py)."""

    generation: int
    error: str
    """Name of the error's class."""
    reason: str


@dataclass(frozen=True)
class WorkerBegan:
    """In a run that may be struck by hand: the process of a task, so that it can be killed."""

    task: str
    source_topic: str
    source_partition: int
    host: str
    pid: int
    created: float
    """When the process began, in seconds since 1970. A later process may get the same number."""


@dataclass(frozen=True)
class WorkerEnded:
    """The same task has ended by itself. Its process may go on with another one."""

    task: str
    source_topic: str
    source_partition: int


Entry = (
    RunTopics
    | TaskStarted
    | TransactionEnded
    | FaultFired
    | FaultReport
    | GenerationBegun
    | TaskFailed
    | WorkerBegan
    | WorkerEnded
)


@dataclass(frozen=True)
class StampedEntry:
    """An entry, and when its writer sent it."""

    at_ms: int
    entry: Entry


_KINDS: dict[str, type[Entry]] = {
    "topics": RunTopics,
    "task": TaskStarted,
    "transaction": TransactionEnded,
    "fault": FaultFired,
    "told": FaultReport,
    "generation": GenerationBegun,
    "failure": TaskFailed,
    "worker": WorkerBegan,
    "worker_ended": WorkerEnded,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}

HALF_PAIR = re.compile("[\ud800-\udfff]")

_TYPES = {kind: get_type_hints(kind) for kind in _NAMES}


def encode(entry: Entry) -> bytes:
    return json.dumps({"kind": _NAMES[type(entry)], **_with_cut_sentences(asdict(entry))}).encode()


def decode(value: bytes) -> Entry:
    """Parse an entry. Raises ValueError for anything that `encode` does not write, in its type or
    its size: whoever may write to the topic can append to it, and what is read here is added up,
    kept in the history, and shown."""
    if len(value) > ENTRY_BYTES_MAX:
        raise ValueError(f"it has more than {ENTRY_BYTES_MAX:,} bytes")
    try:
        fields: dict[str, Any] = json.loads(value)
        kind = _KINDS[fields.pop("kind")]
        fields = _with_cut_sentences(fields)
        if kind is TransactionEnded:
            fields["outcome"] = Declared(fields["outcome"])
        elif kind is FaultReport:
            fields["what"] = FaultPhase(fields["what"])
        entry = kind(**fields)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is no entry of a journal ({type(error).__name__})") from error
    for name, of in _TYPES[kind].items():
        value = getattr(entry, name)
        if not _has_type(value, of):
            raise ValueError(f"its field {name} has another type")
        characters = SENTENCE_MAX if name in SENTENCES else NAME_MAX
        if not _is_bounded(value, characters, LONG_MAX if name in LONGS else NUMBER_MAX):
            raise ValueError(f"its field {name} is larger than any of ours")
    return entry


def _with_cut_sentences(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value[:SENTENCE_MAX] if name in SENTENCES and isinstance(value, str) else value
        for name, value in fields.items()
    }


def _has_type(value: object, of: Any) -> bool:
    if get_origin(of) is Mapping:
        return isinstance(value, dict) and all(
            isinstance(name, str) and isinstance(text, str | None) for name, text in value.items()
        )
    if isinstance(value, bool):
        return of is bool
    return isinstance(value, int | float if of is float else of)


def _is_bounded(value: object, characters: int, highest: int) -> bool:
    """Return whether a value of the right type can be judged, added up, and written as UTF-8."""
    if isinstance(value, dict):
        texts = (text for pair in value.items() for text in pair if text is not None)
        return all(_is_bounded(text, characters, highest) for text in texts)
    if isinstance(value, str):
        # JSON can name half of a surrogate pair, which no file and no database takes.
        return len(value) <= characters and HALF_PAIR.search(value) is None
    if isinstance(value, float):
        return isfinite(value)
    return not isinstance(value, int) or EVERY_PARTITION <= value <= highest


def last_attempt(
    entries: Iterable[Entry], source_topic: str, source_partition: int, sequence: int
) -> int:
    """Return the number of the last attempt at this transaction in the journal; 0 without any."""
    attempts = _attempts(entries, (source_topic, source_partition, sequence))
    return max((entry.attempt for entry in attempts), default=0)


def aborts(
    entries: Iterable[Entry], source_topic: str, source_partition: int, sequence: int
) -> int:
    """Return how many attempts at this transaction the journal declares aborted."""
    attempts = _attempts(entries, (source_topic, source_partition, sequence))
    return sum(entry.outcome is Declared.ABORTED for entry in attempts)


def _attempts(
    entries: Iterable[Entry], transaction: tuple[str, int, int]
) -> Iterator[TransactionEnded]:
    for entry in entries:
        if (
            isinstance(entry, TransactionEnded)
            and (entry.source_topic, entry.source_partition, entry.sequence) == transaction
        ):
            yield entry
