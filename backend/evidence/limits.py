"""Limits on evidence that comes from elsewhere. Every file in it may be hostile.

A limit is far above what Topicproof writes. Each has a name here, and its message tells the figure.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from topicproof.backend.errors import EvidenceError

FILES_MAX = 100_000
"""Files of a folder or a zip file."""
TEXT_BYTES_MAX = 50_000_000
"""A file that is read into memory as text: manifest, report, question, plan, contract."""
JOURNAL_BYTES_MAX = 1_000_000_000
TABLE_BYTES_MAX = 8_000_000_000
"""A table that is read into memory, by its rows and columns after decompression."""
UNPACKED_BYTES_MAX = 100_000_000_000
"""All files of a zip file after decompression."""
OFFSETS_MAX = 100_000_000_000
"""Offsets of the judged range."""
ROWS_PER_OFFSET_MAX = 2
"""Rows of a reading for each offset of its range: a record has an offset to itself."""
ROWS_FREE = 1_000
"""Rows that a reading may always have."""


def plain_file(path: Path) -> bool:
    """Return whether this is a file itself: no link, no pipe, no device."""
    return stat.S_ISREG(path.lstat().st_mode)


def require_inside(folder: Path) -> None:
    """Check that everything in the folder lies in it. Raises EvidenceError for links, pipes and
    devices, and for too many files."""
    for count, path in enumerate(folder.rglob("*"), start=1):
        if count > FILES_MAX:
            raise EvidenceError(f"{folder} has more than {FILES_MAX:,} files; evidence has fewer.")
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise EvidenceError(
                f"{path} is a link or a device. Evidence has only files of its own, so it is not"
                " read."
            )


def read_bytes(path: Path, bytes_max: int = TEXT_BYTES_MAX) -> bytes:
    """Read a whole file. Raises EvidenceError if it is too large or no plain file, OSError."""
    if not plain_file(path):
        raise EvidenceError(f"{path} is not a plain file, so it is not read.")
    size = path.stat().st_size
    if size > bytes_max:
        raise EvidenceError(f"{path} has {size:,} bytes; {bytes_max:,} are allowed.")
    return path.read_bytes()


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises EvidenceError, OSError, and ValueError if it is not JSON."""
    return parse_json(read_bytes(path))


def parse_json(text: bytes | str) -> Any:
    """Parse JSON. Raises ValueError, also for a document that is nested too deeply, and for half of
    a surrogate pair, which cannot be written again."""
    try:
        found = json.loads(text, object_pairs_hook=_once_each)
        json.dumps(found, ensure_ascii=False).encode()
        return found
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("it holds a name twice, and readers may take either")
    return fields


def read_table(path: Path) -> pa.Table:
    """Read a table into memory. Raises EvidenceError if it would take too much; OSError,
    ArrowException."""
    if not plain_file(path):
        raise EvidenceError(f"{path} is not a plain file, so it is not read.")
    footer = pq.read_metadata(path)
    size = footer.num_rows * footer.num_columns * 8
    groups = (footer.row_group(at).total_byte_size for at in range(footer.num_row_groups))
    size = max(size, sum(groups))
    if size > TABLE_BYTES_MAX:
        raise EvidenceError(
            f"{path} takes {size:,} bytes in memory; {TABLE_BYTES_MAX:,} are allowed."
        )
    return pq.read_table(path)


def require_rows(reading: Path, offsets: int) -> None:
    """Check that a reading has no more rows than its range has offsets: a few bytes of Parquet can
    hold billions of equal rows. Raises EvidenceError, OSError, ArrowException."""
    rows = sum(pq.read_metadata(part).num_rows for part in reading.rglob("*.parquet"))
    if rows > ROWS_PER_OFFSET_MAX * offsets + ROWS_FREE:
        raise EvidenceError(f"{reading} has {rows:,} rows, and its range has {offsets:,} offsets.")
