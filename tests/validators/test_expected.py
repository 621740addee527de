"""How many outputs an input must have: one, none or one, or as many as its count says."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.validators.history import agreeing, history, side_by_side
from tests.validators.test_kinds import rows_of
from topicproof.validators.contract_terms import ContractTerms
from topicproof.validators.expected import Expect, Expected
from topicproof.validators.finding import Bounds, Guarantee, Outcome, PartitionBounds
from topicproof.validators.judge import judge
from topicproof.validators.ledger.counts import values_wanted
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.merged_topics import join
from topicproof.validators.readings import COLUMNS

PARITY = Expected(Expect.ONE_TO_MANY, "offset % 3")
"""Input 0 has no output, 1 has one, 2 has two, 3 has none again."""


def test_as_many_outputs_as_the_count_says(spark: SparkSession, tmp_path: Path) -> None:
    """Story: each input has as many outputs as its expression says; filtered ones have none. In one
    topic all are there. In the other, input 2 lacks its second, those of the last are missing
    altogether, input 3 was to be filtered out and has one, and input 4 has one too many."""
    healthy = history("1 2#0 4 C 5#0 A 5#0 C", "2#1 5#1 C", inputs=6)
    broken = history("1 2#0 3 4#0 4#1 C", inputs=6, first=2)
    ledger = side_by_side([healthy, broken]).ledger(spark, tmp_path, expected=PARITY)
    report = judge(ledger, Guarantee.EXACTLY_ONCE)
    gaps, phantoms = (
        next(one for one in report.findings if one.kind == kind) for kind in ("gap", "phantom")
    )
    assert [(one.lineage, one.why.split(",")[0]) for one in gaps.examples] == [
        ("numbers/2/2/1", "Output 1 of this input"),
        ("numbers/2/5/0", "This input has no committed output"),
        ("numbers/2/5/1", "This input has no committed output"),
    ]
    assert [(one.partition, one.offset, one.lineage) for one in phantoms.examples] == [
        (2, 2, "numbers/2/3/0"),
        (2, 4, "numbers/2/4/1"),
    ]
    assert (
        phantoms.examples[1].why
        == "It is output 1 of its input, counted from 0, and fewer are expected."
    )
    assert {one.kind for one in report.findings if one.count} == {
        "gap",
        "phantom",
        "aborted_volume",
    }
    assert gaps.why == (
        "3 of 12 expected outputs are missing (of inputs numbers-2@2, numbers-2@5)."
    )


def test_a_fraction_is_no_count(spark: SparkSession, tmp_path: Path) -> None:
    """Story: an expression divides. Rounded, its count would fit the sink by accident. A whole
    number is a count whatever its type."""
    doubt = (
        "the contract's `count` must give a whole number from 0 to 1,000,000, and gives something"
        " else for 1 input (numbers-0@0). Correct it."
    )
    for place, (count, doubts) in enumerate(
        (
            ("if(offset = 0, 1.9, 1)", (doubt,)),
            ("if(offset = 0, 1.5D, 1D)", (doubt,)),
            ("'1'", ()),
            ("1.0", ()),
        )
    ):
        made = history("0 1 C", inputs=2)
        expected = Expected(Expect.ONE_TO_MANY, count)
        assert made.ledger(spark, tmp_path / str(place), expected=expected).doubts == doubts


def test_a_text_is_a_count_if_it_is_short(spark: SparkSession) -> None:
    """Story: the count is a field that a producer writes: whole numbers, a fraction, and a megabyte
    of capital sigmas, which Spark would make lower case for an hour. A condition is a count."""
    texts = ("3", " 0\n", "1.5", "1.0", "9" * 301, "x", "\u03a3" * 500_000)
    rows = [
        (0, offset, datetime(2026, 1, 1), b"k", text.encode(), None)
        for offset, text in enumerate(texts)
    ]
    bounds = Bounds("a", (PartitionBounds(0, 0, len(texts), len(texts)),))
    for count, expected in (("value", [3, 0, *[None] * 5]), ("value = '3'", [1, *[0] * 6])):
        frame = spark.createDataFrame(rows, COLUMNS)
        counts = Expected(Expect.ONE_TO_MANY, count).counts(frame, bounds)
        assert counts is not None
        assert [row.expected for row in counts.orderBy("source_offset").collect()] == expected


def test_an_expression_sees_a_records_own_topic_and_partition(spark: SparkSession) -> None:
    """Story: two topics are one source. What the contract says of one of them is true of its
    records alone, in its own numbers of partitions."""
    orders = Bounds("orders", (PartitionBounds(0, 0, 1, 1), PartitionBounds(1, 0, 1, 1)))
    both = join([orders, Bounds("refunds", (PartitionBounds(0, 0, 2, 2),))])
    places = [(0, 0), (1, 0), (2, 0), (2, 1)]
    rows = [(*place, datetime(2026, 1, 1), b"k", b"v", None) for place in places]
    source = spark.createDataFrame(rows, COLUMNS)
    counts = Expected(Expect.ONE_TO_MANY, "if(topic = 'refunds', partition, 7)")
    counted = counts.counts(source, both)
    assert counted is not None
    found = [tuple(row) for row in counted.orderBy("source_partition", "source_offset").collect()]
    assert found == [(0, 0, 7), (1, 0, 7), (2, 0, 0), (2, 1, 0)]
    agreed = ContractTerms(value="concat(topic, '/', partition, '/', offset)")
    values = values_wanted(source, source, both, agreed)
    assert values is not None
    wanted = values.wanted.orderBy("source_partition", "source_offset").collect()
    assert [bytes(row["wanted"]).decode() for row in wanted] == [
        *("orders/0/0", "orders/1/0", "refunds/0/0", "refunds/0/1")
    ]


def test_counts_may_come_as_a_table(spark: SparkSession, tmp_path: Path) -> None:
    """Story: no expression can tell how many outputs an input has, so that the caller counted. One
    input is not in the table, and one has a negative count: nothing is judged."""
    rows = [(0, 0, 2), (0, 1, 0), (0, 2, -1)]
    counts = spark.createDataFrame(rows, "partition int, offset long, count int")
    made = history("0#0 0#1 2 C", inputs=4)
    ledger = made.ledger(spark, tmp_path, expected=Expected(Expect.ONE_TO_MANY, counts))
    assert ledger.doubts == (
        "the contract's `count` must give a whole number from 0 to 1,000,000, and gives something"
        " else for 2 inputs (the first is numbers-0@2). Correct it.",
    )
    assert (ledger.counts.outputs, list(rows_of(ledger))) == (2, [])


def test_counts_that_ask_for_millions_together_are_a_doubt(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: a producer chooses the field that is a count. Each of eleven is allowed, and all
    together would be a table of eleven million rows. None of them is made."""
    made = history("0#0 1#0 C", inputs=11)
    for place, (count, doubts) in enumerate(
        (
            (
                "1000000",
                (
                    "the contract's `count` asks for 11,000,000 outputs, and 10,000,000 are looked"
                    " for, or 10 for each offset of the sink if that is more. Correct it, or judge"
                    " a shorter range.",
                ),
            ),
            ("if(offset > 0, 1000000, 0)", ()),
        )
    ):
        expected = Expected(Expect.ONE_TO_MANY, count)
        ledger = made.ledger(spark, tmp_path / str(place), expected=expected)
        assert ledger.doubts == doubts
        assert ledger.counts.outputs == (0 if doubts else 10_000_000)


def test_a_condition_decides_what_is_filtered_out(spark: SparkSession, tmp_path: Path) -> None:
    """Story: a stage keeps the odd inputs. In the second topic one of them is missing, and an even
    one came through."""
    odd = Expected(Expect.ZERO_OR_ONE, "cast(substring_index(key, '.', -1) as int) % 2 = 1")
    both = [history("1 3 C", inputs=5), history("1 2 C", inputs=5, first=1)]
    ledger = side_by_side(both).ledger(spark, tmp_path, expected=odd)
    assert list(rows_of(ledger)) == [
        ("gap", (None, None, 1, 3, None)),
        ("phantom", (1, 1, 1, 2, None)),
    ]
    assert ledger.counts.outputs == 4


def test_without_a_condition_filtered_and_lost_are_alike(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: nobody says what the stage filters out. An input without any record is not judged, and
    the report says so."""
    ledger = history("1 3 C", inputs=5).ledger(
        spark, tmp_path, expected=Expected(Expect.ZERO_OR_ONE)
    )
    report = judge(ledger, Guarantee.EXACTLY_ONCE)
    assert (report.verdict, report.why) == (
        Outcome.HOLDS,
        (
            "2 outputs of 5 inputs committed exactly once, in order; it is unknown whether the"
            " other 3 were filtered out or lost."
        ),
    )
    assert report.warnings == (
        "3 inputs have no output: filtered or lost, and zero_or_one without a count cannot tell."
        " Give the contract a `count` of 0 or 1, or accept this with `filtered: unchecked`.",
    )
    accepted = agreeing(ledger, ContractTerms(filter_unchecked=True))
    assert judge(accepted, Guarantee.EXACTLY_ONCE).warnings == ()


def test_where_each_input_has_an_output_nothing_is_left_open(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: the stage could filter, and every input has its output. The sentence leaves nothing
    open, and nothing warns."""
    ledger = history("0 1 2 C", inputs=3).ledger(
        spark, tmp_path, expected=Expected(Expect.ZERO_OR_ONE)
    )
    report = judge(ledger, Guarantee.EXACTLY_ONCE)
    assert (report.why, report.warnings) == (
        "3 outputs of 3 inputs committed exactly once, in order.",
        (),
    )


def test_what_was_produced_was_not_filtered_out(spark: SparkSession, tmp_path: Path) -> None:
    """Story: an output was produced, aborted and never committed: it is missing. An input with two
    has one too many."""
    ledger = history("1 C 2 A 3 3#1 C", inputs=5).ledger(
        spark, tmp_path, expected=Expected(Expect.ZERO_OR_ONE)
    )
    assert [row for row in rows_of(ledger) if row[0] != "aborted_volume"] == [
        ("gap", (None, None, 0, 2, None)),
        ("phantom", (0, 5, 0, 3, None)),
    ]
    assert ledger.counts.outputs == 3


def test_keys_stand_for_as_many_outputs_as_are_expected(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: without lineage, the k-th record of a key is its k-th expected output. Two inputs
    share each key, and have three outputs together; in the second topic one of these is missing."""
    shared: list[dict[tuple[int, int], bytes | None]] = [
        {(0, 1): key, (0, 2): key} for key in (b"a", b"b")
    ]
    both = [
        history("1 2 2 C", inputs=3, keys=shared[0]),
        history("1 2 C", inputs=3, keys=shared[1], first=1),
    ]
    ledger = side_by_side(both).ledger(spark, tmp_path, identity=Identity.KEY, expected=PARITY)
    rows = [row for row in rows_of(ledger) if row[0] not in ("identity_repeated", "outputs_alike")]
    assert rows == [("gap", (None, None, 1, 2, None))]


@pytest.mark.parametrize(("kind", "count"), [(Expect.ONE_TO_MANY, None), (Expect.ONE_TO_ONE, "2")])
def test_a_count_goes_with_its_kind(kind: Expect, count: str | None) -> None:
    """Story: a contract asks for many and says not how many, or for one and says two."""
    with pytest.raises(ValueError, match="count"):
        Expected(kind, count)
