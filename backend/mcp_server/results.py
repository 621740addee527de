"""What an agent gets: names without a character that nobody sees, in pages of a bounded size.

Topics, transactional ids, groups and records are named and written by others. They are values in
fields of JSON, and no text of ours is made longer or shorter by them: what is left out is said.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from typing import Any

from topicproof.backend.characters import visible, visible_lines
from topicproof.backend.errors import TopicproofError, UsageError
from topicproof.validators.sentences import counted

RESULT_BYTES_MAX = 100_000
"""Of a result as JSON."""
ROW_BYTES_MAX = 20_000
"""Of one row of a list."""
TEXT_CHARACTERS_MAX = 2_000
"""Of a text in a result. Sentences and names of ours are shorter."""
ROWS, ROWS_MAX = 50, 500
"""Rows of a list: without a limit, and with the largest one."""
DIGITS_MAX = 9
"""Of a cursor."""

LINES_CHARACTERS_MAX = 10_000
"""Of a text of several lines."""

Document = dict[str, Any]


class Lines(str):
    """A text of several lines, such as a contract, that is clean and short enough."""

    __slots__ = ()

    @classmethod
    def of(cls, text: str) -> Lines:
        return cls(_cut(visible_lines(text), LINES_CHARACTERS_MAX))


@dataclass(frozen=True)
class Page:
    """A part of a list."""

    items: list[Document]
    total: int
    """Rows of the whole list."""
    next_cursor: str | None
    """Give it back as `cursor` for the rows that follow; null after the last one."""
    notes: list[str]
    """What was not answered or left out, a sentence each."""


def page_of(
    rows: Sequence[Mapping[str, Any]], limit: int, cursor: str | None, notes: Sequence[str] = ()
) -> Page:
    """Return rows from a cursor on: at most `limit`, and as many as fit into a result. Raises
    UsageError for a cursor that is none."""
    begin = _position(cursor)
    items: list[Document] = []
    sentences = [cleaned(note) for note in notes]
    size = sum(map(size_of, sentences))
    for row in rows[begin : begin + limit]:
        item, left_out = bounded(cleaned(row), ROW_BYTES_MAX)
        size += size_of(item)
        if items and size > RESULT_BYTES_MAX:
            break
        items.append(item)
        sentences += left_out
    reached = begin + len(items)
    rest = max(0, len(rows) - reached)
    if rest:
        sentences.append(f"{counted(rest, 'row')} follow: ask again with cursor {reached}.")
    return Page(items, len(rows), str(reached) if rest else None, sentences)


def document_of(fields: Mapping[str, Any]) -> Document:
    """Return a document in at most `RESULT_BYTES_MAX` bytes, with a list `left_out` of sentences.
    Raises TopicproofError if it has no list that can be made shorter."""
    document, left_out = bounded(cleaned(fields), RESULT_BYTES_MAX)
    return {**document, "left_out": left_out}


def cleaned(value: Any) -> Any:
    """Return a value for JSON. A time without a zone is UTC. In its texts, each character without a
    shape is spelled out, as `\\x1b`, and a long text is cut."""
    match value:
        case None | bool() | int():
            return value
        case Lines():
            return str(value)
        case float():
            return value if isfinite(value) else None
        case datetime():
            return f"{value.isoformat()}{'' if value.tzinfo else 'Z'}"
        case Mapping():
            return {visible(str(name)): cleaned(each) for name, each in value.items()}
        case list() | tuple():
            return [cleaned(each) for each in value]
        case set() | frozenset():
            return sorted(cleaned(each) for each in value)
    return _cut(visible(str(value)), TEXT_CHARACTERS_MAX)


def bounded(document: Document, bytes_max: int) -> tuple[Document, list[str]]:
    """Return a cleaned document whose longest lists are cut until it fits, and a sentence about
    each. Raises TopicproofError if it does not fit without any entry."""
    size = size_of(document)
    if size <= bytes_max:
        return document, []
    document = json.loads(json.dumps(document))
    lengths: dict[str, int] = {}
    while size > bytes_max:
        lists = [each for each in _lists("", document) if each[1]]
        if not lists:
            raise TopicproofError(
                f"The answer has {size:,} bytes, and an agent gets at most {bytes_max:,}. Ask for"
                " less, or use the command line."
            )
        # Of a list and the one in it that makes it long, the inner one: its entries are smaller.
        largest = max(size_of(each) for _, each in lists)
        path, longest = [each for each in lists if 2 * size_of(each[1]) > largest][-1]
        lengths.setdefault(path, len(longest))
        del longest[len(longest) // 2 :]
        size = size_of(document)
    lengths_now = {path: len(each) for path, each in _lists("", document)}
    return document, [
        f"{path}: {lengths_now.get(path, 0):,} of {counted(length, 'entry', 'entries')} are here."
        for path, length in lengths.items()
    ]


def size_of(value: Any) -> int:
    """Return the bytes of a value as JSON."""
    return len(json.dumps(value, ensure_ascii=False, default=str).encode(errors="replace"))


def _cut(text: str, characters_max: int) -> str:
    return text if len(text) <= characters_max else f"{text[: characters_max - 1]}…"


def _lists(path: str, value: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield the lists of a document with their paths, such as `lags[].partitions`."""
    match value:
        case dict():
            for name, each in value.items():
                yield from _lists(f"{path}.{name}".lstrip("."), each)
        case list():
            yield path, value
            for number, each in enumerate(value):
                yield from _lists(f"{path}[{number}]", each)


def _position(cursor: str | None) -> int:
    if not cursor:
        return 0
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= DIGITS_MAX):
        raise UsageError("The cursor is none of ours. Give back next_cursor of the page before it.")
    return int(cursor)
