"""The dashboard: shows the requested page."""

from __future__ import annotations

import gc
from pathlib import Path

import streamlit as st

from topicproof.app.session.access import show_errors
from topicproof.app.shell.pages import PAGES, choose_cluster, keep_in_url, show_person


@st.cache_resource(show_spinner=False)
def freeze() -> None:
    """Exempts imported modules from garbage collection. Otherwise Streamlit's collection after
    every rerun of a page or fragment scans everything that was imported (0.1 s)."""
    gc.collect()
    gc.freeze()


# A local icon: Streamlit fetches named icons for the browser tab from the network.
st.set_page_config(
    page_title="Topicproof", page_icon=Path(__file__).with_name("icon.png"), layout="wide"
)
start, *others = (
    st.Page(
        one.file,
        title=one.title,
        icon=one.icon,
        default=one is PAGES[0],
        url_path="" if one is PAGES[0] else one.path,
    )
    for one in PAGES
)
# People type the start page's name as well. Streamlit knows it only at the root.
named = st.Page(lambda: None, title=start.title, url_path=PAGES[0].path, visibility="hidden")
page = st.navigation([start, *others, named], position="top")
if page is named:
    st.switch_page(start, query_params=st.query_params.to_dict())
# The page Run was at the root once. Its old addresses still open it.
if page is start and any(one == "run" or one.startswith("plan_") for one in st.query_params):
    st.switch_page("views/run.py", query_params=st.query_params.to_dict())
# Tabs and bookmarks tell pages, topics and runs apart.
shown = st.query_params.get("topic") or st.query_params.get("run")
st.set_page_config(page_title=" · ".join(filter(None, (shown, page.title, "Topicproof"))))
if st.context.theme.type == "dark":
    # Streamlit writes white text on the primary colour. In the dark theme that colour must be light
    # enough to be readable as text itself.
    st.html("<style>[data-testid^=stBaseButton-primary] {color: #0b141d}</style>")
freeze()
with show_errors():
    show_person()
    choose_cluster()
try:
    page.run()
finally:
    keep_in_url()
