"""What strangers write into the dashboard's log: a bounded number of short lines.

Streamlit serves its paths of the login to everybody, and logs what comes with a request: the text
of an error, and a traceback for each code that the provider does not know. uvicorn logs each
request that is no HTTP. So the log of a dashboard could be filled, and its terminal commanded, by
anybody who reaches it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from topicproof.backend.characters import visible

LOGGERS = ("streamlit.web.server.starlette.starlette_auth_routes", "uvicorn.error")
"""They log what strangers send."""
LINES_MAX, LINES_OF_ALL_MAX = 20, 500
"""Lines of one address, and of all addresses, in one period."""
PERIOD_S = 3_600.0
LINE_CHARACTERS_MAX = 300
NO_HTTP = "no HTTP"
"""Stands for the address where uvicorn names none."""

_address: ContextVar[str | None] = ContextVar("address of a stranger", default=None)


@contextmanager
def asked_by(address: str) -> Iterator[None]:
    """Count what is logged in this block among the lines of a stranger's address."""
    token = _address.set(address)
    try:
        yield
    finally:
        _address.reset(token)


@dataclass
class StrangerLines(logging.Filter):
    """Shortens the lines of strangers, and leaves them out once there are too many."""

    now_s: Callable[[], float] = time.monotonic
    lines: dict[str, int] = field(default_factory=dict)
    """Lines of the period by address, of at most `LINES_OF_ALL_MAX` addresses."""
    began_s: float = 0.0

    def __post_init__(self) -> None:
        super().__init__()
        self.began_s = self.now_s()

    def __hash__(self) -> int:
        return id(self)

    def filter(self, record: logging.LogRecord) -> bool:
        address = _address.get()
        if address is None:
            if record.exc_info or record.levelno < logging.WARNING:
                return True  # It is about the dashboard itself.
            address = NO_HTTP
        if self.now_s() - self.began_s >= PERIOD_S:
            self.lines.clear()
            self.began_s = self.now_s()
        if sum(self.lines.values()) >= LINES_OF_ALL_MAX:
            return False
        count = self.lines.get(address, 0) + 1
        if count > LINES_MAX:
            return False
        self.lines[address] = count
        record.msg, record.args = _line(record, address, count), None
        record.exc_info = record.exc_text = record.stack_info = None
        return True


def bound_lines() -> None:
    """Bound what strangers write into the log of this process."""
    lines = StrangerLines()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(lines)


def _line(record: logging.LogRecord, address: str, count: int) -> str:
    text = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        text += f" {type(error).__name__}: {error}"
    text = visible(text[:LINE_CHARACTERS_MAX])[:LINE_CHARACTERS_MAX]
    last = " Further lines of this address are left out for an hour." if count == LINES_MAX else ""
    return f"{visible(address)}: {text}{last}"
