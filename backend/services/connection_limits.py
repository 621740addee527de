"""How many connections a web server of ours holds open, and for how long without a request.

uvicorn keeps a connection open that sends nothing, or a byte from time to time, and each takes a
file of this process. So a stranger who cannot sign in could still end it for everybody.
"""

from __future__ import annotations

import asyncio
import resource
from dataclasses import dataclass
from typing import Any, ClassVar

from uvicorn.protocols.http.auto import AutoHTTPProtocol

WAITING_MAX = 100
"""Connections of one address that may be between two requests. A browser has six."""
OPEN_MAX = 2_000
"""Connections in all, if this process may open twice as many files. A tab has one for as long as it
is open."""
REQUEST_S = 20.0
"""How long a connection may take until its next request is complete."""
CONNECTION = "topicproof_connection"
"""In the state of each request: its `Connection`."""
NOBODY = ("", 0)
"""The end of a connection that is closed already."""


@dataclass
class Connection:
    """A connection of a client, as its socket has it. No header of a request changes that."""

    client: tuple[str, int]
    server: tuple[str, int]
    is_own: bool | None = None
    """Whether it belongs to this user; None until doors.py has asked."""


class LimitedProtocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]  # one of two classes
    """HTTP as uvicorn speaks it. A new connection beyond the limits ends the one that has waited
    longest, so whoever sends requests is served. One process has one such server."""

    connections_open: ClassVar[set[LimitedProtocol]] = set()
    request_s: ClassVar[float] = REQUEST_S
    waiting_max: ClassVar[int] = WAITING_MAX
    transport: asyncio.Transport
    app_state: dict[str, Any]
    is_websocket = False
    waits_since = 0.0
    address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        connection = Connection(self.client or NOBODY, self.server or NOBODY)
        self.app_state = {**self.app_state, CONNECTION: connection}
        # After an upgrade uvicorn tells only the websocket of the end, so it is looked for here.
        closed = {other for other in self.connections_open if other.transport.is_closing()}
        self.connections_open.difference_update(closed)
        waiting = [other for other in self.connections_open if other.is_waiting]
        near = [other for other in waiting if other.address == self.address]
        self._wait()
        self.connections_open.add(self)
        if len(near) >= self.waiting_max:
            _end_longest(near)
        elif len(self.connections_open) > self.open_max():
            _end_longest(waiting or [self])

    @staticmethod
    def open_max() -> int:
        """Return how many connections may be open in all: half of the files of this process."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return OPEN_MAX if files == resource.RLIM_INFINITY else min(OPEN_MAX, files // 2)

    @property
    def is_waiting(self) -> bool:
        """Whether no request is complete that still has no answer."""
        return not self.is_websocket and (self.cycle is None or self.cycle.response_complete)

    def handle_websocket_upgrade(self, *request: object) -> None:
        # From here on entrance.py decides, which knows the person.
        self.is_websocket = True
        super().handle_websocket_upgrade(*request)

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()

    def _wait(self) -> None:
        self.waits_since = self.loop.time()
        self.loop.call_later(self.request_s, self._end_if_late, self.waits_since)

    def _end_if_late(self, since: float) -> None:
        if self.is_waiting and self.waits_since == since and not self.transport.is_closing():
            self.transport.abort()


def _end_longest(connections: list[LimitedProtocol]) -> None:
    min(connections, key=lambda connection: connection.waits_since).transport.abort()
