"""What reads bytes from elsewhere: each target takes any bytes and ends with a result or with an
error that a user can read."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode

import pandas as pd
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.app.test_history_page import TWICE
from tests.backend.formats import hostile
from topicproof.app.check.check_state import read_check, write_check
from topicproof.app.shell.url_state import (
    read_compare,
    read_topics,
    read_transactions,
    write_compare,
    write_topics,
    write_transactions,
)
from topicproof.backend.clusters import read_clusters
from topicproof.backend.contracts.contract import read_contract
from topicproof.backend.contracts.expressions import spark_sql, stored_sql
from topicproof.backend.errors import TopicproofError
from topicproof.backend.evidence.attestation import vouching
from topicproof.backend.evidence.folder import read_report
from topicproof.backend.evidence.manifest import (
    ATTESTATION,
    MANIFEST,
    read_manifest,
    write_manifest,
)
from topicproof.backend.evidence.read_limits import require_readable
from topicproof.backend.evidence.signed import read_signoffs
from topicproof.backend.evidence.unpacking import unpack
from topicproof.backend.faults.kinds import parse_fault
from topicproof.backend.judging.capture_store import TAKEN, read_capture
from topicproof.backend.kafka.log.batches import (
    HEADER,
    batch_positions,
    batch_rows,
    cut,
    require_crc,
)
from topicproof.backend.properties.facts import facts_of
from topicproof.backend.properties.properties_file import read_properties
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.sink.entries import decode
from topicproof.backend.verifying.unchanged import unchanged
from topicproof.backend.yaml_fields import PLAN_FIELDS, read_yaml
from topicproof.validators.finding import Bounds, PartitionBounds
from topicproof.validators.json_path import parse_path
from topicproof.validators.lineage.compact import format_compact, parse_compact
from topicproof.validators.lineage.headers import (
    Lineage,
    Transaction,
    format_lineage,
    format_transaction,
    parse_lineage,
    parse_transaction,
)

TOKENS = (
    *(b"", b"\x00", b"\xff" * 8, b"9" * 5_000, b"-1", b"1e999", b"[" * 3_000, b"{", b'"', b"/"),
    *(b"..", b"*a", b"&a ", b"- *a\n", b"<<: *a", b"\n", b": ", b"\\", b"${env:HOME}", b"\xe2\x80"),
    *(
        b"null",
        b"true",
        b"NaN",
        b"2026-02-31",
        b"!!binary x",
        b"(",
        b"reflect(",
        b"\x7f\xff\xff\xff",
    ),
    *(b"--plugin=protoc-gen-x=/bin/sh", b"@/etc/passwd", b"/etc/passwd", b"\x1b[2J", b"a" * 300),
    *(b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f", hostile.SEPARATOR),
)
"""What breaks parsers, put into a text that is otherwise right."""
COMPACT = (
    format_compact(Lineage("numbers", 0, 7, 0)),
    format_compact(Lineage("n", 1, 2, 3), b"i" * 16, Transaction("id", 1, 1, "c0ffee00", 3)),
)


def mutated(*seeds: bytes) -> st.SearchStrategy[bytes]:
    """Any bytes, and the seeds with some places changed."""
    change = st.tuples(
        st.integers(0, 10_000), st.integers(0, 8), st.sampled_from(TOKENS) | st.binary(max_size=8)
    )

    def applied(seed: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
        for at, removed, token in changes:
            at %= len(seed) + 1
            seed = seed[:at] + token + seed[at + removed :]
        return seed

    changed = st.builds(applied, st.sampled_from(seeds), st.lists(change, max_size=4))
    return changed | st.binary(max_size=200)


def _in_file(
    read: Callable[[Path], object], name: str = "given", *errors: type[Exception]
) -> Callable[[bytes], None]:
    def target(data: bytes) -> None:
        with TemporaryDirectory(prefix="topicproof-fuzz-") as folder:
            path = Path(folder) / name
            path.write_bytes(data)
            _told(read, path, *errors)

    return target


def _told(read: Callable[[Any], object], given: Any, *errors: type[Exception]) -> None:
    """Call, and let only the errors through that users see as a sentence."""
    with suppress(TopicproofError, *errors):
        read(given)


def _text(read: Callable[[str], object]) -> Callable[[bytes], None]:
    return lambda data: _told(read, data.decode(errors="replace"), ValueError)


def _expression(text: str) -> None:
    """What Spark gets is accepted again, as it is, and Spark puts no variable into it."""
    sql = spark_sql(text)
    assert "${" not in sql
    assert stored_sql(sql) == sql


def _batches(data: bytes) -> None:
    view = memoryview(data)
    positions = batch_positions(view, "topic-0")
    rows = batch_rows(view, positions, 0)
    for row, at in zip(rows, positions, strict=True):
        _told(partial(cut, row, view[at:], 0, 5), "topic-0")
    require_crc(view, positions, "topic-0")


def _unpack(path: Path) -> None:
    target = path.parent / "unpacked"
    target.mkdir()
    unpack(path, target)
    outside = [one for one in path.parent.iterdir() if one not in (path, target)]
    assert outside == [], "something was written outside of the folder"


def _zip() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("run/manifest.json", "{}" * 50)
            packed.writestr("run/../../x", "x")
        return path.read_bytes()


def _folder(data: bytes) -> None:
    """A zip file as the stranger sent it, unpacked and looked at as `verify` does."""
    with TemporaryDirectory(prefix="topicproof-fuzz-") as name:
        path = Path(name) / "sent.zip"
        path.write_bytes(data)
        target = Path(name) / "unpacked"
        target.mkdir()
        _told(partial(_looked, path), target)
        assert sorted(one.name for one in Path(name).iterdir()) == ["sent.zip", "unpacked"]


def _looked(path: Path, target: Path) -> None:
    unpack(path, target)
    write_manifest(target, "a", "HOLDS")
    unchanged(target, {})
    require_readable(target)
    read_signoffs(target)


def _packed(*names: str, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.zip"
        with zipfile.ZipFile(path, "w", method) as packed:
            for name in names:
                packed.writestr(
                    name, INNER if name.endswith((".zip", ".json", ".parquet")) else "x"
                )
        return path.read_bytes()


def _capture(path: Path) -> None:
    # A folded question reads its tables before it needs Spark, and there are none.
    read_capture(cast(SparkSession, None), path.parent)


def _batch(count: int = 1) -> bytes:
    record = bytes((12, 0, 0, 0, 1, 1, 0))
    header = bytearray(HEADER.itemsize)
    header[8:12] = (HEADER.itemsize - 12 + len(record)).to_bytes(4, "big")
    header[16] = 2
    header[-4:] = count.to_bytes(4, "big")
    return bytes(header) + record


def _page_address(data: bytes) -> None:
    """Each page shows some place whatever its address says, and its own address means that
    place."""
    params = dict(parse_qsl(data.decode(errors="replace"), keep_blank_values=True))
    bounds = Bounds("a", (PartitionBounds(0, 0, 10, 12), PartitionBounds(1, 5, 5, 5)))
    found = pd.DataFrame({"partition": [0], "producer_id": [7], "first_offset": [3]})
    compared, _ = read_compare(params, bounds, (0, 5))
    assert read_compare(_again(write_compare(compared)), bounds, None) == (compared, [])
    listed, _ = read_transactions(params, bounds, found)
    assert read_transactions(_again(write_transactions(listed)), bounds, found) == (listed, [])
    browsed, _ = read_topics(params, bounds)
    assert read_topics(_again(write_topics(browsed)), bounds) == (browsed, [])
    assert browsed.wanted is not None and (browsed.time_ms is None) == (browsed.time is None)
    checked, _ = read_check(params)
    assert read_check(_again(write_check(checked))) == (checked, [])


def _again(written: dict[str, str]) -> dict[str, str]:
    return dict(parse_qsl(urlencode(written), keep_blank_values=True))


CONTRACTS = [path.read_bytes() for path in sorted(Path("contracts").glob("*.yaml"))]
PLAN = b"scenario: squares\nrecords: 100\nsource: {partitions: 2}\nfaults: [crash@transaction=2]\n"
PROPERTIES = (
    b"bootstrap.servers=a:1\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
    b"sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required"
    b' username="a" password="b";\n'
)
QUESTION = json.dumps(
    {
        "question": {
            "source": {
                "topic": "a",
                "partitions": [{"partition": 0, "start": 0, "lso": 1, "hw": 1}],
            },
            "sink": "b",
            "agreed": {"value": "upper(value)", "match": {"source": "json:$.id"}},
            "sink_from": {"0": 1},
        },
        "expect": "one_to_many",
        "count": "size(split(value, ','))",
        "sink": {"topic": "b", "partitions": [{"partition": 0, "start": 0, "lso": 1, "hw": 1}]},
        "circumstances": {},
        "coordinator": None,
        "folded": True,
    }
).encode()
MANIFEST_SEED = json.dumps(
    {
        "schema": 1,
        "run": "a",
        "verdict": "HOLDS",
        "made_at": "2026-01-01T00:00:00Z",
        "payloads": "all",
        "files": {"report.json": {"sha256": "0", "bytes": 1}},
    }
).encode()
ADDRESSES = (
    b"topic=a&partition=1&offset=5&record=7&level=committed&fate=aborted,marker",
    b"topic=a&partition=0&producer=7&outcome=open&skip=1&transaction=0/3",
    b"view=tail&key=0xff&value=b&header=c&time=2026-01-31T12:00:00Z&until=2026-02-01&order=newest"
    b"&fields=$.a,$['b'][0]&record=0/3",
    b'source=a&sink=b&source_cluster=c&contract=d@3&run=e&name=f&terms={"identity":"key"}',
)
CLUSTERS = (
    b"east:\n  bootstrap: east:9092\n  config: east.properties\n"
    b"  schema_registry: https://registry.example\n"
)
ENVELOPE = (
    b'{"payloadType": "application/vnd.in-toto+json", "payload": "e30=",'
    b' "signatures": [{"sig": "eA=="}]}'
)

INNER = _zip()
"""An archive in an archive."""
FOLDERS = (
    _packed("signoffs.json", "sink-read_committed/part-0.parquet", "nested.zip"),
    _packed("a\\[/]", "\x1b[2K", "--plugin=x", "@/etc/passwd", "\u202e.json", method=12),
    _packed("../x", "/x", "a//x", "C:\\x", "con", "x" * 300, ".", method=14),
    _packed("signoffs.json", "source-packs/heads.parquet", "ledger/a/b.parquet", method=0),
)

Target = tuple[tuple[bytes, ...], Callable[[bytes], None]]
TARGETS: dict[str, Target] = {
    "batches": (
        (
            _batch(),
            _batch(2**31 - 1),
        ),
        lambda data: _told(_batches, data),
    ),
    "lineage header": ((b"numbers/0/7/0",), lambda data: _round(parse_lineage, data)),
    "transaction header": ((b"id/1/1/t/3",), lambda data: _round(parse_transaction, data)),
    "compact header": (COMPACT, lambda data: _compact(data)),
    "plan": ((PLAN,), _in_file(lambda path: make_plan(read_yaml(path, PLAN_FIELDS)))),
    "contract": (tuple(CONTRACTS), _in_file(read_contract)),
    "expression": (
        (
            b"repeat(upper(value), 3)",
            b"format_string('%9d', 1)",
            b"case key when '7' then transform(headers, (h, i) -> h.key || i)[0] else '${a}' end",
            b"cast(regexp_extract(value, '^(?:a|b)*+[^,]{2,}$', 1) as decimal(9, 2)) is not null",
            b"cast(value as decimal(9, 2)) > 1e9BD and ceil(decimal(key), 2) < 7",
            b"from_json(value, 'a array<int>').a[0] in (-1, 2) or timestamp > '2026-01-31'",
        ),
        _text(_expression),
    ),
    "path": ((b"$.a[0]['b']",), _text(parse_path)),
    "fault": ((b"crash@transaction=2,partition=0",), _text(parse_fault)),
    "page address": (ADDRESSES, _page_address),
    "clusters": ((CLUSTERS,), _in_file(read_clusters)),
    "properties": ((PROPERTIES,), _in_file(lambda path: facts_of(read_properties(path)))),
    "manifest": (
        (MANIFEST_SEED,),
        _in_file(lambda path: read_manifest(path.parent), MANIFEST),
    ),
    "report": (
        (TWICE.to_json().encode(),),
        _in_file(lambda path: read_report(path.parent), "report.json"),
    ),
    "question": ((QUESTION,), _in_file(_capture, TAKEN)),
    "journal": (
        (b'{"kind": "started"}',),
        lambda data: _told(
            decode, data, ValueError, LookupError, TypeError, AttributeError, RecursionError
        ),
    ),
    "signature": ((ENVELOPE,), _in_file(lambda path: vouching(path.parent, {}), ATTESTATION)),
    "folder": (FOLDERS, _folder),
    "zip": ((_zip(),), _in_file(_unpack)),
    **{
        f"{name} schema": (seeds, partial(hostile.decode_joined, kind))
        for name, (kind, seeds) in hostile.seeds().items()
    },
    "value": (hostile.VALUES, hostile.decode_plain),
    "schemas": ((hostile.SCHEMAS.to_json().encode(),), _text(hostile.read_schemas)),
}
"""By name: right inputs, and what reads them."""


def _compact(data: bytes) -> None:
    """A binary header that is read is written back the same."""
    origin = parse_compact(data)
    if origin is not None:
        assert format_compact(origin.lineage, data[1:17], origin.transaction) == data


def _round(parse: Callable[[bytes], Any], data: bytes) -> None:
    """A header that is read is written back the same."""
    found = parse(data)
    write: Any = format_lineage if parse is parse_lineage else format_transaction
    assert found is None or write(found) == data
