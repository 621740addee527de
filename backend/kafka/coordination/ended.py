"""Transactions of a whole cluster that have ended, from the coordinators' own log.

The log is compacted: of a transactional id at rest only the last entry may be left, which still has
the times of its last transaction. What it no longer has is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from heapq import nlargest
from typing import Any

from topicproof.backend.kafka.coordination.reasons import decided_reason
from topicproof.backend.kafka.coordination.transaction_state import StateEntry
from topicproof.validators.coordinator import short_name
from topicproof.validators.facts.log_facts import ABORTED, COMMITTED

ENDED_MAX = 500
"""Transactions, the ones that ended last."""
OUTCOMES = {
    "PrepareCommit": COMMITTED,
    "CompleteCommit": COMMITTED,
    "PrepareAbort": ABORTED,
    "CompleteAbort": ABORTED,
}


@dataclass(frozen=True)
class EndedTransaction:
    """A transaction whose outcome is decided. Times are the coordinator's, in ms since 1970."""

    transactional_id: str
    producer_id: int
    state: str
    """PrepareCommit or PrepareAbort while markers are on their way, else CompleteCommit or
    CompleteAbort."""
    outcome: str
    reason: str | None
    """Why it was aborted (`reasons`); None: it was not, or nothing proves a reason."""
    began_ms: int | None
    ended_ms: int
    """When the last change of its state was written."""
    timeout_ms: int
    partitions: tuple[tuple[str, int], ...]
    """Sorted. Offsets in it count as partitions of `__consumer_offsets`. Empty if the log no longer
    tells."""

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(topic for topic, _partition in self.partitions))

    def to_json(self) -> dict[str, Any]:
        """Return a dict for `json.dumps`: the outcome in lower case."""
        return asdict(self) | {"outcome": self.outcome.lower()}


def ended_transactions(
    states: Iterable[StateEntry], count: int = ENDED_MAX
) -> tuple[EndedTransaction, ...]:
    """Return the transactions that ended last, the latest first. `states`: the coordinators'
    entries with `every_decision`, in order for each transactional id."""
    by_id: dict[str, list[StateEntry]] = {}
    for entry in states:
        by_id.setdefault(entry.transactional_id, []).append(entry)
    every = (ended for entries in by_id.values() for ended in _of_id(entries))
    return tuple(nlargest(count, every, key=lambda each: each.ended_ms))


def _of_id(entries: list[StateEntry]) -> Iterator[EndedTransaction]:
    """Yield the transactions of one transactional id: each decision, or each completion without
    one."""
    for number, entry in enumerate(entries):
        if entry.state not in OUTCOMES:
            continue
        before = entries[number - 1] if number else None
        after = entries[number + 1] if number + 1 < len(entries) else None
        if entry.state.startswith("Complete"):
            if before is None or before.state not in OUTCOMES or before.state == entry.state:
                yield _ended(entry, None, entry, None)
            continue
        completes = after is not None and after.state == entry.state.replace("Prepare", "Complete")
        behind = entries[number + 2] if completes and number + 2 < len(entries) else None
        yield _ended(entry, before, after if completes and after else entry, behind)


def _ended(
    decided: StateEntry, before: StateEntry | None, last: StateEntry, after: StateEntry | None
) -> EndedTransaction:
    """Build one from its decision, the entry before that, its last entry, and the one after it."""
    began = max(decided.began_ms, last.began_ms)
    is_known = decided is not last or decided.state.startswith("Prepare")
    return EndedTransaction(
        transactional_id=short_name(decided.transactional_id),
        producer_id=decided.producer_id,
        state=last.state,
        outcome=OUTCOMES[decided.state],
        reason=decided_reason(before, decided, after)
        if is_known and OUTCOMES[decided.state] == ABORTED
        else None,
        began_ms=None if began < 0 else began,
        ended_ms=last.updated_ms,
        timeout_ms=decided.timeout_ms,
        partitions=tuple(sorted(decided.partitions)),
    )
