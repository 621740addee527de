"""A decoded key or value, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import StrEnum
from math import isfinite
from typing import Any
from uuid import UUID

from msgpack import Timestamp

DEPTH_MAX = 100
"""Levels of a value. A page could not show more."""


class Format(StrEnum):
    """How bytes are written."""

    AVRO = "Avro"
    PROTOBUF = "Protobuf"
    JSON_SCHEMA = "JSON Schema"
    JSON = "JSON"
    MESSAGEPACK = "MessagePack"


@dataclass(frozen=True)
class Decoded:
    """Decoded bytes, or why they are not decoded."""

    value: Any = None
    """Objects, arrays, strings, numbers, booleans and null, as `json.loads` returns them."""
    format: Format | None = None
    """None if the bytes are not decoded."""
    schema_id: int | None = None
    """The id in front of the record, also if its schema is unknown."""
    subject: str | None = None
    """The subject of the schema. If there are several, the record's topic decides."""
    version: int | None = None
    """The schema's version in that subject."""
    reason: str | None = None
    """Why the bytes are not decoded, or what the decoded value leaves out. One sentence."""

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
            return unique((str(as_json(one)), as_json(value[one], depth + 1)) for one in value)
        case list() | tuple() | set():
            return [as_json(each, depth + 1) for each in value]
        case Decimal():
            # Never 1E-8: every other format has its digits.
            return format(value, "f")
        case UUID():
            return str(value)
        case _:
            return repr(value)


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
    """Return an object of JSON. Raises ValueError if a name occurs twice: one of its values would
    be hidden."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError("a name occurs twice in one object")
        found[name] = value
    return found
