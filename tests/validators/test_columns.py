"""Texts of columns: which of them stand for one value, and which differ."""

from __future__ import annotations

from pyspark.sql import SparkSession, functions as F

from topicproof.validators.columns import (
    TableTerms,
    canonical_text,
    compared_columns,
    differing,
    is_type,
)

SAME: dict[str, list[tuple[str, ...]]] = {
    "numeric": [
        ("12.50", "12.5", "012.5", "+12.5", "1.25E1"),
        ("0", "-0", "0.000", "0E-18"),
        ("123456789012345678901234567890.10", "123456789012345678901234567890.1"),
        ("12345678901", "1.2345678901E10"),
        ("12.51",),
        ("NaN",),
        ("abc",),
        ("",),
    ],
    "bigint": [("2", "2.0", "02"), ("1000", "1E3"), ("2.5",), ("two",)],
    "decimal(12,2)": [("12.51", "12.505"), ("12.5", "12.50", "1.25E1"), ("99999999999999",)],
    "double": [("1", "1.0", "1e0"), ("1e20", "1.0E20"), ("NaN",), ("Infinity",), ("one",)],
    "float": [("0.1", "0.10000000149"), ("0.2",)],
    "timestamp": [("2026-01-02 03:04:05+00", "2026-01-02T03:04:05Z", "2026-01-02 04:04:05+01:00")],
    "timestamp_ntz": [("2026-01-02 03:04:05.5", "2026-01-02T03:04:05.500")],
    "boolean": [("true", "t"), ("false", "f")],
    "string": [("1",), ("1.0",), ("",)],
}
"""By type: groups of texts that stand for one value each."""


def test_texts_are_compared_by_what_they_stand_for(spark: SparkSession) -> None:
    """Story: a database writes 12.50, and an expression gives 12.5. They are one number, and no
    text that is none equals NULL."""
    for kind, groups in SAME.items():
        assert is_type(kind)
        rows = [(number, text) for number, group in enumerate(groups) for text in group]
        frame = spark.createDataFrame([*rows, (-1, None)], "number int, text string")
        canonical = frame.select("number", canonical_text(F.col("text"), kind).alias("text"))
        texts: dict[int, set[str | None]] = {}
        for row in canonical.collect():
            texts.setdefault(row["number"], set()).add(row["text"])
        assert texts.pop(-1) == {None}
        assert all(len(each) == 1 for each in texts.values()), (kind, texts)
        assert len({*map(str, texts.values())}) == len(groups), (kind, texts)


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
