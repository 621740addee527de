"""Where somebody looks, and the snapshot looked at: pure functions, no process needed."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import charts, snapshot, wording
from app.place import COMMITTED, LEVELS, Place, read_place, write_place
from backend.kafka.fates import FATES, bins
from backend.settings import ROOT
from validators.catalogue import VALIDATORS
from validators.finding import Bounds, Fate, PartitionBounds

BOUNDS = Bounds("squares", (PartitionBounds(0, 0, 10, 10), PartitionBounds(1, 5, 8, 12), PartitionBounds(2, 3, 3, 3)))
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
    columns=["partition", "first_offset", "last_offset", "fate", "records", "transaction", "control"],
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
    """Story: any place that the page can show is written to the address and read back without a notice."""
    place = Place("squares", partition, offset, record, level, tuple(fates))
    assert read_place(write_place(place), BOUNDS, None) == (place, [])


@given(st.dictionaries(st.sampled_from(["partition", "offset", "record", "level", "fate"]), st.text()))
def test_any_address_is_some_place(params: dict[str, str]) -> None:
    """Story: an address is garbage. There is always a place to show, and it is in the topic."""
    place, _notices = read_place(params, BOUNDS, (0, 5))
    (p,) = (p for p in BOUNDS.partitions if p.partition == place.partition)
    assert p.start <= place.offset <= max(p.start, p.hw - 1)
    assert p.start <= place.record <= max(p.start, p.hw - 1)


def test_an_address_without_a_place_shows_what_is_worth_it() -> None:
    """Story: only the topic is named. The first aborted record is shown, or else the beginning."""
    assert read_place({}, BOUNDS, (0, 5))[0].offset == 5
    assert read_place({"partition": "1"}, BOUNDS, (0, 5))[0] == Place("squares", 1, 5, 5, "both", ())
    assert read_place({"level": COMMITTED}, BOUNDS, None)[0].offset == 0


def test_the_next_of_a_fate_goes_on_and_around() -> None:
    """Story: somebody presses "next" again and again: on this partition, then the following ones, then from the top."""
    assert snapshot.next_of(RANGES, 0, 0, Fate.MARKER) == (0, 4)
    assert snapshot.next_of(RANGES, 0, 4, Fate.MARKER) == (0, 8)
    assert snapshot.next_of(RANGES, 0, 8, Fate.MARKER) == (0, 4)
    assert snapshot.next_of(RANGES, 0, 9, Fate.COMMITTED) == (1, 5)
    assert snapshot.next_of(RANGES, 1, 5, Fate.GONE) is None


def test_a_click_finds_the_worst_of_its_cell() -> None:
    """Story: a cell of ten offsets is vermilion because of three. A click goes to the first of those."""
    assert snapshot.worst_place(RANGES, 0, 0, 10) == 5
    assert snapshot.worst_place(RANGES, 0, 6, 10) == 6
    assert snapshot.worst_place(RANGES, 1, 0, 8) == 5


def test_what_was_tried_again_is_looked_for_at_the_same_distance() -> None:
    """Story: the third record of an aborted transaction is the third of what replaced it, if that is as long."""
    assert snapshot.same_place(RANGES, 0, 5, 3) == [9]
    assert snapshot.same_place(RANGES, 0, 6, 3) == []
    assert snapshot.same_place(RANGES, 0, 4, 3) == []


def test_the_strip_has_a_cell_for_every_bin_and_says_what_is_in_it() -> None:
    """Story: a screen reader and a mouse ask the same cell. It names its partition, its offsets and its fates."""
    found = bins(RANGES, BOUNDS, charts.strip_columns(3))
    figure = charts.strip(found, BOUNDS, 0, 5)
    heat, cells, symbols, _under, lso, pointer = figure.data
    assert heat.z.shape == (3, 12) and str(heat.z.dtype) == "uint8"
    assert len(cells.x) == int((found.worst >= 0).sum()) == 17
    assert cells.text[5] == "1 aborted" and tuple(cells.customdata[5]) == (0, 5, 6)
    assert "✕" in symbols.text and "◔" in symbols.text
    assert list(lso.customdata) == [8] and list(pointer.x) == [5]


@pytest.mark.parametrize("partitions", [1, 3, 16, 48, 500])
def test_a_strip_stays_small(partitions: int) -> None:
    """Story: a topic has very many partitions. The strip sends no more cells than a browser draws quickly."""
    shown = min(partitions, charts.STRIP_PARTITIONS_MAX)
    assert charts.strip_columns(partitions) * shown <= charts.STRIP_CELLS_MAX


def test_every_fate_has_a_word_a_symbol_and_a_colour() -> None:
    """Story: a fate is added to the vocabulary. No two share a symbol, and none is told by its colour alone."""
    assert set(wording.FATE_WORDS) == set(charts.FATE_COLOURS) == set(FATES)
    assert len({word.symbol for word in wording.FATE_WORDS.values()}) == len(FATES)


def test_every_kind_of_finding_has_a_title() -> None:
    """Story: a kind is added to the catalogue. The page Verdict says it in words."""
    assert {validator.NAME for validator in VALIDATORS} == set(wording.KIND_TITLES)
    assert len(set(wording.KIND_TITLES.values())) == len(VALIDATORS)


def test_plain_text_stays_plain() -> None:
    """Story: a topic is called like a formula and a value like a link. Markdown makes nothing of them."""
    hostile = "![x](http://127.0.0.1/) <b>_a_</b> $x$ `c` :red[x] # h"
    escaped = wording.plain(hostile)
    assert escaped.replace("\\", "") == hostile
    assert not [n for n, c in enumerate(escaped) if c in "![]()<>_$`:#" and escaped[n - 1] != "\\"]


def test_numbers_and_times_are_said_in_words() -> None:
    """Story: one record is not "1 records", and a timestamp from another galaxy is no crash."""
    assert wording.count(1, "record") == "1 record" and wording.count(2_000, "record") == "2,000 records"
    assert wording.duration(59.4) == "59 s" and wording.duration(125) == "2 min 5 s"
    assert wording.moment_of_ms(0) == "1970-01-01 00:00:00.000 UTC"
    assert "no date" in wording.moment_of_ms(2**62) and wording.moment_of_ms(None) == "no timestamp"
    assert wording.short_transaction("squares-k3f9a2-square-squares-k3f9a2-numbers-0/17, attempt 2") == (
        "…-0/17, attempt 2"
    )


def test_the_look_loads_nothing_from_elsewhere() -> None:
    """Story: the dashboard runs where there is no network. Neither theme nor code names an address outside."""
    files = [ROOT / ".streamlit" / "config.toml", *sorted(Path(ROOT / "app").rglob("*.py"))]
    assert [path.name for path in files if "https://" in path.read_text(encoding="utf-8")] == []
