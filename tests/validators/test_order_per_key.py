"""Order where a shuffle hands a source partition's inputs to several writers, each key to one of
them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.validators.history import History, history
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
