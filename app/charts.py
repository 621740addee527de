"""Figures: frame in, Plotly figure out. Colours follow Okabe and Ito, and never stand alone: a word
or a symbol goes with each. Nothing here knows Streamlit or Kafka."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from topicproof.app.wording import FATE_WORDS, TRANSACTION_WORDS
from topicproof.backend.kafka.log.fates import ABORTED, COMMITTED, FATES, OPEN, UNEXPLAINED, Bins
from topicproof.validators.finding import Bounds, Fate, Outcome, PartitionBounds

FATE_COLOURS: Mapping[Fate, str] = {
    Fate.COMMITTED: "#0072B2",
    Fate.ABORTED: "#D55E00",
    Fate.PENDING: "#E69F00",
    Fate.MARKER: "#999999",
    Fate.GONE: "#D0D5DA",
    Fate.UNEXPLAINED: "#CC79A7",
}
OUTCOME_FATES: Mapping[str, Fate] = {
    COMMITTED: Fate.COMMITTED,
    ABORTED: Fate.ABORTED,
    OPEN: Fate.PENDING,
    UNEXPLAINED: Fate.UNEXPLAINED,
}
OUTCOME_PATTERNS: Mapping[str, str] = {COMMITTED: "", ABORTED: "x", OPEN: "/", UNEXPLAINED: "."}
"""An outcome is told by its pattern as well as by its colour."""
NOTHING = "rgba(128,128,128,0.08)"
"""Where a partition has no offset at all."""
STRIP_CELLS_MAX = 6_000
"""Cells of the whole strip."""
STRIP_POINTS_MAX = 1_000
"""Points that can be hovered and clicked. A browser draws each by itself, a thousand in a fifth of
a second; where there are more cells, neighbours share one."""
STRIP_COLUMNS_MAX = 480
STRIP_COLUMNS_MIN = 100
STRIP_PARTITIONS_MAX = 48
LABELLED_SHARE = 0.02
"""A stretch of one fate gets its symbol when it is at least this much of the strip."""
LABELLED = (Fate.ABORTED, Fate.PENDING, Fate.UNEXPLAINED)
ROWS_PX: Mapping[float, int] = {4: 32, 8: 26, 16: 18, float("inf"): 12}
"""Up to so many partitions, a row of the strip is so high."""
LANE_PX = 17
TICKS_MAX = 12
_TOP_PX, _RIGHT_PX, _AXIS_PX = 4, 8, 30
"""Around the rows of the strip."""
_LEGEND_PX, _DATES_PX = 34, 44
"""Above and below the lanes of the timeline."""
_SHORTEST_BAR = 1 / 200
"""Of the timeline's length: some four pixels of a usual window. A browser tells clicks by whole
pixels."""
_ROWS_PX_MIN = 62
POINTED_SHARE = 0.1
"""How far into a cell of the matrix its pointer stands: before what the cell says."""


def strip_columns(partitions: int) -> int:
    """How many bins a strip of so many partitions has."""
    return max(STRIP_COLUMNS_MIN, min(STRIP_COLUMNS_MAX, STRIP_CELLS_MAX // max(1, partitions)))


def strip(found: Bins, bounds: Bounds) -> go.Figure:
    """Every partition as a row of cells coloured by fate, on one axis of offsets, with the LSO
    where it holds records back. What can be clicked has partition, first and end offset as its
    `customdata`.

    The pointer at what the tables show is not in it, but laid over it (`pointer`): a browser draws
    a whole figure anew, for most of a second, when any of it has changed."""
    rows = [f"p{number}" for number in found.partitions]
    row_px = _row_px(found)
    first, end = int(found.edges[0]), int(found.edges[-1])
    centres = (found.edges[:-1] + found.edges[1:] - 1) / 2
    figure = go.Figure()
    colours = [NOTHING, *(FATE_COLOURS[fate] for fate in FATES)]
    figure.add_heatmap(
        z=(found.worst + 1).astype(np.uint8),
        x=centres,
        y=rows,
        zmin=-0.5,
        zmax=len(colours) - 0.5,
        colorscale=_steps(colours),
        showscale=False,
        hoverinfo="skip",
        xgap=0,
        ygap=max(2, row_px // 6),
    )
    figure.add_scatter(**_points(found, rows, row_px))
    figure.add_scatter(**_symbols(found, rows, centres))
    withheld = [p for p in bounds.partitions if p.lso < p.hw]
    for colour, width in (("#FFFFFF", 7), ("#111111", 3)):
        # Dark on light, so that it is seen on either theme.
        figure.add_scatter(
            x=[p.lso - 0.5 for p in withheld],
            y=[f"p{p.partition}" for p in withheld],
            customdata=[p.lso for p in withheld],
            mode="markers",
            marker={
                "symbol": "line-ns",
                "size": row_px // 2,
                "line": {"width": width, "color": colour},
            },
            hovertemplate="last stable offset %{customdata:,}<extra></extra>",
        )
    figure.update_layout(
        height=_TOP_PX + _rows_px(found) + _AXIS_PX,
        # Fixed, so that the pointer finds its place.
        margin={"l": _left_px(found), "r": _RIGHT_PX, "t": _TOP_PX, "b": _AXIS_PX},
        showlegend=False,
        dragmode=False,
        hovermode="closest",
        clickmode="event+select",
    )
    figure.update_yaxes(
        autorange=False,
        range=[len(rows) - 0.5, -0.5],
        showgrid=False,
        fixedrange=True,
        automargin=False,
        type="category",
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


@dataclass(frozen=True)
class Pointer:
    """Where on a chart something is."""

    top_px: float
    left_px: int
    """Of the plot within the figure; `right_px` is left free on the other side."""
    right_px: int
    share: float
    """Of the plot's width."""
    size_px: int

    def html(self) -> str:
        """A diamond there, over the chart that follows."""
        left = (
            f"calc({self.left_px}px + (100% - {self.left_px + self.right_px}px) * {self.share:.6f})"
        )
        return (
            '<div aria-hidden="true" style="position:relative;height:0"><div'
            f' style="position:absolute;z-index:1;pointer-events:none;top:{self.top_px:.1f}px;'
            f"left:{left};width:{self.size_px}px;height:{self.size_px}px;background:#FFFFFF;"
            "border:2.5px solid #111111;box-sizing:border-box;"
            'transform:translate(-50%,-50%) rotate(45deg)"></div></div>'
        )


def pointer(found: Bins, partition: int, offset: int) -> Pointer:
    """Where the strip of `found` has the offset."""
    first, end = int(found.edges[0]), int(found.edges[-1])
    row = list(found.partitions).index(partition)
    return Pointer(
        top_px=_TOP_PX + _rows_px(found) * (row + 0.5) / len(found.partitions),
        left_px=_left_px(found),
        right_px=_RIGHT_PX,
        share=(offset - first + 0.5) / max(1, end - first),
        size_px=min(13, _row_px(found) - 4),
    )


def with_pointer(figure: go.Figure, partition: int, offset: int) -> go.Figure:
    """The strip with the pointer in it, to be kept."""
    pointed = go.Figure(figure)
    pointed.add_scatter(
        x=[offset],
        y=[f"p{partition}"],
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


def _row_px(found: Bins) -> int:
    return next(px for most, px in ROWS_PX.items() if len(found.partitions) <= most)


def _rows_px(found: Bins) -> int:
    return max(_ROWS_PX_MIN, _row_px(found) * len(found.partitions))


def _left_px(found: Bins) -> int:
    """Room for the longest name of a row."""
    return 12 + 8 * max(len(f"p{number}") for number in found.partitions)


def withheld(sink: Sequence[PartitionBounds]) -> go.Figure:
    """Per partition of a live sink: what is stable (start to LSO) and what is withheld (LSO to
    HW)."""
    rows = [f"p{one.partition}" for one in sink]
    stable = [one.lso - one.start for one in sink]
    above = [one.hw - one.lso for one in sink]
    figure = go.Figure()
    figure.add_bar(
        y=rows,
        x=stable,
        orientation="h",
        name="below the LSO",
        marker={"color": FATE_COLOURS[Fate.COMMITTED]},
        text=[f"LSO {one.lso:,}" for one in sink],
        textposition="inside",
        insidetextanchor="start",
        hovertemplate="%{y}: %{x:,} offsets below the last stable offset<extra></extra>",
    )
    figure.add_bar(
        y=rows,
        x=above,
        orientation="h",
        name="withheld: LSO to HW",
        marker={
            "color": FATE_COLOURS[Fate.PENDING],
            "pattern": {
                "shape": "/",
                "bgcolor": FATE_COLOURS[Fate.PENDING],
                "fgcolor": "#5c3d00",
                "size": 7,
                "solidity": 0.2,
            },
        },
        hovertemplate="%{y}: %{x:,} offsets withheld by an open transaction<extra></extra>",
    )
    figure.update_layout(
        barmode="stack",
        height=70 + 30 * len(rows),
        margin={"l": 0, "r": 8, "t": 0, "b": 0},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        dragmode=False,
        bargap=0.25,
        uniformtext={"mode": "hide", "minsize": 10},
    )
    figure.update_yaxes(autorange="reversed", fixedrange=True, showgrid=False)
    figure.update_xaxes(tickformat=",d", fixedrange=True, zeroline=False, rangemode="tozero")
    return figure


def timeline(rows: pd.DataFrame, lanes: Sequence[str]) -> go.Figure:
    """Transactions as bars over time, one trace an outcome. `rows` are those of
    `fates.transactions` with `lane` and `duration_ms`; each bar's `customdata` begins with
    partition and first offset. The pointer at the chosen one is laid over it
    (`timeline_pointer`)."""
    figure = go.Figure()
    low, high = _period(rows)
    for outcome, word in TRANSACTION_WORDS.items():
        # In the order of time: of two that began together, the later one is not hidden by the
        # earlier.
        own = rows[rows["outcome"] == outcome].sort_values("first_timestamp")
        if own.empty and outcome == UNEXPLAINED:
            continue
        colour, pattern = FATE_COLOURS[OUTCOME_FATES[outcome]], OUTCOME_PATTERNS[outcome]
        figure.add_bar(
            y=own["lane"],
            # What is too short for the axis is still wide enough to be seen and hit; the pointer
            # over it tells how long it took.
            x=own["duration_ms"].clip(lower=(high - low) * _SHORTEST_BAR),
            base=_moments(own["first_timestamp"]),
            orientation="h",
            name=f"{word.symbol} {word.word} ({len(own):,})",
            # As objects: of numbers alone a browser makes arrays that come back from a click as
            # something else.
            customdata=own[
                ["partition", "first_offset", "records", "duration_ms", "producer_id"]
            ].to_numpy(object),
            marker={
                "color": colour,
                "line": {"width": 1, "color": colour},
                "pattern": {
                    "shape": pattern,
                    "bgcolor": colour,
                    "fgcolor": "#FFFFFF",
                    "size": 6,
                    "solidity": 0.35,
                },
            },
            unselected={"marker": {"opacity": 1}},
            hovertemplate=(
                f"{word.word}: partition %{{customdata[0]}} from offset"
                " %{customdata[1]:,}<br>%{customdata[2]:,} records, %{customdata[3]:,} ms,"
                " producer %{customdata[4]}<extra></extra>"
            ),
        )
    figure.update_layout(
        height=_LEGEND_PX + _lanes_px(lanes) + _DATES_PX,
        # Fixed, so that the pointer finds its place.
        margin={"l": _names_px(lanes), "r": _RIGHT_PX, "t": _LEGEND_PX, "b": _DATES_PX},
        legend={
            "orientation": "h",
            # Within the figure's own margin: beside the plot it would push that down.
            "yref": "container",
            "y": 0.995,
            "yanchor": "top",
            "x": 0,
            "itemclick": False,
            "itemdoubleclick": False,
        },
        showlegend=True,
        barmode="overlay",
        bargap=0.3,
        dragmode=False,
        hovermode="closest",
        clickmode="event+select",
    )
    figure.update_yaxes(
        autorange=False,
        range=[max(2, len(lanes)) - 0.5, -0.5],
        fixedrange=True,
        automargin=False,
        type="category",
        categoryarray=list(lanes),
        showgrid=True,
    )
    period = [_moments(pd.Series([ms])).iloc[0] for ms in (low, high)]
    figure.update_xaxes(
        type="date", fixedrange=True, automargin=False, zeroline=False, range=period
    )
    return figure


def timeline_pointer(
    rows: pd.DataFrame, lanes: Sequence[str], chosen: tuple[int, int]
) -> Pointer | None:
    """Where the timeline has the beginning of a transaction, by partition and first offset; None
    where it is not on it."""
    here = rows[(rows["partition"] == chosen[0]) & (rows["first_offset"] == chosen[1])]
    if here.empty or _moments(here["first_timestamp"]).isna().any():
        return None
    low, high = _period(rows)
    lane = list(lanes).index(here["lane"].iloc[0])
    return Pointer(
        top_px=_LEGEND_PX + _lanes_px(lanes) * (lane + 0.5) / max(2, len(lanes)),
        left_px=_names_px(lanes),
        right_px=_RIGHT_PX,
        share=(int(here["first_timestamp"].iloc[0]) - low) / (high - low),
        size_px=13,
    )


def _moments(ms: pd.Series[Any]) -> pd.Series[Any]:
    """Timestamps, which may be anything, as moments; NaT for what is none."""
    return pd.to_datetime(ms, unit="ms", errors="coerce")


def _period(rows: pd.DataFrame) -> tuple[int, int]:
    """From when to when the timeline goes, in ms, with some room on both sides."""
    known = rows[
        _moments(rows["first_timestamp"]).notna()
        & _moments(rows["first_timestamp"] + rows["duration_ms"]).notna()
    ]
    if known.empty:
        return 0, 1_000
    low, high = (
        int(known["first_timestamp"].min()),
        int((known["first_timestamp"] + known["duration_ms"]).max()),
    )
    room = max(1, (high - low) // 40)
    return low - room, high + room


def _lanes_px(lanes: Sequence[str]) -> int:
    return LANE_PX * max(2, len(lanes))


def _names_px(names: Sequence[str]) -> int:
    """What the longest of the names beside an axis takes."""
    return 18 + round(6.2 * max(len(name) for name in names))


def _steps(colours: Sequence[str]) -> list[tuple[float, str]]:
    """A colour scale with hard steps: each colour has the same share."""
    share = 1 / len(colours)
    return [
        pair
        for n, colour in enumerate(colours)
        for pair in ((n * share, colour), ((n + 1) * share, colour))
    ]


def _points(found: Bins, rows: Sequence[str], row_px: int) -> dict[str, Any]:
    """Invisible points over the cells: Plotly's heat maps can neither be selected nor say what is
    in them."""
    shared = max(1, -(-found.worst.size // STRIP_POINTS_MAX))
    begins = np.arange(0, found.worst.shape[1], shared)
    counts = np.add.reduceat(found.counts, begins, axis=1)
    edges = np.append(found.edges[begins], found.edges[-1])
    row, column = np.nonzero(counts.any(axis=2))
    places = [np.array(found.partitions)[row], edges[column], edges[column + 1]]
    # Plotly looks at every element of a list, and takes an array of objects as it is.
    return {
        "x": (edges[column] + edges[column + 1] - 1) / 2,
        "y": np.array(rows, dtype=object)[row],
        "customdata": np.column_stack(places).astype(object),
        "text": np.array([_counts(counts) for counts in counts[row, column]], dtype=object),
        "mode": "markers",
        "marker": {"opacity": 0, "size": row_px - 4, "symbol": "square"},
        "unselected": {"marker": {"opacity": 0}},
        "selected": {"marker": {"opacity": 0}},
        "hovertemplate": "%{y}, offsets from %{customdata[1]:,}<br>%{text}<extra></extra>",
    }


def _counts(counts: Any) -> str:
    named = zip(FATES, counts.tolist(), strict=True)
    return ", ".join(f"{value:,} {FATE_WORDS[fate].word}" for fate, value in named if value)


def _symbols(found: Bins, rows: Sequence[str], centres: Any) -> dict[str, Any]:
    """The fate's symbol in the middle of every stretch that has room for it."""
    shortest = max(1, int(len(centres) * LABELLED_SHARE))
    places = [
        (float((centres[first] + centres[end - 1]) / 2), rows[row], FATE_WORDS[FATES[code]].symbol)
        for row in range(len(rows))
        for first, end, code in _stretches(found.worst[row])
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
    """Runs of equal codes: first, end, code."""
    changes = np.flatnonzero(np.diff(codes)) + 1
    edges = [0, *changes.tolist(), len(codes)]
    for first, end in pairwise(edges):
        if end > first:
            yield first, end, int(codes[first])


VERDICT_MARKS: Mapping[str, tuple[str, str]] = {
    Outcome.HOLDS: ("#009E73", "circle"),
    Outcome.VIOLATED: ("#D55E00", "x"),
    Outcome.UNKNOWN: ("#E69F00", "diamond"),
}
"""Colour and symbol of a verdict."""
TREND_PX = 300
_TITLE_WIDE = "0,000,000"
"""What the axis of the trend has room for, beside its title, where its figures are no longer than
that."""


def trend(frame: pd.DataFrame, measure: str) -> go.Figure:
    """One figure of many reports (run, started, verdict, figure) over time, each marked by its
    verdict."""
    figure = go.Figure()
    figure.add_scatter(
        x=frame["started"],
        y=frame["figure"],
        mode="lines",
        line={"color": "#999999", "width": 1},
        hoverinfo="skip",
        showlegend=False,
    )
    for verdict, (colour, symbol) in VERDICT_MARKS.items():
        own = frame[frame["verdict"] == verdict]
        if not own.empty:
            figure.add_scatter(
                x=own["started"],
                y=own["figure"],
                customdata=own["run"],
                mode="markers",
                name=str(verdict),
                marker={"color": colour, "symbol": symbol, "size": 11},
                cliponaxis=False,
                hovertemplate="%{customdata}<br>%{x}<br>%{y:,}<extra>" + str(verdict) + "</extra>",
            )
    figure.update_layout(
        height=TREND_PX,
        # Fixed: a browser lays a chart out again and again until it has found the room that its
        # labels take.
        margin={
            "l": _names_px([_TITLE_WIDE, f"{frame['figure'].max():,.0f}"]),
            "r": 8,
            "t": 34,
            "b": 54,
        },
        showlegend=True,
        legend={"orientation": "h", "yref": "container", "x": 0, "y": 0.99, "yanchor": "top"},
    )
    figure.update_xaxes(fixedrange=True, automargin=False, title="started (UTC)")
    figure.update_yaxes(
        fixedrange=True, automargin=False, title=measure, tickformat=",", rangemode="tozero"
    )
    return figure


CELL_COLOURS: Mapping[str, str] = {
    "exact": "#0072B2",
    "damaged": "#E69F00",
    "refused": "#D0D5DA",
    "surprise": "#D55E00",
}
"""Of a cell of the matrix; its words and its symbol say the same."""
CELL_INK: Mapping[str, str] = {"exact": "#FFFFFF"}
"""Of the text on it, where that is not dark."""
CELL_PX = 27
HEADS_DEGREES = 30


def _heads_px(names: Sequence[str]) -> int:
    """What the longest of the slanting names above an axis takes."""
    return 24 + round(_names_px(names) * math.sin(math.radians(HEADS_DEGREES)))


def matrix(frame: pd.DataFrame, guarantees: Sequence[str]) -> go.Figure:
    """Faults as rows, guarantees as columns. `frame` has one row a cell: fault, guarantee, kind (of
    CELL_COLOURS), label and hover; its order is that of the rows. Each cell's `customdata` is
    guarantee and fault."""
    faults = list(dict.fromkeys(frame["fault"]))
    codes = {kind: code for code, kind in enumerate(CELL_COLOURS)}
    z = np.full((len(faults), len(guarantees)), np.nan)
    for fault, guarantee, kind in zip(
        frame["fault"], frame["guarantee"], frame["kind"], strict=True
    ):
        z[faults.index(fault), guarantees.index(guarantee)] = codes[kind]
    figure = go.Figure()
    figure.add_heatmap(
        z=z,
        x=list(guarantees),
        y=faults,
        zmin=-0.5,
        zmax=len(codes) - 0.5,
        colorscale=_steps(list(CELL_COLOURS.values())),
        showscale=False,
        hoverinfo="skip",
        xgap=3,
        ygap=3,
    )
    inks = frame["kind"].map(lambda kind: CELL_INK.get(kind, "#111111"))
    for ink in inks.unique():
        own = frame[inks == ink]
        # Chosen or not, a cell says the same in the same colour; a chart can be told one for all of
        # a trace only.
        alike = {"marker": {"opacity": 0}, "textfont": {"color": ink}}
        figure.add_scatter(
            x=own["guarantee"],
            y=own["fault"],
            text=own["label"],
            customdata=own[["guarantee", "fault", "hover"]],
            mode="markers+text",
            textfont={"color": ink, "size": 11},
            # An invisible point a cell: heat maps cannot be selected.
            marker={"opacity": 0, "size": CELL_PX - 4, "symbol": "square"},
            unselected=alike,
            selected=alike,
            hovertemplate="%{x} · %{y}<br>%{customdata[2]}<extra></extra>",
        )
    figure.update_layout(
        height=_heads_px(guarantees) + CELL_PX * max(2, len(faults)),
        # Fixed, so that the pointer finds its place.
        margin={"l": _names_px(faults), "r": 0, "t": _heads_px(guarantees), "b": 0},
        showlegend=False,
        dragmode=False,
        hovermode="closest",
        clickmode="event+select",
    )
    figure.update_yaxes(
        type="category",
        categoryarray=faults,
        range=[len(faults) - 0.5, -0.5],
        fixedrange=True,
        automargin=False,
        showgrid=False,
    )
    figure.update_xaxes(
        type="category",
        categoryarray=list(guarantees),
        range=[-0.5, len(guarantees) - 0.5],
        side="top",
        tickangle=HEADS_DEGREES,
        fixedrange=True,
        automargin=False,
        showgrid=False,
    )
    return figure


def matrix_pointer(
    frame: pd.DataFrame, guarantees: Sequence[str], chosen: tuple[str, str]
) -> Pointer | None:
    """Where the matrix has a cell, by guarantee and fault; None where it has none."""
    faults = list(dict.fromkeys(frame["fault"]))
    if chosen[0] not in guarantees or chosen[1] not in faults:
        return None
    column, row = guarantees.index(chosen[0]), faults.index(chosen[1])
    return Pointer(
        top_px=_heads_px(guarantees) + CELL_PX * max(2, len(faults)) * (row + 0.5) / len(faults),
        left_px=_names_px(faults),
        right_px=0,
        share=(column + POINTED_SHARE) / len(guarantees),
        size_px=11,
    )
