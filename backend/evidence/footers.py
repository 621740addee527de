"""What the footer of a Parquet file may say besides its rows.

Readers act on a footer. Spark takes its own schema from there, whose columns may have SQL as their
default and name classes to load; pyarrow takes extension types, and pandas dtypes. A file of
evidence holds nothing of that: its footer has the keys that Spark and pyarrow write for plain
columns, and they say what the columns are anyway.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
KEYS = frozenset({SPARK_SCHEMA, b"org.apache.spark.version", b"ARROW:schema"})
FIELD_KEYS = frozenset({b"PARQUET:field_id"})
ZONES = (None, "UTC")
"""Of timestamps."""
PRIMITIVES = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.uint8(): None,
    pa.uint16(): None,
    pa.uint32(): None,
    pa.uint64(): None,
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
}
"""Spark's names of Arrow's types; None if it has no such type."""
DECIMAL = re.compile(r"decimal128(\(\d+, ?\d+\))")
FIELD = {"name", "type", "nullable", "metadata"}


def require_plain_footer(footer: pq.FileMetaData, spark_schema: Any) -> None:
    """Check what a footer says besides the rows. `spark_schema`: the value of `SPARK_SCHEMA`, as
    parsed JSON; None without one. Raises ValueError with what is wrong, as a clause,
    RecursionError, pyarrow.ArrowException."""
    schema = footer.schema.to_arrow_schema()
    keys = {*(footer.metadata or {}), *(schema.metadata or {})}
    if strange := sorted(keys - KEYS):
        raise ValueError(f"its footer has the key {strange[0]!r}, which evidence never has")
    columns = _of_arrow(pa.struct(list(schema)))
    if spark_schema is not None and _of_spark(spark_schema) != columns:
        raise ValueError("Spark's schema in its footer is not that of its columns")


def _of_arrow(type_: pa.DataType) -> Any:
    """Return a type as nested tuples of Spark's names. Raises ValueError for one that evidence
    never has."""
    if type_ in PRIMITIVES:
        return PRIMITIVES[type_] or str(type_)
    if pa.types.is_timestamp(type_) and type_.tz in ZONES:
        return "timestamp"
    if decimal := DECIMAL.fullmatch(str(type_)):
        return f"decimal{decimal[1].replace(' ', '')}"
    if pa.types.is_struct(type_):
        return "struct", tuple((field.name, _of_field(field)) for field in type_)
    if pa.types.is_list(type_):
        return "array", _of_field(type_.value_field)
    if pa.types.is_map(type_):
        return "map", _of_field(type_.key_field), _of_field(type_.item_field)
    raise ValueError(f"a column has the type {type_}, which evidence never has")


def _of_field(field: pa.Field) -> Any:
    if strange := sorted(set(field.metadata or {}) - FIELD_KEYS):
        raise ValueError(f"a column has the key {strange[0]!r}, which evidence never has")
    return _of_arrow(field.type)


def _of_spark(type_: Any) -> Any:
    """Return a type of Spark's JSON as `_of_arrow` does. Raises ValueError for one that has more
    than evidence ever has: a default, a class, a collation."""
    match type_:
        case str():
            return "timestamp" if type_ == "timestamp_ntz" else type_
        case {"type": "struct", "fields": list(fields), **more} if not more:
            return "struct", tuple(_of_spark_field(field) for field in fields)
        case {"type": "array", "elementType": element, "containsNull": bool(), **more} if not more:
            return "array", _of_spark(element)
        case {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": bool()}:
            return "map", _of_spark(key), _of_spark(value)
    raise ValueError("Spark's schema in its footer has a type that evidence never has")


def _of_spark_field(field: Any) -> Any:
    match field:
        case {"name": str(name), "type": type_, "nullable": bool(), "metadata": dict(metadata)}:
            if not metadata and field.keys() == FIELD:
                return name, _of_spark(type_)
    raise ValueError("a column of Spark's schema in its footer has more than a name and a type")
