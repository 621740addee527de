"""Records decoded from the raw log, one batch at a time.

A consumer decompresses whatever a broker sends, and fetches ahead. So where one batch must not be
decompressed, the records around it are decoded here. A batch takes at most `DECOMPRESSED_BYTES_MAX`
of memory, and is decoded to its end before the first of its records is handed out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.log.batches import (
    COMPRESSION_BITS,
    HEADER,
    LOG_APPEND_TIME_BIT,
    cut_unread,
    decompress,
    varint,
)
from topicproof.backend.kafka.log.inflation import BROKEN, UnreadableBatch, not_whole, unreadable
from topicproof.backend.kafka.log.rawlog import Connection
from topicproof.backend.kafka.reading import NotText

_CREATE_TIME, _APPEND_TIME = 1, 2
_UNDECODABLE = (*BROKEN, OverflowError, ClusterError)
"""What a broken batch raises; the last one for an unknown codec."""
IsVisible = Callable[[Any], bool]


class RawRecord:
    """A record of a batch, with the methods of confluent-kafka's `Message` that readers use."""

    __slots__ = ("_data", "_partition", "_place")

    def __init__(self, partition: int, data: memoryview, place: _Place) -> None:
        self._partition, self._data, self._place = partition, data, place

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._place.offset

    def timestamp(self) -> tuple[int, int]:
        """Return its type as a number, and ms since 1970."""
        return self._place.time_type, self._place.timestamp_ms

    def key(self) -> bytes | None:
        return _content(self._data, self._place.key)

    def value(self) -> bytes | None:
        return _content(self._data, self._place.value)

    def headers(self) -> list[tuple[str, bytes | None]]:
        """Return the headers in order. Raises NotText."""
        headers, at = [], self._place.headers_at
        count, at = varint(self._data, at)
        for _ in range(count):
            name, at = _field(self._data, at)
            value, at = _field(self._data, at)
            try:
                text = (_content(self._data, name) or b"").decode()
            except UnicodeDecodeError as error:
                raise NotText("the name of a header is not UTF-8") from error
            headers.append((text, _content(self._data, value)))
        return headers


class _Place(NamedTuple):
    """Where the parts of a record are in the decompressed batch."""

    offset: int
    timestamp_ms: int
    time_type: int
    key: tuple[int, int]
    """Its first byte, and behind its last one; -1 twice without a key."""
    value: tuple[int, int]
    headers_at: int


def raw_records(
    kafka: Connection,
    topic: str,
    partition: int,
    span: tuple[int, int],
    is_visible: IsVisible,
    on_unreadable: Callable[[UnreadableBatch], None],
) -> Iterator[RawRecord]:
    """Yield the records at the offsets [first, end) of a partition, in their order. `is_visible`
    says of a batch's row whether it is read at all. `on_unreadable` gets each of these that cannot
    be decoded to its end. Raises as `Connection.scan`."""
    first, end = span
    for row, batch in kafka.stored_batches(topic, partition, span):
        if row["control"] or not is_visible(row):
            continue
        try:
            records = _decompressed(batch)
            # Once to its end, without keeping a place: a record may have a few bytes.
            deque(_places(batch, records), maxlen=0)
        except _UNDECODABLE as error:
            on_unreadable(unreadable(cut_unread(row, first, end), not_whole(row, topic, error)))
            continue
        for place in _places(batch, records):
            if first <= place.offset < end:
                yield RawRecord(partition, records, place)


def _decompressed(batch: memoryview) -> memoryview:
    header: Any = np.frombuffer(batch[: HEADER.itemsize], HEADER)[0]
    codec = int(header["attributes"]) & COMPRESSION_BITS
    return memoryview(decompress(batch[HEADER.itemsize :], codec))


def _places(batch: memoryview, records: memoryview) -> Iterator[_Place]:
    """Yield the places of a batch's records. Raises one of `_UNDECODABLE` for a batch that is not
    its header's number of records."""
    header: Any = np.frombuffer(batch[: HEADER.itemsize], HEADER)[0]
    attributes, base = int(header["attributes"]), int(header["base_offset"])
    is_appended = bool(attributes & LOG_APPEND_TIME_BIT)
    time_type = _APPEND_TIME if is_appended else _CREATE_TIME
    first_ms, last_ms = int(header["first_timestamp"]), int(header["max_timestamp"])
    last_delta, count = int(header["last_offset_delta"]), int(header["count"])
    at, newest = 0, -1
    for _ in range(count):
        length, at = varint(records, at)
        end = at + length
        if not 0 < length <= len(records) - at:
            raise ValueError(f"a record of length {length}")
        # One byte of attributes, which Kafka does not use.
        timestamp, inner = varint(records, at + 1)
        delta, inner = varint(records, inner)
        key, inner = _field(records, inner)
        value, inner = _field(records, inner)
        headers_at = inner
        headers, inner = varint(records, inner)
        for _header in range(headers):
            _, inner = _field(records, inner)
            _, inner = _field(records, inner)
        if headers < 0 or inner != end or not newest < delta <= last_delta:
            raise ValueError("a record that does not end where it says, or out of its order")
        timestamp_ms = last_ms if is_appended else first_ms + timestamp
        yield _Place(base + delta, timestamp_ms, time_type, key, value, headers_at)
        at, newest = end, delta
    if at != len(records):
        raise ValueError("anything behind the last record")


def _field(data: memoryview, at: int) -> tuple[tuple[int, int], int]:
    """Return where a field with its length begins and ends, and the position behind it. Raises
    ValueError for one that is not there."""
    length, at = varint(data, at)
    if length < 0:
        return (-1, -1), at
    if length > len(data) - at:
        raise ValueError(f"a field of length {length}")
    return (at, at + length), at + length


def _content(data: memoryview, place: tuple[int, int]) -> bytes | None:
    begin, end = place
    return None if begin < 0 else bytes(data[begin:end])
