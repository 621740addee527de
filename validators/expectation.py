"""Found is not wrong: which kinds break which guarantee, and how outcomes are merged.

A row is judged by its cause: a primary row by its own kind, an explained one by what explains it. So an order row that
a duplicate explains breaks exactly_once, as the duplicate does, and does not break at_least_once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from validators.finding import Guarantee, Outcome

RANGE = "range"
"""Explains rows outside the judged range: not looked at, so neither right nor wrong."""
PENDING = "pending"
"""Explains rows that an open transaction may still settle: unknown."""

PROMISES: Mapping[Guarantee, str] = {
    Guarantee.EXACTLY_ONCE: "exactly once",
    Guarantee.AT_LEAST_ONCE: "at least once",
    Guarantee.AT_MOST_ONCE: "at most once",
}

EXEMPT: Mapping[Guarantee, Mapping[str, str]] = {
    Guarantee.EXACTLY_ONCE: {},
    Guarantee.AT_LEAST_ONCE: {
        "duplicate": "at least once allows an input to be committed again when its acknowledgement was lost",
    },
    Guarantee.AT_MOST_ONCE: {
        "gap": "at most once allows an input to be lost when it was acknowledged before its output was committed",
    },
}
"""Kinds that a guarantee allows, each with the reason. They are looked for, and shown, and break nothing."""

REQUIRED: Mapping[Guarantee, tuple[str, ...]] = {
    Guarantee.EXACTLY_ONCE: ("duplicate", "gap", "order", "aborted_read", "phantom"),
    Guarantee.AT_LEAST_ONCE: ("gap", "order", "phantom"),
    Guarantee.AT_MOST_ONCE: ("duplicate", "order", "phantom"),
}
"""The kinds that make the verdict unless a contract names others."""

WORST_FIRST = (Outcome.VIOLATED, Outcome.UNKNOWN, Outcome.HOLDS)
EXIT_CODES: Mapping[Outcome, int] = {Outcome.HOLDS: 0, Outcome.VIOLATED: 1, Outcome.UNKNOWN: 3}


def merge(outcomes: Iterable[Outcome]) -> Outcome:
    """The worst of them; of none, UNKNOWN: who asked nothing knows nothing."""
    found = set(outcomes)
    return next((outcome for outcome in WORST_FIRST if outcome in found), Outcome.UNKNOWN)


def judge_rows(kind: str, causes: Mapping[str | None, int], guarantee: Guarantee) -> Outcome:
    """The outcome of a kind whose rows have these causes (None: primary) under a guarantee."""
    return merge(
        [_judge_cause(cause or kind, guarantee) for cause, count in causes.items() if count] or [Outcome.HOLDS]
    )


def reason_not_required(kind: str, guarantee: Guarantee, chosen: bool) -> str:
    """Why a kind does not count for the verdict. `chosen`: the contract named the kinds itself."""
    if kind in EXEMPT[guarantee]:
        return f"Not required: {EXEMPT[guarantee][kind]}."
    if chosen:
        return "Not required: the contract does not name it."
    return f"Not required: {PROMISES[guarantee]} promises nothing about it."


def _judge_cause(cause: str, guarantee: Guarantee) -> Outcome:
    if cause == PENDING:
        return Outcome.UNKNOWN
    return Outcome.HOLDS if cause == RANGE or cause in EXEMPT[guarantee] else Outcome.VIOLATED
