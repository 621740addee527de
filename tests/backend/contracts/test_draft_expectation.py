"""What a draft expects of each input, from samples alone. A loss or a repetition never becomes the
rule."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import yaml

from topicproof.backend.contracts.contract import PLACEHOLDER, make_contract, parse_fields
from topicproof.backend.contracts.draft import Draft, draft_from
from topicproof.backend.contracts.identity_candidates import document
from topicproof.backend.contracts.sample import Sample
from topicproof.backend.errors import ContractError
from topicproof.backend.kafka.browse.search import Row
from topicproof.validators.expected import Expect
from topicproof.validators.finding import Fate

Written = tuple[int, str | None, Any]
"""Partition, key and JSON value."""


def rows_of(records: Sequence[Written]) -> list[Row]:
    """The rows of a topic in the order of writing, with the offsets that Kafka would give."""
    ends: dict[int, int] = {}
    rows = []
    for number, (partition, key, value) in enumerate(records):
        offset = ends.get(partition, 0)
        ends[partition] = offset + 1
        text = json.dumps(value).encode()
        named = None if key is None else key.encode()
        row = Row(partition, offset, number, named, text, (), len(text), Fate.COMMITTED, None)
        rows.append(row)
    return rows


def sample(topic: str, rows: Sequence[Row], *, whole: bool = True) -> Sample:
    newest_first = tuple(reversed(rows))
    return Sample(topic, newest_first, whole, [document(row) for row in newest_first])


def draft_of(
    inputs: Sequence[Written],
    outputs: Sequence[Written],
    newest: int | None = None,
    *,
    is_kept: bool = True,
) -> Draft:
    """Draft from all inputs and the newest outputs; the older ones are looked up in parts."""
    rows = rows_of(outputs)
    cut = 0 if newest is None else max(0, len(rows) - newest)

    def older() -> Iterator[Sample]:
        yield sample("out", rows[: cut // 2], whole=False)
        yield sample("out", rows[cut // 2 : cut], whole=is_kept)

    source = sample("in", rows_of(inputs))
    return draft_from(source, sample("out", rows[cut:], whole=not cut), older=older())


def fields_of(draft: Draft) -> dict[str, Any]:
    return dict(yaml.safe_load(draft.text))


def orders(count: int, partitions: int = 3) -> list[Written]:
    return [(n % partitions, f"o-{n}", {"id": f"o-{n}"}) for n in range(count)]


def in_another_order(inputs: Sequence[Written]) -> list[Written]:
    """A copy keyed by customer, written in another order than the inputs were."""
    copies: list[Written] = []
    for _, _, value in inputs:
        customer = int(value["id"][2:]) % 41
        copies.append((customer % 3, f"cust-{customer}", value))
    random.Random(7).shuffle(copies)
    return copies


@pytest.mark.parametrize("lost", [0, 25, 250])
def test_outputs_beyond_the_sample_are_looked_up_and_a_lost_one_is_no_filtered_one(
    lost: int,
) -> None:
    """Story: 3,000 inputs are copied in another order than they were written in, and some outputs
    are lost. Most outputs are older than the sample. The draft asks for exactly one output."""
    inputs = orders(3_000)
    copies = in_another_order(inputs)
    draft = draft_of(inputs, copies[:1_700] + copies[1_700 + lost :], newest=1_000)
    assert fields_of(draft)["expect"] == Expect.ONE_TO_ONE and "count" not in fields_of(draft)
    assert "have 0" in draft.text if lost else "inputs have 1." in draft.text
    assert "in the sample" not in draft.text


def test_what_kafka_has_removed_is_not_in_the_sample_and_not_lost() -> None:
    """Story: older outputs were removed by retention. Nothing is said of the inputs without an
    output, and the draft is no weaker."""
    inputs = orders(3_000)
    copies = in_another_order(inputs)[1_000:]
    draft = draft_of(inputs, copies, newest=1_000, is_kept=False)
    assert fields_of(draft)["expect"] == Expect.ONE_TO_ONE
    assert "have no output in the sample, which tells nothing of them" in draft.text


@pytest.mark.parametrize("own_keys", [False, True])
def test_complete_repetition_is_a_question(own_keys: bool) -> None:
    """Story: two instances process everything. Their outputs differ in a time stamp, or in random
    keys too. The draft asks whether that is promised, shows two outputs, and no check takes it."""
    inputs = orders(50)
    copies: list[Written] = [
        (0, f"{value['id']}-{by}" if own_keys else value["id"], {**value, "by": by})
        for _, _, value in inputs
        for by in "ab"
    ]
    draft = draft_of(inputs, copies)
    assert "is two what the pipeline promises, or do two instances run?" in draft.text
    assert ("and share their key." in draft.text) != own_keys
    assert len(draft.repeated) == 2 and '"by": "b"' in draft.repeated[1]
    assert not any('"by"' in line for line in draft.text.splitlines())  # Places, no payloads.
    fields = parse_fields(draft.text, "orders.yaml")
    line = draft.text.splitlines().index(
        next(line for line in draft.text.splitlines() if line.startswith("count:"))
    )
    with pytest.raises(ContractError, match=rf"orders\.yaml, line {line + 1}: .*fill in"):
        make_contract(fields)


def test_a_field_that_says_how_often_an_input_was_tried_is_only_a_hint() -> None:
    """Story: retries write an output each, and the input says how many attempts there were. The
    number fits all inputs, and still a person must confirm it."""
    inputs: list[Written] = [(0, None, {"id": f"o-{n}", "attempts": 1 + n % 3}) for n in range(90)]
    copies: list[Written] = [
        (0, f"{value['id']}-{at}", {"id": value["id"]})
        for _, _, value in inputs
        for at in range(value["attempts"])
    ]
    draft = draft_of(inputs, copies)
    assert fields_of(draft)["count"] == PLACEHOLDER
    assert "such as try_cast(get_json_object(value, '$.attempts') as int), which fits" in draft.text


@pytest.mark.parametrize(
    ("own_keys", "count"),
    [(True, "json_array_length(get_json_object(value, '$.items'))"), (False, PLACEHOLDER)],
)
def test_an_array_explains_lines_with_keys_of_their_own(own_keys: bool, count: str) -> None:
    """Story: an order becomes a line for each of its items. With keys of their own the lines are
    proposed; with the order's key the same array is only a hint."""
    inputs: list[Written] = [
        (0, f"o-{n}", {"id": f"o-{n}", "items": ["x"] * (n % 4)}) for n in range(100)
    ]
    lines: list[Written] = [
        (0, f"{key}-{at}" if own_keys else key, {"id": key})
        for _, key, value in inputs
        for at in range(len(value["items"]))
    ]
    assert fields_of(draft_of(inputs, lines))["count"] == count


def test_a_few_repetitions_are_no_rule_and_no_question() -> None:
    """Story: five of 100 outputs are there twice. The draft expects one, so a check finds them."""
    inputs = orders(100, partitions=1)
    draft = draft_of(inputs, [*inputs, *inputs[:5]])
    assert fields_of(draft)["expect"] == Expect.ONE_TO_ONE and draft.question is None
    assert "A second output is a repetition, unless the pipeline promises it" in draft.text


@pytest.mark.parametrize(
    ("count", "without"),
    [
        (100, {n for n in range(100) if n % 10}),
        (100, {n for n in range(100) if n % 5 == 1}),
        (12, {5}),
    ],
    ids=["nine of ten", "one of five", "one of twelve"],
)
def test_a_filter_is_a_question(count: int, without: set[int]) -> None:
    """Story: inputs have no output. They may be filtered, so the draft asks which ones have one.
    One of a dozen may be filtered, too: only few of many are taken for lost."""
    inputs = orders(count, partitions=1)
    draft = draft_of(inputs, [record for n, record in enumerate(inputs) if n not in without])
    fields = fields_of(draft)
    assert (fields["expect"], fields["count"]) == (Expect.ZERO_OR_ONE, PLACEHOLDER)
    assert "which inputs have an output?" in draft.text


def test_two_counters_are_no_identity() -> None:
    """Story: inputs are numbered, and outputs are numbered by another program. Half of the orders
    are lost and the others are there twice, and some lack their id. The numbers fit perfectly, so
    the draft asks which part identifies an input."""
    inputs: list[Written] = [(0, None, {"order": f"o-{n}", "n": n}) for n in range(100)]
    orders_written = [f"o-{n // 2}" for n in range(100)]
    outputs: list[Written] = [
        (0, None, {"seq": n} if n % 10 == 0 else {"id": order, "seq": n})
        for n, order in enumerate(orders_written)
    ]
    draft = draft_of(inputs, outputs)
    assert fields_of(draft)["identity"] == PLACEHOLDER
    assert draft.question is not None and "which one identifies an input?" in draft.question.ask
    with pytest.raises(ContractError, match=r"identity.*choose what identifies an input"):
        make_contract(parse_fields(draft.text))
