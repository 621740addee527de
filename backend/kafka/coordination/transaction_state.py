"""The transaction coordinators' own log, `__transaction_state`, read as a topic.

It has one record per state change of a transactional id. It shows what coordinators do not report:
the transactional id of a forgotten or replaced producer id, when a transaction was decided, and why
one was aborted.

Kafka's schemas are `TransactionLogKey.json` and `TransactionLogValue.json` of its module
transaction-coordinator. The log is compacted, so old entries may be gone. Records of unknown
versions are skipped.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.client_configs import READ_UNCOMMITTED
from topicproof.backend.kafka.look import LookBudget
from topicproof.backend.kafka.reading import as_bytes, read_records
from topicproof.validators.coordinator import PREPARED
from topicproof.validators.finding import Bounds

TOPIC = "__transaction_state"
ENTRIES_MAX = 50_000
"""At most this many records at the end of each partition are read: 16,000 transactions."""
PLACES_MAX = 500_000
"""At most this many partitions of aborted transactions are kept in all. A producer may name each
partition of a large topic in every transaction."""
DECIDED_ABORT = "PrepareAbort"
PREVIOUS_PRODUCER_ID, CLIENT_VERSION = 0, 2
"""Tags of an entry."""
NO_PRODUCER = struct.pack(">q", -1)
EPOCH_BUMPS = 2
"""The transaction version in which every end bumps the epoch (KIP-890)."""
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
"""Indexed by the state's number in the log."""


@dataclass(frozen=True)
class StateEntry:
    """One change of a transactional id's state. Times are the coordinator's, in ms since 1970."""

    transactional_id: str
    producer_id: int
    previous_producer_id: int
    """The producer id that ran out of epochs; -1: none."""
    producer_epoch: int
    timeout_ms: int
    state: str
    partitions: frozenset[tuple[str, int]]
    """Those of a transaction whose abort was decided (PrepareAbort), or with `every_decision` its
    commit (PrepareCommit); otherwise empty."""
    updated_ms: int
    began_ms: int
    """-1 when no transaction is under way."""
    client_version: int | None
    """The transaction version (KIP-890) of the client that made the change. 2 bumps the epoch at
    every end, 0 is an older client. None before Kafka 4."""


def read_states(
    address: Address,
    bounds: Bounds,
    transactional_ids: Collection[str] | None = None,
    topics: Collection[str] = (),
    *,
    budget: LookBudget,
    every_decision: bool = False,
) -> tuple[StateEntry, ...]:
    """Return the log's entries of these transactional ids (None: of all), in order for each id; the
    newest if there are more than the budget allows.

    `bounds` are those of `__transaction_state`. `topics`: those whose partitions are needed.
    `every_decision`: the partitions of all topics, of commits too; of later entries none when they
    are too many. Raises ClusterError when the log cannot be read, not in time, or names too much to
    keep; RecordTooLarge.
    """
    count = len(bounds.partitions)
    log_partitions = (
        None
        if transactional_ids is None
        else {partition_of(name, count) for name in transactional_ids}
    )
    read = [
        p
        for p in bounds.partitions
        if p.hw > p.start and (log_partitions is None or p.partition in log_partitions)
    ]
    most = min(ENTRIES_MAX, budget.limits.records // max(1, len(read)))
    spans = {p.partition: (max(p.start, p.hw - most), p.hw) for p in read}
    entries: list[StateEntry] = []
    # Thousands of entries may have the same name of 32 kB.
    names: dict[str, str] = {}
    places = 0
    for key, value in _records(address, spans):
        entry = decode(key, value, topics, every_decision and places <= PLACES_MAX)
        if entry is None or (
            transactional_ids is not None and entry.transactional_id not in transactional_ids
        ):
            continue
        name = names.setdefault(entry.transactional_id, entry.transactional_id)
        if name is entry.transactional_id:
            budget.size += sys.getsizeof(name)
        else:
            entry = replace(entry, transactional_id=name)
        entries.append(entry)
        places += len(entry.partitions)
        # Without a decision an abort would look like an operator's, so none may be left out.
        if budget.size > budget.limits.size:
            raise ClusterError(
                f"{TOPIC} at {address} holds transactional ids of more than"
                f" {budget.limits.size:,} bytes, too many to read."
            )
        if places > PLACES_MAX and not every_decision:
            raise ClusterError(
                f"{TOPIC} at {address} names more than {PLACES_MAX:,} partitions of aborted"
                " transactions, too many to read."
            )
    return tuple(entries)


def client_versions(states: Iterable[StateEntry]) -> dict[str, int | None]:
    """Return the transaction version of each id's client, from the last change that certainly came
    from it. An abort may come from a fence or a timeout, and carries their version."""
    return {
        entry.transactional_id: entry.client_version
        for entry in states
        if entry.state in ("Ongoing", "PrepareCommit", "CompleteCommit")
    }


def is_exposed(client_version: int | None) -> bool | None:
    """Return whether a late request can reach the client's next transaction (KAFKA-17754); None:
    unknown.

    From version 2 on, every transaction has its own epoch. An older client may take new epochs by
    itself, as this project's sink does.
    """
    return None if client_version is None else client_version < EPOCH_BUMPS


def partition_of(transactional_id: str, partitions: int) -> int:
    """Return the log partition of an id; its leader is the id's coordinator. Java's string hash,
    made positive as Kafka does."""
    hash_code = 0
    data = transactional_id.encode("utf-16-be")
    for (unit,) in struct.iter_unpack(">H", data):
        hash_code = (31 * hash_code + unit) & 0xFFFFFFFF
    signed = hash_code - (1 << 32) if hash_code & 0x80000000 else hash_code
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


def decode(
    key: bytes | None,
    value: bytes | None,
    topics: Collection[str] | None = None,
    every_decision: bool = False,
) -> StateEntry | None:
    """Decode a record of the log; None for a deleted id, an unknown version or broken bytes.
    `topics`: those whose partitions are kept (None: all) of decisions to abort; with
    `every_decision` all, of commits too."""
    if not key or not value:
        return None
    try:
        return _decode(_Fields(key), _Fields(value), topics, every_decision)
    except (struct.error, IndexError, ValueError):
        return None


def _decode(
    key: _Fields, value: _Fields, topics: Collection[str] | None, every_decision: bool
) -> StateEntry | None:
    if key.number("h") != 0:
        return None
    name = key.text()
    version = value.number("h")
    if version not in (0, 1):
        return None
    value.is_flexible = version == 1
    producer_id, producer_epoch = value.number("q"), value.number("h")
    timeout_ms, state = value.number("i"), STATES[value.number("B")]
    if every_decision:
        topics = None if state in PREPARED else ()
    partitions = _partitions(value, topics if every_decision or state == DECIDED_ABORT else ())
    updated_ms, began_ms = value.number("q"), value.number("q")
    tags = value.tags()
    (previous_producer_id,) = struct.unpack(">q", tags.get(PREVIOUS_PRODUCER_ID, NO_PRODUCER))
    (client_version,) = struct.unpack(">h", tags.get(CLIENT_VERSION, b"\0\0"))
    return StateEntry(
        transactional_id=name,
        producer_id=producer_id,
        previous_producer_id=previous_producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        state=state,
        partitions=partitions,
        updated_ms=updated_ms,
        began_ms=began_ms,
        client_version=client_version if value.is_flexible else None,
    )


def _partitions(value: _Fields, topics: Collection[str] | None) -> frozenset[tuple[str, int]]:
    """Read the partitions of a transaction. Those of other topics are passed over unread: one
    record may name many thousands."""
    places: list[tuple[str, int]] = []
    for _ in range(value.length()):
        topic = value.text()
        numbers = value.numbers(value.length())
        value.tags()
        if topics is None or topic in topics:
            places += ((topic, number) for number in numbers.tolist())
    return frozenset(places)


class _Fields:
    """The bytes of one message, read field by field. Flexible messages (KIP-482) have lengths of
    variable size, and tagged fields behind each struct."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.is_flexible = False

    def number(self, code: str) -> int:
        """Read a number of the fixed size of a format character of `struct`."""
        (number,) = struct.unpack_from(f">{code}", self.data, self.position)
        self.position += struct.calcsize(code)
        return int(number)

    def length(self, code: str = "i") -> int:
        """Read the length of an array, or of a text (`code` h); 0 for null."""
        return max(0, self._unsigned() - 1 if self.is_flexible else self.number(code))

    def text(self) -> str:
        return self.take(self.length("h")).decode()

    def numbers(self, count: int) -> npt.NDArray[np.int32]:
        return np.frombuffer(self.take(4 * count), ">i4")

    def tags(self) -> dict[int, bytes]:
        """Read tagged fields, by tag."""
        count = self._unsigned() if self.is_flexible else 0
        return {self._unsigned(): self.take(self._unsigned()) for _ in range(count)}

    def take(self, count: int) -> bytes:
        """Raises ValueError if fewer bytes are left."""
        end = self.position + count
        if end > len(self.data):
            raise ValueError(f"{count} bytes are expected at {self.position} of {len(self.data)}")
        self.position, begin = end, self.position
        return self.data[begin:end]

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.number("B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80 or shift > 28:
                return value


def _records(
    address: Address, spans: Mapping[int, tuple[int, int]]
) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Yield keys and values of [first, end) of each partition, in order within each."""
    # Compaction may have removed the first record since the bounds were read.
    for message in read_records(address, TOPIC, READ_UNCOMMITTED, spans, from_earliest=True):
        yield as_bytes(message.key()), as_bytes(message.value())
