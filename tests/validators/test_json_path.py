"""Paths into JSON: which are read, and what lies at them, to the last digit."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given, strategies as st
from pyspark.sql import SparkSession, functions as F

from topicproof.validators.json_path import _MARKED, exact_text, parse_path, spell_path, why_absent
from topicproof.validators.lineage.identity import Match

DIGITS = "123456789012345678901234567890"
SMALL = "0.1000000000000000001"
LONG = "1" * 1_200


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("$.id", ("id",)),
        ("$.order-id", ("order-id",)),
        ("$.a.b[2].c", ("a", "b", 2, "c")),
        ("$[0][10]", (0, 10)),
        ("$['a.b']['c d'].e", ("a.b", "c d", "e")),
        (r"$['it\'s']", ("it's",)),
        (r"$['a\\b']", (r"a\b",)),
        ("$['*']", ("*",)),
    ],
)
def test_a_path_is_read_step_by_step(text: str, steps: tuple[str | int, ...]) -> None:
    """Story: names, quoted names and indices, one after the other."""
    assert parse_path(text) == steps
    assert parse_path(spell_path(steps)) == steps


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("id", "does not begin with \\$"),
        ("", "does not begin with \\$"),
        ("$", "is the whole value"),
        ("$..id", "cannot search all levels"),
        ("$.a[*]", "cannot hold a wildcard"),
        ("$.*", "cannot hold a wildcard"),
        ("$.a[?(@.b)]", "cannot hold a filter"),
        ("$.a.", "cannot hold an empty name"),
        ("$['']", "cannot hold an empty name"),
        ("$.[0]", "cannot hold an empty name"),
        ("$.a[-1]", r"cannot hold '\[-1\]'"),
        ("$.a[01]", r"cannot hold '\[01\]'"),
        ("$.a[1:2]", r"cannot hold '\[1:2\]'"),
        ("$.a b", "cannot hold ' b'"),
        ("$['a]", "cannot hold"),
        ("$x", "cannot hold 'x'"),
        ("$[99999999999]", "index 99999999999 is too large"),
        ("$['\\'\"']", "both kinds of quotes"),
    ],
)
def test_another_path_is_refused_with_a_reason(text: str, says: str) -> None:
    """Story: a path of a larger language. One clause says which part of it is not read."""
    with pytest.raises(ValueError, match=says):
        parse_path(text)


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
    lambda name: not {"'", '"'} <= set(name)
)


@given(st.lists(NAMES | st.integers(0, 2**31 - 1), min_size=1).map(tuple))
def test_every_path_that_can_be_written_is_read_again(steps: tuple[str | int, ...]) -> None:
    """Story: any names and indices. Their spelling gives them back."""
    assert parse_path(spell_path(steps)) == steps


CASES = [
    # (document, path, text)
    ('{"id":' + DIGITS + "}", "$.id", DIGITS),
    ('{"id":' + SMALL + "}", "$.id", SMALL),
    ('{"id": ' + LONG + ' , "x":[' + SMALL + "]}", "$.id", LONG),
    ('{"id":1.10}', "$.id", "1.10"),
    ('{"id":7}', "$.id", "7"),
    ('{"id":-0}', "$.id", "-0"),
    ('{"id":1.0E+400\n}', "$.id", "1.0E+400"),
    ('{"id":true}', "$.id", "true"),
    ('{"id":"1.10"}', "$.id", "1.10"),
    ('{"id":""}', "$.id", ""),
    ('{"id":"null"}', "$.id", "null"),
    ('{"a":"say \\"2.5\\" , 5","id":"1, 2.50"}', "$.id", "1, 2.50"),
    (
        '{"id":"\\u00e9\\n\\"b\\" \\ud83d\\ude00 \U0001f600"}',
        "$.id",
        'é\n"b" \U0001f600 \U0001f600',
    ),
    ('  {"id":9 } ', "$.id", "9"),
    # Objects and arrays.
    ('{"id":{"b":1.10,  "a":' + SMALL + "}}", "$.id", '{"a":' + SMALL + ',"b":1.10}'),
    ('{"id":[1.10, "x"]}', "$.id", '[1.10,"x"]'),
    # Nesting: of different kinds in one array, and of JSON within a text.
    ('{"a":{"b":["x",[],{"c":1.10}]}}', "$.a.b[2].c", "1.10"),
    ('{"a":"{\\"b\\":1}"}', "$.a.b", None),
    ("[1.10,{}]", "$[0]", "1.10"),
    ("[[1],[2," + DIGITS + "]]", "$[1][1]", DIGITS),
    # Nothing there.
    ('{"id":null}', "$.id", None),
    ('{"x":1}', "$.id", None),
    ('{"ID":1}', "$.id", None),
    ('{"id":1,"ID":2}', "$.ID", "2"),
    ('[{"id":3}]', "$.id", None),
    ('{"id":3}', "$[0]", None),
    ("[1]", "$[1]", None),
    ('{"a":5}', "$.a.b", None),
    ('{"a":{"b":1}}', "$.a[0]", None),
    ("5", "$.id", None),
    # No JSON.
    ("", "$.id", None),
    ("not", "$.id", None),
    ('{"id":1', "$.id", None),
    ('{"id":1} and', "$.id", None),
    ('{"id":1},{"id":2}', "$.id", None),
    ('{"id":"x","a":tru}', "$.id", None),
    ("{'id':1}", "$.id", None),
    ('{"id":01}', "$.id", None),
    ('{"id":1.}', "$.id", None),
    ('{"id":.5}', "$.id", None),
    ('{"id":NaN}', "$.id", None),
    ('{1.5:2,"id":3}', "$.id", None),
    ('{"id":1.5 2.5}', "$.id", None),
    ('{"id":"a\x01b"}', "$.id", None),
    ('{"id":"\\ud800"}', "$.id", None),
    ('/*c*/{"id":1}', "$.id", None),
    ('{"id":1}}', "$.id", None),
    ('{"id":1}} trailing {{', "$.id", None),
    ('{"id":1}}{"id":2', "$.id", None),
    ('{"id":1},"x":{"id":2}', "$.id", None),
    ('{"id":1}]', "$.id", None),
    ('{"id":1}],"x":[2', "$.id", None),
    ('{"id":1},2', "$.id", None),
    ('{"id":1}:2', "$.id", None),
    ('{"id":"x\ufdd012"}', "$.id", None),
    ('{"id":1,"x":"\ufdd0"}', "$.id", None),
    *(
        (f'{{"id":"{mark}123"}}', "$.id", None)
        for mark in (r"\ufdd0", r"\uFDd0", r"a\ufdd0", r"\\\uFDD0")
    ),
    (r'{"id":"\"\ufdd0123\""}', "$.id", None),
    (r'{"id":1,"\ufdd0":"x"}', "$.id", None),
    (r'{"id":"\\ufdd0123"}', "$.id", r"\ufdd0123"),
    # A name twice.
    ('{"id":1,"id":2}', "$.id", None),
    ('{"id":1,"x":{"a":1,"a":1}}', "$.id", None),
    # Names.
    ('{"a.b":1,"a":{"b":2}}', "$['a.b']", "1"),
    ('{"a b":1}', "$['a b']", "1"),
    ('{"it\'s":1}', r"$['it\'s']", "1"),
    ('{"q\\"q":1}', "$['q\"q']", "1"),
    ('{"a[0]":1}', "$['a[0]']", "1"),
    ('{"*":1}', "$['*']", "1"),
    ('{"a\\\\b":1}', r"$['a\\b']", "1"),
    ('{"é":1}', "$.é", "1"),
]


def test_the_text_at_a_path_is_what_was_written(spark: SparkSession) -> None:
    """Story: numbers beyond a double, names of all kinds, and what is no JSON. Spark gives what the
    docstring says."""
    documents = spark.createDataFrame(
        [(number, text) for number, (text, _, _) in enumerate(CASES)], "n int, d string"
    )
    wanted = F.lit(None).cast("string")
    for path in {path for _, path, _ in CASES}:
        own = [number for number, case in enumerate(CASES) if case[1] == path]
        wanted = F.when(F.col("n").isin(own), exact_text(F.col("d"), parse_path(path))).otherwise(
            wanted
        )
    found = {row.n: row.found for row in documents.select("n", wanted.alias("found")).collect()}
    for number, (text, path, expected) in enumerate(CASES):
        assert found[number] == expected, (text, path)


@given(
    st.lists(st.sampled_from(("\\", "u", "fdd0", "FDD0", "fDd0", "\ufdd0", "1", "n")), max_size=9)
)
@example(["\\", "u", "FDD0", "1"])
@example(["\\", "\\", "u", "fdd0"])
def test_the_mark_is_seen_in_every_spelling(pieces: list[str]) -> None:
    """Story: JSON can spell a character as an escape. A document that holds the private mark in any
    spelling is refused, and no other is."""
    document = f'"{"".join(pieces)}"'
    try:
        text = json.loads(document)
    except ValueError:
        return
    assert (re.search(_MARKED, document) is not None) == ("\ufdd0" in text)


def test_bytes_that_are_not_utf8_are_no_json(spark: SparkSession) -> None:
    """Story: a producer writes Latin-1. Two ids that differ in one letter are not the same id, as
    they would be if each letter became the replacement character."""
    documents = [b'{"id":"order-\xe9"}', b'{"id":"order-\xe8"}', '{"id":"é\ufffd"}'.encode()]
    rows = spark.createDataFrame([(one,) for one in documents], "d binary")
    found = rows.select(exact_text(F.col("d").cast("string"), ("id",)).alias("found")).collect()
    assert [row.found for row in found] == [None, None, "é\ufffd"]


def test_a_long_document_is_read_to_its_end(spark: SparkSession) -> None:
    """Story: a megabyte of escapes and 100,000 numbers before the id. Neither the stack nor the
    time runs out."""
    long = spark.range(1).select(
        F.concat(
            F.lit('{"a":"'), F.repeat(F.lit('\\"'), F.lit(500_000)), F.lit('","b":['),
            F.repeat(F.lit("1.5,"), F.lit(100_000)), F.lit('1],"id":1.10}'),
        ).alias("d")
    )  # fmt: skip
    assert [
        row.found for row in long.select(exact_text(F.col("d"), ("id",)).alias("found")).collect()
    ] == ["1.10"]


@pytest.mark.parametrize(
    ("first", "second"), [(SMALL, "0.1"), ("1.10", "1.1"), (DIGITS + ".0", DIGITS + ".1")]
)
def test_ids_that_differ_beyond_a_double_are_two(
    spark: SparkSession, first: str, second: str
) -> None:
    """Story: two orders whose numbers are one double. Each is matched with its own output."""
    orders = spark.createDataFrame(
        [(('{"id":' + number + "}").encode(),) for number in (first, second)], "value binary"
    )
    held = orders.select(Match("json:$.id").of_source().alias("held")).collect()
    assert {bytes(row.held) for row in held} == {first.encode(), second.encode()}


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (None, "it has no value"),
        (b"\xff{}", "its value is not UTF-8 text"),
        (
            b'\xef\xbb\xbf{"id": 1}',
            "its value begins with a byte order mark, which is no part of JSON",
        ),
        (b'{"x": 1}', "its document holds nothing, or null, at $.id"),
        (b'{"id": null}', "its document holds nothing, or null, at $.id"),
        (b'{"id": 1, "tag": 1, "tag": 2}', "its document holds the name tag twice"),
        (
            b'{"x": ' + b"[" * 1_500 + b"]" * 1_500 + b', "id": 1}',
            "its document is nested more than 1,000 levels deep",
        ),
        # A thousand of them far apart, each of which was looked at once for each one before it.
        (
            (b"[" + b"a" * 4_000) * 1_000 + b"]",
            "its value is no valid JSON document, or an object in it holds a name twice",
        ),
        (
            b"[]" * 1_000 + b"[" * 1_001,
            "its document is nested more than 1,000 levels deep",
        ),
        (rb'{"id": "\uFdd01"}', "its document holds the character U+FDD0, which no identity has"),
        # Spark parses a document again for each name: of this one, for hours.
        (
            b"{" + b",".join(b'"%d":0' % number for number in range(80_000)) + b"}x",
            "its value is no valid JSON document, or an object in it holds a name twice",
        ),
        (b'{"id": 1', "its value is no valid JSON document, or an object in it holds a name twice"),
        (
            b'{"id": 1, "x": {"a": 1, "a": 2}}',
            "its value is no valid JSON document, or an object in it holds a name twice",
        ),
        (b'{"id": 1}', None),
    ],
)
def test_the_reason_why_nothing_lies_at_a_path(
    spark: SparkSession, document: bytes | None, reason: str | None
) -> None:
    """Story: a record has no identity, and its owner sees one in the document. The reason says what
    is wrong with it. Only what `exact_text` finds needs none."""
    path = parse_path("$.id")
    frame = spark.createDataFrame([(document,)], "value binary")
    text = exact_text(F.col("value").cast("string"), path)
    row = frame.select(F.when(text.isNull(), why_absent(F.col("value"), path))).collect()[0]
    assert row[0] == reason
