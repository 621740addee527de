"""Records that are too large to read are refused before a client of Kafka decompresses them.

Most topics have no batch that may be too large, and their `fates.fate_ranges` say so. Only such a
batch is fetched and measured. For gzip that takes up to a third of a second, and a topic may have
thousands: whoever reads on sets a limit to what is measured at once.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from typing import NamedTuple

import numpy as np
import pandas as pd

from topicproof.backend.address import Address
from topicproof.backend.errors import RecordTooLarge
from topicproof.backend.kafka.client_configs import READER_FETCH_BYTES, FetchLimits, fetch_limits
from topicproof.backend.kafka.log import rawlog
from topicproof.backend.kafka.log.inflation import RECORD_BYTES_MAX, fetch_bytes
from topicproof.validators.finding import Bounds, PartitionBounds


def reader_limits(ranges: pd.DataFrame) -> FetchLimits:
    """Return the limits of a consumer for a topic with these `fates.fate_ranges`: it fetches
    ahead no more than its memory can hold after decompression."""
    ratio = float(ranges["ratio"].max()) if len(ranges) else 1.0
    return fetch_limits(fetch_bytes(ratio, READER_FETCH_BYTES))


class ReadablePart(NamedTuple):
    """The beginning of a span that has no batch which is too large to read."""

    end: int
    """Behind its last offset: where the span ends, or a batch begins that was refused, or not
    measured yet."""
    refusal: RecordTooLarge | None
    """Why the batch at the end is not read."""
    measured_bytes: int
    """Bytes of the log that were fetched to measure them."""


class Suspects:
    """The batches of a partition that may be too large to read. Each is measured once, when it is
    asked for. Close it."""

    def __init__(self, address: Address, topic: str, ranges: pd.DataFrame, partition: int) -> None:
        """`ranges` are the topic's `fates.fate_ranges`."""
        self.address, self.topic, self.partition = address, topic, partition
        rows = ranges[(ranges["inflated"] > RECORD_BYTES_MAX) & (ranges["partition"] == partition)]
        self.firsts: list[int] = rows["first_offset"].tolist()
        self.lasts: list[int] = rows["last_offset"].tolist()
        self._refusals: dict[int, RecordTooLarge | None] = {}
        """By number, of those that were measured."""
        self.measured_bytes = 0
        """Bytes of the log that were fetched to measure them."""
        self._client = ExitStack()
        self._kafka: rawlog.Connection | None = None

    def close(self) -> None:
        self._client.close()

    def readable(
        self,
        first: int,
        end: int,
        count: int = sys.maxsize,
        is_over: Callable[[int], bool] = lambda _measured_bytes: False,
    ) -> ReadablePart:
        """Measure batches of the offsets [first, end) in their order, at most `count`, and one at
        least. `is_over` is asked before each further one, with the bytes that were measured.

        Raises TopicError, ClusterError.
        """
        measured_bytes = 0
        numbers = range(bisect_left(self.lasts, first), bisect_left(self.firsts, end))
        for number in numbers:
            position = number - numbers.start
            if position and (position >= count or is_over(measured_bytes)):
                return ReadablePart(max(first, self.firsts[number]), None, measured_bytes)
            if number not in self._refusals:
                measured_bytes += self._measure(number)
            if (refusal := self._refusals[number]) is not None:
                return ReadablePart(max(first, self.firsts[number]), refusal, measured_bytes)
        return ReadablePart(end, None, measured_bytes)

    def last_few(self, first: int, end: int, count: int) -> int:
        """Return the first offset of [first, end) behind which at most `count` of them lie."""
        begin = bisect_left(self.lasts, first)
        beyond = bisect_left(self.firsts, end) - count - 1
        return self.lasts[beyond] + 1 if beyond >= begin else first

    def _measure(self, number: int) -> int:
        """Fetch a batch and decompress it bit by bit. Returns its bytes in the log."""
        low, end = self.firsts[number], self.lasts[number] + 1
        batch = Bounds(self.topic, (PartitionBounds(self.partition, low, end, end),))
        self._kafka = self._kafka or self._client.enter_context(rawlog.connect(self.address))
        try:
            batches = self._kafka.scan(self.topic, batch, readable=True)
        except RecordTooLarge as error:
            self._refusals[number] = error
            return 0
        self._refusals[number] = None
        size = int(np.asarray(batches["size"]).sum())
        self.measured_bytes += size
        return size


def require_readable_spans(
    address: Address,
    topic: str,
    ranges: pd.DataFrame,
    spans: Mapping[int, tuple[int, int]],
    is_over: Callable[[int], bool] = lambda _measured_bytes: False,
) -> bool:
    """Raise RecordTooLarge if a record at the offsets [first, end) of a partition is too large to
    read. `ranges` are the topic's `fates.fate_ranges`. Return whether all was measured before
    `is_over`, which is asked as by `Suspects.readable`."""
    for partition, (first, end) in spans.items():
        with closing(Suspects(address, topic, ranges, partition)) as suspects:
            part = suspects.readable(first, end, is_over=is_over)
        if part.refusal is not None:
            raise part.refusal
        if part.end < end:
            return False
    return True


def first_unreadable(
    address: Address, topic: str, ranges: pd.DataFrame, partition: int, first: int, end: int
) -> tuple[int, RecordTooLarge] | None:
    """Return where the first batch within [first, end) begins that is too large to read, and the
    sentence that says so. None for a readable span."""
    with closing(Suspects(address, topic, ranges, partition)) as suspects:
        part = suspects.readable(first, end)
    return None if part.refusal is None else (part.end, part.refusal)
