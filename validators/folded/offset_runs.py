"""Readings folded into words of 64 offsets: one row for many records, with all that a proof needs.

A *piece* is a run of records within one word and one transaction of the log. Its records stem from
one word of one source partition and name one transaction. Spark hands over only the columns that
are needed. If there are many records, Spark's own tasks fold them, visiting each record once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.types import BinaryType, LongType, StructType

from topicproof.validators.folded.compact_runs import NamedRecords, with_compact
from topicproof.validators.lineage.compact import COMPACT_HEADER
from topicproof.validators.lineage.header_columns import last_header
from topicproof.validators.lineage.headers import LINEAGE_HEADER, TRANSACTION_HEADER
from topicproof.validators.offsets import WORD, bits, word
from topicproof.validators.readings import FEW_OFFSETS_MAX

ORIGINS_MAX = 64
"""Maximum origins per batch of records; a pipeline's sink never has more."""
DIGITS_MAX = 18
"""Maximum digits of a source offset; a longer number might overflow and is rejected."""

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

WORDS = pa.schema(
    [(name, pa.int64()) for name in ("partition", "word", "bits", "counted", "content", "headed")]
)
PIECES = pa.schema(
    [
        *((name, pa.int64()) for name in ("partition", "word", "bits", "counted", "content")),
        *((name, pa.int64()) for name in ("transaction", "source_word", "source_bits", "ordered")),
        ("origin", pa.binary()),
        ("name", pa.binary()),
    ]
)
"""Without an `origin`, the source columns mean nothing."""
Spans = Mapping[int, tuple[Ints, Ints]]
"""For each partition of a raw log: the first offset of each batch, and the number of its
transaction."""


class Words(NamedTuple):
    """The offsets of a reading, by partition and word; each row is part of a word."""

    partition: Ints
    word: Ints
    bits: Ints
    counted: Ints
    """Number of records: more than bits if an offset was read twice."""
    content: Ints
    """XOR of the content hashes."""
    headed: Ints
    """Number of records with a header."""


class Pieces(NamedTuple):
    """The pieces of a reading, by partition and word."""

    partition: Ints
    word: Ints
    bits: Ints
    counted: Ints
    content: Ints
    transaction: Ints
    """Number of the transaction in the log; -1 if the log has none there."""
    source_word: Ints
    source_bits: Ints
    ordered: Ints
    """1 if both offsets and source offsets rise from record to record, otherwise 0."""
    origin: Ints
    """Index into `origins`."""
    name: Ints
    """Index into `names`."""
    origins: list[bytes]
    """The records' lineage with source offset 0, as text, and the id of the source if it has one
    (`parse_origin`)."""
    names: list[bytes]
    """The transactions that they name, as text."""


def words_of(reading: DataFrame, content: Column, offsets: int) -> Words:
    """Folds a reading of `offsets` offsets into words, in one job. `content` hashes a record."""
    records = _for_words(reading, content)
    if offsets <= FEW_OFFSETS_MAX:
        return as_words(_folded_here(records, fold_words, WORDS))
    folded = records.groupBy(
        F.col("partition").cast("long").alias("partition"), word("offset").alias("word")
    ).agg(
        bits("offset").alias("bits"),
        F.count("*").alias("counted"),
        F.bit_xor("content").alias("content"),
        F.count_if("headed").alias("headed"),
    )
    return as_words(folded.toArrow().cast(WORDS))


def folded_at_once(
    committed: DataFrame, uncommitted: DataFrame, source: DataFrame, content: Column, spans: Spans
) -> tuple[Words, pa.Table, Words]:
    """Folds three readings of few records by one query, as `words_of` and `folded_pieces` do one by
    one: a query takes longer than the records."""
    of_sink = _for_pieces(uncommitted, content)
    nothing = {name: F.lit(None).cast("binary") for name in ("lineage", "name", "compact")}
    records = of_sink.select(F.lit(1).alias("reading"), "*", F.lit(False).alias("headed"))
    for number, reading, hashed in ((0, committed, content), (2, source, F.lit(0).cast("long"))):
        words = _for_words(reading, hashed).withColumns(nothing)
        records = records.unionByName(words.select(F.lit(number).alias("reading"), "*"))
    table = records.toArrow()
    of_committed, of_uncommitted, of_source = (
        [
            batch
            for batch in table.filter(pc.equal(table["reading"], number)).to_batches()
            if batch.num_rows
        ]
        for number in (0, 1, 2)
    )
    fold = _folder(spans)
    return (
        as_words(pa.Table.from_batches(map(fold_words, of_committed), WORDS)),
        pa.Table.from_batches(map(fold, of_uncommitted), PIECES),
        as_words(pa.Table.from_batches(map(fold_words, of_source), WORDS)),
    )


def _for_words(reading: DataFrame, content: Column) -> DataFrame:
    # Handing over null headers takes ten times as long as everything else.
    headed = F.coalesce(F.size("headers") > 0, F.lit(False))
    return reading.select("partition", "offset", content.alias("content"), headed.alias("headed"))


def _for_pieces(reading: DataFrame, content: Column) -> DataFrame:
    return reading.select(
        "partition",
        "offset",
        content.alias("content"),
        last_header(LINEAGE_HEADER).alias("lineage"),
        last_header(TRANSACTION_HEADER).alias("name"),
        last_header(COMPACT_HEADER).alias("compact"),
    )


def as_words(table: pa.Table) -> Words:
    """Reads a table of `WORDS`, in any order."""
    return Words(*_sorted(table, [np.asarray(table[name], np.int64) for name in WORDS.names]))


def folded_pieces(reading: DataFrame, content: Column, offsets: int, spans: Spans) -> pa.Table:
    """Folds a reading of `offsets` offsets into `PIECES`, in one job. Each
    piece lies within one transaction of `spans`."""
    records = _for_pieces(reading, content)
    fold = _folder(spans)
    if offsets <= FEW_OFFSETS_MAX:
        return _folded_here(records, fold, PIECES)

    def folded(batches: Rows) -> Rows:
        for batch in batches:
            if batch.num_rows:
                yield fold(batch)

    schema = StructType()
    for field in PIECES:
        schema.add(field.name, BinaryType() if field.type == pa.binary() else LongType())
    return records.mapInArrow(folded, schema).toArrow()


def as_pieces(table: pa.Table) -> Pieces | None:
    """Reads a table of `PIECES`, in any order. None if a record does not name its origin or its
    transaction."""
    if table["origin"].null_count or table["name"].null_count:
        return None
    columns = [np.asarray(table[name], np.int64) for name in PIECES.names[:-2]]
    (origin, origins), (name, names) = _coded(table["origin"]), _coded(table["name"])
    return Pieces._make([*_sorted(table, [*columns, origin, name]), origins, names])


Rows = Iterator[pa.RecordBatch]


def _folded_here(
    records: DataFrame, fold: Callable[[pa.RecordBatch], pa.RecordBatch], to: pa.Schema
) -> pa.Table:
    return pa.Table.from_batches(
        [fold(batch) for batch in records.toArrow().to_batches() if batch.num_rows], to
    )


_WORDS_OF = ("partition", "offset", "content", "headed")


def fold_words(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Folds records (partition, offset, content, headed) into `WORDS`."""
    partition, offset, content, headed = (np.asarray(batch[name], np.int64) for name in _WORDS_OF)
    word = offset >> 6
    begins = begins_of(partition, word)
    columns = (
        *(partition[begins], word[begins], np.bitwise_or.reduceat(bit_of(offset), begins)),
        *(
            widths(begins, offset.size),
            np.bitwise_xor.reduceat(content, begins),
            np.add.reduceat(headed, begins),
        ),
    )
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=WORDS)


def _folder(spans: Spans) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    def fold(batch: pa.RecordBatch) -> pa.RecordBatch:
        return fold_pieces(batch, spans)

    return fold


def fold_pieces(batch: pa.RecordBatch, spans: Spans) -> pa.RecordBatch:
    """Folds records (partition, offset, content, and the headers lineage and name, or compact in
    place of both) into `PIECES`. A header is null if the record lacks it."""
    partition, offset, content = (
        np.asarray(batch[name], np.int64) for name in ("partition", "offset", "content")
    )
    origin, at, origins, name, names = _named(batch)
    transaction = _transactions(partition, offset, spans)
    word, source_word = offset >> 6, at >> 6
    begins = begins_of(partition, word, transaction, origin, source_word, name)
    rises = np.append(True, (offset[1:] > offset[:-1]) & ((at[1:] > at[:-1]) | (origin[1:] < 0)))
    columns = (
        *(partition[begins], word[begins], np.bitwise_or.reduceat(bit_of(offset), begins)),
        *(
            widths(begins, offset.size),
            np.bitwise_xor.reduceat(content, begins),
            transaction[begins],
        ),
        *(source_word[begins], np.bitwise_or.reduceat(bit_of(at), begins), all_of(rises, begins)),
    )
    texts = _spelled(origins, origin[begins]), _spelled(names, name[begins])
    return pa.RecordBatch.from_arrays(
        [*(pa.array(column) for column in columns), *texts], schema=PIECES
    )


def _named(batch: pa.RecordBatch) -> NamedRecords:
    """Reads the headers of records, in either form. A record with both forms has no origin here: a
    program has passed the headers of its input on."""
    lineage, name, compact = (batch[column] for column in ("lineage", "name", "compact"))
    coded = name.dictionary_encode()
    records = NamedRecords(
        *_lineages(lineage),
        name=np.asarray(pc.fill_null(coded.indices, -1), np.int64),
        names=coded.dictionary.to_pylist(),
    )
    if compact.null_count == len(compact):
        return records
    return with_compact(records, compact, pc.and_(lineage.is_null(), name.is_null()))


def _transactions(partition: Ints, offset: Ints, spans: Spans) -> Ints:
    """Returns each record's transaction in the log; -1 if the log has none."""
    transactions = np.full(offset.size, -1, np.int64)
    for number in np.unique(partition).tolist():
        base, transaction = spans.get(number, (transactions[:0], transactions[:0]))
        if base.size:
            rows = np.flatnonzero(partition == number)
            transactions[rows] = transaction[
                np.maximum(np.searchsorted(base, offset[rows], "right") - 1, 0)
            ]
    return transactions


def _lineages(texts: pa.BinaryArray) -> tuple[Ints, Ints, list[bytes]]:
    """Parses texts `topic/partition/offset/index` into origin number and offset; -1 and 0 for any
    other text. Most texts of a batch share one origin, so only their offsets have to be parsed."""
    origin, at = np.full(len(texts), -1, np.int64), np.zeros(len(texts), np.int64)
    left, origins = np.asarray(texts.is_valid(), bool), list[bytes]()
    while left.any() and len(origins) < ORIGINS_MAX:
        parts = texts[int(left.argmax())].as_py().split(b"/")
        if len(parts) != 4:
            break
        begin, end = b"/".join(parts[:2]) + b"/", b"/" + parts[3]
        alike = pc.and_(pc.starts_with(texts, begin), pc.ends_with(texts, end))
        rows = np.flatnonzero(left & np.asarray(pc.fill_null(alike, False), bool))
        numbers, valid = _numbers(texts, rows, len(begin), len(end))
        if not valid.all():
            break
        origin[rows], at[rows], left[rows] = len(origins), numbers, False
        origins.append(begin + b"0" + end)
    return origin, at, origins


def _numbers(texts: pa.BinaryArray, rows: Ints, before: int, behind: int) -> tuple[Ints, Flags]:
    """Parses the number in each text, without `before` bytes at the front and `behind` at the end.
    Also returns whether it is a number in canonical form."""
    _, places, data = texts.buffers()
    offsets = np.frombuffer(places, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(
        np.int64
    )
    digits = np.frombuffer(data, np.uint8)
    first, last = offsets[rows] + before, offsets[rows + 1] - behind
    width = last - first
    valid = (width > 0) & (width <= DIGITS_MAX)
    numbers = np.zeros(rows.size, np.int64)
    if not valid.all():
        return numbers, valid
    valid &= (digits[first] != ord("0")) | (width == 1)
    for place in range(int(width.max(initial=0))):
        inside = place < width
        digit = digits[np.minimum(first + place, last - 1)].astype(np.int64) - ord("0")
        valid &= ~inside | ((digit >= 0) & (digit <= 9))
        numbers = np.where(inside, numbers * 10 + digit, numbers)
    return numbers, valid


def begins_of(*keys: Ints) -> Ints:
    """Returns the rows where any key differs from the previous row. There must be at least one
    row."""
    changes = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return np.concatenate(([0], np.flatnonzero(changes) + 1))


def all_of(rises: Flags, begins: Ints) -> Ints:
    """Returns 1 for each group, starting at `begins`, in which every row after the first one
    rises."""
    rises[begins] = True
    return np.asarray(np.logical_and.reduceat(rises, begins), np.int64)


def first_of(words: Ints) -> Ints:
    """Returns the lowest bit of each word; no word may be empty."""
    below = (words & -words).view(np.uint64) - np.uint64(1)
    return np.asarray(np.bitwise_count(below), np.int64)


def last_of(words: Ints) -> Ints:
    """Returns the highest bit of each word; no word may be empty."""
    filled = words.view(np.uint64)
    for width in (1, 2, 4, 8, 16, 32):
        filled = filled | (filled >> np.uint64(width))
    return np.asarray(np.bitwise_count(filled), np.int64) - 1


def members(words: Ints) -> tuple[Ints, Ints]:
    """Lists the bits in these words: the index of the word, and the bit."""
    flags = np.unpackbits(
        words.astype("<i8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little"
    )
    rows, places = np.nonzero(flags)
    return rows, places


def widths(begins: Ints, size: int) -> Ints:
    """Returns the number of rows in each group that starts at `begins`."""
    return np.diff(np.append(begins, size))


def bit_of(offset: Ints) -> Ints:
    """Returns each offset's own bit in its word."""
    return np.left_shift(np.int64(1), offset % WORD)


def _spelled(texts: list[bytes], indices: Ints) -> pa.BinaryArray:
    return pa.array(texts, pa.binary()).take(pa.array(indices, mask=indices < 0))


def _coded(texts: pa.ChunkedArray) -> tuple[Ints, list[bytes]]:
    coded = texts.cast(pa.binary()).combine_chunks().dictionary_encode()
    return np.asarray(coded.indices, np.int64), coded.dictionary.to_pylist()


def _sorted(table: pa.Table, columns: list[Ints]) -> list[Any]:
    order = np.lexsort((np.asarray(table["word"]), np.asarray(table["partition"])))
    return [column[order] for column in columns]
