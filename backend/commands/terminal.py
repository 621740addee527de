"""Terminal output of commands: lines, JSON, reports, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Any, NoReturn

from rich.console import Console

from topicproof.backend.errors import EvidenceError, TopicproofError

out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)

UNWINDING_S = 5.0
"""How long an interrupted command may take to leave its calls."""


def emit(json_: str | None, value: Any) -> None:
    """Write JSON to a file, or for `-` to the terminal as the only standard output."""
    if json_ is None:
        return
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    if json_ == "-":
        sys.stdout.write(text + "\n")
        out.quiet = True
        return
    try:
        Path(json_).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise EvidenceError(f"{json_} cannot be written: {error.strerror}.") from error


def say(text: str) -> None:
    """Print a line of progress, with the time."""
    err.print(f"[dim]{datetime.now(UTC):%H:%M:%S}[/] {plain(text)}", highlight=False)


def changed_entry(number: int) -> str:
    """Say that a chain of hashes is broken at an entry."""
    return f"entry {number} was changed, or an entry before it was removed"


def plain(text: str) -> str:
    """Escape square brackets, which Rich would treat as markup."""
    return text.replace("[", r"\[")


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set for a clean end. A second Ctrl-C ends the work at
    once: the process ends after `UNWINDING_S`, even if a call does not return."""
    stop, over = threading.Event(), threading.Event()
    heard = 0

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal heard
        heard += 1
        if heard > 1:
            raise KeyboardInterrupt

    def listen() -> None:
        # Python runs `interrupt` between two steps of the main thread, which may wait in a call of
        # a client for minutes. The kernel's signal arrives here at once.
        with arriving:
            if not arriving.recv(1):
                return
            stop.set()
            say("stopping; the current transaction ends first (Ctrl-C again ends at once)")
            if arriving.recv(1) and not over.wait(UNWINDING_S):
                end_at_once("interrupted", 130)

    arriving, told = socket.socketpair()
    told.setblocking(False)
    before = {number: signal.signal(number, interrupt) for number in (SIGINT, SIGTERM)}
    woken = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    listening = threading.Thread(target=listen, name="signals", daemon=True)
    listening.start()
    try:
        yield stop
    finally:
        over.set()
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        told.close()
        listening.join()


def give_up(error: TopicproofError) -> NoReturn:
    """Print an error, and end this process at once with its exit code."""
    end_at_once(f"[red]{type(error).__name__}[/]: {error}", error.exit_code)


def end_at_once(told: str, code: int) -> NoReturn:
    """Print a sentence and end this process without waiting for anything, as a kill -9 would."""
    err.print(told, highlight=False)
    sys.stdout.flush()
    os._exit(code)


def write_file(path: Path, text: str) -> None:
    """Write a file that the user asked for. Raises EvidenceError if it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EvidenceError(f"{path} cannot be written: {error.strerror}.") from error
