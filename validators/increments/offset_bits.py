"""A growing set of the offsets of one partition: a bit for each, from a floor on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from topicproof.validators.offsets import WORD

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Bits = npt.NDArray[np.uint64]

WORDS_GROWN = 1_024
"""So many words are added at once."""


class OffsetBits:
    """Offsets at and above `floor`, a multiple of 64. Nothing is known of those below."""

    def __init__(self, floor: int = 0, words: Bits | None = None) -> None:
        self.floor = floor // WORD * WORD
        self.words = np.zeros(0, np.uint64) if words is None else words

    def copy(self) -> OffsetBits:
        return OffsetBits(self.floor, self.words.copy())

    @property
    def end(self) -> int:
        """No offset at or above this one is in the set."""
        return self.floor + len(self.words) * WORD

    def add(self, offsets: Ints) -> None:
        """Add offsets; those below the floor are left out."""
        offsets = offsets[offsets >= self.floor]
        if not offsets.size:
            return
        self._reach(int(offsets.max()) + 1)
        index = (offsets - self.floor) // WORD
        bit = np.left_shift(np.uint64(1), ((offsets - self.floor) % WORD).astype(np.uint64))
        np.bitwise_or.at(self.words, index, bit)

    def add_range(self, first: int, end: int) -> None:
        """Add the offsets [first, end)."""
        first = max(first, self.floor)
        if first >= end:
            return
        self._reach(end)
        low, high = (first - self.floor) // WORD, (end - 1 - self.floor) // WORD
        head = np.uint64(2**WORD - 1) << np.uint64((first - self.floor) % WORD)
        tail = np.uint64(2**WORD - 1) >> np.uint64(WORD - 1 - (end - 1 - self.floor) % WORD)
        if low == high:
            self.words[low] |= head & tail
            return
        self.words[low] |= head
        self.words[low + 1 : high] = np.uint64(2**WORD - 1)
        self.words[high] |= tail

    def holds(self, offsets: Ints) -> Flags:
        """Return whether each offset is in the set."""
        inside = (offsets >= self.floor) & (offsets < self.end)
        held = np.zeros(offsets.size, bool)
        places = offsets[inside] - self.floor
        word = self.words[places // WORD]
        held[inside] = (word >> (places % WORD).astype(np.uint64)) & np.uint64(1) > 0
        return held

    def minus(self, other: OffsetBits, end: int) -> Bits:
        """Return the words up to `end` without the offsets of a set with the same floor."""
        count = max(0, min(len(self.words), -(-(end - self.floor) // WORD)))
        words = self.words[:count].copy()
        shared = min(count, len(other.words))
        words[:shared] &= ~other.words[:shared]
        over = count * WORD - (end - self.floor)
        if count and over > 0:
            words[-1] &= np.uint64(2**WORD - 1) >> np.uint64(over)
        return words

    def raise_floor(self, floor: int) -> None:
        """Forget what lies below the word of an offset."""
        words = max(0, floor // WORD - self.floor // WORD)
        self.words = self.words[words:].copy()
        self.floor += words * WORD

    def _reach(self, end: int) -> None:
        missing = -(-(end - self.floor) // WORD) - len(self.words)
        if missing > 0:
            grown = np.zeros(len(self.words) + missing + WORDS_GROWN, np.uint64)
            grown[: len(self.words)] = self.words
            self.words = grown


def size_of(words: Bits) -> int:
    """Return how many offsets these words hold."""
    return int(np.bitwise_count(words).sum())


def offsets_of(words: Bits, floor: int, most: int | None = None) -> Ints:
    """Return the offsets that words from `floor` on hold, at most the first `most`."""
    filled = np.flatnonzero(words)
    if most is not None:
        filled = filled[:most]
    bits = np.unpackbits(
        words[filled].astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little"
    )
    rows, places = np.nonzero(bits)
    return np.asarray(floor + filled[rows] * WORD + places, np.int64)[:most]
