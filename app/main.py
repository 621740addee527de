"""The dashboard: shows the requested page."""

from __future__ import annotations

import gc
from pathlib import Path

import streamlit as st

from topicproof.app.session.access import show_errors
from topicproof.app.shell import jump
from topicproof.app.shell.pages import choose_cluster, keep_in_url, show_person
from topicproof.app.shell.places import FRONTS, HOME, PLACES, RUN, drawing, navigation_style


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
pages = {
    entry: st.Page(
        entry.file,
        title=place.title if entry is place.pages[0] else entry.title,
        icon=place.icon,
        default=entry is HOME,
        url_path="" if entry is HOME else entry.path,
        # The navigation leads to the front of each place, and tabs from there to its other pages.
        visibility="visible" if entry is place.pages[0] else "hidden",
    )
    for place in PLACES
    for entry in place.pages
}
# People type the names of places as well, and that of the start page, which is at the root.
fronts = {
    st.Page(lambda: None, title=name, url_path=name.lower(), visibility="hidden"): pages[front]
    for name, front in FRONTS.items()
}
page = st.navigation([*pages.values(), *fronts], position="top")
if page in fronts:
    st.switch_page(fronts[page], query_params=st.query_params.to_dict())
# The page Run was at the root once. Its old addresses still open it.
if page is pages[HOME] and any(one == "run" or one.startswith("plan_") for one in st.query_params):
    st.switch_page(RUN.file, query_params=st.query_params.to_dict())
entry = next(entry for entry in pages if pages[entry] is page)
# Tabs and bookmarks tell pages, topics and runs apart.
shown = st.query_params.get("topic") or st.query_params.get("run")
st.set_page_config(page_title=" · ".join(filter(None, (shown, entry.title, "Topicproof"))))
# Streamlit writes white text on the primary colour. In the dark theme that colour must be light
# enough to be readable as text itself. The browser chooses by the theme that it shows: nothing runs
# here when somebody changes it, or evening comes.
BUTTON_STYLE = "[data-testid^=stBaseButton-primary] {color: light-dark(#fff, #0b141d)}"
st.html(f"<style>{navigation_style(entry)} {BUTTON_STYLE}</style>")
freeze()
with drawing():
    jump.button()
    with show_errors():
        show_person()
        choose_cluster()
    try:
        page.run()
    finally:
        keep_in_url()
