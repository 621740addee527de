"""The live tail while its broker goes and comes back."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from tests.app.conftest import TIMEOUT_S, OpenPage, texts
from tests.app.test_url_state import RANGES
from tests.backend.kafka.topics import Writer
from tests.conftest import wait_until
from topicproof.app.topic.tail import merged
from topicproof.backend.kafka.browse.search import Row
from topicproof.backend.settings import Settings
from topicproof.validators.finding import Fate


class Forwarder(ThreadingTCPServer):
    """Hands each connection on to a broker, as long as it is up."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    broker: tuple[str, int]


class Connection(BaseRequestHandler):
    """One connection, in both directions until one side closes it."""

    server: Forwarder

    def handle(self) -> None:
        with socket.create_connection(self.server.broker) as broker:
            back = threading.Thread(target=self.copy, args=(broker, self.request), daemon=True)
            back.start()
            self.copy(self.request, broker)
            back.join()

    @staticmethod
    def copy(left: socket.socket, right: socket.socket) -> None:
        try:
            while data := left.recv(65_536):
                right.sendall(data)
            right.shutdown(socket.SHUT_WR)
        except OSError:
            return  # The other side has gone, which ends the connection.


@contextmanager
def forwarded(bootstrap: str, port: int = 0) -> Iterator[int]:
    """A port at which the broker can be reached inside the block only."""
    host, _, at = bootstrap.partition(":")
    with Forwarder(("127.0.0.1", port), Connection) as server:
        server.broker = host, int(at)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def script(topic: str) -> None:
    from topicproof.app.shell.url_state import TopicsState
    from topicproof.app.topic.tail import newest

    newest(TopicsState(topic), False)


def test_the_tail_goes_on_when_the_broker_is_back(
    at_home: Settings,
    bootstrap: str,
    new_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: a broker is stopped while somebody follows a topic. The rows stay, with a sentence
    that says what happens. When the broker is back, new records come without a reload."""
    assert at_home.home
    topic = new_topic()
    Writer(bootstrap, topic).write("n3")
    with forwarded(bootstrap) as port:
        monkeypatch.setenv("TOPICPROOF_BOOTSTRAP", f"127.0.0.1:{port}")
        app = AppTest.from_function(script, args=(topic,), default_timeout=TIMEOUT_S).run()
        assert not app.exception and not app.warning and len(app.dataframe[0].value) == 3
    app.run()
    assert not app.exception and len(app.dataframe[0].value) == 3
    assert "Trying again every 2 s" in app.warning[0].proto.title
    Writer(bootstrap, topic).write("n1")
    with forwarded(bootstrap, port):
        wait_until(lambda: len(app.run().dataframe[0].value) == 4, 30, "the new record")
        assert not app.exception and not app.warning
    st.cache_resource.clear()


def test_the_tail_searches_the_newest_records(
    open_page: OpenPage, at_home: Settings, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: somebody waits for one key in one partition. The others are not shown, the sentence
    says in what the tail searches, and the address keeps all of it."""
    assert at_home.home
    topic = new_topic(partitions=2)
    Writer(bootstrap, topic).write("n12")
    Writer(bootstrap, topic).write("n12", 1)
    app = open_page("topics", topic=topic, view="tail", partition="1")
    assert not app.exception and set(app.dataframe[1].value["partition"]) == {1}
    app.text_input(key="key").set_value("1").run()
    assert not app.exception and app.query_params["key"] in ("1", ["1"])
    found = app.dataframe[1].value
    assert len(found) == 3 and found["key"].str.contains("1").all(), found
    assert "The newest 3 matching records that a read_committed" in texts(app)
    assert "searches the newest 2,000 records" in texts(app)


def test_what_was_found_stays_with_its_fate_of_now() -> None:
    """Story: a record matched while its transaction was open. Newer ones do not match; meanwhile it
    was aborted, and another one was deleted."""
    row = Row(1, 8, 5, b"k", b"v", (), 2, Fate.PENDING, 7)
    gone, new = replace(row, partition=2, offset=1), replace(row, offset=9, timestamp_ms=6)
    now = RANGES.assign(fate=RANGES["fate"].mask(RANGES["first_offset"] == 8, Fate.ABORTED))
    found = merged([new], [row, gone], now)
    assert [(one.offset, one.fate) for one in found] == [(9, Fate.PENDING), (8, Fate.ABORTED)]
