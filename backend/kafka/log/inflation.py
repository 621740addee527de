"""How many bytes record batches take after decompression, before anybody decompresses them.

A batch of 16 kB may hold one record of 500 MB: zstd stores 128 KiB of zeros in four bytes. Brokers
limit the stored size alone (message.max.bytes), and readers take a record into memory whole.

The bound follows from the frames of the codec, without decompression: zstd and lz4 have blocks of a
largest size (RFC 8878, the LZ4 frame format), and snappy begins with the size. gzip says it only at
its end, and not reliably, because several members may follow each other (RFC 1952). So for gzip it
is the largest ratio of deflate.

Decoders differ in what they pass over: Java's reads gzip with reserved flags, with anything behind
the last member, and lz4 with a wrong checksum of the content. So what cannot be decompressed here
to its last byte has no size, and is not read.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from topicproof.backend.errors import RecordTooLarge
from topicproof.backend.kafka.log.batches import (
    COMPRESSION_BITS,
    COMPRESSIONS,
    DECOMPRESSED_BYTES_MAX,
    HEADER,
    SNAPPY_RATIO_MAX,
    Headers,
    decompress,
    snappy_blocks,
    snappy_size,
    varint,
)

RECORD_BYTES_MAX = 2**25
"""The largest record that is read, with key, value and headers. A task of Spark holds some four
copies. Brokers accept 1 MB by default, and records of 10 MB are in use."""
HEADER_BYTES = 100
"""What a header takes in memory beside its own bytes, in Java as in Python."""
HEADED_GROWTH = 1 + HEADER_BYTES // 2
"""A header without name and value has two bytes in the log."""
HEADED_BYTES_MAX = 2 * RECORD_BYTES_MAX
"""What a record's bytes and its headers may take together. Twice as much, so that no batch of 1 MB,
the most that brokers accept by default, must be walked record by record."""
HEADED_BYTES_MIN = HEADED_BYTES_MAX // HEADED_GROWTH
"""A shorter record cannot have so many headers that it takes more than `HEADED_BYTES_MAX`."""
POLLED_RECORDS, POLLED_BYTES_MAX = 500, 2**28
"""Records that Java's consumer hands out at once by default, and what they may take together."""
BATCH_BYTES_MAX = DECOMPRESSED_BYTES_MAX
"""The largest batch that is read. A reader may hold all of its records."""
RECORD_OVERHEAD_BYTES = 330
"""What librdkafka takes for a record beside its content. An empty one has seven bytes in the log,
and less than one after compression."""
BATCH_RECORDS_MAX = 500_000
"""The most records of a batch that is read, for that reason. librdkafka writes 10,000 by
default."""
GZIP_RATIO_MAX = 1_032
"""Deflate writes at most 258 bytes for two bits."""
LZ4_RATIO_MAX = 255
ZSTD_BLOCK_BYTES_MAX = 2**17
BEYOND = 2**40
BROKEN = (OSError, IndexError, ValueError, struct.error, zlib.error)
"""What decoders raise."""
_REMEDY = (
    "Remove what is up to there (kafka-delete-records.sh), or use a copy of the topic without it."
)
_RATIOS = {1: GZIP_RATIO_MAX, 2: SNAPPY_RATIO_MAX, 3: LZ4_RATIO_MAX}
"""By the codec's number. A snappy block that names a larger size is broken, and brokers refuse
it."""
_ZSTD_HEADER_BYTES_MAX, _ZSTD_BLOCK_HEADER_BYTES = 18, 3
_CHUNK_BYTES = 2**22
_GZIP_SLICE_BYTES = 2**12
_ZSTD_MAGIC, _LZ4_MAGIC = 0xFD2FB528, 0x184D2204
_SKIPPABLE, _SKIPPABLE_MASK = 0x184D2A50, 0xFFFFFFF0
_STORED_BIT = 0x80000000
_LZ4_BLOCK_BYTES_MAX = {4: 2**16, 5: 2**18, 6: 2**20, 7: 2**22}
_WINDOW_BYTES = 1
_UINT = struct.Struct("<I").unpack_from

Sizes = npt.NDArray[np.int64]


def fetch_bytes(ratio: float, default: int) -> int:
    """Return how many bytes a reader may fetch of a partition at once, so that they take at most
    `BATCH_BYTES_MAX` after decompression. Brokers always send one whole batch (KIP-74). `ratio`:
    the largest one of the topic's batches."""
    return max(1, min(default, int(BATCH_BYTES_MAX / max(ratio, 1.0))))


def largest_ratio(batches: pa.Table) -> float:
    """Return how many times larger a batch becomes at most (`batches.SCHEMA`)."""
    sizes = np.maximum(np.asarray(batches["size"]), 1)
    return float((np.asarray(batches["inflated"]) / sizes).max(initial=1.0))


def largest_client_ratio(batches: pa.Table) -> float:
    """Return the same with what librdkafka takes for each record."""
    sizes = np.maximum(np.asarray(batches["size"]), 1)
    taken = client_bytes(np.asarray(batches["inflated"]), np.asarray(batches["count"]))
    return float((taken / sizes).max(initial=1.0))


def client_bytes(inflated: Any, counts: Any) -> Any:
    """Return what batches take at most in the memory of librdkafka: arrays or columns of their
    bytes after decompression, and of their numbers of records."""
    return inflated + counts * RECORD_OVERHEAD_BYTES


def polled_records(batches: pa.Table) -> int:
    """Return how many records Java's consumer may hand out at once, so that they take at most
    `POLLED_BYTES_MAX` even if all are headers (`batches.SCHEMA`)."""
    counts = np.maximum(np.asarray(batches["count"]), 1)
    averages = np.asarray(batches["inflated"]) * (HEADED_GROWTH / counts)
    most = float(np.minimum(averages, RECORD_BYTES_MAX).max(initial=1.0))
    return int(np.clip(POLLED_BYTES_MAX / max(most, 1.0), 1, POLLED_RECORDS))


def records_within(batches: pa.Table, bytes_max: int) -> int:
    """Return how many records of these batches, one after the other, take at most so many bytes in
    the memory of librdkafka, beside two whole batches at the ends (`batches.SCHEMA`)."""
    counts = np.maximum(np.asarray(batches["count"]), 1)
    averages = client_bytes(np.asarray(batches["inflated"]), counts) / counts
    return max(1, int(bytes_max / averages.max(initial=1.0)))


def inflated_sizes(data: memoryview, positions: Sequence[int], rows: Headers) -> Sizes:
    """Return the largest number of bytes that each batch may take after decompression. Nothing is
    decompressed.

    The codec's largest ratio is enough for most batches. zstd's is 32,768, so its frames are
    walked: those of one block all at once, as most small batches are.
    """
    sizes = rows["size"].astype(np.int64)
    codecs = rows["compression"]
    at = np.asarray(positions, np.int64) + HEADER.itemsize
    records = sizes - HEADER.itemsize
    bounds = sizes.copy()
    for codec, ratio in _RATIOS.items():
        bounds = np.where(codecs == codec, HEADER.itemsize + records * ratio, bounds)
    zstd = np.flatnonzero(codecs == COMPRESSIONS.index("zstd"))
    bounds[zstd] += _single_blocks(data, at[zstd], records[zstd])
    walked = (bounds > RECORD_BYTES_MAX) & (codecs != 0) & (codecs != COMPRESSIONS.index("gzip"))
    for index in np.flatnonzero(walked).tolist():
        first, end = int(at[index]), int(at[index] + records[index])
        bounds[index] = HEADER.itemsize + size_bound(data[first:end], int(codecs[index]))
    return np.maximum(bounds, sizes)


def _single_blocks(data: memoryview, at: Sizes, sizes: Sizes) -> Sizes:
    """Return the bound of each zstd frame that is one block; of any other, a number beyond every
    limit. `at` and `sizes`: where the compressed records begin, and how long they are."""
    content = np.frombuffer(data, np.uint8)
    columns = np.arange(_ZSTD_HEADER_BYTES_MAX + _ZSTD_BLOCK_HEADER_BYTES)
    heads = content[np.minimum(at[:, None] + columns, len(content) - 1)].astype(np.int64)
    descriptor = heads[:, 4]
    single = descriptor >> 5 & 1
    header = 6 - single + np.array([0, 1, 2, 4])[descriptor & 3]
    header += np.where(descriptor >> 6, 1 << (descriptor >> 6), single)
    block = sum(
        np.take_along_axis(heads, header[:, None] + byte, 1)[:, 0] << 8 * byte for byte in range(3)
    )
    last, kind, size = block & 1, block >> 1 & 3, block >> 3
    end = header + _ZSTD_BLOCK_HEADER_BYTES + np.where(kind == 1, 1, size) + (descriptor & 4)
    magic = (heads[:, :4] << np.array([0, 8, 16, 24])).sum(axis=1)
    whole = (magic == _ZSTD_MAGIC) & (last == 1) & (kind < 3) & (end == sizes)
    return np.where(whole, np.where(kind == 2, ZSTD_BLOCK_BYTES_MAX, size), BEYOND)


def size_bound(data: memoryview, compression: int) -> int:
    """Return the largest number of bytes that compressed records may take; BEYOND where the frames
    are broken."""
    codec = COMPRESSIONS[compression] if compression < len(COMPRESSIONS) else ""
    try:
        if codec == "zstd":
            return _zstd_bound(data)
        if codec == "lz4":
            return _lz4_bound(data)
        if codec == "snappy":
            return min(_snappy_bound(data), BEYOND)
    except BROKEN:
        return BEYOND
    return len(data) * (GZIP_RATIO_MAX if codec == "gzip" else 1)


def counted_size(data: memoryview, compression: int, most: int = BATCH_BYTES_MAX) -> int:
    """Decompress and discard. Returns the number of bytes; one beyond `most` means: more. Raises
    one of `BROKEN` for what does not decompress to its last byte."""
    codec = COMPRESSIONS[compression] if compression < len(COMPRESSIONS) else ""
    if codec == "gzip":
        return _gzip_size(data, most)
    if codec in ("none", ""):
        return len(data)
    if codec == "snappy":
        return min(_snappy_bound(data), most + 1)
    total = 0
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        while total <= most and (size := stream.read_buffer(_CHUNK_BYTES).size):
            total += size
    return min(total, most + 1)


class UnreadableBatch(NamedTuple):
    """A batch of the log that nobody here reads: it is too large, or broken."""

    partition: int
    first: int
    last: int
    records: int
    """How many it has, by its header."""
    why: str
    """A sentence with its place."""

    @property
    def is_dense(self) -> bool:
        """Whether it has a record at each of its offsets."""
        return self.records == self.last - self.first + 1


def unreadable(row: Any, error: Exception) -> UnreadableBatch:
    """Return the batch of a row, and why it is not read."""
    return UnreadableBatch(
        partition=int(row["partition"]),
        first=int(row["base_offset"]),
        last=int(row["last_offset"]),
        records=int(row["count"]),
        why=str(error).removesuffix(_REMEDY).strip(),
    )


def require_readable(rows: Headers, data: memoryview, positions: Sequence[int], topic: str) -> None:
    """Raise the first error of `refusals`."""
    for _, error in refusals(rows, data, positions, topic):
        raise error


def refusals(
    rows: Headers, data: memoryview, positions: Sequence[int], topic: str
) -> Iterator[tuple[int, RecordTooLarge]]:
    """Yield the index of each batch with a record that would exhaust a reader's memory, or whose
    size nobody can tell, and the reason.

    `rows` have the bounds of `inflated_sizes`; only what these do not settle is decompressed. A
    header counts as its bytes and `HEADER_BYTES`: two bytes of the log are enough for one.
    """
    is_examined = (
        (rows["inflated"] > HEADED_BYTES_MIN)
        | (rows["compression"] >= len(COMPRESSIONS))
        | (rows["count"] > BATCH_RECORDS_MAX)
    )
    for index in np.flatnonzero(is_examined).tolist():
        row, at = rows[index], positions[index]
        batch = data[at : at + int(row["size"])]
        try:
            _require_readable(row, batch, topic)
        except RecordTooLarge as error:
            yield index, error
        except BROKEN as error:
            yield index, not_whole(row, topic, error)


def not_whole(row: Any, topic: str, cause: Exception) -> RecordTooLarge:
    """Return the sentence for a batch that cannot be decompressed or decoded to its end."""
    error = RecordTooLarge(
        f"{_subject(row, topic)} cannot be decompressed to its end, or has other records"
        f" than its header says ({_codec_name(int(row['compression']))},"
        f" {int(row['size']):,} bytes of the log). Other readers may pass over that, and"
        f" then take up to {int(row['inflated']):,} bytes of memory. {_REMEDY}"
    )
    error.__cause__ = cause
    return error


def _codec_name(codec: int) -> str:
    return COMPRESSIONS[codec] if codec < len(COMPRESSIONS) else f"unknown codec {codec}"


def _require_readable(row: Any, batch: memoryview, topic: str) -> None:
    """Raises RecordTooLarge, and one of `BROKEN` for a batch that cannot be measured."""
    codec = int(row["compression"])
    if codec >= len(COMPRESSIONS):
        raise ValueError(f"compression codec {codec} is not one of Kafka's")
    if row["count"] > BATCH_RECORDS_MAX:
        raise RecordTooLarge(
            f"{_subject(row, topic)} has too many to be read. A reader holds all records of a batch"
            f" at once, so at most {BATCH_RECORDS_MAX:,} are read, so that nobody else's work ends"
            f" for lack of memory. {_REMEDY}"
        )
    size = counted_size(batch[HEADER.itemsize :], codec)
    if size > BATCH_BYTES_MAX:
        raise too_large(_subject(row, topic), int(row["size"]), BATCH_BYTES_MAX, codec)
    if size > HEADED_BYTES_MIN:
        record = largest_record(batch)
        if record.memory > HEADED_BYTES_MAX:
            many = f" with {record.headers:,} headers" if record.headers else ""
            place = f"{topic}-{int(row['partition'])}, offset {record.offset:,}"
            taken = record.size + record.headers * HEADER_BYTES
            subject = f"The record{many} at {place}"
            raise too_large(subject, int(row["size"]), RECORD_BYTES_MAX, codec, taken)


def _subject(row: Any, topic: str) -> str:
    what = "The record" if row["count"] == 1 else f"The batch of {row['count']:,} records"
    return f"{what} at {topic}-{int(row['partition'])}, offset {int(row['base_offset']):,}"


def too_large(
    subject: str, stored: int, most: int, codec: int, size: int | None = None
) -> RecordTooLarge:
    """Return the sentence for a record or batch beyond a limit. `size`: its bytes, if counted."""
    memory = f"more than {most:,} bytes" if size is None else f"{size:,} bytes"
    packed = f", {COMPRESSIONS[codec]} in {stored:,} bytes of the log" if codec else ""
    return RecordTooLarge(
        f"{subject} takes {memory} of memory{packed}. At most {RECORD_BYTES_MAX:,} bytes of a"
        f" record and {BATCH_BYTES_MAX:,} of a batch are read, so that nobody else's work ends for"
        f" lack of memory. {_REMEDY}"
    )


class RecordSize(NamedTuple):
    """What a record takes."""

    offset: int
    size: int
    """Its bytes in the log, decompressed."""
    headers: int
    """How many it has; 0 if it is too short for its headers to matter."""

    @property
    def memory(self) -> int:
        """Its bytes as they count against `HEADED_BYTES_MAX`: a task holds more copies of keys and
        values than of headers."""
        return self.size + max(self.size, self.headers * HEADER_BYTES)


def largest_record(batch: memoryview) -> RecordSize:
    """Return the record of a batch that takes most memory. The caller has limited the batch's size.
    Raises one of `BROKEN` for a batch that is not its header's number of records."""
    header: Any = np.frombuffer(batch[: HEADER.itemsize], HEADER)[0]
    codec = int(header["attributes"]) & COMPRESSION_BITS
    base, at = int(header["base_offset"]), 0
    largest = RecordSize(base, 0, 0)
    records = memoryview(decompress(batch[HEADER.itemsize :], codec))
    for _ in range(int(header["count"])):
        length, at = varint(records, at)
        if not 0 <= length <= len(records) - at:
            raise ValueError(f"a record of length {length}")
        if length > min(largest.size, HEADED_BYTES_MIN):
            delta, headers = _offset_and_headers(records[: at + length], at)
            matters = headers if length > HEADED_BYTES_MIN else 0
            record = RecordSize(base + delta, length, matters)
            if record.memory > largest.memory:
                largest = record
        at += length
        if len(records) - at <= min(largest.size, HEADED_BYTES_MIN):
            break
    return largest


def _offset_and_headers(records: memoryview, at: int) -> tuple[int, int]:
    """Return a record's distance from the batch's first offset, and its number of headers. Raises
    IndexError, ValueError for a broken record."""
    _, at = varint(records, at + 1)
    delta, at = varint(records, at)
    for _field in ("key", "value"):
        length, at = varint(records, at)
        at += max(length, 0)
    return delta, max(varint(records, at)[0], 0)


def _snappy_bound(data: memoryview) -> int:
    """Readers take the memory that each block names before they decompress it."""
    return sum(max(len(block), snappy_size(block)) for block in snappy_blocks(data))


def _zstd_bound(data: memoryview) -> int:
    at = total = 0
    while at < len(data):
        (magic,) = _UINT(data, at)
        if magic & _SKIPPABLE_MASK == _SKIPPABLE:
            at += 8 + _UINT(data, at + 4)[0]
            continue
        if magic != _ZSTD_MAGIC:
            raise ValueError(f"{magic:#x} begins no frame of zstd")
        descriptor = data[at + 4]
        single = descriptor >> 5 & 1
        at += 5 + (0 if single else _WINDOW_BYTES)
        at += (0, 1, 2, 4)[descriptor & 3] + (single, 2, 4, 8)[descriptor >> 6]
        last = 0
        while not last:
            block = data[at] | data[at + 1] << 8 | data[at + 2] << 16
            last, kind, size = block & 1, block >> 1 & 3, block >> 3
            at += 3 + (1 if kind == 1 else size)
            total += ZSTD_BLOCK_BYTES_MAX if kind == 2 else size
        if descriptor & 4:
            at += 4
    return total


def _lz4_bound(data: memoryview) -> int:
    at = total = 0
    while at < len(data):
        (magic,) = _UINT(data, at)
        if magic & _SKIPPABLE_MASK == _SKIPPABLE:
            at += 8 + _UINT(data, at + 4)[0]
            continue
        flags = data[at + 4]
        largest = _LZ4_BLOCK_BYTES_MAX.get(data[at + 5] >> 4 & 7)
        if magic != _LZ4_MAGIC or largest is None:
            raise ValueError(f"{magic:#x} begins no frame of lz4")
        at += 7 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0)
        while size := _UINT(data, at)[0]:
            stored = size & ~_STORED_BIT
            total += stored if size & _STORED_BIT else min(largest, stored * LZ4_RATIO_MAX)
            at += 4 + stored + (4 if flags & 16 else 0)
        at += 4 + (4 if flags & 4 else 0)
    return total


def _gzip_size(data: memoryview, most: int) -> int:
    """A batch may have a member of gzip for each byte, so members are fed small slices: what is
    left of a slice behind the end of a member is copied. Raises zlib.error, ValueError."""
    total = at = 0
    while at < len(data) and total <= most:
        member = zlib.decompressobj(zlib.MAX_WBITS | 16)
        while not member.eof and at < len(data) and total <= most:
            slice_ = data[at : at + _GZIP_SLICE_BYTES]
            total += len(member.decompress(slice_, _CHUNK_BYTES))
            at += len(slice_) - len(member.unconsumed_tail) - len(member.unused_data)
        if total <= most:
            total += len(member.flush())
            if not member.eof:
                raise ValueError("the last member of gzip has no end")
    return min(total, most + 1)
