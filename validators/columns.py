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

from topicproof.validators.expected import NUMBER_TEXT

COLUMN = "column"
"""Begins the spelling of a column as an identity: `column:order_id`, as in `Match`."""
TEXT, NUMBER = "string", "numeric"
"""Types of columns whose texts are compared as they are, and as numbers of any size."""
FLOATING = ("float", "double")
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_TYPES = frozenset(
    {TEXT, NUMBER, "boolean", "date", "timestamp", "timestamp_ntz", *FLOATING, *_INTEGERS}
)
_SCALED = re.compile(r"(decimal|numeric)\(([0-9]{1,4}),([0-9]{1,4})\)")
_MOMENT = re.compile(r"(timestamp|timestamp_ntz)(?:\(([0-6])\))?")
DIGITS_MAX = 38
"""Digits of Spark's decimals."""
NUMERIC_MAX = 1_000
"""Digits, and decimals, that a column of PostgreSQL can be declared with."""
COLUMNS_MAX = 1_600
"""As many columns as a table of PostgreSQL has at most."""
COLUMNS_SHOWN = 5
"""A finding names so many columns at most."""
NUMBER_CHARACTERS_MAX = 150_000
"""Characters of a number; PostgreSQL's have 131,072 digits before the point and 16,383 behind."""
_NUMBER = (
    r"^[\x00-\x20]*+(?=[+-]?\.?[0-9])([+-]?+)([0-9]*+)(?:\.([0-9]*+))?+"
    r"(?:[eE]([+-]?+[0-9]{1,3}+))?+[\x00-\x20]*+(?![\s\S])"
)
"""Sign, digits before and behind the point, exponent. No part gives back what it took, so a long
text takes no longer than its length. An exponent of more digits is no number: it would be one of
millions of digits."""
_DATED = r"^[\x00-\x20]*+[+-]?+[0-9]{4,6}+-[\s\S]{1,80}+(?![\s\S])"
"""Dates, and times with a date. Spark makes a time of today of a text without one."""
_FRACTION = r"^([^.]++)\.([0-9]++)([^.]*+)$"
"""A time: up to its seconds, their decimals, and its zone."""
_DECIMALS_MAX = 12
"""Decimals of a second that are compared."""
_BOOLEAN = r"^[!-~]{1,20}$"


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
    if (match := _SCALED.fullmatch(name)) is None:
        return name in _TYPES or _MOMENT.fullmatch(name) is not None
    digits, scale = int(match[2]), int(match[3])
    if match[1] == "decimal":
        return 1 <= digits <= DIGITS_MAX and scale <= digits
    return 1 <= digits <= NUMERIC_MAX and scale <= NUMERIC_MAX


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
    if kind == NUMBER:
        return F.coalesce(_number(text, None), text)
    if kind in _INTEGERS:
        return F.coalesce(_number(text, 0), text)
    if (match := _SCALED.fullmatch(kind)) is not None:
        return F.coalesce(_number(text, int(match[3])), text)
    if (moment := _MOMENT.fullmatch(kind)) is not None:
        return F.coalesce(_time(text, moment[1]), text)
    if kind in FLOATING:
        # Without a sign of zero.
        value = _floating(text, kind) + F.lit(0).cast(kind)
    elif kind == "date":
        value = F.when(text.rlike(_DATED), text).try_cast(kind)
    else:
        value = F.when(text.rlike(_BOOLEAN), text).try_cast(kind)
    return F.coalesce(value.cast("string"), text)


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


def _is_same(required: Column, actual: Column, kind: str, tolerance: float) -> Column:
    same = required.eqNullSafe(actual)
    if (moment := _MOMENT.fullmatch(kind)) is not None:
        return same | F.coalesce(_is_of_finer(required, actual, moment), F.lit(False))
    if not tolerance or kind not in FLOATING:
        return same
    numbers = [_floating(text, "double") for text in (required, actual)]
    distance = F.abs(numbers[0] - numbers[1])
    largest = F.greatest(*(F.abs(number) for number in numbers))
    # Infinity is near to nothing but itself, and Spark has NaN above every number.
    is_finite = largest < F.lit(float("inf"))
    return same | F.coalesce(is_finite & (distance <= largest * F.lit(tolerance)), F.lit(False))


def _is_of_finer(required: Column, actual: Column, moment: re.Match[str]) -> Column:
    """Returns whether a time is what its column makes of a finer one. Databases round it, and some
    drivers cut it off; either is right. `required`, `actual`: canonical texts."""
    decimals = 6 if moment[2] is None else int(moment[2])

    def seconds(text: Column) -> Column:
        dated = F.when(text.rlike(_DATED), text)
        whole = F.substring_index(dated, ".", 1).try_cast("timestamp").cast("long")
        part = F.substring(F.regexp_extract(dated, _FRACTION, 2), 1, _DECIMALS_MAX)
        fraction = F.concat(F.lit("0."), part, F.lit("0"))
        fraction = fraction.try_cast(f"decimal({_DECIMALS_MAX + 1},{_DECIMALS_MAX})")
        return whole.cast("decimal(20,0)") + fraction

    distance = seconds(required) - seconds(actual)
    step, half = (
        F.lit(f"{number}E-{decimals + 1}").cast(f"decimal({_DECIMALS_MAX + 1},{_DECIMALS_MAX})")
        for number in (10, 5)
    )
    return distance.between(-half, half) | ((distance > 0) & (distance < step))


def _once(value: Column, use: Callable[[Column], Column]) -> Column:
    """Computes a value once, however often `use` names it. Spark computes what stands in several
    branches again in each."""
    return F.transform(F.array(value), use)[0]


def _texts(document: Column, names: Sequence[str]) -> Column:
    schema = StructType([StructField(name, StringType()) for name in names])
    return F.from_json(document.cast("string"), schema)


def _floating(text: Column, kind: str) -> Column:
    return F.when(text.rlike(NUMBER_TEXT), text).try_cast(kind)


def _time(text: Column, kind: str) -> Column:
    """Returns a time with all its decimals but zeros that say nothing; null for a text that is
    none. Spark's times have six decimals and cut off the others, so they are no part of the
    cast."""
    dated = F.when(text.rlike(_DATED), text)
    is_split = dated.rlike(_FRACTION)
    head, part, zone = (F.regexp_extract(dated, _FRACTION, group) for group in (1, 2, 3))
    seconds = F.when(is_split, F.concat(head, zone)).otherwise(dated).try_cast(kind).cast("string")
    fraction = F.rtrim(part, F.lit("0"))
    decimals = F.when(is_split & (fraction != ""), F.concat(F.lit("."), fraction)).otherwise("")
    return F.concat(seconds, decimals)


def _number(text: Column, scale: int | None) -> Column:
    """Returns a number in digits, without an exponent and without zeros that say nothing; null for
    a text that is none. `scale`: it is rounded to so many decimals, halves away from zero; None: it
    is not. All is done with texts: Spark's decimals hold 38 digits."""
    is_number = (F.length(text) <= NUMBER_CHARACTERS_MAX) & text.rlike(_NUMBER)
    parts = F.split(F.regexp_replace(text, _NUMBER, "$1 $2 $3 $4"), " ")
    # Spark makes a branch only if its condition holds.
    return F.when(is_number, _once(_once(parts, _digits), lambda number: _plain(number, scale)))


def _digits(parts: Column) -> Column:
    """Returns a number as a struct: is_negative, digits, point (how many digits are before it). The
    exponent moves the point, over zeros if the digits end. One more zero in front takes what
    rounding carries. `parts`: an array of the parts of `_NUMBER`."""
    zero = F.lit("0")
    power = F.coalesce(parts[3].try_cast("int"), F.lit(0))
    left, right = (F.greatest(sign * power, F.lit(0)) for sign in (F.lit(-1), F.lit(1)))
    digits = F.concat(zero, F.repeat(zero, left), parts[1], parts[2], F.repeat(zero, right))
    return F.struct(
        (parts[0] == "-").alias("is_negative"),
        digits.alias("digits"),
        (F.length(parts[1]) + 1 + right).alias("point"),
    )


def _plain(number: Column, scale: int | None) -> Column:
    """Returns the text of what `_digits` returns."""
    digits, point = number.getField("digits"), number.getField("point")

    def formatted(digits: Column) -> Column:
        parts = F.struct(
            F.ltrim(F.substr(digits, F.lit(1), point), F.lit("0")).alias("whole"),
            F.rtrim(F.substr(digits, point + 1), F.lit("0")).alias("fraction"),
        )
        return _once(parts, lambda parts: _signed(number.getField("is_negative"), parts))

    return formatted(digits) if scale is None else _once(_rounded(digits, point + scale), formatted)


def _signed(is_negative: Column, parts: Column) -> Column:
    whole, fraction = parts.getField("whole"), parts.getField("fraction")
    is_zero = (whole == "") & (fraction == "")
    return F.concat(
        F.when(is_negative & ~is_zero, F.lit("-")).otherwise(""),
        F.when(whole == "", F.lit("0")).otherwise(whole),
        F.when(fraction == "", F.lit("")).otherwise(F.concat(F.lit("."), fraction)),
    )


def _rounded(digits: Column, count: Column) -> Column:
    """Returns the first digits, one more if the next one is 5 or more. The first of all is 0."""
    prefix = F.substring(digits, F.lit(1), count)
    # 0129|9 is 0130: nines become zeros, and the digit before them counts up.
    stem = F.rtrim(prefix, F.lit("9"))
    last = (F.substring(stem, -1, 1).try_cast("int") + 1).cast("string")
    up = F.concat(
        F.substring(stem, F.lit(1), F.length(stem) - 1),
        last,
        F.repeat(F.lit("0"), F.length(prefix) - F.length(stem)),
    )
    return F.when(F.substring(digits, count + 1, F.lit(1)) >= "5", up).otherwise(prefix)
