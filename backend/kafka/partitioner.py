"""The partition that our producers choose for a key: Java's murmur2, for many keys at once.

Used by producers that must know a record's partition before they send it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_SEED, _M, _R = 0x9747B28C, 0x5BD1E995, 24
_WORD = 0xFFFFFFFF
LONG_KEY_BYTES = 1_024
"""Longer keys are hashed one by one: such keys are rare, so vectors would not help."""


def partitions_of(
    keys: Sequence[bytes | None], count: int, without_key: int
) -> npt.NDArray[np.int64]:
    """Return the partition of each key, in a topic with `count` partitions; `without_key` for a
    null key, which may go anywhere."""
    hashes = _murmur2([key or b"" for key in keys])
    partitions = (hashes & np.uint32(0x7FFFFFFF)).astype(np.int64) % count
    if None in keys:
        partitions[[key is None for key in keys]] = without_key
    return partitions


def _murmur2(keys: Sequence[bytes]) -> npt.NDArray[np.uint32]:
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    starts = np.cumsum(lengths) - lengths
    # A whole word must be readable after the last key.
    data = b"".join((*keys, b"\0\0\0\0"))
    words: npt.NDArray[np.uint32] = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))
    m = np.uint32(_M)
    hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    tails = starts + (lengths & ~3)
    usual = (
        int(lengths.max(initial=0)) if lengths.max(initial=0) <= LONG_KEY_BYTES else LONG_KEY_BYTES
    )
    for at in range(0, usual - 3, 4):
        some = np.flatnonzero((lengths >= at + 4) & (lengths <= LONG_KEY_BYTES))
        word = words[starts[some] + at] * m
        word = (word ^ (word >> np.uint32(_R))) * m
        hashes[some] = (hashes[some] * m) ^ word
    rest = lengths & 3
    left = words[tails] & ((np.uint32(1) << (rest * 8).astype(np.uint32)) - np.uint32(1))
    hashes = np.where(rest > 0, (hashes ^ left) * m, hashes)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * m
    hashes ^= hashes >> np.uint32(15)
    for index in np.flatnonzero(lengths > LONG_KEY_BYTES).tolist():
        hashes[index] = _murmur2_of(keys[index])
    return hashes


def _murmur2_of(key: bytes) -> int:
    digest = _SEED ^ len(key)
    whole: Any = np.frombuffer(key, "<u4", len(key) // 4).tolist()
    for number in whole:
        word = number * _M & _WORD
        word = (word ^ word >> _R) * _M & _WORD
        digest = (digest * _M & _WORD) ^ word
    rest = key[len(key) & ~3 :]
    if rest:
        digest = (digest ^ int.from_bytes(rest, "little")) * _M & _WORD
    digest = (digest ^ digest >> 13) * _M & _WORD
    return digest ^ digest >> 15
