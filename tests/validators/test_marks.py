"""What batch headers betray, and what only looks like it."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from topicproof.validators.facts.balance import BATCH_COLUMNS
from topicproof.validators.facts.marks import marked

LAST = 2**31 - 1
"""The largest sequence; 0 follows."""

Batch = tuple[int, int, int, int]
"""(base offset, last offset, epoch, base sequence)"""


@pytest.mark.parametrize(
    ("told", "batches", "holes"),
    [
        ("sequences wrap", [(0, 2, 0, LAST - 1), (3, 4, 0, 1)], []),
        ("they wrap and leave one out", [(0, 2, 0, LAST - 1), (3, 4, 0, 2)], [3]),
        ("a new epoch starts at 0", [(0, 4, 0, 0), (5, 6, 1, 0)], []),
        ("the same epoch starts at 0 again", [(0, 4, 0, 0), (5, 6, 0, 0)], [5]),
        ("a batch between them is gone", [(0, 4, 0, 0), (10, 11, 0, 10)], []),
        ("the log starts with a later batch", [(700, 701, 3, 90), (702, 702, 3, 92)], []),
    ],
)
def test_sequences_follow_one_another(
    told: str, batches: list[Batch], holes: list[int], spark: SparkSession
) -> None:
    """Story: the one in `told`. Only what has no other explanation is a hole."""
    rows = [
        (0, base, last, last - base + 1, 7, epoch, sequence, True, None, 0, 0, 100, "none", 0)
        for base, last, epoch, sequence in batches
    ]
    found = marked(spark.createDataFrame(rows, BATCH_COLUMNS)).where("hole").collect()
    assert [row["base_offset"] for row in found] == holes, told


def test_a_thinned_out_batch_keeps_its_width(spark: SparkSession) -> None:
    """Story: compaction took eight of ten records out of a batch and all out of the next. The
    sequences still fit."""
    rows = [
        (0, base, base + 9, count, 7, 0, base, True, None, 0, 0, 100, "none", 0)
        for base, count in ((0, 2), (10, 0), (20, 10))
    ]
    assert marked(spark.createDataFrame(rows, BATCH_COLUMNS)).where("hole").count() == 0
