"""Payloads that some roles do not see: fields of keys and values, and headers, by topic.

    masks:
      - topics: payments-*
        fields: [value.card.number, header.token, key]
        shown_to: [admin]

`key`, `value` and `headers` are masked as a whole. A field inside is masked in JSON; a key or value
that is no JSON object, such as Avro, is then masked as a whole, so that nothing slips through. So
is a document of more than `VALUES_MAX` values, and a text or number in place of an object that
would hold the field. A name with dots counts as a path.

Several topics judged as one have a joined name: `orders + payments`. The rules of each topic apply.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from topicproof.backend.trust.identity import Identity, Role
from topicproof.validators.finding import JOINED_BY
from topicproof.validators.lineage.compact import COMPACT_HEADER
from topicproof.validators.lineage.headers import LINEAGE_HEADER, TRANSACTION_HEADER

MASKED = b"(masked)"
BYTES_MAX, VALUES_MAX = 4_000_000, 50_000
"""Of a JSON document in which fields are masked. A larger one is masked as a whole: as Python
objects it would take fifty times its bytes, and seconds for each page."""
WHOLE = ("key", "value", "headers")
Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Field:
    """What one rule masks."""

    part: str
    """key, value, headers (all of them) or header (one of them)."""
    path: tuple[str, ...] = ()
    """Names of nested fields; of a header, its name. Empty: the whole part."""


@dataclass(frozen=True)
class Mask:
    """A rule for the topics that a pattern names."""

    topics: str
    """A pattern as of a shell: payments-*"""
    fields: tuple[Field, ...]
    shown_to: frozenset[Role]
    """People with one of these roles see the fields."""


def parse_field(text: str) -> Field:
    """Parse `value.card.number`, `header.token` or `key`. Raises ValueError as a clause."""
    part, dot, rest = text.partition(".")
    if not dot and part in WHOLE:
        return Field(part)
    if rest and part == "header":
        return Field(part, (rest,))
    path = tuple(rest.split("."))
    if part in ("key", "value") and all(path):
        return Field(part, path)
    raise ValueError(f"{text} is none of key, value, headers, key.FIELD, value.FIELD, header.NAME")


def masked_fields(masks: Sequence[Mask], topic: str, by: Identity) -> tuple[Field, ...]:
    """Return what a person does not see of a topic, or of several under their joined name."""
    names = dict.fromkeys([topic, *topic.split(JOINED_BY)])
    return tuple(
        field
        for mask in masks
        if any(fnmatchcase(name, mask.topics) for name in names) and not mask.shown_to & by.roles
        for field in mask.fields
    )


def masked_anywhere(masks: Sequence[Mask], by: Identity) -> tuple[Field, ...]:
    """Return what a person does not see of a topic whose name is unknown: what any rule masks."""
    return tuple(field for mask in masks if not mask.shown_to & by.roles for field in mask.fields)


def masked_part(part: str, data: bytes | None, fields: Sequence[Field]) -> bytes | None:
    """Return a key or value without what `fields` mask."""
    paths = [field.path for field in fields if field.part == part]
    if data is None or not paths:
        return data
    # Each value but the first follows one of these.
    values = sum(data.count(mark) for mark in (b",", b"[", b"{"))
    is_small = len(data) <= BYTES_MAX and values <= VALUES_MAX
    try:
        document = json.loads(data) if all(paths) and is_small else None
        if not isinstance(document, dict | list):
            return MASKED
        for path in paths:
            document = _without(document, path)
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return MASKED
    return text.encode(errors="surrogatepass")


def masked_headers(headers: Headers, fields: Sequence[Field]) -> Headers:
    """Return the headers without what `fields` mask."""
    every = any(field.part == "headers" for field in fields)
    names = {field.path[0] for field in fields if field.part == "header"}
    if names & {LINEAGE_HEADER, TRANSACTION_HEADER}:
        # One header has the content of both now, and a mask of then still hides it.
        names.add(COMPACT_HEADER)
    return tuple((name, MASKED if every or name in names else value) for name, value in headers)


def _without(node: Any, path: tuple[str, ...]) -> Any:
    """Return JSON with the field at a path masked, in each element of a list on the way. What is
    neither list nor object there may be the field in another spelling, and is masked."""
    match node:
        case list():
            return [_without(element, path) for element in node]
        case dict():
            inner = dict(node)
            for length in range(1, len(path) + 1):
                name, rest = ".".join(path[:length]), path[length:]
                if name in inner:
                    inner[name] = _without(inner[name], rest) if rest else MASKED.decode()
            return inner
        case None:
            return None
    return MASKED.decode()
