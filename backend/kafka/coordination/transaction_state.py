"""The transaction coordinators' own log, `__transaction_state`, read as a topic.

It has one record per state change of a transactional id. It shows what coordinators do not report:
the transactional id of a forgotten or replaced producer id, when a transaction was decided, and why
one was aborted.

Kafka's schemas are `TransactionLogKey.json` and `TransactionLogValue.json` of its module
transaction-coordinator. The log is compacted, so old entries may be gone. Records of unknown
versions are skipped.
"""

from __future__ import annotations

import io
import struct
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.protocol.data_container import DataContainer
from kafka.protocol.schemas import StructField
from kafka.protocol.schemas.fields.codecs import Int16, String

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka import client_configs
from topicproof.backend.kafka.reading import as_bytes, open_consumer, read_range
from topicproof.validators.finding import Bounds

TOPIC = "__transaction_state"
ENTRIES_MAX = 50_000
"""At most this many records at the end of each partition are read: 16,000 transactions."""
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
    updated_ms: int
    began_ms: int
    """-1 when no transaction is under way."""
    client_version: int | None
    """The transaction version (KIP-890) of the client that made the change. 2 bumps the epoch at
    every end, 0 is an older client. None before Kafka 4."""


def read_states(
    address: Address, bounds: Bounds, transactional_ids: Collection[str] | None = None
) -> tuple[StateEntry, ...]:
    """Return the log's entries of these transactional ids (None: of all), in order for each id.

    `bounds` are those of `__transaction_state`. Raises ClusterError when the log cannot be read, or
    not in time.
    """
    count = len(bounds.partitions)
    log_partitions = (
        None
        if transactional_ids is None
        else {partition_of(name, count) for name in transactional_ids}
    )
    ends = {
        p.partition: (max(p.start, p.hw - ENTRIES_MAX), p.hw)
        for p in bounds.partitions
        if p.hw > p.start and (log_partitions is None or p.partition in log_partitions)
    }
    entries = (decode(key, value) for key, value in _records(address, ends))
    return tuple(
        entry
        for entry in entries
        if entry is not None
        and (transactional_ids is None or entry.transactional_id in transactional_ids)
    )


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


def decode(key: bytes | None, value: bytes | None) -> StateEntry | None:
    """Decode a record of the log; None for a deleted id, an unknown version or broken bytes."""
    if not key or not value:
        return None
    try:
        return _decode(io.BytesIO(key), io.BytesIO(value))
    except (struct.error, IndexError, ValueError):
        return None


def _decode(key: io.BytesIO, value: io.BytesIO) -> StateEntry | None:
    if Int16.decode(key) != 0:
        return None
    name = String().decode(key)
    version = Int16.decode(value)
    if version not in (0, 1):
        return None
    flexible = version == 1
    fields = _Value.decode(value, version=version, compact=flexible, tagged=flexible)
    return StateEntry(
        transactional_id=name,
        producer_id=fields.producer_id,
        previous_producer_id=fields.previous_producer_id,
        producer_epoch=fields.producer_epoch,
        timeout_ms=fields.timeout_ms,
        state=STATES[fields.status],
        partitions=frozenset(
            (each.topic, partition)
            for each in fields.partitions or ()
            for partition in each.partition_ids
        ),
        updated_ms=fields.updated_ms,
        began_ms=fields.began_ms,
        client_version=fields.client_version if flexible else None,
    )


_PLAIN = {"versions": "0+"}
_NULLABLE = {"versions": "0+", "nullableVersions": "0+"}
_TAGGED = {"versions": "1+", "taggedVersions": "1+", "default": "-1"}
_PARTITIONS = [
    {"name": "Topic", "type": "string", **_PLAIN},
    {"name": "PartitionIds", "type": "[]int32", **_PLAIN},
]
_FIELDS: list[dict[str, Any]] = [
    {"name": "ProducerId", "type": "int64", **_PLAIN},
    {"name": "PreviousProducerId", "type": "int64", "tag": 0, **_TAGGED},
    {"name": "NextProducerId", "type": "int64", "tag": 1, **_TAGGED},
    {"name": "ProducerEpoch", "type": "int16", **_PLAIN},
    {"name": "TimeoutMs", "type": "int32", **_PLAIN},
    {"name": "Status", "type": "int8", **_PLAIN},
    {"name": "Partitions", "type": "[]T", **_NULLABLE, "fields": _PARTITIONS},
    {"name": "UpdatedMs", "type": "int64", **_PLAIN},
    {"name": "BeganMs", "type": "int64", **_PLAIN},
    {"name": "ClientVersion", "type": "int16", "tag": 2, **_TAGGED, "default": "0"},
]


class _Value(DataContainer):  # type: ignore[misc]  # kafka-python has no types
    """`TransactionLogValue.json`, with shorter names, for kafka-python's decoder."""

    _struct = StructField(
        {"name": "TransactionLogValue", "type": "data", "fields": _FIELDS, **_PLAIN}
    )


_Value._struct.set_data_class(_Value)


def _records(
    address: Address, spans: Mapping[int, tuple[int, int]]
) -> list[tuple[bytes | None, bytes | None]]:
    """Return keys and values of [first, end) of each partition, in order within each."""
    records: list[tuple[bytes | None, bytes | None]] = []
    if not spans:
        return records
    deadline = time.monotonic() + client_configs.REQUEST_TIMEOUT_MS / 1000
    # Compaction may have removed the first record since the bounds were read.
    earliest = {"auto.offset.reset": "earliest"}
    with open_consumer(address, TOPIC, client_configs.READ_UNCOMMITTED, earliest) as consumer:
        for message in read_range(consumer, TOPIC, spans):
            if message is not None:
                records.append((as_bytes(message.key()), as_bytes(message.value())))
            if time.monotonic() > deadline:
                raise ClusterError(f"{TOPIC} at {address} could not be read to its end in time.")
    return records
