"""The matrix: faults as rows, guarantees as columns, each cell a result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from topicproof.app.charts.layout import Pointer, colour_steps, names_px
from topicproof.backend.characters import label

CELL_COLOURS: Mapping[str, str] = {
    "exact": "#0072B2",
    "damaged": "#E69F00",
    "refused": "#D0D5DA",
    "surprise": "#D55E00",
}
"""Background of a cell; its words and symbol say the same."""
CELL_INK: Mapping[str, str] = {"exact": "#FFFFFF"}
"""Text colour of a cell, if not dark."""
CELL_PX = 27
HEADS_DEGREES = 30
POINTED_SHARE = 0.1
"""Horizontal position of the pointer within a cell: before the cell's text."""


def _heads_px(names: Sequence[str]) -> int:
    """Returns the height of the longest slanting name above an axis."""
    return 24 + round(names_px(names) * math.sin(math.radians(HEADS_DEGREES)))


def matrix_figure(frame: pd.DataFrame, guarantees: Sequence[str]) -> go.Figure:
    """Draws faults as rows, guarantees as columns. `frame` has one row per cell: fault, guarantee,
    kind (of CELL_COLOURS), label and hover; its order is that of the rows. Each cell's `customdata`
    is guarantee and fault."""
    faults = list(dict.fromkeys(frame["fault"]))
    rows, columns = [label(fault) for fault in faults], [label(name) for name in guarantees]
    codes = {kind: code for code, kind in enumerate(CELL_COLOURS)}
    z = np.full((len(faults), len(guarantees)), np.nan)
    for fault, guarantee, kind in zip(
        frame["fault"], frame["guarantee"], frame["kind"], strict=True
    ):
        z[faults.index(fault), guarantees.index(guarantee)] = codes[kind]
    figure = go.Figure()
    figure.add_heatmap(
        z=z,
        x=columns,
        y=rows,
        zmin=-0.5,
        zmax=len(codes) - 0.5,
        colorscale=colour_steps(list(CELL_COLOURS.values())),
        showscale=False,
        hoverinfo="skip",
        xgap=3,
        ygap=3,
    )
    inks = frame["kind"].map(lambda kind: CELL_INK.get(kind, "#111111"))
    for ink in inks.unique():
        cells = frame[inks == ink]
        # A cell keeps its text colour when it is selected. A chart can set that only per trace.
        alike = {"marker": {"opacity": 0}, "textfont": {"color": ink}}
        figure.add_scatter(
            x=cells["guarantee"].map(label),
            y=cells["fault"].map(label),
            text=cells["label"].map(label),
            # The first two name the cell that is clicked; only the third is shown.
            customdata=cells[["guarantee", "fault", "hover"]].assign(
                hover=cells["hover"].map(label)
            ),
            mode="markers+text",
            textfont={"color": ink, "size": 11},
            # An invisible point per cell: heat maps cannot be selected.
            marker={"opacity": 0, "size": CELL_PX - 4, "symbol": "square"},
            unselected=alike,
            selected=alike,
            hovertemplate="%{x} · %{y}<br>%{customdata[2]}<extra></extra>",
        )
    figure.update_layout(
        height=_heads_px(guarantees) + CELL_PX * max(2, len(faults)),
        # Fixed, so that the pointer finds its place.
        margin={"l": names_px(faults), "r": 0, "t": _heads_px(guarantees), "b": 0},
        showlegend=False,
        dragmode=False,
        hovermode="closest",
        clickmode="event+select",
    )
    figure.update_yaxes(
        type="category",
        categoryarray=rows,
        range=[len(faults) - 0.5, -0.5],
        fixedrange=True,
        automargin=False,
        showgrid=False,
    )
    figure.update_xaxes(
        type="category",
        categoryarray=columns,
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
    """Returns the position of a cell, by guarantee and fault; None if there is no such cell."""
    faults = list(dict.fromkeys(frame["fault"]))
    if chosen[0] not in guarantees or chosen[1] not in faults:
        return None
    column, row = guarantees.index(chosen[0]), faults.index(chosen[1])
    return Pointer(
        top_px=_heads_px(guarantees) + CELL_PX * max(2, len(faults)) * (row + 0.5) / len(faults),
        left_px=names_px(faults),
        right_px=0,
        share=(column + POINTED_SHARE) / len(guarantees),
        size_px=11,
    )
