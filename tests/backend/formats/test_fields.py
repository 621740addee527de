"""Texts of fields: the same in every format, and a reason where bytes cannot be decoded."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgpack
import pytest
from fastavro import parse_schema, schemaless_writer

from topicproof.backend.formats.fields import UNREADABLE, FieldReader, KnownSchemas, text_at
from topicproof.backend.formats.registered import AVRO, RegisteredSchema
from topicproof.validators.decoded import parse_field

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
EVENT = {"id": 7, "tags": ["a", "é"]}
PATHS = tuple(map(parse_field, ("id", "tags[1]", "tags", "gone", "id.x")))
TEXTS = ("7", "é", '["a","é"]', None, None)
KNOWN = KnownSchemas(
    {3: RegisteredSchema(3, AVRO, json.dumps(SCHEMA), {}, {"t-value": 1})},
    {9: "The registry has no schema 9."},
    {"local": json.dumps(SCHEMA)},
)


def written() -> bytes:
    target = io.BytesIO()
    schemaless_writer(target, parse_schema(SCHEMA), EVENT)
    return target.getvalue()


def framed(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + written()


def test_a_field_has_the_same_text_in_every_format() -> None:
    """Story: one event as Avro of a registry and of a file, JSON and MessagePack."""
    reader = FieldReader(KnownSchemas.from_json(KNOWN.to_json()), "value", PATHS)
    for data, topic in (
        (framed(3), "t"),
        (written(), "local"),
        (json.dumps(EVENT).encode(), "t"),
        (msgpack.packb(EVENT), "t"),
    ):
        assert reader.read(data, topic) == (None, TEXTS), data
    assert reader.read(None) == (None, (None,) * len(PATHS))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (framed(9), "The registry has no schema 9."),
        (framed(8), "Schema 8 was not asked for: the records name more than 1,000 schemas."),
        (framed(3)[:-1], "The bytes are not as Avro schema 3 has them"),
        (b"\xff\xfe", UNREADABLE),
        (b"", UNREADABLE),
        (b'{"id": 1, "id": 2}', "The field id occurs twice in one object."),
    ],
)
def test_broken_bytes_give_a_reason_and_no_field(data: bytes, reason: str) -> None:
    why, texts = FieldReader(KNOWN, "value", PATHS).read(data, "t")
    assert why is not None and why.startswith(reason)
    assert set(texts) == {None}


def test_schemas_of_earlier_versions_are_read_as_they_were() -> None:
    """Story: evidence of a version that looked at no headers is verified again."""
    earlier = {"found": {}, "failed": {"9": "It is not there."}, "avro": {}, "source": None}
    schemas = KnownSchemas.from_json(json.dumps(earlier))
    assert (schemas.failed, schemas.has_headers) == ({9: "It is not there."}, False)
    why, _ = FieldReader(schemas, "value", PATHS).read(framed(9), "t")
    assert why == "It is not there."


def test_numbers_of_json_keep_their_digits() -> None:
    """Story: ids and prices that a floating point number cannot hold."""
    reader = FieldReader(KNOWN, "value", tuple(map(parse_field, ("n", "o"))))
    data = b'{"n": 1.10, "o": {"b": 12345678901234567890123, "a": [1e5, true, null]}}'
    wanted = ("1.10", '{"a":[1e5,true,null],"b":12345678901234567890123}')
    assert reader.read(data) == (None, wanted)


def test_different_ids_have_different_texts() -> None:
    """Story: ids that a page would show alike: half a surrogate pair and a question mark, and times
    that differ by a nanosecond, or lie beyond the year 9999."""
    reader = FieldReader(KNOWN, "value", (("id",),))
    half = [b'{"id": "a\\ud83d"}', b'{"id": {"a\\ud83d": 1}}', b'{"id": ["a\\ud83d"]}']
    why = "The field id holds half of a surrogate pair, which UTF-8 cannot write."
    assert [reader.read(one) for one in half] == [(why, (None,))] * 3
    assert reader.read(b'{"id": "a?", "x": "\\ud83d"}') == (None, ("a?",))
    times = [(1_700_000_000, 1), (1_700_000_000, 2), (1_700_000_000, 2_000), (2**62, 1), (-1, 1)]
    packed = [msgpack.packb({"id": msgpack.Timestamp(*one)}) for one in times]
    assert [reader.read(one)[1][0] for one in packed] == [
        "2023-11-14T22:13:20.000000001+00:00",
        "2023-11-14T22:13:20.000000002+00:00",
        "2023-11-14T22:13:20.000002+00:00",
        f"{2**62}.000000001 s after 1970",
        "1969-12-31T23:59:59.000000001+00:00",
    ]


def test_types_beyond_json() -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    value = {
        "at": at,
        "sum": Decimal("1.50"),
        "small": Decimal("0E-8"),
        "raw": b"\x01",
        "yes": True,
        "half": 0.5,
    }
    said = {name: text_at(value, (name,)) for name in value}
    assert said == {
        "at": "2026-01-02T00:00:00+00:00",
        "sum": "1.50",
        "small": "0.00000000",
        "raw": "0x01",
        "yes": "true",
        "half": "0.5",
    }
    assert text_at(value, ("sum", 0)) is None and text_at([1], (1,)) is None
