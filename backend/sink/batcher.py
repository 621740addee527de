"""From rows to transactions: which inputs share one, and whether the rows' offsets are consecutive.

Nothing here asks Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from topicproof.backend.errors import ShuffledInput
from topicproof.backend.sink.options import SinkOptions
from topicproof.backend.sink.outputs import REMEDY_SHUFFLED, Output, Outputs
from topicproof.backend.sink.position import Position

Offsets = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Contents:
    """The contents of one transaction. All its attempts share them."""

    sequence: int
    first: int
    """The group's offset before the transaction."""
    following: int
    """The offset that the transaction commits."""
    metadata: str
    """The metadata that the group keeps beside that offset."""
    inputs: int
    outputs: Sequence[Output]


class Batcher:
    """Collects inputs until a transaction is full."""

    def __init__(self, sink: SinkOptions, where: str, position: Position) -> None:
        self.sink = sink
        self.where = where
        self.position = position
        """Where the last transaction ended."""
        self.expected = position.offset
        """The offset of the next row, if none is missing."""
        self.outputs: list[Output] = []
        self.inputs = self.weight = self.size = 0
        self.last = -1
        """The offset of the last input in `outputs`."""

    def holes(self, offsets: Offsets) -> list[tuple[int, int]]:
        """Return the expected offset and the row's offset, wherever rows are not consecutive.

        Raises ShuffledInput for falling offsets.
        """
        if offsets.size == 0:
            return []
        expected = np.concatenate(([self.expected], offsets[:-1] + 1))
        if (offsets < expected).any():
            raise ShuffledInput(
                f"Offsets of {self.where} do not rise within one task. {REMEDY_SHUFFLED}"
            )
        self.expected = int(offsets[-1]) + 1
        return [(int(expected[n]), int(offsets[n])) for n in np.flatnonzero(offsets > expected)]

    def take(self, offsets: Offsets, new: Outputs) -> Iterator[Contents]:
        """Add inputs, and yield each transaction that they fill. It ends at the input that reaches
        a limit."""
        # `weights` and `sizes` are running totals, so a binary search finds the input that fills
        # the transaction.
        begin = record = weight = size = 0
        while begin < offsets.size:
            heavy = weight + self.sink.delivery.records_per_transaction - self.weight
            large = size + self.sink.bytes_per_transaction - self.size
            full = min(
                int(np.searchsorted(new.weights, heavy)), int(np.searchsorted(new.sizes, large))
            )
            last = min(full, offsets.size - 1)
            self.outputs += new.records[record : int(new.ends[last])]
            self.inputs += last + 1 - begin
            self.last = int(offsets[last])
            self.weight += int(new.weights[last]) - weight
            self.size += int(new.sizes[last]) - size
            begin, record = last + 1, int(new.ends[last])
            weight, size = int(new.weights[last]), int(new.sizes[last])
            # Else the rows have ended first, and the next ones join the same transaction.
            if full == last:
                yield self.cut()

    def cut(self) -> Contents:
        """End the transaction at the last input."""
        sequence, following = self.position.sequence + 1, self.last + 1
        contents = Contents(
            sequence, self.position.offset, following, str(sequence), self.inputs, self.outputs
        )
        self.position = Position(sequence, following)
        self.outputs, self.inputs, self.weight, self.size = [], 0, 0, 0
        return contents
