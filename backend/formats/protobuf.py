"""Protobuf messages in the wire format of Confluent's registry.

A registry holds a schema as the text of a `.proto` file, or as a FileDescriptorProto in Base64, as
confluent-kafka registers it. `protoc.py` compiles them.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import replace
from typing import Any

from google.protobuf import descriptor_pb2, json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, EncodeError, Message
from google.protobuf.message_factory import GetMessageClass

from topicproof.backend.formats.decoded import DEPTH_MAX, AwkwardPart, name_parts
from topicproof.backend.formats.limits import (
    DICT_BYTES,
    FIELD_BYTES,
    ITEM_BYTES,
    VALUE_BYTES_MAX,
    TooLargeError,
    quoted,
)
from topicproof.backend.formats.protoc import GOOGLES_TYPES, MAIN, Files, compile_schema
from topicproof.backend.formats.registered import PROTOBUF, RegisteredSchema

_MESSAGES_MAX = 100
_VARINT_BYTES_MAX = 10
_ANY_LEVELS_MAX = 300
"""More levels of Any within Any end in a RecursionError. Each holds a copy of what is inside."""
_ANY = "google.protobuf.Any"
_VARINT, _LENGTH, _GROUP_BEGIN, _GROUP_END = 0, 2, 3, 4
_FIXED = {1: 8, 5: 4}
"""Bytes of the wire types with a fixed length."""
_ENUM = FieldDescriptor.TYPE_ENUM
_LONG = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
_STEPS_MAX = 100_000_000
"""Steps that a parser may take to find entries of maps: about a second."""
_ENTRY_BYTES = 4
"""A map's entry has more, if its number is not that of another entry."""
_BROKEN = (
    *(DecodeError, EncodeError, json_format.Error, AttributeError, LookupError),
    *(OverflowError, TypeError, ValueError),
)


class ProtobufSchema:
    """A compiled `.proto` file. Raises ValueError if it does not compile."""

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        """`references` are the files that it imports, by the name of the import."""
        self._pool = DescriptorPool()
        self._classes: dict[tuple[int, ...], type[Message]] = {}
        files = compile_schema(text, references)
        self._main = next(file for file in files if file.name == MAIN)
        for file in files:
            _require_own_names(file)
        self._sizes = _Sizes(files, self._pool)
        try:
            for file in files:
                self._pool.Add(file)
            self._pool.FindFileByName(MAIN)
            for file in files:
                _require_maps(self._pool.FindFileByName(file.name).message_types_by_name.values())
        except (TypeError, KeyError, DecodeError) as error:
            raise ValueError(f"the schema's files do not fit together ({quoted(error)})") from error

    def read(self, data: bytes, limit: int = VALUE_BYTES_MAX) -> tuple[Any, str | None]:
        """Return the message in Protobuf's own JSON mapping (64-bit numbers are strings), and what
        that leaves out. `data` begins with the message's index. A part that has no JSON, such as an
        Any of an unknown type, is an `AwkwardPart` in the value.

        Raises TooLargeError for values that take more than `limit` bytes of memory, ValueError for
        truncated or broken bytes, RecursionError if it is nested too deeply.
        """
        index, payload = read_index(data)
        message = self._class(index)()
        self._sizes.require(payload, message.DESCRIPTOR, limit)
        try:
            message.ParseFromString(payload)
            size = message.ByteSize()  # It looks for required fields, which the parser does not.
        except (DecodeError, EncodeError, ValueError) as error:
            raise self._unfit(message, error) from error
        try:
            value, awkward = self._json(message), None
        except _BROKEN as error:
            value, awkward = self._in_parts(message, error)
        message.DiscardUnknownFields()
        unknown = size - message.ByteSize()
        left = (
            f"{unknown:,} bytes are in fields that the schema does not have." if unknown else None
        )
        if awkward is not None:
            left = f"{awkward} {left}" if left else awkward
        return value, left

    def _json(self, message: Message) -> Any:
        return json_format.MessageToDict(
            message,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
            descriptor_pool=self._pool,
        )

    def _in_parts(self, message: Message, error: Exception) -> tuple[Any, str]:
        """Return the message with what cannot be written as JSON set apart, and a sentence that
        names these parts. Raises ValueError if it is the message itself."""
        value = self._part(message)
        named = name_parts(value)
        if isinstance(value, AwkwardPart) or not named:
            raise self._unfit(message, error) from error
        return value, f"{named[:1].upper()}{named[1:]}."

    def _part(self, message: Message) -> Any:
        """Return a message as JSON, field by field, or set apart if it cannot be written."""
        if message.DESCRIPTOR.full_name.startswith("google.protobuf."):
            try:
                return self._json(message)
            except _BROKEN as error:
                return _set_apart(message, error)
        rest = type(message)()
        rest.CopyFrom(message)
        inner: dict[str, Any] = {}
        # Never a message as a whole before its fields: if the innermost of a hundred levels cannot
        # be written, each level would write all that is inside of it once more.
        for field, content in message.ListFields():
            if field.message_type is not None and not field.is_extension:
                rest.ClearField(field.name)
                inner[field.name] = self._held(content)
        try:
            fields = {**self._json(rest), **inner}
        except _BROKEN as error:
            return _set_apart(message, error)
        # As the library orders them: what is in the message first, then what is not.
        present = [field.name for field, _ in message.ListFields() if field.name in fields]
        return {name: fields[name] for name in dict.fromkeys((*present, *fields))}

    def _held(self, content: Any) -> Any:
        """Return what a field holds: a message, several, or a map."""
        if isinstance(content, Message):
            return self._part(content)
        if isinstance(content, MutableMapping):
            return {_key_text(key): self._map_value(content[key]) for key in content}
        return [self._part(message) for message in content]

    def _map_value(self, value: Any) -> Any:
        if isinstance(value, Message):
            return self._part(value)
        return base64.b64encode(value).decode() if isinstance(value, bytes) else value

    @staticmethod
    def _unfit(message: Message, error: Exception) -> ValueError:
        return ValueError(f"they are no {message.DESCRIPTOR.full_name} ({quoted(error)})")

    def _class(self, index: tuple[int, ...]) -> type[Message]:
        if index not in self._classes:
            messages: Any = self._main.message_type
            path = [self._main.package] if self._main.package else []
            for number in index:
                if not 0 <= number < len(messages):
                    raise ValueError(f"the schema has no message {'.'.join(map(str, index))}")
                path.append(messages[number].name)
                messages = messages[number].nested_type
            descriptor = self._pool.FindMessageTypeByName(".".join(path))
            self._classes[index] = GetMessageClass(descriptor)
        return self._classes[index]


class _Sizes:
    """How much memory messages take as JSON: each field without a value is in it, too."""

    def __init__(self, files: Files, pool: DescriptorPool) -> None:
        self._pool = pool
        messages: list[descriptor_pb2.DescriptorProto] = []
        enums = [0]
        for file in files:
            enums += map(_enum_width, file.enum_type)
            stack = list(file.message_type)
            while stack:
                message = stack.pop()
                messages.append(message)
                enums += map(_enum_width, message.enum_type)
                stack += message.nested_type
        self._enum = max(enums)
        # A field without a type is an enum or a message, which the name of its type decides.
        unset = [
            sum(1 for field in message.field if field.type == _ENUM or not field.HasField("type"))
            for message in messages
        ]
        widths = [
            _width(field.name for field in message.field) + count * self._enum
            for message, count in zip(messages, unset, strict=True)
        ]
        copies = _ANY_LEVELS_MAX if any(f.name == "google/protobuf/any.proto" for f in files) else 1
        # No byte of a message stands for more than the largest of these.
        self._most = max(DICT_BYTES, *widths, self._enum + FIELD_BYTES, copies)
        has_numbers = any(map(_is_map_of_numbers, messages))
        self._length_max = int(_STEPS_MAX**0.5) * _ENTRY_BYTES if has_numbers else VALUE_BYTES_MAX
        """A longer message may have maps whose entries take a parser `_STEPS_MAX` steps to find."""

    def require(self, data: bytes, descriptor: Descriptor, limit: int) -> None:
        """Check a message before it is parsed: the parser itself takes memory for each field that
        an empty message does not have. Raises ValueError, RecursionError."""
        # A short message of most schemas cannot exceed the limit, whatever it holds. An empty one
        # still has all of its fields.
        if max(1, len(data)) * self._most > limit or len(data) > self._length_max:
            walk = _MessageWalk(self._pool, self._enum, self._most, limit)
            walk.message(memoryview(data), descriptor, 0)


class _MessageWalk:
    """One way through the bytes of a message."""

    def __init__(self, pool: DescriptorPool, enum_width: int, most: int, limit: int) -> None:
        """`most` is the memory for a byte of any message, `limit` that for all of this one."""
        self._pool = pool
        self._enum_width = enum_width
        self._most = most
        self._limit = self._left = limit
        self._steps = _STEPS_MAX

    def message(self, data: memoryview, descriptor: Descriptor, depth: int, at: int = 0) -> int:
        """Walk through a message, and return where it ends: a group ends before its data does."""
        if depth > DEPTH_MAX:
            raise RecursionError
        self._charge(self._width(descriptor))
        sizes: dict[int, int] = {}
        """Of fields that hold messages: their bytes, or the entries of a map, so far."""
        packed: list[memoryview] = [memoryview(b""), memoryview(b"")]
        while at < len(data):
            tag, at = _unsigned(data, at)
            number, wire = tag >> 3, tag & 7
            if wire == _GROUP_END:
                return at
            field = self._field(descriptor, number)
            kind = None if field is None else field.message_type
            if wire == _LENGTH:
                size, at = _unsigned(data, at)
                part, at = data[at : at + size], at + size
                if field is not None and kind is not None:
                    self._again(sizes, field, len(part))
                    self.message(part, kind, depth + 1)
                elif field is None or field.type in _LONG:
                    self._charge(2 * len(part) + ITEM_BYTES)
                else:
                    self._charge(len(part) * (ITEM_BYTES + self._enum_width))
                if number in (1, 2):
                    packed[number - 1] = part
            elif wire == _GROUP_BEGIN:
                end = self.message(data, kind or descriptor, depth + 1, at)
                if field is not None:
                    self._again(sizes, field, end - at)
                at = end
            else:
                at = _unsigned(data, at)[1] if wire == _VARINT else at + _FIXED.get(wire, len(data))
                self._charge(ITEM_BYTES + self._enum_width)
        if descriptor.full_name == _ANY:
            self._any(packed[0], packed[1], depth)
        return at

    def _width(self, descriptor: Descriptor) -> int:
        """Return the memory of a message without any byte: it has the names of enums' values."""
        fields = descriptor.fields
        count = sum(1 for field in fields if field.type == _ENUM and not field.has_presence)
        return _width(field.name for field in fields) + count * self._enum_width

    def _again(self, sizes: dict[int, int], field: FieldDescriptor, size: int) -> None:
        """Charge for what one more message in a field does to those before it."""
        number, kind = field.number, field.message_type
        before = sizes.get(number, 0)
        if kind is not None and kind.GetOptions().map_entry:
            # Numbers can be chosen so that the parser looks at all before each one.
            if kind.fields_by_number[1].type != FieldDescriptor.TYPE_STRING:
                self._step(before)
            sizes[number] = before + 1
        elif not field.is_repeated:
            sizes[number] = before + size
            if before:
                # Its pieces become one message: what is in one decides what another means, such as
                # the type of an Any, and a map may be in all of them.
                self._charge((before + size) * self._most)
                self._step(((before + size) // _ENTRY_BYTES) ** 2)

    def _step(self, count: int) -> None:
        self._steps -= count
        if self._steps < 0:
            raise ValueError(
                "a map has too many numbers as names: about 14,000 are allowed, and texts without a"
                " limit"
            )

    def _any(self, url: memoryview, data: memoryview, depth: int) -> None:
        try:
            name = bytes(url).decode().rpartition("/")[2]
            descriptor = self._pool.FindMessageTypeByName(name)
        except (KeyError, ValueError):
            return  # It is shown as bytes.
        self._charge(2 * len(data))
        self.message(data, descriptor, depth + 1)

    def _field(self, descriptor: Descriptor, number: int) -> FieldDescriptor | None:
        field = descriptor.fields_by_number.get(number)
        if field is None and descriptor.is_extendable:
            try:
                field = self._pool.FindExtensionByNumber(descriptor, number)
            except KeyError:
                return None
        return field

    def _charge(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TooLargeError(self._limit)


def portable(schema: RegisteredSchema) -> RegisteredSchema:
    """Return a Protobuf schema as descriptors, which need no compiler; others unchanged. So one
    process compiles for all workers. Raises ValueError if it does not compile."""
    if schema.kind != PROTOBUF:
        return schema
    files = compile_schema(schema.text, schema.references)
    texts = {file.name: _base64(file) for file in files}
    text = texts.pop(MAIN)
    return replace(schema, text=text, references=texts)


def read_index(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return which message of the file it is, and the message's bytes. The index is an array of
    zigzag varints: its length, then one number for each level of nesting; a single 0 is [0].

    Raises ValueError.
    """
    length, at = _varint(data, 0)
    if not 0 <= length <= _MESSAGES_MAX:
        raise ValueError("their message index is broken")
    numbers = []
    for _ in range(length):
        number, at = _varint(data, at)
        numbers.append(number)
    return tuple(numbers) or (0,), data[at:]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    try:
        number, at = _unsigned(data, at)
    except ValueError as error:
        raise ValueError("they end within their message index") from error
    return (number >> 1) ^ -(number & 1), at


def _unsigned(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return a number without a sign, and where it ends. Raises ValueError."""
    number = shift = 0
    for byte in data[at : at + _VARINT_BYTES_MAX]:
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return number, at
    raise ValueError("they end too early")


def _set_apart(message: Any, error: Exception) -> AwkwardPart:
    """Return a message that has no JSON as its bytes, and why."""
    name = message.DESCRIPTOR.full_name
    if name != _ANY:
        why = f"is a {name} that JSON cannot express ({quoted(error)})"
        return AwkwardPart(why, "0x" + message.SerializePartialToString().hex())
    kind = quoted(message.type_url.rpartition("/")[2] or "no type")
    is_unknown = "Can not find message descriptor" in str(error)
    why = "which the schema does not have" if is_unknown else f"which has no JSON ({quoted(error)})"
    json_value = {"@type": quoted(message.type_url), "value": "0x" + message.value.hex()}
    return AwkwardPart(f"is an Any of {kind}, {why}", json_value)


def _key_text(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _width(names: Iterable[str]) -> int:
    return DICT_BYTES + sum(FIELD_BYTES + 4 * len(name) for name in names)


def _is_map_of_numbers(message: descriptor_pb2.DescriptorProto) -> bool:
    return message.options.map_entry and any(
        field.number == 1 and field.type != FieldDescriptor.TYPE_STRING for field in message.field
    )


def _require_own_names(file: descriptor_pb2.FileDescriptorProto) -> None:
    """Check that a file of a schema defines no type of Google's. Their JSON has a form of its own,
    which protobuf's library applies by the name alone. Raises ValueError."""
    if file.name.startswith("google/"):
        return  # Google's own: each file of a schema has another name here.
    stack: list[tuple[str, Any]] = [(file.package, file)]
    while stack:
        scope, kind = stack.pop()
        is_file = kind is file
        for inner in (*(kind.message_type if is_file else kind.nested_type), *kind.enum_type):
            name = f"{scope}.{inner.name}".removeprefix(".")
            if name in GOOGLES_TYPES:
                raise ValueError(
                    f"it defines {name} itself. Import Google's file instead, such as"
                    " google/protobuf/any.proto"
                )
            if isinstance(inner, descriptor_pb2.DescriptorProto):
                stack.append((name, inner))


def _require_maps(messages: Iterable[Descriptor]) -> None:
    """Check that the entries of maps are where protoc puts them. The library takes them elsewhere,
    too, and then leaves out of its JSON what is in them. Raises ValueError."""
    stack = list(messages)
    while stack:
        message = stack.pop()
        stack += message.nested_types
        for field in message.fields:
            if _is_map_entry(field.message_type) and not (
                field.is_repeated and field.message_type.containing_type is message
            ):
                raise ValueError(f"{quoted(field.full_name)} is a map's entry, and no map")


def _is_map_entry(message: Descriptor | None) -> bool:
    return message is not None and bool(message.GetOptions().map_entry)


def _enum_width(enum: descriptor_pb2.EnumDescriptorProto) -> int:
    return max((4 * len(value.name) for value in enum.value), default=0)


def _base64(file: descriptor_pb2.FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString()).decode()
