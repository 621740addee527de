"""The proxy's room for requests: any user of the machine may connect to it."""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.conftest import wait_until
from topicproof.backend.faults import proxy as proxy_module
from topicproof.backend.faults.proxy import How, Proxy, Rule
from topicproof.backend.faults.requests import METADATA, Api
from topicproof.backend.services import local_servers
from topicproof.backend.services.processes import client_is_of

WAIT_S = 30.0
LENGTH = 900
WHOLE = struct.pack(">i", LENGTH) + bytes([0, 3]) + bytes(LENGTH - 2)
"""A request of metadata."""


class Ends:
    """Clients of a proxy, and the broker behind it, which answers nothing."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.broker = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
        self.broker.settimeout(WAIT_S)
        port = self.broker.getsockname()[1]
        self.proxy = stack.enter_context(Proxy(f"127.0.0.1:{port}"))

    def client(self, data: bytes) -> socket.socket:
        host, _, port = self.proxy.bootstrap.rpartition(":")
        client = self._stack.enter_context(closing(socket.create_connection((host, int(port)))))
        client.settimeout(WAIT_S)
        client.sendall(data)
        return client


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    monkeypatch.setattr(proxy_module, "PENDING_BYTES_MAX", 1_000)
    with ExitStack() as stack:
        yield Ends(stack)


def test_requests_that_are_never_whole_take_no_more_than_their_room(ends: Ends) -> None:
    """Story: another user of the machine announces large requests on several connections, and sends
    all but a byte of each. Only one has room; once it is gone, a whole request arrives."""
    clients = [ends.client(WHOLE[:-1]) for _ in range(2)]
    ended, _, _ = select.select(clients, [], [], WAIT_S)
    assert len(ended) == 1 and ended[0].recv(1) == b""
    for client in clients:
        client.close()
        ends.broker.accept()[0].close()

    def arrived() -> bool:
        with closing(ends.client(WHOLE)) as client:
            upstream, _ = ends.broker.accept()
            with closing(upstream):
                upstream.settimeout(WAIT_S)
                ready, _, _ = select.select([client, upstream], [], [], WAIT_S)
                return upstream in ready and upstream.recv(4) == WHOLE[:4]

    wait_until(arrived, WAIT_S, "a whole request")


def test_connections_are_counted(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: another user of the machine opens connections without an end. Beyond the limit each is
    closed at once."""
    monkeypatch.setattr(local_servers, "CONNECTIONS_MAX", 2)
    clients = [ends.client(b"") for _ in range(3)]
    ended, _, _ = select.select(clients, [], [], WAIT_S)
    assert ended == clients[2:] and ended[0].recv(1) == b""


def _request(api: int, version: int, correlation: int, body: bytes = b"") -> bytes:
    frame = struct.pack(">hhih", api, version, correlation, 0) + body
    return struct.pack(">i", len(frame)) + frame


STRANGE = {
    "no records": (_request(Api.PRODUCE, 7, 9, b"\x7f" * 9), b""),
    "a version that nobody has": (_request(Api.PRODUCE, 99, 9, bytes(9)), b""),
    "one correlation id twice": (
        _request(18, 0, 7) + _request(METADATA, 1, 7, bytes(4)),
        struct.pack(">ii", 16, 7) + b"\xff" * 12,
    ),
}
"""What a stranger sends, and what the broker answers."""


@pytest.mark.parametrize("what", STRANGE)
def test_whoever_speaks_no_kafka_ends_nothing_but_his_connection(what: str, ends: Ends) -> None:
    """Story: a fault waits for a request to produce. Another user of the machine sends one that
    cannot be decoded, or lets an answer be taken for another one. His connection ends, and the
    proxy of the run goes on."""
    sent, answer = STRANGE[what]
    ends.proxy.arm(Rule(Api.PRODUCE, How.LOST, topic="squares"))
    client = ends.client(sent)
    upstream, _ = ends.broker.accept()
    with closing(upstream):
        upstream.sendall(answer)
        assert client.recv(1) == b""
    assert ends.proxy.failure is None


def test_another_users_requests_use_up_no_fault(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a run plans that one request to produce is lost. Another user of the machine sends
    one first. It arrives, and the run's own one is lost."""
    produce = _request(Api.PRODUCE, 7, 9, bytes(9))
    rule = ends.proxy.arm(Rule(Api.PRODUCE, How.LOST))
    with monkeypatch.context() as patch:
        patch.setattr(local_servers, "OWN_UIDS", frozenset({os.getuid() + 1}))
        ends.client(produce)
        upstream, _ = ends.broker.accept()
        with closing(upstream):
            upstream.settimeout(WAIT_S)
            assert upstream.recv(4) == produce[:4]
    (idle,) = ends.proxy.idle_rules()
    assert rule.struck == 0 and idle.endswith(" are never hit: 1 came.")
    assert ends.client(produce).recv(1) == b""
    assert rule.struck == 1 and not ends.proxy.idle_rules()


def test_a_connection_that_its_client_has_closed_is_nobodys() -> None:
    """Story: a client sends and closes at once, before anybody looks whose it is. The kernel then
    says that the connection is root's."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, (_, client_port) = server.accept()
        with closing(accepted):
            assert client_is_of({os.getuid()}, client_port, port)
            assert not client_is_of({os.getuid() + 1}, client_port, port)
            client.close()
            assert accepted.recv(1) == b""
            assert not client_is_of({os.getuid(), 0}, client_port, port)
