"""Readings with packed lineage: each record of a pack gets the headers that it would have on its
own.

So the ledger and all validators see only one form of lineage. Readings are not shuffled. The batch
headers determine the pack positions once (validators/lineage/packs.py). These are stored beside the
readings and sent to Spark, and each task looks up its own offsets. Of each record, Python receives
only partition, offset and headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

from topicproof.validators.lineage.headers import LINEAGE_HEADER, TRANSACTION_HEADER
from topicproof.validators.lineage.packs import (
    HEADS,
    PACKED_HEADER,
    Pack,
    lay,
    parse_pack,
    short_transactions,
)

HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
"""A type, not text: PySpark parses text with its default session, even after that session has
ended."""
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_HEADER_NAMES = "headers.list.element.key"
"""Spark's name for that column in Parquet."""
CARRIED_BYTES_MAX = 8_000_000
"""Pack positions, compressed: some hundred thousand packs."""
HEADS_FILE, SEGMENTS_FILE, LOST_FILE = "heads.parquet", "segments.parquet", "lost.parquet"

Ints = npt.NDArray[np.int64]


def is_head() -> Column:
    """Whether a record of a reading is the first one of a pack."""
    return F.coalesce(F.array_contains("headers.key", PACKED_HEADER), F.lit(False))


def has_packs(reading: DataFrame) -> bool:
    """Whether a reading holds any pack; a cheap query."""
    return bool(reading.where(is_head()).select("offset").limit(1).collect())


def packs_in(folder: Path) -> bool:
    """Whether a reading kept as Parquet holds any pack, without Spark: checks its header names."""
    for part in sorted(folder.glob("*.parquet")):
        names = pq.ParquetFile(part, read_dictionary=[_HEADER_NAMES])
        for rows in names.iter_batches(columns=[_HEADER_NAMES]):
            if PACKED_HEADER in rows.column(0).flatten().field("key").dictionary.to_pylist():
                return True
    return False


def keep_packs(reading: DataFrame, batches: pa.Table, folder: Path) -> bool:
    """Writes the pack positions of a reading into `folder`, using the raw log's batches. False if
    there are no packs."""
    rows = reading.where(is_head()).select("partition", "offset", "headers").toArrow()
    if not rows.num_rows:
        return False
    names = {"packed": PACKED_HEADER, "transaction": TRANSACTION_HEADER}
    listed = rows["headers"].to_pylist()
    values = {
        column: [_last(headers, name) for headers in listed] for column, name in names.items()
    }
    heads = pa.table({"partition": rows["partition"], "offset": rows["offset"], **values}).cast(
        HEADS
    )
    at = HEADS.get_field_index("transaction")
    heads = heads.set_column(at, HEADS.field(at), short_transactions(heads["transaction"]))
    segments, lost = lay(batches, heads)
    folder.mkdir(parents=True, exist_ok=True)
    for table, name in ((heads, HEADS_FILE), (segments, SEGMENTS_FILE), (lost, LOST_FILE)):
        pq.write_table(table, folder / name)
    return True


def unpacked(reading: DataFrame, folder: Path) -> DataFrame:
    """Gives each record of a pack known in `folder` its own headers.

    Up to `CARRIED_BYTES_MAX`, Spark's workers receive the positions with the query. Larger ones
    they read in the folder, so they must share this machine's disk. Raises OSError.
    """
    # Its type hints determine the kind of UDF.
    unpack = arrow_udf(_unpacker(_positions(folder)), HEADERS)  # type: ignore[call-overload]
    return reading.withColumn("headers", unpack("partition", "offset", "headers"))


def count_lost(reading: DataFrame, folder: Path) -> int:
    """Counts the records of an unpacked reading that lack lineage because their pack's first record
    is missing or unreadable."""
    lost = pq.read_table(folder / LOST_FILE)
    if lost.num_rows == 0:
        return 0
    spark = reading.sparkSession
    ranges = spark.createDataFrame(lost).withColumnRenamed("partition", "lost_in")
    unnamed = reading.where(
        ~F.coalesce(F.array_contains("headers.key", LINEAGE_HEADER), F.lit(False))
    )
    inside = (F.col("partition") == F.col("lost_in")) & F.col("offset").between(
        F.col("first_offset"), F.col("last_offset")
    )
    return (
        unnamed.select("partition", "offset").join(F.broadcast(ranges), inside, "left_semi").count()
    )


def _last(headers: list[dict[str, object]], name: str) -> object:
    return next((header["value"] for header in reversed(headers) if header["key"] == name), None)


Columns = tuple[pa.Array, pa.Array, pa.Array]


Positions = tuple[bytes | str, bytes | str]
"""Segments and heads as Parquet: the content of a file, or its path."""


def _positions(folder: Path) -> Positions:
    files = folder / SEGMENTS_FILE, folder / HEADS_FILE
    if sum(file.stat().st_size for file in files) > CARRIED_BYTES_MAX:
        return str(files[0]), str(files[1])
    return files[0].read_bytes(), files[1].read_bytes()


def _table(positions: bytes | str, partition: int) -> pa.Table:
    source = pa.BufferReader(positions) if isinstance(positions, bytes) else positions
    return pq.read_table(source, filters=[("partition", "=", partition)])


def _unpacker(positions: Positions) -> Callable[[Iterator[Columns]], Iterator[pa.Array]]:
    def unpack(batches: Iterator[Columns]) -> Iterator[pa.Array]:
        packs_by_partition: dict[int, _Packs] = {}
        for partition, offset, headers in batches:
            unpacked_headers = headers.cast(HEADERS_TYPE)
            for number in pc.unique(partition).to_pylist():
                if number not in packs_by_partition:
                    packs_by_partition[number] = _Packs(positions, number)
                unpacked_headers = packs_by_partition[number].unpack(
                    np.asarray(partition) == number, np.asarray(offset), unpacked_headers
                )
            yield unpacked_headers

    return unpack


class _Packs:
    """The packs of one partition."""

    def __init__(self, positions: Positions, partition: int) -> None:
        segments, heads = (
            _table(table, partition).sort_by(by)
            for table, by in zip(positions, ("first_offset", "offset"), strict=True)
        )
        self.first, self.last, self.position = (
            np.asarray(segments[name], np.int64)
            for name in ("first_offset", "last_offset", "position")
        )
        self.head = np.searchsorted(
            np.asarray(heads["offset"], np.int64), np.asarray(segments["head"], np.int64)
        )
        self.packed = heads["packed"].combine_chunks()
        self.transactions = heads["transaction"].combine_chunks()

    def unpack(
        self, in_partition: npt.NDArray[np.bool_], offsets: Ints, headers: pa.ListArray
    ) -> pa.ListArray:
        """Returns the records' headers, unpacked; records not `in_partition` keep theirs."""
        if not self.first.size:
            return headers
        segments = np.searchsorted(self.first, offsets, "right") - 1
        rows = np.flatnonzero(in_partition & (segments >= 0) & (offsets <= self.last[segments]))
        if not rows.size:
            return headers
        segments = segments[rows]
        heads, positions = (
            self.head[segments],
            self.position[segments] + offsets[rows] - self.first[segments],
        )
        parent_indices = pc.list_parent_indices(headers)
        entries = headers.flatten()
        member = np.zeros(len(headers), bool)
        member[rows] = True
        # The first record of a pack already has its transaction header; adding it would duplicate
        # it.
        first = np.zeros(len(headers), bool)
        first[rows[positions == 0]] = True
        parents = np.asarray(parent_indices, np.int64)
        keys = entries.field("key")
        packed = np.asarray(pc.fill_null(pc.equal(keys, PACKED_HEADER), False))
        transaction = np.asarray(pc.fill_null(pc.equal(keys, TRANSACTION_HEADER), False))
        remaining = ~((packed & member[parents]) | (transaction & first[parents]))
        more = [
            (rows, _entries(LINEAGE_HEADER, self._lineages(heads, positions))),
            (rows, _entries(TRANSACTION_HEADER, self.transactions.take(pa.array(heads)))),
        ]
        whole = pa.concat_arrays(
            [entries.filter(pa.array(remaining)), *(values for _, values in more)]
        )
        owners = np.concatenate([parents[remaining], *(places for places, _ in more)])
        ends = np.cumsum(np.bincount(owners, minlength=len(headers)))
        offsets_of = pa.array(np.concatenate(([0], ends)), pa.int32())
        nothing = pc.and_(headers.is_null(), pa.array(~member))
        ordered = whole.take(pa.array(np.argsort(owners, kind="stable")))
        return pa.ListArray.from_arrays(offsets_of, ordered, mask=nothing).cast(HEADERS_TYPE)

    def _parsed(self, head: int) -> Pack:
        pack = parse_pack(self.packed[head].as_py())
        assert pack is not None, "a pack that cannot be read has no segment"
        return pack

    def _lineages(self, heads: Ints, positions: Ints) -> pa.Array:
        """Formats the lineage header of each of these records."""
        lineages: list[bytes | None] = [None] * heads.size
        for head in np.unique(heads).tolist():
            pack = self._parsed(head)
            rows = np.flatnonzero(heads == head)
            pack_positions = positions[rows]
            begins = f"{pack.topic}/{pack.partition}/".encode()
            places = zip(
                rows.tolist(),
                pack.offsets[pack_positions].tolist(),
                pack.indices[pack_positions].tolist(),
                strict=True,
            )
            for row, offset, index in places:
                lineages[row] = b"%b%d/%d" % (begins, offset, index)
        return pa.array(lineages, pa.binary())


def _entries(name: str, values: pa.Array) -> pa.StructArray:
    return pa.StructArray.from_arrays(
        [pa.array([name] * len(values), pa.string()), values], ["key", "value"]
    )
