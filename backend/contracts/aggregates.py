"""Aggregates in contracts: `count(*)`, and `count`, `sum`, `min` or `max` of an expression over the
source record.

The function is parsed here. What stands in its brackets is an expression like any other
(backend/contracts/expressions.py), so Spark never gets the text of an aggregate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from topicproof.backend.contracts.expression_fields import in_sql
from topicproof.backend.contracts.expressions import check_expression
from topicproof.backend.yaml_fields import Place
from topicproof.validators.aggregate import AggregatedValue, Function
from topicproof.validators.decoded import VALUE_FIELD, parse_field

EVERY = "*"
"""In the brackets of `count`: each input counts."""
FORMS = "count(*), count(EXPRESSION), sum(EXPRESSION), min(EXPRESSION) or max(EXPRESSION)"
_AGGREGATE = re.compile(
    rf"\s*({'|'.join(Function)})\s*\((.*)\)\s*", re.ASCII | re.DOTALL | re.IGNORECASE
)


class ParsedAggregate(NamedTuple):
    """An aggregate whose expression is checked."""

    function: Function
    of: str | None
    """The expression; None: `count(*)`."""

    def value(self, path: str | None) -> AggregatedValue:
        """Return what is judged. `path`: the field of the output; None: the whole value."""
        return AggregatedValue(
            self.function,
            None if self.of is None else in_sql(self.of),
            None if path is None else f"{VALUE_FIELD}:{path}",
        )


def parse_aggregate(text: Any) -> ParsedAggregate:
    """Raises ValueError with the reason as a clause."""
    match = _AGGREGATE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"expected {FORMS}")
    function, of = Function(match[1].lower()), match[2].strip()
    if of == EVERY and function is Function.COUNT:
        return ParsedAggregate(function, None)
    if of == EVERY:
        raise ValueError(f"{function} takes an expression; only count takes *")
    try:
        return ParsedAggregate(function, check_expression(of))
    except ValueError as error:
        raise ValueError(f"in the brackets of {function}: {error}") from error


def parse_values(value: Any) -> dict[str | None, ParsedAggregate]:
    """Parse the aggregate of a whole value, or one for each of its fields by path. Raises
    ValueError."""
    if not isinstance(value, Mapping):
        return {None: parse_aggregate(value)}
    if not value:
        raise ValueError("name at least one field of the output")
    parsed: dict[str | None, ParsedAggregate] = {}
    for path, text in value.items():
        parse_field(str(path))
        try:
            parsed[str(path)] = parse_aggregate(text)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    return parsed


def check_values(value: Any) -> str | dict[str, str]:
    """Return what `parse_values` takes. Raises ValueError as it does."""
    parse_values(value)
    return (
        {str(path): text for path, text in value.items()} if isinstance(value, Mapping) else value
    )


def aggregate_texts(fields: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    """Yield the expressions of an unchecked contract's `aggregate:`, with their places: those in
    the brackets if they can be told, or else the whole text."""
    aggregate = fields.get("aggregate")
    if not isinstance(aggregate, Mapping):
        return
    group_by, value = aggregate.get("group_by"), aggregate.get("value")
    if isinstance(group_by, str):
        yield ("aggregate", "group_by"), group_by
    texts = value if isinstance(value, Mapping) else {None: value}
    for path, text in texts.items():
        place: Place = ("aggregate", "value")
        if isinstance(text, str):
            match = _AGGREGATE.fullmatch(text)
            of = text if match is None else match[2].strip()
            if match is None or of != EVERY:
                yield place if path is None else (*place, str(path)), of
