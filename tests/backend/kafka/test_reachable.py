"""An address that is no Kafka broker: one sentence says what is there, within 3 s."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from http.server import HTTPServer, SimpleHTTPRequestHandler
from socketserver import StreamRequestHandler, TCPServer
from threading import Event, Thread
from typing import TypeVar
from uuid import uuid4

import pytest
from confluent_kafka.admin._metadata import ClusterMetadata
from kafka.admin._transactions import TransactionState
from kafka.errors import for_code

from tests.test_cli import call
from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, TopicError
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.log import client
from topicproof.backend.kafka.log.client import cluster_error
from topicproof.backend.kafka.log.rawlog import Connection
from topicproof.validators.finding import PartitionBounds

Answer = TypeVar("Answer")


class Redis(StreamRequestHandler):
    """Answers each line of text as Redis answers an unknown command."""

    def handle(self) -> None:
        for _line in self.rfile:
            self.wfile.write(b"-ERR unknown command\r\n")


class Https(StreamRequestHandler):
    """Closes the connection, as a TLS listener does that is not spoken to in TLS."""


@contextmanager
def serving(server: TCPServer) -> Iterator[int]:
    with server:
        Thread(target=server.serve_forever, args=(0.01,)).start()
        yield server.server_address[1]
        server.shutdown()


@contextmanager
def listening() -> Iterator[int]:
    """A port that accepts connections and never answers. Nobody waits long for its answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "_QUESTIONS", [(question, 0.1) for question, _ in client._QUESTIONS])
        with socket.create_server(("127.0.0.1", 0)) as listener:
            yield listener.getsockname()[1]


@contextmanager
def nothing() -> Iterator[int]:
    with listening() as port:
        pass
    yield port


@pytest.mark.parametrize(
    ("there", "says"),
    [
        (nothing, "Connection refused"),
        (listening, "it accepts connections, but answers nothing"),
        (
            lambda: serving(HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)),
            "it is no Kafka broker; its answer begins '<!DOCTYP'",
        ),
        (
            lambda: serving(TCPServer(("127.0.0.1", 0), Redis)),
            "it is no Kafka broker; its answer begins '-ERR unk'",
        ),
        (
            lambda: serving(TCPServer(("127.0.0.1", 0), Https)),
            "it closes the connection; a TLS listener needs security.protocol=SSL or SASL_SSL",
        ),
    ],
    ids=["nothing", "mute", "http", "redis", "https"],
)
@pytest.mark.parametrize("command", ["inspect squares", "fill", "check", "run"])
def test_what_is_no_broker_is_named(
    there: Callable[[], AbstractContextManager[int]],
    says: str,
    command: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Story: somebody mistypes the port. One sentence names what listens there, before Spark is
    started."""
    with there() as port:
        assert call(*command.split(), "--bootstrap", f"127.0.0.1:{port}") == 3
    told = " ".join(capsys.readouterr().err.split())
    # The HTTP server logs the request there too.
    assert told.endswith(
        f"ClusterError: No Kafka broker can be reached (127.0.0.1:{port}: {says})."
        " Check the address and that the broker runs."
    )


def test_a_word_or_error_code_of_a_newer_broker_is_named() -> None:
    """Story: the brokers are newer than this client. A state or an error code that it does not know
    is in the sentence."""
    address = Address("new:9092")
    with pytest.raises(ClusterError, match="newer than this client: 'Paused' is not a valid"):
        Connection(address, None, None).with_retries(lambda: TransactionState("Paused"))
    assert "Error 999" in str(cluster_error(address, for_code(999)("offsets")))
    for code in (6, 42):
        # Retriable, and not. The library names each of many partitions.
        said = str(cluster_error(address, for_code(code)("partitions " + "many-000 " * 1_000)))
        assert "partitions many-000" in said and len(said) < 500


def asked_before(
    asked: Event, bootstrap: str, topic: str, partitions: int, question: Callable[[], Answer]
) -> Answer:
    """The answer to a question about a topic that is made only after the question was asked."""
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(question)
        assert asked.wait(30)
        Cluster(Address(bootstrap)).create_topic(topic, partitions)
        return answer.result()


def test_a_broker_that_does_not_know_a_new_topic_yet_is_asked_again(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a broker has just started. The others know a new topic already, and it does not. Its
    answer is no reason to fail."""
    topic = f"new-{uuid4().hex[:6]}"
    cluster = Cluster(Address(bootstrap))
    asked = Event()

    def known_elsewhere(_topic: str) -> list[int]:
        asked.set()
        return [0]

    monkeypatch.setattr(cluster, "partitions", known_elsewhere)
    bounds = asked_before(asked, bootstrap, topic, 1, lambda: cluster.bounds(topic))
    assert bounds.partitions == (PartitionBounds(0, 0, 0, 0),)
    cluster.delete_topics([topic])


def test_a_broker_may_not_know_its_partitions_yet_either(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a run has made its topic, and the next question meets such a broker. A topic that
    nobody made is missing at once."""
    topic = f"new-{uuid4().hex[:6]}"
    cluster = Cluster(Address(bootstrap))
    with pytest.raises(TopicError, match=f"There is no topic {topic}"):
        cluster.partitions(topic)
    cluster.made.add(topic)
    asked, ask = Event(), cluster.admin.list_topics

    def told(**question: float) -> ClusterMetadata:
        asked.set()
        return ask(**question)

    monkeypatch.setattr(cluster.admin, "list_topics", told)
    assert asked_before(asked, bootstrap, topic, 2, lambda: cluster.partitions(topic)) == [0, 1]
    cluster.delete_topics([topic])
    with pytest.raises(TopicError, match=f"There is no topic {topic}"):
        cluster.partitions(topic)
