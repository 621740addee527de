"""A preview of matched records, contracts as text, and the samples that both start from: pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from topicproof.backend.contracts.contract import PLACEHOLDER, make_contract, parse_fields
from topicproof.backend.contracts.contract_text import identity_of, labels_of, side_of, spell
from topicproof.backend.contracts.identity_candidates import document
from topicproof.backend.contracts.preview import Match, Preview, identity_only, preview
from topicproof.backend.contracts.sample import Sample
from topicproof.backend.kafka.browse.search import Row
from topicproof.validators.finding import Fate
from topicproof.validators.lineage.headers import LINEAGE_HEADER

Headers = tuple[tuple[str, bytes | None], ...]
TOPICS: dict[str, Any] = {"source": {"topic": "orders"}, "sink": {"topic": "lines"}}


def sample(
    topic: str,
    values: Sequence[str],
    keys: Sequence[str] = (),
    headers: Sequence[Headers] = (),
    whole: bool = True,
) -> Sample:
    """Records of one partition at offsets from 0, newest first as a sample has them."""
    rows = [
        Row(
            *(0, n, n, keys[n].encode() if keys else None, value.encode()),
            headers[n] if headers else (),
            *(10, Fate.COMMITTED, None),
        )
        for n, value in enumerate(values)
    ][::-1]
    return Sample(topic, rows, whole, [document(row) for row in rows])


def seen(source: Sample, sink: Sample, letters: Sample | None = None, **terms: Any) -> Preview:
    return preview(source, sink, make_contract({**TOPICS, **terms}), letters)


def of(found: Preview) -> dict[bytes, Match]:
    return {one.identity: one.match for one in found.pairs}


def test_what_matches_and_what_does_not() -> None:
    """Story: an order without a line, one with two, a line of no order, and a repeated order. The
    worst come first; the newest order may still wait, so nobody complains of it."""
    source = sample("orders", [f'{{"id": {n}}}' for n in (1, 2, 3, 4, 4, 5, 6)])
    sink = sample("lines", [f'{{"of": {n}}}' for n in (1, 3, 3, 4, 5, 9)])
    found = seen(source, sink, identity={"source": {"json": "$.id"}, "sink": {"json": "$.of"}})
    assert of(found) == {
        b"4": Match.SHARED,
        b"3": Match.EXTRA,
        b"9": Match.NO_INPUT,
        b"2": Match.NO_OUTPUT,
        b"1": Match.MATCHED,
        b"5": Match.MATCHED,
    }
    assert [one.match for one in found.pairs] == sorted(
        (one.match for one in found.pairs), key=list(Match).index
    )
    assert (found.outputs_matched, found.outputs) == (5, 6)
    assert (found.inputs_matched, found.inputs) == (5, 6) and not found.good
    assert "5 of the 6 newest outputs" in found.why and "1 input with more outputs" in found.why


def connect(topic: str, offset: int) -> Headers:
    """The headers of a dead letter of Kafka Connect."""
    names = ("topic", "partition", "offset")
    values = (topic, "0", str(offset))
    return tuple(
        (f"__connect.errors.{name}", value.encode())
        for name, value in zip(names, values, strict=True)
    )


def test_dead_letters_are_an_outcome() -> None:
    """Story: of five orders one is put aside, and one more although its line is there. A dead
    letter of another topic names no input. By a field the same letters name the same inputs; by a
    header that none has, the preview says that the origin is wrong."""
    source = sample("orders", [f'{{"id": {n}}}' for n in range(5)], "abcde")
    sink = sample("lines", "1234", "acde")
    headers = [connect("orders", 1), connect("orders", 2), connect("other", 1)]
    letters = sample("dlq", ['{"of": "b"}', '{"of": "c"}', "?"], headers=headers)
    terms = {"identity": "key", "dead_letters": {"topic": "dlq", "origin": "connect"}}
    found = seen(source, sink, letters, **terms)
    matched = dict.fromkeys((b"a", b"d", b"e"), Match.MATCHED)
    assert of(found) == {b"c": Match.BOTH, b"b": Match.PUT_ASIDE} | matched
    assert (found.inputs_matched, found.inputs) == (5, 5) and not found.good
    assert found.why == (
        "4 of the 4 newest outputs have their input in the sample, and 5 of the 5 inputs between"
        " them have an output or a dead letter. 2 of the 3 newest dead letters have their input in"
        " the sample. 1 dead letter names no input by the headers of connect. 1 input with both an"
        " output and a dead letter."
    )
    terms["dead_letters"] = {"topic": "dlq", "origin": {"json": "$.of"}}
    assert of(seen(source, sink, letters, **terms)) == of(found)
    terms["dead_letters"] = {"topic": "dlq", "origin": {"header": "of"}}
    wrong = seen(source, sink, letters, **terms)
    assert of(wrong)[b"b"] is Match.NO_OUTPUT and not wrong.good
    assert "None of the 3 newest dead letters names an input by header of." in wrong.why
    # Right letters beside right outputs are what a contract is about.
    right = sample("dlq", "?", headers=[connect("orders", 1)])
    terms["dead_letters"] = {"topic": "dlq", "origin": "connect"}
    assert seen(source, sink, right, **terms).good


def test_the_contract_says_how_many_outputs_are_right() -> None:
    """Story: the same records under a filter, and under a count: neither is wrong then."""
    source, sink = sample("orders", "abc", "abc"), sample("lines", "xyz", "acc")
    assert of(seen(source, sink, identity="key", expect="zero_or_one")) == {
        b"c": Match.EXTRA,
        b"a": Match.MATCHED,
        b"b": Match.MATCHED,
    }
    many = seen(source, sink, identity="key", expect="one_to_many", count=2)
    assert of(many)[b"c"] is Match.MATCHED and of(many)[b"b"] is Match.NO_OUTPUT


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("$.a", '{"a": 1.10}', b"1.10"),
        ("$.a", '{"a": "1.10"}', b"1.10"),
        ("$.a[1]", '{"a": [0, true]}', b"true"),
        ("$.a", '{"a": {"z": "q", "b": [1e5, null, {}]}}', b'{"b":[1e5,null,{}],"z":"q"}'),
        ("$.a[2]", '{"a": [0, true]}', None),
        ("$.a.b", '{"a": "b"}', None),
        ("$.a", '{"a": null}', None),
        ("$.a", "no JSON", None),
    ],
)
def test_a_text_is_the_one_that_the_judge_compares(
    path: str, value: str, text: bytes | None
) -> None:
    """Story: numbers, texts, objects and holes at a path give what `exact_text` gives."""
    topics = sample("orders", [value]), sample("lines", [value])
    found = seen(*topics, identity={"json": path})
    assert [one.identity for one in found.pairs] == ([] if text is None else [text])
    assert found.nameless == ((1, 1) if text is None else (0, 0)) and found.good is bool(text)


def test_lineage_and_headers_match_too() -> None:
    """Story: a topic of this project's own sink, and one that carries a header of its own."""
    named: list[Headers] = [((LINEAGE_HEADER, f"orders/0/{n}/0".encode()),) for n in range(3)]
    source, sink = sample("orders", "abc"), sample("lines", "abc", headers=named)
    assert seen(source, sink).good and not seen(sample("other", "abc"), sink).outputs_matched
    own: list[Headers] = [(("id", b"old"), ("id", one)) for one in (b"a", b"b", b"c")]
    identity = {"source": "value", "sink": {"header": "id"}}
    assert seen(source, sample("lines", "xyz", headers=own), identity=identity).good


def test_nothing_in_common_is_said() -> None:
    """Story: the wrong topic was chosen. It is no success on nothing."""
    found = seen(sample("orders", "ab", "ab"), sample("lines", "xy", "xy"), identity="key")
    assert not found.good and found.why.startswith("None of the 2 newest outputs has an input")


def test_a_preview_needs_only_the_identity() -> None:
    """Story: somebody is still typing the count. The preview stays; without an identity, or with
    several topics, there is none."""
    fields = {**TOPICS, "identity": "key", "expect": "one_to_many", "count": PLACEHOLDER}
    assert identity_only(fields) is not None
    assert identity_only({**fields, "identity": PLACEHOLDER}) is None
    assert identity_only({**fields, "sink": {"topics": ["a", "b"]}}) is None


@pytest.mark.parametrize(
    ("identity", "labels"),
    [
        ("lineage", ("lineage", "lineage")),
        ("key", ("key", "key")),
        ({"json": "$.id"}, ("json $.id", "json $.id")),
        ({"source": "value", "sink": {"header": "my id"}}, ("value", "header my id")),
        ({"source": "key", "sink": PLACEHOLDER}, ("key", None)),
    ],
)
def test_an_identity_is_its_labels(identity: Any, labels: tuple[str | None, str | None]) -> None:
    assert labels_of(identity) == labels and identity_of(*labels) == identity


def test_what_people_type_is_a_field_or_a_header() -> None:
    assert side_of("$.a") == {"json": "$.a"} and side_of(" order-id ") == {"header": "order-id"}


def test_a_contract_survives_its_spelling() -> None:
    """Story: the form's fields are kept as YAML, in the order of a contract, and read back. Empty
    ones are left out."""
    fields = {
        "order": "none",
        **TOPICS,
        "identity": "key",
        "value": "concat(value, ': #')",
        "group": "",
        "warn": {"pending": 0},
        "require": ["duplicate", "gap"],
    }
    text = spell(fields)
    assert parse_fields(text) == {name: one for name, one in fields.items() if one != ""}
    assert text.startswith("source: {topic: orders}\nsink: {topic: lines}\nidentity: key\nvalue: ")
