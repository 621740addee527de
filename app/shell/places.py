"""The five places of the dashboard, the pages of each, and the tabs that lead from one to another.

The navigation names the places. A page is a script with an address of its own: its path is the
page, its parameters what is shown there. So links stay true, whatever place a page belongs to.

Streamlit forgets the value of a widget when a page was drawn whole without it, and calls what
belongs to the widget once more if a browser that has not heard of that yet asks for anything: the
value that the browser still sends looks like a new one. A page that polls asks all the time, so
what somebody left a moment ago would come back by itself. `if_drawn` is against that.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ParamSpec
from urllib.parse import urlencode

import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from streamlit.runtime.scriptrunner import RerunException

from topicproof.app.session.connection import CLUSTER_PARAMETER


@dataclass(frozen=True)
class Entry:
    """A page. Its title determines its file, below `app/`, and its URL."""

    title: str
    icon: str

    @property
    def path(self) -> str:
        return self.title.lower()

    @property
    def file(self) -> str:
        return f"views/{self.path}.py"


@dataclass(frozen=True)
class Place:
    """What a person comes for: an entry of the navigation."""

    title: str
    icon: str
    pages: tuple[Entry, ...]
    """The first one is where the navigation leads."""


HOME = Entry("Home", ":material/home:")
TOPICS = Entry("Topics", ":material/topic:")
COMPARE = Entry("Compare", ":material/compare:")
TRANSACTIONS = Entry("Transactions", ":material/timeline:")
DEMOS = Entry("Demos", ":material/theater_comedy:")
RUN = Entry("Run", ":material/play_circle:")
MATRIX = Entry("Matrix", ":material/grid_on:")
CHECK = Entry("Check", ":material/fact_check:")
VERDICT = Entry("Verdict", ":material/gavel:")
WATCH = Entry("Watch", ":material/monitor_heart:")
HISTORY = Entry("History", ":material/history:")
PLACES = (
    Place("Home", HOME.icon, (HOME,)),
    Place("Topics", TOPICS.icon, (TOPICS, COMPARE, TRANSACTIONS)),
    Place("Lab", ":material/science:", (DEMOS, RUN, MATRIX)),
    Place("Checks", CHECK.icon, (CHECK, VERDICT, WATCH)),
    Place("History", HISTORY.icon, (HISTORY,)),
)
PAGES = tuple(page for place in PLACES for page in place.pages)
FRONTS = {
    place.title: place.pages[0]
    for place in PLACES
    if place.pages[0] is HOME or place.title not in {page.title for page in PAGES}
}
"""The pages that have the name of a place as a second address."""
FOCUS, FOCUS_DARK = "#0072B2", "#56B4E9"
"""The primary colours of .streamlit/config.toml."""
_NEXT, _LEFT, _TAB = "next_page", "pages_left", "tab_clicked"
"""Session state: the page to open and its parameters, the parameters of pages that were left, and
the tab that was clicked."""
_LATEST, _WHOLE = "latest_drawing", "latest_whole_drawing"
"""Session state: the number of the drawing that goes on, and of the newest one that came to its
end."""
P = ParamSpec("P")
_visit = st.components.v2.component(
    "topicproof_visit",
    html="<span></span>",
    # As if somebody had gone there in the history of the browser. Drawn again, it goes nowhere.
    js="""let last = "";
    export default ({ data }) => {
        if (data.visit === last) return;
        last = data.visit;
        history.pushState({}, "", data.address);
        dispatchEvent(new PopStateEvent("popstate"));
    };""",
)


@dataclass(frozen=True)
class Tab:
    """A page, or one of the views of a page."""

    label: str
    page: Entry
    params: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def drawing() -> Iterator[None]:
    """Numbers this drawing of a page. One that gives way to another one does not count as whole:
    widgets that it did not reach may stand on the page."""
    number = st.session_state[_LATEST] = st.session_state.get(_LATEST, 0) + 1
    is_whole = True
    try:
        yield
    except RerunException:
        is_whole = False
        raise
    finally:
        if is_whole:
            st.session_state[_WHOLE] = number


def if_drawn(callback: Callable[P, None]) -> Callable[P, None]:
    """Returns the callback for a widget that is drawn now. It does nothing once the page was drawn
    whole without that widget."""
    number = st.session_state.get(_LATEST, 0)

    def called(*args: P.args, **kwargs: P.kwargs) -> None:
        if number >= st.session_state.get(_WHOLE, 0):
            callback(*args, **kwargs)

    return called


def place_of(page: Entry) -> Place:
    return next(place for place in PLACES if page in place.pages)


def navigation_style(page: Entry) -> str:
    """Returns the style of the navigation: marks the place of the page, which Streamlit does for
    its front only; does not mark links to the page that is open, which may all lead to other
    things on it; and frames what has the focus."""
    front = place_of(page).pages[0]
    link = f'[data-testid=stTopNavLink][href$="/{front.path}"]'
    marked = f"{link} {{background: rgba(151, 166, 195, 0.25)}} {link} * {{font-weight: 700}}"
    inner = "[data-testid=stMain] [data-testid=stPageLink-NavLink]"
    plain = f"{inner}:not(:hover) {{background: none}} {inner} * {{font-weight: 400}}"
    links = ("stTopNavLink", "stPageLink-NavLink")
    framed = ", ".join(f"[data-testid={link}]:focus-visible" for link in links)
    focus = f"outline: 2px solid light-dark({FOCUS}, {FOCUS_DARK}) !important; outline-offset: 2px"
    return f"{'' if page is front else marked} {plain} {framed} {{{focus}}}"


def open_page(page: Entry, params: Mapping[str, str] | None = None) -> None:
    """Makes the browser open a page, in place of `st.switch_page`. That one changes the page here
    while the browser may still ask for a fragment of the page before. Streamlit would answer, and
    the browser would empty the new page."""
    _visit(data={"address": address_of(page, params or {}), "visit": uuid.uuid4().hex})


def address_of(page: Entry, params: Mapping[str, str]) -> str:
    """Returns the address of a page, relative to any other page."""
    path = "./" if page is HOME else page.path
    return f"{path}?{urlencode(params)}" if params else path


def open_next(page: Entry, params: Mapping[str, str]) -> None:
    """Opens a page when the script runs again: a callback can draw nothing."""
    st.session_state[_NEXT] = page, dict(params)


def go_on() -> None:
    """Opens the page of `open_next`, if there is one. The page before is drawn meanwhile."""
    if _NEXT in st.session_state:
        open_page(*st.session_state.pop(_NEXT))


def tabs(label: str, choices: tuple[Tab, ...], current: Tab, about: str = "") -> None:
    """Shows the tabs of a place. A tab opens as it was left, as long as it is about the same
    thing, such as a topic."""
    by_label = {tab.label: tab for tab in choices}
    clicked = st.session_state.pop(_TAB, None)
    st.session_state["tab"] = clicked if clicked in by_label else current.label

    def chosen() -> None:
        tab = by_label[st.session_state["tab"]]
        params = st.query_params.to_dict()
        subject = about, params.pop(CLUSTER_PARAMETER, "")
        left = st.session_state.setdefault(_LEFT, {})
        left[label, current.label] = subject, params
        subject_then, params_then = left.get((label, tab.label), (None, {}))
        opened = params_then if subject_then == subject else tab.params
        if tab.page is current.page:
            st.query_params.from_dict(opened)
        else:
            st.session_state[_TAB] = tab.label
            open_next(tab.page, opened)

    st.segmented_control(
        label,
        list(by_label),
        key="tab",
        on_change=if_drawn(chosen),
        required=True,
        label_visibility="collapsed",
    )


def head(page: Entry) -> DeltaGenerator:
    """Shows the title of the place and its tabs, in one row. Returns the row."""
    place = place_of(page)
    choices = {entry: Tab(entry.title, entry) for entry in place.pages}
    run = st.query_params.get("run")
    if page is CHECK and run:
        # The verdict of this check, not the one that was looked at before.
        choices[VERDICT] = Tab(VERDICT.title, VERDICT, {"run": run})
        st.session_state.get(_LEFT, {}).pop((place.title, VERDICT.title), None)
    row = st.container(horizontal=True, vertical_alignment="bottom", gap="medium")
    with row:
        st.title(place.title, anchor=False, width="content")
        tabs(place.title, tuple(choices.values()), choices[page])
    return row
