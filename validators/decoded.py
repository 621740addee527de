"""Fields of decoded keys and values, as columns of a reading.

A reading whose fields a contract names has the column `decoded`: a struct with `reason` (why a
record could not be decoded, as a sentence; null if it could) and the text of each field. A field
is spelled `field:PATH` (of the value) or `key_field:PATH` (of the key), as in `Match`. Its text is
null if the record does not hold it, or holds null there.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, functions as F
from pyspark.sql.types import StringType, StructField, StructType

from topicproof.validators.json_path import parse_path, spell_path

DECODED, REASON = "decoded", "reason"
VALUE_FIELD, KEY_FIELD = "field", "key_field"


def parse_field(path: str) -> tuple[str | int, ...]:
    """Parses a path such as `order.id`, `items[0].sku` or `['odd name']`: that of a JSON path,
    without its `$`. Raises ValueError with one clause that says what is wrong."""
    if not path or path.startswith("$"):
        raise ValueError(f"{path!r} does not name a field, as order.id does")
    return parse_path(f"${path}" if path.startswith("[") else f"$.{path}")


def spell_field(steps: tuple[str | int, ...]) -> str:
    """Formats the steps as a path that `parse_field` parses back."""
    return spell_path(steps).removeprefix("$").removeprefix(".")


def decoded_type(fields: Sequence[str]) -> StructType:
    """Returns the type of the column `decoded` for these fields, as they are spelled."""
    return StructType([StructField(name, StringType()) for name in (REASON, *fields)])


def text_of(field: str) -> Column:
    return F.col(DECODED).getField(field)


def undecoded() -> Column:
    """Returns why a record could not be decoded; null if it could."""
    return text_of(REASON)


def sql_of(field: str) -> str:
    """Spells a field's text in Spark SQL."""
    return f"{DECODED}.`{field.replace('`', '``')}`"


def path_of(field: str) -> str:
    """`field:order.id` -> `order.id`."""
    return field.partition(":")[2]
