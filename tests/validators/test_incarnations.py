"""Outputs older than their source, from batch headers alone."""

from __future__ import annotations

import pyarrow as pa
import pytest

from topicproof.validators.circumstances import Incarnation
from topicproof.validators.finding import Bounds, PartitionBounds
from topicproof.validators.incarnations import SKEW_MS, find_incarnations

BEGAN = 1_000_000
OLD, NEW = BEGAN - SKEW_MS - 1, BEGAN + 5
SOURCE = Bounds("numbers", (PartitionBounds(0, 0, 10, 10), PartitionBounds(1, 0, 10, 10)))

Batch = tuple[int, int, str | None, bool, int]
"""Partition, offset, control, transactional and time."""


def log(*batches: Batch) -> pa.Table:
    partition, offset, control, transactional, time = zip(*batches, strict=True)
    return pa.table(
        {
            "partition": pa.array(partition, pa.int32()),
            "last_offset": pa.array(offset, pa.int64()),
            "control": pa.array(control, pa.string()),
            "count": pa.array([1] * len(batches), pa.int32()),
            "transactional": pa.array(transactional, pa.bool_()),
            "first_timestamp": pa.array(time, pa.int64()),
            "max_timestamp": pa.array(time, pa.int64()),
        }
    )


@pytest.mark.parametrize(
    ("inputs", "outputs", "ends"),
    [
        # The marker counts, whatever time the record has.
        ([BEGAN], [(0, 0, None, True, NEW), (0, 1, "COMMIT", True, OLD)], {0: 2}),
        ([BEGAN], [(0, 0, None, True, 0), (0, 1, "COMMIT", True, NEW)], None),
        # A later marker bounds what lies before it, although a clock was ahead.
        (
            [BEGAN],
            [(0, 1, "ABORT", True, NEW), (0, 2, None, True, 0), (0, 3, "COMMIT", True, OLD)],
            {0: 4},
        ),
        ([BEGAN], [(0, 0, "COMMIT", True, OLD), (1, 1, "COMMIT", True, NEW)], {0: 1}),
        # Outside transactions a record has only its own time.
        ([BEGAN], [(0, 0, None, False, OLD)], {}),
        ([BEGAN], [(0, 0, None, False, BEGAN - SKEW_MS)], None),
        # One input of the past is enough, in any partition; one without a time tells nothing.
        ([BEGAN, 0], [(0, 1, "COMMIT", True, OLD)], None),
        ([BEGAN, -1], [(0, 1, "COMMIT", True, OLD)], None),
    ],
)
def test_an_output_older_than_every_input_shows_another_incarnation(
    inputs: list[int], outputs: list[Batch], ends: dict[int, int] | None
) -> None:
    source = log(*((n, 0, None, False, time) for n, time in enumerate(inputs)))
    expected = () if ends is None else (Incarnation("numbers", BEGAN - SKEW_MS, ends),)
    assert find_incarnations(log(*outputs), source, SOURCE) == expected


def test_an_empty_source_says_nothing() -> None:
    source = log((0, 0, "COMMIT", True, NEW))
    assert find_incarnations(log((0, 0, None, False, OLD)), source, SOURCE) == ()
