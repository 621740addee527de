"""Conditions on fields of a record: what fits, what is unknown, what is refused."""

from __future__ import annotations

import json

import pytest

from topicproof.backend.formats.decoded import DecodedValue, Format
from topicproof.backend.formats.formats import Formats
from topicproof.backend.kafka.browse.field_conditions import (
    HEADERS_DECODED_MAX,
    all_hold,
    parse_conditions,
)
from topicproof.backend.kafka.browse.record_json import decode_of
from topicproof.backend.kafka.browse.records import Headers

VALUE = {
    "customer": {"id": 4242, "name": "Ada Lovelace"},
    "amount": "12.50",
    "price": 0.1,
    "large": 2**70 + 1,
    "tags": ["new", 7],
    "at": "2026-01-31T10:00:00Z",
    "paid": True,
    "note": None,
    "a.b": "dotted",
}
HEADERS = (("region", b"eu"), ("region", b"us"), ("trace", b'{"id": 5}'), ("raw", b"\xff"))


def fits(
    text: str, value: bytes | None = json.dumps(VALUE).encode(), key: bytes | None = b"o-7"
) -> bool | None:
    return all_hold(parse_conditions(text), key, value, HEADERS, decode_of(Formats(), "orders"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "$.customer.id = 4242",
        "$.customer.id=4242 and key = o-7 AND $.paid == true",
        "$.customer.name = 'Ada Lovelace'",
        '$.customer.name contains "LOVE"',
        "value.customer.id >= 4242",
        "$['a.b'] = dotted",
        "$.amount = 12.5",
        "$.amount < 100",
        "$.price = 0.1",
        f"$.large > {2**70}",
        "$.tags[1] = 7",
        "$.tags contains new",
        "$.customer contains name",
        "$.at > 2026-01-30",
        "$.note = null",
        "$.no.such.field = null",
        "$.no != 5",
        "$ contains lovelace",
        "headers.region = us",
        "headers.trace.id = 5",
        "headers.raw = 0xff",
        "headers.none = null",
    ],
)
def test_a_record_fits(text: str) -> None:
    """Story: somebody spells what a record has, each in another way."""
    assert fits(text) is True


@pytest.mark.parametrize(
    "text",
    [
        "$.customer.id != 4242",
        "$.customer.id = '4242' and $.paid = true",
        "$.customer.id < 4242",
        "$.customer.id = 424",
        "$.customer.id > 9 and $.paid = false",
        "$.customer = 4242",
        "$.customer.name > 5",
        "$.tags[2] = 7",
        f"$.large = {2**70}",
        "$.amount > abc",
        "$.paid = 1",
        "$.note != null",
        "headers.region != eu",
        "headers.none = eu",
        "key = O-7",
    ],
)
def test_a_record_does_not_fit(text: str) -> None:
    """Story: what is near to what a record has is not it: another number, another type, a header
    that is there twice."""
    assert fits(text) is False


def test_what_is_not_decoded_is_unknown() -> None:
    """Story: a value is no JSON. Nobody can say whether its field is 1; another condition that
    fails decides, and so does one on the whole value. A null value has no fields."""
    assert fits("$.id = 1", b"plain text") is None
    assert fits("$.id = 1 and key = other", b"plain text") is False
    assert fits("$ contains TEXT", b"plain text") is True
    assert fits("$ = 0xff00", b"\xff\x00") is True
    assert fits("$.id = null", None) is True and fits("$ = null", None) is True
    assert fits("$.id = 1", b"[" * 100_000) is None
    assert fits("$.n < 5", b'{"n": 1' + b"0" * 5_000 + b"}") is None
    assert fits("$.n < 5", b'{"n": NaN}') in (None, False)


def test_a_header_is_decoded_once_and_not_a_thousand_times() -> None:
    """Story: a record has hundreds of headers of one name, each as dear to decode as a value.
    Several conditions look for fields in it."""
    calls: list[bytes] = []

    def decode(_part: str, data: bytes, _headers: Headers) -> DecodedValue:
        calls.append(data)
        return DecodedValue({"id": 1}, Format.JSON)

    def fits(text: str, count: int) -> bool | None:
        headers = (("trace", b"{}"),) * count
        return all_hold(parse_conditions(text), None, None, headers, decode)

    eight = " and ".join(["headers.trace.id = 1"] * 8)
    assert fits(eight, 1) is True and len(calls) == 1
    assert fits(eight, HEADERS_DECODED_MAX + 1) is None and len(calls) == 1 + HEADERS_DECODED_MAX
    assert fits("headers.trace = 1", 300) is False and len(calls) == 1 + HEADERS_DECODED_MAX


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("id = 5", "names no field"),
        ("keys = 5", "names no field"),
        ("headers = 5", "needs the name of a header"),
        ("$.id", "needs an operator"),
        ("$.id ~ 5", "needs an operator"),
        ("$.id containsx", "needs an operator"),
        ("$.id =", "needs a number or a text"),
        ("$.id = 'open", "needs a number or a text"),
        ("$.name = Ada Lovelace", "put quotes around"),
        ("$..id = 5", "cannot search all levels"),
        ("$.items[*].id = 5", "cannot hold a wildcard"),
        ("$.items[?(@.id)] = 5", "cannot hold a filter"),
        ("$.a = 1 and", "follows a condition"),
        (" and ".join(["$.a = 1"] * 9), "more than 8 conditions"),
        ("$." + "a" * 500 + " = 1", "more than 500 characters"),
    ],
)
def test_a_mistake_is_explained(text: str, why: str) -> None:
    """Story: a filter is mistyped, or another language. The sentence names the place."""
    with pytest.raises(ValueError, match=why):
        parse_conditions(text)
