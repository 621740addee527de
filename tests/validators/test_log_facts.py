"""What batch headers betray, and what only looks like it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.validators.history import table_of
from topicproof.validators.facts.log_facts import BATCH_COLUMNS, LogFacts, log_facts
from topicproof.validators.finding import Bounds, PartitionBounds

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
def test_sequences_follow_one_another(told: str, batches: list[Batch], holes: list[int]) -> None:
    """Story: the one in `told`. Only what has no other explanation is a hole."""
    rows = [
        (0, base, last, last - base + 1, 7, epoch, sequence, True, None, 0, 0, 100, "none", 0)
        for base, last, epoch, sequence in batches
    ]
    assert _offsets(_facts(rows), "hole") == holes, told


def test_a_thinned_out_batch_keeps_its_width() -> None:
    """Story: compaction took eight of ten records out of a batch and all out of the next. The
    sequences still fit."""
    rows = [
        (0, base, base + 9, count, 7, 0, base, True, None, 0, 0, 100, "none", 0)
        for base, count in ((0, 2), (10, 0), (20, 10))
    ]
    assert _offsets(_facts(rows), "hole") == []


def test_the_facts_of_two_producers_in_turn() -> None:
    """Story: producers 7 and 8 take turns in a partition. 7 commits, 8 aborts, and a COMMIT marker
    follows the ABORT. At the end 7, whose epoch was raised to 2, writes at epoch 1 again."""
    rows = [
        _batch(0, 7),
        _batch(1, 8),
        _batch(2, 7, sequence=1),
        _batch(3, 7, control="COMMIT"),
        _batch(4, 8, control="ABORT"),
        _batch(5, 8, control="COMMIT"),
        _batch(6, 7, epoch=2),
        _batch(7, 7, epoch=1, sequence=1),
    ]
    facts = _facts(rows)
    assert {name: _offsets(facts, name) for name in ("hole", "stale", "second_end")} == {
        "hole": [],
        "stale": [7],
        "second_end": [5],
    }
    assert _offsets(facts, "interleaved") == [2]
    assert facts.batches["outcome"].fillna("").tolist() == (
        ["COMMITTED", "ABORTED", "COMMITTED", "COMMITTED", "ABORTED", "", "OPEN", "OPEN"]
    )
    assert facts.batches["began"].fillna(-1).tolist() == [0, 1, 0, 0, 1, -1, 6, 6]
    assert facts.batches["epoch_before"].fillna(-1).tolist() == [-1, -1, 0, 0, 0, 0, 0, 2]


def test_partitions_share_nothing() -> None:
    """Story: one producer writes the same sequences to two partitions, and an epoch was raised in
    the first one only."""
    rows = [
        _batch(0, 7),
        _batch(1, 7, epoch=3),
        *(_batch(offset, 7, partition=1, sequence=offset) for offset in (0, 1)),
    ]
    facts = _facts(rows, partitions=2)
    for name in ("hole", "stale", "second_end", "interleaved"):
        assert _offsets(facts, name) == []


def test_a_single_batch() -> None:
    """Story: the log holds one batch, in no transaction, and nothing stands before it."""
    facts = _facts([(0, 0, 2, 3, 7, 0, 5, False, None, 0, 0, 100, "none", 0)])
    for name in ("hole", "stale", "second_end", "interleaved"):
        assert _offsets(facts, name) == []
    assert len(facts.transactions) == 0


def test_no_batch_at_all() -> None:
    """Story: the log is empty."""
    facts = _facts([])
    assert (len(facts.batches), len(facts.transactions)) == (0, 0)


def _batch(
    offset: int,
    producer: int,
    epoch: int = 0,
    sequence: int = 0,
    control: str | None = None,
    partition: int = 0,
) -> tuple[object, ...]:
    """A batch of one record in a transaction, or its marker."""
    numbers = (1, producer, epoch, sequence if control is None else -1)
    return (partition, offset, offset, *numbers, True, control, 0, 0, 100, "none", 0)


def _facts(rows: Sequence[tuple[object, ...]], partitions: int = 1) -> LogFacts:
    """Of a log whose last stable offset lies at its last transaction's data."""
    ends = [
        max((int(str(row[2])) + 1 for row in rows if row[0] == partition), default=0)
        for partition in range(partitions)
    ]
    bounds = Bounds("sink", tuple(PartitionBounds(p, 0, 6, end) for p, end in enumerate(ends)))
    return log_facts(table_of(rows, BATCH_COLUMNS), bounds)


def _offsets(facts: LogFacts, name: str) -> list[int]:
    """The first offsets of the batches of which the fact is true."""
    return list(facts.batches.loc[facts.batches[name], "base_offset"])
