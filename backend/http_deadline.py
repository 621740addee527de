"""An end for a conversation over HTTP, however slowly the other side speaks."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.request import HTTPHandler, HTTPSHandler, Request


class SocketDeadline:
    """Cuts the watched sockets when the time is over, unless the block has ended.

    A timeout of a socket begins again with each byte. So a server that sends one from time to time,
    also inside a header, would be listened to for ever.
    """

    def __init__(self, seconds: float) -> None:
        self._sockets: list[socket.socket] = []
        self._over = threading.Event()
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> SocketDeadline:
        self._timer.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._timer.cancel()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def watch(self, sock: socket.socket) -> None:
        self._sockets.append(sock)
        if self.is_over:
            self._cut()

    def _cut(self) -> None:
        self._over.set()
        for sock in self._sockets:
            with suppress(OSError):
                # Not that of TLS, which would take the socket from under its reader.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)


class _WatchedConnection(HTTPConnection):
    deadline: SocketDeadline

    def connect(self) -> None:
        super().connect()
        self.deadline.watch(self.sock)


class _WatchedSecureConnection(_WatchedConnection, HTTPSConnection):
    """The same with TLS: `connect` above is followed by that of `HTTPSConnection`."""


class WatchedHandler(HTTPSHandler, HTTPHandler):
    """Lets urllib open connections that a deadline cuts."""

    def __init__(self, context: ssl.SSLContext, deadline: SocketDeadline) -> None:
        super().__init__(context=context)
        self.context = context
        self.deadline = deadline

    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(self._watched(_WatchedConnection), req)

    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(self._watched(_WatchedSecureConnection), req, context=self.context)

    def _watched(self, kind: type[_WatchedConnection]) -> Any:
        return type(kind.__name__, (kind,), {"deadline": self.deadline})
