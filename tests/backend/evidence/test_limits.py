"""Limits on received folders, without Spark: each is reached, and what it refuses is said in one
sentence."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.backend.evidence.evidence import mend
from tests.backend.evidence.test_attestation import made
from topicproof.backend.errors import EvidenceError
from topicproof.backend.evidence import read_limits
from topicproof.backend.evidence.footers import SPARK_SCHEMA
from topicproof.backend.evidence.page_headers import PageBudget, read_pages
from topicproof.backend.evidence.read_limits import (
    Budget,
    decoded_bytes,
    parse_json,
    plain_name,
    read_lines,
    read_table,
    require_readable,
    require_rows,
)
from topicproof.backend.verifying.unchanged import unchanged

READING = "sink-read_uncommitted"
PART = "part-00000-0.snappy.parquet"
COUNTS = f"expected-counts/{PART}"
WHOLE = pa.array([0, 1])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made(tmp_path / "evidence")


def _rows(path: Path, rows: int = 100) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"partition": [0] * rows, "offset": list(range(rows))}), path)


def _texts(
    path: Path, mb: int = 4, rows: int = 300, compression: str = "zstd", **more: Any
) -> None:
    """A few hundred bytes that are more than a gigabyte as decoded."""
    path.parent.mkdir(exist_ok=True)
    table = pa.table(
        {
            "control": pa.DictionaryArray.from_arrays(
                pa.array([0] * rows, pa.int32()), pa.array(["x" * (mb << 20)])
            )
        }
    )
    size = 1 << 30
    pq.write_table(
        table,
        path,
        compression=compression,
        store_schema=False,
        dictionary_pagesize_limit=size,
        data_page_size=size,
        **more,
    )


def _in_lists(path: Path) -> None:
    """The same below the headers of a record."""
    path.parent.mkdir(exist_ok=True)
    names = pa.DictionaryArray.from_arrays(
        pa.array([0] * 300, pa.int32()), pa.array(["x" * (4 << 20)])
    )
    headers = pa.StructArray.from_arrays([names], ["key"])
    lists = pa.ListArray.from_arrays(pa.array([0, 300], pa.int32()), headers)
    pq.write_table(
        pa.table({"headers": lists}), path, compression="zstd", store_schema=False,
        dictionary_pagesize_limit=1 << 30, data_page_size=1 << 30,
    )  # fmt: skip


def _shared_beginnings(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(
        pa.table({"value": ["x" * 1_000] * 9}),
        path,
        use_dictionary=False,
        column_encoding={"value": "DELTA_BYTE_ARRAY"},
    )


def _varint(number: int, width: int = 1) -> bytes:
    """A number as Thrift writes it, with as many bytes as an honest one had."""
    number *= 2
    digits: list[int] = []
    while number or len(digits) < width:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes([*digits[:-1], digits[-1] & 127])


def _footer_begin(data: bytes) -> int:
    """Where the footer of a Parquet file begins."""
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def _claim(path: Path, before: int, after: int, at_least: int = 1) -> None:
    """Put another number into the footer."""
    data = path.read_bytes()
    begin = _footer_begin(data)
    old = _varint(before)
    assert data[begin:].count(old) >= at_least, f"{before} is not in the footer"
    path.write_bytes(data[:begin] + data[begin:].replace(old, _varint(after, len(old))))


def _modest(path: Path, mb: int = 4, pages: int = 3, **more: Any) -> None:
    """Long texts, each in a page of its own, of which the footer says 100 bytes. Hundreds of them
    would be gigabytes, and a hundred kilobytes as stored."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"value": pa.array(["x" * (mb << 20)])})
    options: dict[str, Any] = {"compression": "zstd", "use_dictionary": False, **more}
    with pq.ParquetWriter(path, table.schema, write_statistics=False, **options) as writer:
        for _ in range(pages):
            writer.write_table(table)
    group = pq.read_metadata(path).row_group(0)
    for size in {group.total_byte_size, group.column(0).total_uncompressed_size}:
        _claim(path, size, 100, pages)


def _modest_dictionary(path: Path, page: str) -> None:
    """A dictionary of which neither the sizes nor the encodings of the footer speak."""
    _texts(path, data_page_version=page)
    column = pq.read_metadata(path).row_group(0).column(0)
    assert set(column.encodings) == {"PLAIN", "RLE", "RLE_DICTIONARY"}
    data = path.read_bytes()
    begin = _footer_begin(data)
    # A list of three: PLAIN, RLE and RLE_DICTIONARY. The last one goes, and the length stays.
    encodings = b"\x35" + _varint(0) + _varint(3) + _varint(8)
    assert data[begin:].count(encodings) == 1
    plain = data[begin:].replace(encodings, b"\x35" + _varint(0) * 2 + _varint(3))
    path.write_bytes(data[:begin] + plain)
    assert set(pq.read_metadata(path).row_group(0).column(0).encodings) == {"PLAIN", "RLE"}


def _two_numbers_of_rows(path: Path) -> None:
    """A row group that has another number of rows than the file: readers go by either."""
    _rows(path, 100)
    data = path.read_bytes()
    begin = _footer_begin(data)
    group = data.rindex(_varint(100), begin)
    path.write_bytes(data[:group] + _varint(64) + data[group + 2 :])


def _in_page(path: Path, before: bytes, after: bytes) -> None:
    """An edit of the beginning of the first page, which is a dictionary's."""
    _rows(path, 100)
    data = path.read_bytes()
    end = len(b"PAR1") + len(before)
    assert data[:end] == b"PAR1" + before and len(before) == len(after)
    path.write_bytes(b"PAR1" + after + data[end:])


def _many_pages(path: Path) -> None:
    """A page for each value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"write_batch_size": 1, "data_page_size": 1, "use_dictionary": False}
    pq.write_table(pa.table({"offset": list(range(1_000))}), path, **options)


def _empty_pages(path: Path, inflated: int = 60_000, stored: int = 0, values: int = 1) -> None:
    """Headers of pages without end instead of a megabyte of values: each has some 20 bytes, and
    claims as many bytes and values as its author likes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"use_dictionary": False, "write_statistics": False}
    table = pa.table({"offset": [0] * 125_000})
    pq.write_table(table, path, compression="none", store_schema=False, **options)
    column = pq.read_metadata(path).row_group(0).column(0)
    # A page of values: its sizes, and within, values, PLAIN, and RLE twice.
    sizes = b"".join(b"\x15" + _varint(number) for number in (0, inflated, stored))
    header = sizes + b"\x2c\x15" + _varint(values) + b"\x15\x00\x15\x06\x15\x06\0\0"
    page = header + bytes(stored)
    begin, size = column.data_page_offset, column.total_compressed_size
    data = path.read_bytes()
    pages = (page * (size // len(page) + 1))[:size]
    path.write_bytes(data[:begin] + pages + data[begin + size :])


class _CountedFile(BytesIO):
    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        return super().read(size)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(200_000_000_000)


def _text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _footer(path: Path, column: Any = "long", metadata: Any = None, **more: Any) -> None:
    """A reading whose Spark schema knows a column of its own."""
    fields = [
        {"name": "partition", "type": "long", "nullable": True, "metadata": {}},
        {"name": "more", "type": column, "nullable": True, "metadata": metadata or {}, **more},
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    _keys(path, {SPARK_SCHEMA: schema.encode()})


def _keys(path: Path, keys: Mapping[bytes, bytes], values: pa.Array = WHOLE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"partition": WHOLE, "more": values})
    pq.write_table(table.replace_schema_metadata(keys), path)


NO_FILE = "which is no file of evidence"
DENSE = "Evidence is not so dense"
HARM: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "rows in a file of another name": (
        lambda at: _rows(at / READING / "part-bomb.bin"),
        f"holds {READING}/part-bomb.bin, {NO_FILE}",
    ),
    "rows in a file without an ending": (lambda at: _rows(at / READING / "more"), NO_FILE),
    "rows in a folder of a reading": (
        lambda at: _rows(at / READING / "partition=9" / PART),
        NO_FILE,
    ),
    "rows in upper case": (lambda at: _rows(at / READING / "PART-0.PARQUET"), NO_FILE),
    "an archive in the folder": (lambda at: _text(at / "inner.zip", "PK"), NO_FILE),
    "an archive in a reading": (lambda at: _text(at / READING / "part-0.zip", "PK"), NO_FILE),
    "a compressed table": (lambda at: _text(at / READING / "part-0.parquet.gz", "x"), NO_FILE),
    "another page": (lambda at: _text(at / "index.html", "<script>"), NO_FILE),
    "a module": (lambda at: _text(at / "psutil.py", "raise SystemExit(0)"), NO_FILE),
    "Rich's markup": (lambda at: _text(at / "a\\[" / "]", "x"), r"a\[/], which is no file"),
    "a control character": (lambda at: _text(at / "a\x1b[2K", "x"), r"'a\x1b[2K', which"),
    "texts in a dictionary": (lambda at: _texts(at / "sink-raw_log.parquet"), DENSE),
    "texts in a dictionary by gzip": (
        lambda at: _texts(at / "sink-polled.parquet", compression="gzip"),
        DENSE,
    ),
    "texts in a dictionary by brotli": (
        lambda at: _texts(at / "findings.parquet", compression="brotli"),
        DENSE,
    ),
    "texts in a dictionary of a reading": (lambda at: _texts(at / READING / PART), DENSE),
    "texts in a dictionary of an intermediate result": (
        lambda at: _texts(at / "ledger" / "x.parquet"),
        DENSE,
    ),
    "texts in the lists of a reading": (lambda at: _in_lists(at / READING / PART), DENSE),
    "texts that share their beginnings": (
        lambda at: _shared_beginnings(at / READING / PART),
        "the encoding DELTA_BYTE_ARRAY, which evidence never has",
    ),
    "a table that is none": (lambda at: _text(at / READING / PART, "PAR1" * 9), "cannot be read"),
    "pages of which the footer says less": (
        lambda at: _modest(at / "sink-polled.parquet"),
        "its footer has other sizes than its pages",
    ),
    "pages of version 2 of which the footer says less": (
        lambda at: _modest(at / READING / PART, data_page_version="2.0"),
        "its footer has other sizes than its pages",
    ),
    "a dictionary of which the footer says nothing": (
        lambda at: _modest_dictionary(at / "sink-raw_log.parquet", "1.0"),
        DENSE,
    ),
    "a dictionary beside pages of version 2": (
        lambda at: _modest_dictionary(at / "source-read_committed-words.parquet", "2.0"),
        DENSE,
    ),
    "rows of which the footer says less": (
        lambda at: _two_numbers_of_rows(at / READING / PART),
        "its footer has two numbers of rows",
    ),
    "many small pages": (
        lambda at: _many_pages(at / COUNTS),
        "a column has more pages than evidence ever has",
    ),
    "pages that are stored in no byte": (
        lambda at: _empty_pages(at / "findings.parquet"),
        "a page of 60,000 bytes is stored in 0. Evidence is not so dense",
    ),
    "a page of another kind": (
        lambda at: _in_page(at / COUNTS, b"\x15\x04", b"\x15\x02"),
        "a page is of no known kind",
    ),
    "a page whose kind is a list": (
        lambda at: _in_page(at / COUNTS, b"\x15\x04", b"\x19\x04"),
        "the header of a page is not plain",
    ),
    "many columns": (
        lambda at: pq.write_table(
            pa.table({str(number): [1] for number in range(101)}), at / "sink-raw_log.parquet"
        ),
        "101 columns; 100 are allowed",
    ),
    "SQL as the default of a column": (
        lambda at: _footer(at / COUNTS, metadata={"EXISTS_DEFAULT": "reflect('a.B', 'c')"}),
        "a column of Spark's schema in its footer has more than a name and a type",
    ),
    "SQL in the findings": (
        lambda at: _footer(at / "findings.parquet", metadata={"CURRENT_DEFAULT": "6 * 7"}),
        "has more than a name and a type",
    ),
    "a class that Spark loads": (
        lambda at: _footer(at / READING / PART, {"type": "udt", "class": "a.B", "sqlType": "long"}),
        "Spark's schema in its footer has a type that evidence never has",
    ),
    "a class in a list": (
        lambda at: _footer(
            at / "ledger" / "x.parquet",
            {"type": "array", "elementType": {"type": "udt"}, "containsNull": True},
        ),
        "has a type that evidence never has",
    ),
    "another type for Spark": (
        lambda at: _footer(at / COUNTS, "string"),
        "Spark's schema in its footer is not that of its columns",
    ),
    "more of a column": (
        lambda at: _footer(at / COUNTS, default="6 * 7"),
        "has more than a name and a type",
    ),
    "no Spark schema": (lambda at: _keys(at / COUNTS, {SPARK_SCHEMA: b"{"}), "cannot be read"),
    "a nested Spark schema": (
        lambda at: _keys(at / COUNTS, {SPARK_SCHEMA: b'{"a":' * 100_000}),
        "nested too deeply",
    ),
    "settings of pandas": (
        lambda at: _keys(at / "sink-polled.parquet", {b"pandas": b"{}"}),
        "its footer has the key b'pandas', which evidence never has",
    ),
    "a time zone for Spark": (
        lambda at: _keys(at / READING / PART, {b"org.apache.spark.timeZone": b"../x"}),
        "which evidence never has",
    ),
    "a type that pyarrow knows by name": (
        lambda at: _keys(
            at / "sink-raw_log.parquet",
            {},
            pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", "{}"])),
        ),
        "type extension<arrow.json>, which evidence never has",
    ),
    "schemas without end": (
        lambda at: _text(at / "schemas.json", "x" * (read_limits.TEXT_BYTES_MAX + 1)),
        "50,000,001 bytes; 50,000,000 are allowed",
    ),
    "a sparse file": (lambda at: _sparse(at / "journal.jsonl"), "100,000,000,000 are allowed"),
    "a link": (lambda at: (at / "schemas.json").symlink_to("/etc/passwd"), "schemas.json"),
    "a pipe": (lambda at: os.mkfifo(at / "schemas.json"), "schemas.json"),
}


@pytest.mark.parametrize("what", HARM)
def test_a_folder_over_a_limit_is_refused_before_it_is_decoded(what: str, folder: Path) -> None:
    """Story: a folder from a stranger, whose manifest lists all that is in it. One sentence names
    the file, and no row is decoded."""
    harm, says = HARM[what]
    harm(folder)
    if what != "a sparse file":
        mend(folder)
    if what in ("a link", "a pipe"):
        answer = unchanged(folder)
        assert [one.file for one in answer.differences] == [says] and answer.exit_code == 4
        return
    with pytest.raises(EvidenceError) as error:
        unchanged(folder)
    assert says in str(error.value) and str(error.value).isprintable()


@pytest.mark.parametrize(
    ("page", "budget", "says", "pages"),
    [
        ((60_000, 0, 1), 100_000, "a page of 60,000 bytes is stored in 0", 1),
        ((60_000, 30, 1), 100_000, "its footer has other sizes than its pages", 17),
        ((30, 30, 20_000), 100_000, "are not those of its footer", 7),
        ((0, 0, 0), 100_000, "more pages than evidence ever has", 11),
        ((30, 30, 600), 50, "more pages and columns than evidence of its size ever has", 50),
    ],
)
def test_pages_are_refused_as_soon_as_they_exceed_their_footer(
    page: tuple[int, int, int], budget: int, says: str, pages: int, tmp_path: Path
) -> None:
    """Story: a column of 50,000 headers, of which each claims another page. Reading ends after the
    first ones, and reads no more than a header of each."""
    path = tmp_path / "a.parquet"
    _empty_pages(path, *page)
    file = _CountedFile(path.read_bytes())
    column = pq.read_metadata(path).row_group(0).column(0)
    with pytest.raises(ValueError, match=says):
        read_pages(file, column, path.stat().st_size, PageBudget(budget))
    assert file.reads == pages


def test_columns_without_a_page_are_counted_before_they_are_read(tmp_path: Path) -> None:
    """Story: a footer of row groups without rows, which no page belongs to."""
    path = tmp_path / "a.parquet"
    table = pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.int64())})
    with pq.ParquetWriter(path, table.schema) as writer:
        for _ in range(10):
            writer.write_table(table)
    footer = pq.read_metadata(path)
    assert decoded_bytes(path, PageBudget(4 * footer.num_row_groups)) < 1_000
    with pytest.raises(EvidenceError, match="more pages and columns than evidence"):
        decoded_bytes(path, PageBudget(2 * footer.num_row_groups - 1))


def test_what_topicproof_writes_is_within_the_limits(folder: Path) -> None:
    for name in (f"{READING}/{PART}", "ledger/sink/part-0.parquet", "source-packs/heads.parquet"):
        (folder / name).parent.mkdir(parents=True)
        _rows(folder / name)
    _text(folder / READING / "_SUCCESS", "")
    _text(folder / READING / "._SUCCESS.crc", "crc")
    _text(folder / READING / f".{PART}.crc", "crc")
    mend(folder)
    require_readable(folder)
    assert unchanged(folder).differences == ()


@pytest.mark.parametrize("rows", [0, 1, 70_000])
def test_the_size_as_decoded_is_that_in_memory(rows: int, tmp_path: Path) -> None:
    """Story: texts in dictionaries, in lists and without either. What is counted is at least what
    the table takes, and not much more."""
    texts = [f"text {number % 7}" * 9 if number % 3 else None for number in range(rows)]
    lists = [[{"key": text, "value": b"v"}] if text else None for text in texts]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = pa.table({"a": pa.array(texts, pa.string()), "b": pa.array(lists, kind)})
    pq.write_table(table, tmp_path / "a.parquet")
    counted = decoded_bytes(tmp_path / "a.parquet")
    texts_bytes = sum(len(text or "") for text in texts) * 2
    assert texts_bytes <= counted <= 2 * texts_bytes + 40 * rows + 1_000
    assert read_table(tmp_path / "a.parquet", "ab").num_rows == rows
    assert read_table(tmp_path / "a.parquet", "bc").column_names == ["b"]


def test_rows_are_counted_in_every_file_that_spark_reads(tmp_path: Path) -> None:
    """Story: Spark reads each file whose name begins with neither `_` nor `.`, whatever its end."""
    _rows(tmp_path / READING / PART, 1_500)
    require_rows(tmp_path / READING, 250)
    with pytest.raises(EvidenceError, match="has 1,500 rows, and its range has 249 offsets"):
        require_rows(tmp_path / READING, 249)
    _rows(tmp_path / READING / "part-bomb.bin", 1)
    with pytest.raises(EvidenceError, match=r"holds part-bomb\.bin, which is no file of evidence"):
        require_rows(tmp_path / READING, 250)


def test_one_budget_is_spent_by_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(tmp_path, 10)
    budget.spend(tmp_path / "a", 6)
    with pytest.raises(EvidenceError, match="as decoded, with b"):
        budget.spend(tmp_path / "b", 6)
    folder = made(tmp_path / "evidence")
    monkeypatch.setattr(read_limits, "FILES_MAX", 2)
    with pytest.raises(EvidenceError, match="more than 2 files"):
        require_readable(folder)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a": 1, "a": 2}', "a name twice"),
        ('{"b": [{"a": 1, "a": 1}]}', "a name twice"),
        ('"\\ud800"', "surrogates"),
    ],
)
def test_json_that_no_two_readers_agree_on_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_json(text)


def test_the_values_of_a_document_are_counted_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(read_limits, "JSON_VALUES_MAX", 9)
    assert parse_json(json.dumps([0] * 9)) == [0] * 9
    with pytest.raises(ValueError, match="10 values; 9 are allowed"):
        parse_json(json.dumps([0] * 10).encode())


def test_a_journal_is_read_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"a\n\nb")
    assert list(read_lines(path)) == [b"a", b"", b"b"]
    monkeypatch.setattr(read_limits, "JOURNAL_LINES_MAX", 2)
    with pytest.raises(EvidenceError, match="more than 2 lines"):
        list(read_lines(path))


def test_names_are_shown_plainly() -> None:
    assert plain_name("a\\[/]") == "a\\[/]"
    assert plain_name("a\x1b[2K\u202e") == "'a\\x1b[2K\\u202e'"
    assert len(plain_name("x" * 1_000)) == 80
