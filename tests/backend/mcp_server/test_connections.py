"""Connections to a real server for agents: what strangers on the machine cannot take from it."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from topicproof.backend.address import Address
from topicproof.backend.history.store import History
from topicproof.backend.mcp_server import people
from topicproof.backend.mcp_server.connections import CONNECTIONS_MAX, AgentProtocol
from topicproof.backend.mcp_server.desk import Desk
from topicproof.backend.mcp_server.people import REQUESTS_MAX, Bearers, bearer
from topicproof.backend.mcp_server.server import bound_socket, serve_http, url_of
from topicproof.backend.services import local_servers
from topicproof.backend.settings import Settings

WAIT_S = 20.0
TOKEN = "secret"
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
HEAD = (
    f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer {TOKEN}\r\n"
    "Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n"
    "Content-Length: %d\r\n\r\n"
)


@dataclass(frozen=True)
class Served:
    url: str
    port: int
    stop: threading.Event
    thread: threading.Thread
    bearers: Bearers
    lines: list[str]

    def ask(self, token: str = TOKEN) -> int:
        """The status of the answer to a bearer."""
        return self.answer(token).status_code

    def answer(self, token: str = TOKEN) -> httpx.Response:
        headers = {
            "Authorization": f"Bearer {token}",
            "Accept": "application/json, text/event-stream",
        }
        return httpx.post(self.url, json=LIST, headers=headers, timeout=WAIT_S)

    def connection(self, data: str = "") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), WAIT_S)
        connection.sendall(data.encode())
        return connection


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    settings = Settings(home=tmp_path)
    history = History(settings)
    stop, lines = threading.Event(), list[str]()
    AgentProtocol.connections_open.clear()
    desk = Desk(settings, Address("127.0.0.1:1", {}), history, bearer, False)
    with bound_socket(0) as listener:
        # Answers that nobody takes soon fill it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        bearers = Bearers(settings, TOKEN, lines.append)
        thread = threading.Thread(target=serve_http, args=(desk, bearers, listener, stop))
        thread.start()
        try:
            yield Served(url_of(listener), listener.getsockname()[1], stop, thread, bearers, lines)
        finally:
            stop.set()
            thread.join()
            history.engine.dispose()


def ends(connection: socket.socket) -> bool:
    """Whether the server ends the connection, and sends nothing before."""
    with suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def test_idle_connections_keep_no_agent_out(served: Served) -> None:
    """Story: somebody without a token opens connections and sends nothing. The eldest end beyond
    the limit, an agent is answered, and the server ends when it is asked to."""
    with ExitStack() as stack:
        connections = [
            stack.enter_context(served.connection()) for _ in range(CONNECTIONS_MAX + 20)
        ]
        assert served.ask() == 200
        assert all(map(ends, connections[:20]))
        # The agent's own connection has ended one more.
        assert ends(connections[20])
        served.stop.set()
        served.thread.join(WAIT_S)
        assert not served.thread.is_alive()
        assert all(map(ends, connections))


@pytest.mark.parametrize("data", ["", "POST /mcp HTTP/1.1\r\nHost: a\r\nX: ", HEAD])
def test_a_request_must_be_whole_in_time(
    served: Served, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: somebody begins a request, with a token or without one, and never ends it."""
    monkeypatch.setattr(AgentProtocol, "request_s", 0.2)
    with served.connection(data % (served.port, 99) if data == HEAD else data) as connection:
        assert ends(connection)
    assert served.ask() == 200


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_no_stream_keeps_others_out(served: Served, method: str) -> None:
    """Story: somebody with a token asks for a stream of events on every connection that the server
    has. There are none, and other agents are answered."""
    head = HEAD.replace("POST", method) % (served.port, 0)
    with ExitStack() as stack:
        for _ in range(CONNECTIONS_MAX):
            connection = stack.enter_context(served.connection(head))
            assert connection.recv(16).startswith(b"HTTP/1.1 405")
        assert served.ask() == 200


def test_a_person_has_so_many_requests_at_the_same_time(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: an agent asks again and again, one question after the other. One that asks too many
    at once is told to wait."""
    assert [served.ask() for _ in range(REQUESTS_MAX + 2)] == [200] * (REQUESTS_MAX + 2)
    monkeypatch.setattr(people, "REQUESTS_MAX", 0)
    assert "are being answered already" in served.answer().text


def test_who_takes_no_answer_is_cut_off(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: an agent asks and asks, and reads none of the answers."""
    monkeypatch.setattr(AgentProtocol, "request_s", 0.2)
    body = json.dumps(LIST)
    request = (HEAD % (served.port, len(body)) + body).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.settimeout(WAIT_S)
        connection.connect(("127.0.0.1", served.port))
        with pytest.raises(ConnectionError):  # noqa: PT012  # some request finds the end
            while True:
                connection.sendall(request)


def test_other_users_get_no_byte(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: another user of the machine has read the token over a shoulder. Without a login the
    server ends their connection."""
    monkeypatch.setattr(local_servers, "OWN_UIDS", frozenset({os.getuid() + 1}))
    with served.connection() as connection:
        assert ends(connection)
    with pytest.raises(httpx.TransportError):
        served.ask()


def test_refused_tokens_fill_no_log(served: Served) -> None:
    """Story: somebody guesses tokens. A line says so at once, and the one a minute later how many
    more there were."""
    assert [served.ask("guess") for _ in range(3)] == [401] * 3
    (line,) = served.lines
    served.bearers._quiet_until = 0.0
    assert served.ask("guess") == 401
    assert served.lines == [line, f"{line} So were 2 others since the last such line."]
