"""Texts of columns: which of them stand for one value, and which differ."""

from __future__ import annotations

import json
from dataclasses import replace

from pyspark.sql import SparkSession, functions as F

from topicproof.validators.columns import (
    TableTerms,
    canonical_text,
    compared_columns,
    differing,
    is_type,
)
from topicproof.validators.contract_terms import NOTHING_MORE, compared_value

HOSTILE = ("1e-600000000", f"0.{'0' * 60_000}1", "\u03a3" * 60_000, "1" * 200_000)
"""Texts that take Spark's own casts, or a pattern that gives back what it took, forever."""
SAME: dict[str, list[tuple[str, ...]]] = {
    "numeric": [
        ("12.50", "12.5", "012.5", "+12.5", " 12.5 ", "1.25E1", "1250e-2", "125000E-4"),
        ("0", "-0", "0.000", "0E-18", "-0.0e5"),
        (".5", "0.5", "0.05e+1"),
        ("123456789012345678901234567890.10", "123456789012345678901234567890.1"),
        ("12345678901", "1.2345678901E10"),
        ("1.5e+24", "1500000000000000000000000"),
        ("1.0000000000000000001E0", "1.0000000000000000001"),
        ("-0.001", "-1e-3"),
        ("12.51",),
        ("1e1000",),
        ("NaN",),
        ("abc",),
        (".",),
        ("",),
        *((text,) for text in HOSTILE),
    ],
    "bigint": [
        ("2", "2.0", "02", "2.4999"),
        ("1000", "1E3", "999.5"),
        ("29", "28.999999999999996"),
        ("-3", "-2.5"),
        ("0", "-0.4"),
        ("two",),
    ],
    "decimal(12,2)": [("12.51", "12.505"), ("12.5", "12.50", "1.25E1"), ("99999999999999",)],
    "numeric(40,2)": [("12.51", "12.505", "1250.5e-2"), ("100", "99.995", "1e2"), ("0.01", "5e-3")],
    "double": [
        ("1", "1.0", "1e0"),
        ("1e20", "1.0E20"),
        ("0.0", "-0.0", "-0"),
        ("NaN",),
        ("Infinity",),
        ("one",),
        ("\u03a3" * 60_000,),
    ],
    "float": [("0.1", "0.10000000149"), ("0.2",), ("0", "-0")],
    "timestamp": [
        ("2026-01-02 03:04:05+00", "2026-01-02T03:04:05Z", "2026-01-02 04:04:05+01:00"),
        ("2026-01-02 03:04:05.1234567+00", "2026-01-02T03:04:05.123456700Z"),
        ("2026-01-02 03:04:05.123456+00", "2026-01-02T04:04:05.1234560+01:00"),
        ("12:00",),
        ("now",),
    ],
    "timestamp_ntz(3)": [("2026-01-02 03:04:05.5", "2026-01-02T03:04:05.500"), ("12:00",)],
    "date": [("2026-01-02", "2026-1-2"), ("12:00",)],
    "boolean": [("true", "t"), ("false", "f"), ("\u03a3" * 60_000,)],
    "string": [("1",), ("1.0",), ("",)],
}
"""By type: groups of texts that stand for one value each."""


def test_texts_are_compared_by_what_they_stand_for(spark: SparkSession) -> None:
    """Story: a database writes 12.50, and an expression gives 12.5. They are one number, and no
    text that is none equals NULL. A record chooses its texts, and none of them takes long. A time
    without a date stays what it is: today's would be another one tomorrow."""
    rows = [
        (kind, number, text)
        for kind, groups in SAME.items()
        for number, group in enumerate([*groups, (None,)])
        for text in group
    ]
    frame = spark.createDataFrame(rows, "kind string, number int, text string")
    canonical = F.lit("no type")
    for kind in SAME:
        assert is_type(kind)
        canonical = F.when(F.col("kind") == kind, canonical_text(F.col("text"), kind)).otherwise(
            canonical
        )
    texts: dict[tuple[str, int], set[str | None]] = {}
    for row in frame.select("kind", "number", canonical.alias("text")).collect():
        texts.setdefault((row["kind"], row["number"]), set()).add(row["text"])
    for kind, groups in SAME.items():
        assert texts.pop((kind, len(groups))) == {None}
        of_kind = [texts.pop((kind, number)) for number in range(len(groups))]
        assert all(len(each) == 1 for each in of_kind), (kind, of_kind)
        assert len({*map(str, of_kind)}) == len(groups), (kind, of_kind)
        if ("12:00",) in groups:
            assert of_kind[groups.index(("12:00",))] == {"12:00"}


def test_a_time_finer_than_its_column_may_be_rounded_or_cut_off(spark: SparkSession) -> None:
    """Story: an application stores a time with nanoseconds. PostgreSQL rounds it to what the column
    holds, and another driver cuts it off. Both are right, and a time beside them is not. A table
    without compared columns has its whole rows compared with each other."""
    types = {"micros": "timestamp", "millis": "timestamp(3)", "seconds": "timestamp_ntz(0)"}
    minute = "2026-01-02 03:04:"
    required = {"micros": "05.1234567", "millis": "05.6785", "seconds": "05.7"}
    cases: list[tuple[tuple[str, str, str], list[str]]] = [
        (("05.123456", "05.678", "05"), []),
        (("05.123457", "05.679", "06"), []),
        (("05.123458", "05.677", "04"), ["micros", "millis", "seconds"]),
        (("05.123455", "05.68", "07"), ["micros", "millis", "seconds"]),
    ]
    rows = [
        tuple(
            json.dumps({name: minute + text for name, text in zip(types, texts, strict=True)})
            for texts in (required.values(), actual)
        )
        for actual, _ in cases
    ]
    terms = replace(NOTHING_MORE, table=TableTerms(types=types))
    frame = spark.createDataFrame(rows, "required string, value string")
    names = F.transform(
        differing("required", "value", TableTerms(types=types)), lambda each: each.getField("name")
    )
    both = frame.select(
        *(compared_columns(F.col(side), types).alias(side) for side in ("required", "value")),
        (compared_value(terms) == F.col("value")).alias("is_whole"),
    )
    result = both.select("is_whole", names.alias("names")).collect()
    assert [row["names"] for row in result] == [names for _, names in cases]
    assert all(row["is_whole"] for row in result)


def test_only_floating_numbers_have_a_tolerance(spark: SparkSession) -> None:
    types = {"a b.c": "double", "exact": "numeric", "none": "double"}
    rows = [
        ('{"a b.c": "1", "exact": "1", "none": null}', '{"a b.c": "1.0000001", "exact": "1.0"}'),
        ('{"a b.c": "1", "exact": "1"}', '{"a b.c": "1.1", "exact": "1.0000001", "none": "0"}'),
        ('{"a b.c": "Infinity"}', '{"a b.c": "NaN", "exact": null}'),
    ]
    frame = spark.createDataFrame(rows, "required string, actual string")
    both = frame.select(
        *(compared_columns(F.col(side), types).alias(side) for side in ("required", "actual"))
    )
    terms = TableTerms(types=types, tolerance=1e-6)
    found = both.select(differing("required", "actual", terms).alias("differences")).collect()
    assert [[each["name"] for each in row["differences"]] for row in found] == [
        [],
        ["a b.c", "exact", "none"],
        ["a b.c"],
    ]
