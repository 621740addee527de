"""The outcomes of transactions, as a run's journal declares them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from topicproof.validators.finding import Fate

Outcomes = Mapping[tuple[str, int, int, str], tuple[str | None, str | None]]
"""What the journal declares and its reason, by the name of a transaction."""


def outcomes_of(entries: Iterable[tuple[str, int, int, str, str, str]]) -> Outcomes:
    """Of a journal's entries: transactional id, sequence, attempt, task, outcome, reason. One that
    says two things of a transaction says nothing."""
    said: dict[tuple[str, int, int, str], tuple[set[str], str]] = {}
    for transactional_id, sequence, attempt, task, outcome, reason in entries:
        outcomes, why = said.get(key := (transactional_id, sequence, attempt, task), (set(), ""))
        known = outcomes | {outcome} & {Fate.COMMITTED.value, Fate.ABORTED.value}
        said[key] = (known, max(why, reason or ""))
    return {
        key: (next(iter(outcomes)) if len(outcomes) == 1 else None, why or None)
        for key, (outcomes, why) in said.items()
    }
