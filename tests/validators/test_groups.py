"""Aggregates of groups, compared with a slow judge in plain Python that shares no code with them:
group_missing, group_unknown, wrong_aggregate and wrong_update."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions as F

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
from topicproof.validators.expectation import NO_NUMBER, SEVERAL_SINKS, SEVERAL_SOURCES
from topicproof.validators.finding import Bounds, Order, PartitionBounds
from topicproof.validators.kinds import group_missing, group_unknown, wrong_aggregate, wrong_update
from topicproof.validators.ledger.group_totals import count_groups, updates
from topicproof.validators.ledger.ledger import LedgerInput
from topicproof.validators.question import Question
from topicproof.validators.readings import Readings, frame_of

TIME = datetime(2026, 1, 1, tzinfo=UTC)
GROUPS = 400
SUM = AggregateTerms("key", (AggregatedValue(Function.SUM, "value", None),), "key", running=True)


class Story:
    """A group: its inputs in order, how many are due, and its outputs in order."""

    def __init__(self, draw: random.Random) -> None:
        self.inputs = [draw.choice((1, 2, 3, 0, -1)) for _ in range(draw.randrange(6))]
        self.due = len(self.inputs) - draw.choice((0, 0, 0, 1, 2))
        self.due = max(0, self.due)
        sums = [sum(self.inputs[: at + 1]) for at in range(len(self.inputs))]
        self.outputs: list[int | None] = list(sums)
        for _ in range(draw.choice((0, 0, 1, 2))):
            fault, at = draw.choice(("lose", "add", "repeat", "remove", "end")), draw.randrange(9)
            at = min(at, len(self.outputs))
            match fault:
                case "lose":
                    del self.outputs[at:]
                case "add":
                    self.outputs.insert(at, draw.randrange(-1, 9))
                case "repeat":
                    self.outputs += self.outputs[at : at + 1]
                case "remove":
                    self.outputs.insert(at, None)
                case "end":
                    self.outputs.append(None)

    @property
    def fault(self) -> str | None:
        """What is wrong with the group."""
        if not self.outputs:
            return "missing" if self.due else None
        last = self.outputs[-1]
        if not self.inputs:
            return None if last is None else "strange"
        if last is None:
            return "removed" if self.due else None
        right = range(max(1, self.due), len(self.inputs) + 1)
        return None if last in [sum(self.inputs[:count]) for count in right] else "wrong"

    @property
    def wrong_updates(self) -> list[tuple[int, str]]:
        """The outputs that are wrong, by their number, with the fault."""
        faults, reached = [], 0
        for at, output in enumerate(self.outputs if self.inputs else ()):
            counts = range(1, len(self.inputs) + 1)
            of = [count for count in counts if sum(self.inputs[:count]) == output]
            of = [0] if output is None else of
            if not of:
                faults.append((at, "no_prefix"))
                continue
            if max(of) < reached:
                faults.append((at, "back"))
            reached = max(reached, min(of))
        return faults


def bounds(topic: str, lso: int, hw: int) -> Bounds:
    return Bounds(topic, (PartitionBounds(0, 0, lso, hw),))


def row(offset: int, key: str, value: int | None) -> tuple[Any, ...]:
    return (0, offset, TIME, key.encode(), None if value is None else str(value).encode(), None)


def ledger_input(spark: SparkSession, folder: Path, stories: Sequence[Story]) -> LedgerInput:
    """Inputs that are due come before all others, as below a group's offset."""
    inputs = [
        (f"g{number}", value, at >= story.due)
        for number, story in enumerate(stories)
        for at, value in enumerate(story.inputs)
    ]
    inputs.sort(key=lambda entry: entry[2])
    due = sum(not is_late for *_, is_late in inputs)
    outputs = [
        (f"g{number}", value) for number, story in enumerate(stories) for value in story.outputs
    ]
    source = [row(at, group, value) for at, (group, value, _) in enumerate(inputs)]
    sink = frame_of(
        spark, [row(at, *output) for at, output in enumerate(outputs)], readings.COLUMNS
    )
    question = Question(
        source=bounds("orders", due, len(inputs)),
        sink="totals",
        order=Order.NONE,
        agreed=ContractTerms(aggregate=SUM),
    )
    return LedgerInput(
        spark,
        question,
        bounds("totals", len(outputs), len(outputs)),
        Readings(sink, sink, frame_of(spark, source, readings.COLUMNS)),
        f"file:{folder}",
        circumstances=Circumstances(source_lso={0: len(inputs)}, due_told=True),
    )


def test_spark_finds_what_a_slow_judge_finds(spark: SparkSession, tmp_path: Path) -> None:
    """Story: 400 groups with lost, added, repeated and removed outputs, and inputs that are not
    due. Each fault of a group and of an output is the one that plain Python finds."""
    draw = random.Random(20_685)
    stories = [Story(draw) for _ in range(GROUPS)]
    counts = count_groups(ledger_input(spark, tmp_path, stories), SUM)
    faults = {
        bytes(group["group"]).decode(): group["fault"]
        for group in counts.groups.where("fault is not null").collect()
    }
    names = {f"g{number}": story for number, story in enumerate(stories)}
    assert faults == {name: story.fault for name, story in names.items() if story.fault}
    assert {"missing", "removed", "strange", "wrong"} == set(faults.values())
    assert counts.due == sum(bool(story.due) for story in stories)
    assert counts.outputs == sum(len(story.outputs) for story in stories)

    firsts: dict[str, int] = {}
    for offset, name in enumerate(name for name, story in names.items() for _ in story.outputs):
        firsts.setdefault(name, offset)
    rows = updates(counts, SUM).select("group", "offset", "fault").collect()
    by_group = [
        (name := bytes(update["group"]).decode(), update["offset"] - firsts[name], update["fault"])
        for update in rows
    ]
    assert sorted(by_group) == sorted(
        (name, *update) for name, story in names.items() for update in story.wrong_updates
    )
    assert {fault for *_, fault in by_group} == {"no_prefix", "back"}


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
    first = ledger_input(spark, tmp_path, [])
    due = (PartitionBounds(0, 0, 1, 2), PartitionBounds(1, 0, 2, 2))
    sink_bounds = (PartitionBounds(0, 0, 3, 3), PartitionBounds(1, 0, 2, 2))
    outputs = frame_of(spark, sink, readings.COLUMNS)
    spread = LedgerInput(
        spark,
        replace(first.question, source=Bounds("orders", due)),
        Bounds("totals", sink_bounds),
        Readings(outputs, outputs, frame_of(spark, source, readings.COLUMNS)),
        first.evidence,
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
