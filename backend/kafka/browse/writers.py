"""Which writer of a run wrote a record: read from the record's own headers."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from topicproof.backend.address import Address
from topicproof.backend.kafka.browse.records import Headers, headers_of
from topicproof.backend.kafka.client_configs import READ_UNCOMMITTED, REQUEST_TIMEOUT_MS
from topicproof.backend.kafka.reading import open_consumer, read_range
from topicproof.validators.lineage.headers import (
    LINEAGE_HEADER,
    TRANSACTION_HEADER,
    parse_lineage,
    parse_transaction,
)


class Writer(NamedTuple):
    """What a record's headers say of its writer. Both are None on a record of another program."""

    source: tuple[str, int] | None = None
    """Topic and partition of its input."""
    transactional_id: str | None = None


def writers_at(
    address: Address, topic: str, places: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], Writer]:
    """Return the writer of the record at each place (partition and offset). Raises ClusterError,
    TopicError."""
    writers: dict[tuple[int, int], Writer] = {}
    deadline = time.monotonic() + REQUEST_TIMEOUT_MS / 1000
    with open_consumer(address, topic, READ_UNCOMMITTED) as consumer:
        for partition, offset in places:
            writers[partition, offset] = Writer()
            for message in read_range(consumer, topic, {partition: (offset, offset + 1)}):
                if message is not None:
                    writers[partition, offset] = _writer(headers_of(message))
                if time.monotonic() > deadline:
                    break
    return writers


def _writer(headers: Headers) -> Writer:
    values = dict(headers)
    lineage = parse_lineage(values.get(LINEAGE_HEADER))
    transaction = parse_transaction(values.get(TRANSACTION_HEADER))
    return Writer(
        None if lineage is None else (lineage.topic, lineage.partition),
        None if transaction is None else transaction.transactional_id,
    )
