"""What is certain where both topics have lost their first records (`range: retained`): each mistake
among what is left, beside healthy topics."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.validators.history import history
from tests.validators.hostile_pairs import difference_alone, draw_retained, false_by_rule, simulate
from tests.validators.pair_ledger import is_told
from tests.validators.pair_oracle import HOLDS, UNKNOWN, VIOLATED, judge as judge_slowly
from tests.validators.test_premises import BY_KEY, RETAINED, found, judged
from topicproof.backend.judging.selftest import judged_after
from topicproof.backend.services.keeper import services
from topicproof.backend.services.spark_session import connect, spark_session
from topicproof.backend.settings import Settings
from topicproof.validators.circumstances import Circumstances, Removed
from topicproof.validators.finding import Guarantee, Order, Outcome
from topicproof.validators.judge import judge
from topicproof.validators.ledger.retained import Outputs, RetainedRange, retained_range
from topicproof.validators.report import Report
from topicproof.validators.selftest import choose

PAIRS = 1_500
ALONE = 60
"""Of so many pairs the first one of each verdict is judged by itself."""
SEED = 48


def lost(source: int = 0, sink: int = 0, *, inside: int = 0) -> Circumstances:
    return Circumstances(
        looked=True,
        source_removed={0: Removed(source, inside)} if source or inside else {},
        sink_removed={0: Removed(sink)} if sink else {},
    )


@pytest.mark.parametrize(
    ("sink", "start", "verdict", "rows"),
    [
        ("4! 5! 6! 7! 8! 9!", 0, Outcome.HOLDS, {}),
        # The sink keeps more than the source: four outputs, or two.
        ("0! 1! 2! 3! 4! 5! 6! 7! 8! 9!", 0, Outcome.HOLDS, {"phantom": (4, 0, "range")}),
        ("0! 1! 2! 3! 4! 5! 6! 7! 8! 9!", 2, Outcome.HOLDS, {"phantom": (2, 0, "range")}),
        # The source keeps more than the sink.
        ("0! 1! 2! 3! 4! 5! 6! 7! 8! 9!", 6, Outcome.HOLDS, {"gap": (2, 0, "range")}),
        # A repeat, a swap, a loss, a stranger among what is left.
        (
            "3! 4! 5! 6! 7! 8! 9! 7!",
            1,
            Outcome.VIOLATED,
            {"duplicate": (1, 1, None), "order": (1, 0, "duplicate")},
        ),
        ("3! 4! 5! 7! 6! 8! 9!", 1, Outcome.VIOLATED, {"order": (1, 1, None)}),
        ("3! 4! 5! 6! 8! 9!", 1, Outcome.VIOLATED, {"gap": (1, 1, None)}),
        ("3! 4! 5! 6! ?! 7! 8! 9!", 1, Outcome.VIOLATED, {"phantom": (1, 1, None)}),
        # More is missing than the sink has lost.
        ("3! 4! 8! 9!", 2, Outcome.VIOLATED, {"gap": (4, 4, None)}),
        # Input 7 may have had a namesake among the removed ones.
        (
            "7! 4! 5! 6! 7! 8! 9!",
            0,
            Outcome.UNKNOWN,
            {"duplicate": (1, 0, "source_removed"), "order": (1, 0, "source_removed")},
        ),
        # The source has lost four offsets, so it cannot have had five outputs there.
        ("0! 1! 2! 3! ?! 4! 5! 6! 7! 8! 9!", 0, Outcome.UNKNOWN, {
            "phantom": (5, 0, "source_removed"),
        }),
    ],
    ids=[
        *("equal ends", "a longer sink", "a sink that lost less", "a longer source"),
        *("a repeat", "a swap", "a loss", "an output without an input"),
        *("more losses than removals", "a copy before", "more outputs than removals"),
    ],
)  # fmt: skip
def test_what_is_left_is_judged(
    spark: SparkSession,
    tmp_path: Path,
    sink: str,
    start: int,
    verdict: Outcome,
    rows: dict[str, Any],
) -> None:
    """Story: inputs 4 to 9 of ten are left, and the sink's log begins at `start`. Records are
    matched by key."""
    keys: Mapping[tuple[int, int], bytes] = {(0, offset): b"%d" % offset for offset in range(10)}
    gone = [(0, offset) for offset in range(4)]
    made = history(sink, inputs=10, judged=[(4, 10)], holes=gone, start=start, keys=keys)
    more = {"circumstances": lost(source=4, sink=start), "agreed": RETAINED, **BY_KEY}
    report = judged(spark, tmp_path, made, **more)
    seen = {kind: row for kind, row in found(report).items() if not kind.endswith("_removed")}
    assert (report.verdict, seen) == (verdict, rows), report.why
    if "phantom" in rows and verdict is Outcome.HOLDS:
        assert "; judged from squares-0@4 on; 4 offsets lost by the source" in report.why


@pytest.mark.usefixtures("spark_sessions")
def test_a_session_that_has_ended_is_asked_nothing(settings: Settings, tmp_path: Path) -> None:
    """Story: the first session of a thread has ended on the server, and another one judges what is
    left. Spark's client takes the first one for the active one."""

    def verdict() -> Report:
        with services(settings, kafka=False) as running:
            ended = connect(running.spark_remote)
            ended.client.release_session()
            with spark_session(running.spark_remote) as spark:
                keys = {(0, offset): b"%d" % offset for offset in range(10)}
                pair = history(
                    "0! 1! 2! 3! 4! 5! 6! 7! 8! 9!",
                    inputs=10,
                    judged=[(4, 10)],
                    holes=[(0, offset) for offset in range(4)],
                    keys=keys,
                )
                ledger = pair.ledger(
                    spark, tmp_path, circumstances=lost(source=4), agreed=RETAINED, **BY_KEY
                )
                report = judge(ledger, Guarantee.EXACTLY_ONCE)
            ended.stop()
            return report

    with ThreadPoolExecutor(1) as threads:
        report = threads.submit(verdict).result()
    assert report.verdict is Outcome.HOLDS, report.why


@pytest.mark.parametrize(
    ("sink", "verdict", "rows"),
    [
        ("0 1 2 3 4 5 6 C", Outcome.HOLDS, {"gap": (3, 0, "range")}),
        ("0 1 2 3 4 6 C", Outcome.VIOLATED, {"gap": (4, 1, "range")}),
    ],
    ids=["healthy", "a loss"],
)
def test_a_loss_by_lineage_is_certain_behind_what_is_left(
    spark: SparkSession, tmp_path: Path, sink: str, verdict: Outcome, rows: dict[str, Any]
) -> None:
    """Story: the sink has lost its first three records, and the source none."""
    made = history(sink, inputs=7, start=3)
    report = judged(spark, tmp_path, made, circumstances=lost(sink=3), agreed=RETAINED)
    seen = {kind: row for kind, row in found(report).items() if kind == "gap"}
    assert (report.verdict, seen) == (verdict, rows), report.why


def test_the_self_test_injects_where_copies_are_certain(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: a healthy pair whose source has lost four inputs. The first output that is judged
    shows where that begins, so it stays as it is. Without an order nothing is certain."""
    keys = {(0, offset): b"%d" % offset for offset in range(10)}
    gone = [(0, offset) for offset in range(4)]
    made = history("3 4 5 6 7 8 9 C", inputs=10, judged=[(4, 10)], holes=gone, keys=keys)
    more = {"circumstances": lost(source=4), "agreed": RETAINED, **BY_KEY}
    ledger = made.ledger(spark, tmp_path, **more)
    assert judged_after(ledger) == {0: 1}
    injection = choose(ledger.sink, after=judged_after(ledger))
    assert injection is not None and injection.offsets == (2, 3, 4, 5)
    unordered = made.ledger(spark, tmp_path, order=Order.NONE, **more)
    assert choose(unordered.sink, after=judged_after(unordered)) is None


REMOVED = {0: Removed(below=9), 1: Removed(below=9)}


@pytest.mark.parametrize(
    ("outputs", "source", "sink", "judged_from", "complete"),
    [
        # Each source partition has outputs in both: the later first one counts.
        (
            [(0, 0, 5, 9, 3), (0, 1, 7, 9, 3), (1, 0, 4, 10, 3), (1, 1, 2, 10, 3)],
            *(REMOVED, {}),
            *({0: 5, 1: 7}, {0, 1}),
        ),
        # Removed inputs of partition 1 may have had outputs in sink partition 0 all the same.
        ([(0, 0, 5, 9, 3), (1, 1, 2, 10, 3)], *(REMOVED, {}), *({}, {0, 1})),
        # A mirror: so many outputs show that they have not.
        ([(0, 0, 5, 9, 30), (1, 1, 2, 10, 30)], *(REMOVED, {}), *({0: 5, 1: 2}, {0, 1})),
        ([(0, 0, 5, 9, 30), (1, 1, 2, 10, 30)], *(REMOVED, REMOVED), *({0: 5, 1: 2}, {0, 1})),
        # The sink may have lost the output of the input that has one left in the other partition.
        (
            [(0, 0, 5, 9, 30), (0, 1, 7, 9, 30), (1, 0, 4, 10, 30), (1, 1, 2, 10, 30)],
            *(REMOVED, REMOVED),
            *({}, set()),
        ),
        # Compaction removes records anywhere.
        ([(0, 0, 5, 9, 30)], *({0: Removed(9, 1)}, {}), *({}, {0})),
    ],
    ids=["crosswise", "few", "a mirror", "a mirror of less", "crosswise and less", "compacted"],
)
def test_where_judging_begins(
    outputs: list[tuple[int, int, int, int, int]],
    source: Mapping[int, Removed],
    sink: Mapping[int, Removed],
    judged_from: Mapping[int, int],
    complete: set[int],
) -> None:
    cells = [
        Outputs(partition, source_partition, offset, source_offset, number)
        for source_partition, partition, offset, source_offset, number in outputs
    ]
    judged = retained_range(
        cells, {0: 0, 1: 0}, source, sink_removed=sink, by_key=True, in_order=True
    )
    assert (judged.judged_from, set(judged.complete)) == (judged_from, complete)
    unordered = retained_range(
        cells, {0: 0, 1: 0}, source, sink_removed=sink, by_key=True, in_order=False
    )
    assert unordered.judged_from == {} and unordered.complete == frozenset()
    assert RetainedRange().judged_from == {}


def test_no_rule_about_what_is_left_contradicts_the_truth() -> None:
    """Story: hostile pairs that have lost their first records are simulated, so that their truth is
    known. None is a false HOLDS or a false VIOLATED, and all three verdicts occur."""
    stories = draw_retained(PAIRS, SEED)
    assert false_by_rule(stories).get("all kept", []) == []
    verdicts = {judge_slowly(simulate(story)).outcome for story in stories}
    assert verdicts == {HOLDS, VIOLATED, UNKNOWN}


def test_the_validators_agree_with_the_slow_judge_on_what_is_left(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: one of these pairs of each verdict is judged the whole way, in a ledger of its own."""
    stories = [
        story
        for story in draw_retained(ALONE, SEED)
        if is_told(pair := simulate(story)) and any(one.start for one in pair.source_ranges)
    ]
    by_verdict = {judge_slowly(simulate(story)).outcome: story for story in reversed(stories)}
    assert by_verdict.keys() == {HOLDS, VIOLATED, UNKNOWN}
    differences = [difference_alone(spark, tmp_path, story) for story in by_verdict.values()]
    assert [one.told for one in differences if one] == []
