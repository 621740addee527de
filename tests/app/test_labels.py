"""Charts show what topics and people wrote letter by letter: Plotly makes no link, tag or formula
of it."""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings, strategies as some

from tests.app.test_url_state import BOUNDS, RANGES
from tests.backend.evidence.test_annotations import hostile
from topicproof.app.charts.marks import Mark
from topicproof.app.charts.matrix_chart import matrix_figure
from topicproof.app.charts.strip import strip_columns, strip_figure, strip_with_pointer
from topicproof.app.charts.timeline import timeline_figure
from topicproof.app.charts.trend_chart import trend_figure
from topicproof.app.charts.where import where_figure
from topicproof.app.charts.withheld import withheld_figure
from topicproof.app.topic import transaction_rows
from topicproof.backend.characters import label, visible
from topicproof.backend.evidence.figures import figures
from topicproof.backend.kafka.log.fates import bins
from topicproof.backend.settings import ROOT

HOSTILE = (
    '<a href="https://evil.example/login">Sign in again</a><br><b>x</b>&lt;$x^2$%{customdata[0]}'
)


def timeline(text: str) -> go.Figure:
    """Two transactional ids with the same end, which are shown whole."""
    rows = pd.DataFrame(
        {
            "partition": [0, 0],
            "first_offset": [0, 5],
            "records": [1, 1],
            "producer_id": [1, 2],
            "outcome": ["COMMITTED", "ABORTED"],
            "first_timestamp": [1_000_000, 2_000_000],
            "marker_timestamp": [1_000_500, 2_000_500],
        }
    )
    rows = transaction_rows.timed(rows, 3_000_000)
    lanes = transaction_rows.lanes(rows, {1: f"1{text}", 2: f"2{text}"})
    return timeline_figure(rows.assign(lane=lanes), transaction_rows.lane_order(lanes))


def trend(text: str) -> go.Figure:
    when = pd.to_datetime(["2026-01-01", "2026-01-02"])
    columns = {"run": [text, "b"], "started": when, "verdict": ["HOLDS"] * 2, "figure": [1.0, 2.0]}
    return trend_figure(pd.DataFrame(columns), text)


def marks(text: str) -> list[Mark]:
    return [Mark(text, text, 0, 1, 3, 3, (0, 0), text), Mark("gap", text, 1, 2, 2, 1, None, text)]


def matrix(text: str) -> go.Figure:
    columns = ("fault", "guarantee", "label", "hover")
    return matrix_figure(pd.DataFrame([dict.fromkeys(columns, text) | {"kind": "exact"}]), [text])


def strip(text: str) -> go.Figure:
    seen = bins(RANGES, BOUNDS, strip_columns(3))
    return strip_with_pointer(strip_figure(seen, BOUNDS, marks(text)), 0, 1)


FIGURES: dict[str, Callable[[str], go.Figure]] = {
    "timeline_figure": timeline,
    "trend_figure": trend,
    "matrix_figure": matrix,
    "strip_figure": strip,
    "strip_with_pointer": strip,
    "where_figure": lambda text: where_figure(marks(text), BOUNDS.partitions),
    "withheld_figure": lambda _text: withheld_figure(BOUNDS.partitions),
}


def read(figure: go.Figure) -> Iterator[str]:
    """Every text that Plotly reads, without `customdata` that no hover text names."""
    for trace in figure.data:
        template = trace.hovertemplate or ""
        whole = "%{customdata}" in template or "%{customdata:" in template
        named = {int(one) for one in re.findall(r"%\{customdata\[(\d+)\]", template)}
        for row in () if trace.customdata is None else trace.customdata:
            cells = [row] if whole or not hasattr(row, "__len__") or isinstance(row, str) else row
            yield from (str(cell) for number, cell in enumerate(cells) if whole or number in named)
    yield from texts(
        {
            **figure.to_plotly_json(),
            "data": [
                {
                    name: value
                    for name, value in trace.to_plotly_json().items()
                    if name != "customdata"
                }
                for trace in figure.data
            ],
        }
    )


def texts(node: Any) -> Iterator[str]:
    match node:
        case str():
            yield node
        case dict():
            for name, value in node.items():
                if name != "template":
                    yield from texts(value)
        case _ if hasattr(node, "tolist"):
            yield from texts(node.tolist())
        case list() | tuple():
            for value in node:
                yield from texts(value)


@pytest.mark.parametrize("name", FIGURES)
def test_no_chart_makes_markup_of_a_name(name: str) -> None:
    """Story: a producer chooses its transactional id, and a report its words. Each chart shows
    them; none makes a link, a line break, a formula or a reference to other data of them."""
    shown = list(read(FIGURES[name](HOSTILE)))
    for part in ("<a", "</a>", "<b>", "&lt;$", "&lt;&#36;", "$x^2$"):
        assert not any(part in text for text in shown), part
    assert any("evil.example" in text for text in shown) is (name != "withheld_figure")


def test_no_chart_of_report_html_makes_markup_of_a_name() -> None:
    """Story: received evidence names its sink like a link, and has such a sentence."""
    shown = list(texts(figures(hostile(HOSTILE))))
    for part in ("<a", "</a>", "<b>", "&lt;$", "&lt;&#36;", "$x^2$"):
        assert not any(part in text for text in shown), part
    assert sum("evil.example" in text for text in shown) == 2


def test_every_chart_is_tried() -> None:
    """Story: somebody adds a chart. It is tried with hostile names as well."""
    builders = {
        node.name
        for path in (ROOT / "app" / "charts").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
        and node.returns is not None
        and ast.unparse(node.returns) == "go.Figure"
    }
    assert builders == set(FIGURES)


@settings(max_examples=50)
@given(some.text("<>&$%{}[]\"'/=ab;#\n\u202e\x1b"))
def test_a_label_is_its_text(text: str) -> None:
    """Story: any text, read by Plotly, is shown as it is."""
    shown = label(text)
    assert html.unescape(shown) == visible(text)
    assert not set("<>$") & set(shown) and "%{" not in shown
    assert set(re.findall(r"&(#?\w*)", shown)) <= {"amp", "lt", "gt", "#36", "#37"}
