"""The partition that our producers choose for a key: Java's murmur2."""

from __future__ import annotations

import struct

_SEED, _M, _R = 0x9747B28C, 0x5BD1E995, 24
_WORD = 0xFFFFFFFF


def partition_of(key: bytes, count: int) -> int:
    """Return the partition of a key in a topic with `count` partitions."""
    return (_murmur2(key) & 0x7FFFFFFF) % count


def _murmur2(key: bytes) -> int:
    digest = _SEED ^ len(key)
    for (number,) in struct.iter_unpack("<I", key[: len(key) & ~3]):
        word = number * _M & _WORD
        word = (word ^ word >> _R) * _M & _WORD
        digest = (digest * _M & _WORD) ^ word
    rest = key[len(key) & ~3 :]
    if rest:
        digest = (digest ^ int.from_bytes(rest, "little")) * _M & _WORD
    digest = (digest ^ digest >> 13) * _M & _WORD
    return digest ^ digest >> 15
