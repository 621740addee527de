"""What is injected into copies of a healthy topic's readings is caught, each once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from tests.validators.history import History, history
from topicproof.validators import readings
from topicproof.validators.expected import Expect, Expected
from topicproof.validators.finding import Guarantee, Order
from topicproof.validators.judge import judge
from topicproof.validators.selftest import (
    KINDS,
    Caught,
    Injection,
    choose,
    compare,
    inject,
    why_not,
)


def injected(spark: SparkSession, made: History, injection: Injection) -> History:
    """The history with the injections in both readings."""
    copies = (
        inject(spark.createDataFrame(rows, readings.COLUMNS), injection)
        for rows in (made.committed, made.uncommitted)
    )
    committed, uncommitted = ([tuple(row) for row in copy.collect()] for copy in copies)
    return replace(made, committed=committed, uncommitted=uncommitted)


def test_each_injection_is_caught_once(spark: SparkSession, tmp_path: Path) -> None:
    """Story: a healthy topic with an aborted attempt. The copies hold one duplicate, gap, inversion
    and torn transaction each, and the report on them says exactly that more."""
    made = history("0 1 2 3 4 A 0 1 2 3 4 C 5 6 C", inputs=7)
    ledger = made.ledger(spark, tmp_path)
    injection = choose(ledger.sink)
    assert injection == Injection(0, (6, 7, 8, 9), KINDS, "a-0/3/1/task/2")
    assert choose(ledger.sink, Expected(Expect.ZERO_OR_ONE), Order.PER_KEY) == replace(
        injection, kinds=("duplicate", "torn")
    )
    broken = injected(spark, made, injection).ledger(spark, tmp_path)
    assert broken.doubts == ()
    reports = [judge(one, Guarantee.EXACTLY_ONCE) for one in (ledger, broken)]
    assert compare(reports[0], reports[1], injection) == tuple(Caught(kind, 1) for kind in KINDS)


def test_too_few_neighbours_are_no_test(spark: SparkSession, tmp_path: Path) -> None:
    """Story: every transaction has two records. There is nothing to inject into, and the self-test
    does not claim that there was."""
    sink = history("0 1 C 2 3 C", inputs=4).ledger(spark, tmp_path).sink
    assert choose(sink) is None
    assert why_not(sink, by_key=False) == (
        "it needs four committed outputs of one source partition, in one partition of the sink, in"
        " one transaction, and finds at most 2"
    )
    none = sink.where("offset < 0")
    assert why_not(none, by_key=True) == (
        "it needs four committed outputs of one source partition, in one partition of the sink,"
        " each with an identity that no other record has, and finds 0"
    )
