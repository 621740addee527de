"""Where somebody looks, and the snapshot looked at: pure functions, no process needed."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicproof.app import snapshot, wording
from topicproof.app.charts.layout import FATE_COLOURS
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
from topicproof.app.place import COMMITTED, LEVELS, Place, read_place, write_place
from topicproof.backend.kafka.log.fates import FATES, bins
from topicproof.backend.settings import ROOT
from topicproof.validators.finding import Bounds, Fate, PartitionBounds
from topicproof.validators.kinds.catalogue import VALIDATORS

BOUNDS = Bounds(
    "squares",
    (PartitionBounds(0, 0, 10, 10), PartitionBounds(1, 5, 8, 12), PartitionBounds(2, 3, 3, 3)),
)
RANGES = pd.DataFrame(
    [
        (0, 0, 3, Fate.COMMITTED, 4, 0, None),
        (0, 4, 4, Fate.MARKER, 0, 0, "COMMIT"),
        (0, 5, 7, Fate.ABORTED, 3, 1, None),
        (0, 8, 8, Fate.MARKER, 0, 1, "ABORT"),
        (0, 9, 9, Fate.COMMITTED, 1, 2, None),
        (1, 5, 7, Fate.COMMITTED, 3, 3, None),
        (1, 8, 11, Fate.PENDING, 4, 4, None),
    ],
    columns=[
        "partition",
        "first_offset",
        "last_offset",
        "fate",
        "records",
        "transaction",
        "control",
    ],
)


@given(
    partition=st.sampled_from([0, 1]),
    offset=st.integers(5, 9),
    record=st.integers(5, 9),
    level=st.sampled_from(LEVELS),
    fates=st.lists(st.sampled_from(list(Fate)), unique=True),
)
def test_an_address_reopens_the_same_place(
    partition: int, offset: int, record: int, level: str, fates: list[Fate]
) -> None:
    """Story: any place that the page can show is written to the address and read back without a
    notice."""
    place = Place("squares", partition, offset, record, level, tuple(fates))
    assert read_place(write_place(place), BOUNDS, None) == (place, [])


@given(
    st.dictionaries(st.sampled_from(["partition", "offset", "record", "level", "fate"]), st.text())
)
def test_any_address_is_some_place(params: dict[str, str]) -> None:
    """Story: an address is garbage. There is always a place to show, and it is in the topic."""
    place, _notices = read_place(params, BOUNDS, (0, 5))
    (p,) = (p for p in BOUNDS.partitions if p.partition == place.partition)
    assert p.start <= place.offset <= max(p.start, p.hw - 1)
    assert p.start <= place.record <= max(p.start, p.hw - 1)


def test_an_address_without_a_place_shows_what_is_worth_it() -> None:
    """Story: only the topic is named. The first aborted record is shown, or else the beginning."""
    assert read_place({}, BOUNDS, (0, 5))[0].offset == 5
    assert read_place({"partition": "1"}, BOUNDS, (0, 5))[0] == Place(
        "squares", 1, 5, 5, "both", ()
    )
    assert read_place({"level": COMMITTED}, BOUNDS, None)[0].offset == 0


def test_the_next_of_a_fate_goes_on_and_around() -> None:
    """Story: somebody presses "next" again and again: on this partition, then the following ones,
    then from the top."""
    assert snapshot.next_of(RANGES, 0, 0, Fate.MARKER) == (0, 4)
    assert snapshot.next_of(RANGES, 0, 4, Fate.MARKER) == (0, 8)
    assert snapshot.next_of(RANGES, 0, 8, Fate.MARKER) == (0, 4)
    assert snapshot.next_of(RANGES, 0, 9, Fate.COMMITTED) == (1, 5)
    assert snapshot.next_of(RANGES, 1, 5, Fate.GONE) is None


def test_a_click_finds_the_worst_of_its_cell() -> None:
    """Story: a cell of ten offsets is vermilion because of three. A click goes to the first of
    those."""
    assert snapshot.worst_place(RANGES, 0, 0, 10) == 5
    assert snapshot.worst_place(RANGES, 0, 6, 10) == 6
    assert snapshot.worst_place(RANGES, 1, 0, 8) == 5


def test_what_was_tried_again_is_looked_for_at_the_same_distance() -> None:
    """Story: the third record of an aborted transaction is the third of what replaced it, if that
    is as long."""
    assert snapshot.same_place(RANGES, 0, 5, 3) == [9]
    assert snapshot.same_place(RANGES, 0, 6, 3) == []
    assert snapshot.same_place(RANGES, 0, 4, 3) == []


def test_the_strip_has_a_cell_for_every_bin_and_says_what_is_in_it() -> None:
    """Story: a screen reader and a mouse ask the same cell. It names its partition, its offsets and
    its fates."""
    found = bins(RANGES, BOUNDS, strip_columns(3))
    figure = strip_figure(found, BOUNDS)
    heat, cells, symbols, _under, lso = figure.data
    assert heat.z.shape == (3, 12) and str(heat.z.dtype) == "uint8"
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


@pytest.mark.parametrize("partitions", [1, 3, 16, 48, 500])
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


def test_every_fate_has_a_word_a_symbol_and_a_colour() -> None:
    """Story: a fate is added to the vocabulary. No two share a symbol, and none is told by its
    colour alone."""
    assert set(wording.FATE_WORDS) == set(FATE_COLOURS) == set(FATES)
    assert len({word.symbol for word in wording.FATE_WORDS.values()}) == len(FATES)


def test_every_kind_of_finding_has_a_title() -> None:
    """Story: a kind is added to the catalogue. The page Verdict says it in words."""
    assert {validator.NAME for validator in VALIDATORS} == set(wording.KIND_TITLES)
    assert len(set(wording.KIND_TITLES.values())) == len(VALIDATORS)


def test_plain_text_stays_plain() -> None:
    """Story: a topic is called like a formula and a value like a link. Markdown makes nothing of
    them."""
    hostile = "![x](http://127.0.0.1/) <b>_a_</b> $x$ `c` :red[x] # h"
    escaped = wording.plain(hostile)
    assert escaped.replace("\\", "") == hostile
    assert not [n for n, c in enumerate(escaped) if c in "![]()<>_$`:#" and escaped[n - 1] != "\\"]


def test_numbers_and_times_are_said_in_words() -> None:
    """Story: one record is not "1 records", and a timestamp from another galaxy is no crash."""
    assert (
        wording.count(1, "record") == "1 record"
        and wording.count(2_000, "record") == "2,000 records"
    )
    assert wording.duration(59.4) == "59 s" and wording.duration(125) == "2 min 5 s"
    assert wording.moment_of_ms(0) == "1970-01-01 00:00:00.000 UTC"
    assert "no date" in wording.moment_of_ms(2**62) and wording.moment_of_ms(None) == "no timestamp"
    assert wording.short_transaction(
        "squares-k3f9a2-square-squares-k3f9a2-numbers-0/17, attempt 2"
    ) == ("…-0/17, attempt 2")


def test_the_look_loads_nothing_from_elsewhere() -> None:
    """Story: the dashboard runs where there is no network. Neither theme nor code names an address
    outside."""
    files = [ROOT / ".streamlit" / "config.toml", *sorted(Path(ROOT / "app").rglob("*.py"))]
    assert [path.name for path in files if "https://" in path.read_text(encoding="utf-8")] == []


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
    click, and the later of two that stand close together lies on top."""
    rows = of_timeline(
        [20, 10, 0], ["COMMITTED"] * 3, [1_000_050, 1_000_000, 1_000_100], [0, 3, 3_600_000]
    )
    figure = timeline_figure(rows, ["p0", "p1", "p2"])
    (bars,) = (trace for trace in figure.data if len(trace.x))
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
