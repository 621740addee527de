"""What is proved shortly, and what is not."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from pyspark.sql import SparkSession

from tests.both_ways import assert_both_ways_count_the_same
from tests.validators.history import History, history, side_by_side
from topicproof.validators.expected import Expect, Expected
from topicproof.validators.finding import Bounds, Order, PartitionBounds
from topicproof.validators.folded import offset_runs as pieces
from topicproof.validators.folded.fold import estimated_pieces
from topicproof.validators.folded.regular_log import RegularLog
from topicproof.validators.ledger import build as long_way, by_proof
from topicproof.validators.lineage.identity import Identity

JOURNAL = {("a-0", 1): "COMMITTED", ("a-0", 2): "ABORTED:at random", ("a-0", 3): "COMMITTED"}
HEALTHY = "0 1 C 2 A 2 3 C"


def two_producers(seed: int) -> History:
    """Some hundred inputs of two source partitions by two producers to three partitions of the
    sink, some of their transactions aborted and then repeated."""
    draw = random.Random(seed)
    lines: list[list[str]] = [[], [], []]
    left = {"a": list(range(150)), "b": list(range(90))}
    while any(left.values()):
        turns: list[tuple[int, list[str]]] = []
        for source, (producer, inputs) in enumerate(left.items()):
            if not inputs:
                continue
            # Each transaction has records in every partition, so that it has the same number in all
            # of them.
            width = draw.randint(3, 20)
            taken = inputs if len(inputs) < width + 3 else inputs[:width]
            end = draw.choice("CCA")
            if end == "C":
                del inputs[: len(taken)]
            written: dict[int, list[str]] = {}
            for offset in taken:
                partition = offset % 3
                written.setdefault(partition, []).append(f"{producer}:{source}.{offset}")
            turns += [
                (partition, [*tokens, f"{producer}:{end}"]) for partition, tokens in written.items()
            ]
        # Records of both stand between each other, each producer's in turn.
        while turns:
            at = draw.randrange(len(turns))
            partition, tokens = turns[at]
            lines[partition].append(tokens.pop(0))
            turns = [turn for turn in turns if turn[1]]
    return history(*(" ".join(line) for line in lines), inputs=[150, 90])


@pytest.mark.parametrize(("seed", "few"), [(0, True), (1, False)], ids=["few", "many"])
def test_both_ways_count_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, few: bool
) -> None:
    """Few records are folded by this process, many by Spark's."""
    if not few:
        monkeypatch.setattr(pieces, "FEW_OFFSETS_MAX", 0)
    made = two_producers(seed)
    assert_both_ways_count_the_same(lambda: made.ledger(spark, tmp_path))


ORDINARY = {
    "aborts": history(HEALTHY, inputs=4),
    "inputs without an output": history("0 C 2 A 3 C", inputs=5, first=10),
    "inputs that others wrote": history("0 1 C", inputs=2, writers={(0, 1): "c1"}, first=20),
    "a source with holes": history("0 2 C", inputs=3, holes=[(0, 1)], first=30),
    "a sink that begins later": history("0 C 1 2 3 C", inputs=4, start=2, first=40),
}
"""Each in partitions of its own: if one of them were odd, nothing could be proved of all."""


@pytest.mark.parametrize(
    "more",
    [
        {"declared": {("a-0", 1): "COMMITTED"}},
        {"declared": JOURNAL, "expected": Expected(Expect.ZERO_OR_ONE)},
    ],
    ids=[
        "a journal knows one of them",
        "a journal says why, and inputs may be filtered out",
    ],
)
def test_a_topic_in_which_nothing_is_odd_is_counted_shortly(
    spark: SparkSession, tmp_path: Path, more: dict[str, Any]
) -> None:
    made = side_by_side(ORDINARY.values())
    assert_both_ways_count_the_same(lambda: made.ledger(spark, tmp_path, **more))


@given(st.lists(st.integers(-(2**63), 2**63 - 1).filter(bool), min_size=1))
def test_the_ends_of_words(words: list[int]) -> None:
    bits = [[place for place in range(64) if word >> place & 1] for word in words]
    of = np.array(words, np.int64)
    assert pieces.first_of(of).tolist() == [one[0] for one in bits]
    assert pieces.last_of(of).tolist() == [one[-1] for one in bits]
    rows, places = pieces.members(of)
    assert places.tolist() == [place for one in bits for place in one]
    assert rows.tolist() == [row for row, one in enumerate(bits) for _ in one]


ODD = {
    "a duplicate": history("0 1 C 1 2 C", inputs=3),
    "a duplicate in one transaction": history("0 1 1 2 C", inputs=3),
    "a duplicate in another partition": history("0 1 C", "1 2 C", inputs=3),
    "one transaction with two ends": history("0 C", "1 A 1 C", inputs=2),
    "two swapped": history("0 2 1 3 C", inputs=4),
    "two swapped over transactions": history("2 3 C 0 1 C", inputs=4),
    "two swapped far apart": history(
        " ".join(f"{n}" for n in (*range(70, 140), *range(70))) + " C", inputs=140
    ),
    "an aborted one seen": history("0 1* A 0 1 C", inputs=2),
    "a committed one not seen": history("0 1~ C", inputs=2),
    "one in no transaction": history("0 1! C", inputs=2),
    "one of an open transaction": history("0 C 1", inputs=2),
    "no lineage": history("0 ? C", inputs=2),
    "no name": history("0 1@ C", inputs=2),
    "another's name": history("0 1@2 C", inputs=2),
    "one name in two transactions": history("0 C 1@1 C", inputs=2),
    "a torn one": history("0 1%5 C", inputs=2),
    "an input that is not there": history("0 7 C", inputs=2),
    "an input before the judged range": history("0 1 C", inputs=[2], judged=[(1, 2)]),
    "an input in a hole": history("0 1 C", inputs=2, holes=[(0, 1)]),
    "an aborted input": history("0 1 C", inputs=2, aborted=[(0, 1)]),
    "a second output": history("0 0#1 C", inputs=1),
    "a lost sequence": history("0 1^ C", inputs=2),
    "something gone": history("0 _ 1 C", inputs=2),
    "something gone from a batch": history("0 x 1 C", inputs=2),
    "two ends": history("0 A C 0 C", inputs=1),
    "an older epoch": history("a1:0 a1:C a:1 a:C", inputs=2),
}


class LookedAtEachRecord(Exception):
    """What the long way is replaced by where only the choice between the two is tested."""


@pytest.fixture
def no_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_length(_given: object) -> None:
        raise LookedAtEachRecord

    monkeypatch.setattr(long_way, "counts_by_scan", at_length)


@pytest.mark.usefixtures("no_long_way")
@pytest.mark.parametrize("made", ODD.values(), ids=ODD)
def test_whatever_is_odd_is_looked_at_record_by_record(
    spark: SparkSession, tmp_path: Path, made: History
) -> None:
    with pytest.raises(LookedAtEachRecord):
        made.ledger(spark, tmp_path)


@pytest.mark.usefixtures("no_long_way")
@pytest.mark.parametrize(
    "more",
    [
        {"raw_log": False},
        {"declared": {("a-0", 2): "COMMITTED"}},
        {"identity": Identity.KEY},
        {"order": Order.NONE},
        {"order": Order.PER_KEY},
    ],
    ids=str,
)
def test_what_a_proof_cannot_tell_is_not_proved(
    spark: SparkSession, tmp_path: Path, more: dict[str, Any]
) -> None:
    made = history(HEALTHY, inputs=4)
    assert made.ledger(spark, tmp_path).counts.proved
    with pytest.raises(LookedAtEachRecord):
        made.ledger(spark, tmp_path, **more)


@pytest.mark.usefixtures("no_long_way")
def test_a_reading_of_other_content_is_not_trusted(spark: SparkSession, tmp_path: Path) -> None:
    made = history(HEALTHY, inputs=4)
    made.committed[0] = (*made.committed[0][:4], b"other", *made.committed[0][5:])
    with pytest.raises(LookedAtEachRecord):
        made.ledger(spark, tmp_path)


@pytest.mark.usefixtures("no_long_way")
def test_an_offset_that_was_read_twice_is_not_trusted(spark: SparkSession, tmp_path: Path) -> None:
    for reading in ("committed", "uncommitted", "source"):
        made = history(HEALTHY, inputs=4)
        getattr(made, reading).append(getattr(made, reading)[0])
        with pytest.raises(LookedAtEachRecord):
            made.ledger(spark, tmp_path)


@pytest.mark.usefixtures("no_long_way")
def test_a_sink_of_too_many_pieces_is_looked_at_record_by_record(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process would hold all pieces at once."""
    made = history(HEALTHY, inputs=4)
    assert made.ledger(spark, tmp_path).counts.proved
    monkeypatch.setattr(by_proof, "PIECES_MAX", 1)
    with pytest.raises(LookedAtEachRecord):
        made.ledger(spark, tmp_path)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("partitions", "pieces"), {1: 31_250_000 + 7, 16: 265_625_000 + 7, 200: 1_000_000_000}.items()
)
def test_keys_spread_inputs_over_many_pieces(partitions: int, pieces: int) -> None:
    each = 1_000_000_000 // partitions
    bounds = Bounds("sink", tuple(PartitionBounds(n, 0, each, each) for n in range(partitions)))
    none = np.empty(0, np.int64)
    seven = RegularLog({}, {}, none, none, none, pd.DataFrame(index=range(7)))
    assert estimated_pieces(bounds, seven) == pieces


@pytest.mark.usefixtures("no_long_way")
def test_a_partition_that_only_one_reading_has_is_not_trusted(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = history(HEALTHY, inputs=4)
    made.committed.append((1, *made.committed[0][1:]))
    with pytest.raises(LookedAtEachRecord):
        made.ledger(spark, tmp_path)
