"""Limits on evidence that comes from elsewhere. Every file in it may be hostile.

All reading of a received folder goes through this module. `require_readable` looks at every file
once, before anything is decoded: only files that Topicproof writes may be there, with footers as
Topicproof writes them (footers.py) and pages as these footers say (page_headers.py), and together
they may take only so many bytes as decoded. The other functions read one file each, within its
limit.

A limit is far above what Topicproof writes. Each has a name here, and its message tells the figure.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from topicproof.backend.errors import EvidenceError
from topicproof.backend.evidence.footers import SPARK_SCHEMA, require_plain_footer
from topicproof.backend.evidence.page_headers import PageBudget, read_pages

FILES_MAX = 100_000
"""Files of a folder or a zip file."""
TEXT_BYTES_MAX = 50_000_000
"""A file that is read into memory as text: manifest, report, question, plan, contract."""
JSON_VALUES_MAX = 5_000_000
"""Values of a JSON document, which take some 100 bytes each as decoded."""
JOURNAL_BYTES_MAX = 1_000_000_000
JOURNAL_LINES_MAX = 5_000_000
"""Each becomes an entry of some 500 bytes."""
RENDERED_BYTES_MAX = 10_000_000_000
"""A file that is compared and never decoded: the page, the JUnit file, the findings as CSV."""
TABLE_BYTES_MAX = 8_000_000_000
"""A table that is read into memory, as decoded."""
UNPACKED_BYTES_MAX = 100_000_000_000
"""All files of a folder, or of a zip file after decompression."""
DECODED_BYTES_MAX = 400_000_000_000
"""All rows of a folder, as decoded. Spark reads most of them, and keeps few in memory."""
DECODED_FREE_BYTES = 1_000_000_000
"""What a Parquet file may always hold as decoded, however small it is."""
EXPANSION_MAX = 200
"""Bytes as decoded for each byte of a larger Parquet file. Ours have at most some 60: each row has
an offset of its own."""
COLUMNS_MAX = 100
VALUE_BYTES = 8
"""The least that a value takes in memory."""
BATCH_ROWS = 65_536
OFFSETS_MAX = 100_000_000_000
"""Offsets of the judged range."""
ROWS_PER_OFFSET_MAX = 2
"""Rows of a reading for each offset of its range: a record has an offset to itself."""
ROWS_FREE = 1_000
"""Rows that a reading may always have."""
ENCODINGS = frozenset({"PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"})
"""Those that Spark and Arrow write. Others share beginnings of values, so their sizes tell less."""

TEXTS = frozenset(
    {
        *("manifest.json", "original-manifest.json", "attestation.intoto.json", "signoffs.json"),
        *("report.json", "plan.json", "contract.yaml", "taken.json", "schemas.json"),
    }
)
RENDERED = frozenset({"report.html", "junit.xml", "findings.csv"})
JOURNAL = "journal.jsonl"
TABLES = frozenset(
    {
        *("findings.parquet", "sink-raw_log.parquet", "source-raw_log.parquet"),
        *("sink-polled.parquet", "sink-read_committed-words.parquet"),
        *("sink-read_uncommitted-pieces.parquet", "source-read_committed-words.parquet"),
    }
)
# Earlier versions kept the positions of packed lineage, too. Their files can still be hashed.
_FOLDERS = "sink-read_(un)?committed|source-(read_committed|aborted|pending)|expected-counts"
_PART = re.compile(r"part-[A-Za-z0-9._-]{1,200}\.parquet")
_PARTS = re.compile(
    rf"(({_FOLDERS})/{_PART.pattern}|(sink|source)-packs/(heads|segments|lost)\.parquet"
    r"|ledger/([A-Za-z0-9_-]{1,100}/){0,3}[A-Za-z0-9_][A-Za-z0-9._-]{0,200}\.parquet)"
)
_BESIDE = re.compile(
    rf"({_FOLDERS}|ledger(/[A-Za-z0-9_-]{{1,100}}){{0,3}}|(sink|source)-packs)"
    r"/(_SUCCESS|\.[A-Za-z0-9._-]{1,220}\.crc)"
)
"""What Spark leaves beside its files. It reads none of these again."""
NAME_SHOWN = 80


@dataclass
class Budget:
    """The bytes that the files of a folder may still take as decoded."""

    folder: Path
    left: int = DECODED_BYTES_MAX

    def spend(self, path: Path, count: int) -> None:
        """Raises EvidenceError if so many bytes are not left."""
        self.left -= count
        if self.left < 0:
            raise EvidenceError(
                f"{self.folder} takes more than {DECODED_BYTES_MAX:,} bytes as decoded, with"
                f" {plain_name(path.relative_to(self.folder).as_posix())}. Evidence takes less, so"
                " it is not read."
            )


def plain_name(name: str) -> str:
    """Return the name of a file without anything that a terminal would obey."""
    short = name if len(name) <= NAME_SHOWN else f"{name[: NAME_SHOWN - 1]}…"
    return short if short.isprintable() else ascii(short)


def plain_file(path: Path) -> bool:
    """Return whether this is a file itself: no link, no pipe, no device."""
    return stat.S_ISREG(path.lstat().st_mode)


def require_inside(folder: Path) -> None:
    """Check that everything in the folder lies in it. Raises EvidenceError for links, pipes and
    devices, and for too many files."""
    for path in _everything(folder):
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise EvidenceError(
                f"{plain_name(str(path))} is a link or a device. Evidence has only files of its"
                " own, so it is not read."
            )


def require_size(folder: Path) -> int:
    """Check the number and the size of the files, before they are hashed. Return their bytes.
    Raises EvidenceError."""
    size = sum(path.lstat().st_size for path in _everything(folder))
    if size > UNPACKED_BYTES_MAX:
        raise EvidenceError(
            f"{folder} has {size:,} bytes; {UNPACKED_BYTES_MAX:,} are allowed. Evidence has fewer,"
            " so it is not read."
        )
    return size


def require_readable(folder: Path) -> None:
    """Check every file of a received folder before any is decoded: its name, its size, and what its
    rows take as decoded. Raises EvidenceError in one sentence, OSError."""
    pages = PageBudget.of_bytes(require_size(folder))
    require_inside(folder)
    budget = Budget(folder)
    for path in _everything(folder):
        if path.is_dir():
            continue
        name = path.relative_to(folder).as_posix()
        size = path.lstat().st_size
        if name in TABLES or _PARTS.fullmatch(name):
            if size:
                budget.spend(path, decoded_bytes(path, pages))
        elif name in TEXTS or name in RENDERED or name == JOURNAL or _BESIDE.fullmatch(name):
            require_length(path, size, _length_max(name))
            budget.spend(path, size)
        else:
            raise EvidenceError(
                f"{folder} holds {plain_name(name)}, which is no file of evidence. Remove it, or"
                " ask for the evidence again."
            )


def is_evidence_file(name: str) -> bool:
    """Return whether Topicproof writes a file of this name, by its path in a folder of evidence."""
    texts = TEXTS | RENDERED | TABLES | {JOURNAL}
    return name in texts or bool(_PARTS.fullmatch(name) or _BESIDE.fullmatch(name))


def _length_max(name: str) -> int:
    if name in RENDERED:
        return RENDERED_BYTES_MAX
    return JOURNAL_BYTES_MAX if name == JOURNAL else TEXT_BYTES_MAX


def _everything(folder: Path) -> Iterator[Path]:
    for count, path in enumerate(folder.rglob("*"), start=1):
        if count > FILES_MAX:
            raise EvidenceError(f"{folder} has more than {FILES_MAX:,} files; evidence has fewer.")
        yield path


def require_length(path: Path, size: int, bytes_max: int) -> None:
    """Raises EvidenceError for a file that is longer than it may be."""
    if size > bytes_max:
        name = plain_name(str(path))
        raise EvidenceError(f"{name} has {size:,} bytes; {bytes_max:,} are allowed.")


def _require_plain(path: Path) -> None:
    if not plain_file(path):
        raise EvidenceError(f"{plain_name(str(path))} is not a plain file, so it is not read.")


def read_bytes(path: Path, bytes_max: int = TEXT_BYTES_MAX) -> bytes:
    """Read a whole file. Raises EvidenceError if it is too large or no plain file, OSError."""
    _require_plain(path)
    # What replaces it meanwhile may be a pipe, which must not wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(bytes_max + 1)
    require_length(path, max(len(data), path.stat().st_size), bytes_max)
    return data


def read_lines(path: Path) -> Iterator[bytes]:
    """Read a journal line by line. Raises EvidenceError if it is too long or no plain file,
    OSError."""
    _require_plain(path)
    require_length(path, path.stat().st_size, JOURNAL_BYTES_MAX)
    with path.open("rb") as file:
        for count, line in enumerate(file, start=1):
            if count > JOURNAL_LINES_MAX:
                raise EvidenceError(
                    f"{path} has more than {JOURNAL_LINES_MAX:,} lines; a journal has fewer."
                )
            yield line.rstrip(b"\n")


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises EvidenceError, OSError, and ValueError if it is not JSON."""
    return parse_json(read_bytes(path))


def read_json_text(path: Path) -> str:
    """Read the text of a JSON file for another parser. Raises as `read_json`."""
    data = read_bytes(path)
    parse_json(data)
    return data.decode()


def parse_json(text: bytes | str) -> Any:
    """Parse JSON. Raises ValueError, also for a document that is nested too deeply, holds too many
    values or a name twice, and for half of a surrogate pair, which cannot be written again."""
    data = text.encode(errors="replace") if isinstance(text, str) else text
    values = sum(data.count(mark) for mark in (b",", b"[", b"{"))
    if values > JSON_VALUES_MAX:
        raise ValueError(f"it holds {values:,} values; {JSON_VALUES_MAX:,} are allowed")
    try:
        document = json.loads(text, object_pairs_hook=_once_each)
        json.dumps(document, ensure_ascii=False).encode()
        return document
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("it holds a name twice, and readers may take either")
    return fields


def read_table(path: Path, columns: Collection[str]) -> pa.Table:
    """Read those of these columns that a table has into memory. Raises EvidenceError if the file
    would take too much; OSError, ArrowException."""
    size = decoded_bytes(path)
    if size > TABLE_BYTES_MAX:
        raise EvidenceError(
            f"{path} takes {size:,} bytes in memory; {TABLE_BYTES_MAX:,} are allowed."
        )
    names = [name for name in pq.read_schema(path).names if name in columns]
    return pq.read_table(path, columns=names)


def decoded_bytes(path: Path, pages: PageBudget | None = None) -> int:
    """Return how many bytes the rows of a Parquet file take as decoded, reading no value more than
    once. The sizes in its footer are what its author wrote there, and those of its pages are before
    dictionaries: 400 bytes may be gigabytes. `pages`: those that all files of its folder may have.

    Raises EvidenceError if they are out of proportion or it is no Parquet file of ours; OSError.
    """
    _require_plain(path)
    stored = path.stat().st_size
    allowed = max(DECODED_FREE_BYTES, EXPANSION_MAX * stored)
    try:
        footer = pq.read_metadata(path)
        _require_plain_footer(path, footer)
        size, dictionaries = _size_of_pages(
            path, footer, pages or PageBudget.of_bytes(stored), allowed
        )
        _require_proportion(path, size, allowed)
        for column in dictionaries:
            size += _size_of_texts(path, column, allowed - size)
            _require_proportion(path, size, allowed)
    except (pa.ArrowException, ValueError, OverflowError, RecursionError) as error:
        why = plain_name(str(error).partition("\n")[0])
        raise EvidenceError(f"{plain_name(str(path))} cannot be read: {why}") from error
    return size


def _require_plain_footer(path: Path, footer: pq.FileMetaData) -> None:
    """Raises as `require_plain_footer`, EvidenceError for too many columns."""
    if footer.num_columns > COLUMNS_MAX:
        raise EvidenceError(
            f"{path} has {footer.num_columns:,} columns; {COLUMNS_MAX} are allowed."
        )
    text = (footer.metadata or {}).get(SPARK_SCHEMA)
    require_plain_footer(footer, None if text is None else parse_json(text))


def _require_proportion(path: Path, size: int, allowed: int) -> None:
    if size > allowed:
        raise EvidenceError(
            f"{plain_name(str(path))} takes more than {allowed:,} bytes as decoded, and has"
            f" {path.stat().st_size:,}. Evidence is not so dense, so it is not read."
        )


def _size_of_pages(
    path: Path, footer: pq.FileMetaData, budget: PageBudget, allowed: int
) -> tuple[int, set[str]]:
    """Return the bytes of all values but those of texts in dictionaries, and the columns with
    such. Raises ValueError if the pages are not what the footer says, by which Spark plans its
    reading: how many rows there are, and how large they become. Raises EvidenceError above
    `allowed`. Ends at the first column that is not as it should be."""
    # A footer names millions of columns that have no page.
    budget.spend(footer.num_row_groups * max(1, footer.num_columns))
    size, dictionaries, rows = 0, set(), _rows_of(footer)
    with path.open("rb") as file:
        end = os.fstat(file.fileno()).st_size
        for group in (footer.row_group(at) for at in range(footer.num_row_groups)):
            inflated = 0
            for column in (group.column(at) for at in range(group.num_columns)):
                # What the footer claims first: the pages may not exceed it as they are read.
                claimed = max(VALUE_BYTES * column.num_values, column.total_uncompressed_size)
                _require_proportion(path, size + claimed, allowed)
                pages = read_pages(file, column, end, budget)
                inflated += pages.size
                if pages.size != column.total_uncompressed_size or pages.values < group.num_rows:
                    raise ValueError("its footer has other sizes than its pages")
                encodings = pages.encodings | set(column.encodings)
                texts = column.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
                if texts and not encodings <= ENCODINGS:
                    names = ", ".join(sorted(encodings - ENCODINGS))
                    raise EvidenceError(
                        f"{path} has the encoding {names}, which evidence never has."
                    )
                size += max(VALUE_BYTES * pages.values, pages.size, column.total_compressed_size)
                if texts and any("DICTIONARY" in name for name in encodings):
                    dictionaries.add(column.path_in_schema)
            if group.total_byte_size < inflated:
                raise ValueError("its footer has other sizes than its pages")
    return max(size, VALUE_BYTES * rows), dictionaries


def _rows_of(footer: pq.FileMetaData) -> int:
    """Return the number of rows. Raises ValueError if readers may count another one."""
    rows: list[int] = [footer.row_group(at).num_rows for at in range(footer.num_row_groups)]
    if sum(rows) != footer.num_rows or min(rows, default=0) < 0:
        raise ValueError("its footer has two numbers of rows")
    return sum(rows)


def _size_of_texts(path: Path, column: str, allowed: int) -> int:
    """Return the bytes of a column's texts, from their dictionaries: no text is repeated in memory
    for it. Ends early above `allowed`."""
    size = 0
    with pq.ParquetFile(path, read_dictionary=[column]) as file:
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=[column]):
            size += sum(map(_size_of_leaves, batch.columns))
            if size > allowed:
                break
    return size


def _size_of_leaves(values: pa.Array) -> int:
    if pa.types.is_dictionary(values.type):
        lengths = pc.binary_length(values.dictionary).cast(pa.int64())
        return int(pc.sum(lengths.take(values.indices)).as_py() or 0)
    if pa.types.is_struct(values.type):
        return sum(map(_size_of_leaves, values.flatten()))
    if pa.types.is_list(values.type) or pa.types.is_map(values.type):
        return _size_of_leaves(values.values)
    return int(values.nbytes)


def require_rows(reading: Path, offsets: int) -> None:
    """Check that a reading has only files of Spark, and no more rows than its range has offsets: a
    few bytes of Parquet can hold billions of equal rows. Spark reads every file whose name begins
    with neither `_` nor `.`. Raises EvidenceError, OSError, ValueError, ArrowException."""
    rows = 0
    for path in _everything(reading):
        if path.is_dir() or _PART.fullmatch(path.name):
            rows += 0 if path.is_dir() else _rows_of(pq.read_metadata(path))
            if rows > ROWS_PER_OFFSET_MAX * offsets + ROWS_FREE:
                raise EvidenceError(
                    f"{reading} has {rows:,} rows, and its range has {offsets:,} offsets."
                )
        elif not path.name.startswith(("_", ".")):
            raise EvidenceError(
                f"{reading} holds {plain_name(path.name)}, which is no file of evidence."
            )
