"""Schemas and values of somebody who may write to a topic, a registry or a folder of evidence."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any
from uuid import UUID

from google.protobuf import descriptor_pb2

from topicproof.backend.formats.decoded import DecodedValue
from topicproof.backend.formats.fields import FieldReader, KnownSchemas
from topicproof.backend.formats.formats import Decoder, Formats
from topicproof.backend.formats.registered import AVRO, JSON, PROTOBUF, RegisteredSchema

PROTO = 'syntax = "proto3"; message M { string a = 1; }'
NAMES = (
    *("--plugin=protoc-gen-x=/bin/sh", "--x_out=.", "-I/", "@/etc/passwd", "@f1.proto"),
    *("/etc/passwd", "../../a.proto", "a/../../b.proto", "..", ".", "", "a\0b", "a\nb", "\x1b[2J"),
    *("x" * 300, "a b", "a=b", "~/a", "$HOME", "a;id", "a\\b", "\u202ea", "é.proto", "\ud800"),
)
"""None is the path of an import."""
ARRAY_OF_NULL = {"type": "array", "items": "null"}
COUNT = 30_000_000


def decode(kind: str, text: str, value: bytes, **references: str) -> DecodedValue:
    return decode_with(RegisteredSchema(1, kind, text, references, {}), value)


def decode_with(schema: RegisteredSchema, value: bytes) -> DecodedValue:
    """Decode one record of a registry that has this schema."""
    decoded = Decoder(KnownSchemas({1: schema}), {}).decode(b"\0\0\0\0\1" + value, "topic")
    assert (decoded.text or "").encode() is not None
    assert all(letter.isprintable() for letter in decoded.reason or "")
    assert len(decoded.reason or "") < 2_000
    return decoded


def record(name: str, *types: Any) -> dict[str, Any]:
    """A record of Avro whose fields are called f0, f1, ..."""
    fields = [{"name": f"f{at}", "type": kind} for at, kind in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def zigzag(number: int) -> bytes:
    """A number as Avro writes it."""
    return varint((number << 1) ^ (number >> 63))


def varint(number: int) -> bytes:
    parts = b""
    while number > 127:
        parts += bytes([number & 127 | 128])
        number >>= 7
    return parts + bytes([number])


def field(number: int, content: bytes) -> bytes:
    """A field of Protobuf with a length: a text, bytes or a message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def _doubled(levels: int) -> dict[str, Any]:
    """Two fields of a type with two fields of a type ...: 2 ** levels nulls in no bytes."""
    inner = record("L0", "null", "null")
    for level in range(1, levels):
        inner = record(f"L{level}", inner, f"L{level - 1}")
    return inner


def _chain(levels: int) -> Any:
    kind: Any = "null"
    for _ in range(levels):
        kind = array(kind)
    return kind


MANY = zigzag(COUNT)
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 10_000, "scale": 9_990}
BOMBS = {
    "array of null": (ARRAY_OF_NULL, MANY + b"\0"),
    "array of null, 2 ** 62": (ARRAY_OF_NULL, zigzag(2**62) + b"\0"),
    "a negative count": (ARRAY_OF_NULL, zigzag(-COUNT) + b"\0\0"),
    "many blocks": (ARRAY_OF_NULL, zigzag(10**6) * 100 + b"\0"),
    "array of empty records": (array(record("E")), MANY + b"\0"),
    "array of fixed without bytes": (
        array({"type": "fixed", "name": "Z", "size": 0}),
        MANY + b"\0",
    ),
    "array in an array": (array(ARRAY_OF_NULL), zigzag(1) + MANY + b"\0\0"),
    "array in a map": (
        {"type": "map", "values": ARRAY_OF_NULL},
        zigzag(1) + zigzag(1) + b"k" + MANY + b"\0\0",
    ),
    "array in a union": (["null", ARRAY_OF_NULL], b"\2" + MANY + b"\0"),
    "decimals of ten thousand digits": (
        array(DECIMAL),
        zigzag(60_000) + b"\2\1" * 60_000 + b"\0",
    ),
    "a name of 100 kB in each record": (
        array({"type": "record", "name": "N", "fields": [{"name": "n" * 100_000, "type": "null"}]}),
        zigzag(1_000) + b"\0",
    ),
    "wide records": (
        array(record("W", "int", *["null"] * 5_000)),
        zigzag(1_000) + b"\2" * 1_000 + b"\0",
    ),
    "doubled records": (_doubled(30), b""),
    "long symbols": (
        array({"type": "enum", "name": "S", "symbols": ["x" * 100_000]}),
        zigzag(100_000) + b"\0" * 100_001,
    ),
    "deep arrays": (_chain(99), zigzag(1) * 98 + MANY),
}
"""Schemas of Avro, and values of few bytes that would take gigabytes."""
ENDLESS = {
    "a list": (record("R", ["null", "R"]), b"\2" * 100_000 + b"\0"),
    "without bytes": (record("R", "R"), b""),
    "through another type": (record("R", record("S", ["null", "R"])), b"\2" * 100_000),
    "by arrays": (record("R", array("R")), b"\2" * 100_000),
    "by maps": (record("R", {"type": "map", "values": "R"}), b"\2\0" * 100_000),
    "deep types": (_chain(500), b"\2" * 500),
}
"""Schemas of Avro with values of endless levels. fastavro ends the process at 5,000."""

OWN_NULL = record("R", {"type": "fixed", "name": "null", "size": 1}, ARRAY_OF_NULL)
"""A type of Avro that is called like one of its own. The array would have items of one byte."""
PARSED = {
    **record("R", {"type": "fixed", "name": "X", "size": 1}, record("X", ARRAY_OF_NULL)),
    "__fastavro_parsed": True,
    "__named_schemas": {"X": {"type": "fixed", "name": "X", "size": 1}},
}
"""A schema that calls itself parsed, so that nothing checks it: X has two meanings."""


def decimal(precision: int, scale: int = 2, base: Any = "bytes") -> dict[str, Any]:
    inner = base if isinstance(base, dict) else {"type": base}
    return {**inner, "logicalType": "decimal", "precision": precision, "scale": scale}


LONG_DECIMAL = zigzag(2_000_000) + b"\x7f" * 2_000_000


def times(count: int) -> bytes:
    """A map of MessagePack in a map, whose names are times with the same hash in Python."""
    first, second, added = 11400714785074694791, 14029467366897019727, 2870177450012600261
    whole = 1 << 64
    undo_first, undo_second = pow(first, -1, whole), pow(second, -1, whole)
    names: list[bytes] = []
    nanoseconds = 0
    while len(names) < count:
        mixed = (0x1234567890ABCDEF - nanoseconds * second) * undo_first % whole
        turned = (mixed << 33 | mixed >> 31) % whole
        seconds = (turned - added) * undo_second % whole
        seconds -= whole if seconds >= whole // 2 else 0
        if abs(seconds) < (1 << 61) - 2:
            names.append(b"\xc7\x0c\xff" + struct.pack(">Iq", nanoseconds, seconds))
        nanoseconds += 1
    return b"\x81\xa1a\xdf" + count.to_bytes(4, "big") + b"".join(name + b"\xc0" for name in names)


UNKNOWN_ANY = field(1, b"type.googleapis.com/demo.Unknown") + field(2, b"\x08\x07")
NOT_A_NUMBER = b"\x11" + struct.pack("<d", float("nan"))


def own_google(name: str, *, is_nested: bool = False, is_enum: bool = False) -> str:
    """A schema that defines a type of Google's, in Base64: protoc reads texts alone."""
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", syntax="proto3")
    file.package = "google" if is_nested else "google.protobuf"
    scope: Any = file.message_type.add(name="protobuf") if is_nested else file
    if is_enum:
        scope.enum_type.add(name=name).value.add(name="A", number=0)
    else:
        kind = (scope.nested_type if is_nested else scope.message_type).add(name=name)
        for number, text in enumerate(("seconds", "paths", "fields", "values", "type_url"), 1):
            kind.field.add(name=text, number=number, type=5, label=1)
    return base64.b64encode(file.SerializeToString()).decode()


def numbers_alike(count: int) -> bytes:
    """Entries of a map of Protobuf, in field 1, whose 64-bit names have one hash in its parser."""
    names = (each << 32 | each ^ 0x1234567 for each in range(count))
    return b"".join(field(1, b"\x08" + varint(name) + b"\x10\1") for name in names)


MAP = 'syntax = "proto3"; message M { map<int64, bool> a = 1; }'


def seeds() -> dict[str, tuple[str, tuple[bytes, ...]]]:
    """For fuzzing, by format: its name in a registry, and inputs of `parts_of`."""
    avro = [joined(json.dumps(s).encode(), v) for s, v in (*BOMBS.values(), *ENDLESS.values())]
    hostile = [
        joined(PROTO.encode(), b"\0\n\1x", name.encode("utf-8", "replace"), PROTO.encode())
        for name in NAMES
    ]
    imports = 'syntax = "proto3"; import "a.proto"; message N { M m = 1; }'
    whole = joined(imports.encode(), b"\0\n\3\n\1x", b"a.proto", PROTO.encode())
    avro += [
        joined(json.dumps(OWN_NULL).encode(), b"\0" + MANY + b"\0"),
        joined(json.dumps(PARSED).encode(), b"\0" + MANY + b"\0"),
        joined(json.dumps(decimal(4)).encode(), zigzag(2) + b"\x7f\xff"),
    ]
    googles = [joined(own_google(name).encode(), b"\0\x08\5") for name in ("Any", "Struct")]
    maps = joined(MAP.encode(), b"\0" + numbers_alike(3))
    return {
        "avro": (AVRO, tuple(one for one in avro if len(one) < 4_000)),
        "protobuf": (PROTOBUF, (*hostile, whole, *googles, maps)),
        "json": (JSON, (joined(b"{}", b'{"a": [NaN, 1e999], "a": {"b": "\\ud800"}}'),)),
    }


GUID = UUID("12345678-9abc-8def-8012-3456789abcde")
SCHEMAS = KnownSchemas(
    {
        1: RegisteredSchema(1, PROTOBUF, PROTO, {NAMES[0]: PROTO}, {}),
        2: RegisteredSchema(2, AVRO, json.dumps(ARRAY_OF_NULL), {}, {}),
        GUID: RegisteredSchema(GUID, PROTOBUF, PROTO, {NAMES[0]: PROTO}, {}),
    },
    {3: "There is none."},
    {"t": json.dumps(ARRAY_OF_NULL)},
)
"""As in a folder of evidence."""


def read_schemas(text: str) -> None:
    """Read `schemas.json`, and records by it. Raises ValueError."""
    schemas = KnownSchemas.from_json(text).portable()
    reader = FieldReader(schemas, "value", (("a",),))
    for schema_id in (*list(schemas.found)[:3], 9):
        if isinstance(schema_id, UUID):
            reader.read(b"\0\n\1x", "t", b"\1" + schema_id.bytes + b"\0")
        elif 0 <= schema_id < 1 << 32:
            reader.read(b"\0" + schema_id.to_bytes(4, "big") + b"\0\n\1x", "t")


VALUES = (
    *(b'{"a": [NaN, 1e999], "a": 1}', b"\x81\xa1a\xdd\xff\xff\xff\xff", b"\xef\xbb\xbf[{}]"),
    *(times(3), b"\x81\xa1a\x82\x01\xc0\xa11\xc0", b'{"a": ' + b"9" * 5_000 + b"}"),
)
"""Records without a schema."""


def decode_plain(data: bytes) -> None:
    """Decode a value without a registry, for a page and for a contract."""
    decoded = Formats().decode(data, "t")
    assert (decoded.text or "").encode() is not None
    FieldReader(KnownSchemas(), "value", (("a",), ("a", 0, "b"))).read(data, "t")


SEPARATOR = b"\x1e"


def joined(*parts: bytes) -> bytes:
    """A schema, a value, and names and texts of references as one input."""
    return SEPARATOR.join(parts)


def decode_joined(kind: str, data: bytes) -> None:
    text, value, *rest = [*data.split(SEPARATOR), b"", b""][: max(2, data.count(SEPARATOR) + 1)]
    names = [name.decode(errors="replace") for name in rest[::2]]
    texts = [reference.decode(errors="replace") for reference in rest[1::2]]
    references = dict(zip(names, texts, strict=False))
    decode_with(RegisteredSchema(1, kind, text.decode(errors="replace"), references, {}), value)
