"""A chart that reacts to clicks, with a pointer at the item shown beside it."""

from __future__ import annotations

from collections.abc import Callable

import plotly.graph_objects as go
import streamlit as st

from topicproof.app.charts.layout import Pointer
from topicproof.app.shell import downloads


def clickable(
    figure: go.Figure, pointer: Pointer | None, key: str, clicked: Callable[[], None], alt: str
) -> None:
    """Draws the chart, and the pointer over it. `clicked` finds the clicked item in the session
    state, under `key`."""
    with st.container(gap=None):
        # The pointer lies over the chart rather than in it: otherwise a browser would redraw the
        # whole chart to move it.
        st.html(pointer.html() if pointer is not None else "<div></div>")
        st.plotly_chart(
            figure,
            key=key,
            on_select=clicked,
            selection_mode="points",
            config=downloads.PICTURE_ONLY,
            alt=alt,
        )
