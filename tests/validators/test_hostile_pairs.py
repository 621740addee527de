"""Hostile pairs: the validators against a slow judge, and both against the truth."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from tests.validators.hostile_pairs import (
    difference_alone,
    differences,
    draw,
    draw_policy,
    false_by_rule,
    grouped,
    simulate,
)
from tests.validators.pair_ledger import is_told, rows_of, verdict_of
from tests.validators.pair_oracle import (
    ABORTED,
    AMENDMENTS,
    AT_LEAST,
    COMMITTED,
    COUNTED,
    HEADER,
    HOLDS,
    KEY,
    LINEAGE,
    MANY,
    OPEN,
    PER_KEY,
    PREMISES,
    UNKNOWN,
    VIOLATED,
    Input,
    Pair,
    Place,
    Policy,
    Range,
    Record,
    Truth,
    judge,
)

PAIRS = 250
ALONE = 80
"""Of so many pairs the last one of each verdict is judged by itself."""
AT_ONCE = 250
"""How many pairs share a ledger at most."""
SEED = 20


def pair(
    inputs: str, outputs: str, expected: int = 1, group: int | None = None, **policy: Any
) -> Pair:
    """One source partition and one sink partition, a token an offset: a letter is an identity, `-`
    is none.

    `a!` was aborted, `a?` is pending, `a_` was removed; `z` among the outputs is a phantom where no
    input has that identity. `group`: the consumer group's offset; below 0, it has none.
    """
    asked = Policy(**{"match": KEY, "group": group is not None, **policy})
    by_key = asked.match != LINEAGE
    fates = {"!": ABORTED, "?": OPEN}
    source, sink, taken = [], [], []
    for offset, token in enumerate(inputs.split()):
        name = None if token[0] == "-" else token[0]
        fate, value = fates.get(token[-1], COMMITTED), f"v{token[0]}"
        source.append(Input(0, offset, name, name, value, fate, expected, token[-1] == "_"))
    names = [token[0] for token in inputs.split()]
    for offset, token in enumerate(outputs.split()):
        places = [at for at, name in enumerate(names) if name == token[0]]
        free = [at for at in places if at not in taken]
        at = next(iter((*free, *places)), None)
        taken.append(at)
        place = None if at is None else (0, at, 0)
        name = None if token[0] == "-" else token[0]
        fate, value = fates.get(token[-1], COMMITTED), f"v{token[0]}"
        lineage = None if by_key else place
        named = (
            name if by_key else None,
            lineage,
            True,
            name,
            value,
            fate,
            place,
            token[-1] == "_",
        )
        sink.append(Record(0, offset, offset, *named))
    return Pair(
        asked,
        tuple(source),
        tuple(sink),
        (_range(source),),
        (_range(sink),),
        offsets=None if group is None else {0: group} if group >= 0 else {},
    )


def pointing(given: Pair, at: int, place: Place, real: Place | None = None) -> Pair:
    """The same, with this lineage of one output, which is really that of another or a phantom."""
    changed = replace(given.sink[at], lineage=place, origin=real)
    return replace(given, sink=(*given.sink[:at], changed, *given.sink[at + 1 :]))


def _range(records: list[Any]) -> Range:
    end = len(records)
    return Range(0, next((one.offset for one in records if one.fate == OPEN), end), end)


class Case(NamedTuple):
    pair: Pair
    outcome: str
    rows: dict[tuple[str, str | None], int]


CASES: dict[str, Case] = {
    "all there": Case(pair("a b c", "a b c"), HOLDS, {}),
    "all there, by lineage": Case(pair("a b c", "a b c", match=LINEAGE), HOLDS, {}),
    "a duplicate": Case(pair("a b", "a b a"), VIOLATED, {("duplicate", None): 1}),
    "an allowed duplicate": Case(
        pair("a b", "a b a", guarantee=AT_LEAST), HOLDS, {("duplicate", None): 1}
    ),
    "a gap": Case(pair("a b", "a"), VIOLATED, {("gap", None): 1}),
    "a phantom": Case(pair("a", "a z"), VIOLATED, {("phantom", None): 1}),
    "an inversion": Case(pair("a b c", "b a c"), VIOLATED, {("order", None): 1}),
    "an aborted input": Case(pair("a! b", "a b"), VIOLATED, {("phantom", "aborted_input"): 1}),
    "a pending input": Case(pair("b a?", "b a"), UNKNOWN, {("phantom", "pending"): 1}),
    "a pending twin": Case(pair("a a?", "a a"), UNKNOWN, {("duplicate", "pending"): 1}),
    "a pending output": Case(pair("a b", "a b?"), UNKNOWN, {("gap", "pending"): 1}),
    "twins": Case(pair("a a", "a a"), UNKNOWN, {}),
    "twins, one output too many": Case(pair("a a", "a a a"), VIOLATED, {("duplicate", None): 1}),
    "an output without identity": Case(
        pair("a b", "a -"),
        UNKNOWN,
        {("phantom", "identity_missing"): 1, ("gap", "identity_missing"): 1},
    ),
    "more gaps than outputs without identity": Case(
        pair("a b c", "a -"),
        VIOLATED,
        {("phantom", "identity_missing"): 1, ("gap", "identity_missing"): 1, ("gap", None): 1},
    ),
    "an input without identity": Case(
        pair("a -", "a z"), UNKNOWN, {("phantom", "identity_missing"): 1}
    ),
    "nothing matches": Case(
        pair("a b", "y z"),
        UNKNOWN,
        {("phantom", "identity_disjoint"): 2, ("gap", "identity_disjoint"): 2},
    ),
    "a removed input": Case(pair("a_ b", "a b"), UNKNOWN, {("phantom", "source_removed"): 1}),
    "a duplicate by lineage, beside a removed input": Case(
        pair("a_ b", "b b", match=LINEAGE),
        VIOLATED,
        {("duplicate", None): 1},
    ),
    "a removed output": Case(pair("a b", "a_ b"), UNKNOWN, {("gap", "sink_removed"): 1}),
    "a removed output and a phantom": Case(
        pair("a b", "a_ b z"),
        VIOLATED,
        {("gap", "sink_removed"): 1, ("phantom", None): 1},
    ),
    "an input has both outputs": Case(pair("a", "a a", expected=2, expect=MANY), UNKNOWN, {}),
    "one of two outputs": Case(
        pair("a b", "a b b", expected=2, expect=MANY), VIOLATED, {("gap", None): 1}
    ),
    "an output of a filtered input": Case(
        pair("a", "a", expected=0, expect=COUNTED), VIOLATED, {("phantom", None): 1}
    ),
    "the tail is not due while topics move": Case(pair("a b c", "a b", moving=True), HOLDS, {}),
    "a hole while topics move": Case(
        pair("a b c", "a c", moving=True), UNKNOWN, {("gap", "movement"): 1}
    ),
    "the tail is not due above the group's offset": Case(pair("a b c", "a b", group=2), HOLDS, {}),
    "the offset is behind": Case(
        pair("a b", "a b", group=1),
        VIOLATED,
        {("offset_behind", None): 1, ("phantom", "range"): 1},
    ),
    "the offset is ahead": Case(
        pair("a b", "a", group=2), VIOLATED, {("offset_ahead", None): 1, ("gap", None): 1}
    ),
    "the offset is beyond the end": Case(
        pair("a", "a", group=2), VIOLATED, {("offset_ahead", None): 1}
    ),
    "there is no offset": Case(
        pair("a", "a", group=-1),
        UNKNOWN,
        {("offset_ahead", "no_offset"): 1, ("phantom", "range"): 1},
    ),
    "there is no offset where all inputs were aborted": Case(pair("a!", "", group=-1), HOLDS, {}),
    "an input that must have no output needs no identity": Case(
        pair("-", "", expected=0, expect=COUNTED), HOLDS, {}
    ),
    "a removed output before the offset": Case(
        pair("a", "a_", group=1),
        UNKNOWN,
        {("offset_ahead", "sink_removed"): 1, ("gap", "sink_removed"): 1},
    ),
    "the later copy is left, where copies are allowed": Case(
        pair("a b", "a_ b a", guarantee=AT_LEAST),
        UNKNOWN,
        {("order", "sink_removed"): 1},
    ),
}


BY_LINEAGE: dict[str, Case] = {
    "a second output of an input that is not due": Case(
        pointing(
            pair("a", "a a", match=LINEAGE, group=0, guarantee=AT_LEAST), 1, (0, 0, 1), (0, 0, 1)
        ),
        VIOLATED,
        {("phantom", "range"): 1, ("phantom", None): 1, ("offset_behind", None): 1},
    ),
    "an output of a marker that is not due": Case(
        pointing(
            replace(
                pair("a", "a z", match=LINEAGE, group=0, guarantee=AT_LEAST),
                source_ranges=(Range(0, 2, 2),),
            ),
            *(1, (0, 1, 0)),
        ),
        VIOLATED,
        {("phantom", "range"): 1, ("phantom", None): 1, ("offset_behind", None): 1},
    ),
    "an output twice of an input before the log start": Case(
        replace(pair("a_", "a a", match=LINEAGE), source_ranges=(Range(1, 1, 1),)),
        VIOLATED,
        {("phantom", "range"): 2, ("duplicate", None): 1},
    ),
    "an output of a removed input after a later one": Case(
        pair("a_ b", "b a", match=LINEAGE),
        VIOLATED,
        {("phantom", "source_removed"): 1, ("order", None): 1},
    ),
}
"""What lineage proves, whatever became of the input."""
CASES |= BY_LINEAGE


@pytest.mark.parametrize("name", CASES)
def test_the_slow_judge_is_right_on_small_pairs(name: str) -> None:
    """Story: its own, in `CASES`. The verdict and the rows are those that a person finds, and the
    truth allows them."""
    given, outcome, rows = CASES[name]
    found = judge(given)
    assert (found.outcome, dict(found.rows)) == (outcome, rows)
    assert Truth(given).false(found.outcome) is None


def test_a_key_in_two_partitions_has_no_order() -> None:
    """Story: both outputs of key k are there, each in another sink partition. Nobody can tell their
    order."""
    policy = Policy(match=HEADER, order=PER_KEY)
    source = tuple(Input(0, at, f"i{at}", "k", "v", COMMITTED) for at in range(2))
    sink = tuple(
        Record(at, 0, at, f"i{at}", None, True, "k", "v", COMMITTED, (0, at, 0)) for at in range(2)
    )
    given = Pair(policy, source, sink, (Range(0, 2, 2),), (Range(0, 1, 1), Range(0, 1, 1)))
    assert judge(given).premises == {"key_spread"} and judge(given).outcome == UNKNOWN


@pytest.mark.parametrize(
    ("amendment", "given"),
    [
        ("not due", pair("a a", "a a", group=1, moving=True)),
        ("pending twin", pair("a a?", "a a")),
        ("filtered", pair("a", "a", expected=0, expect=COUNTED)),
        ("removed output", pair("a", "a_", group=1)),
        ("disjoint", pair("a", "z", match=HEADER)),
        ("moving group", pair("a b", "a b", group=1, moving=True)),
        ("first copy", pair("a b", "a_ b a", guarantee=AT_LEAST)),
    ],
)
def test_each_amendment_prevents_a_false_verdict(amendment: str, given: Pair) -> None:
    """Story: the rule is left out, and the verdict on a small pair is another one."""
    assert judge(given, frozenset(AMENDMENTS) - {amendment}).outcome != judge(given).outcome


@pytest.mark.parametrize("name", BY_LINEAGE)
def test_what_lineage_proves_is_found_where_the_input_is_not_due_or_gone(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Story: in `BY_LINEAGE`. The rows of the validators are those that a person finds."""
    given, outcome, rows = BY_LINEAGE[name]
    (found,) = rows_of(spark, tmp_path, [given])
    # The slow judge leaves out inversions that only a copy makes.
    by_copy = ("order", "duplicate")
    told = {row: count for row, count in found.items() if row[0] not in PREMISES}
    assert {row: count for row, count in told.items() if row != by_copy} == rows
    assert verdict_of(found, given) == outcome


def test_no_rule_of_the_slow_judge_contradicts_the_truth() -> None:
    """Story: a thousand hostile pairs are simulated, so that their truth is known. The judge never
    contradicts it."""
    wrong = false_by_rule(draw(2_000, SEED))
    assert wrong.get("all kept", []) == []


def test_the_validators_agree_with_the_slow_judge_and_with_the_truth(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: 250 hostile pairs under several policies, many of one policy in one ledger. Each
    verdict is the one of the slow judge, and the truth allows it."""
    count, found, number = 0, [], SEED
    while count < PAIRS:
        number += 1
        for group in grouped(draw(AT_ONCE, number, draw_policy(random.Random(number))))[:2]:
            found += differences(spark, tmp_path, group)
            count += len(group)
    assert [one.told for one in found] == []


def test_pairs_that_are_judged_alone_have_the_right_report(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: a hostile pair of each verdict is judged the whole way, in a ledger of its own."""
    stories = [story for story in draw(ALONE, SEED) if is_told(simulate(story))]
    by_verdict = {judge(simulate(story)).outcome: story for story in stories}
    assert by_verdict.keys() == {HOLDS, VIOLATED, UNKNOWN}
    found = [difference_alone(spark, tmp_path, story) for story in by_verdict.values()]
    assert [one.told for one in found if one] == []
