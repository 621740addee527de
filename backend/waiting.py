"""Asking again until the answer is the one that is waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_not_result, stop_after_delay, wait_fixed

STEP_S = 0.05
Answer = TypeVar("Answer")


def ask_until(
    ask: Callable[[], Answer],
    done: Callable[[Answer], bool],
    seconds: float,
    step_s: float = STEP_S,
) -> Answer:
    """The first answer that is `done`, else the last one before the time was up."""
    retrying = Retrying(
        retry=retry_if_not_result(done),
        stop=stop_after_delay(seconds),
        wait=wait_fixed(step_s),
        retry_error_callback=_last_answer,
    )
    return retrying(ask)


def _last_answer(state: RetryCallState) -> Any:
    assert state.outcome is not None
    return state.outcome.result()
