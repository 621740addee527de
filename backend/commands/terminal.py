"""Terminal output of commands: lines, tables, documents, JSON, errors, Ctrl-C.

Only this module writes to the terminal; a test forbids it everywhere else. Everything on the
terminal is a sequence of pieces: texts, and texts with a style. A piece is never markup, so no data
can colour, link or end a line. In each piece, every control character, line break and invisible
character is spelled out, as `\\x1b` or `\\u202e` (`backend/characters.py`). So a line of ours is
one line, whatever names are in it, and only this module starts another.

On a terminal, the rest of a long line is indented below it, and so are tables whose cells wrap: no
name that is long enough to wrap looks like a line of ours. Terminals disagree about the columns of
a character, so each is taken for as wide as any terminal draws it.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import stat
import sys
import threading
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import IO, Any, Literal, NamedTuple, NoReturn

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable
from rich.text import Text

from topicproof.backend.characters import visible, visible_json, visible_lines, without_commands
from topicproof.backend.errors import ContractError, EvidenceError, TopicproofError

UNWINDING_S = 5.0
"""How long an interrupted command may take to leave its calls."""
TABLE_INDENT = 1
HANGING_INDENT = 4
"""Columns by which the rest of a long line is indented, on a terminal."""

Style = Literal[
    "", "bold", "dim", "green", "red", "yellow", "bold green", "bold red", "bold yellow"
]


class Styled(NamedTuple):
    """A text with a style. The text is data, never markup."""

    text: str
    style: Style


Piece = str | Styled
Line = tuple[Piece, ...]


@dataclass
class Table:
    """Rows of pieces below a line of names."""

    columns: Sequence[str]
    """Names of ours, which may have two lines."""
    words: Collection[str] | None = None
    """The columns of words, which are left-aligned and wrap. All others are numbers, on the right,
    and never wrap. None: every column is left-aligned, and each row is one line."""
    rows: list[Sequence[Piece]] = field(default_factory=list)

    def add(self, *cells: Piece) -> None:
        self.rows.append(cells)


class _Console(Console):
    """A console that goes on in silence when its reader has left, as `head` does. Rich would end
    the process with exit code 1, which is the code of a violated guarantee."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        silence(sys.stderr if self.stderr else sys.stdout)


class Terminal:
    """One of the two streams that people read."""

    def __init__(
        self,
        *,
        stderr: bool = False,
        file: IO[str] | None = None,
        width: int | None = None,
        is_terminal: bool | None = None,
    ) -> None:
        """The last three are for another file than the process's stream: its columns, and whether
        it takes colours."""
        self.console = _Console(
            stderr=stderr,
            file=file,
            width=width,
            force_terminal=is_terminal,
            markup=False,
            highlight=False,
            emoji=False,
        )
        self._fixed_width = width is not None

    @property
    def wraps(self) -> bool:
        """Whether long lines are wrapped here. In a pipe, a line is a line."""
        return self._fixed_width or self.console.is_terminal

    @property
    def quiet(self) -> bool:
        return self.console.quiet

    @quiet.setter
    def quiet(self, is_quiet: bool) -> None:
        self.console.quiet = is_quiet

    def line(self, *pieces: Piece) -> None:
        """Write one line."""
        self._row(_text(pieces))

    def lines(self, lines: Iterable[Line]) -> None:
        for pieces in lines:
            self.line(*pieces)

    def command(self, line: str) -> None:
        """Write a command for the runner of a CI job (`backend/evidence/annotations.py`)."""
        self.console.print(Text(visible(line)), soft_wrap=True)

    def blank(self) -> None:
        """Write an empty line."""
        self._print(Text())

    def document(self, text: str) -> None:
        """Write a text of several lines, such as a contract."""
        self._print(Text(visible_lines(text).removesuffix("\n")))

    def table(self, table: Table) -> None:
        """Write a table; without rows, its names alone."""
        grid = RichTable(box=None, pad_edge=False)
        for name in table.columns:
            is_left, wraps = (True, False) if table.words is None else (name in table.words,) * 2
            grid.add_column(
                Text(visible_lines(name)),
                justify="left" if is_left else "right",
                no_wrap=not wraps,
                overflow="fold",
            )
        for row in table.rows:
            grid.add_row(*(_text((cell,)) for cell in row))
        # Cells that wrap are indented: no row of one may look like a line.
        indent = 0 if table.words is None else TABLE_INDENT
        padded = Padding(grid, (0, 0, 0, indent), expand=False)
        # A cell may be cut anywhere, so a runner's command is looked for in the rows.
        for parts in self.console.render_lines(padded, pad=False):
            self._row(Text.assemble(*((part.text, part.style or "") for part in parts)))

    def error(self, error: Exception) -> None:
        """Write an error and the kind of it. Every line but its first is indented."""
        self.failure(type(error).__name__, *_sentences(error))

    def failure(self, kind: str, *sentences: str) -> None:
        first, *rest = [line for sentence in sentences for line in sentence.split("\n")] or [""]
        self.line(Styled(kind, "red"), f": {first}")
        for line in rest:
            self.line(f"  {line}")

    def json(self, value: str) -> None:
        """Write a JSON document."""
        self.console.print(Text(visible_json(value)), soft_wrap=True)

    def _row(self, text: Text) -> None:
        """Write a row. On a terminal that is narrower, its rest is indented below it."""
        width = self.console.width
        if self.wraps and _columns(text.plain) > width > 2 * HANGING_INDENT:
            # A row that begins at the left is always the start of a line.
            indent = min(_indent(text) + HANGING_INDENT, width // 2)
            rows = _wrapped(text, width, width - indent)
            text = Text(f"\n{' ' * indent}").join(rows)
        self._print(text)

    def _print(self, text: Text) -> None:
        self.console.print(_inert(text), soft_wrap=True)


out = Terminal()
err = Terminal(stderr=True)


def _text(pieces: Iterable[Piece]) -> Text:
    """Return the pieces as one line."""
    text = Text()
    for piece in pieces:
        if isinstance(piece, Styled):
            text.append(visible(piece.text), piece.style)
        else:
            text.append(visible(piece))
    return text


def _inert(text: Text) -> Text:
    """Return a text in which a runner of CI sees no command."""
    inert = without_commands(text.plain)
    # Styles have offsets, which a longer text would move. Such a line is worth no colour.
    return text if inert == text.plain else Text(inert)


def _columns(text: str) -> int:
    return len(text) if text.isascii() else sum(map(columns_of, text))


@lru_cache(maxsize=4096)
def columns_of(letter: str) -> int:
    """Return the most columns in which a terminal draws a character. Rich takes the modifiers of
    emoji and many marks of Indian scripts for 0; terminals draw them in 1 or 2."""
    is_wide = (
        unicodedata.east_asian_width(letter) in ("W", "F")
        # Unassigned ones and those of private use are as wide as a font makes them.
        or unicodedata.category(letter) in ("Cn", "Co")
        # Numbers in a circle on a black square: 2 in glibc.
        or "\u3248" <= letter <= "\u324f"
    )
    return 2 if is_wide else max(1, cell_len(letter))


def _wrapped(text: Text, width: int, width_of_rest: int) -> Iterator[Text]:
    """Cut a text at blanks, or inside a word that is longer than a row. Widths are in columns."""
    plain, begin = text.plain, 0
    while begin < len(plain):
        end, room = begin, width
        while end < len(plain) and (room := room - columns_of(plain[end])) >= 0:
            end += 1
        word = begin + len(plain[begin:end]) - len(plain[begin:end].lstrip(" "))
        blank = plain.rfind(" ", word, end + 1) if end < len(plain) else -1
        cut = end if blank == -1 else min(blank + 1, end)
        yield text[begin:cut]
        begin, width = cut, width_of_rest
        while begin < len(plain) and plain[begin] == " ":
            begin += 1


def _indent(text: Text) -> int:
    return len(text.plain) - len(text.plain.lstrip(" "))


def plain_text(pieces: Iterable[Piece]) -> str:
    """Return a line without its styles, for a message."""
    return _text(pieces).plain


def _sentences(error: Exception) -> Sequence[str]:
    # Each mistake of a contract may name what its author wrote.
    return error.sentences if isinstance(error, ContractError) else (str(error),)


def silence(stream: Any) -> None:
    """Let a stream whose reader has left go nowhere, so that nothing fails when it is flushed."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    finally:
        os.close(nowhere)


def as_json(value: Any) -> str:
    """Return a value as a JSON document without a control character or an invisible one."""
    return visible_json(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def emit(json_: str | None, value: Any) -> None:
    """Write JSON to a file, or for `-` to the terminal as the only standard output."""
    if json_ is None:
        return
    text = as_json(value)
    if json_ == "-":
        out.json(text)
        out.quiet = True
        return
    write_file(Path(json_), text + "\n")


def say(text: str) -> None:
    """Print a line of progress, with the time."""
    err.line(Styled(f"{datetime.now(UTC):%H:%M:%S}", "dim"), f" {text}")


@contextmanager
def progress_bar(name: str, total: int, completed: int) -> Iterator[Callable[[], None]]:
    """Show a bar while the block runs. Yields what moves it on by one."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err.console) as bar:
        task = bar.add_task(visible(name), total=total, completed=completed)
        yield lambda: bar.advance(task)


def changed_entry(number: int) -> str:
    """Say that a chain of hashes is broken at an entry."""
    return f"entry {number} was changed, or an entry before it was removed"


@contextmanager
def stopping(unit: str = "transaction") -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set for a clean end. A second Ctrl-C ends the work at
    once: the process ends after `UNWINDING_S`, even if a call does not return. `unit`: what is done
    to its end before."""
    stop, over = threading.Event(), threading.Event()
    interrupts = 0

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1:
            raise KeyboardInterrupt

    def listen() -> None:
        # Python runs `interrupt` between two steps of the main thread, which may wait in a call of
        # a client for minutes. The kernel's signal arrives here at once.
        with arriving:
            if not arriving.recv(1):
                return
            stop.set()
            say(f"stopping; the current {unit} ends first (Ctrl-C again ends at once)")
            if arriving.recv(1) and not over.wait(UNWINDING_S):
                err.line("interrupted")
                end_at_once(130)

    arriving, wakeup = socket.socketpair()
    wakeup.setblocking(False)
    before = {number: signal.signal(number, interrupt) for number in (SIGINT, SIGTERM)}
    woken = signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
    listening = threading.Thread(target=listen, name="signals", daemon=True)
    listening.start()
    try:
        yield stop
    finally:
        over.set()
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        wakeup.close()
        listening.join()


def give_up(error: TopicproofError) -> NoReturn:
    """Print an error, and end this process at once with its exit code."""
    err.error(error)
    end_at_once(error.exit_code)


def end_at_once(code: int) -> NoReturn:
    """End this process without waiting for anything, as a kill -9 would."""
    sys.stdout.flush()
    os._exit(code)


def write_file(path: Path, text: str, *, append: bool = False) -> None:
    """Write a file that the user asked for, or append to it. Others may write its folder, so it is
    written past no link, except those of the system, such as `/dev/stdout`. Raises EvidenceError if
    it cannot be written."""
    is_own_link = path.is_relative_to("/dev")
    flags = os.O_WRONLY | os.O_CREAT | (0 if is_own_link else os.O_NOFOLLOW)
    flags |= os.O_APPEND if append else os.O_TRUNC
    try:
        with os.fdopen(os.open(path, flags, 0o666), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise EvidenceError(f"{path} cannot be written: {why}.") from error


def end_of_file(path: Path, size: int) -> bytes:
    """Return the last bytes of a regular file that `write_file` appends to; nothing of any other
    one, and of one that cannot be read."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return b""
            file.seek(max(0, status.st_size - size))
            return file.read(size)
    except OSError:
        return b""
