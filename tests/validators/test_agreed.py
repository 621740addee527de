"""What only a contract asks for: values, a group's offsets, other identities, no order."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions as F

from tests.validators.history import History, history, side_by_side
from tests.validators.test_kinds import rows_of
from topicproof.backend.contracts.expression_fields import each_in_sql
from topicproof.backend.runs.query import explained
from topicproof.validators.circumstances import Circumstances
from topicproof.validators.contract_terms import ContractTerms
from topicproof.validators.finding import Guarantee, Order, Outcome
from topicproof.validators.judge import judge
from topicproof.validators.kinds.wrong_value import shown
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.lineage.identity import Identity, Match
from topicproof.validators.report import Report
from topicproof.validators.spark_errors import first_line

VALUE = "substring_index(key, '.', -1)"
"""The value of an output is the number of its input."""


def wrong(
    ledger: Ledger, guarantee: Guarantee = Guarantee.EXACTLY_ONCE
) -> tuple[Report, dict[str, int]]:
    report = judge(ledger, guarantee)
    return report, {
        one.kind: one.primary for one in report.findings if one.outcome is Outcome.VIOLATED
    }


def test_a_value_and_the_groups_offsets_agree_with_the_contract(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: every value is what its expression gives, and the group's offset is after the last
    input. All kinds are required."""
    agreed = ContractTerms(value=VALUE, offsets={0: 3})
    report, _ = wrong(history("0 1 A 0 1 2 C", inputs=3).ledger(spark, tmp_path, agreed=agreed))
    assert report.why.startswith("3 of 3 inputs committed exactly once, in order")
    assert {"wrong_value", "offset_ahead", "offset_behind"} <= {
        check.kind for check in report.checked
    }
    assert not {"wrong_value", "offset_ahead", "offset_behind"} & {
        one.kind for one in report.not_checked
    }


def test_one_value_is_wrong(spark: SparkSession, tmp_path: Path) -> None:
    """Story: input 1 was computed wrongly, and nothing else. The same in an aborted attempt hurts
    nobody."""
    made = history("0 1 A 0 1 2 C", inputs=3)
    for reading in (made.committed, made.uncommitted):
        reading[:] = [(*row[:4], b"7", row[5]) if row[1] in (1, 4) else row for row in reading]
    report, found = wrong(made.ledger(spark, tmp_path, agreed=ContractTerms(value=VALUE)))
    assert found == {"wrong_value": 1}
    assert report.why == "Not exactly once: 1 of 3 committed outputs has a wrong value."
    (example,) = next(one for one in report.findings if one.primary).examples
    assert (example.partition, example.offset, example.lineage) == (0, 4, "numbers/0/1/0")
    assert (
        example.why
        == "Its value is not the one that the contract's expression gives for its input: it is"
        ' "7", and "1" is expected.'
    )


ORDER = b"amount=100; to=alice; " * 3
FORGED = b"FORGED!!00; to=alice; amount=100\x818\xf8\xddoB9\x89ce; amount=100; to=alice; "
AS_NULL = b"\x81\x08OjY\xac\xfdn"


def test_a_forged_value_is_wrong(spark: SparkSession, tmp_path: Path) -> None:
    """Story: a program writes values whose xxhash64 is that of the right value, or that of null,
    which Spark makes 42. Both are easy to make, and both are found."""
    pair = spark.createDataFrame([(ORDER, FORGED, AS_NULL)], "a binary, b binary, c binary")
    assert pair.where("xxhash64(a) = xxhash64(b) and xxhash64(c) = 42").count() == 1
    made = side_by_side(history("0 1 C", inputs=2, first=number) for number in range(2))
    values = ((ORDER, FORGED), (None, AS_NULL))
    for reading in (made.committed, made.uncommitted):
        reading[:] = [(*row[:4], values[row[0]][row[1]], row[5]) for row in reading]
    agreed = ContractTerms(value=f"if(partition = 0, '{ORDER.decode()}', null)")
    report, found = wrong(made.ledger(spark, tmp_path, agreed=agreed))
    assert found == {"wrong_value": 2}
    (finding,) = (one for one in report.findings if one.primary)
    assert {(one.partition, one.offset) for one in finding.examples} == {(0, 1), (1, 1)}


def test_a_value_that_cannot_be_computed_is_not_judged_and_not_quoted(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: the contract's expression fails on a key that nobody may see. The report names the
    error, and Spark's message, which quotes the key, is nowhere in it."""
    made = history("0 1 C", inputs=2, keys={(0, 1): b"4711-secret"})
    agreed = ContractTerms(value="cast(key as decimal(9, 1))")
    report, found = wrong(made.ledger(spark, tmp_path, agreed=agreed))
    assert report.verdict is Outcome.UNKNOWN and not found
    assert "CAST_INVALID_INPUT" in report.why and "4711" not in report.to_json()
    with pytest.raises(PySparkException) as refused:
        spark.sql("select cast(concat('4711', '-secret') as int)").collect()
    for said in (first_line(refused.value), str(explained(refused.value))):
        assert "CAST_INVALID_INPUT" in said and "4711" not in said


CARD = "card 4711 [VIP] [Gold, a\nSQLSTATE: 42601"


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("cast(value as int)", "CAST_INVALID_INPUT"),
        ("map(value, 1, key, 2)", "DUPLICATED_MAP_KEY"),
        ("to_number(value, '999')", "INVALID_FORMAT.MISMATCH_INPUT"),
        ("to_timestamp(value, 'yyyy')", "CANNOT_PARSE_TIMESTAMP"),
        ("parse_url(value, 'HOST')", "INVALID_URL"),
        ("raise_error(value)", "USER_RAISED_EXCEPTION"),
    ],
)
def test_no_error_of_spark_quotes_a_record(spark: SparkSession, expression: str, name: str) -> None:
    """Story: an expression fails on a value with brackets, capitals and the codes of another error.
    Reports and terminals have the error's name, which the record does not choose."""
    rows = spark.createDataFrame([(CARD, CARD)], "key string, value string")
    with pytest.raises(PySparkException) as failure:
        rows.selectExpr(f"{expression} as x").collect()
    for sentence in (first_line(failure.value), str(explained(failure.value))):
        assert f"{name} (Spark's message is left out" in sentence
        assert "4711" not in sentence and "VIP" not in sentence
    with pytest.raises(PySparkException) as failure:
        rows.selectExpr("nowhere + 1").collect()
    assert "`nowhere` cannot be resolved" in first_line(failure.value)


def test_bytes_that_are_no_text_are_no_replacement_character(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: the field of an output must be the text of its input, and an input's bytes are not
    UTF-8. The output holds U+FFFD, which JSON makes of such bytes; nothing tells whether that is
    right. Of an input that holds U+FFFD itself, it is."""
    terms = ContractTerms(
        value=each_in_sql({"a.x": "value"}), compared=("field:a.x",), sink_fields=("field:a.x",)
    )
    text = F.when(F.col("offset") == 0, "\ufffd").otherwise("1")
    sink = F.struct(F.lit(None).cast("string").alias("reason"), text.alias("field:a.x"))
    source = F.struct(F.lit(None).cast("string").alias("reason"))
    made = side_by_side(history("0 1 C", inputs=2, first=number) for number in range(2))
    held = (b"\xff", "\ufffd".encode())
    made.source[:] = [(*row[:4], b"1" if row[1] else held[row[0]], row[5]) for row in made.source]
    report, _ = wrong(made.ledger(spark, tmp_path, agreed=terms, decoded=(source, sink)))
    assert report.verdict is Outcome.UNKNOWN, report.why
    (told,) = (one for one in report.findings if one.kind == "wrong_value")
    assert told.explained_by == "undecodable"
    assert [(one.partition, one.offset) for one in told.examples] == [(0, 0)]


def test_values_are_shown_for_people(spark: SparkSession) -> None:
    """Story: values are missing, hold control characters, are no text, or are long."""
    held = [None, b"", b"a\nb", "grün".encode(), b"\xff\x00", b"\xff" * 40, b"x" * 61]
    rows = spark.createDataFrame([(one,) for one in held], "value binary").select(
        shown("value").alias("text")
    )
    assert [row["text"] for row in rows.collect()] == [
        *("null", '""', '"a\ufffdb"', '"grün"', "0xff00"),
        "0x" + "ff" * 30 + "… (40 bytes)",
        '"' + "x" * 60 + '"… (61 bytes)',
    ]


def test_a_groups_offset_must_agree_with_the_output(spark: SparkSession, tmp_path: Path) -> None:
    """Story: of partition 0 two inputs are lost below the group's offset. In partition 1 the offset
    was not committed with the last output. A hole in partition 2 says nothing about its offset."""
    made = [
        history("0 1 C", inputs=4, first=0),
        history("0 1 2 C", inputs=3, first=1),
        history("0 2 C", inputs=3, first=2),
    ]
    ledger = side_by_side(made).ledger(
        spark, tmp_path, agreed=ContractTerms(offsets={0: 4, 1: 2, 2: 3})
    )
    assert list(rows_of(ledger)) == [
        ("gap", (None, None, 0, 2, "offset_ahead")),
        ("gap", (None, None, 0, 3, "offset_ahead")),
        ("gap", (None, None, 2, 1, None)),
        ("offset_ahead", (None, None, 0, 2, None)),
        ("offset_behind", (None, None, 1, 2, None)),
    ]
    assert wrong(ledger)[1] == {"gap": 1, "offset_ahead": 1, "offset_behind": 1}
    assert wrong(ledger, Guarantee.AT_MOST_ONCE)[1] == {"offset_behind": 1}


def test_what_at_most_once_lost_is_not_called_committed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: a program commits its offsets, then dies before it writes. Its group explains the two
    lost outputs, and they are counted as lost."""
    made = history("0 1 2 3 C", inputs=6)
    for offsets in ({0: 6}, None):
        ledger = made.ledger(spark, tmp_path, agreed=ContractTerms(offsets=offsets))
        report, found = wrong(ledger, Guarantee.AT_MOST_ONCE)
        assert not found
        assert report.why.startswith("4 of 6 inputs committed at most once, in order; 2 lost, as")


def test_a_groups_offset_may_wait_for_an_open_transaction(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: an abandoned transaction holds the last stable offset back, and the outputs behind it,
    which the group's offset covers, are pending. As far as is known nothing is lost, so there is no
    verdict yet."""
    made = history("a:0 a:C b:9 a:1 a:2 a:C", inputs=3)
    ledger = made.ledger(spark, tmp_path, agreed=ContractTerms(offsets={0: 3}))
    assert {row[1][-1] for row in rows_of(ledger) if row[0] in ("gap", "offset_ahead")} == {
        "pending"
    }
    assert judge(ledger, Guarantee.EXACTLY_ONCE).verdict is Outcome.UNKNOWN


def test_a_groups_offset_beyond_pending_inputs_skips_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: the group stands at 4, but inputs 2 and 3 are in an open transaction, so no consumer
    at read_committed was there. If it commits, both are lost; so there is no verdict yet."""
    made = history("0 1 C", inputs=4, judged=[(0, 2)], holes=[(0, 2), (0, 3)])
    for lso, cause, verdict in (
        (2, {("offset_ahead", (None, None, 0, None, "pending"))}, Outcome.UNKNOWN),
        (4, set(), Outcome.HOLDS),
    ):
        ledger = made.ledger(
            *(spark, tmp_path),
            agreed=ContractTerms(offsets={0: 4 if lso == 2 else 2}),
            circumstances=Circumstances(source_lso={0: lso}),
        )
        assert {row for row in rows_of(ledger) if row[0] == "offset_ahead"} == cause
        assert judge(ledger, Guarantee.EXACTLY_ONCE).verdict is verdict


def test_a_record_is_known_by_what_both_sides_hold(spark: SparkSession, tmp_path: Path) -> None:
    """Story: the source has its number in JSON, the sink in a header, where it stands twice: the
    last one counts. One number is missing, another came twice; nobody wrote lineage, and no order
    is promised."""

    def topics() -> History:
        made = history("2 0 0 C", inputs=3)
        made.source[:] = [(*row[:4], b'{"id": %d}' % row[1], row[5]) for row in made.source]
        for reading in (made.committed, made.uncommitted):
            reading[:] = [(*row[:3], b"k", b"v", [("id", b"9"), ("id", row[4])]) for row in reading]
        return made

    agreed = ContractTerms(match=Match("json:$.id", "header:id"))
    ledger = topics().ledger(
        spark, tmp_path, identity=Identity.KEY, agreed=agreed, order=Order.NONE
    )
    report, found = wrong(ledger)
    assert found == {"duplicate": 1, "gap": 1}
    assert {one.kind: one.why for one in report.not_checked}[
        "order"
    ] == "Not required: no order is promised."
