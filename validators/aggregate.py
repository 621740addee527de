"""Aggregates over the inputs of a group, as a contract names them: their terms, and their numbers.

Numbers are decimals, never doubles: a sum then does not depend on the order in which Spark adds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from pyspark.sql import Column, WindowSpec, functions as F

from topicproof.validators.decoded import path_of, text_of

LONG_BYTES = 8
VALUES_MAX = 20
"""Numbers of an output."""
TOLERANCE_MAX = 0.5
EXACT_SCALE, ROUNDED_SCALE = 9, 18
"""Decimals of numbers that are compared exactly, and of those that may differ by a tolerance."""
DIGITS_MAX = 38
_EXACT = (
    rf"^[-+]?[0-9]{{1,{DIGITS_MAX - EXACT_SCALE}}}(\.[0-9]{{1,{EXACT_SCALE}}}0{{0,300}})?"
    r"([eE]\+?[0-9]{1,2})?(?![\s\S])"
)
"""Texts of numbers that a decimal with `EXACT_SCALE` holds as they are."""
_SCIENTIFIC = (
    r"^[-+]?([0-9]{1,20}(\.[0-9]{1,17})?[eE]\+?[0-9]{1,2}|[0-9]{1,9}(\.[0-9]{1,9})?[eE]-[0-9])"
    r"(?![\s\S])"
)
"""Texts of numbers with at most `ROUNDED_SCALE` decimals, as Java writes doubles: a decimal of that
scale tells whether one of `EXACT_SCALE` holds them as they are."""
_ROUNDED = r"^[-+]?[0-9]{1,38}(\.[0-9]{1,300})?([eE][-+]?[0-9]{1,3})?(?![\s\S])"


class Function(StrEnum):
    """What becomes of the inputs of a group."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"


class Encoding(StrEnum):
    """How a whole value holds its number."""

    TEXT = "text"
    LONG = "long"
    """Eight bytes, the most significant one first, as Kafka's LongSerializer writes it."""


@dataclass(frozen=True)
class AggregatedValue:
    """One number of an output."""

    function: Function
    of: str | None
    """Spark SQL over the source record; None: `count(*)`, which counts every input."""
    field: str | None
    """The field of the output's value, as validators/decoded.py spells it; None: all of it."""

    @property
    def words(self) -> str:
        return "The value" if self.field is None else path_of(self.field)

    @property
    def is_count(self) -> bool:
        """Whether it counts every input of its group."""
        return self.of is None


@dataclass(frozen=True)
class AggregateTerms:
    """What the committed outputs of a group must be."""

    group_by: str
    """Spark SQL over the source record. An input for which it is null belongs to no group."""
    values: tuple[AggregatedValue, ...]
    key: str
    """Where an output names its group, in the spelling of `Match`."""
    running: bool = False
    """Whether each committed output is judged, and not only the last one of its group."""
    tolerance: float = 0.0
    """By how much of the larger number two numbers may differ."""
    encoding: Encoding = Encoding.TEXT

    def __post_init__(self) -> None:
        """Raises ValueError for terms that cannot be judged."""
        if not 1 <= len(self.values) <= VALUES_MAX:
            raise ValueError(f"name 1 to {VALUES_MAX} values of an output")
        if len({value.field for value in self.values}) < len(self.values):
            raise ValueError("a field of the output is named twice")
        if not 0 <= self.tolerance <= TOLERANCE_MAX:
            raise ValueError(f"a tolerance is a number from 0 to {TOLERANCE_MAX}")
        if self.running and self.tolerance and not any(value.is_count for value in self.values):
            raise ValueError(
                "with `running` and a tolerance, nothing tells which inputs an output is of."
                " Name count(*) among its values, or remove the tolerance"
            )
        if self.encoding is not Encoding.TEXT and self.fields:
            raise ValueError("only a whole value has an encoding. Remove it, or name no field")

    @property
    def expressions(self) -> tuple[str, ...]:
        return (self.group_by, *(value.of for value in self.values if value.of is not None))

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the outputs that are compared."""
        return tuple(value.field for value in self.values if value.field is not None)

    @property
    def scale(self) -> int:
        return ROUNDED_SCALE if self.tolerance else EXACT_SCALE

    @property
    def needs_order(self) -> bool:
        """Whether an aggregate of a part of the inputs depends on which inputs these are, and not
        only on their number."""
        return not all(value.is_count for value in self.values)

    def rewritten(self, rewrite: Callable[[str, str], str]) -> AggregateTerms:
        """Returns the terms with each expression replaced. `rewrite` takes its name and its
        text."""
        values = tuple(
            value
            if value.of is None
            else replace(value, of=rewrite(f"aggregate.value.{value.words}", value.of))
            for value in self.values
        )
        return replace(self, group_by=rewrite("aggregate.group_by", self.group_by), values=values)


def number(text: Column, terms: AggregateTerms) -> Column:
    """Reads a number; null if the text is none, or none that a decimal holds."""
    if terms.tolerance:
        return F.when(text.rlike(_ROUNDED), text.try_cast(_decimal(terms)))
    exact = text.try_cast(_decimal(terms))
    whole = f"decimal({DIGITS_MAX},{ROUNDED_SCALE})"
    is_whole = text.rlike(_SCIENTIFIC) & (text.try_cast(whole) == exact.try_cast(whole))
    return F.when(text.rlike(_EXACT) | is_whole, exact)


def is_inexact(text: Column, terms: AggregateTerms) -> Column:
    """Whether a text is a number, and none that a decimal holds."""
    return F.coalesce(text.rlike(_ROUNDED) & number(text, terms).isNull(), F.lit(False))


def aggregate(
    value: AggregatedValue, text: Column, terms: AggregateTerms, window: WindowSpec | None = None
) -> Column:
    """Returns the aggregate over a group, or over a window. `text`: what its expression gives for
    each input. A null is left out, as SQL does."""
    match value.function:
        case Function.COUNT:
            total = F.count(F.lit(1) if value.of is None else text)
        case Function.SUM:
            total = F.try_sum(number(text, terms))
        case Function.MIN:
            total = F.min(number(text, terms))
        case Function.MAX:
            total = F.max(number(text, terms))
    return (total if window is None else total.over(window)).cast(_decimal(terms))


def is_unreadable(value: AggregatedValue, text: Column, terms: AggregateTerms) -> Column:
    """Whether an input has something there that is no number."""
    if value.function is Function.COUNT:
        return F.lit(False)
    return text.isNotNull() & number(text, terms).isNull()


def is_equal(expected: Column, actual_text: Column, terms: AggregateTerms) -> Column:
    """Whether an output has the number. Without one, it must have none."""
    actual = number(actual_text, terms)
    equal = expected == actual
    if terms.tolerance:
        left, right = expected.cast("double"), actual.cast("double")
        allowed = F.greatest(F.abs(left), F.abs(right)) * F.lit(terms.tolerance)
        equal = equal | (F.abs(left - right) <= allowed)
    return F.coalesce(equal, expected.isNull() & actual_text.isNull())


def number_text(total: str | Column) -> Column:
    """Formats a decimal without the zeros behind its last digit."""
    column = F.col(total) if isinstance(total, str) else total
    return F.regexp_replace(column.cast("string"), F.lit(r"\.0+$|(\.[0-9]*[1-9])0+$"), F.lit("$1"))


def actual_text(value: AggregatedValue, terms: AggregateTerms) -> Column:
    """Returns the text of an output's number; null if there is none."""
    if value.field is not None:
        return text_of(value.field)
    whole = F.col("value")
    if terms.encoding is Encoding.TEXT:
        return whole.cast("string")
    is_long = F.octet_length(whole) == LONG_BYTES
    return F.when(whole.isNotNull(), _long(whole, is_long))


def _long(whole: Column, is_long: Column) -> Column:
    in_hexadecimal = F.hex(whole)
    other = F.concat(F.lit("0x"), F.lower(F.substring(in_hexadecimal, 1, 2 * LONG_BYTES)))
    return F.when(is_long, F.conv(in_hexadecimal, 16, -10)).otherwise(other)


def _decimal(terms: AggregateTerms) -> str:
    return f"decimal({DIGITS_MAX},{terms.scale})"
