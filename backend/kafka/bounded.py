"""Calls of the Kafka client that may never come back, whatever time-out they are given.

librdkafka 2.16 looks for a group's coordinator without any time-out (its issue 5456), and where it
knew one that the brokers do not list any more, because it is down or cut off for longer than their
session lasts, it waits for that one's connection for ever (its issue 5511). A new client knows
nothing of the old coordinator.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from topicproof.backend.settings import REQUEST_TIMEOUT_MS

TIMEOUT_S = REQUEST_TIMEOUT_MS / 1000
STUCK_S = TIMEOUT_S + 2
"""When a call whose own time-out is `TIMEOUT_S` counts as one that will never come back."""

Answer = TypeVar("Answer")


class _Helper:
    """A thread that makes one call after the other."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self.answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        threading.Thread(target=self._serve, name="bounded", daemon=True).start()

    def answer(self, stuck_s: float) -> tuple[Any, BaseException | None]:
        """Of the call that was handed over last."""
        try:
            return self.answers.get(timeout=stuck_s)
        except Empty as empty:
            raise TimeoutError(
                f"A call of the Kafka client did not come back within {stuck_s:g} s."
            ) from empty

    def _serve(self) -> None:
        while True:
            self.answers.put(_outcome(self.calls.get()))


_idle: list[_Helper] = []
"""Those that have answered: every transaction makes such a call, and a new thread for each takes a
tenth of what a transaction costs the client."""
# A process that is forked off has no threads but its own.
os.register_at_fork(after_in_child=_idle.clear)


def bounded(
    call: Callable[[], Answer],
    meanwhile: Callable[[], object] | None = None,
    stuck_s: float = STUCK_S,
) -> Answer:
    """What the call gives. Raises TimeoutError when it is stuck: it stays so, in a thread of its
    own, and its client must be given up without closing it, which would wait for it. Raises what
    `meanwhile` raises, which is called at the same time, and otherwise what the call raises."""
    try:
        helper = _idle.pop()
    except IndexError:
        helper = _Helper()
    helper.calls.put(call)
    try:
        if meanwhile is not None:
            meanwhile()
    finally:
        answer, error = helper.answer(stuck_s)
        _idle.append(helper)
    if error is not None:
        raise error
    return answer  # type: ignore[no-any-return]


def _outcome(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:
        # Of whatever kind: what is not handed on would look like a call that is stuck.
        return None, error
