"""Fetches a token from its endpoint: OAuth 2.0 client credentials (RFC 6749, section 4.4; KIP-768).

librdkafka and Java fetch their own. This is for kafka-python, and for the reason when it fails.
"""

from __future__ import annotations

import base64
import json
import math
import re
import ssl
import time
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import HTTPRedirectHandler, Request, build_opener

from topicproof.backend.errors import ClusterError
from topicproof.backend.http_deadline import SocketDeadline, WatchedHandler
from topicproof.backend.properties.facts import Tokens

TIMEOUT_S, ANSWER_S = 3.0, 10.0
"""For the next bytes of an answer, and for the whole conversation."""
TOO_LONG = "it took too long"
TOKEN = re.compile(r"[!-~]+")
"""The characters of a token (RFC 6749, appendix A.12)."""
ANSWER_BYTES_MAX = 1_000_000
DEFAULT_LIFETIME_S = 300.0
RENEWED_AT = 0.8
"""A token is fetched again after this share of its lifetime."""


@dataclass(frozen=True)
class Token:
    text: str
    fetched_at: float
    """Monotonic, s."""
    lifetime_s: float

    def __repr__(self) -> str:
        return f"Token(lifetime_s={self.lifetime_s:g})"

    @property
    def is_fresh(self) -> bool:
        return time.monotonic() - self.fetched_at < RENEWED_AT * self.lifetime_s


class _RedirectRefusal(HTTPRedirectHandler):
    def redirect_request(self, *_request: Any) -> None:
        """Follow no redirect: the other host would get the client's secret."""


def fetch_token(tokens: Tokens) -> Token:
    """Raises ClusterError naming the cause. The endpoint's own words are left out: they may repeat
    the secret."""
    try:
        body = _ask(tokens)
        if len(body) > ANSWER_BYTES_MAX:
            raise ClusterError(
                f"The token endpoint {tokens.shown_endpoint} answered with more than"
                f" {ANSWER_BYTES_MAX // 1_000_000} MB. Check sasl.oauthbearer.token.endpoint.url."
            )
        return _token_of(json.loads(body))
    except HTTPError as error:
        with error:
            raise _refused(tokens, error.code) from error
    except (OSError, HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        why = getattr(reason, "strerror", None) or str(reason)
        raise ClusterError(
            f"The token endpoint {tokens.shown_endpoint} cannot be reached: {why}. Check"
            " sasl.oauthbearer.token.endpoint.url."
        ) from error
    except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
        raise ClusterError(
            f"The token endpoint {tokens.shown_endpoint} answered without a token. Check"
            " sasl.oauthbearer.token.endpoint.url."
        ) from error


def _ask(tokens: Tokens) -> bytes:
    """Return the answer up to the limit, and a byte more. Raises TimeoutError if it takes longer
    than `ANSWER_S`."""
    credentials = base64.b64encode(f"{tokens.client_id}:{tokens.client_secret}".encode()).decode()
    form = {"grant_type": "client_credentials"}
    if tokens.scope is not None:
        form["scope"] = tokens.scope
    request = Request(
        tokens.endpoint,
        urlencode(form).encode(),
        {"Authorization": f"Basic {credentials}", "Accept": "application/json"},
    )
    context = ssl.create_default_context(cadata=tokens.ca)
    body: bytes = b""
    with SocketDeadline(ANSWER_S) as deadline:
        opener = build_opener(WatchedHandler(context, deadline), _RedirectRefusal())
        try:
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                body = answer.read(ANSWER_BYTES_MAX + 1)
        except (OSError, HTTPException) as error:
            if not deadline.is_over:
                raise
            raise TimeoutError(TOO_LONG) from error
    if deadline.is_over:
        raise TimeoutError(TOO_LONG)
    return body


def _token_of(answer: Any) -> Token:
    """Raises ValueError, KeyError, TypeError or ArithmeticError for an answer without a token."""
    text, lifetime_s = answer["access_token"], float(answer.get("expires_in", DEFAULT_LIFETIME_S))
    # Any other character could end the token inside the message to the broker (RFC 7628).
    if not TOKEN.fullmatch(text) or not math.isfinite(lifetime_s):
        raise ValueError
    return Token(text, time.monotonic(), lifetime_s)


def _refused(tokens: Tokens, status: int) -> ClusterError:
    if status in (400, 401, 403):
        return ClusterError(
            f"The token endpoint {tokens.shown_endpoint} refused client {tokens.client_id} (HTTP"
            f" {status}). Check the client id, its secret and its scope."
        )
    return ClusterError(
        f"The token endpoint {tokens.shown_endpoint} answered with HTTP {status}. Check"
        " sasl.oauthbearer.token.endpoint.url."
    )
