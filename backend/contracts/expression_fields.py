"""Fields of decoded records in contracts: `field('order.id')` and `key_field('id')` in expressions,
and an expression for each field of an output.

Spark knows no such functions. Each call becomes a column of the decoded reading
(validators/decoded.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from topicproof.backend.contracts.expression_results import JSON_OPTIONS
from topicproof.backend.contracts.expression_tree import Call, Cast, Node, Text, Type, parse, to_sql
from topicproof.backend.contracts.expressions import (
    PATHS,
    field_of,
    parse_expression,
    spark_sql,
    texts_of_fields,
    with_columns,
)

FUNCTIONS = PATHS
"""Functions that name a field of a record."""


def in_sql(text: str) -> str:
    """Return a checked expression as Spark gets it."""
    return spark_sql(text)


def fields_of(*texts: str | None) -> tuple[str, ...]:
    """Return each field that checked expressions name, once."""
    calls = (
        field_of(node)
        for text in texts
        if text is not None
        for node in parse_expression(text).walk()
        if isinstance(node, Call) and node.function in FUNCTIONS
    )
    return tuple(dict.fromkeys(calls))


def each_in_sql(expressions: Mapping[str, str]) -> str:
    """Return the expressions of several fields as one: a JSON object of texts, by path."""
    named: list[Node] = []
    for path, text in expressions.items():
        tree = with_columns(parse_expression(text))
        named.extend((Text(path), Cast(tree, Type("string"))))
    return to_sql(Call("to_json", (Call("named_struct", tuple(named)), JSON_OPTIONS)))


def is_of_fields(sql: str) -> bool:
    """Return whether this is what `each_in_sql` writes."""
    return bool(texts_of_fields(parse(sql)))
