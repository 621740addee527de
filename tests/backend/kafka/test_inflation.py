"""How large a batch becomes is bounded before it is decompressed, for every codec of Kafka."""

from __future__ import annotations

import gzip
import struct
import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from topicproof.backend.errors import RecordTooLarge
from topicproof.backend.kafka.log import inflation
from topicproof.backend.kafka.log.batches import COMPRESSIONS, HEADER, ROW, SCHEMA
from topicproof.backend.kafka.log.inflation import (
    BATCH_BYTES_MAX,
    BROKEN,
    HEADED_BYTES_MAX,
    HEADED_BYTES_MIN,
    HEADER_BYTES,
    POLLED_RECORDS,
    RECORD_BYTES_MAX,
    counted_size,
    fetch_bytes,
    inflated_sizes,
    polled_records,
    records_within,
    require_readable,
    size_bound,
)

CODECS = ("gzip", "snappy", "lz4", "zstd")
CONTENTS = st.one_of(
    st.binary(max_size=2_000),
    st.builds(
        lambda byte, times: byte * times, st.binary(min_size=1, max_size=40), st.integers(0, 40_000)
    ),
)


def compressed(codec: str, content: bytes) -> bytes:
    if codec == "gzip":
        return gzip.compress(content)
    if codec == "snappy":
        return bytes(pa.Codec("snappy").compress(content, asbytes=True))
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(content)
    return bytes(sink.getvalue().to_pybytes())


def varint(number: int) -> bytes:
    zigzag, encoded = (number << 1) ^ (number >> 63), b""
    while zigzag > 0x7F:
        encoded += bytes([zigzag & 0x7F | 0x80])
        zigzag >>= 7
    return encoded + bytes([zigzag])


def batch(codec: str, *values: bytes, headers: int = 0) -> tuple[memoryview, list[int], np.ndarray]:
    """A batch of records with these values, from offset 7 on, and its row. Its last record has so
    many headers without name and value."""
    records = b""
    for number, value in enumerate(values):
        body = b"\0\0" + varint(number) + b"\x01" + varint(len(value)) + value
        of_last = headers if number == len(values) - 1 else 0
        body += varint(of_last) + b"\0\x01" * of_last
        records += varint(len(body)) + body
    stored = records if codec == "none" else compressed(codec, records)
    header = np.zeros(1, HEADER)
    header["base_offset"], header["count"] = 7, len(values)
    header["attributes"] = COMPRESSIONS.index(codec)
    rows = np.zeros(1, ROW)
    rows["base_offset"], rows["count"], rows["compression"] = (
        7,
        len(values),
        COMPRESSIONS.index(codec),
    )
    rows["size"] = HEADER.itemsize + len(stored)
    data = memoryview(header.tobytes() + stored)
    rows["inflated"] = inflated_sizes(data, [0], rows)
    return data, [0], rows


@pytest.mark.parametrize("codec", CODECS)
@given(
    contents=st.lists(CONTENTS, min_size=1, max_size=3),
    broken=st.integers(0, 200),
    cut=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_no_batch_takes_more_than_its_bound(
    codec: str, contents: list[bytes], broken: int, cut: bool
) -> None:
    """Frames may follow each other, be skippable, or break off: a reader gets at most the bound."""
    frames = [compressed(codec, one) for one in contents]
    if codec == "snappy":
        blocks = b"".join(struct.pack(">i", len(one)) + one for one in frames)
        stored = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + blocks
        assert size_bound(memoryview(stored), 2) >= sum(map(len, contents))
        return
    if codec == "zstd":
        frames.insert(0, struct.pack("<II", 0x184D2A53, 5) + b"noise")
    stored = b"".join(frames)
    if cut:
        stored = stored[: max(0, len(stored) - broken)]
    index = COMPRESSIONS.index(codec)
    try:
        taken = counted_size(memoryview(stored), index)
    except BROKEN:
        assert cut
        return
    assert size_bound(memoryview(stored), index) >= taken
    rows = np.zeros(1, ROW)
    rows["compression"], rows["size"] = index, HEADER.itemsize + len(stored)
    assert inflated_sizes(memoryview(bytes(HEADER.itemsize) + stored), [0], rows)[0] >= taken
    if not cut:
        assert taken == sum(map(len, contents))


def _reserved_flag(gzipped: bytes) -> bytes:
    return gzipped[:3] + bytes([gzipped[3] | 0x80]) + gzipped[4:]


def _xerial(block: bytes) -> bytes:
    return b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, len(block)) + block


UNMEASURED = {
    "gzip with a reserved flag": ("gzip", _reserved_flag),
    "gzip with anything behind it": ("gzip", lambda stored: stored + b"behind"),
    "gzip without its end": ("gzip", lambda stored: stored[:-9]),
    "snappy with a byte behind it": ("snappy", lambda stored: _xerial(stored) + b"\0"),
    "two streams of snappy": ("snappy", lambda stored: _xerial(stored) * 2),
    "lz4 with anything behind it": ("lz4", lambda stored: stored + b"behind"),
    "zstd with anything behind it": ("zstd", lambda stored: stored + b"behind"),
}


@pytest.mark.parametrize("what", UNMEASURED)
def test_what_cannot_be_measured_to_its_end_is_not_read(what: str) -> None:
    """Story: a record of some kB is 10 million headers, and its compression is one that Java reads
    and this process does not. Nobody reads it, because nobody can tell what it takes."""
    codec, damage = UNMEASURED[what]
    whole, _, rows = batch(codec, b"a", b"b", headers=HEADED_BYTES_MAX // HEADER_BYTES)
    stored = damage(bytes(whole[HEADER.itemsize :]))
    data = memoryview(bytes(whole[: HEADER.itemsize]) + stored)
    rows["size"] = len(data)
    rows["inflated"] = inflated_sizes(data, [0], rows)
    with pytest.raises(RecordTooLarge, match=r"offset 7 cannot be decompressed to its end"):
        require_readable(rows, data, [0], "orders")


@pytest.mark.parametrize("damage", [varint(2**25), varint(-(2**25)), b"\xff" * 4])
def test_a_record_of_an_impossible_length_is_not_read(damage: bytes) -> None:
    """Story: a record says another length than there is. What it takes is not known."""
    whole, positions, rows = batch("none", bytes(2 * HEADED_BYTES_MIN))
    require_readable(rows, whole, positions, "orders")
    data = bytearray(whole)
    data[HEADER.itemsize : HEADER.itemsize + 4] = damage
    with pytest.raises(RecordTooLarge, match="other records than its header says"):
        require_readable(rows, memoryview(bytes(data)), positions, "orders")


@pytest.mark.parametrize("codec", ["lz4", "snappy", "zstd"])
def test_ordinary_batches_are_far_below_the_limits(codec: str) -> None:
    """One MB that compresses ten times: nothing is decompressed to know that it is harmless."""
    rng = np.random.default_rng(7)
    text = rng.integers(0, 256, 100_000, np.uint8).tobytes() + bytes(900_000)
    stored = compressed(codec, text)
    assert size_bound(memoryview(stored), COMPRESSIONS.index(codec)) < RECORD_BYTES_MAX


@pytest.mark.parametrize("codec", CODECS)
def test_a_large_record_is_named_with_its_offset(codec: str) -> None:
    """The second record of three is beyond the limit of a record, and the batch is not."""
    large = batch(codec, b"a", bytes(RECORD_BYTES_MAX), b"c")
    with pytest.raises(
        RecordTooLarge, match=r"The record at orders-0, offset 8 takes 33,55\d,\d+ bytes"
    ):
        require_readable(large[2], large[0], large[1], "orders")
    fits = batch(codec, *[bytes(RECORD_BYTES_MAX // 2)] * 2)
    require_readable(fits[2], fits[0], fits[1], "orders")


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_large_batch_is_refused(codec: str) -> None:
    """Nobody can hold its records at once, though each is small."""
    data, positions, rows = batch(codec, *[bytes(2**24)] * (BATCH_BYTES_MAX // 2**24))
    with pytest.raises(
        RecordTooLarge,
        match="The batch of 3 records at orders-0, offset 7 takes more than 50,331,648",
    ):
        require_readable(rows, data, positions, "orders")


def test_two_gzip_members_count_together() -> None:
    """The size at the end of gzip is that of its last member: a small one may follow a bomb."""
    stored = gzip.compress(bytes(2**20)) + gzip.compress(b"small")
    assert counted_size(memoryview(stored), 1) == 2**20 + 5


def test_a_reader_fetches_less_where_batches_grow() -> None:
    """Batches that become 32,768 times larger are fetched one at a time; others as ever."""
    assert fetch_bytes(5.0, 8_000_000) == 8_000_000
    assert fetch_bytes(32_768.0, 8_000_000) == 1_536
    assert fetch_bytes(float("inf"), 8_000_000) == 1


@pytest.mark.parametrize("codec", ["none", *CODECS])
def test_headers_count_as_what_they_take_in_memory(codec: str) -> None:
    """Story: a record of 1.3 MB is nothing but headers, some hundred bytes of zstd. In a reader's
    memory it is larger than any record may be."""
    most = HEADED_BYTES_MAX // HEADER_BYTES
    data, positions, rows = batch(codec, b"a", b"b", headers=most)
    sentence = f"The record with {most:,} headers at orders-0, offset 8 takes 68,"
    with pytest.raises(RecordTooLarge, match=sentence):
        require_readable(rows, data, positions, "orders")
    data, positions, rows = batch(codec, b"a", bytes(HEADED_BYTES_MIN), headers=most // 2)
    require_readable(rows, data, positions, "orders")


def test_fewer_records_are_polled_where_they_may_be_all_headers() -> None:
    """Story: each record takes 30 MB as decoded, 70 bytes in the log. 500 at once are Spark's
    heap. Ordinary batches of small records, also of a few, are polled as ever."""

    def polled(inflated: int, count: int) -> int:
        return polled_records(pa.table({"inflated": [100, inflated], "count": [1, count]}))

    assert polled(600_000, 1) == 8
    assert polled(90_000_000, 3) == 8
    assert polled(1_000_000, 5_000) == POLLED_RECORDS
    assert polled(16_384, 10) == POLLED_RECORDS
    assert polled_records(pa.table({"inflated": pa.array([], "int64"), "count": []})) == 500


@pytest.mark.parametrize("size", [1, 5_000])
def test_many_members_of_gzip_take_time_in_proportion(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Story: each byte of a record is a member of its own, which Java reads. What is left behind
    a member is not copied again and again: twice as many members are twice as much."""
    fed = 0

    class Counting:
        def __init__(self, bits: int) -> None:
            self._member = zlib.decompressobj(bits)

        def decompress(self, data: memoryview, most: int) -> bytes:
            nonlocal fed
            fed += len(data)
            return self._member.decompress(data, most)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._member, name)

    counting = SimpleNamespace(decompressobj=Counting, MAX_WBITS=zlib.MAX_WBITS, error=zlib.error)
    monkeypatch.setattr(inflation, "zlib", counting)
    totals = []
    for members in (1_000, 2_000):
        fed = 0
        stored = gzip.compress(bytes(size)) * members
        assert inflation.counted_size(memoryview(stored), 1) == size * members
        totals.append(fed)
    assert totals[1] <= 2.2 * totals[0]


def test_of_large_records_few_are_received_at_once() -> None:
    """Story: a reader receives thousands of small records at once, and of records of 32 MB each one
    alone, also where they became so large by compression."""

    def received(*batches: tuple[int, int]) -> int:
        inflated, counts = zip(*batches, strict=True)
        return records_within(pa.table({"inflated": inflated, "count": counts}), 1_000_000)

    assert received((70_000, 1_000)) == 2_500
    assert received((70_000, 1_000), (99_670, 1)) == 10
    assert received((2**25, 1)) == 1
    assert records_within(SCHEMA.empty_table(), 1_000) == 1_000
