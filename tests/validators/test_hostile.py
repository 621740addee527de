"""What records hold does not matter to a verdict: not text, empty, repeated, or large."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.hostile import MEGABYTE, NEVER, TWICE, Case, Message, fill, odd
from topicproof.backend.address import Address, Sides
from topicproof.backend.judging.judge import judge_topics
from topicproof.backend.kafka.log.rawlog import fetch_bounds
from topicproof.validators.finding import Order
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.question import Question

LARGE = 10
"""The number of the input of 10 MB."""


def hostile(number: int) -> Message:
    return {**odd(number), "value": b"\xff" * 10 * MEGABYTE} if number == LARGE else odd(number)


def test_hostile_data_is_judged_without_loss(
    bootstrap: str, new_topic: Callable[..., str], spark: SparkSession, tmp_path: Path
) -> None:
    """Story: keys that are empty or no text, tombstones, empty and repeated headers, and one record
    of 10 MB. Two inputs have two outputs and three have none."""
    source, sink = (new_topic(partitions=2, max_message_bytes=str(11 * MEGABYTE)) for _ in range(2))
    case = Case(
        "hostile", 200, 2, hostile, lambda number: number % 2, 11 * MEGABYTE, per_transaction=60
    )
    fill(bootstrap, case, source, sink)
    question = Question(
        fetch_bounds(Address(bootstrap), source), sink, identity=Identity.KEY, order=Order.NONE
    )
    report = judge_topics(spark, Sides(Address(bootstrap)), question, tmp_path)
    assert report.doubts == () and report.fates["unexplained"] == 0
    assert report.fates["committed"] == 200 - len(NEVER) + len(TWICE)
    uncounted = {one.kind for one in report.not_checked}
    found = {one.kind: one for one in report.findings if one.count and one.kind not in uncounted}
    assert {kind: one.primary for kind, one in found.items()} == {
        "duplicate": len(TWICE),
        "gap": len(NEVER),
    }
    missing = {tuple(map(int, str(one.lineage).split("/")[1:3])) for one in found["gap"].examples}
    assert missing == {(number % 2, number // 2) for number in NEVER}
