"""Connections of agents over HTTP: any user of the machine may connect to loopback."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from topicproof.backend.services import local_servers
from topicproof.backend.services.connection_limits import NOBODY, LimitedProtocol
from topicproof.backend.services.processes import connection_is_of

CONNECTIONS_MAX = 64


def posts_only(application: ASGIApp) -> ASGIApp:
    """Return the application without other methods than POST. A GET would open a stream of events
    that never ends, and a DELETE end a session: there are none, since each request stands
    alone."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] != "POST":
            refusal = PlainTextResponse("Ask with POST.", 405, {"Allow": "POST"})
            await refusal(scope, receive, send)
        else:
            await application(scope, receive, send)

    return answer


class AgentProtocol(LimitedProtocol):
    """HTTP for whoever has a token. A connection that sends no whole request, or takes no answer,
    ends after a time, or as soon as others need its room."""

    request_s: ClassVar[float] = local_servers.IDLE_S
    waiting_max: ClassVar[int] = CONNECTIONS_MAX

    @staticmethod
    def open_max() -> int:
        return CONNECTIONS_MAX

    @property
    def is_waiting(self) -> bool:
        return super().is_waiting or self.cycle.more_body or self.flow.write_paused

    def pause_writing(self) -> None:
        super().pause_writing()
        # The time for the request is over, and the one for its answer begins.
        self._wait()


class OwnAgentProtocol(AgentProtocol):
    """The same, for processes of this user and of root alone (Linux). Nothing is read of a
    connection before the kernel has named its user."""

    lookup: asyncio.Future[bool]
    is_admitted = False
    early = b""
    """What came before: Python 3.11.2 reads once although reading is paused."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        transport.pause_reading()
        # In a thread: the kernel's table is long if there are many connections.
        self.lookup = self.loop.run_in_executor(
            None,
            connection_is_of,
            local_servers.OWN_UIDS,
            self.client or NOBODY,
            self.server or NOBODY,
        )
        self.lookup.add_done_callback(self._admit)

    def data_received(self, data: bytes) -> None:
        if self.is_admitted:
            super().data_received(data)
        else:
            self.early += data

    def connection_lost(self, error: Exception | None) -> None:
        # Threads have no work for connections that are over.
        self.lookup.cancel()
        super().connection_lost(error)

    def _admit(self, lookup: asyncio.Future[bool]) -> None:
        if lookup.cancelled() or self.transport.is_closing():
            return
        if lookup.result():
            self.is_admitted = True
            self.transport.resume_reading()
            if self.early:
                super().data_received(self.early)
        else:
            self.transport.abort()
