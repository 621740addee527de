"""Expressions on Spark: they mean what was written, results keep their bounds, and the plan of each
is looked at before it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings, strategies as st
from pyspark.errors.exceptions.connect import AnalysisException
from pyspark.sql import DataFrame, SparkSession, functions as F

from tests.backend.contracts.test_expressions import EXPRESSIONS, ORDINARY, is_accepted
from topicproof.backend.contracts.expression_functions import FUNCTIONS, NO_LONGER, OF_TWO
from topicproof.backend.contracts.expression_limits import (
    CONSTANT_MAX,
    GROWTH_MAX,
    RECORD,
    constant_of,
)
from topicproof.backend.contracts.expression_tree import parse
from topicproof.backend.contracts.expressions import COLUMNS, _Checker, measured_size, spark_sql
from topicproof.backend.contracts.plan_lock import plan_fault, planned_frame
from topicproof.backend.runs.query import SOURCE_COLUMNS
from topicproof.backend.runs.scenarios import as_text
from topicproof.validators.spark_plans import explained_plan


@pytest.fixture(scope="module")
def records(spark_sessions: Callable[[], SparkSession]) -> DataFrame:
    """Records as an attacker would write them."""
    spark = spark_sessions()
    values = ("", "a,b", "aaaa" * 500, "\u00e9\U0001f600" * 100, ",,,," * 300, '{"a": "\\u0000"}')
    at = datetime(2026, 1, 30, tzinfo=UTC)
    rows: list[tuple[object, ...]] = [
        (b"7", value.encode(), "t", 0, number, at, [("x", b"1")])
        for number, value in enumerate(values)
    ]
    rows.append((b"7", None, "t", 0, 9, at, [("x", b"1")]))
    return as_text(spark.createDataFrame(rows, SOURCE_COLUMNS)).cache()


def is_resolved(records: DataFrame, text: str) -> bool:
    """Whether Spark resolves an expression. It must resolve both or none: what is written, and what
    we make of it."""
    answers = []
    for sql in (text, spark_sql(text)):
        try:
            answers.append(bool(records.select(F.expr(sql)).columns))
        except AnalysisException:
            answers.append(False)
    assert answers[0] is answers[1], text
    return answers[0]


def is_refused(frame: DataFrame, text: str) -> bool:
    """Whether Spark's analyser or the second lock refuses an expression."""
    try:
        return plan_fault(frame, parse(text)) is not None
    except AnalysisException:
        return True


def test_what_spark_gets_means_what_was_written(records: DataFrame) -> None:
    """Story: an expression is written again for Spark. Both texts give the same for each record."""
    # Spark puts a variable of its process into the text itself, so that one differs.
    plain = [text for text in ORDINARY if "${" not in text and is_resolved(records, text)]
    assert len(plain) > 0.8 * len(ORDINARY)
    pairs = [
        column
        for number, text in enumerate(plain)
        for column in (
            F.expr(text).cast("string").alias(f"a{number}"),
            F.expr(spark_sql(text)).cast("string").alias(f"b{number}"),
        )
    ]
    for row in records.select(*pairs).collect():
        for number, text in enumerate(plain):
            assert row[f"a{number}"] == row[f"b{number}"], (text, spark_sql(text))


def test_spark_puts_no_variable_of_its_process_into_a_text(records: DataFrame) -> None:
    """Story: a contract asks for `${env:HOME}` within a text. Spark would put it in."""
    for name in ("env:PATH", "env:HOME", "spark.app.id", "system:user.name"):
        text = f"'${{{name}}}'"
        assert records.select(F.expr(spark_sql(text))).first() == (f"${{{name}}}",)


def test_the_second_lock_looks_at_sparks_plan(spark: SparkSession) -> None:
    """Story: the first lock fails. Spark's plan shows what no expression may have, and nothing of
    that for ordinary ones."""
    frame = planned_frame(spark, ())
    for text in (
        *(
            "current_timestamp()",
            "current_date() > date(timestamp)",
            "uuid() || key",
            "rand() > 0.5",
        ),
        *("localtimestamp()", "current_user()", "java_method('java.lang.Math', 'abs', 1)"),
        *("input_file_name()", "monotonically_increasing_id()", "spark_partition_id()"),
    ):
        assert is_refused(frame, text), text
    assert plan_fault(frame.limit(1), parse("key")) == "GlobalLimit, LocalLimit"
    resolved = [text for text in ORDINARY if not is_refused(frame, text)]
    assert len(resolved) > 0.8 * len(ORDINARY)
    assert plan_fault(frame, parse("key = '_metadata rand() exists#1'")) is None


def test_the_second_lock_looks_at_plans_of_limited_size(spark: SparkSession) -> None:
    """Story: Spark writes an operand once for each branch, which the first lock overlooks. And a
    call has more arguments than Spark shows of it by default."""
    frame, text = planned_frame(spark, ()), "concat(key, key, key, key)"
    for _ in range(4):
        text = f"case {text} {' '.join(['when key then key'] * 10)} end"
    fault = plan_fault(frame, parse(text))
    assert fault is not None and fault.endswith("characters, and 1,000,000 are allowed")
    many = f"array({', '.join(['key'] * 40)}, concat(value, 'z'))"
    assert plan_fault(frame, parse(many)) is None
    plan = explained_plan(frame.select(F.expr(many)), "extended")
    assert plan.count("concat(value#") and "more fields" not in plan


def test_the_second_lock_looks_at_its_own_plan(spark: SparkSession) -> None:
    """Story: pages check the contracts of several people at once. Each is told of its own plan, and
    nothing is printed elsewhere."""
    frame, output = planned_frame(spark, ()), sys.stdout
    texts = ["rand() > 0.5", "key"] * 8
    with ThreadPoolExecutor(8) as pool:
        refused = list(pool.map(lambda text: is_refused(frame, text), texts))
    assert refused == [True, False] * 8
    assert sys.stdout is output


@settings(max_examples=2, deadline=None)
@given(st.lists(EXPRESSIONS.filter(is_accepted), min_size=40, max_size=60, unique=True))
def test_results_have_their_bound_and_stay_the_same(records: DataFrame, texts: list[str]) -> None:
    """Story: accepted expressions meet the records of an attacker. No result is larger than its
    bound, and a second query gives the same."""
    columns = [F.expr(spark_sql(text)) for text in texts]
    names = ("key", "value", "headers[0].key", "headers[0].value")
    record = F.expr(" + ".join(f"coalesce(octet_length({name}), 0)" for name in names))
    sizes = [F.octet_length(column).alias(f"s{n}") for n, column in enumerate(columns)]
    digests = F.sha2(F.to_json(F.array(*columns)), 256).alias("digest")
    once = records.select("offset", record.alias("record"), digests, *sizes).collect()
    again = records.select("offset", digests).collect()
    assert {row.offset: row.digest for row in once} == {row.offset: row.digest for row in again}
    for row in once:
        for number, text in enumerate(texts):
            bound = measured_size(text)
            assert bound.get(RECORD, 0) <= GROWTH_MAX and bound.get("", 0) <= CONSTANT_MAX
            most = bound.get(RECORD, 0) * row.record + bound.get("", 0)
            assert (row[f"s{number}"] or 0) <= most, text


TEXTS = ("1aaaa", "\u00e4bc", "\ufb03" * 3, "\u0390", "a b  ", "x,y,z", "%41%42", "\U0001f600a", "")
OF_ONE = (*NO_LONGER, "reverse", *OF_TWO)
CALLS = (
    *(f"{name}(value)" for name in OF_ONE if FUNCTIONS[name].least == 1),
    *(f"{name}({both})" for name in OF_TWO for both in ("value, 'xyz'", "'x', value")),
    *("translate(value, 'a', 'b')", "split_part(value, ',', 2)", "substring_index(value, ',', 2)"),
    *("bin(length(value))", "decode(binary(value), 'UTF-8')", "decode(value, 'ISO-8859-1')"),
)


def test_no_function_gives_more_characters_than_are_counted(
    spark_sessions: Callable[[], SparkSession],
) -> None:
    """Story: a pattern is allowed behind a function because its result is short. Of texts that
    begin with a digit, an umlaut or a ligature, Spark's results are no longer than that."""
    frame = spark_sessions().createDataFrame([(text,) for text in TEXTS], "value string")
    longest = frame.agg(
        *(F.expr(f"max(length({call.replace('url_decode', 'try_url_decode')}))") for call in CALLS)
    ).first()
    assert longest is not None
    for call, length in zip(CALLS, longest, strict=True):
        text = call.replace("value", f"left(value, {max(map(len, TEXTS))})")
        part = _Checker(text, COLUMNS).part(parse(text))
        most = part.characters if part.characters is not None else constant_of(part.size)
        assert most is not None and length <= most, call


def test_the_fields_of_a_struct_have_the_names_that_were_checked(records: DataFrame) -> None:
    """Story: the author of a contract knows that Spark calls a field by what it was taken from.
    What the check took for a short number would be the whole record."""
    text = "struct(named_struct('col2', value)['col2'], named_struct('foo', 1)['foo']).col2"
    rows = records.select(F.expr(spark_sql(text)).alias("second")).distinct().collect()
    assert [row.second for row in rows] == [1]
