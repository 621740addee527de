"""All mistakes of a contract: in its text, and those that Spark finds in its expressions and
paths."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from pyspark.sql.types import NullType, NumericType

from topicproof.backend.contracts.aggregates import aggregate_texts
from topicproof.backend.contracts.contract import in_order, make_contract, mistake
from topicproof.backend.contracts.expression_fields import fields_of, in_sql
from topicproof.backend.contracts.expressions import parse_expression, patterns_of, with_columns
from topicproof.backend.contracts.plan_lock import plan_fault, planned_frame
from topicproof.backend.errors import ContractError, Mistake
from topicproof.backend.yaml_fields import Place, YamlFields
from topicproof.validators.json_path import exact_text, parse_path

EXPRESSIONS = ("count", "value")
_NEVER_REFUSED = {
    "count": re.compile(r"[0-9]{1,9}"),
    "value": re.compile(r"key|value|topic"),
}
"""Expressions that Spark always computes: a whole number as a count, and a column of text as a
value. They are not tried, because a session takes far longer than the rest of a lint."""
_PLAIN_STEP = re.compile(r"[A-Za-z0-9_-]+")
"""A step of a path that every parser of paths reads in the same way."""


def lint(
    fields: YamlFields,
    spark: Callable[[], AbstractContextManager[SparkSession]],
    across: bool = False,
) -> tuple[Mistake, ...]:
    """Return all mistakes, by line. `spark` is called for a session only if needed. `across`: the
    topics are in two clusters, whatever the contract says."""
    try:
        make_contract(fields, across)
        mistakes: list[Mistake] = []
    except ContractError as error:
        mistakes = list(error.mistakes)
    bad = {entry.field for entry in mistakes}
    texts = {
        place: text
        for place, text in _texts(fields)
        if not bad & _names(place) and not _NEVER_REFUSED[_name(place)].fullmatch(text)
    }
    paths = {place: path for place, path in _paths(fields) if not _is_plain(path)}
    if texts or paths:
        with spark() as session, _quiet():
            mistakes.extend(_refused_by_spark(session, fields, texts, paths))
    return tuple(in_order(mistakes))


def needs_spark(fields: dict[str, Any]) -> bool:
    """Return whether an expression may have mistakes that only Spark knows. A plain number has
    none."""
    return any(not text.isdecimal() for _, text in _texts(fields))


def _texts(fields: dict[str, Any]) -> Iterator[tuple[Place, str]]:
    """Yield the expressions of a contract and of its sinks, with their places."""
    sinks = fields.get("sinks")
    numbered_sinks = enumerate(sinks) if isinstance(sinks, list) else ()
    for at, terms in ((), fields), *((("sinks", number), sink) for number, sink in numbered_sinks):
        for name in EXPRESSIONS if isinstance(terms, dict) else ():
            expression = terms.get(name)
            if isinstance(expression, dict):
                yield from (((*at, name, path), str(text)) for path, text in expression.items())
            elif expression is not None:
                yield (*at, name), str(expression)
    yield from aggregate_texts(fields)


def _name(place: Place) -> str:
    """Return which of `EXPRESSIONS` is at a place. A field may be called count, too."""
    return "value" if "value" in place or "aggregate" in place else str(place[-1])


def _is_plain(path: str) -> bool:
    return all(isinstance(step, int) or _PLAIN_STEP.fullmatch(step) for step in parse_path(path))


def _names(place: Place) -> set[str]:
    """Return the names of a field and of those around it."""
    return {".".join(map(str, place[:length])) for length in range(1, len(place) + 1)}


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log of Spark's client, which prints the server's stack trace for each refusal."""
    # PySpark's own kind of logger: if we made a plain one first, PySpark's next message would fail.
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _paths(fields: dict[str, Any]) -> Iterator[tuple[Place, str]]:
    """Yield the valid JSON paths of an identity, with their places."""
    identity = fields.get("identity")
    sides: dict[Place, Any] = {("unique",): fields.get("unique")}
    if isinstance(identity, dict):
        for name in identity.keys() & {"source", "sink"} or (None,):
            place: Place = ("identity",) if name is None else ("identity", name)
            sides[place] = identity if name is None else identity[name]
    letters = fields.get("dead_letters")
    if isinstance(letters, dict):
        sides["dead_letters", "origin"] = letters.get("origin")
    for place, side in sides.items():
        path = side.get("json") if isinstance(side, dict) else None
        try:
            parse_path(str(path))
        except ValueError:
            continue
        yield place, str(path)


def _refused_by_spark(
    spark: SparkSession, fields: dict[str, Any], texts: dict[Place, str], paths: dict[Place, str]
) -> Iterator[Mistake]:
    inputs = planned_frame(spark, fields_of(*texts.values()))

    one_row = spark.range(1)

    def why(column: Column, frame: DataFrame = inputs) -> str | None:
        try:
            frame.select(column).collect()
        except PySparkException as error:
            return _clause(error)
        return None

    for at, text in texts.items():
        name = _name(at)
        expression = F.expr(in_sql(text))
        refused = why(expression)
        if refused is not None:
            yield mistake(fields, at, f"Spark refuses {text!r}: {refused}")
            continue
        fault = plan_fault(inputs, with_columns(parse_expression(text)))
        if fault is not None:
            yield mistake(fields, at, f"{text!r} is not evaluated: Spark's plan of it has {fault}")
            continue
        for pattern in patterns_of(parse_expression(text)):
            # Without a row, Spark would not even parse the pattern.
            refused = why(F.lit("").rlike(pattern), one_row)
            if refused is not None:
                yield mistake(
                    fields, at, f"Spark refuses the regular expression {pattern!r}: {refused}"
                )
        kind = inputs.select(expression.alias("given")).schema["given"].dataType
        if name == "count" and not isinstance(kind, NumericType):
            null = isinstance(kind, NullType)
            remedy = "Name a number" if null else "Cast it, as in try_cast(... as int)"
            type_name = "null" if null else kind.simpleString()
            yield mistake(
                fields, at, f"{text!r} is of type {type_name}, and a count is a number. {remedy}"
            )
        if name == "value" and why(expression.cast("string")) is not None:
            yield mistake(
                fields, at, f"{text!r} is of type {kind.simpleString()}, which cannot become text"
            )
    for place, path in paths.items():
        refused = why(exact_text(F.col("value"), parse_path(path)))
        if refused is not None:
            yield mistake(fields, place, f"Spark refuses the path {path!r}: {refused}")


def _clause(error: PySparkException) -> str:
    """Return Spark's first sentence, without its codes."""
    message = re.sub(r"^\[[A-Z_.]+\]\s*", "", str(error).strip().splitlines()[0])
    return re.sub(r"\s*SQLSTATE: \w+.*$", "", message).rstrip(". ")
