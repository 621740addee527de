"""Connections that send no request end, and leave room for those that do. On a real web server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import uvicorn
from websockets.sync.client import connect

from topicproof.backend.services.connection_limits import LimitedProtocol

WAIT_S = 20.0
REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Answer a request, /slow once its body is complete, and each message of a websocket."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            await send({"type": "websocket.send", "text": "here"})
        return
    while scope["path"] == "/slow" and (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


@contextmanager
def serving(application: Any, address: str = "127.0.0.1") -> Iterator[int]:
    """Serve an ASGI application as the dashboard does, at a port of this address."""
    settings = uvicorn.Config(application, http=LimitedProtocol, lifespan="off", log_config=None)
    server = uvicorn.Server(settings)
    LimitedProtocol.connections_open.clear()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind((address, 0))
        listener.listen()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def port() -> Iterator[int]:
    with serving(answer) as port:
        yield port


def opened(port: int, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), WAIT_S)
    connection.sendall(data)
    return connection


def rest(connection: socket.socket) -> bytes:
    """Return what the server sends until it ends the connection."""
    received = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(4096):
            received += piece
    return received


@pytest.mark.parametrize(
    ("data", "answers"),
    [
        (b"", 0),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: ", 0),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\na", 1),
        (REQUEST + b"GET / HTTP/1.1\r\n", 1),
    ],
)
def test_a_connection_without_a_request_ends(
    port: int, data: bytes, answers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a stranger opens connections and begins requests, or never ends their bodies."""
    monkeypatch.setattr(LimitedProtocol, "request_s", 0.2)
    with opened(port, data) as connection:
        assert rest(connection).count(b" 204 ") == answers


def test_who_is_served_takes_any_time(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: meanwhile somebody uploads a file over a slow line, and a tab stays open."""
    monkeypatch.setattr(LimitedProtocol, "request_s", 0.2)
    slow = b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\na"
    with connect(f"ws://127.0.0.1:{port}/") as tab, opened(port, slow) as upload:
        with opened(port) as idle:
            assert rest(idle) == b""
        upload.sendall(b"b")
        assert b" 204 " in rest(upload)
        tab.send("still")
        assert tab.recv(WAIT_S) == "here"


def test_idle_connections_leave_room(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a stranger opens as many connections as the server takes. The eldest ends for each
    request. Open tabs stay, and beyond them nothing is taken."""
    monkeypatch.setattr(LimitedProtocol, "waiting_max", 2)
    with opened(port) as first, opened(port) as second, opened(port, REQUEST) as third:
        assert rest(first) == b"" and third.recv(4096).startswith(b"HTTP/1.1 204")
        monkeypatch.setattr(LimitedProtocol, "open_max", staticmethod(lambda: 2))
        with connect(f"ws://127.0.0.1:{port}/") as tab:
            assert rest(second) == b""
            with connect(f"ws://127.0.0.1:{port}/"), opened(port, REQUEST) as late:
                assert rest(late) == b""
                tab.send("still")
                assert tab.recv(WAIT_S) == "here"
