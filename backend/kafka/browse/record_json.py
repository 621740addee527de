"""A record as JSON for people and programs: key and value decoded where that is known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from topicproof.backend.formats.decoded import DecodedValue
from topicproof.backend.formats.formats import Decoder
from topicproof.backend.formats.frames import schema_header
from topicproof.backend.kafka.browse.field_conditions import DECODED_BYTES_MAX, Decode, Part
from topicproof.backend.kafka.browse.records import Headers, as_text
from topicproof.backend.kafka.browse.search import Row

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def decode_of(formats: Decoder, topic: str) -> Decode:
    """Return what decodes keys, values and headers of a topic, within `DECODED_BYTES_MAX` each."""

    def decode(part: Part, data: bytes, headers: Headers) -> DecodedValue:
        if part == "headers":
            return formats.decode(data, limit=DECODED_BYTES_MAX)
        header = schema_header(headers, part)
        return formats.decode(data, topic, part, DECODED_BYTES_MAX, header)

    return decode


def record_json(topic: str, row: Row, decode: Decode, characters: int) -> dict[str, Any]:
    """Return a record for `json.dumps`. A key or value is its decoded JSON, else its text, else
    hexadecimal after `0x`; of a text at most so many characters. `timestamp` is ISO 8601 in UTC;
    null if it is no date."""

    def content(part: Part, data: bytes | None) -> Any:
        if data is None:
            return None
        whole = part not in row.cut and len(data) <= characters
        decoded = decode(part, data, row.headers) if whole else None
        if decoded is not None and decoded.known:
            return decoded.value
        return as_text(data, characters)

    return {
        "topic": topic,
        "partition": row.partition,
        "offset": row.offset,
        "fate": row.fate.value.lower(),
        "timestamp": _moment(row.timestamp_ms),
        "key": content("key", row.key),
        "value": content("value", row.value),
        "headers": [
            {"name": name, "value": None if value is None else as_text(value, characters)}
            for name, value in row.headers
        ],
        "producer_id": row.producer_id,
        "bytes": row.size,
    }


def _moment(timestamp_ms: int) -> str | None:
    """Producers may give a record any timestamp."""
    try:
        return (EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec="milliseconds")
    except OverflowError:
        return None
