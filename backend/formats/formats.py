"""From bytes to JSON: records of a schema registry, Avro with a given schema, JSON, MessagePack.

The registry's client and the readers of schemas are imported when they are first needed: they take
a second, and most dashboards have no registry.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgpack

from topicproof.backend.errors import UsageError
from topicproof.backend.formats.cache import Allowance, Cache
from topicproof.backend.formats.decoded import (
    TWICE,
    AwkwardPart,
    AwkwardPartError,
    DecodedValue,
    Format,
    as_json,
    to_json,
    unique,
)
from topicproof.backend.formats.frames import SCHEMA_HEADERS, Frame, frame_of
from topicproof.backend.formats.limits import (
    COMPILED_AT_ONCE,
    DICT_BYTES,
    ITEM_BYTES,
    READERS_BYTES_MAX,
    SCHEMAS_MAX,
    VALUE_BYTES_MAX,
    TooLargeError,
    quoted,
)
from topicproof.backend.formats.registered import (
    AVRO,
    JSON,
    PROTOBUF,
    RegisteredSchema,
    RegistryFailure,
    SchemaId,
)
from topicproof.backend.properties.registry_properties import RegistryFacts

if TYPE_CHECKING:
    from topicproof.backend.formats.avro import AvroSchema
    from topicproof.backend.formats.registry import Registry

PLACES_MAX = 10_000
_UTF8_MARK = b"\xef\xbb\xbf"
_BYTE_MAX = 4 * DICT_BYTES
"""Bytes of memory for one byte of JSON or MessagePack, at most."""

Part = Literal["key", "value"]
Read = Callable[[bytes, int], tuple[Any, str | None]]
"""Takes bytes, and how many bytes of memory the value may take. Returns the value and what it
leaves out. Raises ValueError (TooLargeError above the limit), RecursionError."""


class Schemas(Protocol):
    """Where schemas come from: a registry, or what one has said."""

    def schema(self, schema_id: SchemaId) -> RegisteredSchema:
        """Return the schema of an id or GUID. Raises RegistryFailure."""


@dataclass(frozen=True)
class Plain:
    """What becomes of a value that a reader of a format returns."""

    finish: Callable[[Any], Any] = to_json
    """Raises ValueError, RecursionError."""
    number: Callable[[str], Any] | None = None
    """Makes a number of its characters in JSON; None: Python's own numbers."""


AS_JSON = Plain()


class Decoder:
    """Decodes with given schemas. Safe for several threads."""

    def __init__(
        self,
        schemas: Schemas | None,
        avro: Mapping[str, AvroSchema],
        plain: Plain = AS_JSON,
        allowance: Allowance | None = None,
        texts_bytes_max: int = sys.maxsize,
    ) -> None:
        """`avro` has the schema of each topic whose values are Avro without a registry.
        `allowance`: how long schemas may be asked for and compiled. None: as long as it takes.
        `texts_bytes_max`: the bytes of the schemas whose readers are kept."""
        self._schemas = schemas
        self._avro = avro
        self._plain = plain
        self._allowance = allowance
        self._readers: Cache[tuple[Format, Read] | str] = Cache(
            SCHEMAS_MAX, texts_bytes_max, COMPILED_AT_ONCE
        )
        """The reader of each schema, or why there is none."""
        self._places: dict[tuple[SchemaId, str, Part], tuple[str | None, int | None]] = {}

    def decode(
        self,
        data: bytes,
        topic: str = "",
        part: Part = "value",
        limit: int = VALUE_BYTES_MAX,
        header: bytes | None = None,
    ) -> DecodedValue:
        """Decode a key or value; schema files are for values. Bytes, schemas and registries never
        raise: `reason` has what is wrong. The bytes of one schema always give the same value.
        `limit`: bytes of memory that the value may take. `header`: the record's `schema_header`."""
        schema_file = self._avro.get(topic) if part == "value" else None
        if schema_file is not None:
            try:
                value, left = schema_file.read(data, limit)
                return DecodedValue(self._plain.finish(value), Format.AVRO, reason=left)
            except AwkwardPartError as error:
                return DecodedValue(reason=f"{_capital(error)}.")
            except (ValueError, RecursionError) as error:
                missed = f"They do not fit the schema file of {topic}: {_said(error)}."
                other = self._decode(data, topic, part, limit, header)
                if other.known:
                    return other
                is_limited = other.is_limited or isinstance(error, TooLargeError)
                return replace(other, reason=other.reason or missed, is_limited=is_limited)
        return self._decode(data, topic, part, limit, header)

    def reader(self, schema: RegisteredSchema) -> tuple[Format, Read] | str:
        """Return the format and the reader of a schema, or why there is none."""
        return self._readers.get(schema.schema_id, lambda: (self._made(schema), schema.size))

    def _made(self, schema: RegisteredSchema) -> tuple[Format, Read] | str:
        try:
            return _reader_of(schema, self._plain)
        except (ValueError, RecursionError) as error:
            return f"Schema {schema.schema_id} cannot be used: {_said(error)}."

    def _place(
        self, schema: RegisteredSchema, topic: str, part: Part
    ) -> tuple[str | None, int | None]:
        """Return the schema's subject and version. Kept, because this is asked for each record."""
        where = schema.schema_id, topic, part
        if where not in self._places:
            if len(self._places) > PLACES_MAX:
                self._places.clear()
            subject, version = schema.place(topic, part)
            self._places[where] = None if subject is None else quoted(subject), version
        return self._places[where]

    def _decode(
        self, data: bytes, topic: str, part: Part, limit: int, header: bytes | None
    ) -> DecodedValue:
        try:
            frame = frame_of(data, header, part)
        except ValueError as error:
            return DecodedValue(reason=str(error))
        if frame is None:
            return _self_described(data, self._plain, limit)
        if self._schemas is None:
            return self._without_registry(frame, part, limit)
        return self._registered(frame, self._schemas, topic, part, limit)

    def _without_registry(self, frame: Frame, part: Part, limit: int) -> DecodedValue:
        """Decode what describes itself: behind a header, JSON is whole."""
        missing = "and no schema.registry.url is given."
        if frame.index is None:
            begin = f"Its bytes begin like a record with schema {frame.schema_id} of a registry"
            return DecodedValue(schema_id=frame.schema_id, reason=f"{begin}, {missing}")
        named = f"Its header {SCHEMA_HEADERS[part]} names schema {frame.schema_id} of a registry"
        value = _self_described(frame.payload, self._plain, limit)
        return replace(value, reason=value.reason or f"{named}, {missing}")

    def _registered(
        self, frame: Frame, schemas: Schemas, topic: str, part: Part, limit: int
    ) -> DecodedValue:
        schema_id = frame.schema_id
        began = None
        if self._allowance is not None and schema_id not in self._readers:
            if self._allowance.is_spent:
                why = (
                    f"Schema {schema_id} is not read now: other new schemas have taken"
                    f" {self._allowance.seconds:g} s of the last minute. Look again later."
                )
                return DecodedValue(schema_id=schema_id, reason=why)
            began = self._allowance.now()
        try:
            schema = schemas.schema(schema_id)
            reader = self.reader(schema)
        except RegistryFailure as failure:
            return DecodedValue(schema_id=schema_id, reason=str(failure))
        finally:
            if self._allowance is not None and began is not None:
                self._allowance.spend(began)
        subject, version = self._place(schema, topic, part)
        if isinstance(reader, str):
            return DecodedValue(None, None, schema_id, subject, version, reader)
        kind, read = reader
        try:
            value, left = read(_with_index(frame, kind), limit)
        except AwkwardPartError as error:
            return DecodedValue(None, None, schema_id, subject, version, f"{_capital(error)}.")
        except (ValueError, RecursionError) as error:
            why = f"The bytes are not as {kind} schema {schema_id} has them: {_said(error)}."
            is_limited = isinstance(error, TooLargeError)
            return DecodedValue(None, None, schema_id, subject, version, why, is_limited)
        return DecodedValue(value, kind, schema_id, subject, version, left)


def _with_index(frame: Frame, kind: Format) -> bytes:
    """Return the payload as readers take it: that of Protobuf begins with the message's index.
    Raises ValueError if the header has anything else behind the schema."""
    if frame.index is None:
        return frame.payload
    rest = frame.index
    if kind is Format.PROTOBUF:
        from topicproof.backend.formats.protobuf import read_index

        _, rest = read_index(frame.index)
    if rest:
        raise ValueError(f"{len(rest):,} bytes follow the schema in its header")
    return frame.index + frame.payload


class Formats(Decoder):
    """The decoders of one configuration."""

    def __init__(
        self,
        registry: RegistryFacts | None = None,
        avro: Mapping[str, Path] | None = None,
        allowance: Allowance | None = None,
    ) -> None:
        """`avro` has the schema file of each topic whose values are Avro without a registry.
        `allowance`: as a `Decoder` has it.

        Raises UsageError for a schema file that cannot be read.
        """
        self.registry: Registry | None = None
        if registry is not None:
            from topicproof.backend.formats.registry import Registry

            self.registry = Registry(registry)
        self.avro = {topic: _schema_file(path) for topic, path in (avro or {}).items()}
        """The schema of each topic whose values are Avro without a registry."""
        super().__init__(
            self.registry, self.avro, allowance=allowance, texts_bytes_max=READERS_BYTES_MAX
        )

    @property
    def configured(self) -> bool:
        """Whether more can be decoded than what bytes say of themselves."""
        return self.registry is not None or bool(self.avro)

    def close(self) -> None:
        if self.registry is not None:
            self.registry.close()


class SideFormats(NamedTuple):
    """The formats of both sides of a check."""

    sink: Formats
    source: Formats | None = None
    """None: those of the sink."""


WITHOUT_REGISTRY = SideFormats(Formats())


def _reader_of(schema: RegisteredSchema, plain: Plain) -> tuple[Format, Read]:
    if schema.kind == AVRO:
        from topicproof.backend.formats.avro import AvroSchema

        avro = AvroSchema(schema.text, schema.references.values())
        return Format.AVRO, _finished(avro.read, plain)
    if schema.kind == PROTOBUF:
        from topicproof.backend.formats.protobuf import ProtobufSchema

        protobuf = ProtobufSchema(schema.text, schema.references)
        return Format.PROTOBUF, _finished(protobuf.read, plain)
    if schema.kind == JSON:
        # Not validated: a schema may refer to any address, which would then be asked.
        return Format.JSON_SCHEMA, lambda data, limit: _loads(data, plain, limit)
    raise ValueError(f"{quoted(schema.kind)} is neither {AVRO}, {PROTOBUF} nor {JSON}")


def _finished(read: Read, plain: Plain) -> Read:
    finish = plain.finish

    def finished(data: bytes, limit: int) -> tuple[Any, str | None]:
        value, left = read(data, limit)
        return finish(value), left

    return finished


def _self_described(data: bytes, plain: Plain, limit: int) -> DecodedValue:
    """Decode JSON objects and arrays, and MessagePack's maps with names. Other values of both look
    like text or arbitrary bytes."""
    start = data.removeprefix(_UTF8_MARK).lstrip(b" \t\r\n")[:1]
    try:
        if start and start in b"{[":
            value, left = _loads(data, plain, limit)
            return DecodedValue(value, Format.JSON, reason=left)
        if data and (0x80 < data[0] <= 0x8F or data[0] in (0xDE, 0xDF)):
            value = _unpacked(data, limit)
            if value:
                return DecodedValue(plain.finish(to_json(value)), Format.MESSAGEPACK)
    except (AwkwardPartError, TooLargeError) as error:
        is_limited = isinstance(error, TooLargeError)
        return DecodedValue(reason=f"{_capital(error)}.", is_limited=is_limited)
    except (ValueError, RecursionError, msgpack.UnpackException):
        return DecodedValue()  # Text or bytes that only begin like it. They are shown as they are.
    return DecodedValue()


def _loads(data: bytes, plain: Plain, limit: int) -> tuple[Any, str | None]:
    """Return the value of JSON text, and what it leaves out. Raises ValueError, RecursionError."""
    text = data.removeprefix(_UTF8_MARK)
    if len(text) * _BYTE_MAX > limit:
        nodes = sum(map(text.count, (b",", b"[", b"{")))
        if len(text) + nodes * DICT_BYTES > limit:
            raise TooLargeError(limit)
    value = json.loads(
        text.decode(),
        parse_constant=_no_number,
        object_pairs_hook=unique,
        parse_int=plain.number,
        parse_float=plain.number,
    )
    return plain.finish(value), None if text is data or len(text) == len(data) else _MARKED


_MARKED = "A byte order mark is in front of it, which JSON does not have."


def _no_number(name: str) -> AwkwardPart:
    return AwkwardPart(f"is {name}, which is not a number of JSON")


def _unpacked(data: bytes, limit: int) -> Any:
    """Return a map of MessagePack whose names are texts. Raises ValueError, RecursionError,
    UnpackException."""
    left = limit - len(data)

    def charge(items: list[Any]) -> list[Any]:
        nonlocal left
        left -= DICT_BYTES + ITEM_BYTES * len(items)
        if left < 0:
            raise TooLargeError(limit)
        return items

    is_named = True

    def mapped(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
        # Only hashes of texts are random. Others can be chosen to be alike, such as those of times:
        # a dictionary of 50,000 then takes minutes. So no other name is ever hashed.
        nonlocal is_named
        is_named = True
        values: dict[str, Any] = {}
        for name, value in charge(pairs):
            if type(name) is not str:
                is_named, name = False, _map_name(name)
            values[name] = AwkwardPart(TWICE) if name in values else value
        return values

    hooks = {"list_hook": charge} if len(data) * _BYTE_MAX > limit else {}
    value = msgpack.unpackb(
        data, timestamp=0, strict_map_key=False, object_pairs_hook=mapped, **hooks
    )
    if not is_named:  # The outermost map is the last one.
        raise ValueError("a name is no text")
    return value


def _map_name(name: Any) -> str:
    """Return the name in a map of MessagePack as JSON has it. Raises ValueError."""
    if type(name) is str:
        return name
    if isinstance(name, dict | list):
        raise ValueError("the name in a map is a map or an array")
    return str(as_json(name))


def _schema_file(path: Path) -> AvroSchema:
    from topicproof.backend.formats.avro import AvroSchema

    try:
        return AvroSchema(path.expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"The Avro schema {path} cannot be read: {error}.") from error


def _said(error: Exception) -> str:
    return "they are nested too deeply" if isinstance(error, RecursionError) else str(error)


def _capital(error: Exception) -> str:
    return str(error)[:1].upper() + str(error)[1:]
