"""Per partition of a live sink: the stable offsets, and those that an open transaction
withholds."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from topicproof.app.charts.layout import FATE_COLOURS
from topicproof.validators.finding import Fate, PartitionBounds

STABLE = "#5B6570"
"""Colour of stable offsets, whatever their fate."""


def withheld_figure(sink: Sequence[PartitionBounds]) -> go.Figure:
    """Draws, per partition of a live sink, the stable offsets (start to LSO) and the withheld ones
    (LSO to HW)."""
    rows = [f"p{p.partition}" for p in sink]
    stable = [p.lso - p.start for p in sink]
    above = [p.hw - p.lso for p in sink]
    figure = go.Figure()
    figure.add_bar(
        y=rows,
        x=stable,
        orientation="h",
        name="below the LSO",
        marker={"color": STABLE},
        text=[f"LSO {p.lso:,}" for p in sink],
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
