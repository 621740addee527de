"""Records that are too large to read are refused before a client of Kafka decompresses them."""

from __future__ import annotations

from collections.abc import Mapping

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


def require_readable_spans(
    address: Address, topic: str, ranges: pd.DataFrame, spans: Mapping[int, tuple[int, int]]
) -> None:
    """Raise RecordTooLarge if a record at the offsets [first, end) of a partition is too large to
    read. `ranges` are the topic's `fates.fate_ranges`."""
    for partition, (first, end) in spans.items():
        unreadable = first_unreadable(address, topic, ranges, partition, first, end)
        if unreadable is not None:
            raise unreadable[1]


def first_unreadable(
    address: Address, topic: str, ranges: pd.DataFrame, partition: int, first: int, end: int
) -> tuple[int, RecordTooLarge] | None:
    """Return where the first batch within [first, end) begins that is too large to read, and the
    sentence that says so. None for a readable span.

    Most topics have no batch that may be too large, and their `ranges` say so. Only such a batch is
    fetched and measured.
    """
    is_inside = (ranges["first_offset"] < end) & (ranges["last_offset"] >= first)
    is_suspect = (ranges["inflated"] > RECORD_BYTES_MAX) & (ranges["partition"] == partition)
    suspects = ranges[is_suspect & is_inside]
    if not len(suspects):
        return None
    with rawlog.connect(address) as kafka:
        for low, last in zip(
            suspects["first_offset"].tolist(), suspects["last_offset"].tolist(), strict=True
        ):
            batch = PartitionBounds(partition, low, last + 1, last + 1)
            try:
                kafka.scan(topic, Bounds(topic, (batch,)), readable=True)
            except RecordTooLarge as error:
                return low, error
    return None
