"""Protobuf messages in the wire format of Confluent's registry.

A registry holds a schema as the text of a `.proto` file, or as a FileDescriptorProto in Base64, as
confluent-kafka registers it. Text is compiled with `protoc`, which the package grpcio-tools brings.
"""

from __future__ import annotations

import base64
import binascii
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import google.type.date_pb2
import grpc_tools
from confluent_kafka.schema_registry.confluent import meta_pb2
from confluent_kafka.schema_registry.confluent.type import decimal_pb2
from google.protobuf import descriptor_pb2, json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

MAIN = "topicproof-main.proto"
COMPILE_TIMEOUT_S = 20
_MESSAGES_MAX = 100
_VARINT_BYTES_MAX = 10
_ROOT = Path(grpc_tools.__file__).parent / "_proto"
_TYPES = Path(google.type.date_pb2.__file__).parents[2]

_CONFLUENT = (meta_pb2, decimal_pb2)
"""Imported by schemas without a reference: every registry of Confluent's knows them."""

Files = list[descriptor_pb2.FileDescriptorProto]


class ProtobufSchema:
    """A compiled `.proto` file. Raises ValueError if it does not compile."""

    def __init__(self, text: str, references: Mapping[str, str]) -> None:
        """`references` are the files that it imports, by the name of the import."""
        self._pool = DescriptorPool()
        self._classes: dict[tuple[int, ...], type[Message]] = {}
        files = _compiled({**references, MAIN: text})
        self._main = next(one for one in files if one.name == MAIN)
        try:
            for one in files:
                self._pool.Add(one)
            self._pool.FindFileByName(MAIN)
        except (TypeError, KeyError) as error:
            raise ValueError(f"the schema's files do not fit together ({error})") from error

    def read(self, data: bytes) -> tuple[Any, str | None]:
        """Return the message in Protobuf's own JSON mapping (64-bit numbers are strings), and what
        that leaves out. `data` begins with the message's index.

        Raises ValueError for truncated or broken bytes, RecursionError if it is nested too deeply.
        """
        index, payload = read_index(data)
        message = self._class(index)()
        try:
            message.ParseFromString(payload)
            value = json_format.MessageToDict(
                message,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
                descriptor_pool=self._pool,
            )
        except (DecodeError, json_format.Error, TypeError, ValueError) as error:
            raise ValueError(f"they are no {message.DESCRIPTOR.full_name} ({error})") from error
        size = message.ByteSize()
        message.DiscardUnknownFields()
        unknown = size - message.ByteSize()
        left = (
            f"{unknown:,} bytes are in fields that the schema does not have." if unknown else None
        )
        return value, left

    def _class(self, index: tuple[int, ...]) -> type[Message]:
        if index not in self._classes:
            there: Any = self._main.message_type
            path = [self._main.package] if self._main.package else []
            for number in index:
                if not 0 <= number < len(there):
                    raise ValueError(f"the schema has no message {'.'.join(map(str, index))}")
                path.append(there[number].name)
                there = there[number].nested_type
            found = self._pool.FindMessageTypeByName(".".join(path))
            self._classes[index] = GetMessageClass(found)
        return self._classes[index]


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
    number = shift = 0
    for byte in data[at : at + _VARINT_BYTES_MAX]:
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise ValueError("they end within their message index")


def _compiled(texts: Mapping[str, str]) -> Files:
    """Return the descriptors of all files and of Google's own that they import, each after those
    that it needs."""
    described = {name: _described(text) for name, text in texts.items()}
    own = {one.DESCRIPTOR.name: one.DESCRIPTOR for one in _CONFLUENT}
    with tempfile.TemporaryDirectory(prefix="topicproof-proto-") as place:
        folder = Path(place)
        known = descriptor_pb2.FileDescriptorSet()
        for name, text in texts.items():
            path = (folder / "files" / name).resolve()
            if not path.is_relative_to(folder.resolve() / "files"):
                raise ValueError(f"the schema imports {name}, which is not a relative path")
            one = described[name]
            if one is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            else:
                one.name = name
                known.file.append(one)
        for one in own.values():
            one.CopyToProto(known.file.add())
        there = {one.name for one in known.file}
        wanted = (texts.keys() - there) | (_imports(known.file) - there)
        return _sorted([*known.file, *_protoc(folder, wanted, known)])


def _protoc(folder: Path, names: Iterable[str], known: descriptor_pb2.FileDescriptorSet) -> Files:
    """Run protoc on the files in the folder and on Google's own."""
    names = sorted(names)
    if not names:
        return []
    sources, target = folder / "files", folder / "compiled"
    sources.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{sources}", f"-I{_ROOT}"]
    command += [f"-I{_TYPES}", "--include_imports", f"--descriptor_set_out={target}"]
    (folder / "known").write_bytes(known.SerializeToString())
    command.append(f"--descriptor_set_in={folder / 'known'}")
    try:
        answer = subprocess.run(
            [*command, *names],
            capture_output=True,
            text=True,
            check=False,
            timeout=COMPILE_TIMEOUT_S,
            cwd=folder,
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"protoc does not compile it within {COMPILE_TIMEOUT_S} s") from error
    if answer.returncode != 0:
        lines = [one for one in answer.stderr.splitlines() if "warning:" not in one]
        raise ValueError(f"protoc does not compile the schema ({'; '.join(lines[:3])})")
    found = descriptor_pb2.FileDescriptorSet()
    found.ParseFromString(target.read_bytes())
    return list(found.file)


def _described(text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """Return the descriptor in a Base64 text; None if the text is no such thing."""
    found = descriptor_pb2.FileDescriptorProto()
    try:
        found.ParseFromString(base64.b64decode(text.strip(), validate=True))
    except (binascii.Error, DecodeError, ValueError):
        return None
    return found


def _imports(files: Iterable[descriptor_pb2.FileDescriptorProto]) -> set[str]:
    return {name for one in files for name in one.dependency}


def _sorted(files: Files) -> Files:
    """Return each file once, after those that it imports."""
    by_name = {one.name: one for one in files}
    found: dict[str, descriptor_pb2.FileDescriptorProto] = {}

    def put(name: str) -> None:
        if name in by_name and name not in found:
            one = by_name.pop(name)
            for needed in one.dependency:
                put(needed)
            found[name] = one

    for name in list(by_name):
        put(name)
    return list(found.values())
