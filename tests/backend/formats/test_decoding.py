"""Decoding without a registry: JSON, MessagePack, Avro with a schema file, and any bytes."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import msgpack
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given, settings, strategies as st

from tests.backend.formats.records import BROKEN, PACKED, packed
from topicproof.backend.errors import UsageError
from topicproof.backend.formats.decoded import DecodedValue, Format, as_json
from topicproof.backend.formats.formats import Formats
from topicproof.backend.formats.protobuf import ProtobufSchema, read_index

EVENT = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9,
                                   "scale": 2}},
        {"name": "raw", "type": ["null", "bytes"]},
    ],
}  # fmt: skip


def test_json_and_messagepack_are_known_by_themselves() -> None:
    """Story: a topic has no registry. JSON objects and MessagePack's maps are shown as trees, text
    and numbers as they are."""
    plain = Formats()
    assert plain.decode(b' {"a": [1, "\xc3\xa9"]}') == DecodedValue({"a": [1, "é"]}, Format.JSON)
    assert plain.decode(packed()) == DecodedValue(PACKED, Format.MESSAGEPACK)
    odd = msgpack.packb({"b": b"\xff", "t": msgpack.Timestamp(0), "n": {1: float("inf")}})
    assert plain.decode(odd).value == {
        "b": "0xff",
        "t": "1970-01-01T00:00:00+00:00",
        "n": {"1": "inf"},
    }
    for text in (b"text", b"5", b'"a"', b"\x05", b"[NaN]", *BROKEN):
        assert not plain.decode(text).known, text
    assert not plain.configured


def test_odd_json_hides_nothing_and_can_be_shown() -> None:
    """Story: JSON of half a surrogate pair, of a number beyond all floats, of a name twice, and
    nested deeper than a page can show. Each can be written as UTF-8, or stays text."""
    plain = Formats()
    found = plain.decode(b'{"a\\ud800": "\\udc00", "n": 1e999}')
    assert found.value == {"a?": "?", "n": "inf"} and (found.text or "").encode()
    assert not plain.decode(b'{"a": 1, "a": 2}').known
    assert plain.decode(b"[" * 90 + b"]" * 90).known
    assert not plain.decode(b"[" * 200 + b"]" * 200).known
    same = msgpack.packb({"a": {1: "one", "1": "text"}})
    assert not plain.decode(same).known


def test_a_record_of_a_registry_says_that_none_is_given() -> None:
    """Story: somebody browses a topic of Avro and has not named the registry."""
    found = Formats().decode(b"\0\0\0\0\x07abc")
    assert (found.schema_id, found.known) == (7, False)
    assert "schema 7" in (found.reason or "") and "schema.registry.url" in (found.reason or "")


def test_avro_without_a_registry_needs_a_schema_file(tmp_path: Path) -> None:
    """Story: one topic holds Avro without ids. Its schema file decodes it, of other topics
    nothing; truncated and longer bytes are named."""
    path = tmp_path / "event.avsc"
    path.write_text(json.dumps(EVENT), encoding="utf-8")
    target = io.BytesIO()
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    value = {"id": 2**60, "at": moment, "total": Decimal("1.50"), "raw": b"\x00"}
    schemaless_writer(target, parse_schema(EVENT), value)
    formats = Formats(avro={"events": path})
    found = formats.decode(target.getvalue(), "events")
    assert found.format is Format.AVRO and found.value == {
        "id": 2**60,
        "at": "2026-01-02T00:00:00+00:00",
        "total": "1.50",
        "raw": "0x00",
    }
    assert formats.configured and not formats.decode(target.getvalue(), "others").known
    short = formats.decode(target.getvalue()[:-1], "events")
    assert not short.known and "end too early" in (short.reason or "")
    assert "1 bytes follow" in (formats.decode(target.getvalue() + b"x", "events").reason or "")
    assert formats.decode(b'{"a": 1}', "events").format is Format.JSON
    path.write_text("{", encoding="utf-8")
    with pytest.raises(UsageError, match=r"event\.avsc cannot be read"):
        Formats(avro={"events": path})


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_bytes_of_any_kind_are_decoded_or_not_and_never_raise(data: bytes) -> None:
    """Story: anybody may write anything into a topic."""
    found = Formats().decode(data)
    if found.known:
        assert json.loads(found.text or "") == found.value


def test_what_json_lacks_is_text() -> None:
    """Story: Avro knows more types than JSON. Nothing is rounded."""
    assert as_json((Decimal("1.10"), float("nan"), 2**70, b"\x01")) == [
        "1.10",
        "nan",
        2**70,
        "0x01",
    ]


def test_an_index_of_protobuf_is_bounded() -> None:
    """Story: broken bytes claim to have a million levels of nesting, or end early."""
    assert read_index(b"\x00abc") == ((0,), b"abc")
    assert read_index(b"\x04\x02\x00z") == ((1, 0), b"z")
    for broken in (b"", b"\x04\x02", b"\xff" * 11, b"\x80\x89\x7a", b"\x01"):
        with pytest.raises(ValueError, match="message index"):
            read_index(broken)
    with pytest.raises(ValueError, match="has no message 1"):
        ProtobufSchema('syntax = "proto3"; message One {}', {}).read(b"\x02\x02")
    with pytest.raises(ValueError, match="protoc does not compile"):
        ProtobufSchema('syntax = "proto3"; message One {', {})
    with pytest.raises(ValueError, match="not a relative path"):
        ProtobufSchema("", {"../../a.proto": "x"})
