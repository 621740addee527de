"""What an increment of a watch reads of a raw log, and how much of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from topicproof.backend.kafka.log.batches import CONTROLS, ROW, SCHEMA, table
from topicproof.backend.watch.pair_reader import LogSpan, LongTransactions, fold_log, read_log
from topicproof.validators.finding import Bounds, PartitionBounds
from topicproof.validators.increments.watched_pair import NO_ROWS, WatchedPair


class BatchLog:
    """A raw log of one partition, in place of a connection's."""

    def __init__(self, batches: Sequence[tuple[int, int | None, str | None]]) -> None:
        """`batches`: records, producer of a transaction, and what its marker is."""
        counts = np.array([count for count, _, _ in batches], np.int64)
        rows = np.zeros(len(batches), ROW)
        rows["count"] = counts
        rows["base_offset"] = np.cumsum(counts) - counts
        rows["last_offset"] = np.cumsum(counts) - 1
        rows["producer_id"] = [-1 if producer is None else producer for _, producer, _ in batches]
        rows["transactional"] = rows["producer_id"] >= 0
        rows["control"] = [CONTROLS.index(control) for _, _, control in batches]
        rows["size"] = rows["inflated"] = 100
        self.table = table(SCHEMA.empty_table(), [rows])
        self.first, self.last = rows["base_offset"], rows["last_offset"]
        self.end = int(counts.sum())
        self.scanned = 0

    def scan(self, _topic: str, bounds: Bounds, **_options: object) -> pa.Table:
        """Return the batches of a part of the log."""
        (p,) = bounds.partitions
        first, end = np.searchsorted(self.last, p.start), np.searchsorted(self.first, p.hw)
        self.scanned += int(end - first)
        return self.table.slice(int(first), int(end - first))

    def read(self, offsets: int) -> list[LogSpan]:
        """Return the log in increments of so many offsets."""
        bounds = Bounds("sink", (PartitionBounds(0, 0, self.end, self.end),))
        spans: list[LogSpan] = []
        long_transactions = LongTransactions()
        reached = 0
        while reached < self.end:
            share = {0: (reached, min(reached + offsets, self.end))}
            (span,), _ = read_log(
                self,  # type: ignore[arg-type]
                "sink",
                bounds,
                share,
                long_transactions,
                readable=True,
            )
            assert span.begin == reached < span.end
            spans.append(span)
            reached = span.end
        return spans


def test_an_increment_counts_each_record_once_wherever_it_ends() -> None:
    """Story: batches have many records, and an increment's end lies inside one of them. All were
    aborted. None of them was lost, and none counts twice."""
    log = BatchLog([(700, 7, None)] * 30 + [(1, 7, "ABORT")])
    for offsets in (699, 1_500, 10_000):
        pair = WatchedPair("source", "sink", outputs=1, within_ms=0)
        for span in log.read(offsets):
            fold_log(pair, NO_ROWS, [span])
        assert pair.sink_lost.total() == pair.counts.hidden == 0
        assert pair.counts.aborted == 21_000


def test_a_large_stretch_of_aborted_records_is_not_received() -> None:
    """Story: a stranger aborts much, again and again. A consumer would read on to the next visible
    record at each increment."""
    aborted = [(1, 7, None)] * 200_000
    log = BatchLog([(1, None, None), *aborted, (1, 7, "ABORT"), (1, None, None)])
    assert [span.runs for span in log.read(50_000)][:3] == [((0, 1),), (), ()]
    end = log.end
    assert log.read(end)[0].runs == ((0, 1), (end - 1, end))
    # In a short one it is seen whether the broker withholds them.
    log = BatchLog([(1, None, None), *aborted[:100], (1, 7, "ABORT"), (1, None, None)])
    assert log.read(60)[0].runs == ((0, 60),)


def test_the_marker_of_a_long_transaction_is_looked_for_once() -> None:
    """Story: two transactions stay open while others write, and the second one begins and ends
    within the first. One is aborted. The log is scanned once for their markers, and each of their
    records has its fate."""
    batches: list[tuple[int, int | None, str | None]] = [(1, None, None)] * 200_000
    batches[::10_000] = [(1, 7, None)] * 20
    batches[15_001:190_000:17_500] = [(1, 8, None)] * 10
    batches[-1], batches[-2] = (1, 7, "COMMIT"), (1, 8, "ABORT")
    log = BatchLog(batches)
    spans = log.read(25_000)
    assert log.scanned < 3 * log.end and spans[-1].end == log.end
    rows = pd.concat(span.rows for span in spans)
    outcomes = rows[rows["control"].isna()].groupby(["producer_id", "outcome"]).size()
    assert outcomes.to_dict() == {(7, "COMMITTED"): 20, (8, "ABORTED"): 10}
