"""What every server of ours on loopback has in common: any user of the machine may connect to it.

So each has a limit of connections, and none ends when a process has no file left for another one.
`accept_all` is for threads, `listen` for event loops, and `LoopbackServer` for HTTP. A test names a
server that is made elsewhere.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from topicproof.backend.services.processes import client_is_of

HOST = "127.0.0.1"
CONNECTIONS_MAX = 500
"""Connections that one server holds. Beyond it, each is closed at once."""
IDLE_S = 30.0
"""How long a client over HTTP may send nothing, or take nothing."""
RETRY_S = 0.1
"""How long a server waits that had no file for a connection."""
OWN_UIDS = frozenset({os.getuid(), 0})
"""Users whose processes count as this user's: a container's programs may be root."""
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
CLOSED = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK})
"""Errors of a listener that somebody closed."""


def accept_all(listener: socket.socket) -> Iterator[socket.socket]:
    """Yield connections until the listener is closed. That files run out, or that a client is gone
    before it was accepted, ends nothing."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in CLOSED or listener.fileno() < 0:
                return
            if error.errno in EXHAUSTED:
                # The client waits in the backlog meanwhile.
                time.sleep(RETRY_S)
        else:
            yield connection


def listen(
    loop: asyncio.AbstractEventLoop,
    open_connections: Callable[[], int],
    on_client: Callable[[socket.socket, int], None],
) -> socket.socket:
    """Listen on a new port in a running loop. `on_client` gets each connection with its client's
    port, unless `CONNECTIONS_MAX` are open. Raises OSError."""
    # Not asyncio's own server: it loses a connection that it accepts while closing.
    listener = socket.create_server((HOST, 0))
    listener.setblocking(False)

    def accept() -> None:
        try:
            client, (_, port) = listener.accept()
        except OSError as error:
            # Otherwise the client is gone again.
            if error.errno in EXHAUSTED:
                # The listener stays readable, and the loop would do nothing else.
                loop.remove_reader(listener)
                loop.call_later(RETRY_S, resume)
            return
        if open_connections() >= CONNECTIONS_MAX:
            client.close()
            return
        client.setblocking(False)
        on_client(client, port)

    def resume() -> None:
        if listener.fileno() >= 0:
            loop.add_reader(listener, accept)

    resume()
    return listener


class LoopbackHandler(BaseHTTPRequestHandler):
    """Answers a request. Logs nothing: what strangers send would fill the log of a run."""

    timeout = IDLE_S

    def log_message(self, format: str, *args: Any) -> None:
        pass


class LoopbackServer(ThreadingHTTPServer):
    """Serves HTTP on `HOST`, in a thread for each connection. Raises OSError for a port that is
    taken."""

    daemon_threads = True
    request_queue_size = 128
    serves_others = True
    """Whether processes of other users get an answer (Linux)."""

    def __init__(self, port: int, handler: type[LoopbackHandler]) -> None:
        self._room = threading.BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__((HOST, port), handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in EXHAUSTED:
                time.sleep(RETRY_S)
            raise  # The server goes on.

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            # In this thread: the kernel's table is long if there are many connections.
            if self.serves_others or client_is_of(
                OWN_UIDS, client_address[1], self.server_address[1]
            ):
                super().process_request_thread(request, client_address)
            else:
                self.shutdown_request(request)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnects early or sends anything else than ours: a traceback for
        each would fill the log of the run."""
