"""Order where a shuffle hands a source partition's inputs to several writers, each key to one of
them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.validators.history import BEGAN, History, history
from topicproof.validators.contract_terms import ContractTerms
from topicproof.validators.finding import Guarantee, Order, Outcome
from topicproof.validators.judge import judge
from topicproof.validators.kinds import order, zombie_write

KEYS: Mapping[tuple[int, int], bytes | None] = {
    (0, 0): b"a",
    (0, 1): b"b",
    (0, 2): b"a",
    (0, 3): b"b",
}


def found(
    made: History, spark: SparkSession, folder: Path, kept: Order
) -> dict[str, tuple[Outcome, int, int]]:
    """Outcome, primary rows and examined pairs or batches of the two kinds that order concerns."""
    report = judge(made.ledger(spark, folder, order=kept), Guarantee.EXACTLY_ONCE)
    counts = {one.kind: one.records for one in report.checked}
    kinds = (order.NAME, zombie_write.NAME)
    return {
        one.kind: (one.outcome, one.primary, counts[one.kind])
        for one in report.findings
        if one.kind in kinds and one.kind in counts
    }


@pytest.mark.parametrize(
    ("story", "sink", "per_key", "per_source_partition"),
    [
        (
            (
                "Writer a takes key a, writer b takes key b, and b is first. Each key's outputs are"
                " in order."
            ),
            "b:1 b:3 b:C a:0 a:2 a:C",
            {"order": (Outcome.HOLDS, 0, 2), "zombie_write": (Outcome.HOLDS, 0, 2)},
            {"order": (Outcome.VIOLATED, 1, 3), "zombie_write": (Outcome.VIOLATED, 1, 2)},
        ),
        (
            "The same, and writer a turns the two outputs of key a around.",
            "b:1 b:3 b:C a:2 a:0 a:C",
            {"order": (Outcome.VIOLATED, 1, 2), "zombie_write": (Outcome.HOLDS, 0, 2)},
            {"order": (Outcome.VIOLATED, 2, 3), "zombie_write": (Outcome.VIOLATED, 1, 2)},
        ),
    ],
)
def test_what_each_promise_of_order_finds(
    spark: SparkSession,
    tmp_path: Path,
    story: str,
    sink: str,
    per_key: dict[str, tuple[Outcome, int, int]],
    per_source_partition: dict[str, tuple[Outcome, int, int]],
) -> None:
    made = history(sink, inputs=4, keys=KEYS)
    assert found(made, spark, tmp_path, Order.PER_KEY) == per_key, story
    assert found(made, spark, tmp_path, Order.PER_SOURCE_PARTITION) == per_source_partition, story


@pytest.mark.parametrize(
    ("sink", "keys", "promise", "outcome", "why"),
    [
        (
            "0 1 2 C",
            {},
            Order.PER_KEY,
            Outcome.HOLDS,
            "Nothing can be out of order: of 3 committed outputs, no two have the same key and"
            " partition.",
        ),
        (
            "2 C",
            {},
            Order.PER_SOURCE_PARTITION,
            Outcome.HOLDS,
            "Nothing can be out of order: there is one committed output.",
        ),
        ("C", {}, Order.PER_KEY, Outcome.UNKNOWN, "Nothing to look at: there are no pairs."),
        (
            "0 1 2 C",
            {(0, offset): None for offset in range(3)},
            Order.PER_KEY,
            Outcome.UNKNOWN,
            "Nothing to look at: no committed output has a key.",
        ),
    ],
    ids=["each key once", "one output", "no output", "no key"],
)
def test_outputs_without_a_pair_are_in_order(
    spark: SparkSession,
    tmp_path: Path,
    sink: str,
    keys: Mapping[tuple[int, int], bytes | None],
    promise: Order,
    outcome: Outcome,
    why: str,
) -> None:
    """Story: no two outputs have an order, so nothing can be out of order. Without an output, or
    with an order of keys that no output has, nothing was looked at."""
    ledger = history(sink, inputs=3, keys=keys).ledger(spark, tmp_path, order=promise)
    (finding,) = (
        finding
        for finding in judge(ledger, Guarantee.EXACTLY_ONCE).findings
        if finding.kind == order.NAME
    )
    assert (finding.outcome, finding.why) == (outcome, why)


ALIKE = b"customer-0000001", b"intruder" + bytes.fromhex("65921baeb5be7668")


def test_keys_that_a_fast_hash_takes_for_one_are_two(spark: SparkSession, tmp_path: Path) -> None:
    """Story: two keys were made to have the same xxhash64. The records of each are in order."""
    pair = spark.createDataFrame([ALIKE], "a binary, b binary")
    assert ALIKE[0] != ALIKE[1] and pair.where("xxhash64(a) = xxhash64(b)").count() == 1
    made = history("1 3 0 2 C", inputs=4, keys={(0, n): ALIKE[n % 2] for n in range(4)})
    assert found(made, spark, tmp_path, Order.PER_KEY)["order"][:2] == (Outcome.HOLDS, 0)


@pytest.mark.parametrize(
    ("seconds", "verdict", "cause"),
    [
        ((0, 9), Outcome.HOLDS, "duplicate"),
        ((9, 0), Outcome.VIOLATED, None),
        ((5, 5), Outcome.UNKNOWN, "first_copy"),
    ],
    ids=["in order first", "out of order first", "no telling"],
)
def test_an_order_among_copies_depends_on_which_came_first(
    spark: SparkSession,
    tmp_path: Path,
    seconds: tuple[int, int],
    verdict: Outcome,
    cause: str | None,
) -> None:
    """Story: a restarted program writes all outputs again, into another partition, as at least once
    allows. One time they are in order, the other time not. If the program hands on the times of
    its inputs, nothing tells which was the first."""
    made = history("0 1 2 C", "b:1 b:0 b:2 b:C", inputs=3)
    for reading in (made.committed, made.uncommitted):
        reading[:] = [
            (*row[:2], BEGAN + timedelta(seconds=seconds[row[0]]), *row[3:]) for row in reading
        ]
    ledger = made.ledger(spark, tmp_path, agreed=ContractTerms(repeats=True))
    report = judge(ledger, Guarantee.AT_LEAST_ONCE)
    assert report.verdict is verdict, report.why
    (told,) = (one for one in report.findings if one.kind == order.NAME)
    assert told.explained_by == cause and told.count == 1
