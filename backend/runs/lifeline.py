"""Ends a run or a check whose Kafka or Spark is gone for good.

The clients of both wait for a server that may come back: up to ten minutes, and some calls of
librdkafka forever. Here a thread asks both whether they answer. If one stays silent, the run ends
with a sentence, and its process ends without waiting for those calls. That is as safe as a kill
-9, which a run survives at any moment: all progress is in Kafka and in the history. A check has no
progress worth keeping.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from topicproof.backend.errors import ClusterError, SparkError, TopicproofError
from topicproof.backend.faults.kinds import BROKER, UNCLEAN
from topicproof.backend.history.store import History, State
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs.context import Context
from topicproof.backend.services.spark import server_of, without_token
from topicproof.backend.settings import BROKER_START_TIMEOUT_S
from topicproof.validators.shell_words import shell_word

LOOK_S = 1.0
"""How often both are asked."""
PATIENCE_S = 30.0
"""How long either may stay silent. A broker that restarts, or a new leader, takes less."""
KAFKA_ANSWER_S = 3.0
SPARK_ANSWER_S = 2.0
ASKED_MAX = 5
"""How often a server is asked after a failure: a busy one may miss a question."""


@dataclass(frozen=True)
class Service:
    """One of the servers that a run needs."""

    name: str
    answers: Callable[[], bool]
    error: type[TopicproofError]
    """What its absence is."""


class Lifeline(threading.Thread):
    """Calls `on_gone` with a sentence when one of the services stays silent for `patience_s`.

    After a stop request it calls it at the first silence: nobody waits for an orderly end that
    needs a service which is not there.
    """

    def __init__(
        self,
        services: Sequence[Service],
        stop: threading.Event,
        on_gone: Callable[[TopicproofError], None],
        patience_s: float = PATIENCE_S,
    ) -> None:
        super().__init__(name="lifeline", daemon=True)
        self.services, self.stop, self.on_gone = services, stop, on_gone
        self.patience_s = patience_s
        self.ended = threading.Event()

    def run(self) -> None:
        answered_at = dict.fromkeys(self.services, time.monotonic())
        while not self.ended.wait(LOOK_S):
            for service in self.services:
                if service.answers():
                    answered_at[service] = time.monotonic()
                elif (why := self._gone(service, answered_at[service])) and not self.ended.is_set():
                    self.on_gone(service.error(why))
                    return

    def _gone(self, service: Service, answered_at: float) -> str | None:
        """Return a sentence if nobody should wait for a silent service any longer."""
        silent_s = time.monotonic() - answered_at
        if self.stop.is_set():
            return f"The run was stopped while {service.name} did not answer."
        if silent_s > self.patience_s:
            return f"{service.name} has not answered for {silent_s:.0f} s."
        return None


@contextmanager
def lifeline(context: Context) -> Iterator[None]:
    """End the run by `context.give_up` if Kafka or Spark is gone while the block works. Without
    `give_up`, which ends this process, nothing is watched."""
    give_up = context.give_up
    if give_up is None:
        yield
        return
    run = context.run.id
    gone = _ending(
        context.history, run, f"Start it again, then: topicproof resume {shell_word(run)}", give_up
    )
    # A plan that strikes brokers gives them the time to come back.
    patience_s = BROKER_START_TIMEOUT_S if _strikes_brokers(context.plan.faults) else PATIENCE_S
    with _watched(Lifeline(_services_of(context), context.stop, gone, patience_s)):
        yield


@contextmanager
def check_lifeline(
    history: History,
    check: str,
    services: Sequence[Service],
    give_up: Callable[[TopicproofError], None] | None,
) -> Iterator[None]:
    """The same for a check, by its id in the history."""
    if give_up is None:
        yield
        return
    gone = _ending(history, check, "Nothing was judged. Start it again, then check again.", give_up)
    with _watched(Lifeline(services, threading.Event(), gone, PATIENCE_S)):
        yield


@contextmanager
def _watched(thread: Lifeline) -> Iterator[None]:
    thread.start()
    try:
        yield
    finally:
        thread.ended.set()


def _ending(
    history: History, run: str, remedy: str, give_up: Callable[[TopicproofError], None]
) -> Callable[[TopicproofError], None]:
    """Return what notes the error in the history, with what to do, and then gives up."""

    def gone(error: TopicproofError) -> None:
        failure = type(error)(f"{error} {remedy}")
        try:
            history.end(run, State.FAILED, None, None, str(failure))
        except TopicproofError as unwritten:
            failure = type(unwritten)(f"{failure} {unwritten}")
        give_up(failure)

    return gone


def kafka_service(cluster: Cluster, topic: str) -> Service:
    """The brokers, asked for this topic."""
    return Service(
        f"Kafka at {cluster.address}", lambda: cluster.answers(topic, KAFKA_ANSWER_S), ClusterError
    )


def spark_service(remote: str) -> Service:
    return Service(f"Spark at {without_token(remote)}", lambda: spark_listens(remote), SparkError)


def spark_listens(remote: str) -> bool:
    """Return whether anything accepts connections at an `sc://` address. A busy server does."""
    try:
        with socket.create_connection(server_of(remote), timeout=SPARK_ANSWER_S):
            return True
    except OSError:
        return False


def require_answers(context: Context, remedy: str) -> None:
    """Raises ClusterError or SparkError if one of a run's servers is gone: then the run's failure
    shows nothing."""
    for service in _services_of(context):
        if not any(service.answers() for _ in range(ASKED_MAX)):
            raise service.error(f"{service.name} does not answer any more. {remedy}")


def _services_of(context: Context) -> tuple[Service, Service]:
    return (
        kafka_service(context.cluster, context.names.journal),
        spark_service(context.services.spark_remote),
    )


def _strikes_brokers(faults: Iterable[str]) -> bool:
    return any(fault.partition("@")[0] in (BROKER.name, UNCLEAN.name) for fault in faults)
