"""A chart that answers a click, with a pointer at what is shown beside it."""

from __future__ import annotations

from collections.abc import Callable

import plotly.graph_objects as go
import streamlit as st

from topicproof.app import export
from topicproof.app.charts.layout import Pointer


def clickable(
    figure: go.Figure, here: Pointer | None, key: str, clicked: Callable[[], None], alt: str
) -> None:
    """`here`: where the pointer stands; None: nowhere. `clicked` finds what was clicked in the
    session's state, by `key`."""
    with st.container(gap=None):
        # Laid over the chart and not in it: a browser would draw all of it anew to mark another
        # place.
        st.html(here.html() if here is not None else "<div></div>")
        st.plotly_chart(
            figure,
            key=key,
            on_select=clicked,
            selection_mode="points",
            config=export.PICTURE_ONLY,
            alt=alt,
        )
