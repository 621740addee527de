"""Who asks: over stdio the person of the command line, over HTTP the one whom a bearer token names.

With a login, a token is an ID token of its provider for the client of the command line, so its
bearer has the roles that the provider gives this person. Without one, it is a secret that a file of
the home keeps, and its bearer is this machine's user.
"""

from __future__ import annotations

import hmac
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import anyio.to_thread
from mcp.server.auth.provider import AccessToken
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR
from pydantic import ConfigDict

from topicproof.backend.errors import EvidenceError, NotPermitted, TopicproofError, UsageError
from topicproof.backend.settings import Settings
from topicproof.backend.trust.acting import acting
from topicproof.backend.trust.device import TokenKeys
from topicproof.backend.trust.identity import Identity
from topicproof.backend.trust.keys import read_secret, trust_folder
from topicproof.backend.trust.login import configured_login
from topicproof.validators.sentences import counted

TOKEN_FILE = "mcp-token.txt"
"""In the home's folder `trust`: what a bearer shows where no login is configured."""
TOKEN_BYTES = 32
ASKED_EVERY_S = 60.0
"""How long the person of the command line stays who they are without another question to the
provider."""

LINE_EVERY_S = 60.0
"""How often at most a line says that requests are refused: strangers could fill a log."""

REQUESTS_MAX = 8
"""Requests of one person that are answered at the same time."""

_BEARER: ContextVar[Identity | None] = ContextVar("_BEARER", default=None)


class CommandLinePerson:
    """Who acts through the command line, asked again every minute: a server may run for weeks."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._turn = threading.Lock()
        self._identity: Identity | None = None
        self._until = 0.0

    def __call__(self) -> Identity:
        """Return who acts. Raises as `acting`."""
        with self._turn:
            if self._identity is None or time.monotonic() > self._until:
                self._identity = acting(self.settings)
                self._until = time.monotonic() + ASKED_EVERY_S
            return self._identity


class BearerToken(AccessToken):
    """A token that was checked, with the person whom it names."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    identity: Identity


class Bearers:
    """Checks bearer tokens. Raises UsageError for a login by a proxy, SetupError for a provider
    that cannot be asked."""

    def __init__(
        self, settings: Settings, secret: str | None, refused: Callable[[str], None]
    ) -> None:
        """`secret`: that of the home, where no login is configured. `refused` gets a line with the
        reason why a token does not count, at most every `LINE_EVERY_S`."""
        self.settings = settings
        self._secret = secret
        self._keys = None if secret is not None else TokenKeys(settings)
        self._refused = refused
        self._quiet_until = 0.0
        self._unsaid = 0

    @property
    def has_login(self) -> bool:
        return self._keys is not None

    @property
    def issuer(self) -> str | None:
        """The provider of the login; None without one."""
        return None if self._keys is None else self._keys.issuer

    async def verify_token(self, token: str) -> BearerToken | None:
        """Return the token if it counts (`mcp.server.auth.provider.TokenVerifier`)."""
        try:
            by = await anyio.to_thread.run_sync(self._identity, token)
        except TopicproofError as error:
            self._note_refusal(error)
            return None
        return BearerToken(token="", client_id=by.issuer or "this machine", scopes=[], identity=by)

    def _note_refusal(self, error: TopicproofError) -> None:
        if time.monotonic() < self._quiet_until:
            self._unsaid += 1
            return
        further = (
            f" So {'were' if self._unsaid > 1 else 'was'} {counted(self._unsaid, 'other')} since"
            " the last such line."
        )
        self._refused(f"A request is refused: {error}{further if self._unsaid else ''}")
        self._quiet_until, self._unsaid = time.monotonic() + LINE_EVERY_S, 0

    def _identity(self, token: str) -> Identity:
        if self._keys is not None:
            return self._keys.identity_of(token)
        assert self._secret is not None
        if not hmac.compare_digest(token.encode(), self._secret.encode()):
            raise NotPermitted("its token is not the one of this server.")
        return acting(self.settings)


class BearerRequests:
    """Whose requests are being answered (`mcp.server.context.ServerMiddleware`): each person has a
    limited number at the same time, so that nobody keeps the others out."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str]] = Counter()

    async def __call__(
        self, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """Answer a request. Raises MCPError if its person has too many."""
        user = None if ctx.request is None else ctx.request.scope.get("user")
        token = getattr(user, "access_token", None)
        identity = token.identity if isinstance(token, BearerToken) else None
        key = ("", "") if identity is None else (identity.issuer, identity.subject)
        if identity is not None and self._requests[key] >= REQUESTS_MAX:
            raise MCPError(
                INTERNAL_ERROR,
                f"{REQUESTS_MAX} questions of yours are being answered already. Wait for one of"
                " them, then ask again.",
            )
        self._requests[key] += 1
        reset = _BEARER.set(identity)
        try:
            return await call_next(ctx)
        finally:
            _BEARER.reset(reset)
            self._requests[key] -= 1
            if not self._requests[key]:
                del self._requests[key]


def bearer() -> Identity:
    """Return whose request is being answered. Raises NotPermitted without a token."""
    identity = _BEARER.get()
    if identity is None:
        raise NotPermitted("This request names nobody.")
    return identity


class LocalToken(NamedTuple):
    """The secret of a server without a login."""

    token: str
    path: Path
    is_new: bool


def local_token(settings: Settings) -> LocalToken | None:
    """Return the token of a server without a login, which is made once; None with a login that has
    tokens. Raises UsageError for a login by a proxy, and for a file that others
    can read; EvidenceError."""
    login = configured_login(settings)
    if login is not None:
        if login.provider is None:
            raise UsageError(
                "The login trusts the headers of a proxy, and an agent sends none. Leave --http"
                " out, or configure openid."
            )
        return None
    path = trust_folder(settings) / TOKEN_FILE
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o600), "w", encoding="ascii") as file:
            token = secrets.token_urlsafe(TOKEN_BYTES)
            file.write(f"{token}\n")
    except FileExistsError:
        return LocalToken(read_secret(path), path, False)
    except OSError as error:
        raise EvidenceError(f"{path} cannot be written: {error.strerror}.") from error
    return LocalToken(token, path, True)
