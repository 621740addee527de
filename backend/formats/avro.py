"""Avro's binary form, without the header of a file."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any

from fastavro import parse_schema, schemaless_reader
from fastavro.read import LOGICAL_READERS

from topicproof.backend.formats.avro_sizes import AvroSizes
from topicproof.backend.formats.decoded import AwkwardPart, as_json, name_parts
from topicproof.backend.formats.limits import VALUE_BYTES_MAX, quoted, require_size


class AvroSchema:
    """A parsed schema of Avro. Raises ValueError if it is no such schema, RecursionError if its
    types are nested too deeply."""

    def __init__(self, text: str, references: Iterable[str] = ()) -> None:
        """`references` are the texts of schemas whose types it names, each after those that it
        needs itself."""
        self.text = text
        self._texts = (*references, text)
        require_size(text, dict(enumerate(self._texts[:-1])))
        named: dict[str, Any] = {}
        try:
            self._parsed = _parsed(self._texts, named)
            self._sizes = AvroSizes(self._parsed, named)
        except RecursionError:
            raise
        except Exception as error:  # fastavro's own errors have no common class
            raise ValueError(f"fastavro does not read the schema ({quoted(error)})") from error
        self._lenient: Any = None
        """The schema as it reads what its logical types cannot express; None before it is needed"""
        self._bytes = self._parsed == "bytes" or (
            isinstance(self._parsed, dict) and self._parsed.get("type") == "bytes"
        )
        """Confluent's serialisers write a schema of bytes alone as it is, without its length."""

    def read(self, data: bytes, limit: int = VALUE_BYTES_MAX) -> tuple[Any, str | None]:
        """Return the value as fastavro does, and what it leaves out. Every byte belongs to it. A
        part beyond its logical type, such as a time after the year 9999, is an `AwkwardPart`.

        Raises TooLargeError for values that take more than `limit` bytes of memory, ValueError for
        truncated or broken bytes, RecursionError if it is nested too deeply.
        """
        if self._bytes:
            return data, None
        self._sizes.require(data, limit)
        source = io.BytesIO(data)
        left = None
        try:
            value = schemaless_reader(source, self._parsed, None)
        except RecursionError:
            raise
        except Exception as error:  # broken bytes raise nearly anything
            source.seek(0)
            value = self._in_parts(source, error)
            named = name_parts(value)
            left = f"{named[:1].upper()}{named[1:]}."
        rest = len(data) - source.tell()
        if rest:
            raise ValueError(f"{rest:,} bytes follow the value")
        return value, left

    def _in_parts(self, source: io.BytesIO, why: Exception) -> Any:
        """Return a value with what is beyond its logical type set apart. Raises ValueError if that
        is not the reason."""
        try:
            if self._lenient is None:
                texts = [json.dumps(_renamed(_loaded(text))) for text in self._texts]
                self._lenient = _parsed(texts, {})
            value = schemaless_reader(source, self._lenient, None)
        except Exception as error:
            raise ValueError(_why(why)) from error
        if not name_parts(value):
            raise ValueError(_why(why)) from why
        return value


def _parsed(texts: Iterable[str], named: dict[str, Any]) -> Any:
    """Parse schemas in their order, and return the last one."""
    parsed: Any = None
    for text in texts:
        parsed = parse_schema(_unparsed(_loaded(text)), named_schemas=named)
    return parsed


def _unparsed(schema: Any) -> Any:
    """Return a schema without fastavro's marks of a parsed one, which would be trusted unseen."""
    if isinstance(schema, list):
        return [_unparsed(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _unparsed(part) for name, part in schema.items() if name not in _MARKS}


_MARKS = ("__fastavro_parsed", "__named_schemas")
_PREFIX = "topicproof-"


def _renamed(schema: Any) -> Any:
    """Return a schema whose logical types are those of `_LENIENT`."""
    if isinstance(schema, list):
        return [_renamed(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    renamed = {name: _renamed(value) for name, value in schema.items()}
    if isinstance(kind := schema.get("logicalType"), str):
        renamed["logicalType"] = _PREFIX + kind
    return renamed


_DECIMAL_BITS_MAX = 13_300
"""4,000 digits. The time of a conversion grows with their square."""


def _decimal(data: bytes, schema: Any, _reader: Any = None) -> Decimal:
    """Return a decimal. fastavro would round one with more digits than its precision, so that
    different values become the same. Raises ValueError."""
    number = int.from_bytes(data, "big", signed=True)
    if number.bit_length() > _DECIMAL_BITS_MAX:
        raise ValueError(f"it has {number.bit_length():,} bits, {_DECIMAL_BITS_MAX:,} are allowed")
    value = Decimal(number)
    precision, scale = schema["precision"], schema.get("scale") or 0
    if value.adjusted() >= precision:
        raise ValueError(f"it has {value.adjusted() + 1:,} digits, its precision is {precision:,}")
    return value.scaleb(-scale, _EXACT)


_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
LOGICAL_READERS.update({"bytes-decimal": _decimal, "fixed-decimal": _decimal})


def _lenient_reader(kind: str, read: Callable[..., Any]) -> Callable[..., Any]:
    def reader(data: Any, *schemas: Any) -> Any:
        try:
            return read(data, *schemas)
        except Exception as error:
            json_value = as_json(data)
            return AwkwardPart(
                f"is {quoted(json_value)}, which is no {kind} ({quoted(error)})", json_value
            )

    return reader


LOGICAL_READERS.update(
    {
        f"{base}-{_PREFIX}{kind}": _lenient_reader(kind, read)
        for (base, _, kind), read in [
            (name.partition("-"), read) for name, read in [*LOGICAL_READERS.items()]
        ]
    }
)


def _loaded(text: str) -> Any:
    """Return the schema's JSON; the bare name of a type is one, too."""
    text = text.strip()
    return json.loads(text) if text.startswith(("{", "[", '"')) else text


def _why(error: Exception) -> str:
    text = quoted(error)
    return "the bytes end too early" if isinstance(error, EOFError) or not text else text
