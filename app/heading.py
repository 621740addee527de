"""The title of a page. Where it has charts, the browser begins with it to fetch what draws them,
while the page still asks for what they are to show (Compare's content came 0.2 to 0.5 s sooner)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import streamlit as st
from streamlit.delta_generator import DeltaGenerator


def heading(title: str, slot: DeltaGenerator, charts: bool) -> None:
    """The title, in `slot`."""
    with slot.container(gap=None):
        st.title(title, anchor=False)
        drawing = _drawing()
        if charts and drawing is not None:
            st.html(
                f'<script type="module">import("./static/js/{drawing}")</script>',
                unsafe_allow_javascript=True,
            )


@cache
def _drawing() -> str | None:
    """The file of Streamlit's that draws Plotly's charts, which the browser otherwise fetches with
    the first one. Its name is a hash; None where there is none of that kind: then it comes when it
    comes."""
    folder = Path(st.__file__).parent / "static" / "static" / "js"
    return next((one.name for one in folder.glob("PlotlyChart.*.js")), None)
