"""Calls of the Kafka client that may never come back, whatever time-out they are given.

librdkafka 2.16 looks for a group's coordinator without any time-out (its issue 5456), and where it knew one that the
brokers do not list any more, because it is down or cut off for longer than their session lasts, it waits for that one's
connection for ever (its issue 5511). A new client knows nothing of the old coordinator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from backend.settings import REQUEST_TIMEOUT_MS

TIMEOUT_S = REQUEST_TIMEOUT_MS / 1000
STUCK_S = TIMEOUT_S + 2
"""When a call whose own time-out is `TIMEOUT_S` counts as one that will never come back."""

Answer = TypeVar("Answer")


def bounded(call: Callable[[], Answer]) -> Answer:
    """What the call gives. Raises TimeoutError when it is stuck: it stays so, in a thread of its own, and its client
    must be given up without closing it, which would wait for it. Raises what the call raises."""
    answer: Future[Answer] = Future()

    def ask() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            # Of whatever kind: what is not handed on would look like a call that is stuck.
            answer.set_exception(error)

    threading.Thread(target=ask, name="bounded", daemon=True).start()
    return answer.result(STUCK_S)
