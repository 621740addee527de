"""Lineage of many records in one header, and the records it belongs to. Pure: bytes and tables, no
Spark.

`topicproof-packed`, on the first record of a *pack* (consecutive records of one transaction in one
partition):

| bytes | what |
| --- | --- |
| 1 | version: 1 |
| 2 | length of the source topic's name |
| 4 | source partition |
| 8 | source offset of the first record |
| 4 | number of records in the pack |
| 1, 1 | bytes of each difference, of each index |
| ... | the topic's name; then by zlib: the differences of the source offsets, the output indices |

Numbers are signed; the header's are big-endian, the compressed ones little-endian.

Producer sequence numbers determine which records belong to a pack. A producer numbers its records
by partition (KIP-98), and each batch header has the number of its first record. A record belongs to
the last pack that its producer began before it, in the same epoch, partition and transaction. Its
position in the pack is the difference of their numbers, whatever other producers wrote between and
whatever compaction removed. A pack whose first record is gone has lost its lineage; it never gets
the lineage of another pack.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from topicproof.validators.lineage.headers import INT_MAX, Lineage, format_lineage

PACKED_HEADER = "topicproof-packed"
RECORDS_MAX = 65_536
BYTES_MAX = 100_000
"""Maximum size of a header: far below what brokers accept for a record (message.max.bytes)."""
TOPIC_LENGTH_MAX = 249
"""Characters of a topic's name (Kafka's limit). The name is copied to every record of a pack."""
TRANSACTION_BYTES_MAX = 1_000
"""Of a transaction header that is copied to every record of a pack. A longer one is none of ours:
our transactional ids are made of a prefix and the name of a partition."""
HEADS = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("packed", pa.binary()),
        ("transaction", pa.binary()),
    ]
)
"""The first records of packs, with the values of their two headers; null if a header is missing."""
SEGMENTS = pa.schema(
    [
        ("partition", pa.int32()),
        ("first_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("head", pa.int64()),
        ("position", pa.int64()),
    ]
)
"""Ranges of offsets that belong to one pack. `head` is the offset of the pack's first record;
`position` is the index of `first_offset` in the pack."""
LOST = pa.schema(
    [("partition", pa.int32()), ("first_offset", pa.int64()), ("last_offset", pa.int64())]
)
"""Offsets of producers that write packs, but in no readable pack."""

_FIXED = struct.Struct(">BHiqiBB")
_VERSION = 1
_TYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<i1"),
    2: np.dtype("<i2"),
    4: np.dtype("<i4"),
    8: np.dtype("<i8"),
}
SEQUENCE_MASK = 2**31 - 1
_FASTEST = 1

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pack:
    """The source offset and output index of each record of a pack."""

    topic: str
    partition: int
    offsets: Ints
    indices: Ints

    def lineage(self, position: int) -> bytes:
        """Returns the lineage header that a record would have on its own."""
        place = int(self.offsets[position]), int(self.indices[position])
        return format_lineage(Lineage(self.topic, self.partition, *place))


def format_pack(pack: Pack) -> bytes:
    differences, indices = _narrow(np.diff(pack.offsets)), _narrow(pack.indices)
    topic = pack.topic.encode()
    fixed = _FIXED.pack(
        _VERSION,
        len(topic),
        pack.partition,
        int(pack.offsets[0]),
        pack.offsets.size,
        differences.itemsize,
        indices.itemsize,
    )
    return fixed + topic + zlib.compress(differences.tobytes() + indices.tobytes(), _FASTEST)


def parse_pack(value: bytes | None) -> Pack | None:
    """Parses a pack header; None if it is not valid."""
    try:
        version, length, partition, first, count, *widths = _FIXED.unpack_from(value or b"")
        spelled = memoryview(value or b"")[_FIXED.size :]
        topic = bytes(spelled[:length]).decode()
        difference, index = (_TYPES[width] for width in widths)
        size = difference.itemsize * (count - 1) + index.itemsize * count
        if (
            version != _VERSION
            or not 0 < count <= RECORDS_MAX
            or not 0 < length <= TOPIC_LENGTH_MAX
            or "/" in topic
            or partition < 0
        ):
            return None
        inflate = zlib.decompressobj()
        data = inflate.decompress(spelled[length:], size + 1)
        if len(data) != size or not inflate.eof or inflate.unused_data:
            return None
    except (struct.error, KeyError, UnicodeDecodeError, zlib.error):
        return None
    differences = np.frombuffer(data, difference, count - 1)
    offsets = np.cumsum(np.concatenate(([first], differences)), dtype=np.int64)
    indices = np.frombuffer(data, index, offset=difference.itemsize * (count - 1)).astype(np.int64)
    if offsets.min() < 0 or indices.min() < 0 or indices.max() > INT_MAX:
        return None
    return Pack(topic, partition, offsets, indices)


def short_transactions(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Returns transaction headers with null in place of those of more than
    `TRANSACTION_BYTES_MAX`."""
    is_short = pc.less_equal(pc.binary_length(column), TRANSACTION_BYTES_MAX)
    return pc.if_else(is_short, column, pa.scalar(None, column.type))


def _narrow(numbers: Ints) -> npt.NDArray[Any]:
    """Stores the numbers in as few bytes each as fit them all."""
    low, high = (int(numbers.min()), int(numbers.max())) if numbers.size else (0, 0)
    width = next(
        width for width in _TYPES if -(1 << 8 * width - 1) <= low and high < 1 << 8 * width - 1
    )
    narrow: npt.NDArray[Any] = numbers.astype(_TYPES[width])
    return narrow


def formatted(pack: Pack) -> list[tuple[int, bytes]]:
    """Formats as many packs as needed, each with the position of its first record."""
    packs: list[tuple[int, bytes]] = []
    spans = [(0, pack.offsets.size)]
    while spans:
        first, end = spans.pop()
        text = b""
        if end - first <= RECORDS_MAX:
            text = format_pack(
                Pack(pack.topic, pack.partition, pack.offsets[first:end], pack.indices[first:end])
            )
        if end - first <= RECORDS_MAX and (len(text) <= BYTES_MAX or end - first == 1):
            packs.append((first, text))
        else:
            middle = (first + end) // 2
            # The stack pops the last span first: the earlier half.
            spans += [(middle, end), (first, middle)]
    return packs


def lay(batches: pa.Table, heads: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Returns the positions of the packs of these heads (`HEADS`) as `SEGMENTS`, and the `LOST`
    offsets, both by partition and offset.

    `batches` are the raw log's, by partition and offset: partition, base_offset, last_offset,
    producer_id, producer_epoch, base_sequence, transactional, control.
    """
    log = _Log.of(batches)
    segments, writers = [], set()
    for partition in pc.unique(heads["partition"]).to_pylist():
        partition_heads = heads.filter(pc.equal(heads["partition"], partition)).sort_by("offset")
        first, last = np.searchsorted(log.partition, [partition, partition + 1])
        part = log.slice(int(first), int(last))
        counts = [
            0 if pack is None else pack.offsets.size
            for pack in map(parse_pack, partition_heads["packed"].to_pylist())
        ]
        columns, wrote = _lay(
            part, np.asarray(partition_heads["offset"], np.int64), np.asarray(counts, np.int64)
        )
        segments.append(
            pa.Table.from_arrays(
                [pa.array(np.full(len(columns[0]), partition)), *columns], SEGMENTS.names
            )
        )
        writers |= wrote
    laid = pa.concat_tables(
        [SEGMENTS.empty_table(), *(segment.cast(SEGMENTS) for segment in segments)]
    )
    laid = laid.sort_by(
        [("partition", "ascending"), ("first_offset", "ascending")]
    ).combine_chunks()
    return laid, _lost(log, laid, writers)


@dataclass(frozen=True)
class _Log:
    """The batches as arrays."""

    partition: Ints
    base: Ints
    last: Ints
    producer: Ints
    epoch: Ints
    sequence: Ints
    marker: npt.NDArray[np.bool_]
    able: npt.NDArray[np.bool_]
    """Whether a pack may lie here: data of a transaction."""

    @staticmethod
    def of(batches: pa.Table) -> _Log:
        names = (
            "partition",
            "base_offset",
            "last_offset",
            "producer_id",
            "producer_epoch",
            "base_sequence",
        )
        partition, base, last, producer, epoch, sequence = (
            np.asarray(batches[name], np.int64) for name in names
        )
        marker = np.asarray(pc.is_valid(batches["control"]), bool)
        able = np.asarray(batches["transactional"], bool) & ~marker & (sequence >= 0)
        return _Log(partition, base, last, producer, epoch, sequence, marker, able)

    def slice(self, first: int, end: int) -> _Log:
        return _Log(*(getattr(self, name)[first:end] for name in self.__dataclass_fields__))


def _lay(log: _Log, offsets: Ints, counts: Ints) -> tuple[list[pa.Array], set[tuple[int, int]]]:
    """Returns the columns of `SEGMENTS` after the partition, for heads at `offsets` of one
    partition. `counts` are the records of each pack (0: unreadable). Also returns the writers of
    these heads, as producer id and epoch."""
    # Up to a marker, everything from one producer in one epoch is one transaction; no pack extends
    # further.
    order = np.lexsort((log.base, log.producer))
    of = (log.producer[order], log.epoch[order])
    begins = np.ones(order.size, bool)
    begins[1:] = (of[0][1:] != of[0][:-1]) | (of[1][1:] != of[1][:-1]) | log.marker[order][:-1]
    run = np.empty(order.size, np.int64)
    run[order] = np.cumsum(begins)

    at = np.searchsorted(log.base, offsets, "right") - 1
    heads = (
        np.flatnonzero((at >= 0) & (offsets <= log.last[at]) & log.able[at])
        if order.size
        else np.empty(0, int)
    )
    writers = set(zip(log.producer[at[heads]].tolist(), log.epoch[at[heads]].tolist(), strict=True))

    # Each run, ordered by offset: a new range begins with every batch, and with every head inside
    # it.
    able = np.flatnonzero(log.able)
    batch = np.concatenate((able, at[heads]))
    begin = np.concatenate((log.base[able], offsets[heads]))
    head = np.concatenate((np.full(able.size, -1), heads))
    order = np.lexsort((head, begin, run[batch]))
    batch, begin, head = batch[order], begin[order], head[order]
    end = log.last[batch].copy()
    end[:-1] = np.where(batch[1:] == batch[:-1], begin[1:] - 1, end[:-1])

    newest = np.maximum.accumulate(np.where(head >= 0, np.arange(head.size), -1))
    has_head = (newest >= 0) & (run[batch[newest]] == run[batch])
    number = log.sequence[batch] + begin - log.base[batch]
    position = (number - number[newest]) & SEQUENCE_MASK
    pack = head[newest]
    if counts.size:
        end = np.minimum(end, begin + counts[pack] - position - 1)
    valid = has_head & (begin <= end)
    columns = [begin[valid], end[valid], offsets[pack[valid]], position[valid]]
    return [pa.array(column) for column in columns], writers


def _lost(log: _Log, laid: pa.Table, writers: set[tuple[int, int]]) -> pa.Table:
    """Returns the offsets that pack writers wrote outside any readable pack."""
    wrote = np.zeros(log.base.size, bool)
    for producer, epoch in writers:
        wrote |= log.able & (log.producer == producer) & (log.epoch == epoch)
    places, firsts, lasts = (
        np.asarray(laid[name], np.int64) for name in ("partition", "first_offset", "last_offset")
    )
    starts = {
        number: int(np.searchsorted(log.partition, number)) for number in np.unique(places).tolist()
    }
    batch = np.empty(places.size, np.int64)
    for partition, start in starts.items():
        in_partition = places == partition
        end = int(np.searchsorted(log.partition, partition, "right"))
        batch[in_partition] = (
            start + np.searchsorted(log.base[start:end], firsts[in_partition], "right") - 1
        )
    missing = log.last - log.base + 1
    np.subtract.at(missing, batch, lasts - firsts + 1)
    rows = []
    for index in np.flatnonzero(wrote & (missing > 0)).tolist():
        at = int(log.base[index])
        inside = slice(*np.searchsorted(batch, [index, index + 1]).tolist())
        for first, last in zip(firsts[inside].tolist(), lasts[inside].tolist(), strict=True):
            if at < first:
                rows.append((int(log.partition[index]), at, first - 1))
            at = last + 1
        if at <= log.last[index]:
            rows.append((int(log.partition[index]), at, int(log.last[index])))
    columns = zip(*rows, strict=True) if rows else ([], [], [])
    return pa.table(dict(zip(LOST.names, columns, strict=True)), LOST)
