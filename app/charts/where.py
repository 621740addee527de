"""Where findings lie: the judged range of each partition, with a mark at each finding."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from topicproof.app.charts.layout import names_px
from topicproof.app.charts.marks import MARKS_MAX, Mark
from topicproof.backend.characters import label
from topicproof.validators.finding import PartitionBounds

SYMBOLS = ("x", "diamond", "triangle-up", "square", "star", "cross")
COLOURS = ("#D55E00", "#CC79A7", "#E69F00", "#56B4E9", "#009E73", "#999999")
"""One of each for a kind of finding, so that no kind is known by its colour alone."""
PARTITIONS_MAX = 30
ROW_PX = 26


def where_figure(marks: Sequence[Mark], partitions: Sequence[PartitionBounds]) -> go.Figure:
    """Draws the largest marks on the judged ranges. Partitions with marks come first, by number;
    others are drawn as long as there is room."""
    largest = marks[:MARKS_MAX]
    marked = {mark.partition for mark in largest}
    by_need = sorted(partitions, key=lambda p: (p.partition not in marked, p.partition))
    drawn = sorted(by_need[:PARTITIONS_MAX], key=lambda p: p.partition)
    names = [f"p{p.partition}" for p in drawn]
    figure = go.Figure()
    figure.add_bar(
        y=names,
        x=[p.hw - p.start for p in drawn],
        base=[p.start for p in drawn],
        orientation="h",
        width=0.5,
        name="judged offsets",
        marker={"color": "#999999", "opacity": 0.35},
        hovertemplate="%{y}: judged up to offset %{x:,}<extra></extra>",
    )
    kinds = list(dict.fromkeys(mark.title for mark in largest))
    for number, title in enumerate(kinds):
        kind_marks = [
            mark for mark in largest if mark.title == title and f"p{mark.partition}" in names
        ]
        figure.add_scatter(
            x=[(mark.first + mark.last) / 2 for mark in kind_marks],
            y=[f"p{mark.partition}" for mark in kind_marks],
            customdata=[(mark.first, mark.last, mark.count) for mark in kind_marks],
            mode="markers",
            name=label(title),
            marker={
                "symbol": SYMBOLS[number % len(SYMBOLS)],
                "color": COLOURS[number % len(COLOURS)],
                "size": 12,
                "line": {"color": "#111111", "width": 1},
            },
            hovertemplate="offsets %{customdata[0]:,} to %{customdata[1]:,}: %{customdata[2]:,}"
            f"<extra>{label(title)}</extra>",
        )
    figure.update_layout(
        height=90 + ROW_PX * len(names),
        margin={"l": names_px(names), "r": 8, "t": 30, "b": 34},
        legend={"orientation": "h", "yref": "container", "x": 0, "y": 0.99, "yanchor": "top"},
        dragmode=False,
        bargap=0.2,
    )
    figure.update_yaxes(
        autorange="reversed",
        fixedrange=True,
        showgrid=False,
        categoryorder="array",
        categoryarray=names,
    )
    figure.update_xaxes(tickformat=",d", fixedrange=True, zeroline=False, title="offset")
    return figure
