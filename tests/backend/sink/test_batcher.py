"""Which inputs make one transaction, without Kafka."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from topicproof.backend.errors import ShuffledInput
from topicproof.backend.sink.batcher import Batcher, Contents
from topicproof.backend.sink.options import SinkOptions
from topicproof.backend.sink.outputs import outputs_of
from topicproof.backend.sink.position import Position

START = Position(7, 100)


def batcher(**limits: str) -> Batcher:
    given = {"kafka.bootstrap.servers": "b:1", "group": "g", "transactionalIdPrefix": "run"}
    return Batcher(SinkOptions.parse({**given, **limits}), "source-0", START)


def taken(made: Batcher, offsets: list[int], values: list[bytes]) -> list[Contents]:
    binary = pa.array(values, pa.binary())
    columns = {"offset": pa.array(offsets, pa.int64()), "key": binary, "value": binary}
    outputs = outputs_of(pa.RecordBatch.from_pydict(columns), "sink")
    return list(made.take(np.array(offsets, np.int64), outputs))


def test_transactions_follow_each_other_across_batches_of_rows() -> None:
    """Story: ten inputs come in two batches. Each transaction has three, begins where the last one
    ended, and has the next sequence; the rest is cut at the end of the task."""
    made = batcher(recordsPerTransaction="3")
    full = [
        *taken(made, list(range(100, 104)), [b"a"] * 4),
        *taken(made, list(range(104, 110)), [b"b"] * 6),
    ]
    assert [(one.sequence, one.first, one.following, one.inputs) for one in full] == [
        (8, 100, 103, 3),
        (9, 103, 106, 3),
        (10, 106, 109, 3),
    ]
    assert [[output[0] for output in one.outputs] for one in full][1] == [103, 104, 105]
    rest = made.cut()
    assert (rest.sequence, rest.first, rest.following, rest.metadata) == (11, 109, 110, "11")


def test_the_input_that_reaches_the_bytes_ends_the_transaction() -> None:
    """Story: keys and values of ten bytes each, and a limit of 25: two inputs reach it."""
    full = taken(batcher(bytesPerTransaction="25"), [100, 101, 102], [b"0123456789"] * 3)
    assert [(one.inputs, one.following) for one in full] == [(2, 102)]


def test_holes_are_found_between_rows_and_between_batches() -> None:
    """Story: rows are missing before the first batch, within it, and before the second one."""
    made = batcher()
    assert made.holes(np.array([102, 103, 105], np.int64)) == [(100, 102), (104, 105)]
    assert made.holes(np.array([], np.int64)) == []
    assert made.holes(np.array([106, 107], np.int64)) == []
    assert made.holes(np.array([110], np.int64)) == [(108, 110)]
    with pytest.raises(ShuffledInput, match="Offsets of source-0 do not rise"):
        made.holes(np.array([110], np.int64))
