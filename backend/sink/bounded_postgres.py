"""Connections to a PostgreSQL server that somebody else named.

libpq holds an answer whole, and with a cursor each row, as large as the server makes it. The time
limit of a statement is the server's own, too. So what arrives is counted while it arrives (on
Linux, which counts it), and a server that sends too much or too slowly is given up.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Generator
from typing import Any

import psycopg

ANSWER_BYTES_MAX = 256_000_000
"""Of one answer, or of the rows that a cursor fetches at once."""
QUEUE_BYTES = 2**16
IS_LINUX = sys.platform == "linux"
RECEIVED_AT = 128
"""Where Linux's `tcp_info` has the bytes that a connection received, in eight bytes."""


class BoundedConnection(psycopg.Connection[Any]):
    """Raises psycopg.OperationalError, and is closed, for an answer beyond its limits."""

    bytes_max: int = ANSWER_BYTES_MAX
    """Of one answer. libpq reads on while more arrives: a server of the same machine, which sends
    as fast as that, may get some hundred megabytes further."""
    seconds_max: float = float("inf")
    """Until an answer is complete."""

    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        return super().wait(self._counted(gen), *arguments, **options)

    def _counted(self, steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Yield what libpq waits for, step by step, as long as its answer is within the limits."""
        _shorten_queue(self.pgconn.socket)
        before, deadline = _received(self.pgconn.socket), time.monotonic() + self.seconds_max
        try:
            awaited = next(steps)
            while True:
                ready = yield awaited
                if _received(self.pgconn.socket) - before > self.bytes_max:
                    self._give_up(steps, f"an answer has more than {self.bytes_max:,} bytes")
                if time.monotonic() > deadline:
                    self._give_up(steps, f"an answer takes more than {self.seconds_max:.0f} s")
                awaited = steps.send(ready)
        except StopIteration as end:
            return end.value

    def _give_up(self, steps: Generator[Any, Any, Any], why: str) -> None:
        steps.close()
        self.pgconn.finish()
        raise psycopg.OperationalError(why)


def _shorten_queue(descriptor: int) -> None:
    """Let little arrive that was not counted yet: libpq reads as long as there is something."""
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, QUEUE_BYTES)


def _received(descriptor: int) -> int:
    """Return the bytes that a TCP connection has received; 0 if the system does not count them."""
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or not IS_LINUX:
            return 0
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, RECEIVED_AT + 8)
    return int.from_bytes(info[RECEIVED_AT:], sys.byteorder)
