"""Which writer of a run wrote a record: read from the record's own headers."""

from __future__ import annotations

import time
from collections.abc import Iterable

from topicproof.backend.address import Address
from topicproof.backend.kafka.browse.records import headers_of
from topicproof.backend.kafka.client_configs import READ_UNCOMMITTED, REQUEST_TIMEOUT_MS
from topicproof.backend.kafka.reading import open_consumer, read_range
from topicproof.validators.lineage.headers import TRANSACTION_HEADER, parse_transaction


def transactional_ids_at(
    address: Address, topic: str, places: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], str | None]:
    """Return the transactional id in the header of the record at each place (partition and offset).

    None: the record has no such header, or it is not there any more. Runs without transactions
    write the header too. Raises ClusterError, TopicError.
    """
    found: dict[tuple[int, int], str | None] = {}
    deadline = time.monotonic() + REQUEST_TIMEOUT_MS / 1000
    with open_consumer(address, topic, READ_UNCOMMITTED) as consumer:
        for partition, offset in places:
            found[partition, offset] = None
            for message in read_range(consumer, topic, {partition: (offset, offset + 1)}):
                if message is not None:
                    headers = dict(headers_of(message))
                    named = parse_transaction(headers.get(TRANSACTION_HEADER))
                    found[partition, offset] = None if named is None else named.transactional_id
                if time.monotonic() > deadline:
                    break
    return found
