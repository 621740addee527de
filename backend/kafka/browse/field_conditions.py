"""Conditions on fields of a record: `$.customer.id = 4242 and headers.region != eu`.

Each condition is a field, an operator and a literal. Conditions are joined by `and`.

- Field: `$` is the value, and `$.customer.id` a field of it, as `json_path` spells paths. `key` and
  `key.id` are the key and a field of it. `headers.region` is a header.
- Operator: `=`, `!=`, `<`, `<=`, `>`, `>=`, `contains`.
- Literal: a number, `true`, `false`, `null`, or a text. A text with spaces needs quotes. In quotes
  everything is text.

This is an evaluator of its own, not a language of others: nothing in a condition or in a record is
run as code, and its time grows with the record's length alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from math import isfinite
from typing import Any, Literal

from topicproof.backend.formats.decoded import DecodedValue
from topicproof.backend.kafka.browse.records import Headers
from topicproof.validators.json_path import parse_path

CONDITIONS_MAX = 8
FILTER_CHARACTERS = 500
DECODED_BYTES_MAX = 4_000_000
"""Bytes of memory that a decoded key, value or header may take. A larger one is unread."""
HEADERS_DECODED_MAX = 5
"""Headers of one name that are decoded. A record may have thousands, each as dear as a value."""
NUMBER_CHARACTERS = 100
"""A longer text in a record is no number."""
EXAMPLE = "$.customer.id = 4242"

Part = Literal["key", "value", "headers"]
Decode = Callable[[Part, bytes, Headers], DecodedValue]
"""Decodes a record's `key` or `value`, or the value of a header (`headers`)."""

_PARTS: Mapping[str, Part] = {"$": "value", "value": "value", "key": "key", "headers": "headers"}
_FIELD = re.compile(
    r"(?P<root>\$|key|value|headers)(?P<path>(?:\['(?:[^'\\]|\\.)*'\]|[^\s=!<>'])*)"
)
_OPERATOR = re.compile(r"\s*(?P<operator>!=|<=|>=|==?|<|>|contains(?=\s))\s*")
_LITERAL = re.compile(r"'(?P<single>[^']*)'|\"(?P<double>[^\"]*)\"|(?P<bare>[^\s'\"]\S*)")
_AND = re.compile(r"\s+and\s+", re.IGNORECASE)
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?")
_ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": lambda content, literal: bool(content < literal),
    "<=": lambda content, literal: bool(content <= literal),
    ">": lambda content, literal: bool(content > literal),
    ">=": lambda content, literal: bool(content >= literal),
}


@dataclass(frozen=True)
class Operand:
    """The right side of a condition."""

    text: str
    is_quoted: bool = False

    @cached_property
    def number(self) -> Decimal | None:
        return None if self.is_quoted else _number(self.text)

    @property
    def is_null(self) -> bool:
        return not self.is_quoted and self.text == "null"

    def equals(self, content: Any) -> bool:
        """Whether an element of JSON is this. A text of digits counts as its number: Avro's
        decimals are texts in JSON."""
        match content:
            case None:
                return self.is_null
            case bool():
                return not self.is_quoted and self.text == json.dumps(content)
            case str() if content == self.text and not self.is_null:
                return True
            case int() | float() | str():
                return self.number is not None and _number(content) == self.number
        return False

    def is_in(self, content: Any) -> bool:
        """Whether a text has this text in it, in upper or lower case, an array has this element, or
        an object has a field of this name."""
        match content:
            case str():
                return self.text.lower() in content.lower()
            case list():
                return any(map(self.equals, content))
            case dict():
                return self.text in content
            case int() | float():
                return self.text in json.dumps(content)
        return False


@dataclass(frozen=True)
class Condition:
    """One comparison of a field with a literal."""

    part: Part
    path: tuple[str | int, ...]
    """Of a header, its name comes first."""
    operator: str
    operand: Operand

    def holds(self, content: Any) -> bool:
        """Whether an element of JSON fits; None is null, and what is missing."""
        if self.operator == "=":
            return self.operand.equals(content)
        if self.operator == "!=":
            return not self.operand.equals(content)
        if self.operator == "contains":
            return self.operand.is_in(content)
        order = _ORDERS[self.operator]
        if self.operand.number is not None:
            number = _number(content)
            return number is not None and order(number, self.operand.number)
        return isinstance(content, str) and order(content, self.operand.text)


def parse_conditions(text: str) -> tuple[Condition, ...]:
    """Parse conditions that are joined by `and`; none from an empty text. Raises ValueError with
    one clause that says what is wrong."""
    if len(text) > FILTER_CHARACTERS:
        raise ValueError(f"it has more than {FILTER_CHARACTERS} characters")
    conditions: list[Condition] = []
    text, at = text.strip(), 0
    while text and not (conditions and at == len(text)):
        if conditions:
            between = _AND.match(text, at)
            if between is None:
                rest = text[at : at + 20].strip()
                raise ValueError(
                    f"{rest!r} follows a condition. Join conditions by and, and put quotes around a"
                    " text with spaces"
                )
            at = between.end()
        if len(conditions) == CONDITIONS_MAX:
            raise ValueError(f"it has more than {CONDITIONS_MAX} conditions")
        condition, at = _condition(text, at)
        conditions.append(condition)
    return tuple(conditions)


def _condition(text: str, at: int) -> tuple[Condition, int]:
    """Parse the condition at a position. Returns it, and where it ends."""
    field = _FIELD.match(text, at)
    if field is None or field["path"][:1] not in ("", ".", "["):
        raise ValueError(
            f"{text[at : at + 20]!r} names no field. Begin with $ for the value, key or headers, as"
            f" in {EXAMPLE}"
        )
    part = _PARTS[field["root"]]
    path = parse_path(f"${field['path']}") if field["path"] else ()
    if part == "headers" and not (path and isinstance(path[0], str)):
        raise ValueError("headers needs the name of a header, as in headers.region")
    operator = _OPERATOR.match(text, field.end())
    if operator is None:
        raise ValueError(f"{field[0]!r} needs an operator behind it: =, !=, <, <=, >, >=, contains")
    literal = _LITERAL.match(text, operator.end())
    if literal is None:
        raise ValueError(
            f"{operator['operator']!r} needs a number or a text behind it. Close its quotes"
        )
    quoted = literal["single"] if literal["single"] is not None else literal["double"]
    operand = Operand(literal["bare"], False) if quoted is None else Operand(quoted, True)
    name = operator["operator"].replace("==", "=")
    return Condition(part, path, name, operand), literal.end()


def all_hold(
    conditions: Sequence[Condition],
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    decode: Decode,
) -> bool | None:
    """Return whether a record fits every condition. None: one asks for a field of a key or value
    that is not decoded, or of a header that is there too often, and none of the others fails."""
    decoded: dict[str, DecodedValue] = {}
    of_headers: dict[str, list[DecodedValue | None]] = {}
    answer: bool | None = True
    for condition in conditions:
        if condition.part == "headers":
            name, *rest = str(condition.path[0]), *condition.path[1:]
            values = [value for other, value in headers if other == name] or [None]
            if rest and name not in of_headers:
                of_headers[name] = [
                    decode("headers", value, ()) if value else None
                    for value in values[:HEADERS_DECODED_MAX]
                ]
            if rest and len(values) > HEADERS_DECODED_MAX:
                answer = None
                continue
            decoded_values = of_headers[name] if rest else [None] * len(values)
            contents = [
                _element(value, content, rest)
                for value, content in zip(values, decoded_values, strict=True)
            ]
        else:
            part, data = condition.part, key if condition.part == "key" else value
            if data is not None and part not in decoded:
                decoded[part] = decode(part, data, headers)
            if data is not None and condition.path and not decoded[part].known:
                answer = None
                continue
            contents = [_element(data, decoded.get(part), condition.path)]
        # A header may be there several times: one of them is enough, and none may be what `!=`
        # names.
        every = all if condition.operator == "!=" else any
        if not every(map(condition.holds, contents)):
            return False
    return answer


def _element(data: bytes | None, content: DecodedValue | None, path: Sequence[str | int]) -> Any:
    """Return the element at a path of a decoded value: None if it is null or missing. Without a
    path, the whole: text, unless it is a number or another single value of a format."""
    if data is None:
        return None
    if content is None or not content.known:
        return None if path else _text(data)
    element = content.value
    if not path and isinstance(element, dict | list):
        return _text(data, content.text)
    for step in path:
        if isinstance(step, str):
            element = element.get(step) if isinstance(element, dict) else None
        else:
            is_there = isinstance(element, list) and step < len(element)
            element = element[step] if is_there else None
    return element


def _text(data: bytes, decoded: str | None = None) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return decoded or "0x" + data.hex()


def _number(content: Any) -> Decimal | None:
    """Return a number, or a text of digits, exactly as it is written; None for anything else."""
    match content:
        case bool():
            return None
        case int():
            return Decimal(content)
        case float() if isfinite(content):
            return Decimal(repr(content))
        case str() if len(content) <= NUMBER_CHARACTERS and _NUMBER.fullmatch(content):
            return Decimal(content)
    return None
