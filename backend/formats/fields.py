"""The texts of fields of decoded keys and values, as contracts compare them.

A text is the same whichever format a record has: a number in its own characters, `true`, a time in
ISO 8601, bytes as `0x...`, and an object or array as JSON without spaces, its names in order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter

from topicproof.backend.formats.decoded import DEPTH_MAX, as_json
from topicproof.backend.formats.formats import HEAD_BYTES, Decoder, Part, Plain, Read
from topicproof.backend.formats.registered import Registered, RegistryFailure

Path = tuple[str | int, ...]
"""Steps into a decoded value: names of objects and indices of arrays, from 0."""

UNREADABLE = (
    "They are neither a JSON object or array, a map of MessagePack, nor a record of a registry."
)
DECODERS_MAX = 16
SCHEMAS_MAX = 1_000
"""Broken bytes may look like any schema id. Of more ids, the most frequent are asked for."""


class Number(str):
    """A JSON number as written."""

    __slots__ = ()


@dataclass(frozen=True)
class KnownSchemas:
    """What a registry has said of the schemas that records name. Holds no secret, so that Spark's
    workers and evidence may have it."""

    found: Mapping[int, Registered] = field(default_factory=dict)
    failed: Mapping[int, str] = field(default_factory=dict)
    """Why a schema is not known, as a sentence."""
    avro: Mapping[str, str] = field(default_factory=dict)
    """The schema of each topic whose values are Avro without a registry."""
    source: KnownSchemas | None = None
    """Those of the source, if it has another registry than the sink. None: the same."""

    def schema(self, schema_id: int) -> Registered:
        """Return the schema of an id. Raises RegistryFailure."""
        if schema_id not in self.found:
            raise RegistryFailure(
                self.failed.get(
                    schema_id,
                    f"Schema {schema_id} was not asked for: the records name more than"
                    f" {SCHEMAS_MAX:,} schemas.",
                )
            )
        return self.found[schema_id]

    def to_json(self) -> str:
        return json.dumps(_SCHEMAS.dump_python(self, mode="json"), ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> KnownSchemas:
        """Raises ValueError."""
        return _SCHEMAS.validate_python(json.loads(text))


_SCHEMAS = TypeAdapter(KnownSchemas)


class FieldReader:
    """Reads the same fields of the keys or the values of any topic."""

    def __init__(self, schemas: KnownSchemas, part: Part, paths: Sequence[Path]) -> None:
        """Raises ValueError for a local Avro schema that cannot be used."""
        from topicproof.backend.formats.avro import AvroSchema

        self._part = part
        avro = {topic: AvroSchema(text) for topic, text in schemas.avro.items()}

        def texts(value: Any) -> tuple[str | None, ...]:
            return tuple([text_at(value, path) for path in paths])

        self._nothing = texts(None)
        self._schemas = schemas
        self._short: dict[bytes, Read] = {}
        """The reader of each schema that has decoded a record, by the bytes of its id."""
        self._decoder = Decoder(schemas, avro, Plain(texts, Number))

    def read(
        self, data: bytes | None, topic: str = ""
    ) -> tuple[str | None, tuple[str | None, ...]]:
        """Return why the bytes cannot be decoded (None if they can), and the text of each field
        (None if there is none). No bytes hold no field."""
        if data is None:
            return None, self._nothing
        short = self._short.get(data[1:HEAD_BYTES]) if data[:1] == b"\0" else None
        if short is not None and topic not in self._schemas.avro:
            try:
                return None, short(data[HEAD_BYTES:])[0]
            except (ValueError, RecursionError):
                pass  # The long way says why.
        found = self._decoder.decode(data, topic, self._part)
        if found.known and found.schema_id is not None:
            reader = self._decoder.reader(self._schemas.schema(found.schema_id))
            assert not isinstance(reader, str), "it has just decoded a record"
            self._short[data[1:HEAD_BYTES]] = reader[1]
        if found.known:
            return None, found.value
        return found.reason or UNREADABLE, self._nothing


@lru_cache(DECODERS_MAX)
def field_reader(schemas: str, part: Part, paths: tuple[Path, ...]) -> FieldReader:
    """Return the reader for `KnownSchemas` in JSON. Kept, because compiling a schema is slow."""
    return FieldReader(KnownSchemas.from_json(schemas), part, paths)


def text_at(value: Any, path: Path) -> str | None:
    """Return the text of the element at `path`; None for null or nothing. Raises RecursionError if
    it is nested too deeply, ValueError for half a surrogate pair."""
    for step in path:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    if value is None:
        return None
    if isinstance(value, str):
        return _whole(value)
    return str(value) if type(value) is int else _spelled(value)


def _spelled(value: Any, depth: int = 0) -> str:
    if depth > DEPTH_MAX:
        raise RecursionError
    if isinstance(value, Number):
        return value
    if isinstance(value, dict):
        named = {
            _whole(name) if isinstance(name, str) else str(as_json(name)): one
            for name, one in value.items()
        }
        inside = (f"{_dumped(name)}:{_spelled(named[name], depth + 1)}" for name in sorted(named))
        return "{" + ",".join(inside) + "}"
    if isinstance(value, list | tuple | set):
        return "[" + ",".join(_spelled(one, depth + 1) for one in value) + "]"
    plain = _whole(value) if isinstance(value, str) else as_json(value)
    return plain if isinstance(plain, str) and not depth else _dumped(plain)


def _whole(text: str) -> str:
    """Return a text that UTF-8 can write. Half a surrogate pair raises ValueError: with a
    replacement, different texts would be the same."""
    if not text.isascii():
        text.encode()
    return text


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
