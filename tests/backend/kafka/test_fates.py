"""The fold from batch headers to fates, on tables written as a line of text.

`A3` is a batch of three records in a transaction of producer A, `A+` and `A-` are its commit and
abort markers, `n2` a batch that never was in a transaction, `.4` four offsets that lie in no batch,
`A1/3` a batch of three offsets of which compaction left one record. `|` is the last stable offset;
without it, it is the end.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from tests.backend.kafka.topics import FATE_LETTERS, model
from topicproof.backend.kafka.log.batches import SCHEMA
from topicproof.backend.kafka.log.fates import (
    FATES,
    RANGE_COLUMNS,
    balance,
    bins,
    fate_ranges,
    records_between,
    total,
    transactions,
)
from topicproof.backend.kafka.log.over_partitions import OVER_PARTITIONS_COLUMNS, over_partitions
from topicproof.validators.facts.log_facts import TRANSACTION_COLUMNS
from topicproof.validators.finding import Bounds, Fate, PartitionBounds
from topicproof.validators.readings import column_names

PRODUCERS = {"A": 1001, "B": 1002, "C": 1003}
BYTES_EACH = 10


def log(*lines: str, start: int = 0) -> tuple[pa.Table, Bounds]:
    """Batches and bounds; one line a partition."""
    rows: list[dict[str, object]] = []
    partitions = []
    for partition, line in enumerate(lines):
        at, lso = start, None
        for token in line.split():
            if token == "|":
                lso = at
                continue
            if token.startswith("."):
                at += int(token[1:])
                continue
            who, what = token[0], token[1:]
            control = {"+": "COMMIT", "-": "ABORT", "*": "OTHER"}.get(what[:1])
            left, _, span = (what[1:] or "1" if control else what).partition("/")
            width = int(span or left)
            rows.append(
                {
                    "partition": partition,
                    "base_offset": at,
                    "last_offset": at + width - 1,
                    "count": int(left),
                    "producer_id": PRODUCERS.get(who, -1),
                    # Like a Java client's: a marker carries the epoch after the data's.
                    "producer_epoch": 1 if control else 0,
                    "base_sequence": -1,
                    "transactional": who in PRODUCERS,
                    "control": control,
                    "first_timestamp": 1_000 + at,
                    "max_timestamp": 1_000 + at + width - 1,
                    "size": BYTES_EACH * int(left),
                    "compression": "none",
                    "leader_epoch": 0,
                }
            )
            at += width
        partitions.append(PartitionBounds(partition, start, at if lso is None else lso, at))
    return pa.Table.from_pylist(rows, SCHEMA), Bounds("topic", tuple(partitions))


def told(frame: pd.DataFrame, *columns: str) -> list[list[Any]]:
    """The rows of a table as lists; null is None."""
    rows = pa.Table.from_pandas(frame[list(columns)], preserve_index=False).to_pylist()
    return [list(row.values()) for row in rows]


def fates(line: str) -> str:
    """The fate of every offset of a log without thinned-out batches, a letter each."""
    batches, bounds = log(line)
    ranges = fate_ranges(batches, bounds)
    letter = {name: short for short, name in FATE_LETTERS.items()}
    rows = told(ranges, "first_offset", "last_offset", "fate")
    assert [first for first, _, _ in rows[1:]] == [last + 1 for _, last, _ in rows[:-1]], (
        "a hole between ranges"
    )
    return "".join(letter[fate] * (last - first + 1) for first, last, fate in rows)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("A2 A+", "CCM"),
        ("A2 A-", "AAM"),
        ("n2", "CC"),
        ("A1 B1 A1 B- A+", "CACMM"),
        ("A1 A+ A1 A-", "CMAM"),
        ("| A2", "PP"),
        ("A1 A+ | B1 n2 A1 A+", "CMPPPPP"),
        ("A1 | B1 A1 A+ B1", "CPPPP"),
        ("n1 .2 n1", "CGGC"),
        (".3 A1 A+", "GGGCM"),
        ("n1 .2 | .2 B1", "CGGPPP"),
        ("A0/2 n1", "GGC"),
        ("A+ B-", "MM"),
        ("A1 A*", "UM"),
        ("A1 A*0/1", "UG"),
        ("A2 B1 B+", "UUCM"),
        ("", ""),
    ],
)
def test_every_offset_has_the_fate_that_its_marker_and_place_give_it(
    line: str, expected: str
) -> None:
    """A log is written as text, a letter for each offset is expected. Markers decide, and the LSO
    hides."""
    assert fates(line) == expected


def test_a_transaction_is_what_lies_between_two_markers_of_one_producer() -> None:
    """Two producers take turns on one partition, and one starts again after its marker. Each
    transaction is named."""
    batches, bounds = log("A2 B1 A3 A+ B2 | A1 B-")
    found = transactions(batches, bounds)
    assert list(found.columns) == column_names(TRANSACTION_COLUMNS)
    assert told(
        found, "producer_id", "first_offset", "last_offset", "records", "outcome", "marker_offset"
    ) == [
        [1001, 0, 5, 5, "COMMITTED", 6],
        [1002, 2, 8, 3, "ABORTED", 10],
        [1001, 9, 9, 1, "OPEN", None],
    ]
    assert found["producer_epoch"].tolist() == [0, 0, 0], "the data's epoch, not the marker's"
    assert found["bytes"].tolist() == [50, 30, 10]
    assert found["first_timestamp"].tolist() == [1_000, 1_002, 1_009]
    assert found["last_timestamp"].tolist() == [1_005, 1_008, 1_009]
    assert found["marker_timestamp"].isna().tolist() == [False, False, True]


def test_partitions_are_folded_apart() -> None:
    """One producer commits on one partition and leaves its data open on another. The marker ends
    only its own."""
    batches, bounds = log("A1 A+", "| A1", "A1 A-")
    assert transactions(batches, bounds)["outcome"].tolist() == ["COMMITTED", "OPEN", "ABORTED"]


def test_data_below_the_lso_without_a_marker_is_unexplained() -> None:
    """The LSO says that a transaction has ended, but no marker is in the log. Nothing may guess how
    it ended."""
    batches, bounds = log("A2 n1")
    assert transactions(batches, bounds)["outcome"].tolist() == ["UNEXPLAINED"]
    assert total(balance(fate_ranges(batches, bounds), bounds))[Fate.UNEXPLAINED] == 2


def parts(*lines: str) -> pd.DataFrame:
    """A table of transactions; `A0 p1 5-9 made 20-24 +30` is producer A, epoch 0, partition 1,
    offsets 5 to 9, made from 20 to 24 ms, committed at 30 ms. `-30` aborted, `^+30` by a marker of
    the next epoch, `open`, `lost`."""
    rows: list[dict[str, object]] = []
    for line in lines:
        who, partition, offsets, _, made, end = line.split()
        (first, last), (begin, newest) = (
            [int(n) for n in pair.split("-")] for pair in (offsets, made)
        )
        epoch, at = int(who[1:]), None if end in ("open", "lost") else int(end.lstrip("^+-"))
        rows.append(
            {
                "partition": int(partition[1:]),
                "producer_id": PRODUCERS[who[0]],
                "producer_epoch": epoch,
                "first_offset": first,
                "last_offset": last,
                "records": last - first + 1,
                "bytes": BYTES_EACH * (last - first + 1),
                "first_timestamp": begin,
                "last_timestamp": newest,
                "outcome": {"open": "OPEN", "lost": "UNEXPLAINED"}.get(
                    end, "COMMITTED" if "+" in end else "ABORTED"
                ),
                "marker_offset": None if at is None else last + 1,
                "marker_timestamp": at,
                "marker_epoch": None if at is None else epoch + end.startswith("^"),
            }
        )
    nullable = ["marker_offset", "marker_timestamp", "marker_epoch"]
    return pd.DataFrame(rows, columns=column_names(TRANSACTION_COLUMNS)).astype(
        dict.fromkeys(nullable, "Int64")
    )


def folded(*lines: str) -> list[list[Any]]:
    """Producer, partitions and outcome of each transaction of `parts`."""
    found = over_partitions(parts(*lines))
    letter = {number: who for who, number in PRODUCERS.items()}
    rows = told(found, "producer_id", "partitions", "outcome")
    return [[letter[producer], *partitions, outcome] for producer, partitions, outcome in rows]


def test_a_transaction_over_partitions_is_one_row() -> None:
    """Three parts with markers of nearly one moment. Places stay in the order of partitions; the
    rest is summed."""
    found = over_partitions(
        parts(
            "A0 p2 0-4 made 20-22 +31",
            "A0 p0 7-9 made 21-25 +30",
            "B0 p0 10-10 made 21-21 open",
            "A0 p1 3-3 made 23-23 +31",
        )
    )
    assert tuple(found.columns) == OVER_PARTITIONS_COLUMNS
    assert [
        list(row.values()) for row in pa.Table.from_pandas(found, preserve_index=False).to_pylist()
    ] == [
        [1001, 0, [0, 1, 2], [7, 3, 0], [9, 3, 4], 9, 90, 20, 31, "COMMITTED"],
        [1002, 0, [0], [10], [10], 1, 10, 21, None, "OPEN"],
    ]
    assert found["partitions"][0] == (0, 1, 2)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # One epoch for many: a partition that comes again is of the next transaction, and takes the
        # others with it.
        (
            [
                "A0 p0 0-0 made 1-1 +5",
                "A0 p1 0-0 made 2-2 +5",
                "A0 p0 2-2 made 6-6 -9",
                "A0 p1 2-2 made 7-7 -9",
            ],
            [["A", 0, 1, "COMMITTED"], ["A", 0, 1, "ABORTED"]],
        ),
        # Data made after the first marker are of the next transaction, whatever partition they are
        # in.
        (
            ["A0 p0 0-0 made 1-2 +5", "A0 p1 0-0 made 6-7 -9"],
            [["A", 0, "COMMITTED"], ["A", 1, "ABORTED"]],
        ),
        # The writer's clock is 100 ms ahead of the brokers'; both of its transactions show it.
        (
            ["A0 p0 0-0 made 101-104 +5", "A0 p1 0-0 made 103-104 +5", "A0 p1 2-2 made 106-108 -9"],
            [["A", 0, 1, "COMMITTED"], ["A", 1, "ABORTED"]],
        ),
        # An epoch each: together even if a leader's clock is far behind, apart whatever the clocks
        # say.
        (["A0 p0 0-0 made 1-8 ^+9", "A0 p1 0-0 made 1-8 ^+4"], [["A", 0, 1, "COMMITTED"]]),
        (
            ["A0 p0 0-0 made 1-2 ^+9", "A1 p1 0-0 made 1-2 ^+9"],
            [["A", 0, "COMMITTED"], ["A", 1, "COMMITTED"]],
        ),
        # A fence ends an epoch that held several.
        (
            ["A0 p0 0-0 made 1-2 +5", "A0 p0 2-2 made 6-7 ^-20", "A0 p1 0-0 made 6-7 ^-21"],
            [["A", 0, "COMMITTED"], ["A", 0, 1, "ABORTED"]],
        ),
        # The markers of one transaction disagree; those of two producers never do.
        (["A0 p0 0-0 made 1-4 +5", "A0 p1 0-0 made 2-4 -5"], [["A", 0, 1, "SPLIT"]]),
        (
            ["A0 p0 0-0 made 1-4 +5", "B0 p1 0-0 made 2-4 -5"],
            [["A", 0, "COMMITTED"], ["B", 1, "ABORTED"]],
        ),
        # One marker is still on its way, or never came.
        (["A0 p0 0-0 made 1-4 +5", "A0 p1 0-0 made 2-4 open"], [["A", 0, 1, "OPEN"]]),
        (["A0 p0 0-0 made 1-4 +5", "A0 p1 0-0 made 2-4 lost"], [["A", 0, 1, "UNEXPLAINED"]]),
        # What was left open long ago is not of the transactions that ended since.
        (
            [
                "A0 p0 0-0 made 1-2 open",
                "A0 p1 0-0 made 3-4 +5",
                "A0 p1 2-2 made 6-7 +9",
                "A0 p0 1-1 made 8-8 +9",
            ],
            [["A", 0, "OPEN"], ["A", 1, "COMMITTED"], ["A", 0, 1, "COMMITTED"]],
        ),
        (
            ["A0 p0 0-0 made 1-2 open", "A0 p1 0-0 made 3-4 +5"],
            [["A", 0, "OPEN"], ["A", 1, "COMMITTED"]],
        ),
        # Begun while the first got its marker, which its own marker is farther from.
        (
            ["A0 p0 0-0 made 1-2 +5", "A0 p1 0-0 made 4-4 -9"],
            [["A", 0, "COMMITTED"], ["A", 1, "ABORTED"]],
        ),
        (["A0 p0 0-0 made 1-2 +5", "A0 p1 0-0 made 2-2 +7"], [["A", 0, 1, "COMMITTED"]]),
        # What headers cannot tell: the times are the writer's choice, and the two share no
        # partition.
        (["A0 p0 0-0 made 1-1 +90", "A0 p1 0-0 made 1-1 -99"], [["A", 0, 1, "SPLIT"]]),
        ([], []),
    ],
)
def test_parts_of_one_transaction_are_told_from_the_next(
    lines: list[str], expected: list[list[Any]]
) -> None:
    """One producer writes transaction after transaction over partitions. Epochs, places and times
    tell them apart."""
    assert folded(*lines) == expected


def test_ranges_name_the_transaction_of_data_and_marker() -> None:
    """Ranges refer to rows of the transactions table. A marker refers to the transaction that it
    ends."""
    batches, bounds = log("A1 A1 B1 A+ n1 n1 B- A+")
    ranges = fate_ranges(batches, bounds)
    assert tuple(ranges.columns) == RANGE_COLUMNS
    assert told(
        ranges, "first_offset", "last_offset", "fate", "records", "transaction", "control"
    ) == [
        [0, 1, "COMMITTED", 2, 0, None],
        [2, 2, "ABORTED", 1, 1, None],
        [3, 3, "MARKER", 0, 0, "COMMIT"],
        [4, 5, "COMMITTED", 2, None, None],
        [6, 6, "MARKER", 0, 1, "ABORT"],
        [7, 7, "MARKER", 0, None, "COMMIT"],
    ]
    assert ranges["transactional"].tolist() == [True, True, True, False, True, True]
    assert ranges["producer_id"].isna().tolist() == [False, False, False, True, False, False]


def test_a_thinned_out_batch_balances() -> None:
    """Compaction left one record of three offsets. The other two are gone, and the sum is still hw
    - start."""
    batches, bounds = log("A1/3 A1 A+ n2/5 | B1/4")
    counts = balance(fate_ranges(batches, bounds), bounds)
    assert counts.to_numpy()[0].tolist() == [4, 0, 4, 1, 5, 0]
    assert counts.to_numpy().sum() == bounds.offsets == 14


def test_a_batch_across_the_lso_is_cut() -> None:
    """Bounds that somebody chose may fall inside a batch. What lies above is pending, what lies
    below is not."""
    batches, _bounds = log("n6")
    chosen = Bounds("topic", (PartitionBounds(0, 0, 2, 6),))
    assert total(balance(fate_ranges(batches, chosen), chosen)) == dict.fromkeys(FATES, 0) | {
        Fate.COMMITTED: 2,
        Fate.PENDING: 4,
    }


def test_a_balance_of_other_bounds_is_refused() -> None:
    """Ranges of one moment are held against the bounds of another. A sum that does not close is not
    shown."""
    batches, bounds = log("n3")
    later = Bounds("topic", (PartitionBounds(0, 0, 5, 5),))
    with pytest.raises(AssertionError, match="partition 0: 3 fates for 5 offsets"):
        balance(fate_ranges(batches, bounds), later)


def test_the_worst_fate_of_a_bin_wins() -> None:
    """Ten offsets in bins of five: one aborted record among four others must not vanish. Markers
    hide nothing."""
    batches, bounds = log("n3 A1 A- n4 B1 B+ .3 n1")
    found = bins(fate_ranges(batches, bounds), bounds, 3)
    assert found.edges.tolist() == [0, 5, 10, 15]
    assert [FATES[code] for code in found.worst[0]] == [
        Fate.ABORTED,
        Fate.COMMITTED,
        Fate.COMMITTED,
    ]
    assert found.counts[0].tolist() == [[3, 1, 0, 1, 0, 0], [5, 0, 0, 0, 0, 0], [1, 0, 0, 1, 3, 0]]


def test_bins_at_single_offsets_show_every_fate() -> None:
    """Zoomed in to one offset a bin, nothing can be hidden. A partition without such offsets shows
    none."""
    batches, bounds = log("A1 A- n1 .1 | B1", "n1")
    found = bins(fate_ranges(batches, bounds), bounds, 100)
    names = [[FATES[code] if code >= 0 else None for code in row] for row in found.worst]
    assert names[0] == [Fate.ABORTED, Fate.MARKER, Fate.COMMITTED, Fate.GONE, Fate.PENDING]
    assert names[1] == [Fate.COMMITTED, None, None, None, None]
    window = bins(fate_ranges(batches, bounds), bounds, 100, window=(1, 3))
    assert window.edges.tolist() == [1, 2, 3]
    assert [FATES[code] for code in window.worst[0]] == [Fate.MARKER, Fate.COMMITTED]


def test_bins_of_a_topic_that_holds_nothing() -> None:
    """Nothing was ever written. There is no bin, and no error."""
    batches, bounds = log("", "")
    found = bins(fate_ranges(batches, bounds), bounds, 100)
    assert found.counts.shape == (2, 0, len(FATES))
    assert found.partitions == (0, 1)


def test_records_between_counts_records_not_offsets() -> None:
    """A reader is inside a batch. It still has to read the records after it, without markers."""
    batches, bounds = log("A4 A+ B2 B- n2 | C1 n1")
    ranges = fate_ranges(batches, bounds)
    assert records_between(ranges, 0, 2, 10, [Fate.COMMITTED]) == 4
    assert records_between(ranges, 0, 2, 12, [Fate.COMMITTED, Fate.ABORTED, Fate.PENDING]) == 8
    assert records_between(ranges, 0, 12, 12, [Fate.COMMITTED]) == 0


def test_bins_of_a_large_topic_are_quick() -> None:
    """Ten million offsets, sixteen partitions, 20,000 ranges: the strip must follow a slider. Sums
    stay exact."""
    partitions, pairs, width = 16, 625, 999
    base = np.arange(pairs, dtype=np.int64) * (width + 1)
    one = pd.DataFrame(
        {
            "first_offset": np.stack([base, base + width], axis=1).ravel(),
            "last_offset": np.stack([base + width - 1, base + width], axis=1).ravel(),
            "fate": ["COMMITTED", "MARKER"] * pairs,
            "records": [width, 0] * pairs,
            "control": [None, "COMMIT"] * pairs,
        }
    )
    ranges = pd.concat([one.assign(partition=p) for p in range(partitions)], ignore_index=True)
    hw = pairs * (width + 1)
    bounds = Bounds("topic", tuple(PartitionBounds(p, 0, hw, hw) for p in range(partitions)))
    before = time.process_time()
    found = bins(ranges, bounds, 2_000)
    assert time.process_time() - before < 0.2
    assert found.counts.sum(axis=(0, 1)).tolist() == [
        partitions * pairs * width,
        0,
        0,
        partitions * pairs,
        0,
        0,
    ]


TOKEN = st.one_of(
    st.builds("{}{}".format, st.sampled_from("ABCn"), st.integers(1, 3)),
    st.sampled_from(["A+", "A-", "B+", "B-", "C+"]),
    st.builds(".{}".format, st.integers(1, 2)),
)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(tokens=st.lists(TOKEN, max_size=14), place=st.integers(0, 14), columns=st.integers(1, 40))
def test_ranges_balance_and_bins_agree_with_a_model_of_single_offsets(
    tokens: list[str], place: int, columns: int
) -> None:
    """Any log, with the LSO at any batch. The quick tables must say what looking at each offset
    alone says."""
    line = [*tokens[:place], "|", *tokens[place:]]
    batches, bounds = log(" ".join(line))
    expected = model(tokens, bounds.partitions[0].lso)
    assert fates(" ".join(line)) == "".join(expected)
    ranges = fate_ranges(batches, bounds)
    counts = balance(ranges, bounds).to_numpy()[0]
    assert counts.tolist() == [expected.count(short) for short in FATE_LETTERS]
    found = bins(ranges, bounds, columns)
    for bin_counts, low, high in zip(
        found.counts[0], found.edges[:-1], found.edges[1:], strict=True
    ):
        inside = expected[low:high]
        assert bin_counts.tolist() == [inside.count(short) for short in FATE_LETTERS]
