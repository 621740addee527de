"""Schemas and values are data: they run nothing, name no file, and take no more memory than the
budget. Each ends in a value or in a sentence."""

from __future__ import annotations

import base64
import gzip
import json
import re
import resource
import sys
import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any, cast

import fastavro
import msgpack
import pytest
from google.protobuf import descriptor_pb2, json_format
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings, strategies as st
from pyspark.sql import SparkSession

from tests.backend.formats import hostile
from tests.backend.formats.hostile import PROTO, decode, decode_with, field
from tests.field.reports import REPORTS
from tests.fuzz.targets import QUESTION
from topicproof.backend.errors import EvidenceError
from topicproof.backend.formats import (
    avro_sizes,
    formats as formats_module,
    protoc,
    registry as registry_module,
)
from topicproof.backend.formats.cache import Allowance
from topicproof.backend.formats.fields import FieldReader, KnownSchemas
from topicproof.backend.formats.formats import Formats
from topicproof.backend.formats.limits import (
    ANSWER_BYTES_MAX,
    REFERENCE_DEPTH_MAX,
    REFERENCES_MAX,
    SCHEMA_BYTES_MAX,
    SCHEMAS_MAX,
    VALUE_BYTES_MAX,
)
from topicproof.backend.formats.protobuf import ProtobufSchema, portable
from topicproof.backend.formats.registered import (
    AVRO,
    JSON,
    PROTOBUF,
    RegisteredSchema,
    RegistryFailure,
)
from topicproof.backend.judging.capture_store import SCHEMAS, TAKEN, read_capture
from topicproof.backend.properties.registry_properties import RegistryFacts
from topicproof.validators.decoded import parse_field

TOO_LARGE = f"the value would take more than {VALUE_BYTES_MAX:,} bytes of memory"
MARK = "zq7"
"""In every name below. No process, file or module may have it."""
EVENTS: list[str] = []
"""What the process has done with `MARK`, while it is watched."""
WATCHED = ("subprocess.Popen", "os.posix_spawn", "os.exec", "open", "import", "os.mkdir", "os.link")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in WATCHED and MARK in repr(arguments):
        EVENTS.append(f"{event} {arguments!r}")


sys.addaudithook(_audit)


def _descriptor(*imports: str) -> str:
    file = descriptor_pb2.FileDescriptorProto(name=f"{MARK}.proto", dependency=imports)
    file.message_type.add(name="M")
    return base64.b64encode(file.SerializeToString()).decode()


@pytest.mark.parametrize("name", hostile.NAMES)
def test_a_name_that_is_no_import_is_refused(name: str) -> None:
    """Story: the name of a reference, an import in a text or in a descriptor is an option of
    protoc, a file with its arguments, an absolute path, or longer than a file's name may be."""
    message = f'syntax = "proto3"; import "{name}"; message M {{ string a = 1; }}'
    for schema in (
        RegisteredSchema(1, PROTOBUF, PROTO, {name: PROTO.replace("M", "N")}, {}),
        RegisteredSchema(1, PROTOBUF, message, {}, {}),
        RegisteredSchema(1, PROTOBUF, PROTO, {"a.proto": message}, {}),
    ):
        decoded = decode_with(schema, b"\0\n\1x")
        assert not decoded.known and "Schema 1 cannot be used: " in (decoded.reason or "")
        assert "root:" not in (decoded.reason or "")
    if name.isprintable() or "\x1b" in name:
        decoded = decode(PROTOBUF, _descriptor(name), b"\0")
        assert "cannot be used" in (decoded.reason or ""), decoded


def test_a_reference_runs_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a program's path, an output and a command for a shell, as names of references."""
    monkeypatch.chdir(tmp_path)
    command = "id>./ran;exit #".ljust(32, "a")
    names = (command, "--plugin=protoc-gen-x=/bin/sh", "--x_out=.")
    decoded = decode_with(
        RegisteredSchema(1, PROTOBUF, PROTO, dict.fromkeys(names, 'syntax = "proto3";'), {}),
        b"\0\n\1x",
    )
    assert "it imports 'id>./ran;exit #" in (decoded.reason or "")
    assert [*tmp_path.iterdir()] == []


def _paths() -> st.SearchStrategy[str]:
    """Names, most of them none of Protobuf, each with the mark."""
    start = st.sampled_from(
        ("", "-", "--", "@", "/", "../", "./", "a/", "google/protobuf/", "~", "\0")
    )
    end = st.sampled_from((".proto", "", "/..", "/", "=x", "\n", " ", "/a/b.proto", "x" * 250))
    return st.builds(lambda first, last: f"{first}{MARK}{last}", start, end)


@given(reference=_paths(), imported=_paths(), as_text=st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_name_reaches_a_process_a_file_or_a_module(
    reference: str, imported: str, as_text: bool
) -> None:
    """Story: anybody who may register a schema chooses its names, also such as Protobuf allows."""
    EVENTS.clear()
    text = f"{PROTO} /* {MARK} */" if as_text else _descriptor()
    main = f'syntax = "proto3"; import "{imported}"; message Main {{ string a = 1; }}'
    decode_with(RegisteredSchema(1, PROTOBUF, main, {reference: text}, {}), b"\0\n\1x")
    decode_with(RegisteredSchema(1, PROTOBUF, _descriptor(imported), {reference: text}, {}), b"\0")
    assert EVENTS == []


def test_imports_keep_their_meaning_under_other_names() -> None:
    """Story: comments and texts that look like imports, a name of two strings, public imports, a
    file and a folder of one name, Google's files, and a reference with the name of one of these."""
    text = """// import "none.proto";
    syntax = 'proto3'; package shop; /* import "none.proto"; */
    import public "a"; import 'a/' "b.proto" ; import "google/type/date.proto";
    import "google/protobuf/timestamp.proto";
    message M { A a = 1; B b = 2; google.type.Date day = 3; google.protobuf.Timestamp at = 4;
      string import = 5 [json_name = "import \\"none.proto\\";"]; }"""
    references = {
        "a/b.proto": 'syntax = "proto3"; package shop; import "a"; message B { A a = 1; }',
        "a": 'syntax = "proto3"; package shop; message A { int32 n = 1; }',
        "google/protobuf/timestamp.proto": "not this",
    }
    value = field(1, b"\x08\x05") + field(2, field(1, b"\x08\x06")) + field(3, b"\x08\x07")
    expected = {
        "a": {"n": 5},
        "b": {"a": {"n": 6}},
        "day": {"year": 7, "month": 0, "day": 0},
        "import": "",
    }
    schema = RegisteredSchema(1, PROTOBUF, text, references, {})
    assert decode_with(schema, b"\0" + value).value == expected
    assert decode_with(portable(schema), b"\0" + value).value == expected


def test_what_protoc_says_is_short_and_plain() -> None:
    """Story: a name with the codes of a terminal, and a schema with 1,000 errors."""
    text = 'syntax = "proto3"; message M { ' + "\x1b[31mWrong x = 1; " * 1_000
    reason = decode(PROTOBUF, text, b"\0").reason or ""
    assert "protoc does not compile the schema" in reason and len(reason) < 500
    assert tempfile.gettempdir() not in reason
    nothing = decode(PROTOBUF, "x", b"\0").reason or ""
    assert "(1:1: Expected top-level statement" in nothing and "absl" not in nothing
    missing = 'syntax = "proto3"; import "gone.proto"; message M {}'
    assert "gone.proto, which is not among its references" in (
        decode(PROTOBUF, missing, b"\0").reason or ""
    )


def test_a_schema_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: each reader of a schema would start protoc again; one after the first needs none, nor
    does a worker of Spark, which gets descriptors."""
    text = PROTO.replace("M", "CompiledOnce")
    schema = portable(RegisteredSchema(1, PROTOBUF, text, {}, {}))
    monkeypatch.setattr(sys, "executable", "/nowhere")
    assert ProtobufSchema(text, {}).read(b"\0\n\1x") == ({"a": "x"}, None)
    monkeypatch.setattr(protoc, "_CACHE", protoc._Cache())
    assert ProtobufSchema(schema.text, schema.references).read(b"\0\n\1x") == ({"a": "x"}, None)
    reason = decode(PROTOBUF, text, b"\0").reason or ""
    assert "protoc cannot be run" in reason


@pytest.mark.parametrize(
    "text",
    [
        'syntax = "proto3"; ' + "message M {" * 20_000,
        'syntax = "proto3"; option (o) = ' + "{a:" * 100_000,
        'syntax = "proto3"; ' + "/*" * 500_000,
        'syntax = "proto3"; "' + '\\"' * 500_000,
        'syntax = "proto3"; import ' + '"a" ' * 200_000,
        PROTO + " " * SCHEMA_BYTES_MAX,
    ],
    ids=["messages", "options", "comments", "quotes", "strings", "blanks"],
)
def test_a_schema_without_an_end(text: str) -> None:
    assert "Schema 1 cannot be used: " in (decode(PROTOBUF, text, b"\0").reason or "")


@pytest.mark.parametrize("name", hostile.BOMBS)
def test_ten_bytes_of_avro_take_no_gigabytes(name: str) -> None:
    """Story: an array of null has no bytes for its items, so its count may be anything."""
    schema, value = hostile.BOMBS[name]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reason = decode(AVRO, json.dumps(schema), value).reason or ""
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert reason.endswith(f"{TOO_LARGE}."), reason
    assert grown < 100_000, "kB of memory"


@pytest.mark.parametrize("name", hostile.ENDLESS)
def test_avro_of_endless_levels_ends_no_process(name: str) -> None:
    schema, value = hostile.ENDLESS[name]
    reason = decode(AVRO, json.dumps(schema), value).reason or ""
    assert reason.endswith("they are nested too deeply."), reason


def test_large_and_nested_values_of_avro_are_decoded() -> None:
    """Story: what is walked through first is decoded as before: trees, and a million items."""
    tree = hostile.record("Tree", "int", hostile.array("Tree"))
    leaf = b"\4\0"
    assert decode(AVRO, json.dumps(tree), b"\2" + b"\4" + leaf + leaf + b"\0").value == {
        "f0": 1,
        "f1": [{"f0": 2, "f1": []}, {"f0": 2, "f1": []}],
    }
    items = decode(
        AVRO,
        json.dumps(hostile.array("int")),
        hostile.zigzag(2_000_000) + b"\2" * 2_000_000 + b"\0",
    )
    assert items.reason == f"The bytes are not as Avro schema 1 has them: {TOO_LARGE}."
    items = decode(
        AVRO, json.dumps(hostile.array("int")), hostile.zigzag(10**6) + b"\2" * 10**6 + b"\0"
    )
    assert items.value == [1] * 10**6
    nulls = decode(AVRO, json.dumps(hostile.ARRAY_OF_NULL), hostile.zigzag(3) + b"\0")
    assert nulls.value == [None] * 3


def test_two_bytes_of_protobuf_are_no_thousand_fields() -> None:
    """Story: an empty message is written with each of its fields."""
    fields = " ".join(f"string field_{number} = {number};" for number in range(1, 2_001))
    text = f'syntax = "proto3"; message M {{ repeated M m = 2500; {fields} }}'
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    few = decode(PROTOBUF, text, b"\0" + field(2_500, b"") * 3)
    assert len(few.value["m"]) == 3 and len(few.value["m"][2]) == 2_001
    assert TOO_LARGE in (decode(PROTOBUF, text, b"\0" + field(2_500, b"") * 20_000).reason or "")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100_000, "kB of memory"
    many = decode(PROTOBUF, text, b"\0" + field(1, b"x") * 300_000 + field(2_500, b"") * 3)
    assert len(many.value["m"]) == 3, "long, and within the budget"
    packed = (
        'syntax = "proto3"; enum E { ' + "x" * 50_000 + " = 0; } message M { repeated E e = 1; }"
    )
    assert TOO_LARGE in (decode(PROTOBUF, packed, b"\0" + field(1, b"\0" * 50_000)).reason or "")


def test_protobuf_of_endless_levels() -> None:
    text = """syntax = "proto3"; import "google/protobuf/any.proto";
    message M { M m = 1; google.protobuf.Any any = 2; }"""
    nested = b""
    for _ in range(300):
        nested = field(1, nested)
    assert not decode(PROTOBUF, text, b"\0" + nested).known
    packed = b""
    for _ in range(500):
        packed = field(2, field(1, b"x/M") + field(2, packed))
    decoded = decode(PROTOBUF, text, b"\0" + packed)
    assert decoded.reason is not None


@pytest.mark.parametrize("kind", [JSON, "plain"])
def test_json_and_messagepack_within_the_budget(kind: str) -> None:
    """Story: two bytes of JSON, and one of MessagePack, are an empty object of Python."""
    head = b"\0\0\0\0\1" if kind == JSON else b""
    schemas = KnownSchemas({1: RegisteredSchema(1, JSON, "{}", {}, {})})
    reader = FieldReader(schemas, "value", (("a",),))
    bomb = head + b"[" + b"{}," * 600_000 + b"{}]"
    why, _ = reader.read(bomb)
    assert TOO_LARGE in (why or "").lower()
    long = head + b'{"a": "' + b"x" * 5_000_000 + b'"}'
    assert reader.read(long) == (None, ("x" * 5_000_000,))


def test_messagepack_within_the_budget() -> None:
    plain = Formats()
    bomb = b"\x81\xa1a\xdd" + (600_000).to_bytes(4, "big") + b"\x80" * 600_000
    assert TOO_LARGE in (plain.decode(bomb).reason or "").lower()
    declared = b"\x81\xa1a\xdd\xff\xff\xff\xff"
    assert not plain.decode(declared).known
    assert not plain.decode(b"\x81\xa1a" * 50_000 + b"\xc0").known
    assert not plain.decode(b"\x81\xa1a" + b"\x91" * 50_000).known
    long = msgpack.packb({"a": "x" * 3_000_000, "b": msgpack.ExtType(5, b"y" * 100)})
    assert plain.decode(long).value["a"] == "x" * 3_000_000


ANY = """syntax = "proto3"; import "google/protobuf/any.proto";
import "google/protobuf/struct.proto"; message M { string id = 1; google.protobuf.Any extra = 2;
repeated google.protobuf.Value values = 3; map<string, google.protobuf.Value> named = 4; }"""


@pytest.mark.parametrize(
    ("kind", "text", "value", "named"),
    [
        (PROTOBUF, ANY, b"\0\n\x017" + field(2, hostile.UNKNOWN_ANY),
         "field extra is an Any of demo.Unknown, which the schema does not have."),
        (PROTOBUF, ANY, b"\0\n\x017" + field(3, hostile.NOT_A_NUMBER),
         "field values[0] is a google.protobuf.Value that JSON cannot express"),
        (PROTOBUF, ANY, b"\0\n\x017" + field(4, field(1, b"k") + field(2, hostile.NOT_A_NUMBER)),
         "field named.k is a google.protobuf.Value that JSON cannot express"),
        (JSON, "{}", b'{"id": "7", "extra": NaN}',
         "field extra is NaN, which is not a number of JSON."),
        (JSON, "{}", b'{"id": "7", "extra": {"a": 1, "a": 2}}',
         "field extra.a occurs twice in one object."),
        (JSON, "{}", b'\xef\xbb\xbf{"id": "7"}', "A byte order mark is in front of it"),
        (AVRO, json.dumps({"type": "record", "name": "R", "fields": [
            {"name": "id", "type": "string"},
            {"name": "extra", "type": {"type": "long", "logicalType": "timestamp-millis"}}]}),
         b"\x027" + hostile.zigzag(2**62),
         "field extra is 4611686018427387904, which is no timestamp-millis"),
    ],
)  # fmt: skip
def test_an_awkward_part_spoils_no_other_field(
    kind: str, text: str, value: bytes, named: str
) -> None:
    """Story: a contract names the id, and another field cannot be expressed. The id is read. A
    contract that names the other field, and the page, say which part it is."""
    schemas = KnownSchemas({1: RegisteredSchema(1, kind, text, {}, {})})
    reader = FieldReader(schemas, "value", (("id",),))
    assert reader.read(b"\0\0\0\0\1" + value) == (None, ("7",))
    reason = decode(kind, text, value).reason or ""
    assert named in reason
    assert "an Any" not in named or REPORTS["kafbat/kafka-ui#1730"].is_in(reason)
    if kind == JSON:
        assert reader.read(value) == (None, ("7",))
    for path in ("extra", "extra.a", "values", "values[0].x", "named", "named.k"):
        if f"field {path.partition('.')[0].partition('[')[0]}" in named:
            other = FieldReader(schemas, "value", (("id",), parse_field(path)))
            why, texts = other.read(b"\0\0\0\0\1" + value)
            assert why is not None and path.partition(".")[0].partition("[")[0] in why, path
            assert texts == (None, None)


def test_an_answer_that_never_begins_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a registry announces its answer again and again. Whoever asks next is told at once,
    and the registry is not asked."""
    done, requests = Event(), Counter[str]()

    class Announces(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests[self.path] += 1
            with suppress(OSError):
                while not done.wait(0.01):
                    self.wfile.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")

        def log_message(self, format: str, *_args: object) -> None:
            """Says nothing."""

    monkeypatch.setattr(registry_module, "ANSWER_SECONDS_MAX", 0.5)
    with _served(Announces) as url:
        registry = registry_module.Registry(RegistryFacts(url))
        for schema_id in (7, 8):
            with pytest.raises(RegistryFailure, match=r"has not answered within 0\.5 s"):
                registry.schema(schema_id)
        done.set()
    assert len(requests) == 1


@contextmanager
def _answers(answer: Callable[[str], bytes], encoding: str = "identity") -> Iterator[str]:
    """Serve an answer for each path. Gives the address."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answer(self.path.partition("?")[0])
            self.send_response(200)
            self.send_header("Content-Encoding", encoding)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            try:
                self.wfile.write(body)
            except OSError:
                self.close_connection = True  # Nobody reads the rest.

        def log_message(self, format: str, *_args: object) -> None:
            """Says nothing."""

    with _served(Answers) as url:
        yield url


@contextmanager
def _served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Gives the address of a server on loopback."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def _registry(answer: dict[str, Any] | bytes, *, compressed: bool = False) -> Iterator[Formats]:
    """A registry that answers each request alike, and each reference with a further one."""

    def body(path: str) -> bytes:
        if isinstance(answer, bytes):
            return answer
        number = int(path.split("/")[2][1:]) + 1 if "/subjects/" in path else 0
        name = f"s{number}"
        document = {"subject": f"s{number - 1}", "version": 1, "id": number + 1, **answer}
        if answer.get("references") == "chain":
            document["references"] = [{"name": name, "subject": name, "version": 1}]
        elif number:
            document.pop("references", None)
        text = json.dumps(document).encode()
        return gzip.compress(text) if compressed else text

    with _answers(body, "gzip" if compressed else "identity") as url:
        formats = Formats(RegistryFacts(url))
        try:
            yield formats
        finally:
            formats.close()


_MANY = [{"name": f"n{n}", "subject": f"s{n}", "version": 1} for n in range(REFERENCES_MAX + 1)]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b" " * (ANSWER_BYTES_MAX + 1), f"answer has more than {ANSWER_BYTES_MAX:,} bytes."),
        (b"[" * 100_000, "gave no readable answer for schema 1"),
        ({"schema": '"string"', "references": _MANY},
         f"refers to more than {REFERENCES_MAX} others"),
        ({"schema": '"string"', "references": "chain"},
         f"references are nested deeper than {REFERENCE_DEPTH_MAX} levels."),
        ({"schema": "x" * (SCHEMA_BYTES_MAX + 1)}, f"has more than {SCHEMA_BYTES_MAX:,} bytes"),
        ({"schema": '"string"', "references": [{"name": "a", "subject": "b", "version": "../.."}]},
         "has no name, subject or version"),
        ({"schema": '"string"', "references": [{"name": "a" * 300, "subject": "b", "version": 1}]},
         "or one of over 255 characters"),
    ],
    ids=["long", "deep", "many", "chain", "schema", "version", "name"],
)  # fmt: skip
def test_the_answers_of_a_registry_are_limited(answer: dict[str, Any] | bytes, reason: str) -> None:
    with _registry(answer) as formats:
        assert reason in (formats.decode(b"\0\0\0\0\1x", "t").reason or "")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("schema", "schemaType", "references", "subject", "version", "name")),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def test_any_answer_of_a_registry_ends_in_a_sentence() -> None:
    """Story: numbers and arrays where texts belong, at each place of an answer."""
    answers: list[Any] = [{}]

    @given(JSON_VALUES)
    @settings(max_examples=60, deadline=None, derandomize=True)
    def ask(answer: Any) -> None:
        answers[0] = answer
        formats = Formats(RegistryFacts(url))
        decoded = formats.decode(b"\0\0\0\0\1\2x", "t")
        formats.close()
        assert decoded.known or decoded.reason

    with _answers(lambda _: json.dumps(answers[0]).encode()) as url:
        ask()


def test_a_compressed_answer_is_not_unpacked() -> None:
    with _registry({"schema": '"string"'}, compressed=True) as formats:
        assert "compresses its answers" in (formats.decode(b"\0\0\0\0\1x", "t").reason or "")


def test_ids_of_broken_bytes_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a million records, each with another id."""
    for module in (formats_module, registry_module):
        monkeypatch.setattr(module, "SCHEMAS_MAX", 20)
    with _registry({"schema": '"string"'}) as formats:
        for schema_id in range(1, 70):
            assert formats.decode(b"\0" + schema_id.to_bytes(4, "big") + b"\2x", "t").value == "x"
            guid = b"\1" + schema_id.to_bytes(16, "big")
            assert formats.decode(b"\2x", "t", header=guid).value == "x"
        assert formats.registry is not None
        assert len(formats.registry._found) == len(formats._readers) == 20


def test_any_bytes_in_a_header_name_a_schema_or_none() -> None:
    """Story: anybody writes the headers. A registry is asked only for canonical GUIDs, and a
    contract reads what a page shows."""
    asked: list[str] = []

    def answer(path: str) -> bytes:
        asked.append(path)
        return b'{"schema": "\\"string\\""}'

    with _answers(answer) as url:
        formats = Formats(RegistryFacts(url))
        headers = st.binary() | st.binary(min_size=16).map(lambda tail: b"\1" + tail)

        @given(headers, st.sampled_from([b"", b"\2x", b"\0\0\0\0\7\2x"]))
        @settings(max_examples=60, deadline=None, derandomize=True)
        def read(header: bytes, data: bytes) -> None:
            decoded = formats.decode(data, "t", header=header)
            guid = decoded.schema_id
            schemas = KnownSchemas()
            if guid is not None and formats.registry is not None:
                schemas = KnownSchemas({guid: formats.registry.schema(guid)})
            reader = FieldReader(KnownSchemas.from_json(schemas.to_json()), "value", ((),))
            for _ in range(2):
                why, (text,) = reader.read(data, "t", header)
                assert (text, why) == (decoded.value, None if decoded.known else decoded.reason)

        read()
        formats.close()
    assert asked
    paths = re.compile(r"/schemas/(guids/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|ids/\d+.*)")
    assert all(paths.fullmatch(path) for path in asked), asked


def test_large_schemas_are_kept_within_a_bound_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: somebody registers many schemas of megabytes, and writes one record for each."""
    text = json.dumps({"type": "enum", "name": "E", "symbols": ["a" * 900]})
    monkeypatch.setattr(registry_module, "TEXTS_BYTES_MAX", 10_000)
    monkeypatch.setattr(formats_module, "READERS_BYTES_MAX", 3_000)
    with _registry({"schema": text}) as formats:
        for schema_id in range(1, 30):
            assert formats.decode(b"\0" + schema_id.to_bytes(4, "big") + b"\0").value == "a" * 900
        assert formats.registry is not None
        assert 9_000 < formats.registry._found.size <= 10_000
        assert 2_000 < formats._readers.size <= 3_000
        kept = vars(formats.registry._client._cache)
        assert not any(kept[name] for name in kept if name.endswith("_index"))


def test_new_schemas_take_a_page_only_so_long() -> None:
    """Story: the same, and each takes seconds to read. The rest of a page is not decoded, and says
    why. Known schemas are, and a minute later others."""
    clock = iter([0.0, 0.0, 7.0, 7.0, 7.0, 14.0, 15.0, 70.0, 70.0, 71.0])
    with _answers(lambda _: b'{"schema": "\\"string\\""}') as url:
        formats = Formats(RegistryFacts(url), allowance=Allowance(13, lambda: next(clock)))

        def value(schema_id: int) -> tuple[object, str | None]:
            decoded = formats.decode(b"\0" + schema_id.to_bytes(4, "big") + b"\2x")
            return decoded.value, decoded.reason

        assert value(1) == value(2) == ("x", None)
        why = "other new schemas have taken 13 s of the last minute. Look again later."
        assert value(3) == (None, f"Schema 3 is not read now: {why}")
        assert value(1) == ("x", None)
        assert value(3) == ("x", None)
        formats.close()


def test_one_slow_schema_holds_up_no_other() -> None:
    """Story: a registry takes a minute for one schema. Another page meets another one."""
    asked, answered = Event(), Event()

    def answer(path: str) -> bytes:
        if "/ids/1" in path:
            asked.set()
            assert answered.wait(60)
        return b'{"schema": "\\"string\\""}'

    with _answers(answer) as url, ThreadPoolExecutor(1) as pool:
        formats = Formats(RegistryFacts(url))
        slow = pool.submit(formats.decode, b"\0\0\0\0\1\2x")
        try:
            assert asked.wait(60)
            assert formats.decode(b"\0\0\0\0\2\2x").value == "x"
            assert not slow.done()
        finally:
            answered.set()
        assert slow.result().value == "x"
        formats.close()


def test_the_schemas_of_a_folder_are_limited() -> None:
    """Story: a received folder has more schemas than a check asks for, or a source in a source."""
    one = RegisteredSchema(1, AVRO, '"string"', {}, {})
    many = KnownSchemas(dict.fromkeys(range(SCHEMAS_MAX + 1), one))
    for schemas in (many, KnownSchemas(source=KnownSchemas(source=KnownSchemas()))):
        with pytest.raises(ValueError, match="schemas"):
            KnownSchemas.from_json(schemas.to_json())
    broken = KnownSchemas({1: RegisteredSchema(1, PROTOBUF, "x", {}, {})}, avro={"t": "{"})
    compiled = KnownSchemas.from_json(broken.portable().to_json())
    assert compiled.found == {} and "Schema 1 cannot be used" in compiled.failed[1]
    why, _ = FieldReader(compiled, "value", (("a",),)).read(b"x", "t")
    assert why is not None and why.startswith("The Avro schema of t cannot be used")


def test_the_schemas_of_a_folder_are_not_read_without_a_limit(tmp_path: Path) -> None:
    (tmp_path / TAKEN).write_bytes(QUESTION)
    with (tmp_path / SCHEMAS).open("wb") as file:
        file.truncate(60_000_000)
    with pytest.raises(EvidenceError, match="has 60,000,000 bytes; 50,000,000 are"):
        read_capture(cast(SparkSession, None), tmp_path)


@pytest.mark.parametrize("name", sorted(hostile.seeds()))
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_any_schema_with_any_value_ends_in_a_value_or_a_sentence(
    name: str, data: st.DataObject
) -> None:
    kind, seeds = hostile.seeds()[name]
    value = data.draw(st.binary(max_size=60))
    seed = data.draw(st.sampled_from(seeds))
    text = seed.split(hostile.SEPARATOR)[0]
    hostile.decode_joined(kind, hostile.joined(text, value.replace(hostile.SEPARATOR, b"")))


def test_a_map_of_messagepack_whose_name_is_a_map() -> None:
    for data in (b"\x81\x80\xc0", b"\x81\x90\xc0", b"\x81\x81\xff\x10\xff\x81\x81\xff\xff"):
        assert not Formats().decode(data).known


def test_names_of_messagepack_are_never_hashed_unless_they_are_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: times are the names of a map, and their hashes are alike: each would be compared with
    all others, which takes minutes for a record of a megabyte."""
    comparisons = 0

    def count(_one: object, _other: object) -> bool:
        nonlocal comparisons
        comparisons += 1
        return False

    monkeypatch.setattr(msgpack.Timestamp, "__eq__", count)
    names = Formats().decode(hostile.times(500)).value["a"]
    assert len(names) == 500 and comparisons == 0


@pytest.mark.parametrize(
    ("data", "inner"),
    [
        (b"\x82\x01\xc0\xc3\xc3", {"1": None, "True": True}),
        (b"\x81\xcb\x3f\xf8\0\0\0\0\0\0\xc0", {"1.5": None}),
        (b"\x81\xc4\1\xff\xc0", {"0xff": None}),
        (b"\x81\xd6\xff\0\0\0\0\xc0", {"1970-01-01T00:00:00+00:00": None}),
    ],
)
def test_names_of_messagepack_that_are_no_texts(data: bytes, inner: dict[str, Any]) -> None:
    """Story: numbers, bytes and times name the values of an inner map. At the outermost level they
    are a sign of other bytes."""
    assert Formats().decode(b"\x81\xa1a" + data).value == {"a": inner}
    assert not Formats().decode(data).known


def test_a_name_of_messagepack_that_occurs_twice_hides_no_value() -> None:
    for inner in (b"\x82\xa11\xc0\xa11\xc3", b"\x82\x01\xc0\xa11\xc3"):
        reason = Formats().decode(b"\x81\xa1a" + inner).reason or ""
        assert reason == "The field a.1 occurs twice in one object."


@pytest.mark.parametrize("name", sorted(avro_sizes._TYPES))
def test_a_type_of_avro_cannot_be_called_like_its_own(name: str) -> None:
    """Story: the array's items have no bytes for the reader, and one byte for the limit."""
    schema = hostile.record("R", {"type": "fixed", "name": name, "size": 1}, hostile.ARRAY_OF_NULL)
    reason = decode(AVRO, json.dumps(schema), b"\0" + hostile.MANY + b"\0").reason or ""
    assert f"it gives a type of its own the name {name}, which is one of Avro's" in reason


def test_a_schema_of_avro_cannot_say_that_it_is_parsed() -> None:
    """Story: fastavro believes a schema with its own mark, also if a name in it has two meanings.
    What fastavro wrote itself is read as before."""
    reason = decode(AVRO, json.dumps(hostile.PARSED), b"\0" + hostile.MANY + b"\0").reason or ""
    assert "redefined named type: X" in reason
    listed = json.dumps([hostile.PARSED])
    assert "redefined" in (decode(AVRO, listed, b"\0\0" + hostile.MANY + b"\0").reason or "")
    written = json.dumps(fastavro.parse_schema(hostile.record("R", "int")))
    assert "__fastavro_parsed" in written
    assert decode(AVRO, written, b"\2").value == {"f0": 1}


@pytest.mark.parametrize("size", [-5, "1", 1.5, True, None, [], 10**30])
def test_a_fixed_type_of_no_size(size: Any) -> None:
    schema = json.dumps(hostile.array({"type": "fixed", "name": "F", "size": size}))
    decoded = decode(AVRO, schema, hostile.MANY + b"\0")
    assert not decoded.known and decoded.reason


@pytest.mark.parametrize("base", ["bytes", {"type": "fixed", "name": "F", "size": 2_000_000}])
def test_a_decimal_of_a_million_bytes_is_not_calculated(base: Any) -> None:
    """Story: the time to convert a number grows with the square of its digits: days for 32 MB."""
    value = hostile.LONG_DECIMAL if base == "bytes" else hostile.LONG_DECIMAL[-2_000_000:]
    schema = hostile.record("R", "int", hostile.decimal(10**6, base=base))
    decoded = decode(AVRO, json.dumps(schema), b"\2" + value)
    assert decoded.value["f0"] == 1
    assert "is no decimal (it has 15,999,999 bits, 13,300 are allowed)" in (decoded.reason or "")


@pytest.mark.parametrize(
    ("digits", "text"), [("1234", "12.34"), ("-5", "-0.05"), ("0", "0.00"), ("9" * 40, None)]
)
def test_a_decimal_is_never_rounded(digits: str, text: str | None) -> None:
    """Story: a decimal has more digits than its precision. Rounded, two amounts would be one."""
    data = int(digits).to_bytes(20, "big", signed=True)
    for precision in (4, 40):
        schema = hostile.record("R", hostile.decimal(precision))
        decoded = decode(AVRO, json.dumps(schema), hostile.zigzag(20) + data)
        if text is None and precision == 4:
            assert "it has 40 digits, its precision is 4" in (decoded.reason or "")
        else:
            assert decoded.value == {"f0": text or "9" * 38 + ".99"}


def test_what_is_no_number_beside_deep_values_takes_no_memory_for_each_level() -> None:
    """Story: a record of 60 kB begins with NaN, which is to be named. Behind it are 20,000 numbers,
    300 levels deep. A path of its own for each of them took 50 MB, and gigabytes in a record of
    800 kB."""
    levels, numbers = 300, 20_000
    data = b"[NaN," + b"[" * levels + b"0" + b",0" * numbers + b"]" * levels + b"]"
    tracemalloc.start()
    try:
        reason = Formats().decode(data).reason
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert reason == "The field [0] is NaN, which is not a number of JSON."
    assert peak < 5_000_000


def test_a_number_of_a_million_digits_in_json() -> None:
    """Story: Python refuses to convert more than 4,300 digits. A contract compares the digits."""
    digits = "9" * 1_000_000
    reason = decode(JSON, "{}", f'{{"a": {digits}}}'.encode()).reason or ""
    assert "limit (4300 digits)" in reason
    reader = FieldReader(KnownSchemas(), "value", (("a",),))
    assert reader.read(f'{{"a": {digits}}}'.encode()) == (None, (digits,))


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("name", sorted(protoc.GOOGLES_TYPES))
def test_a_schema_defines_no_type_of_googles(name: str, is_nested: bool) -> None:
    """Story: protobuf's library calls methods of Any or Timestamp by the name of the type, which
    another type of this name does not have."""
    is_enum = name.endswith((".NullValue", ".Syntax"))
    short = name.removeprefix("google.protobuf.")
    text = hostile.own_google(short, is_nested=is_nested, is_enum=is_enum)
    for index in (b"\0", b"\4\0\0"):
        assert f"it defines {name} itself" in (
            decode(PROTOBUF, text, index + b"\x08\5").reason or ""
        )
    imports = 'syntax = "proto3"; import "x.proto"; message M { string a = 1; }'
    decoded = decode_with(RegisteredSchema(1, PROTOBUF, imports, {"x.proto": text}, {}), b"\0")
    assert "Schema 1 cannot be used: " in (decoded.reason or "")


@pytest.mark.parametrize("place", ["not repeated", "of another message"])
def test_a_maps_entry_that_is_no_map_hides_nothing(place: str) -> None:
    """Story: in a registry's descriptor a field is a map's entry, and is no map. The library writes
    its JSON without what is in it, and a record would look empty."""
    text = 'syntax = "proto3"; message M { map<int32, int32> m = 1; } message Other {}'
    file = descriptor_pb2.FileDescriptorProto.FromString(
        base64.b64decode(portable(RegisteredSchema(1, PROTOBUF, text, {}, {})).text)
    )
    if place == "not repeated":
        file.message_type[0].field[0].label = FieldDescriptor.LABEL_OPTIONAL
    else:
        file.message_type[1].field.append(file.message_type[0].field[0])
    described = base64.b64encode(file.SerializeToString()).decode()
    decoded = decode(PROTOBUF, described, b"\0\x0a\4\x08\1\x10\1")
    assert "is a map's entry, and no map" in (decoded.reason or "")


def test_an_empty_message_of_protobuf_has_no_gigabytes_of_names() -> None:
    """Story: the first value of an enum has a long name, and each field without a value is written
    with it: an empty record of a small schema."""
    enum = "enum E { " + "x" * 50_000 + " = 0; }"
    fields = " ".join(f"E f{number} = {number};" for number in range(1, 3_001))
    text = f'syntax = "proto3"; {enum} message M {{ {fields} }} message Few {{ E a = 1; }}'
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert TOO_LARGE in (decode(PROTOBUF, text, b"\0").reason or "")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100_000, "kB of memory"
    assert decode(PROTOBUF, text, b"\2\2").value == {"a": "x" * 50_000}
    file = descriptor_pb2.FileDescriptorProto.FromString(
        base64.b64decode(portable(RegisteredSchema(1, PROTOBUF, text, {}, {})).text)
    )
    for untyped in file.message_type[0].field:
        untyped.ClearField("type")
    bare = base64.b64encode(file.SerializeToString()).decode()
    assert TOO_LARGE in (decode(PROTOBUF, bare, b"\0").reason or "")


def test_a_map_of_protobuf_whose_numbers_are_alike() -> None:
    """Story: the parser of Protobuf hashes numbers without a secret: it looks at all entries before
    each one. A record of 2 MB takes minutes."""
    reason = decode(PROTOBUF, hostile.MAP, b"\0" + hostile.numbers_alike(15_000)).reason or ""
    assert "a map has too many numbers as names" in reason
    few = decode(PROTOBUF, hostile.MAP, b"\0" + hostile.numbers_alike(2_000))
    assert len(few.value["a"]) == 2_000
    texts = hostile.MAP.replace("int64", "string")
    many = b"".join(field(1, field(1, b"%d" % number) + b"\x10\1") for number in range(20_000))
    assert len(decode(PROTOBUF, texts, b"\0" + many).value["a"]) == 20_000


def test_a_message_of_protobuf_in_pieces_is_charged_as_a_whole() -> None:
    """Story: one piece has the type of an Any, another one its value, or each has a part of a map.
    The parser puts them together."""
    fields = " ".join(f"string field_{number} = {number};" for number in range(1, 2_001))
    text = f"""syntax = "proto3"; import "google/protobuf/any.proto";
    message M {{ google.protobuf.Any any = 1; Inner inner = 2; map<int64, bool> map = 3; }}
    message Inner {{ map<int64, bool> a = 1; }}
    message Wide {{ repeated Wide w = 2500; {fields} }}"""
    bomb = field(2, field(2_500, b"") * 200_000)
    url = field(1, b"x/Wide")
    assert TOO_LARGE in (
        decode(PROTOBUF, text, b"\0" + field(1, url) + field(1, bomb)).reason or ""
    )
    piece = field(2, hostile.numbers_alike(3_000))
    assert decode(PROTOBUF, text, b"\0" + piece).known
    assert not decode(PROTOBUF, text, b"\0" + piece * 2).known
    small = field(2, hostile.numbers_alike(2)) * 2 + field(1, url) + field(1, field(2, b""))
    assert len(decode(PROTOBUF, text, b"\0" + small).value["inner"]["a"]) == 2


def test_an_any_at_the_bottom_of_protobuf_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: below ninety messages is an Any of an unknown type, and beside it a thousand numbers.
    Each message was tried as a whole, so a record of 100 kB took fifteen seconds and one of 1 MB
    minutes."""
    numbers, levels = 1_000, 90
    text = """syntax = "proto3"; import "google/protobuf/any.proto";
    message N { N child = 1; repeated int32 numbers = 2; google.protobuf.Any extra = 3; }"""
    value = field(2, b"\1" * numbers) + field(3, hostile.UNKNOWN_ANY)
    for _ in range(levels):
        value = field(1, value)
    written = 0
    write = json_format.MessageToDict

    def count(message: Any, **options: Any) -> Any:
        nonlocal written
        written += message.ByteSize()
        return write(message, **options)

    monkeypatch.setattr(json_format, "MessageToDict", count)
    decoded = decode(PROTOBUF, text, b"\0" + value)
    assert "an Any of demo.Unknown" in (decoded.reason or "")
    innermost = decoded.value
    for _ in range(levels):
        innermost = innermost["child"]
    assert [*innermost] == ["numbers", "extra"] and len(innermost["numbers"]) == numbers
    # Once as a whole, and once in parts.
    assert written < 3 * len(value)


def test_a_message_of_protobuf_without_its_required_fields() -> None:
    """Story: the message, one in it, or the value of an Any lacks a required field."""
    text = """syntax = "proto2"; import "google/protobuf/any.proto";
    message M { required string id = 1; optional google.protobuf.Any any = 2; optional M m = 4; }"""
    for value in (b"", field(1, b"7") + field(4, b"")):
        assert "missing required fields: " in (decode(PROTOBUF, text, b"\0" + value).reason or "")
    packed = field(1, b"7") + field(2, field(1, b"x/M") + field(2, field(4, b"")))
    decoded = decode(PROTOBUF, text, b"\0" + packed)
    assert decoded.known and decoded.value["id"] == "7"
