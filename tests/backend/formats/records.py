"""Records as real producers write them: serialised by confluent-kafka with a real registry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx
import msgpack
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

Headers = list[tuple[str, Any]]
ADDRESS = {
    "type": "record",
    "name": "Address",
    "namespace": "shop",
    "fields": [{"name": "city", "type": "string"}],
}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "to", "type": "shop.Address"}],
}
NEWER = ORDER | {
    "fields": [
        *ORDER["fields"],
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9,
                                   "scale": 2}, "default": "\u0000"},
    ]
}  # fmt: skip
JSON_ORDER = {"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}}
PROTO = """syntax = "proto3"; package shop;
import "google/protobuf/timestamp.proto"; import "common/money.proto";
message Envelope { message Order { int32 id = 1; shop.Money total = 2;
  google.protobuf.Timestamp at = 3; } Order order = 1; }"""
MONEY = 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }'
PACKED = {"id": 5, "note": "packed"}
BROKEN = (
    b"",
    b"\0",
    b"\0\0\0\0",
    b"\0\0\0\xff\xffunknown id",
    b"\0" * 8,
    b"\xff\xfe\xfd",
    b'{"id": ',
    b"\x81\xa2id",
    b"[" * 50_000,
)
"""No record of a known schema, and no JSON or MessagePack."""


def avro(
    registry: str,
    topic: str,
    schema: Mapping[str, Any],
    value: Mapping[str, Any],
    part: MessageField = MessageField.VALUE,
    headers: Headers | None = None,
) -> bytes:
    """An order whose schema refers to that of an address. `headers`: where its GUID goes; None: its
    id goes in front."""
    with SchemaRegistryClient({"url": registry}) as client:
        client.register_schema("addresses", Schema(json.dumps(ADDRESS), "AVRO"))
        reference = SchemaReference("shop.Address", "addresses", 1)
        whole = Schema(json.dumps(schema), "AVRO", [reference])
        serialise = AvroSerializer(client, whole, conf=_to(headers))
        written = serialise(dict(value), SerializationContext(topic, part, headers))
    assert isinstance(written, bytes)
    return written


def json_schema(
    registry: str, topic: str, value: Mapping[str, Any], headers: Headers | None = None
) -> bytes:
    with SchemaRegistryClient({"url": registry}) as client:
        serialise = JSONSerializer(json.dumps(JSON_ORDER), client, conf=_to(headers))
        written = serialise(dict(value), _context(topic, headers))
    assert isinstance(written, bytes)
    return written


def protobuf(registry: str, topic: str, headers: Headers | None = None, **fields: Any) -> bytes:
    """A message whose schema confluent-kafka registers as a descriptor."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=3, label=1)
    message.field.add(name="note", number=2, type=9, label=1)
    pool = DescriptorPool()
    pool.Add(file)
    kind = GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    with SchemaRegistryClient({"url": registry}) as client:
        serialise = ProtobufSerializer(
            kind, client, {"use.deprecated.format": False, **_to(headers)}
        )
        written = serialise(kind(**fields), _context(topic, headers))
    assert isinstance(written, bytes)
    return written


def protobuf_text(registry: str, topic: str) -> bytes:
    """A nested message whose schema is text with an import, as Java's clients register it."""
    register(registry, "money", "PROTOBUF", MONEY)
    reference = {"name": "common/money.proto", "subject": "money", "version": 1}
    schema_id = register(registry, f"{topic}-value", "PROTOBUF", PROTO, [reference])
    order = b"\x08\x07" + b"\x12\x03\x08\xe8\x07" + b"\x1a\x02\x08\x3c"
    return b"\0" + schema_id.to_bytes(4, "big") + b"\x04\x00\x00" + order


def register(
    registry: str,
    subject: str,
    kind: str,
    text: str,
    references: list[dict[str, Any]] | None = None,
) -> int:
    """Registers a schema and returns its id."""
    body = {"schemaType": kind, "schema": text, "references": references or []}
    answer = httpx.post(f"{registry}/subjects/{subject}/versions", json=body)
    assert answer.is_success, answer.text
    schema_id: int = answer.json()["id"]
    return schema_id


def packed() -> bytes:
    written = msgpack.packb(PACKED)
    assert isinstance(written, bytes)
    return written


def _to(headers: Headers | None) -> dict[str, Any]:
    """What makes a serialiser write the schema's GUID into headers, if there are any."""
    return {} if headers is None else {"schema.id.serializer": header_schema_id_serializer}


def _context(topic: str, headers: Headers | None = None) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE, headers)
