"""The strip: the fate of every offset of a topic, one row per partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go

from topicproof.app.charts.layout import FATE_COLOURS, RIGHT_PX, Pointer, colour_steps
from topicproof.app.charts.marks import Mark, mark_traces
from topicproof.app.charts.proportions import layers
from topicproof.app.wording import FATE_WORDS
from topicproof.backend.kafka.log.fates import FATES, Bins
from topicproof.validators.finding import Bounds, Fate

NOTHING = "rgba(128,128,128,0.08)"
"""Colour of a stretch without offsets."""
STRIP_CELLS_MAX = 6_000
"""Maximum cells of the whole strip."""
STRIP_POINTS_MAX = 1_000
"""Maximum points that can be hovered and clicked. A browser draws each separately, a thousand in a
fifth of a second. If there are more cells, neighbours share a point."""
STRIP_COLUMNS_MAX = 480
STRIP_COLUMNS_MIN = 100
STRIP_PARTITIONS_MAX = 16
"""More would push what a page is for out of the window."""
LABELLED_SHARE = 0.02
"""A stretch of one fate shows its symbol if it takes up at least this share of the strip."""
LABELLED = (Fate.ABORTED, Fate.PENDING, Fate.UNEXPLAINED)
ROWS_PX: Mapping[float, int] = {4: 28, 8: 18, float("inf"): 12}
"""Row height in the strip, by the largest number of partitions it applies to."""
TICKS_MAX = 12
_TOP_PX, _AXIS_PX = 4, 30
"""Space above and below the rows."""
_ROWS_PX_MIN = 62
LAYER_PX = 3
"""Height of the smallest part of a cell that holds several fates."""
GAP_PX = 4
"""Space between rows, at least."""
BETWEEN = "rgba(0,0,0,0)"
"""Colour of that space."""


def strip_columns(partitions: int) -> int:
    """Returns the number of bins for this many partitions."""
    return max(STRIP_COLUMNS_MIN, min(STRIP_COLUMNS_MAX, STRIP_CELLS_MAX // max(1, partitions)))


def strip_figure(bins: Bins, bounds: Bounds, marks: Sequence[Mark] = ()) -> go.Figure:
    """Draws every partition as a row of cells on one axis of offsets, with the LSO if it holds
    records back, and the marks of a verdict. A cell of several fates is divided in proportion.
    Clickable points have partition, first and end offset as their `customdata`.

    The pointer at the item in the tables is not part of the figure, but laid over it
    (`strip_pointer`). On any change, a browser redraws the whole figure, which takes most of a
    second.
    """
    row_px = _row_px(bins)
    first, end = int(bins.edges[0]), int(bins.edges[-1])
    centres = (bins.edges[:-1] + bins.edges[1:] - 1) / 2
    figure = go.Figure()
    figure.add_heatmap(**_cells(bins, centres))
    figure.add_scatter(**_points(bins, row_px))
    figure.add_scatter(**_symbols(bins, centres))
    withheld = [p for p in bounds.partitions if p.lso < p.hw]
    for colour, width in (("#FFFFFF", 7), ("#111111", 3)):
        # Dark on light, so it is visible on either theme.
        figure.add_scatter(
            x=[p.lso - 0.5 for p in withheld],
            y=[bins.partitions.index(p.partition) for p in withheld],
            customdata=[p.lso for p in withheld],
            mode="markers",
            marker={
                "symbol": "line-ns",
                "size": row_px // 2,
                "line": {"width": width, "color": colour},
            },
            hovertemplate="last stable offset %{customdata:,}<extra></extra>",
        )
    rows = {number: row for row, number in enumerate(bins.partitions)}
    for trace in mark_traces(marks, rows, _half(bins), row_px):
        figure.add_scatter(**trace)
    figure.update_layout(
        height=_TOP_PX + _rows_px(bins) + _AXIS_PX,
        # Fixed, so that the pointer finds its place.
        margin={"l": _left_px(bins), "r": RIGHT_PX, "t": _TOP_PX, "b": _AXIS_PX},
        showlegend=False,
        dragmode=False,
        hovermode="closest",
        clickmode="event+select",
    )
    figure.update_yaxes(
        autorange=False,
        range=[len(bins.partitions) - 0.5, -0.5],
        tickvals=list(range(len(bins.partitions))),
        ticktext=[f"p{number}" for number in bins.partitions],
        showgrid=False,
        zeroline=False,
        fixedrange=True,
        automargin=False,
    )
    figure.update_xaxes(
        tickformat=",d",
        showgrid=False,
        zeroline=False,
        fixedrange=True,
        automargin=False,
        range=[first - 0.5, max(first + 1, end) - 0.5],
        dtick=1 if end - first <= TICKS_MAX else None,
    )
    return figure


def strip_pointer(bins: Bins, partition: int, offset: int) -> Pointer:
    """Returns the position of the offset on the strip of `bins`."""
    first, end = int(bins.edges[0]), int(bins.edges[-1])
    row = list(bins.partitions).index(partition)
    return Pointer(
        top_px=_TOP_PX + _rows_px(bins) * (row + 0.5) / len(bins.partitions),
        left_px=_left_px(bins),
        right_px=RIGHT_PX,
        share=(offset - first + 0.5) / max(1, end - first),
        size_px=min(13, _row_px(bins) - 4),
    )


def strip_with_pointer(figure: go.Figure, partition: int, offset: int) -> go.Figure:
    """Adds the pointer to the strip, for export."""
    pointed = go.Figure(figure)
    pointed.add_scatter(
        x=[offset],
        y=[_row_of(figure, partition)],
        mode="markers",
        marker={
            "symbol": "diamond",
            "size": 13,
            "color": "#FFFFFF",
            "line": {"width": 2.5, "color": "#111111"},
        },
        hovertemplate="offset %{x:,}<extra></extra>",
        cliponaxis=False,
    )
    return pointed


def _row_of(figure: go.Figure, partition: int) -> int:
    return list(figure.layout.yaxis.ticktext).index(f"p{partition}")


def _cells(bins: Bins, centres: Any) -> dict[str, Any]:
    """Returns the heat map: the layers of each partition's cells, and a space below each."""
    partitions = len(bins.partitions)
    count = _layers(bins)
    edges = np.linspace(-_half(bins), _half(bins), count + 1)
    # 0: between the rows, 1: no offsets.
    codes = np.zeros((partitions, count + 1, len(centres)), np.uint8)
    codes[:, :count] = (layers(bins, count) + 2).astype(np.uint8)
    colours = [BETWEEN, NOTHING, *(FATE_COLOURS[fate] for fate in FATES)]
    return {
        "z": codes.reshape(-1, len(centres))[:-1],
        "x": centres,
        "y": (np.arange(partitions)[:, None] + edges).ravel(),
        "zmin": -0.5,
        "zmax": len(colours) - 0.5,
        "colorscale": colour_steps(colours),
        "showscale": False,
        "hoverinfo": "skip",
        "xgap": 0,
        "ygap": 0,
    }


def _layers(bins: Bins) -> int:
    """Returns the number of layers that fit into a row."""
    return max(1, int((_rows_px(bins) / len(bins.partitions) - GAP_PX) // LAYER_PX))


def _half(bins: Bins) -> float:
    """Returns half the height of a cell, in rows."""
    return _layers(bins) * LAYER_PX * len(bins.partitions) / _rows_px(bins) / 2


def _row_px(bins: Bins) -> int:
    return next(px for most, px in ROWS_PX.items() if len(bins.partitions) <= most)


def _rows_px(bins: Bins) -> int:
    return max(_ROWS_PX_MIN, _row_px(bins) * len(bins.partitions))


def _left_px(bins: Bins) -> int:
    """Returns the space for the longest row name."""
    return 12 + 8 * max(len(f"p{number}") for number in bins.partitions)


def _points(bins: Bins, row_px: int) -> dict[str, Any]:
    """Returns invisible points over the cells: Plotly's heat maps can be neither selected nor
    queried."""
    shared = max(1, -(-bins.worst.size // STRIP_POINTS_MAX))
    begins = np.arange(0, bins.worst.shape[1], shared)
    counts = np.add.reduceat(bins.counts, begins, axis=1)
    edges = np.append(bins.edges[begins], bins.edges[-1])
    row, column = np.nonzero(counts.any(axis=2))
    places = [np.array(bins.partitions)[row], edges[column], edges[column + 1]]
    # Plotly inspects every element of a list, but takes an array of objects as it is.
    return {
        "x": (edges[column] + edges[column + 1] - 1) / 2,
        "y": row,
        "customdata": np.column_stack(places).astype(object),
        "text": np.array([_counts(counts) for counts in counts[row, column]], dtype=object),
        "mode": "markers",
        "marker": {"opacity": 0, "size": row_px - 4, "symbol": "square"},
        "unselected": {"marker": {"opacity": 0}},
        "selected": {"marker": {"opacity": 0}},
        "hovertemplate": (
            "p%{customdata[0]}, offsets from %{customdata[1]:,}<br>%{text}<extra></extra>"
        ),
    }


def _counts(counts: Any) -> str:
    named = zip(FATES, counts.tolist(), strict=True)
    return ", ".join(f"{value:,} {FATE_WORDS[fate].word}" for fate, value in named if value)


def _symbols(bins: Bins, centres: Any) -> dict[str, Any]:
    """Places each fate's symbol in the middle of every stretch with room for it."""
    shortest = max(1, int(len(centres) * LABELLED_SHARE))
    places = [
        (float((centres[first] + centres[end - 1]) / 2), row, FATE_WORDS[FATES[code]].symbol)
        for row in range(len(bins.partitions))
        for first, end, code in _stretches(bins.worst[row])
        if code >= 0 and FATES[code] in LABELLED and end - first >= shortest
    ]
    return {
        "x": [place[0] for place in places],
        "y": [place[1] for place in places],
        "text": [place[2] for place in places],
        "mode": "text",
        "textfont": {"color": "#FFFFFF", "size": 13},
        "hoverinfo": "skip",
    }


def _stretches(codes: Any) -> Iterator[tuple[int, int, int]]:
    """Yields runs of equal codes: first, end, code."""
    changes = np.flatnonzero(np.diff(codes)) + 1
    edges = [0, *changes.tolist(), len(codes)]
    for first, end in pairwise(edges):
        if end > first:
            yield first, end, int(codes[first])
