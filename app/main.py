"""The router: which pages there are. Started from the root: `python -m streamlit run app/main.py`."""

from __future__ import annotations

import gc
from pathlib import Path

import streamlit as st

from app import charts, session, tables  # noqa: F401  what the pages need is there before it is frozen


@st.cache_resource(show_spinner=False)
def freeze() -> None:
    """Streamlit collects garbage after every run of a page or a part of it, and looks at all that was ever imported
    (0.1 s) unless it is told that this stays."""
    gc.collect()
    gc.freeze()


# A picture of our own: Streamlit fetches icons of the browser tab that are given by name from the network.
st.set_page_config(page_title="Topicproof", page_icon=Path(__file__).with_name("icon.png"), layout="wide")
page = st.navigation(
    [
        st.Page("views/run.py", title="Run", icon=":material/play_circle:", default=True),
        st.Page("views/demos.py", title="Demos", icon=":material/theater_comedy:", url_path="demos"),
        st.Page("views/compare.py", title="Compare", icon=":material/compare:", url_path="compare"),
        st.Page("views/transactions.py", title="Transactions", icon=":material/timeline:", url_path="transactions"),
        st.Page("views/topics.py", title="Topics", icon=":material/topic:", url_path="topics"),
        st.Page("views/verdict.py", title="Verdict", icon=":material/gavel:", url_path="verdict"),
        st.Page("views/matrix.py", title="Matrix", icon=":material/grid_on:", url_path="matrix"),
        st.Page("views/history.py", title="History", icon=":material/history:", url_path="history"),
    ],
    position="top",
)
if st.context.theme.type == "dark":
    # Streamlit writes white on the primary colour, which in the dark must be light enough to be read as text itself.
    st.html("<style>[data-testid^=stBaseButton-primary] {color: #0b141d}</style>")
freeze()
page.run()
