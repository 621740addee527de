"""Payment files over HTTP, for demo and tests: a real server on loopback that counts its requests.

File N is CSV if N is even and JSON lines if it is odd. Five of every hundred files are bad, each in
a different way. Every request except the judge's is a line in a log, so the count survives a killed
run.
"""

from __future__ import annotations

import json
import random
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

from topicproof.backend.errors import SetupError
from topicproof.backend.runs.files_again import AGENT
from topicproof.backend.services.local_servers import HOST, LoopbackHandler, LoopbackServer

PAYMENTS_MAX = 20
PATH = re.compile(r"/([0-9]{6,12})\.(?:csv|jsonl)")
OVERSIZED_BYTES = 64_000_000
"""Announced size of an oversized file. The server sends until the client disconnects."""


class Bad(StrEnum):
    """Ways in which a file can be bad."""

    MISSING = "missing"
    SLOW = "slow"
    """Its first half arrives at once, and the rest never."""
    HALF_SENT = "half-sent"
    """The connection ends before the announced length."""
    OVERSIZED = "oversized"
    MALFORMED = "malformed"
    """Its last payment has no amount."""


def bad(number: int) -> Bad | None:
    """Return the way in which a file is bad; None for a good one."""
    return list(Bad)[number // 20 % len(Bad)] if number % 20 == 13 else None


def name(number: int) -> str:
    return f"{number:06}.{'jsonl' if number % 2 else 'csv'}"


def payments(number: int) -> list[dict[str, Any]]:
    """Return file N's payments: 1 to 20, always the same."""
    drawn = random.Random(number)
    return [
        {
            "id": f"{number}-{index}",
            "account": f"account-{drawn.randrange(50):02}",
            "amount": f"{drawn.randrange(1, 100_000) / 100:.2f}",
        }
        for index in range(drawn.randint(1, PAYMENTS_MAX))
    ]


def content(number: int) -> bytes:
    rows = payments(number)
    if bad(number) is Bad.MALFORMED:
        del rows[-1]["amount"]
    if number % 2:
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    return "\n".join(["id,account,amount", *(",".join(row.values()) for row in rows), ""]).encode()


class FileServer(LoopbackServer):
    """Serves on `HOST` and `port`, and appends requested paths to `log`. Raises SetupError if the
    port is taken."""

    def __init__(self, port: int, log: Path) -> None:
        self.log = log
        self.lock = threading.Lock()
        self.closing = threading.Event()
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        try:
            super().__init__(port, _Handler)
        except OSError as error:
            raise SetupError(
                f"The files of the run are served on port {port} of {HOST}, which is not free"
                f" ({error.strerror}). Stop what listens there, or start a new run."
            ) from error

    def heard(self, path: str) -> None:
        with self.lock, self.log.open("a", encoding="utf-8") as lines:
            lines.write(path + "\n")


def requests(log: Path) -> Counter[str]:
    """Count the requests per path."""
    try:
        return Counter(log.read_text(encoding="utf-8").splitlines())
    except FileNotFoundError:
        return Counter()


@contextmanager
def serving(port: int, log: Path) -> Iterator[FileServer]:
    """Run the server during the block. Port 0 takes a free one."""
    with FileServer(port, log) as server:
        thread = threading.Thread(
            target=server.serve_forever, args=(0.05,), name="files", daemon=True
        )
        thread.start()
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()
            thread.join()


def _number(path: str) -> int | None:
    """Return the number of the file that has this path, if one has it."""
    match = PATH.fullmatch(path)
    return int(match[1]) if match and path == f"/{name(int(match[1]))}" else None


class _Handler(LoopbackHandler):
    server: FileServer

    def do_GET(self) -> None:
        number = _number(self.path)
        # Another user of the machine may ask for anything, and only files are counted.
        if number is not None and self.headers["User-Agent"] != AGENT:
            self.server.heard(self.path)
        if number is None or bad(number) is Bad.MISSING:
            self.send_error(404)
            return
        body, way = content(number), bad(number)
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson" if number % 2 else "text/csv")
        self.send_header(
            "Content-Length", str(OVERSIZED_BYTES if way is Bad.OVERSIZED else len(body))
        )
        self.end_headers()
        match way:
            case Bad.HALF_SENT:
                self.wfile.write(body[: len(body) // 2])
                self.close_connection = True
            case Bad.SLOW:
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                self.server.closing.wait()
            case Bad.OVERSIZED:
                while not self.server.closing.is_set():
                    self.wfile.write(b"x" * 65_536)
            case _:
                self.wfile.write(body)
