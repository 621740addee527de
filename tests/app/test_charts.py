"""The figures, without a browser."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.app.test_url_state import BOUNDS, RANGES
from topicproof.app.charts.proportions import layers
from topicproof.app.charts.strip import (
    STRIP_CELLS_MAX,
    STRIP_PARTITIONS_MAX,
    STRIP_POINTS_MAX,
    strip_columns,
    strip_figure,
    strip_pointer,
    strip_with_pointer,
)
from topicproof.app.charts.timeline import timeline_figure, timeline_pointer
from topicproof.backend.kafka.log.fates import FATES, bins
from topicproof.validators.finding import Bounds, Fate, PartitionBounds


def test_the_strip_has_a_cell_for_every_bin_and_says_what_is_in_it() -> None:
    """Story: a screen reader and a mouse ask the same cell. It names its partition, its offsets and
    its fates."""
    found = bins(RANGES, BOUNDS, strip_columns(3))
    figure = strip_figure(found, BOUNDS)
    heat, cells, symbols, _under, lso = figure.data
    assert heat.z.shape[1] == 12 and str(heat.z.dtype) == "uint8"
    assert len(heat.y) == len(heat.z) + 1 and list(figure.layout.yaxis.ticktext) == [
        f"p{number}" for number in found.partitions
    ]
    assert len(cells.x) == int((found.worst >= 0).sum()) == 17
    assert cells.text[5] == "1 aborted" and tuple(cells.customdata[5]) == (0, 5, 6)
    assert "✕" in symbols.text and "◔" in symbols.text
    assert list(lso.customdata) == [8]


def test_the_pointer_lies_over_its_offset() -> None:
    """Story: the page's pointer is laid over the strip, at the row and the offset of the tables; a
    strip that is kept has it within."""
    found = bins(RANGES, BOUNDS, strip_columns(3))
    figure = strip_figure(found, BOUNDS)
    first, last = strip_pointer(found, 0, 0), strip_pointer(found, 2, int(found.edges[-1]) - 1)
    rows_px = figure.layout.height - figure.layout.margin.t - figure.layout.margin.b
    assert first.top_px == figure.layout.margin.t + rows_px / 6
    assert last.top_px == figure.layout.margin.t + rows_px * 5 / 6
    low, high = figure.layout.xaxis.range
    assert first.share == (0 - low) / (high - low) and last.share == (found.edges[-1] - 1 - low) / (
        high - low
    )
    assert (first.left_px, first.right_px) == (figure.layout.margin.l, figure.layout.margin.r)
    kept = strip_with_pointer(figure, 0, 5)
    assert list(kept.data[-1].x) == [5] and len(figure.data) == len(kept.data) - 1


@pytest.mark.parametrize("partitions", [1, 3, 16, 500])
def test_a_strip_stays_small(partitions: int) -> None:
    """Story: a topic has very many partitions. The strip sends no more cells than a browser draws
    quickly."""
    shown = min(partitions, STRIP_PARTITIONS_MAX)
    assert strip_columns(partitions) * shown <= STRIP_CELLS_MAX
    bounds = Bounds("topic", tuple(PartitionBounds(p, 0, 1_000, 1_000) for p in range(shown)))
    ranges = pd.DataFrame(
        [(p, 0, 999, "COMMITTED", 1_000, -1, None) for p in range(shown)], columns=RANGES.columns
    )
    points = strip_figure(bins(ranges, bounds, strip_columns(shown)), bounds).data[1]
    assert len(points.x) <= STRIP_POINTS_MAX + shown
    assert sum(int(end) - int(first) for _, first, end in points.customdata) >= shown * 1_000


SHARES = (
    *((committed, aborted) for committed, aborted in ((900, 100), (500, 500), (999, 1), (1, 999))),
    *((813, 187), (995, 5)),
)


@pytest.mark.parametrize(("committed", "aborted"), SHARES)
def test_a_mixed_cell_is_drawn_in_proportion(committed: int, aborted: int) -> None:
    """Story: somebody sees a strip and estimates how much was aborted. The estimate is right, a
    lone aborted record is not lost, and a lone committed one neither."""
    bounds = Bounds("topic", (PartitionBounds(0, 0, 100_000, 100_000),))
    pieces = [
        (0, 1_000 * number + first, 1_000 * number + last, fate, last + 1 - first, -1, None)
        for number in range(100)
        for first, last, fate in ((0, committed - 1, "COMMITTED"), (committed, 999, "ABORTED"))
    ]
    found = bins(pd.DataFrame(pieces, columns=RANGES.columns), bounds, 100)
    drawn = layers(found, 9)
    assert drawn.shape == (1, 9, 100)
    of_aborted = drawn == FATES.index(Fate.ABORTED)
    assert of_aborted.any(axis=1).all() and not of_aborted.all(axis=1).any()
    fewest, most = 1 / 9, 8 / 9
    assert of_aborted.mean() == pytest.approx(
        min(most, max(fewest, aborted / (committed + aborted))), abs=0.01
    )
    assert not of_aborted[0, 0].any(), "the worst fate lies below"


def of_timeline(
    first_offset: list[int], outcome: list[str], begin: list[int], duration_ms: list[int]
) -> pd.DataFrame:
    """Transactions of one record each, in partition and lane 0, 1, 2."""
    return pd.DataFrame(
        {
            "partition": [0, 1, 2],
            "first_offset": first_offset,
            "lane": ["p0", "p1", "p2"],
            "outcome": outcome,
            "first_timestamp": begin,
            "duration_ms": duration_ms,
            "records": 1,
            "producer_id": 1,
        }
    )


def test_a_transaction_that_is_short_for_the_timeline_can_still_be_hit() -> None:
    """Story: transactions of milliseconds beside one of an hour. Their bars are wide enough for a
    click, and of two close together the later is on top."""
    rows = of_timeline(
        [20, 10, 0], ["COMMITTED"] * 3, [1_000_050, 1_000_000, 1_000_100], [0, 3, 3_600_000]
    )
    figure = timeline_figure(rows, ["p0", "p1", "p2"])
    bars, ticks = (trace for trace in figure.data if len(trace.x))
    assert [pd.Timestamp(one).value // 10**6 for one in ticks.x] == [
        1_000_050,
        1_000_003,
        4_600_100,
    ]
    low, high = (one.timestamp() * 1_000 for one in figure.layout.xaxis.range)
    assert [row[1] for row in bars.customdata] == [10, 20, 0]
    assert [row[3] for row in bars.customdata] == [3, 0, 3_600_000]
    assert bars.x[0] == bars.x[1] == pytest.approx((high - low) / 200) and bars.x[2] == 3_600_000


def test_the_pointer_of_the_timeline_lies_over_the_beginning_of_its_transaction() -> None:
    """Story: a transaction is chosen. The pointer is in its lane, at its begin; one that is not
    drawn has none, nor has one whose producer wrote a time that is none."""
    rows = of_timeline(
        [0, 10, 20],
        ["COMMITTED", "ABORTED", "COMMITTED"],
        [1_000_000, 1_000_400, 2**62],
        [100, 600, 0],
    )
    lanes = ["p0", "p1", "p2"]
    figure = timeline_figure(rows, lanes)
    there = timeline_pointer(rows, lanes, (1, 10))
    assert there is not None
    low, high = (one.timestamp() * 1_000 for one in figure.layout.xaxis.range)
    assert there.share == pytest.approx((1_000_400 - low) / (high - low))
    lanes_px = figure.layout.height - figure.layout.margin.t - figure.layout.margin.b
    assert (
        there.top_px == figure.layout.margin.t + lanes_px / 2
        and there.left_px == figure.layout.margin.l
    )
    assert timeline_pointer(rows, lanes, (2, 20)) is None
    assert timeline_pointer(rows, lanes, (0, 5)) is None
