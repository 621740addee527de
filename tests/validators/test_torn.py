"""Transactions that are committed in part, and those that only look so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.validators.history import history, side_by_side
from tests.validators.test_kinds import rows_of, sentences_of
from topicproof.validators.finding import Part


def test_a_transaction_is_whole_or_torn(spark: SparkSession, tmp_path: Path) -> None:
    """Story: six topics. In the first a transaction of two partitions is whole. In the second one
    record of three is nowhere: the gap follows from that. In the third the rest is pending, in the
    fourth nothing is committed, and in the fifth the client hid the rest. In the sixth nothing was
    in a transaction: a crash cut it off, and tore nothing."""
    made = [
        history("0 2 C", "1 C 3 C", inputs=4, first=0),
        history("0%3 1%3 C 3 C", inputs=4, first=2),
        history("0 1 C", "2", inputs=3, first=3),
        history("0%3 1%3 A 0 1 C", inputs=2, first=5),
        history("0 1 2~ C", inputs=3, first=6),
        history("0@1%3! 1@1%3!", inputs=3, first=7),
    ]
    ledger = side_by_side(made).ledger(spark, tmp_path, declared={})
    rows = [row for row in rows_of(ledger) if row[0] in ("torn", "gap")]
    assert rows == [
        ("gap", (None, None, 2, 2, "torn")),
        ("gap", (None, None, 3, 2, "pending")),
        ("gap", (None, None, 6, 2, "reading_mismatch")),
        ("gap", (None, None, 7, 2, None)),
        ("torn", (2, 0, 2, 0, None)),
        ("torn", (6, 0, 6, 0, "reading_mismatch")),
    ]


def test_a_headers_number_makes_no_more_rows_than_there_are_inputs(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: whoever may write to the sink names a transaction of more records than Spark's memory
    could hold offsets. The gap is still told."""
    total = 2**62
    lines = f"0%{total} 1%{total} C 3 C"
    ledger = history(lines, inputs=4).ledger(spark, tmp_path, declared={})
    rows = [row for row in rows_of(ledger) if row[0] in ("torn", "gap")]
    assert rows == [("gap", (None, None, 0, 2, "torn")), ("torn", (0, 0, 0, 0, None))]


def test_what_lies_below_the_start_may_not_be_missing(spark: SparkSession, tmp_path: Path) -> None:
    """Story: the log begins at offset 2, in the middle of the first transaction: its rest was there
    once. Of the third a record is nowhere, and nothing can hide it."""
    ledger = history("0 1 2 C 3 C 4%2 C", inputs=6, judged=[(2, 5)], start=2).ledger(
        spark, tmp_path, declared={}
    )
    assert [row for row in rows_of(ledger) if row[0] == "torn"] == [
        ("torn", (0, 2, 0, 2, "range")),
        ("torn", (0, 6, 0, 4, None)),
    ]


def test_a_sink_that_may_be_one_of_several_is_not_called_torn(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: somebody checks one of a pipeline's two sinks. Its transactions have more records than
    it holds; without the journal nobody knows where the others are, and whether an input lacks one
    is for the gaps to say."""
    rows = rows_of(history("0%3 1%3 C 2%2 C", inputs=3).ledger(spark, tmp_path))
    assert [row for row in rows if row[0] in ("torn", "gap")] == [
        ("torn", (0, 0, 0, 0, "range")),
        ("torn", (0, 3, 0, 2, "range")),
    ]


def test_two_outcomes_show_in_epochs_where_no_header_names_transactions(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: another program wrote two partitions in one transaction of version 2, whose markers
    carry the next epoch. It is committed in one and aborted in the other. Then each partition has
    the same outcome, and the next transaction another one. Transactions of version 1 share their
    epoch, so two outcomes of an epoch are two transactions."""

    made = [
        history("0@ 1@ a1:C", "2@ a1:A a1:3@ a2:C", inputs=4, first=0),
        history("0@ 1@ a1:C", "2@ a1:C a1:3@ a2:A", inputs=4, first=2),
        history("0@ 1@ C", "2@ A 3@ C", inputs=4, first=4),
    ]
    ledger = side_by_side(made).ledger(spark, tmp_path)
    assert [row[1][:2] for row in rows_of(ledger) if row[0] == "fate_split"] == [(1, 0)]


@pytest.mark.parametrize("lines", [("0 1 C", "2 A"), ("0@ 1@ a1:C", "2@ a1:A")])
def test_two_outcomes_are_named_by_topic_and_partition(
    spark: SparkSession, tmp_path: Path, lines: tuple[str, str]
) -> None:
    """Story: two topics are judged as one. A transaction is committed in one partition of the
    second, and aborted in the other. The sentence names the topic's own partition, not the joined
    number."""
    written = history(*lines, inputs=3, first=1)
    bounds = written.sink_bounds
    parts = (Part("refunds", 0), Part("invoices", 1))
    written = replace(written, sink_bounds=replace(bounds, topic="refunds + invoices", parts=parts))
    (why,) = (
        why
        for kind, _, why in sentences_of(written.ledger(spark, tmp_path))
        if kind == "fate_split"
    )
    assert why.endswith("is aborted here, and committed in invoices-0.")
