"""Limits on schemas and values. Anybody who may write to a topic or a registry can send these.

There is one budget for a value: the bytes that it takes once it is decoded. A few bytes may stand
for an endless array, or for a message with a thousand empty fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VALUE_BYTES_MAX = 100_000_000
"""A decoded key or value."""
SCHEMA_BYTES_MAX = 4_000_000
"""The text of a schema together with all that it refers to, in UTF-8."""
REFERENCES_MAX = 200
"""Schemas to which a schema refers, directly or not."""
REFERENCE_DEPTH_MAX = 30
NAME_CHARACTERS_MAX = 255
"""Characters of a reference's name or subject."""
SCHEMAS_MAX = 1_000
"""Schemas that are kept in memory. Broken bytes may look like any schema id."""
TEXTS_BYTES_MAX = 50_000_000
"""The texts of all schemas that are kept of a registry."""
READERS_BYTES_MAX = 20_000_000
"""The texts of all schemas of a registry whose readers are kept. A reader takes up to 30 times its
text."""
ASKED_AT_ONCE, COMPILED_AT_ONCE = 4, 2
NEW_SCHEMAS_SECONDS_MAX = 20.0
"""How long all pages together may ask for schemas and compile them in a minute."""
SCHEMAS_BYTES_MAX = 20_000_000
"""All schemas of the source or of the sink. Two such sides fit into a file of evidence."""
DESCRIPTORS_BYTES_MAX = 100_000_000
"""All compiled Protobuf schemas of a side, which each of Spark's workers gets."""
ANSWER_BYTES_MAX = 20_000_000
"""One answer of a registry."""
ANSWER_SECONDS_MAX = 60.0
QUOTED_CHARACTERS_MAX = 300
DICT_BYTES, FIELD_BYTES, ITEM_BYTES = 200, 100, 64
"""Bytes that CPython takes, rounded up: an object, a field of it, an item of an array."""


class TooLargeError(ValueError):
    """A value would exceed the budget."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of memory that the value may take."""
        super().__init__(f"the value would take more than {limit:,} bytes of memory")


def require_size(text: str, references: Mapping[Any, str]) -> None:
    """Check a schema and all that it refers to before it is parsed. Raises ValueError."""
    if len(references) > REFERENCES_MAX:
        raise ValueError(
            f"it refers to {len(references):,} schemas, and {REFERENCES_MAX:,} are allowed"
        )
    size = sum(len(part.encode()) for part in (text, *references.values()))
    if size > SCHEMA_BYTES_MAX:
        raise ValueError(f"it has {size:,} bytes, and {SCHEMA_BYTES_MAX:,} are allowed")


def quoted(text: object) -> str:
    """Return a text from a schema, a record or a library for use inside of a sentence: short, and
    without characters that do something on a terminal."""
    whole = str(text)
    short = whole[:QUOTED_CHARACTERS_MAX]
    plain = "".join(letter if letter.isprintable() else "?" for letter in short)
    return plain + ("…" if len(whole) > QUOTED_CHARACTERS_MAX else "")
