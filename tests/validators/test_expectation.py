"""Found is not wrong: the table of guarantees, without any topic."""

from __future__ import annotations

import pytest

from topicproof.validators.expectation import (
    ADVISORY,
    BY_CONTRACT,
    CONTRADICTIONS,
    EXEMPT,
    NORMAL,
    PREMISES,
    REQUIRED,
    counts,
    judge_rows,
    looked_for,
    merge,
    reason_not_required,
)
from topicproof.validators.finding import Guarantee, Outcome
from topicproof.validators.kinds.catalogue import VALIDATORS

KINDS = [validator.NAME for validator in VALIDATORS]


def test_outcomes_merge_worst_first() -> None:
    """Story: three checks differ. The worst of them counts, and no check at all proves nothing."""
    holds, violated, unknown = Outcome.HOLDS, Outcome.VIOLATED, Outcome.UNKNOWN
    assert [
        merge(them) for them in ([holds, unknown, violated], [holds, unknown], [holds, holds], [])
    ] == [*(violated, unknown, holds, unknown)]


@pytest.mark.parametrize("guarantee", Guarantee)
def test_a_kind_is_required_exempt_or_promised_by_nobody(guarantee: Guarantee) -> None:
    """Story: a guarantee that required what it allows would contradict itself. Every name is one of
    a validator."""
    assert not set(REQUIRED[guarantee]) & set(EXEMPT[guarantee])
    assert {*REQUIRED[guarantee], *EXEMPT[guarantee]} <= set(KINDS)


def test_no_kind_counts_in_two_ways() -> None:
    """Story: a kind counts for the verdict in one way at most. A new one that is named nowhere is
    looked for and shown, and counts for nothing."""
    exactly = Guarantee.EXACTLY_ONCE
    decided = [
        *REQUIRED[exactly],
        *CONTRADICTIONS[exactly],
        *BY_CONTRACT,
        *PREMISES,
        *ADVISORY,
    ]
    assert len(set(decided)) == len(decided) and set(decided) <= set(KINDS)
    assert not any(counts(kind) for kind in ADVISORY)
    assert looked_for("brand_new", exactly) and not counts("brand_new")
    assert reason_not_required("brand_new", exactly, False).startswith("Not counted: ")
    resting = {validator.NAME: validator.TRAITS.premises for validator in VALIDATORS}
    assert {premise for premises in resting.values() for premise in premises} == set(PREMISES)
    assert not any(resting[premise] for premise in PREMISES)
    assert set(ADVISORY) >= NORMAL


@pytest.mark.parametrize(
    ("guarantee", "kind", "causes", "outcome"),
    [
        (Guarantee.EXACTLY_ONCE, "order", {}, Outcome.HOLDS),
        (Guarantee.EXACTLY_ONCE, "order", {"duplicate": 3}, Outcome.VIOLATED),
        (Guarantee.AT_LEAST_ONCE, "order", {"duplicate": 3}, Outcome.HOLDS),
        (Guarantee.AT_LEAST_ONCE, "order", {"duplicate": 3, None: 1}, Outcome.VIOLATED),
        (Guarantee.AT_LEAST_ONCE, "duplicate", {None: 3}, Outcome.HOLDS),
        (Guarantee.AT_LEAST_ONCE, "gap", {None: 1}, Outcome.VIOLATED),
        (Guarantee.AT_MOST_ONCE, "gap", {None: 1}, Outcome.HOLDS),
        (Guarantee.AT_MOST_ONCE, "duplicate", {None: 1}, Outcome.VIOLATED),
        (Guarantee.EXACTLY_ONCE, "gap", {"pending": 2}, Outcome.UNKNOWN),
        (Guarantee.EXACTLY_ONCE, "gap", {"pending": 2, None: 1}, Outcome.VIOLATED),
        (Guarantee.EXACTLY_ONCE, "gap", {"sink_removed": 2}, Outcome.UNKNOWN),
        (Guarantee.EXACTLY_ONCE, "gap", {"movement": 2}, Outcome.UNKNOWN),
        (Guarantee.EXACTLY_ONCE, "offset_behind", {"no_offset": 1}, Outcome.UNKNOWN),
        (Guarantee.EXACTLY_ONCE, "identity_missing", {None: 1}, Outcome.UNKNOWN),
        (Guarantee.EXACTLY_ONCE, "movement", {None: 1}, Outcome.HOLDS),
        (Guarantee.EXACTLY_ONCE, "phantom", {"range": 9}, Outcome.HOLDS),
        (Guarantee.EXACTLY_ONCE, "aborted_volume", {None: 9}, Outcome.HOLDS),
        (Guarantee.EXACTLY_ONCE, "intruder", {None: 1}, Outcome.VIOLATED),
    ],
)
def test_a_row_is_judged_by_its_cause(
    guarantee: Guarantee, kind: str, causes: dict[str | None, int], outcome: Outcome
) -> None:
    """Story: the same rows break one guarantee and not another. What decides is what caused
    them."""
    assert judge_rows(kind, causes, guarantee) is outcome
