"""A run whose Kafka or Spark is gone for good ends with a sentence, and can be resumed."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.conftest import wait_until
from tests.ports import free_ports
from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, SparkError, TopicproofError
from topicproof.backend.history.store import History, State
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs import lifeline
from topicproof.backend.runs.context import make_context
from topicproof.backend.runs.create import create
from topicproof.backend.runs.lifeline import Lifeline, Service, spark_listens
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import ROOT, Settings

WAIT_S = 60
STUCK = """
import signal
from confluent_kafka import Producer
from topicproof.backend.commands import terminal
terminal.UNWINDING_S = 0.1
producer = Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
producer.produce("nobody", b"listens")
with terminal.stopping():
    print("ready", flush=True)
    producer.flush(600)
"""


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifeline, "LOOK_S", 0.01)


class Watch:
    """A lifeline to one server, and what it said."""

    def __init__(self, answers: Iterator[bool], patience_s: float) -> None:
        self.stop, self.said = threading.Event(), list[TopicproofError]()
        self.asked = 0

        def ask() -> bool:
            self.asked += 1
            return next(answers)

        service = Service("Kafka", ask, ClusterError)
        self.thread = Lifeline((service,), self.stop, self.said.append, patience_s)
        self.thread.start()


def test_a_server_that_comes_back_ends_nothing() -> None:
    watch = Watch(iter([*[False] * 20, *[True] * 100_000]), patience_s=WAIT_S)
    wait_until(lambda: watch.asked > 25, WAIT_S, "answers after the silence")
    watch.thread.ended.set()
    watch.thread.join()
    assert watch.said == []


def test_a_server_that_stays_away_is_named() -> None:
    watch = Watch(iter([True, *[False] * 100_000]), patience_s=0.05)
    watch.thread.join(WAIT_S)
    (error,) = watch.said
    assert isinstance(error, ClusterError) and str(error).startswith("Kafka has not answered for")


def test_whoever_stops_a_run_does_not_wait_for_a_server_that_is_gone() -> None:
    watch = Watch(iter([False] * 100_000), patience_s=10 * WAIT_S)
    watch.stop.set()
    watch.thread.join(WAIT_S)
    assert [str(one) for one in watch.said] == ["The run was stopped while Kafka did not answer."]


def test_a_server_answers_or_not(bootstrap: str) -> None:
    assert Cluster(Address(bootstrap)).answers()
    assert not Cluster(Address("127.0.0.1:1")).answers("any", timeout_s=0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert spark_listens(f"sc://localhost:{port}/;token=t")
    assert not spark_listens(f"sc://localhost:{port}")


def test_a_run_without_spark_ends_and_can_be_resumed(
    settings: Settings, cluster: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: Spark dies while a run fills its source. The history has a sentence without the token,
    and the run has no owner, so `resume` takes it."""
    monkeypatch.setattr(lifeline, "PATIENCE_S", 0.05)
    history = History(settings)
    run = create(settings, cluster, history, make_plan({"records": 10}))
    gone = replace(cluster, spark_remote=f"sc://localhost:{free_ports(1)[0]}/;token=secret")
    said: list[TopicproofError] = []
    context = make_context(settings, gone, history, run, give_up=said.append)
    with lifeline.lifeline(context):
        wait_until(lambda: bool(said), WAIT_S, "the end of the run")
    (error,) = said
    assert isinstance(error, SparkError) and f"topicproof resume {run.id}" in str(error)
    found = history.get(run.id)
    assert found.state is State.FAILED and not found.alive and found.error == str(error)
    assert "secret" not in str(error)


def test_a_check_whose_kafka_is_gone_ends_with_what_to_do(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: the source's cluster dies while a check reads it. The history says so, and nobody owns
    the check any more."""
    monkeypatch.setattr(lifeline, "PATIENCE_S", 0.05)
    monkeypatch.setattr(lifeline, "KAFKA_ANSWER_S", 0.2)
    history = History(settings)
    entry = history.create("check", "check", {})
    there, said = f"127.0.0.1:{free_ports(1)[0]}", list[TopicproofError]()
    asked = [lifeline.kafka_service(Cluster(Address(there)), "orders")]
    with lifeline.check_lifeline(history, entry.id, asked, said.append):
        wait_until(lambda: bool(said), WAIT_S, "the end of the check")
    (error,) = said
    assert isinstance(error, ClusterError) and f"Kafka at {there} has not answered" in str(error)
    assert str(error).endswith("Nothing was judged. Start it again, then check again.")
    found = history.get(entry.id)
    assert found.state is State.FAILED and not found.alive and found.error == str(error)


def test_ctrl_c_twice_ends_a_call_that_does_not_return() -> None:
    """Story: a client waits for brokers that are gone, in a call that no signal interrupts. The
    first Ctrl-C is heard at once, the second ends the process."""
    with subprocess.Popen(
        [sys.executable, "-c", STUCK],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert "stopping" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "interrupted\n"
        assert process.wait(WAIT_S) == 130
