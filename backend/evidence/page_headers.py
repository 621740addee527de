"""What the pages of a Parquet file hold, by their own headers.

The sizes in a footer are what its author wrote there, and no reader decodes by them: each page has
a header in front of it, which says how large the page becomes and how its values are encoded
(parquet-format, `PageHeader`, in Thrift's compact protocol). Headers are read without any value.

Pages claim sizes and numbers of values, too. So each is held against the footer as it is read, and
what the reading takes is bounded by the bytes of the files (`PageBudget`): 100 kB of a zip file can
be millions of pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import pyarrow.parquet as pq

HEADER_BYTES, HEADER_BYTES_MAX = 100, 32_768
"""Most headers are short. Writers leave out statistics of more than 4,096 bytes, of which a header
has four."""
HEADER_FIELDS_MAX = 40
"""A header has 24 fields at most, with those of its statistics."""
PAGE_EXPANSION_MAX = 4_000
"""Bytes of a page for each byte that is stored of it. Snappy, which evidence is written with, gets
to 21, gzip to 1,032."""
BUDGET_FREE, BUDGET_BYTES, BUDGET_MAX = 100_000, 1_000, 5_000_000
"""Pages that files may always have, one more for each of these bytes, and the most: a minute of a
core. A page of 20,000 rows takes far more bytes on average."""
PAGES_FREE, PAGE_VALUES, PAGE_BYTES = 10, 500, 50_000
"""A page ends at 20,000 rows or 1 MB, so a column has fewer than one for each of these."""
INT_MAX, VARINT_BITS = 2**31 - 1, 70
NUMBERS, INT, TEXT, STRUCT = range(4, 7), 5, 8, 12
WIDTHS = {1: 0, 2: 0, 3: 1, 7: 8}
"""Bytes of truths, bytes and doubles. A truth is in the type of its field."""
DICTIONARY = 2
KINDS = {0: (5, 2), DICTIONARY: (7, 2), 3: (8, 4)}
"""By the type of a page: the number of its own header, and in that the number of its encoding."""
ENCODINGS = (
    *("PLAIN", "", "PLAIN_DICTIONARY", "RLE", "BIT_PACKED", "DELTA_BINARY_PACKED"),
    *("DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"),
)
"""By number. The second one was never used."""


@dataclass
class PageBudget:
    """The pages that may still be read of some files, by the bytes that they take on disk."""

    left: int

    @classmethod
    def of_bytes(cls, size: int) -> PageBudget:
        return cls(min(BUDGET_FREE + size // BUDGET_BYTES, BUDGET_MAX))

    def spend(self, count: int = 1) -> None:
        """Raises ValueError, as a clause, if so many are not left."""
        self.left -= count
        if self.left < 0:
            raise ValueError("there are more pages and columns than evidence of its size ever has")


class Pages(NamedTuple):
    """All pages of one column in one row group."""

    size: int
    """Bytes as decompressed, with the headers: what `total_uncompressed_size` should be."""
    values: int
    """Values and nulls, without those of the dictionary."""
    encodings: frozenset[str]
    """Of the values."""


def read_pages(
    file: BinaryIO, column: pq.ColumnChunkMetaData, end: int, budget: PageBudget
) -> Pages:
    """Read the headers of a column's pages, which lie before the byte `end`. Raises ValueError, as
    a clause, at the first page that is not as the footer says, and for pages that do not fill
    exactly the bytes of the column; OSError."""
    # Without values there may be a dictionary alone, or no page.
    offsets = column.dictionary_page_offset, column.data_page_offset
    at = min(filter(None, offsets), default=0)
    end_of_column = at + column.total_compressed_size
    if not 0 <= at <= end_of_column <= end or (column.num_values and column.data_page_offset <= 0):
        raise ValueError("a column is not within its file")
    count = size = values = 0
    encodings = set()
    while at < end_of_column:
        budget.spend()
        header = _read_header(file, at, end_of_column - at)
        kind, inflated, stored, values_of_page, encoding = header.page
        if kind != DICTIONARY:
            values += values_of_page
            encodings.add(ENCODINGS[encoding] if encoding < len(ENCODINGS) else str(encoding))
        elif values_of_page > inflated:
            # Readers make room for as many as it says. Each takes a byte at least.
            raise ValueError("a dictionary has more values than bytes")
        count, size, at = count + 1, size + header.length + inflated, at + header.length + stored
        if size > column.total_uncompressed_size:
            raise ValueError("its footer has other sizes than its pages")
        if values > column.num_values:
            raise ValueError("the pages of a column are not those of its footer")
        if inflated > PAGE_EXPANSION_MAX * stored:
            raise ValueError(
                f"a page of {inflated:,} bytes is stored in {stored:,}. Evidence is not so dense"
            )
        if count > PAGES_FREE + values // PAGE_VALUES + size // PAGE_BYTES:
            raise ValueError("a column has more pages than evidence ever has")
    if at != end_of_column or values != column.num_values:
        raise ValueError("the pages of a column are not those of its footer")
    return Pages(size, values, frozenset(encodings))


class _Header(NamedTuple):
    page: list[int]
    """The type, the sizes as decompressed and as stored, the values and the encoding."""
    length: int
    """Bytes of the header."""


def _read_header(file: BinaryIO, at: int, room: int) -> _Header:
    """Read the header at the byte `at`, of at most `room` bytes."""
    for length in (HEADER_BYTES, HEADER_BYTES_MAX):
        file.seek(at)
        data = file.read(min(length, room))
        parser = _HeaderParser(data)
        try:
            return _Header(parser.page(), parser.at)
        except _TooShortError:
            if len(data) < length:
                break
    raise ValueError("the header of a page has no end")


class _TooShortError(Exception):
    """A header goes on after the bytes that were read of it."""


class _HeaderParser:
    """The bytes of a file from the header of a page on."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.fields = 0

    def page(self) -> list[int]:
        """Return the type, the sizes as decompressed and as stored, the values and the encoding."""
        fields = self._struct()
        kind = fields.get(1)
        number, encoding = KINDS.get(kind, (0, 0)) if isinstance(kind, int) else (0, 0)
        inner = fields.get(number)
        if not isinstance(inner, dict) or {5, 6, 7, 8} & fields.keys() != {number}:
            raise ValueError("a page is of no known kind")
        values = (kind, fields.get(2), fields.get(3), inner.get(1), inner.get(encoding))
        numbers = [value for value in values if isinstance(value, int) and 0 <= value <= INT_MAX]
        if len(numbers) < len(values):
            raise ValueError("a page has no size")
        return numbers

    def _struct(self, depth: int = 0) -> dict[int, Any]:
        """Return the fields by number: 32-bit numbers and structs; None for others. Readers differ
        in what they make of a number that is there twice, so the numbers must ascend."""
        fields: dict[int, Any] = {}
        last = 0
        while head := self._take(1)[0]:
            number = last + (head >> 4) if head >> 4 else self._number()
            self.fields += 1
            if number <= last or depth > 2 or self.fields > HEADER_FIELDS_MAX:
                raise ValueError("the header of a page is not plain")
            fields[number], last = self._value(head & 15, depth), number
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind == STRUCT:
            return self._struct(depth + 1)
        if kind in NUMBERS:
            number = self._number()
            return number if kind == INT else None
        if kind != TEXT and kind not in WIDTHS:
            raise ValueError("the header of a page is not plain")
        self._take(self._varint() if kind == TEXT else WIDTHS[kind])
        return None

    def _number(self) -> int:
        folded = self._varint()
        return (folded >> 1) ^ -(folded & 1)

    def _varint(self) -> int:
        number = 0
        for shift in range(0, VARINT_BITS, 7):
            byte = self._take(1)[0]
            number |= (byte & 127) << shift
            if byte < 128:
                return number
        raise ValueError("the header of a page is not plain")

    def _take(self, count: int) -> bytes:
        begin, self.at = self.at, self.at + count
        if self.at > len(self.data):
            raise _TooShortError
        return self.data[begin : self.at]
