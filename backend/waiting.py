"""Polling until an answer meets a condition."""

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
    """Return the first answer that is `done`, else the last one before the timeout."""
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
