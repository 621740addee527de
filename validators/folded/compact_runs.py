"""The lineage of many records, read from their binary headers (validators/lineage/compact.py).

Headers of one source partition and one transaction differ only in the offset, which has a fixed
place. So each run of records that are alike in everything else is parsed once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from topicproof.validators.lineage.compact import BYTES_MAX, OFFSET_AT, PLACE_BYTES, parse_compact
from topicproof.validators.lineage.headers import (
    Lineage,
    format_lineage,
    format_transaction,
    parse_lineage,
)

OFFSET_END = OFFSET_AT + 8
SLICE_BYTES = 2**22
"""Bytes of headers that are compared at once. Comparing takes up to eight times as many."""
ORIGIN_PARTS = 5
"""Parts of an origin with a topic id. Text in a header has one less, so nobody else writes one."""

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class NamedRecords(NamedTuple):
    """Where the records of a batch come from, and the transactions that they name."""

    origin: Ints
    """Index into `origins`; -1 if none is known."""
    at: Ints
    """Offset of the input."""
    origins: list[bytes]
    """Lineage with offset 0, and the topic id if there is one, as text."""
    name: Ints
    """Index into `names`; -1 if none is known."""
    names: list[bytes]
    """Transactions, as text."""


def with_compact(records: NamedRecords, headers: pa.BinaryArray, lone: pa.Array) -> NamedRecords:
    """Adds what binary headers name. `headers`: null if a record has none. `lone`: whether a record
    has no other header of ours; otherwise nothing is known of it here."""
    origin, at, name = records.origin.copy(), records.at.copy(), records.name.copy()
    origins = {text: number for number, text in enumerate(records.origins)}
    names = list(records.names)
    codes: dict[bytes, tuple[int, int]] = {}
    present = np.asarray(headers.is_valid(), bool)
    origin[present] = name[present] = -1
    rows = np.flatnonzero(present & np.asarray(lone, bool))
    for same_length, matrix in _by_length(headers, rows):
        at[same_length] = np.ascontiguousarray(matrix[:, OFFSET_AT:OFFSET_END]).view(">i8")[:, 0]
        begins = _begins(matrix)
        pairs = [_code(matrix[row].tobytes(), codes, origins, names) for row in begins.tolist()]
        widths = np.diff(np.append(begins, len(matrix)))
        origin[same_length], name[same_length] = np.repeat(np.array(pairs), widths, axis=0).T
    negative = present & (at < 0)
    origin[negative], at[negative] = -1, 0
    return NamedRecords(origin, at, list(origins), name, names)


def parse_origin(text: bytes) -> tuple[Lineage, str | None] | None:
    """Parses one of `NamedRecords.origins`: lineage, and topic id if there is one. None if it is
    not valid."""
    parts = text.split(b"/")
    if len(parts) != ORIGIN_PARTS:
        lineage = parse_lineage(text)
        return None if lineage is None else (lineage, None)
    lineage = parse_lineage(b"/".join(parts[:-1]))
    topic_id = parts[-1].decode(errors="replace")
    return None if lineage is None else (lineage, topic_id)


def _by_length(headers: pa.BinaryArray, rows: Ints) -> Iterator[tuple[Ints, Bytes]]:
    """Yields rows of one length of header, with one line of bytes for each, in slices of
    `SLICE_BYTES`. Headers that are too short or too long are left out."""
    if not rows.size:
        return
    _, places, data = headers.buffers()
    begin, end = headers.offset, headers.offset + len(headers) + 1
    offsets = np.frombuffer(places, np.int32)[begin:end].astype(np.int64)
    content = np.frombuffer(data, np.uint8)
    first, lengths = offsets[rows], (offsets[1:] - offsets[:-1])[rows]
    # Most batches have headers of one length, and finding all lengths takes as long as the rest.
    different = lengths[:1] if (lengths == lengths[0]).all() else np.unique(lengths)
    for length in different.tolist():
        if not PLACE_BYTES <= length <= BYTES_MAX:
            continue
        of_length = np.flatnonzero(lengths == length)
        at_once = max(1, SLICE_BYTES // length)
        for begin in range(0, of_length.size, at_once):
            chosen = of_length[begin : begin + at_once]
            starts = first[chosen]
            if (np.diff(starts) == length).all():
                matrix = content[starts[0] : starts[0] + starts.size * length].reshape(-1, length)
            else:
                matrix = content[starts[:, None] + np.arange(length)]
            yield rows[chosen], matrix


def _begins(matrix: Bytes) -> Ints:
    """Returns the rows that differ from the previous row in more than the offset."""
    differs = matrix[1:] != matrix[:-1]
    differs[:, OFFSET_AT:OFFSET_END] = False
    # Most rows differ in nothing: their bytes are passed over, not added up row by row.
    rows = np.unique(np.flatnonzero(differs) // matrix.shape[1])
    return np.concatenate(([0], rows + 1))


def _code(
    header: bytes,
    codes: dict[bytes, tuple[int, int]],
    origins: dict[bytes, int],
    names: list[bytes],
) -> tuple[int, int]:
    """Returns the indices of a header's origin and transaction; -1 for what it does not name."""
    alike = header[:OFFSET_AT] + bytes(8) + header[OFFSET_END:]
    code = codes.get(alike)
    if code is None:
        code = codes[alike] = _new_code(alike, origins, names)
    return code


def _new_code(header: bytes, origins: dict[bytes, int], names: list[bytes]) -> tuple[int, int]:
    content = parse_compact(header)
    if content is None:
        return -1, -1
    topic_id = () if content.topic_id is None else (content.topic_id.encode(),)
    origin = b"/".join((format_lineage(content.lineage), *topic_id))
    number = origins.setdefault(origin, len(origins))
    if content.transaction is None:
        return number, -1
    names.append(format_transaction(content.transaction))
    return number, len(names) - 1
