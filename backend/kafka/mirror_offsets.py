"""MirrorMaker's own account of which offset on one cluster is which on the other.

MirrorMaker 2 writes an offset sync about every 100 records into `mm2-offset-syncs.<alias>.internal`
on the source's cluster, or on the sink's if `offset-syncs.topic.location=target`. Each pairs the
offset of a record with the offset of its copy in the partition of the same number (KIP-382,
KIP-716). MirrorMaker moves the offsets of consumer groups by these pairs.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.client_configs import READ_COMMITTED
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.reading import as_bytes, open_consumer, read_range
from topicproof.validators.finding import Bounds

NEWEST_MAX = 10_000
"""At most this many of the newest records of each partition are read."""
SILENCE_S = 10.0
_KEY = struct.Struct(">h")
_PAIR = struct.Struct(">qq")


class Sync(NamedTuple):
    """A pair of offsets."""

    topic: str
    """The source's topic."""
    partition: int
    source_offset: int
    sink_offset: int


@dataclass(frozen=True)
class Syncs:
    """The pairs of one topic of offset syncs."""

    topic: str
    address: Address
    pairs: tuple[Sync, ...]


def offset_syncs(addresses: Iterable[Address]) -> Iterator[Syncs]:
    """Yield the syncs of each topic of offset syncs on these clusters. Raises ClusterError,
    TopicError."""
    for address in addresses:
        cluster = Cluster(address)
        for topic in filter(_is_syncs, cluster.topics()):
            yield Syncs(topic, address, tuple(_read(address, cluster.bounds(topic))))


def parse_sync(key: bytes | None, value: bytes | None) -> Sync | None:
    """Parse one record; None if it is not an offset sync.

    The key is the topic (16-bit length, UTF-8) and the partition (32 bits), the value two 64-bit
    offsets, all big-endian (OffsetSync in Kafka's connect-mirror-client).
    """
    if key is None or value is None or len(key) < _KEY.size or len(value) != _PAIR.size:
        return None
    (length,) = _KEY.unpack_from(key)
    name, rest = key[_KEY.size : _KEY.size + length], key[_KEY.size + max(length, 0) :]
    if len(name) != length or len(rest) != 4:
        return None
    try:
        topic = name.decode()
    except UnicodeDecodeError:
        return None
    return Sync(topic, int.from_bytes(rest, signed=True), *_PAIR.unpack(value))


def _is_syncs(topic: str) -> bool:
    return topic.startswith("mm2-offset-syncs") and topic.endswith("internal")


def _read(address: Address, bounds: Bounds) -> Iterator[Sync]:
    spans = {p.partition: (max(p.start, p.lso - NEWEST_MAX), p.lso) for p in bounds.partitions}
    heard = time.monotonic()
    with open_consumer(address, bounds.topic, READ_COMMITTED) as consumer:
        for message in read_range(consumer, bounds.topic, spans):
            if message is not None:
                heard = time.monotonic()
                found = parse_sync(as_bytes(message.key()), as_bytes(message.value()))
                if found is not None:
                    yield found
            elif time.monotonic() - heard > SILENCE_S:
                raise ClusterError(
                    f"Kafka at {address} sent nothing of {bounds.topic} for {SILENCE_S:.0f} s."
                )
