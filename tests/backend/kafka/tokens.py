"""A token endpoint of the tests: gives out signed tokens for client credentials (RFC 6749, section
4.4) and shows the key that verifies them (RFC 7517)."""

from __future__ import annotations

import base64
import json
import select
import ssl
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

CLIENT_ID, CLIENT_SECRET, SCOPE = "topicproof", "se/cr=et +ü", "kafka"
LIFETIME_S = 600
ODD: dict[str, tuple[int, object]] = {
    "/empty": (200, {}),
    "/failing": (500, {}),
    "/long": (200, {"access_token": "a" * 1_000_000}),
    "/deep": (200, b"[" * 200_000),
    "/moved": (302, {}),
    "/endless": (200, {"access_token": "a", "expires_in": float("inf")}),
    "/long-lived": (200, {"access_token": "a", "expires_in": 10**400}),
    "/split": (200, {"access_token": "a\x01auth=Bearer b"}),
    "/listed": (200, {"access_token": ["a"]}),
}
"""Odd answers, by path; /short gives tokens that have expired."""
DRIPPING = ("/dripping-head", "/dripping-body")
"""Paths whose answer comes byte by byte, as long as somebody listens."""
ELSEWHERE = "/elsewhere"
"""Where /moved redirects to."""
_KEY = rsa.generate_private_key(65537, 2048)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _number(value: int) -> str:
    return _text(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def signed(subject: str, scope: str) -> str:
    """Return a token of `LIFETIME_S` for the subject."""
    now = int(time.time())
    claims = {
        "jti": uuid.uuid4().hex,
        "sub": subject,
        "scope": scope,
        "iat": now,
        "exp": now + LIFETIME_S,
    }
    parts = ({"alg": "RS256", "kid": "tests"}, claims)
    body = ".".join(_text(json.dumps(part).encode()) for part in parts)
    return f"{body}.{_text(_KEY.sign(body.encode(), padding.PKCS1v15(), SHA256()))}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.startswith(ELSEWHERE):
            self._answer(200, {"access_token": f"sent {self.headers.get('Authorization')}"})
            return
        numbers = _KEY.public_key().public_numbers()
        key = {"kty": "RSA", "kid": "tests", "alg": "RS256", "use": "sig"}
        self._answer(200, {"keys": [{**key, "n": _number(numbers.n), "e": _number(numbers.e)}]})

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        scheme, _, told = self.headers.get("Authorization", "").partition(" ")
        user, _, secret = base64.b64decode(told).decode().partition(":")
        if (scheme, user, secret) != ("Basic", CLIENT_ID, CLIENT_SECRET):
            self._answer(401, {"error": "invalid_client", "error_description": f"not {secret}"})
            return
        if form.get("grant_type") != ["client_credentials"]:
            self._answer(400, {"error": "unsupported_grant_type"})
            return
        if self.path in ODD:
            self._answer(*ODD[self.path])
            return
        if self.path in DRIPPING:
            self._drip()
            return
        token = signed(user, form.get("scope", [""])[0])
        lifetime = 0 if self.path == "/short" else LIFETIME_S
        self._answer(200, {"access_token": token, "token_type": "Bearer", "expires_in": lifetime})

    def _answer(self, status: int, told: object) -> None:
        body = told if isinstance(told, bytes) else json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status == 302:
            self.send_header("Location", ELSEWHERE)
        self.end_headers()
        self.wfile.write(body)

    def _drip(self) -> None:
        self.wfile.write(b"HTTP/1.0 200 OK\r\nX: ")
        if self.path == "/dripping-body":
            self.wfile.write(b"\r\n\r\n")
        # Readable once the client has gone.
        with suppress(OSError):
            while not select.select([self.connection], [], [], 0.05)[0]:
                self.wfile.write(b"a")

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def token_endpoint(own: Path | None = None) -> Iterator[str]:
    """Serve on loopback, with TLS by the key and certificate in a file of one's own; yields the URL
    without a path."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    if own is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(own)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        scheme = "http" if own is None else "https"
        yield f"{scheme}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
