"""Columns for fields of decoded values, named by paths such as `$.customer.id`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import pandas as pd

from topicproof.app.topic.payload import not_decoded
from topicproof.backend.formats.decoded import DecodedValue
from topicproof.backend.kafka.browse.records import is_printable
from topicproof.validators.json_path import parse_path, spell_path

COLUMNS_MAX = 8
"""Fields that are columns at the same time."""
OFFERED_MAX = 60
"""Fields to choose from. Others can be typed."""
ROWS_SAMPLED = 20
"""Rows whose fields are offered."""
LEVELS_MAX = 4
CELL_CHARACTERS = 200
_MISSING = object()

Path = tuple[str | int, ...]


def offered(values: Iterable[DecodedValue | None]) -> list[str]:
    """Returns paths of the fields that the first values have, in their order: no fields of arrays,
    of which there may be any number."""
    paths: dict[str, None] = {}
    for content in islice(values, ROWS_SAMPLED):
        if content is not None and isinstance(content.value, dict):
            leaves = islice(_leaves(content.value, ()), OFFERED_MAX)
            paths |= dict.fromkeys(spell_path(path) for path in leaves)
    return list(paths)[:OFFERED_MAX]


def _leaves(value: dict[str, Any], path: Path) -> Iterator[Path]:
    for name, item in value.items():
        # A path cannot spell every name: an empty one, or one with both kinds of quotes.
        if not name or {"'", '"'} <= set(name):
            continue
        if isinstance(item, dict) and item and len(path) + 1 < LEVELS_MAX:
            yield from _leaves(item, (*path, name))
        else:
            yield (*path, name)


def field_columns(values: Iterable[DecodedValue | None], paths: Sequence[str]) -> pd.DataFrame:
    """Builds one column for each path, one row for each value: its texts, before the next value is
    decoded. A field that a record does not have is empty; null is null."""
    steps = [parse_path(path) for path in paths]
    texts = [[field_text(content, path) for path in steps] for content in values]
    return pd.DataFrame(texts, columns=list(paths), dtype=object)


def field_text(content: DecodedValue | None, path: Path) -> str | None:
    """Returns the field as text: empty if there is none, None if it is null, why if the value is
    not decoded."""
    if content is not None and not content.known and content.reason is not None:
        return not_decoded(content)[:CELL_CHARACTERS]
    value = None if content is None else content.value
    for step in path:
        value = _step(value, step)
        if value is _MISSING:
            return ""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = text if is_printable(text) else json.dumps(text)
    return text if len(text) <= CELL_CHARACTERS else f"{text[:CELL_CHARACTERS]}…"


def _step(value: Any, step: str | int) -> Any:
    if isinstance(step, str):
        return value.get(step, _MISSING) if isinstance(value, dict) else _MISSING
    return value[step] if isinstance(value, list) and step < len(value) else _MISSING


def with_fields(table: pd.DataFrame, fields: pd.DataFrame) -> pd.DataFrame:
    """Puts the columns of fields behind the value."""
    at = list(table.columns).index("value") + 1
    return pd.concat([table.iloc[:, :at], fields, table.iloc[:, at:]], axis=1)


def as_path(text: str) -> str:
    """Returns a path as it is spelled: `id` means `$.id`. Raises ValueError."""
    text = text.strip()
    return spell_path(parse_path(text if text.startswith("$") else f"$.{text}"))
