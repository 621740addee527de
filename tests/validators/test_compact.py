"""The binary header, read by Python, by Spark and by the fast path: each reads the same."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyspark.sql import SparkSession

from tests.both_ways import assert_both_ways_count_the_same
from tests.validators.history import SOURCE, History, history, side_by_side
from topicproof.validators.finding import Guarantee, Outcome
from topicproof.validators.folded import compact_runs
from topicproof.validators.folded.offset_runs import fold_pieces
from topicproof.validators.judge import judge
from topicproof.validators.lineage.compact import (
    COMPACT_HEADER,
    NO_TOPIC_ID,
    Origin,
    format_compact,
    lineage_of,
    parse_compact,
    printed_id,
    transaction_of,
)
from topicproof.validators.lineage.header_columns import (
    LINEAGE_TEXT,
    SOURCE_ID,
    TRANSACTION_TEXT,
    UNREADABLE,
    with_lineage_text,
    with_transaction_text,
)
from topicproof.validators.lineage.headers import (
    INT_MAX,
    LINEAGE_HEADER,
    LONG_MAX,
    TRANSACTION_HEADER,
    Lineage,
    Transaction,
    format_lineage,
    format_transaction,
    parse_lineage,
    parse_transaction,
)
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.readings import COLUMNS

Headers = Sequence[tuple[str, bytes | None]]
ROOT = Path(__file__).parents[2]
TOPIC_ID = bytes(range(16))
OTHER_ID = bytes(range(1, 17))
LINEAGE = Lineage("numbers", 3, 41, 1)
NAME = Transaction("run7-a-numbers-3", 42, 2, "c0ffee00", 7)
WHOLE = format_compact(LINEAGE, TOPIC_ID, NAME)
PLAIN = format_compact(LINEAGE)
HIGHEST = format_compact(
    Lineage("n" * 249, INT_MAX, LONG_MAX, INT_MAX),
    b"\xff" * 16,
    Transaction("ü" * 300, LONG_MAX, INT_MAX, "!~~~~~~0", LONG_MAX),
)

ints, longs = st.integers(0, INT_MAX), st.integers(0, LONG_MAX)
topics = st.from_regex("[a-zA-Z0-9._-]{1,249}", fullmatch=True)
names = st.text(min_size=1, max_size=50).filter(lambda text: "/" not in text)
lineages = st.builds(Lineage, topics, ints, longs, ints)
transactions = st.builds(
    Transaction, names, longs, ints, st.from_regex("[0-9a-f]{8}", fullmatch=True), longs
)


def changed(at: int, to: bytes, header: bytes = WHOLE) -> bytes:
    return header[:at] + to + header[at + len(to) :]


END = len(PLAIN)
DAMAGED = {
    "empty": b"",
    "version 0": changed(0, b"\x00"),
    "a later version": changed(0, b"\x02"),
    "cut in the place": WHOLE[:33],
    "cut in the topic": WHOLE[: END - 1],
    "cut in the transaction": WHOLE[: END + 29],
    "cut in the id": WHOLE[:-1],
    "one byte more": WHOLE + b"x",
    "one byte more, no transaction": PLAIN + b"x",
    "negative partition": changed(17, b"\xff"),
    "negative offset": changed(21, b"\x80"),
    "negative index": changed(29, b"\xff"),
    "negative sequence": changed(END, b"\xff"),
    "negative attempt": changed(END + 8, b"\xff"),
    "negative total": changed(END + 12, b"\xff"),
    "a topic longer than the header": changed(33, b"\xff"),
    "no topic": WHOLE[:33] + b"\x00",
    "a slash in the topic": changed(34, b"/"),
    "a topic that is not UTF-8": changed(34, b"\xff\xfe"),
    "a line break in the topic": changed(END - 1, b"\n"),
    "a slash in the task": changed(END + 20, b"/"),
    "a task that is not ASCII": changed(END + 20, b"\xff"),
    "an id longer than the header": changed(END + 28, b"\xff\xff"),
    "an empty id": changed(END + 28, b"\x00\x00")[: END + 30],
    "a slash in the id": changed(len(WHOLE) - 1, b"/"),
    "an id that is not UTF-8": changed(len(WHOLE) - 1, b"\xff"),
    "half a surrogate in the id": changed(len(WHOLE) - 3, b"\xed\xa0\x80"),
    "text of earlier versions": b"numbers/0/41/1",
}


@given(lineages, st.binary(min_size=16, max_size=16), st.none() | transactions)
def test_a_header_is_read_back(
    lineage: Lineage, topic_id: bytes, transaction: Transaction | None
) -> None:
    """Story: our sink writes a header, anybody reads it. Nothing is lost on the way."""
    header = format_compact(lineage, topic_id, transaction)
    assert parse_compact(header) == Origin(lineage, printed_id(topic_id), transaction)


def test_the_decoder_of_the_documentation_reads_it() -> None:
    """Story: somebody copies the decoder out of docs/INTERNALS.md."""
    text = (ROOT / "docs/INTERNALS.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    (code,) = re.findall(r"```python\n(import struct\n.*?)```", text, re.DOTALL)
    exec(code, names)
    assert names["decode"](WHOLE) == {
        "topic": "numbers",
        "partition": 3,
        "offset": 41,
        "index": 1,
        "transactional_id": "run7-a-numbers-3",
        "sequence": 42,
        "attempt": 2,
        "task": "c0ffee00",
        "records": 7,
        "topic_id": TOPIC_ID.hex(),
    }
    assert names["decode"](PLAIN)["topic_id"] == NO_TOPIC_ID.hex()


@pytest.mark.parametrize("header", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_header_names_nothing(header: bytes) -> None:
    """Story: a foreign producer uses our header's name, or a later version wrote it. It names
    nothing, and nobody sees a traceback."""
    assert parse_compact(header) is None
    assert lineage_of([(COMPACT_HEADER, header)]) is None
    assert transaction_of([(COMPACT_HEADER, header)]) is None


@given(st.binary(max_size=200) | st.tuples(longs, st.binary(max_size=9)).map(
    lambda change: changed(change[0] % len(WHOLE), change[1])
))  # fmt: skip
def test_what_is_read_is_written_the_same(header: bytes) -> None:
    """Story: any bytes. No two headers say the same."""
    origin = parse_compact(header)
    if origin is not None:
        assert format_compact(origin.lineage, header[1:17], origin.transaction) == header


@pytest.mark.parametrize("transactional_id", ["", "a/b"])
def test_what_could_not_be_read_back_is_not_written(transactional_id: str) -> None:
    with pytest.raises(ValueError, match="cannot be read back"):
        format_compact(LINEAGE, TOPIC_ID, NAME._replace(transactional_id=transactional_id))


OLD: Headers = [
    (LINEAGE_HEADER, b"old/0/7/0"),
    (TRANSACTION_HEADER, b"old-id/1/1/t/3"),
]
NEW: Headers = [(COMPACT_HEADER, WHOLE)]


def every_kind_of_headers() -> list[Headers | None]:
    draw = random.Random(1)
    mutated = [
        changed(draw.randrange(len(WHOLE)), draw.randbytes(draw.choice((1, 1, 2, 8))))[
            : draw.choice((len(WHOLE), len(WHOLE), END, draw.randrange(len(WHOLE))))
        ]
        for _ in range(400)
    ]
    values: list[bytes | None] = [WHOLE, PLAIN, HIGHEST, None, *DAMAGED.values(), *mutated]
    return [
        None,
        [],
        OLD,
        [*OLD, *NEW],
        [*NEW, *OLD],
        # A sink without transactions passes the headers of its input on.
        [*OLD, (COMPACT_HEADER, PLAIN)],
        [OLD[1], *NEW, OLD[0]],
        [*OLD, (COMPACT_HEADER, b"damaged")],
        [*NEW, (COMPACT_HEADER, PLAIN)],
        *([("own", b"x"), (COMPACT_HEADER, value)] for value in values),
    ]


def test_spark_reads_what_python_reads(spark: SparkSession) -> None:
    """Story: valid headers, damaged ones, several forms in one record, and bytes changed at
    random. Spark's expressions know the rules of Python's parser."""
    kinds = every_kind_of_headers()
    rows = [(0, n, None, None, None, headers) for n, headers in enumerate(kinds)]
    reading = with_lineage_text(with_transaction_text(spark.createDataFrame(rows, COLUMNS)))
    read = reading.select("offset", LINEAGE_TEXT, TRANSACTION_TEXT, SOURCE_ID, UNREADABLE).collect()
    for offset, lineage, transaction, topic_id, unreadable in read:
        headers = kinds[offset] or []
        last = [value for name, value in headers if name in (COMPACT_HEADER, LINEAGE_HEADER)][-1:]
        is_old = bool(headers) and [
            name for name, _ in headers if name in (COMPACT_HEADER, LINEAGE_HEADER)
        ][-1:] == [LINEAGE_HEADER]
        origin = None if is_old or not last else parse_compact(last[0])
        assert parse_lineage((lineage or "").encode()) == lineage_of(headers), headers
        assert parse_transaction((transaction or "").encode()) == transaction_of(headers), headers
        assert topic_id == (None if origin is None else origin.topic_id), headers
        assert unreadable == (bool(last) and not is_old and origin is None), headers


def in_compact(value: Headers | None, topic_id: bytes) -> Headers | None:
    """The headers in the form of now."""
    if value is None or lineage_of(value) is None:
        return value
    lineage, transaction = lineage_of(value), transaction_of(value)
    assert lineage is not None
    if transaction is not None:
        transaction = transaction._replace(task="task0000")
    return [(COMPACT_HEADER, format_compact(lineage, topic_id, transaction))]


def compacted(made: History, topic_id: bytes = TOPIC_ID) -> History:
    """The history, written by a sink with the header of now."""

    def rows(reading: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return [(*row[:5], in_compact(row[5], topic_id)) for row in reading]

    return replace(
        made,
        committed=rows(made.committed),
        uncommitted=rows(made.uncommitted),
        source=rows(made.source),
    )


def batch_of(kinds: Sequence[Headers]) -> pa.RecordBatch:
    size = len(kinds)

    def column(name: str) -> pa.Array:
        return pa.array([dict(headers).get(name) for headers in kinds], pa.binary())

    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([0] * size, pa.int32()),
            "offset": pa.array(range(size), pa.int64()),
            "content": pa.array(range(size), pa.int64()),
            "lineage": column(LINEAGE_HEADER),
            "name": column(TRANSACTION_HEADER),
            "compact": column(COMPACT_HEADER),
        }
    )


def texts(number: int, topic: str) -> Headers:
    lineage = Lineage(topic, number % 2, number // 2, number % 3 // 2)
    name = Transaction("id", 1 + number // 40, 1, "task0000", 40)
    return [
        (LINEAGE_HEADER, format_lineage(lineage)),
        (TRANSACTION_HEADER, format_transaction(name)),
    ]


@pytest.mark.parametrize("sliced", [False, True], ids=["whole", "slice"])
def test_both_forms_are_folded_to_the_same_pieces(sliced: bool) -> None:
    """Story: the same records with either header. Two topics, so headers have two lengths; two
    source partitions and two output indices, so neighbours differ."""
    old = [texts(number, ("numbers", "n")[number // 50 % 2]) for number in range(300)]
    new = [in_compact(headers, NO_TOPIC_ID) or [] for headers in old]
    spans = {0: (np.array([0], np.int64), np.array([0], np.int64))}
    folded = []
    for kinds in (old, new):
        batch = batch_of(kinds)
        folded.append(fold_pieces(batch.slice(37, 200) if sliced else batch, spans).to_pylist())
    assert folded[0] == folded[1]
    assert all(row["origin"] and row["name"] for row in folded[0])


def test_what_the_fast_path_does_not_read_it_does_not_prove() -> None:
    """Story: damaged headers, and records with both forms. The pieces have no origin, so the long
    way looks at each record."""
    kinds = [[(COMPACT_HEADER, value)] for value in DAMAGED.values()] + [[*OLD, *NEW]]
    spans = {0: (np.array([0], np.int64), np.array([0], np.int64))}
    folded = fold_pieces(batch_of(kinds), spans)
    assert folded["origin"].null_count == folded.num_rows


@pytest.mark.parametrize("line", ["0 1 C 2 A 2 3 C", "0 1 C 1 2 A 2 3 1 C"], ids=["sound", "odd"])
def test_verdicts_do_not_depend_on_the_form(spark: SparkSession, tmp_path: Path, line: str) -> None:
    """Story: a healthy sink and one with a duplicate, each with both headers. Every finding has
    the same figures, and both ways count the same."""
    made = history(line, inputs=4)
    reports = [one.report(spark, tmp_path) for one in (made, compacted(made))]
    assert reports[0].verdict is (Outcome.HOLDS if line.endswith("3 C") else Outcome.VIOLATED)
    old, new = (
        [(finding.kind, finding.outcome, finding.count) for finding in report.findings]
        for report in reports
    )
    assert old == new
    if reports[0].verdict is Outcome.HOLDS:
        ids = {SOURCE: str(printed_id(TOPIC_ID))}
        assert_both_ways_count_the_same(
            lambda: compacted(made).ledger(spark, tmp_path, source_ids=ids)
        )


def test_outputs_of_a_deleted_topic_are_known_by_the_id_in_their_header(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: the source was deleted and made again, with as many records. Nothing but the headers
    tells: no run recorded an id, and no time is odd. By the id of the present source the same
    records hold; without an id in the header nobody can tell."""
    present = {SOURCE: str(printed_id(TOPIC_ID))}
    verdicts = {}
    for of_header in (TOPIC_ID, OTHER_ID, NO_TOPIC_ID):
        made = compacted(history("0 1 C 2 3 C", inputs=4), of_header)
        ledger = made.ledger(spark, tmp_path, source_ids=present)
        report = judge(ledger, Guarantee.EXACTLY_ONCE)
        verdicts[of_header] = report.verdict
        if of_header == OTHER_ID:
            (recreated,) = [f for f in report.findings if f.kind == "recreated"]
            assert (recreated.outcome, recreated.count) == (Outcome.UNKNOWN, 4)
            assert "by its id" in recreated.examples[0].why
            assert not [f for f in report.findings if f.outcome is Outcome.VIOLATED]
        assert ledger.counts.proved is (of_header != OTHER_ID)
    assert verdicts == {
        TOPIC_ID: Outcome.HOLDS,
        OTHER_ID: Outcome.UNKNOWN,
        NO_TOPIC_ID: Outcome.HOLDS,
    }


def test_new_outputs_beside_those_of_a_deleted_topic_repeat_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Story: the new source's outputs went to the old sink. One old output lies beyond what the new
    source has. Nothing is called a repeat, out of order, or an output of nothing."""
    made = history("0 1 2 C 0 1 C", inputs=2)

    def rows(reading: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return [
            (*row[:5], in_compact(row[5], OTHER_ID if row[1] < 3 else TOPIC_ID)) for row in reading
        ]

    mixed = replace(made, committed=rows(made.committed), uncommitted=rows(made.uncommitted))
    ledger = mixed.ledger(spark, tmp_path, source_ids={SOURCE: str(printed_id(TOPIC_ID))})
    report = judge(ledger, Guarantee.EXACTLY_ONCE)
    assert report.verdict is Outcome.UNKNOWN
    counts = {f.kind: f.count for f in report.findings if f.count}
    assert counts == {"recreated": 3}, counts


def test_a_damaged_header_is_never_a_verdict(spark: SparkSession, tmp_path: Path) -> None:
    """Story: one record of a healthy partition has a damaged header, and one of another has that of
    a later version. Nobody knows their inputs or their transactions, so the verdict is UNKNOWN and
    says so, by key too. Aborted records change nothing."""
    headers = [[(COMPACT_HEADER, DAMAGED[name])] for name in ("cut in the id", "a later version")]
    for at, verdict in ((5, Outcome.UNKNOWN), (3, Outcome.HOLDS)):
        made = compacted(
            side_by_side(history("0 1 C 2 A 2 3 C", inputs=4, first=number) for number in range(2))
        )
        for reading in (made.committed, made.uncommitted):
            reading[:] = [(*row[:5], headers[row[0]]) if row[1] == at else row for row in reading]
        report = made.report(spark, tmp_path)
        assert report.verdict is verdict, report.why
        if verdict is Outcome.UNKNOWN:
            assert "records whose header topicproof is damaged, or of a later version: 2." in (
                report.why
            )
            by_key = made.ledger(spark, tmp_path, identity=Identity.KEY)
            assert judge(by_key, Guarantee.EXACTLY_ONCE).verdict is Outcome.UNKNOWN


def test_headers_that_differ_in_everything_are_read_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: a producer writes another partition into each header, and headers of two lengths. The
    same is read as from headers that are parsed one by one."""
    monkeypatch.setattr(compact_runs, "SLICE_BYTES", 500)
    lineages = [Lineage("s" * (1 + number % 2), number % 700, number, 0) for number in range(900)]
    headers = pa.array([format_compact(each, bytes(16)) for each in lineages], pa.binary())
    nothing = np.full(len(lineages), -1)
    records = compact_runs.with_compact(
        compact_runs.NamedRecords(nothing, np.zeros(len(lineages), np.int64), [], nothing, []),
        headers,
        pa.array([True] * len(lineages)),
    )
    read = [
        parsed[0]._replace(offset=int(at))
        for number, at in zip(records.origin, records.at, strict=True)
        if (parsed := compact_runs.parse_origin(records.origins[number])) is not None
    ]
    assert read == lineages
    assert len(records.origins) == len({(each.topic, each.partition) for each in lineages})
