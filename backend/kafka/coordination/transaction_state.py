"""What the coordinators wrote into their own log: `__transaction_state`, read as a topic.

One record per change of a transactional id's state, from which follows what no answer of a
coordinator tells: which id a producer id had that is forgotten or replaced, since when a decided
transaction waits, and why one was aborted.

Kafka's schemas: `TransactionLogKey.json` and `TransactionLogValue.json` of its module
transaction-coordinator. The log is compacted, so what is old may be gone; a record of a version
that is not known here is passed over.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from topicproof.backend import settings
from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.reading import as_bytes, open_consumer, read_range
from topicproof.validators.finding import Bounds

TOPIC = "__transaction_state"
ENTRIES_MAX = 50_000
"""Of each partition, at most about this many of the last records are read: 16,000 transactions."""
STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
"""By the number that the log has for them."""
_PREVIOUS_PRODUCER, _CLIENT_VERSION = 0, 2
"""Numbers of tagged fields."""


@dataclass(frozen=True)
class StateEntry:
    """One change of a transactional id's state. Times are the coordinator's, in ms since 1970."""

    transactional_id: str
    producer_id: int
    previous_producer_id: int
    """The one it had before its epochs were used up; -1: none."""
    producer_epoch: int
    timeout_ms: int
    state: str
    partitions: frozenset[tuple[str, int]]
    updated_ms: int
    began_ms: int
    """-1 when no transaction is under way."""
    client_version: int | None
    """Transaction version that the client spoke (KIP-890): 2 bumps the epoch with every end; None
    before Kafka 4."""


def read_states(
    address: Address, bounds: Bounds, transactional_ids: Collection[str] | None = None
) -> tuple[StateEntry, ...]:
    """What the log holds of these transactional ids (None: of all), in order for each id.

    `bounds` are those of `__transaction_state`. Raises ClusterError when it may not be read or does
    not come in time.
    """
    count = len(bounds.partitions)
    wanted = (
        None
        if transactional_ids is None
        else {partition_of(name, count) for name in transactional_ids}
    )
    ends = {
        p.partition: (max(p.start, p.hw - ENTRIES_MAX), p.hw)
        for p in bounds.partitions
        if p.hw > p.start and (wanted is None or p.partition in wanted)
    }
    entries = (decode(key, value) for key, value in _records(address, ends))
    return tuple(
        each
        for each in entries
        if each is not None
        and (transactional_ids is None or each.transactional_id in transactional_ids)
    )


def partition_of(transactional_id: str, partitions: int) -> int:
    """The partition of the log that an id's coordinator leads: Java's hash of a text, made positive
    as Kafka does."""
    found = 0
    data = transactional_id.encode("utf-16-be")
    for (unit,) in struct.iter_unpack(">H", data):
        found = (31 * found + unit) & 0xFFFFFFFF
    signed = found - (1 << 32) if found & 0x80000000 else found
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


def decode(key: bytes | None, value: bytes | None) -> StateEntry | None:
    """A record of the log; None for a deleted id and for versions, or bytes, that are not
    understood."""
    if not key or not value:
        return None
    try:
        return _decode(_Reader(key), _Reader(value))
    except (struct.error, IndexError, UnicodeDecodeError):
        return None


def _decode(key: _Reader, value: _Reader) -> StateEntry | None:
    if key.number("h") != 0:
        return None
    name = key.text(key.number("h"))
    version = value.number("h")
    if version not in (0, 1):
        return None
    flexible = version == 1
    producer_id, epoch, timeout_ms, state = (value.number(kind) for kind in "qhib")
    partitions = set()
    for _ in range(value.length(flexible)):
        topic = value.text(value.length(flexible, "h"))
        numbers = [value.number("i") for _ in range(value.length(flexible))]
        partitions |= {(topic, number) for number in numbers}
        if flexible:
            value.tags()
    updated_ms, began_ms = value.number("q"), value.number("q")
    tags = value.tags() if flexible else {}
    return StateEntry(
        transactional_id=name,
        producer_id=producer_id,
        previous_producer_id=(
            _Reader(tags[_PREVIOUS_PRODUCER]).number("q") if _PREVIOUS_PRODUCER in tags else -1
        ),
        producer_epoch=epoch,
        timeout_ms=timeout_ms,
        state=STATES[state],
        partitions=frozenset(partitions),
        updated_ms=updated_ms,
        began_ms=began_ms,
        client_version=(
            _Reader(tags[_CLIENT_VERSION]).number("h") if _CLIENT_VERSION in tags else None
        ),
    )


class _Reader:
    """Kafka's wire format, from the front: fixed numbers, and since its flexible versions varints
    and tagged fields."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, kind: str) -> int:
        (found,) = struct.unpack_from(f">{kind}", self.data, self.at)
        self.at += struct.calcsize(f">{kind}")
        return int(found)

    def varint(self) -> int:
        found = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return found

    def length(self, flexible: bool, kind: str = "i") -> int:
        """Of a list or a text; null counts as 0."""
        return max(0, self.varint() - 1 if flexible else self.number(kind))

    def text(self, length: int) -> str:
        if self.at + length > len(self.data):
            raise IndexError("a text that is longer than its record")
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def tags(self) -> dict[int, bytes]:
        found = {}
        for _ in range(self.varint()):
            tag, size = self.varint(), self.varint()
            found[tag] = self.data[self.at : self.at + size]
            self.at += size
        return found


def _records(
    address: Address, spans: Mapping[int, tuple[int, int]]
) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Keys and values of [first, end) of each partition, in order for each of them."""
    if not spans:
        return
    deadline = time.monotonic() + settings.REQUEST_TIMEOUT_MS / 1000
    # Compaction may have taken the first record since the bounds were taken.
    with open_consumer(
        address, TOPIC, settings.READ_UNCOMMITTED, auto_offset_reset="earliest"
    ) as consumer:
        for message in read_range(consumer, TOPIC, spans):
            if message is not None:
                yield as_bytes(message.key()), as_bytes(message.value())
            elif time.monotonic() > deadline:
                raise ClusterError(f"{TOPIC} at {address} could not be read to its end in time.")
