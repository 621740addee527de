"""Where a record names its schema: in a header, or in front of its payload.

Confluent's serialisers write an id in front: a magic byte of 0, then 4 bytes in network order. On
request they write a GUID into a header, a magic byte of 1 and 16 bytes, and leave the payload
alone. Its deserialisers look for the header first, and so does `frame_of`. If the header occurs
twice, the last counts, as in Confluent's Java client: a program that hands on the headers of its
input adds its own behind them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from topicproof.backend.formats.registered import SchemaId

SCHEMA_HEADERS: Mapping[str, str] = {"key": "__key_schema_id", "value": "__value_schema_id"}
"""The header that names the schema of each part of a record."""
SCHEMA_HEADER_BYTES_MAX = 100
"""The magic byte and a GUID are 17. For Protobuf, the index of the message follows."""
MAGIC, GUID_MAGIC = b"\0", b"\1"
HEAD_BYTES, GUID_HEAD_BYTES = 5, 17
"""The magic byte with an id, and with a GUID."""


@dataclass(frozen=True)
class Frame:
    """A payload and the schema that its record names."""

    schema_id: SchemaId
    payload: bytes
    index: bytes | None = None
    """What follows the schema in the header: for Protobuf the index of the message, else nothing.
    None: the schema stands in front of the payload, which begins with such an index."""


def schema_header(headers: Iterable[tuple[str, bytes | None]], part: str) -> bytes | None:
    """Return the header that names the schema of a record's key or value, if there is one."""
    value = None
    for name, content in headers:
        if name == SCHEMA_HEADERS[part]:
            value = content
    return value


def frame_of(data: bytes, header: bytes | None, part: str) -> Frame | None:
    """Return the frame of a key or value; None if its record names no schema. `header`: the
    `schema_header` of the record. Raises ValueError if it names none."""
    if header is not None:
        is_long = len(header) > SCHEMA_HEADER_BYTES_MAX
        schema_id = None if is_long else schema_id_of(header)
        if schema_id is None:
            size = f"over {SCHEMA_HEADER_BYTES_MAX}" if is_long else len(header)
            raise ValueError(
                f"Its header {SCHEMA_HEADERS[part]} names no schema: of {size} bytes, it is not a"
                f" byte 1 with the {GUID_HEAD_BYTES - 1} bytes of a GUID."
            )
        end = HEAD_BYTES if isinstance(schema_id, int) else GUID_HEAD_BYTES
        return Frame(schema_id, data, header[end:])
    schema_id = schema_id_of(data) if data[:1] == MAGIC else None
    return None if schema_id is None else Frame(schema_id, data[HEAD_BYTES:])


def schema_id_of(head: bytes) -> SchemaId | None:
    """Return the id or GUID at the beginning of bytes. None without any, and for the id 0, which no
    registry gives: in front of a payload it is rather a number with leading zeros."""
    if head[:1] == GUID_MAGIC and len(head) >= GUID_HEAD_BYTES:
        return UUID(bytes=head[1:GUID_HEAD_BYTES])
    if head[:1] == MAGIC and len(head) >= HEAD_BYTES:
        return int.from_bytes(head[1:HEAD_BYTES], "big") or None
    return None
