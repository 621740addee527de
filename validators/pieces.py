"""Readings folded to words of 64 offsets: what a proof needs of them, in one row for many records.

A *piece* is records of one word that follow each other, stem from one word of one source partition and name one
transaction. Of a reading, Spark hands over only what is looked at here, column by column; where there are many records
its own tasks fold them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, LongType, StructType

from validators.headers import LINEAGE_HEADER, TRANSACTION_HEADER
from validators.identity import last_header
from validators.offsets import WORD
from validators.packed import Packs
from validators.readings import FEW_OFFSETS_MAX

ORIGINS_MAX = 64
"""More origins than this in one batch of records are no batch of a pipeline's sink."""
DIGITS_MAX = 18
"""A source offset of more digits might not fit, and is none."""

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

WORDS = pa.schema([(name, pa.int64()) for name in ("partition", "word", "bits", "counted", "content", "headed")])
PIECES = pa.schema(
    [
        *((name, pa.int64()) for name in ("partition", "word", "bits", "counted", "content")),
        *((name, pa.int64()) for name in ("source_word", "source_bits", "moment")),
        ("origin", pa.binary()),
        ("name", pa.binary()),
    ]
)


class Words(NamedTuple):
    """The offsets of a reading, by partition and word, each row a part of its word."""

    partition: Ints
    word: Ints
    bits: Ints
    counted: Ints
    """Records: more than bits where an offset was read twice."""
    content: Ints
    """Exclusive or of the hashes of their content."""
    headed: Ints
    """Records with a header."""


class Pieces(NamedTuple):
    """The pieces of a reading, by partition and word."""

    partition: Ints
    word: Ints
    bits: Ints
    counted: Ints
    content: Ints
    source_word: Ints
    source_bits: Ints
    moment: Ints
    """The sum of the products of the records' offsets and their source offsets, each within its word."""
    origin: Ints
    """Which of `origins`."""
    name: Ints
    """Which of `names`."""
    origins: list[bytes]
    """The records' lineage, with 0 for its source offset."""
    names: list[bytes]
    """What the header says that names their transaction."""


def words_of(reading: DataFrame, content: Column, offsets: int) -> Words:
    """The words of a reading of so many offsets, in one small job. `content`: a hash of a record's."""
    # Headers that are null are handed over ten times as slowly as everything else.
    headed = F.coalesce(F.size("headers") > 0, F.lit(False))
    records = reading.select("partition", "offset", content.alias("content"), headed.alias("headed"))
    found = _folded(records, fold_words, WORDS, offsets)
    return Words(*_sorted(found, [np.asarray(found[name], np.int64) for name in WORDS.names]))


def pieces_of(reading: DataFrame, content: Column, offsets: int, packs: Path | None = None) -> Pieces | None:
    """The pieces of a reading of so many offsets. None where a record does not say where it comes from or what
    transaction it is of. `packs`: where lineage is packed, the folder that says where (validators/packed.py)."""
    headers = (last_header(LINEAGE_HEADER).alias("lineage"), last_header(TRANSACTION_HEADER).alias("name"))
    records = reading.select("partition", "offset", content.alias("content"), *headers)
    found = _folded(records, _folder(None if packs is None else str(packs)), PIECES, offsets)
    if found["origin"].null_count or found["name"].null_count:
        return None
    columns = [np.asarray(found[name], np.int64) for name in PIECES.names[:-2]]
    (origin, origins), (name, names) = _coded(found["origin"]), _coded(found["name"])
    return Pieces._make([*_sorted(found, [*columns, origin, name]), origins, names])


Rows = Iterator[pa.RecordBatch]


def _folded(records: DataFrame, fold: Callable[[pa.RecordBatch], pa.RecordBatch], to: pa.Schema, few: int) -> pa.Table:
    def folded(batches: Rows) -> Rows:
        for batch in batches:
            if batch.num_rows:
                yield fold(batch)

    if few <= FEW_OFFSETS_MAX:
        return pa.Table.from_batches(list(folded(iter(records.toArrow().to_batches()))), to)
    schema = StructType()
    for field in to:
        schema.add(field.name, BinaryType() if field.type == pa.binary() else LongType())
    return records.mapInArrow(folded, schema).toArrow()


_WORDS_OF = ("partition", "offset", "content", "headed")


def fold_words(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Records, with partition, offset, content and headed, as `WORDS`."""
    partition, offset, content, headed = (np.asarray(batch[name], np.int64) for name in _WORDS_OF)
    word = offset >> 6
    begins = _begins(partition, word)
    columns = (
        *(partition[begins], word[begins], np.bitwise_or.reduceat(_bit(offset), begins)),
        *(_widths(begins, offset.size), np.bitwise_xor.reduceat(content, begins), np.add.reduceat(headed, begins)),
    )
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=WORDS)


def _folder(packs: str | None) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    known = Packs(packs) if packs else None

    def fold(batch: pa.RecordBatch) -> pa.RecordBatch:
        return fold_pieces(batch, known)

    return fold


def fold_pieces(batch: pa.RecordBatch, packs: Packs | None = None) -> pa.RecordBatch:
    """Records, with partition, offset, content, and the headers lineage and name, as `PIECES`; origin and name are null
    where a record has none."""
    partition, offset, content = (np.asarray(batch[name], np.int64) for name in ("partition", "offset", "content"))
    origin, at, origins = _lineages(batch["lineage"])
    coded = batch["name"].dictionary_encode()
    name, names = np.asarray(pc.fill_null(coded.indices, -1), np.int64), coded.dictionary.to_pylist()
    if packs is not None:
        packs.fill(partition, offset, origin, at, name, origins, names)
    word, source_word = offset >> 6, at >> 6
    begins = _begins(partition, word, origin, source_word, name)
    columns = (
        *(partition[begins], word[begins], np.bitwise_or.reduceat(_bit(offset), begins)),
        *(_widths(begins, offset.size), np.bitwise_xor.reduceat(content, begins)),
        *(source_word[begins], np.bitwise_or.reduceat(_bit(at), begins)),
        np.add.reduceat((offset % WORD) * (at % WORD), begins),
    )
    texts = (_spelled(origins, origin[begins]), _spelled(names, name[begins]))
    return pa.RecordBatch.from_arrays([*(pa.array(column) for column in columns), *texts], schema=PIECES)


def _lineages(texts: pa.BinaryArray) -> tuple[Ints, Ints, list[bytes]]:
    """Of each text `topic/partition/offset/index`, in which origin it is and the offset; -1 and 0 for any other. Most
    texts of a batch have one origin, so that only their numbers are read."""
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
    """The numbers that stand in these texts between so many bytes, and whether each is one, in its own spelling."""
    _, places, data = texts.buffers()
    offsets = np.frombuffer(places, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
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


def _begins(*keys: Ints) -> Ints:
    changes = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return np.concatenate(([0], np.flatnonzero(changes) + 1))


def _widths(begins: Ints, size: int) -> Ints:
    return np.diff(np.append(begins, size))


def _bit(offset: Ints) -> Ints:
    return np.left_shift(np.int64(1), offset % WORD)


def _spelled(texts: list[bytes], which: Ints) -> pa.BinaryArray:
    return pa.array(texts, pa.binary()).take(pa.array(which, mask=which < 0))


def _coded(texts: pa.ChunkedArray) -> tuple[Ints, list[bytes]]:
    coded = texts.cast(pa.binary()).combine_chunks().dictionary_encode()
    return np.asarray(coded.indices, np.int64), coded.dictionary.to_pylist()


def _sorted(table: pa.Table, columns: list[Ints]) -> list[Any]:
    order = np.lexsort((np.asarray(table["word"]), np.asarray(table["partition"])))
    return [column[order] for column in columns]
