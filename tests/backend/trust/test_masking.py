"""What some roles do not see of a payload."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as some

from tests.backend.trust.people import ADA, EMMY, GRACE, ISSUER, KURT
from topicproof.backend.errors import UsageError
from topicproof.backend.trust.identity import unauthenticated
from topicproof.backend.trust.login import Login, read_login
from topicproof.backend.trust.masking import (
    BYTES_MAX,
    MASKED,
    VALUES_MAX,
    Field,
    masked_fields,
    masked_headers,
    masked_part,
    parse_field,
)

RULES = """
masks:
  - {topics: payments-*, fields: [value.card.number, header.token, key], shown_to: [admin, signer]}
  - {topics: payments-eu, fields: [headers]}
"""


def login(tmp_path: Path, masks: str) -> Login:
    path = tmp_path / "login.yaml"
    path.write_text(f"openid: {{issuer: '{ISSUER}', client_id: t}}\n{masks}")
    return read_login(path)


def test_rules_are_by_topic_and_role(tmp_path: Path) -> None:
    """Story: the card's number and a header of all payments are for signers and administrators;
    in Europe only administrators see headers. Without a login everything is seen, as before."""
    masks = login(tmp_path, RULES).masks
    few = {Field("value", ("card", "number")), Field("header", ("token",)), Field("key")}
    assert set(masked_fields(masks, "payments-us", ADA)) == few
    assert set(masked_fields(masks, "payments-eu", GRACE)) == few | {Field("headers")}
    assert masked_fields(masks, "payments-eu", KURT) == (Field("headers"),)
    for by in (EMMY, unauthenticated("me@here")):
        assert masked_fields(masks, "payments-eu", by) == ()
    assert masked_fields(masks, "orders", ADA) == masked_fields(masks, "Payments-us", ADA) == ()


@pytest.mark.parametrize("field", ["card", "value.", "value..x", "header", "header.", "keys", ""])
def test_a_field_that_is_none_is_refused(field: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"line 2: masks\.0\.fields\.0: .* is none of key, value"):
        login(tmp_path, f"masks: [{{topics: a, fields: ['{field}']}}]")


def test_a_document_too_large_for_a_page_is_masked_as_a_whole() -> None:
    """Story: a batch of a few kilobytes holds `[[],[],...]` of 30 MB. Taken apart, it would hold up
    everybody's pages for minutes and take gigabytes."""
    fields = (parse_field("value.card.number"),)
    many = b"[" + b"[]," * (VALUES_MAX + 1) + b"1]"
    assert masked_part("value", many, fields) == MASKED
    long = json.dumps({"pad": "x" * BYTES_MAX, "card": {"number": 1}}).encode()
    assert masked_part("value", long, fields) == MASKED
    assert masked_part("key", many, fields) == many
    large = json.dumps({"pad": "x" * (BYTES_MAX // 2), "card": {"number": 41}}).encode()
    assert masked_part("value", large, fields) == large.replace(b", ", b",").replace(
        b": ", b":"
    ).replace(b":41", b':"(masked)"')


def test_a_field_is_masked_wherever_it_is() -> None:
    """Story: a field of an object, of objects in a list, and of neither; whole parts; bytes that
    are no JSON."""
    number = [parse_field("value.card.number")]

    def shown(value: object) -> object:
        return json.loads(masked_part("value", json.dumps(value).encode(), number) or b"")

    said = MASKED.decode()
    assert shown({"card": {"number": 4111, "of": "Ada"}, "n": 2**70}) == {
        "card": {"number": said, "of": "Ada"},
        "n": 2**70,
    }
    assert shown([{"card": [{"number": "1"}, {"number": None}]}]) == [
        {"card": [{"number": said}, {"number": said}]}
    ]
    # A text in place of the object may hold the number: JSON in JSON.
    assert shown({"card": json.dumps({"number": "1"})}) == {"card": said} and shown({}) == {}
    assert shown({"card.number": "1"}) == {"card.number": said}
    assert shown({"card": None}) == {"card": None} and shown(["1"]) == [said]
    for opaque in (
        b"\x00\x00\x00\x00\x07avro",
        b'{"card": {"num',
        b"4111",
        b'"4111"',
        b"[" * 9_999,
    ):
        assert masked_part("value", opaque, number) == MASKED
    assert masked_part("key", b"4111", number) == b"4111"
    assert masked_part("value", None, number) is None
    assert masked_part("value", b"{}", [*number, parse_field("value")]) == MASKED
    headers = (("token", b"s"), ("token", None), ("other.token", b"s"))
    assert masked_headers(headers, [parse_field("header.token")]) == (
        ("token", MASKED),
        ("token", MASKED),
        ("other.token", b"s"),
    )
    assert {value for _, value in masked_headers(headers, [parse_field("headers")])} == {MASKED}


@settings(max_examples=50)
@given(
    some.recursive(
        some.none() | some.integers() | some.text(max_size=5) | some.just("the-secret"),
        lambda inner: (
            some.lists(inner, max_size=3)
            | some.dictionaries(some.sampled_from("abc"), inner, max_size=3)
        ),
    )
)
def test_nothing_of_a_masked_field_is_left(tree: object) -> None:
    """Story: whatever surrounds it, the secret is only where no rule is."""
    data = json.dumps({"a": tree, "b": tree}).encode()
    masked = masked_part("value", data, [parse_field("value.a"), parse_field("value.b")]) or b""
    assert json.loads(masked) == {"a": MASKED.decode(), "b": MASKED.decode()}
