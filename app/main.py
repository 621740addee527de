"""The dashboard: shows the page that was asked for."""

from __future__ import annotations

import gc
from pathlib import Path

import streamlit as st

from topicproof.app import session, tables  # noqa: F401  imported before the freeze
from topicproof.app.charts import matrix, strip, timeline, trend, withheld  # noqa: F401
from topicproof.app.pages import PAGES


@st.cache_resource(show_spinner=False)
def freeze() -> None:
    """Streamlit collects garbage after every run of a page or a part of it, and looks at all that
    was ever imported (0.1 s) unless it is told that this stays."""
    gc.collect()
    gc.freeze()


# A picture of our own: Streamlit fetches icons of the browser tab that are given by name from the
# network.
st.set_page_config(
    page_title="Topicproof", page_icon=Path(__file__).with_name("icon.png"), layout="wide"
)
page = st.navigation(
    [
        st.Page(
            one.file, title=one.title, icon=one.icon, default=one is PAGES[0], url_path=one.path
        )
        for one in PAGES
    ],
    position="top",
)
if st.context.theme.type == "dark":
    # Streamlit writes white on the primary colour, which in the dark must be light enough to be
    # read as text itself.
    st.html("<style>[data-testid^=stBaseButton-primary] {color: #0b141d}</style>")
freeze()
page.run()
