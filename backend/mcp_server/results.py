"""What an agent gets: names without a character that nobody sees, in pages of a bounded size.

Topics, transactional ids, groups and records are named and written by others. They are values in
fields of JSON, and no text of ours is made longer or shorter by them: what is left out is said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
TEXT_CHARACTERS_MAX = 6_000
"""Of a text in a result: room for two names of 249 characters that are each spelled with ten, and
for our words around them."""
NAME_CHARACTERS_MAX = 100
"""Of a name within a sentence that has many."""
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
        # What is cut off is not spelled: a spelled text is never shorter.
        spelled = visible_lines(text[: LINES_CHARACTERS_MAX + 1])
        return cls(_cut(spelled, LINES_CHARACTERS_MAX))


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
        item, left_out = bounded(row, ROW_BYTES_MAX)
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
    document, left_out = bounded(fields, RESULT_BYTES_MAX)
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
    return _spelled(str(value), TEXT_CHARACTERS_MAX)


def in_sentence(name: str) -> str:
    """Return a name for a sentence, spelled and short, so that it hides none of our words."""
    return _spelled(name, NAME_CHARACTERS_MAX)


@dataclass(eq=False)
class _List:
    """A list of a document, with the bytes of each entry as JSON."""

    path: str
    """Such as `lags[3].partitions`."""
    entries: list[Any]
    outer: _List | None
    position: int
    """Of the entry of `outer` that holds it."""
    sizes: list[int] = field(default_factory=list)

    @property
    def size(self) -> int:
        return 2 + sum(self.sizes) + 2 * max(0, len(self.sizes) - 1)

    @property
    def is_left(self) -> bool:
        """Whether no list around it was cut before it."""
        return self.outer is None or (self.position < len(self.outer.sizes) and self.outer.is_left)

    def halve(self) -> int:
        """Drop the second half. Return by how many bytes the document is smaller."""
        before = self.size
        half = len(self.entries) // 2
        del self.entries[half:], self.sizes[half:]
        fewer = before - self.size
        inner = self
        while inner.outer is not None:
            inner.outer.sizes[inner.position] -= fewer
            inner = inner.outer
        return fewer


def bounded(fields: Mapping[str, Any], bytes_max: int) -> tuple[Document, list[str]]:
    """Return fields as a cleaned document whose longest lists are cut until it fits, and a sentence
    about each. Raises TopicproofError if it does not fit without any entry."""
    lengths: dict[str, int] = {}
    document: Document = cleaned(_cut_early("", fields, bytes_max, lengths))
    lists: list[_List] = []
    size = _measured("", document, None, 0, lists)
    while size > bytes_max:
        lists = [each for each in lists if each.is_left]
        sizes = [each.size if each.sizes else 0 for each in lists]
        if not any(sizes):
            raise TopicproofError(
                f"The answer has {size:,} bytes, and an agent gets at most {bytes_max:,}. Ask for"
                " less, or use the command line."
            )
        # Of a list and the one in it that makes it long, the inner one: its entries are smaller.
        largest = max(sizes)
        longest = [
            each for each, size_now in zip(lists, sizes, strict=True) if 2 * size_now > largest
        ][-1]
        lengths.setdefault(longest.path, len(longest.entries))
        size -= longest.halve()
    lengths_now = {each.path: len(each.entries) for each in lists if each.is_left}
    return document, [
        f"{path}: {lengths_now[path]:,} of {counted(length, 'entry', 'entries')} are here."
        for path, length in lengths.items()
        if path in lengths_now
    ]


def _cut_early(path: str, value: Any, bytes_max: int, lengths: dict[str, int]) -> Any:
    """Return a value without the entries of lists that cannot fit, however short the others are.
    What is made of an entry later then costs by the size of the answer."""
    match value:
        case Mapping():
            return {
                name: _cut_early(f"{path}.{name}".lstrip("."), each, bytes_max, lengths)
                for name, each in value.items()
            }
        case list() | tuple():
            size, entries = 0, []
            for number, each in enumerate(value):
                size += _size_min(each)
                if size > bytes_max:
                    lengths[path] = len(value)
                    break
                entries.append(_cut_early(f"{path}[{number}]", each, bytes_max, lengths))
            return entries
    return value


def _size_min(value: Any) -> int:
    """Return a number of bytes that a value has at least as JSON, however much its lists are cut.
    A character that nobody sees takes several."""
    match value:
        case Mapping():
            return sum(len(str(name)) + 4 + _size_min(each) for name, each in value.items())
        case str():
            return len(_spelled(value, TEXT_CHARACTERS_MAX)) + 2
    return 1


def _measured(path: str, value: Any, outer: _List | None, position: int, lists: list[_List]) -> int:
    """Return the bytes of a value, and add the lists in it, each before those that it holds."""
    match value:
        case dict():
            if any(isinstance(each, (dict, list)) for each in value.values()):
                parts = (
                    size_of(name)
                    + 4
                    + _measured(f"{path}.{name}".lstrip("."), each, outer, position, lists)
                    for name, each in value.items()
                )
                return sum(parts)
        case list():
            measured = _List(path, value, outer, position)
            lists.append(measured)
            measured.sizes = [
                _measured(f"{path}[{number}]", each, measured, number, lists)
                for number, each in enumerate(value)
            ]
            return measured.size
    return size_of(value)


def size_of(value: Any) -> int:
    """Return the bytes of a value as JSON."""
    return len(json.dumps(value, ensure_ascii=False, default=str).encode(errors="replace"))


def _spelled(text: str, characters_max: int) -> str:
    """Return a text with what nobody sees spelled out, and no longer than this."""
    # What is cut off is not spelled: a spelled text is never shorter.
    return _cut(visible(text[: characters_max + 1]), characters_max)


def _cut(text: str, characters_max: int) -> str:
    return text if len(text) <= characters_max else f"{text[: characters_max - 1]}…"


def _position(cursor: str | None) -> int:
    if not cursor:
        return 0
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= DIGITS_MAX):
        raise UsageError("The cursor is none of ours. Give back next_cursor of the page before it.")
    return int(cursor)
