"""Compiles Protobuf schemas. Nothing that a schema holds is an argument, a file name or a module.

`protoc` runs in a child process with fixed arguments, because a parser in C++ may crash or use up
memory. Each file of a schema has a name of ours there (`f0.proto`, `f1.proto`, ...), also in the
imports of the texts. An import either means a file of the schema or is on Google's fixed list.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import subprocess
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any

import google.type.date_pb2
import grpc_tools
from confluent_kafka.schema_registry.confluent import meta_pb2
from confluent_kafka.schema_registry.confluent.type import decimal_pb2
from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.message import DecodeError

from topicproof.backend.formats.limits import NAME_CHARACTERS_MAX, quoted, require_size

MAIN = "f0.proto"
COMPILE_TIMEOUT_S = 20
_CPU_S, _MEMORY_BYTES, _FILE_BYTES, _FILES_OPEN = 10, 1 << 30, 32_000_000, 64
_MESSAGE_LINES = 3
_CACHE_BYTES = 64_000_000

Files = list[descriptor_pb2.FileDescriptorProto]

_MODULES = (
    *(any_pb2, api_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2),
    *(source_context_pb2, struct_pb2, timestamp_pb2, type_pb2, wrappers_pb2),
    *(meta_pb2, decimal_pb2),
)
"""Imported by schemas without a reference: Google's basic types, and those of Confluent."""
GOOGLES_TYPES = frozenset(
    kind.full_name
    for module in _MODULES
    for kinds in (module.DESCRIPTOR.message_types_by_name, module.DESCRIPTOR.enum_types_by_name)
    for kind in kinds.values()
    if kind.full_name.startswith("google.protobuf.")
)
_GRPC = Path(grpc_tools.__file__).parent
_ROOTS = (_GRPC / "_proto" / "google", Path(google.type.date_pb2.__file__).parents[1])
"""The two folders of Google's `.proto` files, each named `google`."""

# Limits are set by the child itself: `preexec_fn` is unsafe in a process with threads.
_CHILD = f"""
import resource, sys
for kind, limit in (
    (resource.RLIMIT_CPU, {_CPU_S}), (resource.RLIMIT_AS, {_MEMORY_BYTES}),
    (resource.RLIMIT_FSIZE, {_FILE_BYTES}), (resource.RLIMIT_NOFILE, {_FILES_OPEN}),
    (resource.RLIMIT_CORE, 0),
):
    hard = resource.getrlimit(kind)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (limit, limit))
sys.path.append(sys.argv[1])
from grpc_tools import _protoc_compiler
sys.exit(_protoc_compiler.run_main([b"protoc", *map(str.encode, sys.argv[2:])]))
"""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*")
# What is not closed reaches to the end, so that no text is read twice.
_TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|/\*(?:.*?\*/|.*))"""
    r"""|(?P<string>"(?:[^"\\\n]|\\.)*+"?|'(?:[^'\\\n]|\\.)*+'?)"""
    r"""|(?P<word>\w+)|.""",
    re.DOTALL,
)


def compile_schema(text: str, references: Mapping[str, str]) -> Files:
    """Return the descriptors of a schema and of all that it imports, each after those that it
    needs; its own is called `MAIN`. `references` are the texts by the name of the import.

    A schema is compiled once: the results of the latest ones are kept.
    Raises ValueError if it does not compile, takes too long, or a name is none of Protobuf.
    """
    require_size(text, references)
    digest = sha256()
    for part in (text, *(part for pair in sorted(references.items()) for part in pair)):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    answer = _CACHE.get(digest.digest())
    if answer is None:
        try:
            files = _compiled(text, references)
            answer = descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()
        except ValueError as error:
            answer = str(error)
        except OSError as error:
            # The disk may be full now, and not the next time.
            raise ValueError(f"protoc cannot be run ({quoted(error)})") from error
        _CACHE.put(digest.digest(), answer)
    if isinstance(answer, str):
        raise ValueError(answer)
    return list(descriptor_pb2.FileDescriptorSet.FromString(answer).file)


class _Cache:
    """The latest results of the compiler: descriptors, or why there are none. Safe for several
    threads."""

    def __init__(self) -> None:
        self._answers: OrderedDict[bytes, bytes | str] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def get(self, key: bytes) -> bytes | str | None:
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
            return self._answers.get(key)

    def put(self, key: bytes, answer: bytes | str) -> None:
        with self._lock:
            self._size += len(answer) - len(self._answers.get(key, b""))
            self._answers[key] = answer
            while self._size > _CACHE_BYTES:
                self._size -= len(self._answers.popitem(last=False)[1])


_CACHE = _Cache()


def _compiled(text: str, references: Mapping[str, str]) -> Files:
    for name in references:
        _require_name(name)
    basic = {module.DESCRIPTOR.name: module.DESCRIPTOR for module in _MODULES}
    file_names = {"": MAIN}
    for name in references:
        if name not in basic:
            file_names[name] = f"f{len(file_names)}.proto"
    texts: dict[str, str] = {}
    described = descriptor_pb2.FileDescriptorSet()
    for module in basic.values():
        module.CopyToProto(described.file.add())
    googles: set[str] = set()
    for name, file in file_names.items():
        source = references[name] if name else text
        descriptor = _described(source)
        if descriptor is None:
            texts[file] = _with_own_imports(source, file_names, googles)
            continue
        descriptor.name = file
        imports: Any
        for imports in (descriptor.dependency, getattr(descriptor, "option_dependency", [])):
            imports[:] = [_own_import(imported, file_names, googles) for imported in imports]
        described.file.append(descriptor)
    present = {file.name for file in described.file}
    sources = [*texts, *sorted(googles - present)]
    return _needed([*described.file, *_protoc(sources, texts, described)])


def _require_name(name: str) -> None:
    """Check the path of an import. Raises ValueError."""
    if len(name) > NAME_CHARACTERS_MAX:
        raise ValueError(
            f"a name in it has {len(name):,} characters, and {NAME_CHARACTERS_MAX} are allowed"
        )
    if _NAME.fullmatch(name) is None or ".." in name:
        raise ValueError(
            f"it imports '{quoted(name)}', which is not a relative path of letters, digits and"
            " _ . / -"
        )


def _own_import(name: str, file_names: Mapping[str, str], googles: set[str]) -> str:
    """Return the name under which the compiler has an import. Google's are added to `googles`.
    Raises ValueError."""
    _require_name(name)
    if name in file_names:
        return file_names[name]
    if name not in _google_files():
        raise ValueError(f"it imports {name}, which is not among its references")
    googles.add(name)
    return name


@cache
def _google_files() -> dict[str, str]:
    """The files that any schema may import, by name."""
    names = {module.DESCRIPTOR.name: "" for module in _MODULES}
    for root in _ROOTS:
        for path in sorted(root.rglob("*.proto")):
            names.setdefault(path.relative_to(root.parent).as_posix(), str(path))
    return names


def _with_own_imports(text: str, file_names: Mapping[str, str], googles: set[str]) -> str:
    """Return the text with the compiler's names in its imports. Raises ValueError."""
    parts, written = [], 0
    for start, end in _import_names(text):
        literals = [
            match.group("string")
            for match in _TOKEN.finditer(text, start, end)
            if match.lastgroup == "string"
        ]
        name = "".join(literal[1:-1] for literal in literals)
        parts += [text[written:start], f'"{_own_import(name, file_names, googles)}"']
        written = end
    return "".join([*parts, text[written:]])


def _import_names(text: str) -> Iterator[tuple[int, int]]:
    """Yield where the name of each import begins and ends. A name may be of several strings."""
    is_import, start, end = False, -1, -1
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        if kind == "blank":
            continue
        if is_import and kind == "string":
            start, end = (match.start() if start < 0 else start), match.end()
            continue
        if start >= 0:
            yield start, end
        is_modifier = is_import and start < 0 and match[0] in ("public", "weak", "option")
        is_import, start = is_modifier or match[0] == "import", -1
    if start >= 0:
        yield start, end


def _protoc(
    names: Iterable[str], texts: Mapping[str, str], described: descriptor_pb2.FileDescriptorSet
) -> Files:
    """Run protoc on the texts and on Google's files. Raises ValueError, OSError."""
    names = list(names)
    if not names:
        return []
    with tempfile.TemporaryDirectory(prefix="topicproof-proto-") as place:
        folder = Path(place).resolve()
        sources, target, complaints = folder / "files", folder / "compiled", folder / "errors"
        sources.mkdir()
        for name, text in texts.items():
            (sources / name).write_bytes(text.encode())
        (folder / "described").write_bytes(described.SerializeToString())
        paths = [str(sources / name) if name in texts else _google_files()[name] for name in names]
        command = [sys.executable, "-I", "-S", "-B", "-c", _CHILD, str(_GRPC.parent)]
        command += [f"-I{sources}", *(f"-Igoogle={root}" for root in _ROOTS), "--include_imports"]
        command += [f"--descriptor_set_in={folder / 'described'}"]
        command += [f"--descriptor_set_out={target}", *paths]
        with complaints.open("wb") as errors:
            try:
                status = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    check=False,
                    timeout=COMPILE_TIMEOUT_S,
                    cwd=folder,
                    env={
                        name: os.environ[name]
                        for name in ("LD_LIBRARY_PATH",)
                        if name in os.environ
                    },
                ).returncode
            except subprocess.TimeoutExpired as error:
                raise ValueError(f"protoc does not compile it within {COMPILE_TIMEOUT_S} s") from (
                    error
                )
        if status < 0:
            raise ValueError(
                f"protoc ended by signal {-status}: the schema takes too much time or memory"
            )
        if status != 0:
            raise ValueError(
                f"protoc does not compile the schema ({_complaint(complaints, sources)})"
            )
        try:
            return list(descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes()).file)
        except DecodeError as error:
            raise ValueError("its messages are nested too deeply") from error


def _environment() -> dict[str, str]:
    """Return what an interpreter may need to start: no secret of this process is in it."""
    return {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}


def _complaint(complaints: Path, sources: Path) -> str:
    """Return the first errors of protoc about this schema, without names of our folder. Its own log
    and its warnings are left out."""
    with complaints.open(encoding="utf-8", errors="replace") as lines:
        text = lines.read(100_000)
    errors = [
        line.removeprefix(f"{sources}/").removeprefix(f"{MAIN}:")
        for line in text.splitlines()
        if line.startswith(str(sources)) and "warning:" not in line
    ]
    clause = "; ".join(errors[:_MESSAGE_LINES]).replace(f"{sources}/", "")
    return quoted(clause or "it names no line")


def _described(text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """Return the descriptor in a Base64 text; None if the text is no such thing."""
    descriptor = descriptor_pb2.FileDescriptorProto()
    try:
        descriptor.ParseFromString(base64.b64decode(text.strip(), validate=True))
    except (binascii.Error, DecodeError, ValueError):
        return None
    return descriptor


def _needed(files: Files) -> Files:
    """Return what the schema imports, directly or not, each file once and after its imports."""
    by_name = {file.name: file for file in files}
    ordered: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    begun: set[str] = set()
    stack = [MAIN]
    while stack:
        name = stack.pop()
        file = by_name.get(name)
        if file is None or name in ordered:
            continue
        if name in begun:
            ordered[name] = file
            continue
        begun.add(name)
        stack += [name, *(imported for imported in file.dependency if imported not in begun)]
    return list(ordered.values())
