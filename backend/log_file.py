"""The log file of a command: what client libraries and Python log, and tracebacks.

Nothing of it goes to the terminal. Each line is one record, and control characters are spelled out.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from topicproof.backend.characters import visible, visible_lines

FOLDER, NAME = "logs", "topicproof.log"
RUN_LOG = "client.log"
"""The log in a run's folder."""
BYTES_MAX = 10_000_000
"""A larger log is begun again; the one before it is kept as `NAME.1`."""
END_BYTES = 64_000
"""Bytes that are read of a log to show its last lines."""
NOT_PLAIN = "It is not read: it is a link, a pipe or a device."


class LogFile(logging.Handler):
    """Appends each record to a file that only this user may read. The file and its folder are made
    for the first record. A disk that is full costs the record, never the command."""

    def __init__(self, path: Callable[[], Path]) -> None:
        super().__init__()
        self.path = path
        self.lost: Exception | None = None
        """Why the last record could not be written."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            append(self.path(), f"{self.format_line(record)}\n")
        except Exception as error:
            # A log must not end what it tells about, and logging's own answer is the terminal.
            self.lost = error

    def format_line(self, record: logging.LogRecord) -> str:
        """Return one line, and below it the traceback if there is one."""
        formatter = logging.Formatter()
        head = f"{formatter.formatTime(record)} {record.process} {record.levelname}"
        line = f"{head} {visible(record.name)}: {visible(record.getMessage())}"
        if record.exc_info:
            line += f"\n{visible_lines(formatter.formatException(record.exc_info))}"
        return line


def append(path: Path, text: str) -> None:
    """Append to a log. Raises OSError."""
    with opened(path) as file:
        file.write(text)


def opened(path: Path) -> IO[str]:
    """Open a log to append to it. Raises OSError, also for a pipe and for another user's file."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > BYTES_MAX:
        path.replace(path.with_name(f"{path.name}.1"))
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "it is no file of this user", str(path))
    return os.fdopen(descriptor, "a", encoding="utf-8")


def end_of(path: Path, since: int = 0) -> list[str]:
    """Return the last lines of a log after byte `since`, from `END_BYTES` at most: what writes it
    may write gigabytes, and people may look every few seconds. Empty if there is no such file; one
    sentence in place of a file that is not plain, and could keep its reader for ever."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return []
    except OSError:
        return [NOT_PLAIN]
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        return [NOT_PLAIN]
    begin = max(since, status.st_size - END_BYTES)
    with os.fdopen(descriptor, "rb") as file:
        file.seek(begin)
        lines = file.read(END_BYTES).decode(errors="replace").splitlines()
    # The first line of a part is the end of one.
    return lines[1:] if begin > since and len(lines) > 1 else lines


@contextmanager
def logged_to(path: Callable[[], Path]) -> Iterator[None]:
    """Send what Python and client libraries log to a file while the block runs."""
    root, handler = logging.getLogger(), LogFile(path)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


@contextmanager
def error_output() -> Iterator[IO[str] | None]:
    """Yield where a child process writes its errors: the log of what runs here. None, so this
    process's own errors, if it has no log, as a worker of Spark. Raises OSError."""
    handlers = [handler for handler in logging.getLogger().handlers if isinstance(handler, LogFile)]
    if not handlers:
        yield None
        return
    with opened(handlers[-1].path()) as file:
        yield file


@contextmanager
def errors_logged() -> Iterator[None]:
    """Log warnings, and tracebacks of threads and finalizers, while the block runs. Python writes
    them to the terminal. Hooks that somebody else has set, such as pytest, remain."""
    log = logging.getLogger("topicproof")
    before = threading.excepthook, sys.unraisablehook

    def of_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit and args.exc_value is not None:
            name = args.thread.name if args.thread else "?"
            log.error("the thread %s failed", name, exc_info=args.exc_value)

    def of_finalizer(args: sys.UnraisableHookArgs) -> None:
        log.error("%s in %r", args.err_msg or "ignored", args.object, exc_info=args.exc_value)

    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = of_thread
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = of_finalizer
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        threading.excepthook, sys.unraisablehook = before


def traceback_of(error: BaseException) -> str:
    """Return the traceback as text for a log, without control characters."""
    return visible_lines("".join(traceback.format_exception(error)))
