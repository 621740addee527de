"""The sink's protocol, checked on a model: right with all of its safety steps, wrong without any
one of them."""

from __future__ import annotations

import pytest

from tests.model.protocol import (
    FENCE,
    FENCE_FIRST,
    INSIDE,
    NEW_EPOCH,
    NOTICE,
    READ_AGAIN,
    SKIP,
    STEPS,
    VERIFY,
    explore,
)

ENDS = {
    FENCE: ("worker 2 joins without fencing", "input 0 is committed twice"),
    FENCE_FIRST: ("a late commit arrives", "input 0 is committed twice"),
    SKIP: ("worker 1 commit: no answer", "input 0 is committed twice"),
    INSIDE: ("worker 1 commit offset", "the group's offset is 1, and committed are []"),
    NEW_EPOCH: ("a late commit arrives", "the group's offset is 0, and committed are [0]"),
    NOTICE: ("a late commit arrives", "the group's offset is 1, and committed are [0, 1]"),
    READ_AGAIN: ("worker 1 commit: no answer", "input 1 is committed twice"),
    VERIFY: ("a late produce arrives", "input 0 is committed twice"),
}
"""A move of the counter-example, and what is wrong at its end."""


def test_with_every_safety_step_nothing_goes_wrong() -> None:
    """Story: two workers, of which one may be a zombie; a crash, a time-out, and a request that is
    lost and may arrive later. In each of 41,929 states an input's output is committed at most once,
    and the group's offset covers exactly what is committed. In thousands of them every input is
    committed."""
    found = explore(frozenset(STEPS))
    assert (found.wrong, found.states) == (None, 41_929)
    assert found.finished > 1_000


@pytest.mark.parametrize("step", STEPS)
def test_without_a_safety_step_there_is_a_counter_example(step: str) -> None:
    """Story: the same without one step. The shortest way to what goes wrong is found."""
    found = explore(frozenset(STEPS) - {step})
    move, wrong = ENDS[step]
    assert move in found.path and found.wrong == wrong
