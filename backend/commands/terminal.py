"""Terminal output of commands: lines, JSON, reports, Ctrl-C."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from topicproof.backend.commands.show import report_lines
from topicproof.backend.errors import EvidenceError
from topicproof.validators.report import Report

out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)


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
    err.print(f"[dim]{datetime.now(UTC):%H:%M:%S}[/] {text}", highlight=False)


def print_report(report: Report) -> None:
    for line in report_lines(report):
        out.print(line, highlight=False)


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set for a clean end. A second Ctrl-C ends the work at
    once."""
    stop = threading.Event()

    def heard(number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        say(
            "stopping; the current transaction ends first (Ctrl-C again ends at once)"
            if number
            else ""
        )

    before = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def write_file(path: Path, text: str) -> None:
    """Write a file that the user asked for. Raises EvidenceError if it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EvidenceError(f"{path} cannot be written: {error.strerror}.") from error
