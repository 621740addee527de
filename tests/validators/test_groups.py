"""Aggregates of groups, compared with a slow judge in plain Python that shares no code with them:
group_missing, group_unknown, wrong_aggregate and wrong_update."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions as F

from tests.validators.group_oracle import Policy, false, judge as judge_slowly
from tests.validators.hostile_groups import describe, differences, draw, grouped, simulate
from tests.validators.pair_ledger import Row
from topicproof.validators import readings
from topicproof.validators.aggregate import (
    AggregatedValue,
    AggregateTerms,
    Encoding,
    Function,
    actual_text,
    is_equal,
    number,
    number_text,
)
from topicproof.validators.circumstances import Circumstances
from topicproof.validators.contract_terms import ContractTerms
from topicproof.validators.expectation import (
    NO_NUMBER,
    OF_AGGREGATE,
    SEVERAL_SINKS,
    SEVERAL_SOURCES,
)
from topicproof.validators.finding import Bounds, Order, PartitionBounds
from topicproof.validators.kinds import group_missing, group_unknown, wrong_aggregate, wrong_update
from topicproof.validators.ledger.group_totals import count_groups
from topicproof.validators.ledger.ledger import LedgerInput
from topicproof.validators.question import Question
from topicproof.validators.readings import Readings, frame_of

TIME = datetime(2026, 1, 1, tzinfo=UTC)
PAIRS, SEED = 160, 68
"""Pairs of each policy, of which most share a ledger."""
POLICIES = (
    Policy("sum", running=True),
    Policy("max", group=True),
    Policy("count(*)", running=True, group=True, moving=True),
)
SUM = AggregateTerms("key", (AggregatedValue(Function.SUM, "value", None),), "key", running=True)


def test_the_validators_agree_with_the_slow_judge_and_with_the_truth(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: programs that count, add and compare, and that lose updates, apply them twice, restore
    an old store, read aborted inputs, write to a wrong partition and write tombstones. Each row is
    the one that plain Python finds, and the truth allows each verdict."""
    differ, rows, outcomes = [], Counter[Row](), Counter[str]()
    for seed, policy in enumerate(POLICIES, SEED):
        stories = grouped(draw(PAIRS, seed, policy))[0]
        differ += differences(spark, tmp_path, stories)
        for story in stories:
            judged = judge_slowly(simulate(story))
            rows += judged.rows
            outcomes[judged.outcome] += 1
    assert [each.text for each in differ] == []
    assert {kind for kind, cause in rows if cause is None} == set(OF_AGGREGATE)
    assert min(outcomes.values()) >= 10 and len(outcomes) == 3, outcomes


def test_no_rule_of_the_slow_judge_contradicts_the_truth() -> None:
    """Story: two thousand hostile aggregates are simulated, so that their truth is known."""
    wrong = [
        describe(story)
        for story in draw(2_000, SEED)
        if false(simulate(story), judge_slowly(simulate(story)).outcome)
    ]
    assert wrong == []


def test_what_nobody_can_tell_is_no_verdict(spark: SparkSession, tmp_path: Path) -> None:
    """Story: what a look at the numbers alone would take for right, or for wrong. One group lost an
    input of the second source partition, and a later input of the first makes up for it; another
    has a tombstone in another partition than its output; of a third the output is a number that
    cannot be compared exactly. A tombstone without a key is of no group."""
    source = [
        (0, 0, TIME, b"spread", b"1", None),
        (0, 1, TIME, b"spread", b"7", None),
        (1, 0, TIME, b"spread", b"5", None),
        (1, 1, TIME, b"rounded", b"1", None),
    ]
    sink = [
        (0, 0, TIME, b"spread", b"8", None),
        (0, 1, TIME, b"strange", b"5", None),
        (0, 2, TIME, b"rounded", b"1.00000000000001e0", None),
        (1, 0, TIME, b"strange", None, None),
        (1, 1, TIME, None, None, None),
    ]
    due = (PartitionBounds(0, 0, 1, 2), PartitionBounds(1, 0, 2, 2))
    sink_bounds = (PartitionBounds(0, 0, 3, 3), PartitionBounds(1, 0, 2, 2))
    outputs = frame_of(spark, sink, readings.COLUMNS)
    question = Question(
        source=Bounds("orders", due),
        sink="totals",
        order=Order.NONE,
        agreed=ContractTerms(aggregate=SUM),
    )
    spread = LedgerInput(
        spark,
        question,
        Bounds("totals", sink_bounds),
        Readings(outputs, outputs, frame_of(spark, source, readings.COLUMNS)),
        f"file:{tmp_path}",
        circumstances=Circumstances(source_lso={0: 2, 1: 2}, due_told=True),
    )
    counts = count_groups(spread, SUM)
    rows = counts.groups.select("group", "fault", "cause").collect()
    assert {bytes(group["group"]).decode(): (group["fault"], group["cause"]) for group in rows} == {
        "spread": ("wrong", SEVERAL_SOURCES),
        "strange": ("strange", SEVERAL_SINKS),
        "rounded": ("wrong", NO_NUMBER),
    }
    assert counts.nameless == 0


NUMBERS = (
    ("1", "1", True),
    ("1.10", "1.1", True),
    ("1e2", "100", True),
    ("-0.000000001", "-0.000000001", True),
    ("0.0000000001", "0", False),
    ("12345678901234567890123456789", "12345678901234567890123456789", True),
    ("123456789012345678901234567890", "1", False),
    ("1\n", "1", False),
    ("", "0", False),
    ("NaN", "0", False),
    ("0x10", "16", False),
    ("1_000", "1000", False),
    ("\u0661", "1", False),
    ("1e-3", "0.001", True),
    ("1e-10", "0", False),
    ("1.2345678901E10", "12345678901", True),
    ("1.0E-5", "0.00001", True),
    ("1.00000000000001e0", "1", False),
)


def test_numbers_are_exact_or_none(spark: SparkSession) -> None:
    """Story: what a record holds as its amount. A number is read as it is written, or not at all: a
    sum must not depend on how somebody rounds."""
    texts = spark.createDataFrame(
        [(text, right) for text, right, _ in NUMBERS], "text string, right string"
    )
    terms = AggregateTerms("key", SUM.values, "key")
    rows = texts.select(number(F.col("text"), terms).alias("number")).collect()
    assert [row["number"] for row in rows] == [
        Decimal(right) if is_number else None for _, right, is_number in NUMBERS
    ]
    near = AggregateTerms("key", SUM.values, "key", tolerance=1e-9)
    pairs = spark.createDataFrame(
        [("0.3", "0.30000000000000004"), ("0.3", "0.31"), (None, None), (None, "1"), ("1", None)],
        "expected string, actual string",
    )
    equal = [
        is_equal(number(F.col("expected"), terms), F.col("actual"), terms).alias(name)
        for name, terms in (("exact", terms), ("near", near))
    ]
    found = pairs.select(*equal).collect()
    assert [tuple(row) for row in found] == [
        (False, True),
        (False, False),
        (True, True),
        (False, False),
        (False, False),
    ]
    decimals = spark.range(1).select(
        number_text(F.lit("1.500").cast("decimal(9,3)")),
        number_text(F.lit("100.000").cast("decimal(9,3)")),
    )
    assert tuple(decimals.collect()[0]) == ("1.5", "100")


def test_a_long_is_eight_bytes(spark: SparkSession) -> None:
    """Story: a program writes counts with Kafka's LongSerializer, and one with its text."""
    terms = AggregateTerms("key", SUM.values, "key", encoding=Encoding.LONG)
    numbers = [0, 1, -1, 2**63 - 1, -(2**63)]
    values = [(number.to_bytes(8, signed=True),) for number in numbers] + [(b"12",), (None,)]
    frame = spark.createDataFrame(values, "value binary")
    rows = frame.select(actual_text(SUM.values[0], terms).alias("text")).collect()
    assert [row["text"] for row in rows] == [*map(str, numbers), "0x3132", None]


@pytest.mark.parametrize("kind", [group_missing, group_unknown, wrong_aggregate, wrong_update])
def test_a_kind_says_what_it_asks(kind: Any) -> None:
    assert kind.__name__.rpartition(".")[2] == kind.NAME and kind.QUESTION.endswith("?")
    assert kind.TRAITS.next_step and kind.WORDS.good is not None
