"""What a read_committed reader polled from the sink while it was being written: a witness with a
memory.

A row is a run of consecutive offsets that one poll received. Polls are numbered within a session,
which begins at the reader's start position. There, each partition has a row without offsets.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, functions as F

from topicproof.validators.finding import Bounds
from topicproof.validators.offsets import bound

POLLED_COLUMNS = (
    "session string, poll long, run long, at_ms long, partition int, first_offset long, last_offset"
    " long, lso long"
)
"""`run`: counts the rows of a session. `at_ms`: when the poll came back. `lso`: the partition's
last stable offset, asked after that. A session's first row of a partition has `last_offset` one
below `first_offset`, the position it began at."""


@dataclass(frozen=True)
class Polled:
    """The reader's account, with `POLLED_COLUMNS`."""

    runs: DataFrame
    records: int
    """Number of records received, in all sessions."""


def records(polled: Polled, bounds: Bounds) -> DataFrame:
    """Returns every record received within the bounds, one row each: the columns of its run, and
    offset."""
    start, hw = bound("partition", bounds, "start"), bound("partition", bounds, "hw")
    first, last = F.greatest("first_offset", start), F.least("last_offset", hw - 1)
    return polled.runs.where(first <= last).withColumn("offset", F.explode(F.sequence(first, last)))
