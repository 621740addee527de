"""The page Matrix: nothing yet, the last results as a heat map and a table, a cell by its address,
a damaged file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.app.conftest import OpenPage, texts
from topicproof.app.charts.matrix_chart import CELL_COLOURS, matrix_figure, matrix_pointer
from topicproof.app.run import matrix_cells
from topicproof.backend.history.store import History, State
from topicproof.backend.matrix.cells import RESULTS, Result
from topicproof.backend.settings import read_settings

PLAN = {
    "guarantee": "exactly_once",
    "records": 600,
    "partitions": 2,
    "per_transaction": 100,
    "seed": 3,
}
EXACT = Result(
    "exactly_once", "none", PLAN, "squares-a", "HOLDS", {}, "exact", "no fault fired", (), 6.1
)
HIDDEN = Result(
    "exactly_once",
    "abort",
    PLAN,
    "squares-b",
    "HOLDS",
    {"hidden": 200},
    "hidden",
    "2 aborted",
    (),
    7.0,
)
DAMAGED = Result(
    *(
        "at_least_once",
        "abort",
        PLAN,
        "squares-c",
        "HOLDS",
        {"duplicates": 200},
        "duplicates",
        "2 aborted",
        (),
        7.0,
    )
)
SURPRISING = Result(
    *("at_most_once", "abort", PLAN, "squares-d", "VIOLATED", {"phantoms": 1}, "gaps", None),
    *(("no <b>gaps</b>, which were expected", "nothing shows that the fault fired"), 7.0),
)
EVERY = (EXACT, HIDDEN, DAMAGED, SURPRISING)


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[Result]], Path]:
    """A home in which a matrix left these results; gives the file."""
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path))
    monkeypatch.setenv("TOPICPROOF_BOOTSTRAP", "127.0.0.1:1")

    def write(results: Sequence[Result]) -> Path:
        path = tmp_path / RESULTS
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps([asdict(one) for one in results]))
        return path

    return write


def test_a_cell_is_told_by_symbol_word_and_colour() -> None:
    """Story: hidden records are not damage, expected damage is not a surprise, and no two look
    alike."""
    assert [matrix_cells.kind(one) for one in EVERY] == ["exact", "exact", "damaged", "surprise"]
    assert set(matrix_cells.SYMBOLS) == set(matrix_cells.MEANINGS) == set(CELL_COLOURS)
    assert len(set(matrix_cells.SYMBOLS.values())) == len(set(CELL_COLOURS.values())) == 4
    assert matrix_cells.kind(replace(DAMAGED, expected="refused, perhaps gaps")) == "refused"
    assert replace(EXACT, expected="refused").says == "refused"
    went_on = replace(EXACT, expected="refused", surprises=("the sink continued",))
    assert went_on.says == "exact"
    frame = matrix_cells.frame(matrix_cells.ordered(reversed(EVERY)))  # type: ignore[arg-type]
    assert frame["label"].tolist() == [
        "✓ exact",
        "✓ 200 hidden",
        "▲ 200 duplicates",
        "‼ 1 phantoms",
    ]
    columns = matrix_cells.guarantees(EVERY)
    figure = matrix_figure(frame, columns)
    heat, *inks = figure.data
    places = [tuple(one[:2]) for points in inks for one in points.customdata]
    assert heat.z.shape == (2, 3) and sorted(places) == sorted(
        zip(frame["guarantee"], frame["fault"], strict=True)
    )
    assert all(one.unselected.textfont.color == one.textfont.color for one in inks)
    pointers = [
        matrix_pointer(frame, columns, place) for place in (("at_least_once", "abort"), ("x", "y"))
    ]
    assert pointers[0] is not None and 1 / 3 < pointers[0].share < 1 / 2 and pointers[1] is None


def test_the_results_are_a_chart_and_a_table_with_a_cell_by_its_address(
    open_page: OpenPage, keep: Callable[[Sequence[Result]], Path]
) -> None:
    """Story: somebody gets the address of a cell that surprised. The page shows what was expected
    there, what was found and its run; what a result says stays text."""
    keep(EVERY)
    settings = read_settings()
    history = History(settings)
    run = history.create("run", "squares", PLAN)
    history.end(run.id, State.DONE, "VIOLATED", "1 phantom")
    keep((*EVERY[:3], Result(**{**asdict(SURPRISING), "run": run.id})))
    app = open_page("matrix")
    assert not app.exception and len(app.get("plotly_chart")) == 1
    assert "3 of 4 cells agree with what theory expects; 1 is a surprise" in texts(app)
    table = app.dataframe[0].value
    assert table["found"].tolist() == ["exact", "200 hidden", "200 duplicates", "1 phantoms"]
    assert table["expected"].tolist() == ["exact", "hidden", "duplicates", "gaps"]
    app = open_page("matrix", guarantee="at_most_once", fault="abort")
    assert not app.exception and "at_most_once under abort" in texts(app)
    assert "no <b>gaps</b>, which were expected" in texts(app)
    assert "Open its run" in [link.value for link in app.page_link]
    app = open_page("matrix", guarantee="exactly_once", fault="none")
    assert "squares-a was deleted, like every run that agrees" in texts(app) and app.button(
        key="again"
    )
    app = open_page("matrix", guarantee="<b>no</b>", fault="none")
    assert not app.exception and "no result of <b>no</b> under none" in texts(app)
    history.engine.dispose()


def test_without_results_it_says_how_to_get_them(
    open_page: OpenPage, keep: Callable[[Sequence[Result]], Path]
) -> None:
    """Story: nobody ever ran the matrix; then its file is cut off. The first says what to do, the
    second what to delete."""
    app = open_page("matrix")
    assert not app.exception and app.info[0].value.startswith("The matrix runs every guarantee")
    assert any(
        "topicproof matrix --resume" in one.proto.body for one in app.get("html")
    ) and app.button(key="small")
    path = keep(EVERY)
    path.write_text(path.read_text()[:50])
    app = open_page("matrix")
    assert not app.exception and "does not hold the results of a matrix" in texts(app)
