"""The texts of fields of decoded keys and values, as contracts compare them.

A text is the same whichever format a record has: a number in its own characters, `true`, a time in
ISO 8601, bytes as `0x...`, and an object or array as JSON without spaces, its names in order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from time import monotonic
from typing import Any

from pydantic import TypeAdapter

from topicproof.backend.formats.decoded import (
    DEPTH_MAX,
    AwkwardPart,
    AwkwardPartError,
    as_json,
    spell_path,
)
from topicproof.backend.formats.formats import Decoder, Part, Plain, Read
from topicproof.backend.formats.frames import GUID_HEAD_BYTES, HEAD_BYTES, frame_of
from topicproof.backend.formats.limits import (
    DESCRIPTORS_BYTES_MAX,
    SCHEMAS_MAX,
    VALUE_BYTES_MAX,
    quoted,
)
from topicproof.backend.formats.registered import RegisteredSchema, RegistryFailure, SchemaId

Path = tuple[str | int, ...]
"""Steps into a decoded value: names of objects and indices of arrays, from 0."""

UNREADABLE = (
    "They are neither a JSON object or array, a map of MessagePack, nor a record of a registry."
)
DECODERS_MAX = 16
COMPILE_SECONDS_MAX = 120
"""For all Protobuf schemas of a check. One takes 0.1 s."""

Shortcut = Callable[[bytes], tuple[str | None, ...]]
"""Takes bytes that name a known schema. Returns the text of each field. Raises ValueError,
RecursionError."""


class Number(str):
    """A JSON number as written."""

    __slots__ = ()


@dataclass(frozen=True)
class KnownSchemas:
    """What a registry has said of the schemas that records name. Holds no secret, so that Spark's
    workers and evidence may have it."""

    found: Mapping[SchemaId, RegisteredSchema] = field(default_factory=dict)
    failed: Mapping[SchemaId, str] = field(default_factory=dict)
    """Why a schema is not known, as a sentence."""
    avro: Mapping[str, str] = field(default_factory=dict)
    """The schema of each topic whose values are Avro without a registry."""
    source: KnownSchemas | None = None
    """Those of the source, if it has another registry than the sink. None: the same."""
    has_registry: bool = True
    """Whether there was a registry to ask."""
    has_headers: bool = False
    """Whether headers may name schemas. Earlier versions did not look at them, and their evidence
    is judged again as they did."""

    def schema(self, schema_id: SchemaId) -> RegisteredSchema:
        """Return the schema of an id or GUID. Raises RegistryFailure."""
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
        """Raises ValueError, also for more schemas than are ever asked for."""
        schemas = _SCHEMAS.validate_python(json.loads(text))
        for side in filter(None, (schemas, schemas.source)):
            if max(len(side.found), len(side.failed), len(side.avro)) > SCHEMAS_MAX:
                raise ValueError(f"more than {SCHEMAS_MAX:,} schemas are in it")
        if schemas.source is not None and schemas.source.source is not None:
            raise ValueError("the schemas of its source have a source themselves")
        return schemas

    def portable(self) -> KnownSchemas:
        """Return the schemas in the form that Spark's workers get: each Protobuf schema is compiled
        once, here. What does not compile is among the failures, and no longer a schema."""
        from topicproof.backend.formats.protobuf import portable

        schemas: dict[SchemaId, RegisteredSchema] = {}
        failures = dict(self.failed)
        end, left = monotonic() + COMPILE_SECONDS_MAX, DESCRIPTORS_BYTES_MAX
        for schema_id, schema in self.found.items():
            try:
                if monotonic() > end:
                    raise ValueError(
                        f"compiling the schemas takes longer than {COMPILE_SECONDS_MAX} s"
                    )
                compiled = portable(schema)
                left -= compiled.size
                if left < 0:
                    raise ValueError(f"all schemas take over {DESCRIPTORS_BYTES_MAX:,} bytes")
                schemas[schema_id] = compiled
            except ValueError as error:
                failures[schema_id] = f"Schema {schema_id} cannot be used: {error}."
        source = self.source and self.source.portable()
        return replace(self, found=schemas, failed=failures, source=source)


_SCHEMAS = TypeAdapter(KnownSchemas)


class FieldReader:
    """Reads the same fields of the keys or the values of any topic."""

    def __init__(self, schemas: KnownSchemas, part: Part, paths: Sequence[Path]) -> None:
        from topicproof.backend.formats.avro import AvroSchema

        self._part = part
        self._refused: dict[str, str] = {}
        """Why the local Avro schema of a topic cannot be used."""
        avro: dict[str, AvroSchema] = {}
        for topic, text in schemas.avro.items():
            try:
                avro[topic] = AvroSchema(text)
            except (ValueError, RecursionError) as error:
                why = str(error) or "it is nested too deeply"
                self._refused[topic] = f"The Avro schema of {quoted(topic)} cannot be used: {why}."

        def texts(value: Any) -> tuple[str | None, ...]:
            return tuple([text_at(value, path) for path in paths])

        self._nothing = texts(None)
        self._schemas = schemas
        self._by_prefix: dict[bytes, Shortcut] = {}
        """The reader of each schema that has decoded a record, by the bytes in front of it."""
        self._by_header: dict[bytes, Shortcut] = {}
        """The same, by the whole header."""
        self._decoder = Decoder(
            schemas if schemas.has_registry else None, avro, Plain(texts, Number)
        )

    def read(
        self, data: bytes | None, topic: str = "", header: bytes | None = None
    ) -> tuple[str | None, tuple[str | None, ...]]:
        """Return why the bytes cannot be decoded (None if they can), and the text of each field
        (None if there is none). No bytes hold no field. `header`: the record's `schema_header`."""
        if data is None:
            return None, self._nothing
        shortcuts, head = (
            (self._by_prefix, data[:HEAD_BYTES]) if header is None else (self._by_header, header)
        )
        short = shortcuts.get(head)
        if short is not None and topic not in self._schemas.avro:
            try:
                return None, short(data)
            except (ValueError, RecursionError):
                pass  # The long way says why.
        if self._refused and self._part == "value" and topic in self._refused:
            return self._refused[topic], self._nothing
        decoded = self._decoder.decode(data, topic, self._part, header=header)
        # A longer header names another message than the first, and may spell it in many ways.
        is_short = len(head) <= GUID_HEAD_BYTES + 1
        if decoded.known and decoded.schema_id is not None and is_short:
            reader = self._decoder.reader(self._schemas.schema(decoded.schema_id))
            assert not isinstance(reader, str), "it has just decoded a record"
            shortcuts[head] = _shortcut(reader[1], data, header, self._part)
        if decoded.known:
            return None, decoded.value
        return decoded.reason or UNREADABLE, self._nothing


def _shortcut(read: Read, data: bytes, header: bytes | None, part: Part) -> Shortcut:
    """Return a reader of all bytes with the same head as `data`."""
    frame = frame_of(data, header, part)
    assert frame is not None, "its schema has just decoded it"
    if (index := frame.index) is None:
        return lambda data: read(data[HEAD_BYTES:], VALUE_BYTES_MAX)[0]
    return lambda data: read(index + data, VALUE_BYTES_MAX)[0]


@lru_cache(DECODERS_MAX)
def field_reader(schemas: str, part: Part, paths: tuple[Path, ...]) -> FieldReader:
    """Return the reader for `KnownSchemas` in JSON. Kept, because compiling a schema is slow."""
    return FieldReader(KnownSchemas.from_json(schemas), part, paths)


def text_at(value: Any, path: Path) -> str | None:
    """Return the text of the element at `path`; None for null or nothing. Raises RecursionError if
    it is nested too deeply, AwkwardPartError if it is, or lies in, a part that is not decoded."""
    root = value
    for step in path:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        elif isinstance(value, AwkwardPart):
            raise _awkward(root, path)
        else:
            return None
    if value is None:
        return None
    if type(value) is int:
        return str(value)
    return value if isinstance(value, str) and value.isascii() else _text(value, root, path)


def _text(value: Any, root: Any, path: Path) -> str:
    if isinstance(value, AwkwardPart):
        raise _awkward(root, path)
    try:
        return _spelled(value)
    except UnicodeEncodeError as error:
        raise AwkwardPartError(f"{spell_path(path)} {_HALF}") from error
    except _InnerPartError as error:
        raise AwkwardPartError(f"in {spell_path(path)}, {error}") from error


def _awkward(root: Any, path: Path) -> AwkwardPartError:
    """Return why a part on the way along the path is not decoded."""
    at = 0
    while not isinstance(root, AwkwardPart):
        root = root[path[at]]
        at += 1
    return AwkwardPartError(f"{spell_path(path[:at])} {root.why}")


_HALF = "holds half of a surrogate pair, which UTF-8 cannot write"


class _InnerPartError(ValueError):
    """Something inside of a value cannot be decoded."""


def _spelled(value: Any, depth: int = 0) -> str:
    if depth > DEPTH_MAX:
        raise RecursionError
    if isinstance(value, Number):
        return value
    if isinstance(value, AwkwardPart):
        raise _InnerPartError(f"a part {value.why}")
    if isinstance(value, dict):
        named = {
            _whole(name) if isinstance(name, str) else str(as_json(name)): item
            for name, item in value.items()
        }
        inside = (f"{_dumped(name)}:{_spelled(named[name], depth + 1)}" for name in sorted(named))
        return "{" + ",".join(inside) + "}"
    if isinstance(value, list | tuple | set):
        return "[" + ",".join(_spelled(item, depth + 1) for item in value) + "]"
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
