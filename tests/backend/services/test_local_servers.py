"""Servers of ours on loopback: any user of the machine may connect to them."""

from __future__ import annotations

import http.client
import os
import resource
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from topicproof.backend.address import Address
from topicproof.backend.runs import duplicates
from topicproof.backend.services import local_servers
from topicproof.backend.services.keeper import Keeper
from topicproof.backend.services.local_servers import LoopbackHandler, LoopbackServer
from topicproof.backend.services.peer_proxy import Links
from topicproof.backend.settings import read_settings

WAIT_S = 30.0


class _Exhausted(socket.socket):
    """A listener whose first `accept` finds no file free."""

    accepts = 0

    def accept(self) -> tuple[socket.socket, Any]:
        self.accepts += 1
        if self.accepts > 1:
            return super().accept()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
        try:
            return super().accept()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_keeper_without_files_serves_the_next_user(tmp_path: Path) -> None:
    """Story: a stranger holds so many connections that the keeper has no file left when a command
    asks for Spark. As soon as one is free again, the command gets its answer."""
    address = str(tmp_path / "s")
    with closing(_Exhausted(socket.AF_UNIX)) as listener, socket.socket(socket.AF_UNIX) as user:
        listener.bind(address)
        listener.listen()
        user.settimeout(WAIT_S)
        user.connect(address)
        user.sendall(b'{"kafka": false, "spark": false, "brokers": 3}\n')
        keeper = Keeper(read_settings(home=tmp_path))
        keeper.settings.services.mkdir(parents=True)
        threading.Thread(target=keeper._accept, args=(listener,), daemon=True).start()
        assert user.recv(100) == b'{"bootstrap": "", "spark_remote": ""}\n'
        assert listener.accepts >= 2


def test_a_proxy_without_files_forwards_the_next_connection(
    monkeypatch: pytest.MonkeyPatch, links: Links
) -> None:
    """Story: the same between brokers. The proxy waits a moment, and the connection is there."""

    def exhausted(address: tuple[str, int]) -> socket.socket:
        listener = _Exhausted()
        listener.bind(address)
        listener.listen()
        return listener

    with closing(socket.create_server(("127.0.0.1", 0))) as broker:
        broker.settimeout(WAIT_S)
        with monkeypatch.context() as patch:
            patch.setattr(socket, "create_server", exhausted)
            front = links.listen(1, broker.getsockname()[1])
        with closing(socket.create_connection(("127.0.0.1", front))) as client:
            client.sendall(b"hello")
            upstream, _ = broker.accept()
            with closing(upstream):
                upstream.settimeout(WAIT_S)
                assert upstream.recv(5) == b"hello"


@pytest.fixture
def links() -> Iterator[Links]:
    thread = Links(lambda _port, _front: None)
    thread.start()
    yield thread
    thread.stop()


def test_connections_between_brokers_are_counted(
    monkeypatch: pytest.MonkeyPatch, links: Links
) -> None:
    """Story: somebody opens connections to the proxy between brokers without an end. Beyond the
    limit, which is that of the proxy before Kafka, each is closed at once."""
    monkeypatch.setattr(local_servers, "CONNECTIONS_MAX", 2)
    with ExitStack() as stack:
        broker = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
        broker.settimeout(WAIT_S)
        front = links.listen(1, broker.getsockname()[1])
        clients = [
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", front))))
            for _ in range(3)
        ]
        ended, _, _ = select.select(clients, [], [], WAIT_S)
        assert ended == clients[2:] and ended[0].recv(1) == b""
        for _ in range(2):
            stack.enter_context(closing(broker.accept()[0]))
    assert len(links.open) <= 2


def test_no_other_user_is_a_broker(monkeypatch: pytest.MonkeyPatch, links: Links) -> None:
    """Story: another user of the machine connects to the proxy between brokers. Nothing of it
    reaches a broker."""
    monkeypatch.setattr(local_servers, "OWN_UIDS", frozenset({os.getuid() + 1}))
    with closing(socket.create_server(("127.0.0.1", 0))) as broker:
        front = links.listen(1, broker.getsockname()[1])
        with closing(socket.create_connection(("127.0.0.1", front))) as client:
            client.settimeout(WAIT_S)
            assert client.recv(1) == b""
        assert select.select([broker], [], [], 0)[0] == []


@contextmanager
def _ingest() -> Iterator[int]:
    """The ingest server of `duplicates`, before a Kafka that does not exist."""
    cluster: Any = type("Nowhere", (), {"address": Address("127.0.0.1:1")})
    with duplicates._ingest_server(cluster, "payments") as port:
        yield port


@pytest.mark.parametrize("body", [b'"\x1b[2J"', b"[" * 9_000, b'{"account": 7}', b"{}", b"\xff"])
def test_a_bad_post_leaves_no_line_in_the_output(
    body: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    """Story: another program posts what is no payment, a thousand times a second. The output of the
    run's process, which pages show, has none of it."""
    with _ingest() as port, closing(http.client.HTTPConnection("127.0.0.1", port)) as client:
        client.request("POST", "/payments", body)
        assert client.getresponse().status == http.HTTPStatus.BAD_REQUEST
    assert capfd.readouterr() == ("", "")


def test_no_other_user_posts_payments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: another user of the machine posts payments, which would be those of the run."""
    monkeypatch.setattr(local_servers, "OWN_UIDS", frozenset({os.getuid() + 1}))
    with _ingest() as port, closing(socket.create_connection(("127.0.0.1", port))) as client:
        client.settimeout(WAIT_S)
        # The server closes before it has read anything.
        assert select.select([client], [], [], WAIT_S)[0] == [client]
        assert client.recv(1) == b""


def test_who_sends_nothing_over_http_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: somebody announces a payment and never sends it. The connection ends, and holds no
    thread of the run."""
    monkeypatch.setattr(LoopbackHandler, "timeout", 0.05)
    with _ingest() as port, closing(socket.create_connection(("127.0.0.1", port))) as client:
        client.settimeout(WAIT_S)
        client.sendall(b"POST /payments HTTP/1.1\r\nContent-Length: 10\r\n\r\n")
        assert client.recv(1) == b""


def test_connections_over_http_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: somebody opens connections to a server of a run without an end. Beyond the limit each
    is closed at once, and takes no thread."""
    monkeypatch.setattr(local_servers, "CONNECTIONS_MAX", 2)
    with ExitStack() as stack:
        server = stack.enter_context(LoopbackServer(0, LoopbackHandler))
        stack.callback(server.shutdown)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        clients = [
            stack.enter_context(
                closing(socket.create_connection(("127.0.0.1", server.server_address[1])))
            )
            for _ in range(3)
        ]
        ended, _, _ = select.select(clients, [], [], WAIT_S)
        assert ended == clients[2:] and ended[0].recv(1) == b""
