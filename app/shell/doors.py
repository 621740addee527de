"""Who may speak to the dashboard: names, origins, and what a browser may load.

Without a login, the dashboard must be reachable from this machine only. Two ways lead around a
listener on loopback. Another web site in the same browser sends requests here (cross-site), or lets
its own name resolve to 127.0.0.1 (DNS rebinding). So the `Host` must be a known name, and the
`Origin`, if a browser sends one, the same server. Streamlit's own check accepts every port of
`localhost`, which any other local program may own. A browser sends no `Origin` with most GET
requests, but says in `Sec-Fetch-Site` where they come from. A link from another site may open a
page, as a person follows it. Nothing else of ours is for another site, also not inside a frame.

Other users of this machine reach loopback as well, and send whatever headers they like. Linux knows
the user of each socket, so without a login only the user who started the dashboard is served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from topicproof.backend.services.connection_limits import CONNECTION, NOBODY, Connection
from topicproof.backend.services.dashboard import is_loopback
from topicproof.backend.services.local_servers import OWN_UIDS
from topicproof.backend.services.processes import connection_is_of

POLICY = "; ".join(
    (
        # Streamlit and Plotly have inline styles, and build functions from text.
        "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:",
        "connect-src 'self' data: blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
REFUSED = 403
ANOTHER_USER = (
    "This dashboard has no login, so it serves only the user who started it. To let other users of"
    " this machine in, configure a login (TOPICPROOF_LOGIN, see docs/TRUST.md).\n"
)
FOREIGN = "Requests from other web sites are refused.\n"
OWN_SITES = ("same-origin", "none")
"""Values of `Sec-Fetch-Site`: a page of ours, or the person alone, as from a bookmark. `same-site`
is another port of this machine, which any other local program may own."""


@dataclass(frozen=True)
class Doors:
    """ASGI middleware: refuses unknown hosts and foreign origins, and adds `HEADERS`. A refused
    websocket is closed before it opens."""

    app: ASGIApp
    hosts: frozenset[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        why = refusal(Headers(scope=scope), self.hosts)
        if why is not None:
            await _refuse(why, scope, receive, send)
            return

        async def answer(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, answer)


@dataclass(frozen=True)
class OwnerOnly:
    """ASGI middleware for a dashboard without a login: refuses connections from within this machine
    that are neither of this user nor of root. Each connection is looked up once."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            connection = _connection(scope)
            if connection.is_own is None:
                # In a thread: the kernel's table is long on a machine of many connections.
                connection.is_own = await asyncio.to_thread(_is_own, connection)
            if not connection.is_own:
                await _refuse(ANOTHER_USER, scope, receive, send)
                return
        await self.app(scope, receive, send)


def _connection(scope: Scope) -> Connection:
    """Return the connection of a request. A server that was not started by launch.py names only the
    ends, and may take the client's from a header."""
    connection = scope.get("state", {}).get(CONNECTION)
    if connection is None:
        client, server = scope.get("client") or NOBODY, scope.get("server") or NOBODY
        return Connection((client[0], client[1]), (server[0], server[1] or 0))
    assert isinstance(connection, Connection)
    return connection


def _is_own(connection: Connection) -> bool:
    ends = connection.client[0], connection.server[0]
    # A program of this machine may connect to loopback from any address of the machine.
    if all(host and not is_loopback(host) for host in ends):
        return True
    return connection_is_of(OWN_UIDS, connection.client, connection.server)


def refusal(headers: Mapping[str, str], hosts: frozenset[str]) -> str | None:
    """Return why a request with these headers is refused, or None."""
    host = headers.get("host", "")
    if _name(f"//{host}") not in hosts:
        return (
            "This dashboard is not known by this name. Open it as 127.0.0.1, or add the name to"
            " TOPICPROOF_DASHBOARD_HOSTS.\n"
        )
    origin = headers.get("origin")
    if origin is not None and _netloc(origin) != host.lower():
        return FOREIGN
    if headers.get("sec-fetch-site", "none") not in OWN_SITES and not _is_link(headers):
        return FOREIGN
    return None


def _is_link(headers: Mapping[str, str]) -> bool:
    """Return whether a browser asks for a page that a person opens in a tab."""
    navigates = headers.get("sec-fetch-mode") == "navigate"
    return navigates and headers.get("sec-fetch-dest") == "document"


def _netloc(url: str) -> str | None:
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return None


def _name(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


async def _refuse(why: str, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
        return
    # Whoever is refused keeps no connection.
    headers = {"connection": "close"}
    await PlainTextResponse(why, REFUSED, headers)(scope, receive, send)
