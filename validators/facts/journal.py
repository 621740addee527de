"""Transaction outcomes declared in a run's journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from topicproof.validators.finding import Fate

Outcomes = Mapping[tuple[str, int, int, str], tuple[str | None, str | None]]
"""Declared outcome and reason, by transaction name."""


def outcomes_of(entries: Iterable[tuple[str, int, int, str, str, str]]) -> Outcomes:
    """Maps transactions to outcomes. Each entry is: transactional id, sequence, attempt, task,
    outcome, reason. Contradictory entries for a transaction leave its outcome None."""
    declarations: dict[tuple[str, int, int, str], tuple[set[str], str]] = {}
    for transactional_id, sequence, attempt, task, outcome, reason in entries:
        outcomes, why = declarations.get(
            key := (transactional_id, sequence, attempt, task), (set(), "")
        )
        declared_outcomes = outcomes | {outcome} & {Fate.COMMITTED.value, Fate.ABORTED.value}
        declarations[key] = (declared_outcomes, max(why, reason or ""))
    return {
        key: (next(iter(outcomes)) if len(outcomes) == 1 else None, why or None)
        for key, (outcomes, why) in declarations.items()
    }
