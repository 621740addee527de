"""`topicproof contract init`: what it proposes from the data of two topics, and when it proposes
nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from tests.test_cli import call
from topicproof.backend.address import Address, Sides
from topicproof.backend.contracts.contract import PLACEHOLDER, make_contract, read_contract
from topicproof.backend.contracts.draft import Draft, draft, draft_from
from topicproof.backend.contracts.identity_candidates import HEADERS_MAX, document, fits, nodes
from topicproof.backend.contracts.sample import Sample
from topicproof.backend.errors import ContractError
from topicproof.backend.kafka.browse.search import Row
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.settings import Settings
from topicproof.validators.expected import Expect
from topicproof.validators.finding import Fate, Order
from topicproof.validators.lineage.dead_letters import ORIGINS, DeadLetters
from topicproof.validators.lineage.headers import Lineage, format_lineage
from topicproof.validators.lineage.identity import Identity, Match

INPUTS = 200

Written = tuple[int, bytes | None, Any, dict[str, str | bytes]]
"""Partition, key, value (JSON unless it is bytes) and headers."""


def write(bootstrap: str, topic: str, records: Iterable[Written]) -> None:
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    for partition, key, value, headers in records:
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        own: list[tuple[str, str | bytes | None]] = list(headers.items())
        producer.produce(topic, text, key, partition, headers=own)
    producer.flush()


def orders(**more: Callable[[int], Any]) -> list[Written]:
    return [
        (0, None, {"id": n, **{name: of(n) for name, of in more.items()}}, {})
        for n in range(INPUTS)
    ]


def lines(counts: Sequence[int]) -> list[Written]:
    """So many outputs of each order, under keys and with values of their own."""
    numbers = [(n, at) for n, count in enumerate(counts) for at in range(count)]
    return [
        (0, b"c%d" % (n % 5 + 5 * at), {"total": -1, "v": 1}, {"order-id": str(n), "v": "1"})
        for n, at in numbers
    ]


def drafted(
    bootstrap: str, new_topic: Callable[..., str], source: list[Written], sink: list[Written]
) -> Draft:
    topics = new_topic(2), new_topic(2)
    for topic, records in zip(topics, (source, sink), strict=True):
        write(bootstrap, topic, records)
    return draft(Sides(Address(bootstrap)), *topics)


JSON_TO_HEADER = Match("json:$.id", "header:order-id")


@pytest.mark.parametrize(
    ("more", "counts", "expect", "count", "says"),
    [
        ({}, [1] * INPUTS, Expect.ONE_TO_ONE, None, "all 200 inputs have 1."),
        # The last 20 orders still wait: they say nothing.
        ({}, [1] * (INPUTS - 20), Expect.ONE_TO_ONE, None, "all 180 inputs have 1."),
        (
            {},
            [n % 2 for n in range(INPUTS)],
            Expect.ZERO_OR_ONE,
            PLACEHOLDER,
            "of 200 inputs, 100 have 0, 100 have 1.",
        ),
        ({}, [3] * INPUTS, Expect.ONE_TO_MANY, PLACEHOLDER, "all 200 inputs have 3."),
        (
            {"items": lambda n: [{"sku": "a"}] * (n % 4)},
            [n % 4 for n in range(INPUTS)],
            Expect.ONE_TO_MANY,
            "json_array_length(get_json_object(value, '$.items'))",
            "50 have 0, 50 have 1, 50 have 2, 50 have 3",
        ),
        (
            {"of": lambda n: {"parts": n % 3}},
            [n % 3 for n in range(INPUTS)],
            Expect.ONE_TO_MANY,
            PLACEHOLDER,
            "such as try_cast(get_json_object(value, '$.of.parts') as int), which fits the sample",
        ),
    ],
)
def test_the_number_of_outputs_is_what_was_seen(
    bootstrap: str,
    new_topic: Callable[..., str],
    more: dict[str, Callable[[int], Any]],
    counts: list[int],
    expect: Expect,
    count: str | None,
    says: str,
) -> None:
    """Story: orders as JSON, and outputs that carry the order's number in a header. The sides are
    held by different parts; constants on both sides are not taken for an identity."""
    found = drafted(bootstrap, new_topic, orders(v=lambda _: 1, **more), lines(counts))
    fields = yaml.safe_load(found.text)
    assert (fields["expect"], fields.get("count"), fields["order"]) == (
        expect,
        count,
        Order.PER_SOURCE_PARTITION,
    )
    if count == PLACEHOLDER:
        fields["count"] = 1
    assert make_contract(fields).terms(None).match == JSON_TO_HEADER
    assert says.rstrip(".") in found.text
    assert "100 % overlap: sure" in found.why and found.why in found.text


def test_dead_letters_beside_the_topics_are_proposed(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: every fourth order is a dead letter of Kafka Connect, in a topic named after the sink.
    The others have one output, so these do not make the outputs look filtered. A topic with the
    name of dead letters of another source is left out."""
    source, sink = new_topic(), new_topic()
    dead = range(0, INPUTS, 4)
    write(bootstrap, source, orders())
    write(bootstrap, sink, lines([int(n not in dead) for n in range(INPUTS)]))
    for topic, named in ((f"{source}.dlt", "another"), (f"{sink}-DLQ", source)):
        Cluster(Address(bootstrap)).create_topic(topic, 1)
        headers = ORIGINS["connect"].names
        letters: list[Written] = [
            (0, None, {}, dict(zip(headers, (named, "0", str(n)), strict=True))) for n in dead
        ]
        write(bootstrap, topic, letters)
    sides = Sides(Address(bootstrap))
    masked = draft(sides, source, sink, may_read=lambda topic: topic == source)
    assert "\ndead_letters:" not in masked.text, "masked for who asks"
    text = draft(sides, source, sink).text
    assert "# 50 of its newest 50 records name an input" in text
    contract = make_contract(yaml.safe_load(text))
    assert contract.expect is Expect.ONE_TO_ONE
    assert contract.terms(None).letters == DeadLetters(f"{sink}-DLQ", "connect")


def test_a_count_that_nothing_says_is_left_to_a_person(
    bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Story: an order has one or two outputs, and no field says how many. The contract does not
    hold until somebody fills the count in."""
    found = drafted(bootstrap, new_topic, orders(), lines([1 + n % 2 for n in range(INPUTS)]))
    path = tmp_path / "contract.yaml"
    path.write_text(found.text)
    with pytest.raises(
        ContractError, match=r"count: fill in how many outputs an input has, in Spark SQL"
    ):
        read_contract(path)
    assert "100 have 1, 100 have 2" in found.text
    path.write_text(found.text.replace("count: FILL_IN", "count: 1 + offset % 2"))
    assert read_contract(path).count == "1 + offset % 2"


@pytest.mark.parametrize(
    ("order", "says"),
    [
        (Order.PER_KEY, "are out of order; all 195 pairs of one key are in order"),
        (Order.NONE, "are out of order; of one key "),
    ],
)
def test_the_order_is_what_was_seen(
    bootstrap: str, new_topic: Callable[..., str], order: Order, says: str
) -> None:
    """Story: outputs of five keys are shuffled: those of one key stay in order, or not even
    those."""
    outputs = lines([1] * INPUTS)
    if order is Order.PER_KEY:
        outputs.sort(key=lambda record: record[1] or b"")
    else:
        random.Random(7).shuffle(outputs)
    found = drafted(bootstrap, new_topic, orders(), outputs)
    assert make_contract(yaml.safe_load(found.text)).order is order
    assert says in found.text


def test_the_key_comes_before_a_field_that_fits_as_well(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: keys differ from input to input, and so does a field; the outputs have both. Few
    records are a guess."""
    source: list[Written] = [(n % 2, b"k%d" % n, {"id": n}, {}) for n in range(4)]
    found = drafted(bootstrap, new_topic, source, source)
    assert make_contract(yaml.safe_load(found.text)).terms(None).match == Match()
    assert (
        found.why
        == "present in 100 % of 4 inputs and 100 % of 4 outputs, unique, 100 % overlap: a guess"
    )


def test_outputs_that_name_their_inputs_need_no_other_identity(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: outputs have the header that our sink writes, and each input has two."""
    source, sink = new_topic(), new_topic()
    write(bootstrap, source, orders())
    headers: list[dict[str, str | bytes]] = [
        {"topicproof-lineage": format_lineage(Lineage(source, 0, n // 2, n % 2))}
        for n in range(2 * INPUTS)
    ]
    write(bootstrap, sink, [(0, None, {"n": 1}, own) for own in headers])
    here = Sides(Address(bootstrap))
    fields = yaml.safe_load(draft(here, source, sink).text)
    assert (fields["expect"], fields["count"]) == (Expect.ONE_TO_MANY, PLACEHOLDER)
    assert make_contract({**fields, "count": 2}).by is Identity.LINEAGE
    far = draft(Sides(Address(bootstrap), Address(bootstrap)), source, sink)
    assert not far.found and "No identity was found" in far.why  # Offsets of another cluster.


def test_no_identity_is_no_contract(
    bootstrap: str,
    new_topic: Callable[..., str],
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Story: the topics share nothing but constants. What was tried is printed, no file is written,
    and the sentence says what to do."""
    monkeypatch.setenv("TOPICPROOF_HOME", str(settings.home))
    source, sink = new_topic(), new_topic()
    write(bootstrap, source, orders(kind=lambda _: "order"))
    write(bootstrap, sink, [(0, None, {"kind": "order", "n": -1 - n}, {}) for n in range(INPUTS)])
    path = tmp_path / "contract.yaml"
    arguments = [
        "contract",
        "init",
        "--source",
        source,
        "--sink",
        sink,
        "--bootstrap",
        bootstrap,
        str(path),
    ]
    assert call(*arguments) == 64
    told = capsys.readouterr()
    assert (
        not path.exists()
        and "Let the program copy a unique id of each input to its outputs" in told.err
    )
    assert all(line.startswith("#") for line in told.out.splitlines() if line)
    assert "#   identity: {json: $.kind} # present in 100 % of 200 inputs" in told.out


def row(value: bytes) -> Row:
    return Row(0, 0, 0, None, value, (), len(value), Fate.COMMITTED, None)


@pytest.mark.parametrize(
    "value", [b"", b"not", b'{"id":1', b'{"id":1,"id":2}', b'{"id":NaN}', b"\xff", b'{"id":01}']
)
def test_what_is_no_json_for_a_verdict_is_none_for_a_draft(value: bytes) -> None:
    """Story: texts that the judge reads as no document. The draft proposes no path into them."""
    assert document(row(value)) is None


def test_paths_go_three_steps_down() -> None:
    """Story: a nested document. Numbers keep their digits, and of an array the first element
    counts."""
    found = dict(nodes(document(row(b'{"a":{"b":{"c":{"d":1}}},"n":[{"x":1.10}]}'))))
    assert {("a", "b", "c"), ("n", 0, "x")} <= found.keys() and ("a", "b", "c", "d") not in found
    assert found["n", 0, "x"] == "1.10"


def test_a_name_of_any_length_stays_in_its_comment() -> None:
    """Story: a record has a header whose name is longer than a line of YAML, and goes on like a
    contract. A draft without an identity is comments alone."""
    name = "x" * 9_995 + " source: {topic: mine}"

    def sample(topic: str, value: str) -> Sample:
        texts = [f"{value}{n}".encode() for n in range(40)]
        rows = [
            Row(0, n, 1, None, text, ((name, text),), 1, Fate.COMMITTED, None)
            for n, text in enumerate(texts)
        ]
        return Sample(topic, rows, True, [None] * len(rows))

    drafted = draft_from(sample("orders", "a"), sample("invoices", "b"))
    assert name in drafted.text
    assert all(line.startswith("#") for line in drafted.text.splitlines() if line)


def test_a_constant_matches_nothing() -> None:
    """Story: every output has a 1, and one input of a thousand has it too. That is not an
    identity."""
    (fit,) = fits(
        {"{json: $.id}": [b"%d" % n for n in range(1_000)]}, {"{json: $.v}": [b"1"] * 1_000}
    )
    assert fit.overlap == 1 and fit.score < 0.05


def test_a_thousand_headers_are_no_million_pairs() -> None:
    """Story: each record of two topics has three hundred headers with its number, and one header
    that all records have is the last by name. Of a thousand headers, one record in each topic made
    a draft compare a million pairs, in half a gigabyte."""

    def sample(topic: str) -> Sample:
        rows = []
        for number in range(20):
            names = [f"h{at:03}" for at in range(300) if (at + number) % 20] + ["order-id"]
            headers = tuple((name, b"%d" % number) for name in names)
            rows.append(Row(0, number, 0, None, b"x", headers, 1, Fate.COMMITTED, None))
        return Sample(topic, rows, True, [None] * len(rows))

    inputs, outputs = sample("a").candidates, sample("b").candidates
    assert "{header: order-id}" in inputs
    pairs = fits(inputs, outputs)
    assert len(pairs) == (HEADERS_MAX + 1) ** 2
    assert pairs[0].spelled == "{header: order-id}"
