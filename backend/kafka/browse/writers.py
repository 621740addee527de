"""Which writer of a run wrote a record: read from the record's own headers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

import pandas as pd

from topicproof.backend.address import Address
from topicproof.backend.kafka.browse.readable import first_unreadable, reader_limits
from topicproof.backend.kafka.browse.records import Headers, headers_of
from topicproof.backend.kafka.client_configs import READ_UNCOMMITTED, REQUEST_TIMEOUT_MS
from topicproof.backend.kafka.reading import RecordBudget, open_consumer, read_range
from topicproof.validators.lineage.compact import lineage_of, transaction_of

NAMES_BYTES_MAX = 64_000_000
"""What the headers may take from which writers are read: a name may be as long as a record."""


class Writer(NamedTuple):
    """What a record's headers say of its writer. Both are None on a record of another program."""

    source: tuple[str, int] | None = None
    """Topic and partition of its input."""
    transactional_id: str | None = None


def writers_at(
    address: Address, topic: str, ranges: pd.DataFrame, places: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], Writer]:
    """Return the writer of the record at each place (partition and offset); nothing of one that is
    too large to read, nor once the names take more than `NAMES_BYTES_MAX`. `ranges` are the topic's
    `fates.fate_ranges`. Raises ClusterError, TopicError."""
    writers: dict[tuple[int, int], Writer] = {}
    budget = RecordBudget(NAMES_BYTES_MAX)
    deadline = time.monotonic() + REQUEST_TIMEOUT_MS / 1000
    with open_consumer(address, topic, READ_UNCOMMITTED, reader_limits(ranges)) as consumer:
        for partition, offset in places:
            writers[partition, offset] = Writer()
            if budget.is_spent:
                continue
            if first_unreadable(address, topic, ranges, partition, offset, offset + 1):
                continue
            for message in read_range(consumer, topic, {partition: (offset, offset + 1)}):
                if message is not None:
                    headers = headers_of(message)
                    # The names that are held are parts of these.
                    budget.hold(None, None, headers)
                    writers[partition, offset] = _writer(headers)
                if time.monotonic() > deadline:
                    break
    return writers


def _writer(headers: Headers) -> Writer:
    lineage, transaction = lineage_of(headers), transaction_of(headers)
    return Writer(
        None if lineage is None else (lineage.topic, lineage.partition),
        None if transaction is None else transaction.transactional_id,
    )
