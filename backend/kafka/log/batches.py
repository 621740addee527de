"""The format of record batches, version 2 (KIP-98): headers become rows. Records are decoded only
to cut a batch."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from kafka.record.util import calc_crc32c

from topicproof.backend.errors import ClusterError, TopicError

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
CONTROLS: tuple[str | None, ...] = (None, "ABORT", "COMMIT", "OTHER")
"""`OTHER` marks control records of Kafka's own metadata log; they end no transaction."""

SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("base_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("count", pa.int32()),
        ("producer_id", pa.int64()),
        ("producer_epoch", pa.int32()),
        ("base_sequence", pa.int32()),
        ("transactional", pa.bool_()),
        ("control", pa.string()),
        ("first_timestamp", pa.int64()),
        ("max_timestamp", pa.int64()),
        ("size", pa.int32()),
        ("compression", pa.string()),
        ("leader_epoch", pa.int32()),
        ("inflated", pa.int64()),
    ]
)
"""`inflated`: the most bytes that the batch may take after decompression (inflation.py)."""

HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("first_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("count", ">i4"),
    ]
)
_INDEXES = ("control", "compression")
ROW = np.dtype(
    [
        (field.name, np.int8 if field.name in _INDEXES else field.type.to_pandas_dtype())
        for field in SCHEMA
    ]
)
"""A table row before the table is built: `control` and `compression` are indexes into the tuples
above."""

_CODEC_NAMES = COMPRESSIONS + ("unknown",) * (8 - len(COMPRESSIONS))
"""By each number that a header has room for."""
_SHARED = [name for name in HEADER.names or () if name in SCHEMA.names]
_LENGTH_AT = 8
_MAGIC_AT = 16
_AFTER_LENGTH = 12
_AFTER_CRC = 21
COMPRESSION_BITS = 0x07
LOG_APPEND_TIME_BIT = 0x08
_TRANSACTIONAL_BIT = 0x10
_CONTROL_BIT = 0x20
_DELETE_HORIZON_BIT = 0x40
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16

Headers = npt.NDArray[Any]


DECOMPRESSED_BYTES_MAX = 3 * 2**24
"""One batch after decompression. Brokers accept batches of 1 MB (message.max.bytes). librdkafka
decompresses none beyond 100 MB (receive.message.max.bytes), and finds the size of some by doubling:
so this is less than half of that."""
SNAPPY_RATIO_MAX = 64
"""Snappy copies at most 64 bytes for each two of its own."""
VARINT_SHIFT_MAX = 63


def batch_positions(data: memoryview, where: str) -> list[int]:
    """Find where the complete batches of a Fetch response begin. The last one may be cut off
    (KIP-74).

    Raises TopicError for records older than message format version 2, ClusterError for bytes that
    are not a batch.
    """
    length_at = struct.Struct(">i").unpack_from
    positions = []
    at, end = 0, len(data)
    while at + _MAGIC_AT < end:
        if data[at + _MAGIC_AT] < 2:
            raise TopicError(
                f"{where} holds records in message format version {data[at + _MAGIC_AT]}, written"
                " before Kafka 0.11: they have no transactions and no batch headers to judge. Copy"
                " them to a new topic first."
            )
        (length,) = length_at(data, at + _LENGTH_AT)
        if length < HEADER.itemsize - _AFTER_LENGTH:
            raise ClusterError(
                f"{where}: a record batch of impossible length {length}. Check the broker's log."
            )
        following = at + _AFTER_LENGTH + length
        if following > end:
            break
        positions.append(at)
        at = following
    return positions


def require_crc(data: memoryview, positions: Sequence[int], where: str) -> None:
    """Verify every batch's CRC-32C, which covers all bytes after it (KIP-98).

    Raises ClusterError naming the first batch that differs. kafka-python computes it with the
    package crc32c, much faster than the network; pure Python manages 5 MB/s.
    """
    for at in positions:
        header = np.frombuffer(data[at : at + HEADER.itemsize], HEADER)[0]
        crc = calc_crc32c(data[at + _AFTER_CRC : at + _AFTER_LENGTH + int(header["length"])])
        if crc != header["crc"]:
            raise _corrupt(
                where,
                int(header["base_offset"]),
                f"its CRC is {header['crc']:08x}, not {crc:08x}",
            )


def _corrupt(where: str, offset: int, reason: str) -> ClusterError:
    return ClusterError(
        f"{where}: the record batch at offset {offset} is corrupt ({reason}). Check the disks and"
        " logs of its brokers; another replica may still have it intact."
    )


def batch_rows(data: memoryview, positions: Sequence[int], partition: int) -> Headers:
    """Return the headers of the batches at `positions`, as `ROW`s. No record is decoded, except a
    control record's key. Raises ClusterError for a broken one."""
    at = np.asarray(positions, np.int64)
    headers = np.frombuffer(data, np.uint8)[at[:, None] + np.arange(HEADER.itemsize)].view(HEADER)[
        :, 0
    ]
    attributes = headers["attributes"]
    rows = np.zeros(len(at), ROW)
    rows["partition"] = partition
    for name in _SHARED:
        rows[name] = headers[name]
    rows["last_offset"] = rows["base_offset"] + headers["last_offset_delta"]
    rows["transactional"] = (attributes & _TRANSACTIONAL_BIT) != 0
    # With log append time the first timestamp is the client's. With a delete horizon (KIP-534) it
    # is not a timestamp.
    replaced = (attributes & (LOG_APPEND_TIME_BIT | _DELETE_HORIZON_BIT)) != 0
    rows["first_timestamp"] = np.where(
        replaced, headers["max_timestamp"], headers["first_timestamp"]
    )
    rows["size"] = headers["length"] + _AFTER_LENGTH
    rows["compression"] = attributes & COMPRESSION_BITS
    for index in np.flatnonzero(attributes & _CONTROL_BIT).tolist():
        try:
            kind = control_of(data[positions[index] :], int(rows["count"][index]))
        except (IndexError, ValueError, struct.error) as error:
            reason = f"its control record cannot be decoded: {error}"
            where = f"partition {partition}"
            raise _corrupt(where, int(rows["base_offset"][index]), reason) from error
        rows["control"][index] = kind
    return rows


def control_of(batch: memoryview, count: int) -> int:
    """Return the index into CONTROLS; OTHER for a control batch that compaction has emptied."""
    if count < 1:
        return CONTROLS.index("OTHER")
    at = HEADER.itemsize
    _length, at = varint(batch, at)
    _timestamp, at = varint(batch, at + 1)
    _offset, at = varint(batch, at)
    _key_length, at = varint(batch, at)
    _version, kind = struct.unpack_from(">hh", batch, at)
    return CONTROLS.index({0: "ABORT", 1: "COMMIT"}.get(kind, "OTHER"))


def cut(row: Any, batch: memoryview, first: int, end: int, where: str) -> Any:
    """Return the row for the batch's records within [first, end). Raises ClusterError for broken
    records."""
    try:
        offsets, timestamps = record_positions(batch[: int(row["size"])])
    except (OSError, ValueError, IndexError, OverflowError, struct.error) as error:
        # Arrow's codecs raise the first two. A number beyond the end of the records raises one of
        # the others.
        raise _corrupt(
            where, int(row["base_offset"]), f"its records cannot be decoded: {error}"
        ) from error
    inside = (offsets >= first) & (offsets < end)
    shorter = row.copy()
    shorter["count"] = int(inside.sum())
    shorter["base_offset"] = (
        int(offsets[inside][0]) if inside.any() else max(int(row["base_offset"]), first)
    )
    shorter["last_offset"] = min(int(row["last_offset"]), end - 1)
    if inside.any():
        shorter["first_timestamp"] = int(timestamps[inside][0])
    if row["base_sequence"] >= 0:
        # Sequences start again at 0 after the largest int32.
        shorter["base_sequence"] = (
            int(row["base_sequence"]) + int(shorter["base_offset"]) - int(row["base_offset"])
        ) & 0x7FFFFFFF
    return shorter


def cut_unread(row: Any, first: int, end: int) -> Any:
    """Return the row for the batch's offsets within [first, end), as if each were a record: its
    records are not decoded."""
    shorter = row.copy()
    shorter["base_offset"] = max(int(row["base_offset"]), first)
    shorter["last_offset"] = min(int(row["last_offset"]), end - 1)
    offsets = int(shorter["last_offset"]) - int(shorter["base_offset"]) + 1
    shorter["count"] = min(int(row["count"]), max(offsets, 0))
    return shorter


def record_positions(batch: memoryview) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return offset and timestamp (ms) of every record of one batch."""
    header = np.frombuffer(batch[: HEADER.itemsize], HEADER)[0]
    records = memoryview(
        decompress(batch[HEADER.itemsize :], int(header["attributes"]) & COMPRESSION_BITS)
    )
    appended = bool(header["attributes"] & LOG_APPEND_TIME_BIT)
    offsets, timestamps = [], []
    at = 0
    if header["count"] > len(records):
        raise ValueError(f"{header['count']:,} records in {len(records):,} bytes")
    for _ in range(int(header["count"])):
        length, at = varint(records, at)
        if length < 0:
            raise ValueError(f"a record of length {length}")
        timestamp, inner = varint(records, at + 1)
        offset, _ = varint(records, inner)
        offsets.append(int(header["base_offset"]) + offset)
        timestamps.append(
            int(header["max_timestamp"]) if appended else int(header["first_timestamp"]) + timestamp
        )
        at += length
    return np.asarray(offsets, np.int64), np.asarray(timestamps, np.int64)


def decompress(data: memoryview, compression: int) -> bytes:
    """Decompress the records of a batch. Raises ClusterError for a codec that Kafka does not
    have."""
    if compression >= len(COMPRESSIONS):
        raise ClusterError(
            f"A record batch names compression codec {compression}, which is not one of Kafka's."
        )
    name = COMPRESSIONS[compression]
    if name == "none":
        return bytes(data)
    if name == "snappy":
        return b"".join(_snappy(block) for block in snappy_blocks(data))
    with pa.CompressedInputStream(pa.BufferReader(data), name) as stream:
        # Not `read`, which never frees its memory when the data is broken (pyarrow 26.0.1).
        text: bytes = stream.read_buffer(DECOMPRESSED_BYTES_MAX + 1).to_pybytes()
        return _bounded(text)


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """Decode a zigzag integer. Returns it and the position behind it."""
    value, shift = 0, 0
    while True:
        byte = data[at]
        at += 1
        if shift > VARINT_SHIFT_MAX:
            raise ValueError("a number of more than 64 bits")
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at


def snappy_blocks(data: memoryview) -> Iterator[memoryview]:
    """Yield the compressed blocks. Java clients write several after a xerial header, others one
    bare block."""
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        yield data
        return
    at = _XERIAL_HEADER
    while at < len(data):
        (length,) = struct.unpack_from(">i", data, at)
        if length <= 0:
            raise ValueError(f"a compressed block of length {length}")
        yield data[at + 4 : at + 4 + length]
        at += 4 + length


def snappy_size(block: memoryview) -> int:
    """Return the size after decompression that a compressed block begins with."""
    size, shift, at = 0, 0, 0
    while True:
        size |= (block[at] & 0x7F) << shift
        shift += 7
        at += 1
        if block[at - 1] < 0x80:
            return size


def _snappy(block: memoryview) -> bytes:
    size = snappy_size(block)
    if size > min(DECOMPRESSED_BYTES_MAX, len(block) * SNAPPY_RATIO_MAX):
        # The memory is taken before the first byte is decompressed.
        raise ValueError(f"{size:,} bytes in a compressed block of {len(block):,}")
    text: bytes = pa.Codec("snappy").decompress(block, size, asbytes=True)
    return text


def _bounded(text: bytes) -> bytes:
    if len(text) > DECOMPRESSED_BYTES_MAX:
        raise ValueError(f"more than {DECOMPRESSED_BYTES_MAX:,} bytes after decompression")
    return text


def table(existing: pa.Table, parts: Sequence[Headers]) -> pa.Table:
    """Append the rows to those that are already in a table (`SCHEMA`), by partition and offset."""
    rows = np.concatenate([np.empty(0, ROW), *parts])
    columns = []
    for field in SCHEMA:
        values = np.ascontiguousarray(rows[field.name])
        if field.name == "control":
            columns.append(pa.array(CONTROLS, pa.string()).take(pa.array(values)))
        elif field.name == "compression":
            columns.append(pa.array(_CODEC_NAMES, pa.string()).take(pa.array(values)))
        else:
            columns.append(pa.array(values, field.type))
    whole = pa.concat_tables([existing, pa.Table.from_arrays(columns, schema=SCHEMA)])
    return whole.sort_by(
        [("partition", "ascending"), ("base_offset", "ascending")]
    ).combine_chunks()
