"""A decoded key or value, as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import StrEnum
from math import isfinite
from typing import Any
from uuid import UUID

from msgpack import Timestamp

from topicproof.backend.formats.limits import quoted
from topicproof.backend.formats.registered import SchemaId

PARTS_NAMED = 3
DEPTH_MAX = 100
"""Levels of a value. A page could not show more."""


TWICE = "occurs twice in one object"
DECIMAL_DIGITS_MAX = 10_000
"""A schema may give a decimal a scale of a billion. More digits are written as an exponent."""


class AwkwardPartError(ValueError):
    """A value is asked for a part that cannot be decoded. The message is a clause that names it."""


@dataclass(frozen=True)
class AwkwardPart:
    """A part of a decoded value that cannot be decoded, where the rest can."""

    why: str
    """A clause without its subject, such as `is NaN, which is not a number of JSON`."""
    shown: Any = None
    """What a page shows for it, as JSON. None: neither it nor what it belongs to can be shown."""


class Format(StrEnum):
    """How bytes are written."""

    AVRO = "Avro"
    PROTOBUF = "Protobuf"
    JSON_SCHEMA = "JSON Schema"
    JSON = "JSON"
    MESSAGEPACK = "MessagePack"


@dataclass(frozen=True)
class DecodedValue:
    """Decoded bytes, or why they are not decoded."""

    value: Any = None
    """Objects, arrays, strings, numbers, booleans and null, as `json.loads` returns them."""
    format: Format | None = None
    """None if the bytes are not decoded."""
    schema_id: SchemaId | None = None
    """The id in front of the record or the GUID in its header, also if its schema is unknown."""
    subject: str | None = None
    """The subject of the schema. If there are several, the record's topic decides."""
    version: int | None = None
    """The schema's version in that subject."""
    reason: str | None = None
    """Why the bytes are not decoded, or what the decoded value leaves out. One sentence."""
    is_limited: bool = False
    """Whether they are not decoded because a limit on memory, time or length left them out."""

    @property
    def known(self) -> bool:
        return self.format is not None

    @property
    def text(self) -> str | None:
        """The value as JSON in one line, as searches and exports have it; None if not decoded."""
        return json.dumps(self.value, ensure_ascii=False) if self.known else None

    @property
    def account(self) -> str | None:
        """The origin and the reason together; None if there is nothing to say."""
        return ". ".join(filter(None, (self.origin, self.reason))) or None

    @property
    def origin(self) -> str:
        """Name the format and schema, such as `Avro, schema 3, orders-value version 2`."""
        parts = [] if self.format is None else [self.format.value]
        if self.schema_id is not None:
            parts.append(f"schema {self.schema_id}")
        if self.subject is not None:
            version = "" if self.version is None else f" version {self.version}"
            parts.append(self.subject + version)
        return ", ".join(parts)


def to_json(value: Any) -> Any:
    """As `as_json`, and an AwkwardPartError names the part."""
    try:
        return as_json(value)
    except AwkwardPartError as error:
        named = name_parts(value, lambda part: part.shown is None)
        raise AwkwardPartError(named or str(error)) from error


def name_parts(value: Any, counts: Callable[[AwkwardPart], bool] = lambda _: True) -> str:
    """Return a clause about the parts of a value that cannot be decoded; empty without any."""
    clauses: list[str] = []
    count = 0
    for path, part in _awkward_parts(value):
        if counts(part):
            count += 1
            if count <= PARTS_NAMED:
                # The first step is the one into the list around the whole.
                clauses.append(f"{spell_path(path[1:])} {part.why}")
    more = [f"{count - PARTS_NAMED:,} more"] if count > PARTS_NAMED else []
    return "; ".join([*clauses, *more])


def _awkward_parts(value: Any) -> Iterator[tuple[Sequence[str | int], AwkwardPart]]:
    """Yield each part that cannot be decoded, with its path in `[value]`. The next one changes the
    path."""
    # One path for all: a record may have half a million values, each hundreds of levels deep.
    path: list[str | int] = []
    levels = [_children([value])]
    while levels:
        step, part = next(levels[-1], (None, None))
        del path[len(levels) - 1 :]
        if step is None:
            levels.pop()
            continue
        path.append(step)
        if isinstance(part, AwkwardPart):
            yield path, part
        elif isinstance(part, Mapping | list):
            levels.append(_children(part))


def _children(part: Mapping[Any, Any] | list[Any]) -> Iterator[tuple[str | int, Any]]:
    if isinstance(part, Mapping):
        return ((str(name), inner) for name, inner in part.items())
    return enumerate(part)


def spell_path(path: Sequence[str | int]) -> str:
    """Return the name of a part, such as `the field lines[2].price`."""
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return f"the field {quoted(steps.removeprefix('.'))}" if steps else "the value"


def as_json(value: Any, depth: int = 0) -> Any:
    """Return the value as JSON has it. Bytes become hexadecimal after `0x`, decimals and numbers
    that JSON lacks become strings, times become ISO 8601.

    Raises RecursionError above `DEPTH_MAX` levels, ValueError if two names become the same.
    """
    if depth > DEPTH_MAX:
        raise RecursionError
    match value:
        case None | bool() | int():
            return value
        case str():
            # Half of a surrogate pair, which JSON can spell, is no character of UTF-8.
            return value.encode("utf-8", "replace").decode()
        case float():
            return value if isfinite(value) else str(value)
        case bytes() | bytearray():
            return "0x" + value.hex()
        case datetime() | date() | time():
            return value.isoformat()
        case Timestamp():
            return _moment(value)
        case Mapping():
            return _object(value, depth)
        case AwkwardPart():
            if value.shown is None:
                raise AwkwardPartError(f"a part {value.why}")
            return value.shown
        case list() | tuple() | set():
            return [as_json(item, depth + 1) for item in value]
        case Decimal():
            # Never 1E-8: every other format has its digits.
            return _digits(value)
        case UUID():
            return str(value)
        case _:
            return repr(value)


def _object(value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    named = unique((str(as_json(name)), as_json(value[name], depth + 1)) for name in value)
    if len(named) < len(value):
        twice = next(name for name, content in named.items() if isinstance(content, AwkwardPart))
        raise AwkwardPartError(f"{spell_path([twice])} {named[twice].why}")
    return named


def _digits(value: Decimal) -> str:
    exponent = value.as_tuple().exponent
    if isinstance(exponent, int) and abs(exponent) > DECIMAL_DIGITS_MAX:
        return str(value)
    return format(value, "f")


def _moment(value: Timestamp) -> str:
    """Return a MessagePack time to its last nanosecond. Python's times end at microseconds, and at
    the year 9999."""
    try:
        whole = datetime.fromtimestamp(value.seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{value.seconds}.{value.nanoseconds:09d} s after 1970"
    micros, rest = divmod(value.nanoseconds, 1_000)
    if rest == 0:
        return whole.replace(microsecond=micros).isoformat()
    return f"{whole.replace(tzinfo=None).isoformat()}.{value.nanoseconds:09d}+00:00"


def unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON. A name that occurs twice is an `AwkwardPart`: one of its values
    would be hidden."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            value = AwkwardPart(TWICE)
        values[name] = value
    return values
