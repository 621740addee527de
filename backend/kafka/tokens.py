"""Fetches a token from its endpoint: OAuth 2.0 client credentials (RFC 6749, section 4.4; KIP-768).

librdkafka and Java fetch their own. This is for kafka-python, and for the reason when it fails.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from topicproof.backend.errors import ClusterError
from topicproof.backend.properties.facts import Tokens

TIMEOUT_S, ANSWER_S = 3.0, 10.0
"""For the next bytes of an answer, and for all of it."""
PIECE_BYTES = 65_536
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
    opener = build_opener(HTTPSHandler(context=context), _RedirectRefusal())
    try:
        with opener.open(request, timeout=TIMEOUT_S) as response:
            body = _read(response)
        if len(body) > ANSWER_BYTES_MAX:
            raise ClusterError(
                f"The token endpoint {tokens.endpoint} answered with more than"
                f" {ANSWER_BYTES_MAX // 1_000_000} MB. Check sasl.oauthbearer.token.endpoint.url."
            )
        answer = json.loads(body)
        return Token(
            str(answer["access_token"]),
            time.monotonic(),
            float(answer.get("expires_in", DEFAULT_LIFETIME_S)),
        )
    except HTTPError as error:
        with error:
            raise _refused(tokens, error.code) from error
    except (OSError, HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        why = getattr(reason, "strerror", None) or str(reason)
        raise ClusterError(
            f"The token endpoint {tokens.endpoint} cannot be reached: {why}. Check"
            " sasl.oauthbearer.token.endpoint.url."
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ClusterError(
            f"The token endpoint {tokens.endpoint} answered without a token. Check"
            " sasl.oauthbearer.token.endpoint.url."
        ) from error


def _read(response: Any) -> bytes:
    """Read an answer up to the limit. Raises TimeoutError if it comes byte by byte for longer than
    `ANSWER_S`."""
    body, deadline = b"", time.monotonic() + ANSWER_S
    while len(body) <= ANSWER_BYTES_MAX and (piece := response.read1(PIECE_BYTES)):
        body += piece
        if time.monotonic() > deadline:
            raise TimeoutError("it took too long")
    return body


def _refused(tokens: Tokens, status: int) -> ClusterError:
    if status in (400, 401, 403):
        return ClusterError(
            f"The token endpoint {tokens.endpoint} refused client {tokens.client_id} (HTTP"
            f" {status}). Check the client id, its secret and its scope."
        )
    return ClusterError(
        f"The token endpoint {tokens.endpoint} answered with HTTP {status}. Check"
        " sasl.oauthbearer.token.endpoint.url."
    )
