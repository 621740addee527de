"""MirrorMaker's own account of which offset on one cluster is which on the other.

MirrorMaker 2 writes an offset sync about every 100 records into `mm2-offset-syncs.<alias>.internal`
on the source's cluster, or on the sink's if `offset-syncs.topic.location=target`. Each pairs the
offset of a record with the offset of its copy in the partition of the same number (KIP-382,
KIP-716). By these pairs it translates the offsets of consumer groups, and writes each translated
one as a checkpoint into `<alias>.checkpoints.internal` on the sink's cluster.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from topicproof.backend.address import Address
from topicproof.backend.errors import RecordTooLarge
from topicproof.backend.kafka.client_configs import READ_COMMITTED
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.look import MIRRORS, LookBudget
from topicproof.backend.kafka.reading import as_bytes, read_records
from topicproof.validators.finding import Bounds

LOG = logging.getLogger(__name__)
NEWEST_MAX = 10_000
"""At most this many of the newest records of each partition are read."""
TOPICS_MAX = 20
"""At most so many topics of such names are read: anybody may make one."""
SHARES = 4
"""One topic takes at most this part of a look, so that it does not hide all others."""
NAME_BYTES_MAX = 255
"""Longer names of groups are passed over. Names of topics have 249 bytes at most."""
_LENGTH, _PARTITION, _PAIR = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">qq")
_VERSION = 0
"""Of a checkpoint's value. MirrorMaker has had no other since 2.4."""

Parsed = TypeVar("Parsed")


class Sync(NamedTuple):
    """A pair of offsets."""

    topic: str
    """The source's topic."""
    partition: int
    source_offset: int
    sink_offset: int


class Checkpoint(NamedTuple):
    """The translated offset of a group in one partition."""

    group: str
    topic: str
    """The sink's topic."""
    partition: int
    source_offset: int
    """What the group has committed on the source's cluster."""
    sink_offset: int
    """Where it would continue on the sink's."""


@dataclass(frozen=True)
class Checkpoints:
    """The newest checkpoints of one topic of them."""

    topic: str
    found: tuple[Checkpoint, ...]
    """By group and partition."""


@dataclass(frozen=True)
class Syncs:
    """The pairs of one topic of offset syncs."""

    topic: str
    address: Address
    pairs: tuple[Sync, ...]


def offset_syncs(addresses: Iterable[Address], *, budget: LookBudget) -> Iterator[Syncs]:
    """Yield the syncs of each topic of offset syncs on these clusters. Raises ClusterError,
    TopicError."""
    for address in addresses:
        cluster = Cluster(address)
        for topic in _first(filter(_is_syncs, cluster.topics()), budget):
            yield Syncs(topic, address, _read(address, cluster.bounds(topic), parse_sync, budget))


def checkpoints(
    address: Address, topics: Iterable[str], *, budget: LookBudget
) -> Iterator[Checkpoints]:
    """Yield the checkpoints of these topics of the sink's cluster, from each topic that has some.
    Raises ClusterError, TopicError."""
    cluster, names = Cluster(address), set(topics)

    def parse(key: bytes | None, value: bytes | None) -> Checkpoint | None:
        checkpoint = parse_checkpoint(key, value)
        return checkpoint if checkpoint is not None and checkpoint.topic in names else None

    for topic in _first(filter(_is_checkpoints, cluster.topics()), budget):
        newest = {
            (checkpoint.group, checkpoint.topic, checkpoint.partition): checkpoint
            for checkpoint in _read(address, cluster.bounds(topic), parse, budget)
        }
        if newest:
            yield Checkpoints(topic, tuple(newest[place] for place in sorted(newest)))


def parse_sync(key: bytes | None, value: bytes | None) -> Sync | None:
    """Parse one record; None if it is not an offset sync.

    The key is the topic (16-bit length, UTF-8) and the partition (32 bits), the value two 64-bit
    offsets, all big-endian (OffsetSync in Kafka's connect-mirror-client).
    """
    if key is None or value is None or len(value) != _PAIR.size:
        return None
    try:
        topic, rest = _text(key)
    except ValueError:
        return None
    if len(rest) != _PARTITION.size:
        return None
    return Sync(topic, *_PARTITION.unpack(rest), *_PAIR.unpack(value))


def parse_checkpoint(key: bytes | None, value: bytes | None) -> Checkpoint | None:
    """Parse one record; None if it is not a checkpoint of a known version.

    The key is the group and the topic (each a 16-bit length and UTF-8) and the partition (32 bits).
    The value is a version (16 bits), two 64-bit offsets, and metadata of the group's. All are
    big-endian (Checkpoint in Kafka's connect-mirror-client).
    """
    if key is None or value is None or value[: _LENGTH.size] != _LENGTH.pack(_VERSION):
        return None
    try:
        group, rest = _text(key)
        topic, rest = _text(rest)
    except ValueError:
        return None
    if len(rest) != _PARTITION.size or len(value) < _LENGTH.size + _PAIR.size:
        return None
    offsets = _PAIR.unpack_from(value, _LENGTH.size)
    return Checkpoint(group, topic, *_PARTITION.unpack(rest), *offsets)


def _text(data: bytes) -> tuple[str, bytes]:
    """Return a text with its length in front, and what follows. Raises ValueError."""
    length = int.from_bytes(data[: _LENGTH.size], signed=True)
    text, rest = data[_LENGTH.size :][: max(length, 0)], data[_LENGTH.size + max(length, 0) :]
    if len(data) < _LENGTH.size or len(text) != length or length > NAME_BYTES_MAX:
        raise ValueError("the text is cut off, or too long for a name")
    return text.decode(), rest


def _first(topics: Iterable[str], budget: LookBudget) -> Iterator[str]:
    """Yield the first topics by name, while the budget lasts."""
    every = sorted(topics)
    budget.leave_out(len(every) - TOPICS_MAX, MIRRORS)
    for (topic,) in budget.batches(every[:TOPICS_MAX], 1, MIRRORS):
        yield topic


def _is_syncs(topic: str) -> bool:
    return topic.startswith("mm2-offset-syncs") and topic.endswith("internal")


def _is_checkpoints(topic: str) -> bool:
    return ".checkpoints" in topic and topic.endswith("internal")


def _read(
    address: Address,
    bounds: Bounds,
    parse: Callable[[bytes | None, bytes | None], Parsed | None],
    budget: LookBudget,
) -> tuple[Parsed, ...]:
    """Return the newest entries of a topic; none if a record in it would exhaust this process, or
    all of them together: anybody may make a topic of such a name."""
    records_max, size_max = budget.limits.records // SHARES, budget.limits.size // SHARES
    most = min(NEWEST_MAX, records_max // max(1, len(bounds.partitions)))
    spans = {p.partition: (max(p.start, p.lso - most), p.lso) for p in bounds.partitions}
    entries: list[Parsed] = []
    size = 0
    try:
        for record in read_records(address, bounds.topic, READ_COMMITTED, spans):
            key, value = as_bytes(record.key()), as_bytes(record.value())
            size += budget.hold(key, value)
            if size > size_max or budget.is_spent:
                budget.leave_out(1, MIRRORS)
                return ()
            entry = parse(key, value)
            if entry is not None:
                entries.append(entry)
    except RecordTooLarge as error:
        LOG.warning("%s is passed over: %s", bounds.topic, error)
        budget.leave_out(1, MIRRORS)
        return ()
    return tuple(entries)
