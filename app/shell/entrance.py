"""Who may come in, if a login is configured (trust/login.py): only people with a role.

Streamlit serves the login itself. `/auth/login` sends the browser to the provider, which sends it
back to `/oauth2callback`. A signed cookie then has the claims of the ID token. But Streamlit serves
everything else to anybody, and leaves it to each page to ask who is there. So this stands before
all of its routes. The websocket is refused before it opens, and closed once the login has ended.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from html import escape
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import streamlit as st
from google.protobuf.message import DecodeError
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from streamlit.auth_util import encode_provider_token, get_cookie_with_chunks
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.web.server.server_util import get_cookie_secret
from streamlit.web.server.starlette.starlette_app_utils import decode_signed_value

from topicproof.app.shell.login_log import asked_by
from topicproof.backend.errors import NotPermitted
from topicproof.backend.trust.identity import Action, How, Identity, allows
from topicproof.backend.trust.login import Login, Provider, identity_of_claims, identity_of_headers

COOKIE = "_streamlit_user"
"""Streamlit's cookie with the claims of the ID token."""
OPEN = ("/auth/login", "/auth/logout", "/oauth2callback")
"""Streamlit's own paths of the login. They are all that a stranger reaches."""
START = "/login"
"""Begins a login. Streamlit's path for it needs a token that lasts two minutes."""
WANTED = "topicproof_wanted"
"""A cookie with the page that a stranger asked for, to open it after the login."""
WANTED_S, WANTED_LENGTH_MAX = 600, 2_000
UNKNOWN, REFUSED = 401, 403
CONNECTIONS_MAX = 30
"""Websockets that a person may have open, one for each tab. Each may hold a message."""
UPLOADS = "/_stcore/upload_file/"
"""Streamlit takes files here for any page, also for one that asks for none."""
MAY_NOT_UPLOAD = "Your role does not allow contracts to be imported, so no file is taken.\n"
SUBPROTOCOLS = "sec-websocket-protocol"
"""Streamlit's client sends a name, a token and the id of the session that it had before."""
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Topicproof</title>
<meta name="viewport" content="width=device-width"><style>body {{font-family: sans-serif;
max-width: 32rem; margin: 20vh auto; padding: 0 1rem; color: #0b141d; background: #fff}}
a {{color: #005a8e}}</style></head><body><main><h1>Topicproof</h1><p>{why}</p><p>{way}</p></main>
</body></html>"""
SIGN_IN = f'<a href="{START}">Sign in</a>'
SIGN_OUT = f'<a href="{OPEN[1]}">Sign in as somebody else</a>'


@dataclass(frozen=True)
class Entrance:
    """ASGI middleware: nothing is served to a stranger but the way to the login."""

    app: ASGIApp
    login: Login
    now_s: Callable[[], float] = time.time
    connections: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Open websockets by person."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        try:
            require_proxy(self.login, connection)
            if self.login.provider is not None and scope["type"] == "http":
                if scope["path"] == START:
                    await begin_login()(scope, receive, send)
                    return
                if scope["path"] in OPEN:
                    closed = _closed_to_http(self.login.provider, send)
                    with asked_by(connection.client.host if connection.client else ""):
                        await self.app(scope, receive, closed)
                    return
            by = identity_of(self.login, connection.headers, connection.cookies, self.now_s())
        except NotPermitted as error:
            await _refuse(str(error), self.login, connection, receive, send)
            return
        if scope["type"] == "websocket":
            # Streamlit gives a session back to whoever names it, and knows only the people of its
            # own login. Behind a proxy it could be another person's.
            scope = scope if self.login.proxy is None else _without_session(scope)
            person = by.issuer, by.account
            if self.connections[person] >= CONNECTIONS_MAX:
                await _close(receive, send)
                return
            self.connections[person] += 1
            try:
                await self.app(scope, self._while_signed_in(connection, by, receive), send)
            finally:
                self.connections[person] -= 1
            return
        if scope["path"].startswith(UPLOADS) and not allows(by, Action.KEEP):
            await PlainTextResponse(MAY_NOT_UPLOAD, REFUSED)(scope, receive, send)
            return
        target = _requested_page(connection)
        if target is not None and scope["path"] == "/":
            back = RedirectResponse(target, 303)
            back.delete_cookie(WANTED)
            await back(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _while_signed_in(
        self, connection: HTTPConnection, by: Identity, receive: Receive
    ) -> Receive:
        """Return a `receive` that ends the connection at the first message after the login's
        end."""

        async def received() -> MutableMapping[str, Any]:
            message = await receive()
            while clears_caches(message):
                message = await receive()
            if message["type"] == "websocket.receive":
                try:
                    now = identity_of(
                        self.login, connection.headers, connection.cookies, self.now_s()
                    )
                except NotPermitted:
                    return {"type": "websocket.disconnect", "code": 1008}
                assert now == by, "the headers of a connection never change"
            return message

        return received


def clears_caches(message: Mapping[str, Any]) -> bool:
    """Return whether a websocket's message tells Streamlit to forget what it keeps for everybody.
    No page offers that."""
    try:
        return bool(BackMsg.FromString(message.get("bytes") or b"").HasField("clear_cache"))
    except DecodeError:
        return False  # Streamlit refuses it.


def identity_of(
    login: Login, headers: Mapping[str, str], cookies: Mapping[str, str], now_s: float
) -> Identity:
    """Return who sends these headers and cookies. `require_proxy` has passed their connection.
    Raises NotPermitted for a stranger."""
    if login.provider is None:
        return identity_of_headers(login, headers)
    claims = _claims(cookies)
    if claims is None or not claims.get("is_logged_in"):
        raise NotPermitted("Nobody has signed in.")
    if claims.get("origin") != login.provider.address:
        raise NotPermitted("This login is for another address. Sign in again.")
    return identity_of_claims(login, claims, How.OPENID, now_s)


def current_identity(login: Login) -> Identity:
    """Return who has the page open, by the headers of its websocket. Raises NotPermitted."""
    return identity_of(login, _lower(st.context.headers), st.context.cookies, time.time())


def require_proxy(login: Login, connection: HTTPConnection) -> None:
    """Raises NotPermitted for a request that did not come from the proxy, or whose headers name two
    people."""
    if login.proxy is None:
        return
    peer = connection.client.host if connection.client else ""
    if not login.proxy.trusts(peer):
        raise NotPermitted("Open this dashboard through its proxy.")
    for name in filter(None, (login.proxy.user, login.proxy.groups)):
        if len(Headers(scope=connection.scope).getlist(name)) > 1:
            raise NotPermitted(f"The header {name} is there twice.")


def secrets_of(provider: Provider, cookie_secret: str) -> dict[str, Any]:
    """Return what Streamlit needs for the login, in the form of its secrets.toml. It stays in
    memory."""
    return {
        "auth": {
            "redirect_uri": f"{provider.address}/oauth2callback",
            "cookie_secret": cookie_secret,
            "client_id": provider.client_id,
            "client_secret": provider.client_secret or "",
            "server_metadata_url": provider.metadata_url,
            "client_kwargs": {"scope": provider.scope},
        }
    }


def begin_login() -> Response:
    """Return the way into Streamlit's login."""
    token = encode_provider_token("default")
    return RedirectResponse(f"{OPEN[0]}?provider={quote(token)}", 303)


def _claims(cookies: Mapping[str, str]) -> dict[str, Any] | None:
    """Return what Streamlit's cookie says; None if there is none with Streamlit's signature."""
    secret = get_cookie_secret()
    if not secret:
        return None

    def read_cookie(name: str) -> bytes | None:
        value = cookies.get(name)
        return decode_signed_value(secret, name, value.encode("latin-1")) if value else None

    try:
        cookie = get_cookie_with_chunks(read_cookie, COOKIE)
        claims = None if cookie is None else json.loads(cookie)
    except ValueError:
        return None
    return claims if isinstance(claims, dict) else None


def _without_session(scope: Scope) -> Scope:
    """Return a websocket's scope without the session that it asks to go on with."""
    headers = MutableHeaders(scope={**scope, "headers": [*scope["headers"]]})
    names = [name.strip() for name in headers.get(SUBPROTOCOLS, "").split(",")]
    if len(names) > 2:
        headers[SUBPROTOCOLS] = ", ".join(names[:2])
    return {**scope, "headers": headers.raw, "subprotocols": [*scope.get("subprotocols", [])][:2]}


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _requested_page(connection: HTTPConnection) -> str | None:
    """Return the page of this dashboard that was asked for before the login."""
    path = unquote(connection.cookies.get(WANTED, ""))
    is_local = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_local and path != "/" else None


def _closed_to_http(provider: Provider, send: Send) -> Send:
    """Return a `send` that marks cookies as Secure where browsers use https."""
    if urlsplit(provider.address or "").scheme != "https":
        return send

    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            cookies = headers.getlist("set-cookie")
            del headers["set-cookie"]
            for cookie in cookies:
                headers.append(
                    "set-cookie", cookie if "; secure" in cookie.lower() else f"{cookie}; Secure"
                )
        await send(message)

    return sent


async def _refuse(
    why: str, login: Login, connection: HTTPConnection, receive: Receive, send: Send
) -> None:
    if connection.scope["type"] == "websocket":
        await _close(receive, send)
        return
    answer: Response
    if connection.scope["method"] == "GET" and "text/html" in connection.headers.get("accept", ""):
        answer = _page(why, login, connection)
    else:
        answer = PlainTextResponse(f"{why}\n", UNKNOWN if login.proxy is None else REFUSED)
    answer.headers["cache-control"] = "no-store"
    await answer(connection.scope, receive, send)


async def _close(receive: Receive, send: Send) -> None:
    """Close a websocket before it opens."""
    await receive()
    await send({"type": "websocket.close", "code": 1008})


def _page(why: str, login: Login, connection: HTTPConnection) -> Response:
    """Return the page for a stranger, which leads to the login if there is one."""
    if login.provider is None:
        return HTMLResponse(PAGE.format(why=escape(why), way=""), REFUSED)
    is_signed_in = _claims(connection.cookies) is not None
    way = SIGN_OUT if is_signed_in else SIGN_IN
    answer = HTMLResponse(PAGE.format(why=escape(why), way=way), UNKNOWN)
    path = connection.scope["path"] + (f"?{connection.url.query}" if connection.url.query else "")
    if len(path) <= WANTED_LENGTH_MAX:
        answer.set_cookie(WANTED, quote(path, safe=""), WANTED_S, httponly=True, samesite="lax")
    return answer
