"""Rows of a database table as records of a sink.

The value of such a record is a JSON object with the text of each column: exact, since a number in
JSON may lose digits on its way. Its key is the text of the key columns, and its lineage is what the
origin columns name. Two texts of one column are compared by what they stand for: `12.5` and `12.50`
are one number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, functions as F
from pyspark.sql.types import StringType, StructField, StructType

COLUMN = "column"
"""Begins the spelling of a column as an identity: `column:order_id`, as in `Match`."""
TEXT, NUMBER = "string", "numeric"
"""Types of columns whose texts are compared as they are, and as numbers of any size."""
FLOATING = ("float", "double")
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_TYPES = frozenset(
    {TEXT, NUMBER, "boolean", "date", "timestamp", "timestamp_ntz", *FLOATING, *_INTEGERS}
)
_DECIMAL = re.compile(r"decimal\(([0-9]{1,2}),([0-9]{1,2})\)")
DIGITS_MAX = 38
"""Digits of Spark's decimals."""
COLUMNS_MAX = 1_600
"""As many columns as a table of PostgreSQL has at most."""
COLUMNS_SHOWN = 5
"""A finding names so many columns at most."""
_PLAIN = r"^[+-]?[0-9]+(?:\.[0-9]*)?$"


@dataclass(frozen=True)
class TableTerms:
    """What a contract says of the table that is its sink."""

    key: tuple[str, ...] = ()
    """The columns that identify a row; empty: none are named."""
    origin: tuple[str | None, str, str] | None = None
    """The columns with topic, partition and offset of a row's input; without a topic, it is the
    source. None: nothing in the row names its input."""
    tolerance: float = 0
    """By how much of the larger number two numbers of a floating column may differ."""
    types: Mapping[str, str] = field(default_factory=dict)
    """The types of the compared columns. They are known once the table was looked at."""


def is_type(name: str) -> bool:
    """Whether texts of columns of this type can be compared."""
    match = _DECIMAL.fullmatch(name)
    return name in _TYPES or (
        match is not None and 1 <= int(match[1]) <= DIGITS_MAX and int(match[2]) <= int(match[1])
    )


def column_text(name: str) -> Column:
    """Returns the text of one column of a row; null if it is NULL."""
    return _texts(F.col("value"), [name]).getField(name)


def compared_columns(document: Column, types: Mapping[str, str]) -> Column:
    """Returns the columns of these types in a JSON object of texts, as JSON in which equal values
    are equal bytes."""

    def canonical(texts: Column) -> Column:
        return F.struct(
            *(
                canonical_text(texts.getField(name), kind).alias(name)
                for name, kind in types.items()
            )
        )

    columns = _once(_texts(document, list(types)), canonical)
    return F.to_json(columns, {"ignoreNullFields": "false"}).cast("binary")


def canonical_text(text: Column, kind: str) -> Column:
    """Returns one text for all texts that stand for one value of this type. A text that stands for
    none stays as it is, so it equals no value; null stays null."""
    if kind == TEXT:
        return text
    if kind == NUMBER or kind in _INTEGERS:
        return F.coalesce(_once(text.try_cast("decimal(38,18)"), lambda d: _number(text, d)), text)
    return F.coalesce(text.try_cast(kind).cast("string"), text)


def differing(required: str, actual: str, terms: TableTerms) -> Column:
    """Returns what differs between two objects of `compared_columns`, as an array of structs:
    name, actual, required. `required`, `actual`: their columns."""
    names = list(terms.types)

    def differences(documents: Column) -> Column:
        pairs = []
        for name, kind in terms.types.items():
            before, after = (documents.getField(side).getField(name) for side in ("b", "a"))
            difference = F.struct(
                F.lit(name).alias("name"), after.alias("actual"), before.alias("required")
            )
            pairs.append(F.when(~_is_same(before, after, kind, terms.tolerance), difference))
        return F.array_compact(F.array(*pairs))

    sides = {"b": required, "a": actual}
    documents = (_texts(F.col(column), names).alias(side) for side, column in sides.items())
    return _once(F.struct(*documents), differences)


def _is_same(before: Column, after: Column, kind: str, tolerance: float) -> Column:
    same = before.eqNullSafe(after)
    if not tolerance or kind not in FLOATING:
        return same
    numbers = [text.try_cast("double") for text in (before, after)]
    distance = F.abs(numbers[0] - numbers[1])
    largest = F.greatest(*(F.abs(number) for number in numbers))
    # Infinity is near to nothing but itself, and Spark has NaN above every number.
    is_finite = largest < F.lit(float("inf"))
    return same | F.coalesce(is_finite & (distance <= largest * F.lit(tolerance)), F.lit(False))


def _once(value: Column, use: Callable[[Column], Column]) -> Column:
    """Computes a value once, however often `use` names it. Spark computes what stands in several
    branches again in each."""
    return F.transform(F.array(value), use)[0]


def _texts(document: Column, names: Sequence[str]) -> Column:
    schema = StructType([StructField(name, StringType()) for name in names])
    return F.from_json(document.cast("string"), schema)


def _number(text: Column, decimal: Column) -> Column:
    """Returns a number without zeros that say nothing; null for a text that is none, or that has
    more digits than Spark's decimals and an exponent. `decimal`: what Spark makes of it."""
    is_exact = decimal.cast("double") == text.try_cast("double")
    # Spark's own text of a small decimal may have an exponent, as 0E-18 has.
    whole = F.when(decimal == 0, F.lit("0")).otherwise(F.format_number(decimal, 18))
    plain = F.when(text.rlike(_PLAIN), text).when(is_exact, F.replace(whole, F.lit(",")))
    for pattern, replacement in (
        (r"^\+", ""),
        (r"(\.[0-9]*?)0+$", "$1"),
        (r"\.$", ""),
        (r"^(-?)0+(?=[0-9])", "$1"),
        (r"^-0$", "0"),
    ):
        plain = F.regexp_replace(plain, pattern, replacement)
    return plain
