"""The trend: one figure of many reports over time."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from topicproof.app.charts.layout import names_px
from topicproof.backend.characters import label
from topicproof.validators.finding import Outcome

VERDICT_MARKS: Mapping[str, tuple[str, str]] = {
    Outcome.HOLDS: ("#009E73", "circle"),
    Outcome.VIOLATED: ("#D55E00", "x"),
    Outcome.UNKNOWN: ("#E69F00", "diamond"),
}
"""Colour and symbol of each verdict."""
TREND_PX = 300
FEW = 6
"""Below this, each count has a line of its own."""
_TITLE_WIDE = "0,000,000"
"""Narrowest label to reserve space for on the trend's axis, so that its title always fits."""


def trend_figure(frame: pd.DataFrame, measure: str) -> go.Figure:
    """Draws one figure of many reports (run, started, verdict, figure) over time, each marked by
    its verdict."""
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
        points = frame[frame["verdict"] == verdict]
        if not points.empty:
            figure.add_scatter(
                x=points["started"],
                y=points["figure"],
                customdata=points["run"].map(label),
                mode="markers",
                name=label(verdict),
                marker={"color": colour, "symbol": symbol, "size": 11},
                cliponaxis=False,
                hovertemplate="%{customdata}<br>%{x}<br>%{y:,}<extra>"
                + label(verdict)
                + "</extra>",
            )
    figure.update_layout(
        height=TREND_PX,
        # Fixed: otherwise a browser lays out the chart repeatedly until it has found room for the
        # labels.
        margin={
            "l": names_px([_TITLE_WIDE, f"{frame['figure'].max():,.0f}"]),
            "r": 8,
            "t": 34,
            "b": 70,
        },
        showlegend=True,
        legend={"orientation": "h", "yref": "container", "x": 0, "y": 0.99, "yanchor": "top"},
    )
    figure.update_xaxes(
        fixedrange=True,
        automargin=False,
        # Below two lines of labels: times, and the dates under some of them.
        title={"text": "started (UTC)", "standoff": 32},
    )
    figure.update_yaxes(
        fixedrange=True, automargin=False, title=label(measure), tickformat=",", rangemode="tozero"
    )
    if _counts(frame["figure"]) and frame["figure"].max() < FEW:
        # Plotly would write halves between counts.
        figure.update_yaxes(dtick=1, range=[0, max(1, frame["figure"].max()) * 1.1])
    return figure


def _counts(figures: pd.Series[float]) -> bool:
    return bool((figures.dropna() % 1 == 0).all())
