"""The timeline: transactions as bars over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import plotly.graph_objects as go

from topicproof.app.charts.layout import FATE_COLOURS, RIGHT_PX, Pointer, names_px
from topicproof.app.wording import HANGING, TRANSACTION_WORDS
from topicproof.backend.characters import label
from topicproof.validators.facts.log_facts import ABORTED, COMMITTED, OPEN, UNEXPLAINED
from topicproof.validators.finding import Fate

OUTCOME_FATES: Mapping[str, Fate] = {
    COMMITTED: Fate.COMMITTED,
    ABORTED: Fate.ABORTED,
    OPEN: Fate.PENDING,
    HANGING: Fate.PENDING,
    UNEXPLAINED: Fate.UNEXPLAINED,
}
OUTCOME_PATTERNS: Mapping[str, str] = {
    COMMITTED: "",
    ABORTED: "x",
    OPEN: "/",
    HANGING: "+",
    UNEXPLAINED: ".",
}
"""Pattern of an outcome, in addition to its colour."""
LANE_PX = 17
MARKER_COLOUR = "#808080"
"""Visible in both themes, beside bars and on them."""
_LEGEND_PX, _DATES_PX = 34, 44
"""Space above and below the lanes of the timeline."""
_SHORTEST_BAR = 1 / 200
"""Shortest bar as a share of the timeline: about four pixels of a usual window. A browser resolves
clicks to whole pixels."""


class Hover(NamedTuple):
    """What each bar knows of its row, and what it shows of that."""

    columns: tuple[str, ...]
    """Texts from elsewhere must be labels (`characters.label`): Plotly reads markup in them."""
    template: str


PART_HOVER = Hover(
    ("partition", "first_offset", "records", "duration_ms", "producer_id"),
    "partition %{customdata[0]} from offset %{customdata[1]:,}<br>%{customdata[2]:,} records,"
    " %{customdata[3]:,} ms, producer %{customdata[4]}",
)


def timeline_figure(
    rows: pd.DataFrame, lanes: Sequence[str], hover: Hover = PART_HOVER
) -> go.Figure:
    """Draws transactions as bars over time, one trace per outcome. `rows` have `outcome`, `lane`,
    `first_timestamp`, `duration_ms` and the columns of `hover`, which are each bar's `customdata`.
    The pointer at the chosen bar is laid over it (`timeline_pointer`)."""
    figure = go.Figure()
    low, high = _period(rows)
    rows, names = rows.assign(lane=rows["lane"].map(label)), [label(lane) for lane in lanes]
    for outcome, word in TRANSACTION_WORDS.items():
        # In order of time: if two began together, the later one is not hidden by the earlier.
        bars = rows[rows["outcome"] == outcome].sort_values("first_timestamp")
        if bars.empty and outcome in (HANGING, UNEXPLAINED):
            continue
        colour, pattern = FATE_COLOURS[OUTCOME_FATES[outcome]], OUTCOME_PATTERNS[outcome]
        figure.add_bar(
            y=bars["lane"],
            # A bar too short for the axis stays wide enough to see and click; its tooltip shows the
            # true duration.
            x=bars["duration_ms"].clip(lower=(high - low) * _SHORTEST_BAR),
            base=_moments(bars["first_timestamp"]),
            orientation="h",
            name=f"{word.symbol} {word.word} ({len(bars):,})",
            # As objects: a browser turns plain numbers into arrays that a click returns as a
            # different type.
            customdata=bars[list(hover.columns)].to_numpy(object),
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
            hovertemplate=f"{word.word}: {hover.template}<extra></extra>",
        )
    figure.add_scatter(**_markers(rows))
    figure.update_layout(
        height=_LEGEND_PX + _lanes_px(lanes) + _DATES_PX,
        # Fixed, so that the pointer finds its place.
        margin={"l": names_px(lanes), "r": RIGHT_PX, "t": _LEGEND_PX, "b": _DATES_PX},
        legend={
            "orientation": "h",
            # Within the figure's own margin: beside the plot, the legend would push the plot down.
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
        categoryarray=names,
        showgrid=True,
    )
    period = [_moments(pd.Series([ms])).iloc[0] for ms in (low, high)]
    figure.update_xaxes(
        type="date", fixedrange=True, automargin=False, zeroline=False, range=period
    )
    return figure


def _markers(rows: pd.DataFrame) -> dict[str, Any]:
    """Returns a tick where each transaction's marker landed."""
    ended = rows[~rows["outcome"].isin([OPEN, HANGING, UNEXPLAINED])]
    return {
        "x": _moments(ended["first_timestamp"] + ended["duration_ms"]),
        "y": ended["lane"],
        "mode": "markers",
        "marker": {
            "symbol": "line-ns",
            "size": LANE_PX - 2,
            "line": {"width": 1.5, "color": MARKER_COLOUR},
        },
        "name": "marker",
        "hoverinfo": "skip",
    }


def timeline_pointer(
    rows: pd.DataFrame, lanes: Sequence[str], chosen: tuple[int, int]
) -> Pointer | None:
    """Returns the position of a transaction's start, by partition and first offset; None if it is
    not on the timeline."""
    chosen_rows = rows[(rows["partition"] == chosen[0]) & (rows["first_offset"] == chosen[1])]
    if chosen_rows.empty or _moments(chosen_rows["first_timestamp"]).isna().any():
        return None
    low, high = _period(rows)
    lane = list(lanes).index(chosen_rows["lane"].iloc[0])
    return Pointer(
        top_px=_LEGEND_PX + _lanes_px(lanes) * (lane + 0.5) / max(2, len(lanes)),
        left_px=names_px(lanes),
        right_px=RIGHT_PX,
        share=(int(chosen_rows["first_timestamp"].iloc[0]) - low) / (high - low),
        size_px=13,
    )


def _moments(ms: pd.Series[Any]) -> pd.Series[Any]:
    """Converts timestamps, which may have any value, to moments; NaT for invalid ones."""
    return pd.to_datetime(ms, unit="ms", errors="coerce")


def _period(rows: pd.DataFrame) -> tuple[int, int]:
    """Returns the period of the timeline, in ms, with some room on both sides."""
    timed = rows[
        _moments(rows["first_timestamp"]).notna()
        & _moments(rows["first_timestamp"] + rows["duration_ms"]).notna()
    ]
    if timed.empty:
        return 0, 1_000
    low, high = (
        int(timed["first_timestamp"].min()),
        int((timed["first_timestamp"] + timed["duration_ms"]).max()),
    )
    room = max(1, (high - low) // 40)
    return low - room, high + room


def _lanes_px(lanes: Sequence[str]) -> int:
    return LANE_PX * max(2, len(lanes))
