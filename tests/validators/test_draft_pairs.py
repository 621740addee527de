"""Drafts of hostile pairs: none holds over a loss or a repetition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from tests.validators.draft_pairs import BROKEN, COPIES, KINDS, OTHERS, draw, false_drafts
from tests.validators.pair_oracle import HOLDS, VIOLATED
from topicproof.backend.contracts import draft_expectation
from topicproof.validators.expected import Expect

PAIRS, SEED = 400, 3
HEALTHY_SHARE = 0.9
VIOLATED_SHARE = 0.2
"""Of filters and pipelines with several outputs: those of which the sample shows one output of each
input."""


def test_no_draft_holds_over_a_loss_or_a_repetition() -> None:
    """Story: 400 pairs are drawn, with several instances, other orders of reading and topics that
    were made again. A contract is drafted from a sample of each, and judged without a change. Most
    healthy copies hold, and few filters are VIOLATED: their draft asks."""
    false, outcomes = false_drafts(draw(PAIRS, SEED))
    assert false == []
    assert outcomes.keys() == set(KINDS) and outcomes[BROKEN][VIOLATED] > 30
    assert outcomes[OTHERS][VIOLATED] < VIOLATED_SHARE * outcomes[OTHERS].total()
    assert outcomes[COPIES][HOLDS] > HEALTHY_SHARE * outcomes[COPIES].total()


def test_a_draft_of_what_the_data_shows_would_hold_over_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: the draft makes the numbers of outputs that it sees the rule. The same pairs show that
    this holds over losses and over repetitions."""

    def as_shown(
        judged: Mapping[Any, int], *_more: object, has_own_keys: bool
    ) -> tuple[Expect, str | None, str, None]:
        assert has_own_keys in (True, False)
        kinds = Counter(judged.values())
        if kinds.keys() <= {0, 1} and 0 in kinds:
            return Expect.ZERO_OR_ONE, None, "", None
        if kinds.keys() == {2}:
            return Expect.ONE_TO_MANY, "json_array_length(array(1, 2))", "", None
        return Expect.ONE_TO_ONE, None, "", None

    monkeypatch.setattr(draft_expectation, "_expectation", as_shown)
    monkeypatch.setattr(
        "tests.validators.draft_pairs._count",
        lambda contract, _content: 1 if contract.count is None else 2,
    )
    false, _ = false_drafts(draw(PAIRS, SEED))
    assert any("loss" in one for one in false) and any("duplicate" in one for one in false)
