"""Calls of the Kafka client that may hang despite their timeout.

librdkafka 2.16 looks for a group's coordinator without any timeout (its issue 5456). It may know a
coordinator that the brokers no longer list, because it was down longer than its session. Then it
waits for that connection forever (its issue 5511). A new client does not know the old coordinator.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from topicproof.backend.kafka.client_configs import REQUEST_TIMEOUT_MS

TIMEOUT_S = REQUEST_TIMEOUT_MS / 1000
STUCK_S = TIMEOUT_S + 2
"""A call with the timeout `TIMEOUT_S` counts as hung after this long."""

Answer = TypeVar("Answer")


class _Helper:
    """A thread that makes calls one by one."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self.answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        threading.Thread(target=self._serve, name="bounded", daemon=True).start()

    def answer(self, stuck_s: float) -> tuple[Any, BaseException | None]:
        """Return the answer to the last call."""
        try:
            return self.answers.get(timeout=stuck_s)
        except Empty as empty:
            raise TimeoutError(
                f"A call of the Kafka client did not return within {stuck_s:g} s."
            ) from empty

    def _serve(self) -> None:
        while True:
            self.answers.put(_outcome(self.calls.get()))


_idle: list[_Helper] = []
"""Helpers that have answered. Every transaction makes such a call, and a new thread each time would
be a tenth of its cost."""
# A forked process does not have these threads.
os.register_at_fork(after_in_child=_idle.clear)


def bounded(
    call: Callable[[], Answer],
    meanwhile: Callable[[], object] | None = None,
    stuck_s: float = STUCK_S,
) -> Answer:
    """Return the result of the call; `meanwhile` runs at the same time.

    Raises TimeoutError when the call hangs. A hung call keeps its thread. Its client must be
    abandoned without closing it, because closing waits for the call. Raises what `meanwhile`
    raises, otherwise what the call raises.
    """
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
        # Catches everything: an error that is not passed on would look like a hung call.
        return None, error


RESOURCES = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "the group",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the transactional id",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the cluster",
}
"""What a missing ACL is about, by the brokers' error."""
GROUP_ANSWER_S = 2.0
GROUP_PROBE = "topicproof"
"""A topic whose offset is asked only to reach the group's coordinator. It need not exist."""


def require_group(consumer: Consumer) -> None:
    """Raises KafkaException if the brokers do not let this client use the consumer's group.

    librdkafka then looks for the coordinator forever, and a commit hangs with it (its issue 5456).
    Only the consumer's queue shows what the brokers answered.
    """
    try:
        consumer.committed([TopicPartition(GROUP_PROBE, 0)], timeout=GROUP_ANSWER_S)
    except KafkaException:
        message = consumer.poll(0)
        error = message.error() if message is not None else None
        if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise KafkaException(error) from None
