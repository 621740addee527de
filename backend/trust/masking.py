"""Payloads that some roles do not see: fields of keys and values, and headers, by topic.

    masks:
      - topics: payments-*
        fields: [value.card.number, header.token, key]
        shown_to: [admin]

`key`, `value` and `headers` are masked as a whole. A field inside is masked in JSON; a key or value
that is no JSON object, such as Avro, is then masked as a whole, so that nothing slips through.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from topicproof.backend.trust.identity import Identity, Role

MASKED = b"(masked)"
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
    """Return what a person does not see of a topic."""
    return tuple(
        field
        for mask in masks
        if fnmatchcase(topic, mask.topics) and not mask.shown_to & by.roles
        for field in mask.fields
    )


def masked_part(part: str, data: bytes | None, fields: Sequence[Field]) -> bytes | None:
    """Return a key or value without what `fields` mask."""
    paths = [one.path for one in fields if one.part == part]
    if data is None or not paths:
        return data
    try:
        found = json.loads(data) if all(paths) else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict | list):
        return MASKED
    for path in paths:
        found = _without(found, path)
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode(
        errors="surrogatepass"
    )


def masked_headers(headers: Headers, fields: Sequence[Field]) -> Headers:
    """Return the headers without what `fields` mask."""
    every = any(one.part == "headers" for one in fields)
    names = {one.path[0] for one in fields if one.part == "header"}
    return tuple((name, MASKED if every or name in names else value) for name, value in headers)


def _without(found: Any, path: tuple[str, ...]) -> Any:
    """Return JSON with the field at a path masked, in each element of a list on the way."""
    match found:
        case list():
            return [_without(one, path) for one in found]
        case dict() if path and path[0] in found:
            rest = path[1:]
            inner = _without(found[path[0]], rest) if rest else MASKED.decode()
            return {**found, path[0]: inner}
    return found
