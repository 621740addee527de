"""Readings grouped by words of 64 offsets: what a proof needs of them, in one row for many records.

A *piece* is the records of one word that stem from one word of one source partition and name one transaction.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from validators.headers import LINEAGE_HEADER, TRANSACTION_HEADER
from validators.identity import last_header
from validators.offsets import WORD, bits, word

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Words(NamedTuple):
    """The offsets of a reading, by partition and word."""

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
    origin: Ints
    """Which of `origins`."""
    source_word: Ints
    source_bits: Ints
    moment: Ints
    """The sum of the products of the records' offsets and their source offsets, each within its word."""
    name: Ints
    """Which of `names`."""
    origins: list[bytes]
    """The records' lineage without its source offset: `topic/partition/index`."""
    names: list[bytes]
    """What the header says that names their transaction."""


def words_of(reading: DataFrame, content: Column) -> Words:
    """One small job."""
    found = (
        reading.groupBy("partition", word("offset").alias("word"))
        .agg(
            bits("offset").alias("bits"),
            F.count("*").alias("counted"),
            F.bit_xor(content).alias("content"),
            F.count_if(F.size("headers") > 0).alias("headed"),
        )
        .toArrow()
    )
    return Words(*_sorted(found, Words._fields))


def pieces_of(reading: DataFrame, content: Column) -> tuple[Pieces, Words] | None:
    """The pieces, and for each its words with the hash of its content. None where a record does not say where it comes
    from or what transaction it is of."""
    lineage = last_header(LINEAGE_HEADER).cast("string")
    parts = F.split(lineage, "/")
    at = F.get(parts, F.lit(2)).try_cast("long")
    place = F.get(parts, F.lit(0)), F.get(parts, F.lit(1)), F.get(parts, F.lit(3))
    # Spelled again it must be the same text: the rule of validators/headers.py, which looks at the rest of it below.
    spelled = F.concat_ws("/", *place[:2], at, place[2]) == lineage
    records = reading.select(
        "partition",
        "offset",
        content.alias("content"),
        F.when(spelled & (at >= 0), at).alias("at"),
        F.concat_ws("/", *place).cast("binary").alias("origin"),
        last_header(TRANSACTION_HEADER).alias("name"),
    )
    within = [F.pmod(one, F.lit(WORD)) for one in ("offset", "at")]
    keys = ("origin", word("at").alias("source_word"), "name")
    found = (
        records.groupBy("partition", word("offset").alias("word"), *keys)
        .agg(
            bits("offset").alias("bits"),
            F.count("*").alias("counted"),
            bits("at").alias("source_bits"),
            F.sum(within[0] * within[1]).alias("moment"),
            F.bit_xor("content").alias("content"),
        )
        .toArrow()
    )
    if any(found[name].null_count for name in ("source_word", "name")):
        return None
    codes, texts = zip(*(_coded(found[name]) for name in ("origin", "name")), strict=True)
    found = found.set_column(found.schema.get_field_index("origin"), "origin", codes[0])
    found = found.set_column(found.schema.get_field_index("name"), "name", codes[1])
    columns = dict(zip((names := found.schema.names), _sorted(found, names), strict=True))
    pieces = Pieces(*(columns[name] for name in Pieces._fields[:-2]), *texts)
    nothing = np.zeros(pieces.word.size, np.int64)
    return pieces, Words(*(columns.get(name, nothing) for name in Words._fields))


def _coded(texts: pa.ChunkedArray) -> tuple[pa.Array, list[bytes]]:
    coded = texts.combine_chunks().dictionary_encode()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    return coded.indices, coded.dictionary.to_pylist()


def _sorted(table: pa.Table, names: list[str] | tuple[str, ...]) -> list[Ints]:
    columns = [np.asarray(table[name], np.int64) for name in names]
    order = np.lexsort((np.asarray(table["word"]), np.asarray(table["partition"])))
    return [column[order] for column in columns]
