"""Watch: how each contract that is watched stands, how it stood in the last day, and what to do
now. It reads what the watches of this home have written. What the dashboard has begun to watch is
stopped here, and begun again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import groupby

import streamlit as st

from topicproof.app import wording
from topicproof.app.check.watch_switch import begin_watch
from topicproof.app.session.access import may, open_history, show_errors
from topicproof.app.session.connection import CLUSTER_PARAMETER, page_cluster_id, page_settings
from topicproof.app.shell import places
from topicproof.app.wording import Word
from topicproof.backend.trust.identity import Action
from topicproof.backend.watch.standings import (
    SEVERITY,
    Standing,
    State,
    WatchedStanding,
    read_standings,
)
from topicproof.backend.watch.state_file import FOLDER, is_watched, state_name
from topicproof.backend.watch.watch_list import ListedContract, read_list, unlist_contract
from topicproof.backend.watch.watchable import is_named

POLL_S = 5.0
ROWS = 50
"""Contracts that are drawn at once."""
UNREADABLE_SHOWN = 3
STATE_WORDS = {
    State.HOLDS: Word("HOLDS", "HOLDS", ":material/check_circle:", "green"),
    State.VIOLATED: Word("VIOLATED", "VIOLATED", ":material/cancel:", "red"),
    State.UNKNOWN: Word("UNKNOWN", "UNKNOWN", ":material/help:", "yellow"),
    State.BEHIND: Word("BEHIND", "BEHIND", ":material/hourglass_top:", "blue"),
    State.REFUSED: Word("REFUSED", "REFUSED", ":material/block:", "orange"),
}
STALE = Word("NOT WATCHED", "NOT WATCHED", ":material/visibility_off:", "gray")
STRIP_STATES = {
    State.HOLDS: ("#009E73", 40),
    State.BEHIND: ("#56B4E9", 60),
    State.UNKNOWN: ("#E69F00", 80),
    State.VIOLATED: ("#D55E00", 100),
    None: ("rgba(128,128,128,0.25)", 12),
}
"""Colour, and height in per cent: states are told apart without colours, too."""
STRIP_PX = 30
COMMAND = "topicproof watch contract.yaml{options}"

settings = page_settings()


def page() -> None:
    places.head(places.WATCH)
    st.fragment(rows, run_every=POLL_S)()


def rows() -> None:
    """Shows the contracts, the worst first, again and again."""
    now_s = int(time.time())
    with show_errors():
        watched, unreadable = read_standings(settings.home / FOLDER, now_s)
        contracts = read_list(settings)
    if unreadable:
        names = ", ".join(unreadable[:UNREADABLE_SHOWN])
        st.warning(
            f"{wording.count(len(unreadable), 'state')} of a watch cannot be read:"
            f" {wording.plain(names)}. `topicproof watch` says why."
        )
    expected = [each for each in contracts if listed_standing(each, watched) is None]
    for contract in expected:
        begins(contract)
    if not watched:
        if not expected:
            empty()
        return
    watched.sort(key=lambda each: (-_rank(each.standing, now_s), each.standing.name))
    st.markdown(summary([each.standing for each in watched], now_s))
    st.caption(
        "Each strip is the last day, from left to right, with the worst of each five minutes: the"
        " higher, the worse (holds, behind, unknown, violated). A low grey line: nobody watched."
    )
    # A contract of several sinks has its buttons once.
    by_row = {id(listed_standing(each, watched)): each for each in contracts}
    for each in choice(watched):
        with st.container(border=True):
            row(each, now_s, by_row.get(id(each)))


def empty() -> None:
    """Says how to begin."""
    st.info(
        "No contract is watched from this home. A watch judges contracts as their topics grow, and"
        " tells what begins to be wrong. Switch on *Watch this* beside a contract or a verdict, or"
        " begin one in a terminal; this page then follows it.",
        icon=":material/monitor_heart:",
    )
    st.page_link("views/check.py", label="Draft a contract", icon=":material/fact_check:")
    st.code(COMMAND.format(options=settings.cluster_options), language=None)


def is_of(contract: ListedContract, watched: WatchedStanding) -> bool:
    """Whether a standing is that of a contract on the list, or of one of its sinks."""
    is_here = state_name(contract.cluster_id) == watched.state_name
    return is_here and contract.name == watched.standing.listed


def listed_standing(
    contract: ListedContract, watched: Sequence[WatchedStanding]
) -> WatchedStanding | None:
    return next((each for each in watched if is_of(contract, each)), None)


def begins(contract: ListedContract) -> None:
    """Shows a contract on the list that no watch has looked at yet."""
    with st.container(border=True):
        left, right = st.columns([6, 3], gap="medium")
        running = is_watched(settings, contract.cluster_id)
        why = "Its first look goes on." if running else "Nobody watches its cluster."
        left.markdown(f"{wording.badge(STALE)} **{wording.plain(contract.name)}** {why}")
        with right:
            buttons(contract, is_running=running)


def buttons(contract: ListedContract, *, is_running: bool) -> None:
    """Shows what can be done to a contract on the list."""
    with st.container(horizontal=True):
        is_restarted = (
            not is_running
            and contract.is_of(settings)
            and st.button(
                "Watch again",
                icon=":material/replay:",
                key=f"again {contract.cluster_id} {contract.name}",
                disabled=not may(Action.WATCH),
                help="Goes on where the watch ended.",
            )
        )
        if is_restarted:
            with show_errors():
                begin_watch(settings, contract.name, contract.text)
            st.rerun()
        if st.button(
            "Stop watching",
            icon=":material/stop:",
            key=f"stop {contract.cluster_id} {contract.name}",
            disabled=not may(Action.UNWATCH),
            help="Its row goes at the next look. To watch it again goes on where this ends.",
        ):
            with show_errors():
                unlist_contract(open_history(settings), contract)
            st.rerun()


def choice(watched: Sequence[WatchedStanding]) -> Sequence[WatchedStanding]:
    """Returns the contracts to draw; asks which ones if they are many."""
    if len(watched) <= ROWS:
        return watched
    first = st.selectbox(
        "Contracts",
        range(0, len(watched), ROWS),
        format_func=lambda at: f"{at + 1} to {min(at + ROWS, len(watched))} of {len(watched)}",
        key="watch_rows",
        width=240,
    )
    return watched[first : first + ROWS]


def summary(standings: Sequence[Standing], now_s: int) -> str:
    """Counts the contracts by how they stand, for Markdown."""
    parts = []
    for state in sorted(State, key=lambda each: -SEVERITY[each]):
        number = sum(each.state is state and not each.is_stale(now_s) for each in standings)
        if number:
            parts.append(wording.badge(STATE_WORDS[state], f"{number} {STATE_WORDS[state].word}"))
    stale = sum(each.is_stale(now_s) for each in standings)
    if stale:
        parts.append(wording.badge(STALE, f"{stale} {STALE.word}"))
    return " ".join(parts)


def row(watched: WatchedStanding, now_s: int, contract: ListedContract | None) -> None:
    """Shows one contract. `contract`: itself on the list of the dashboard, if it is there."""
    standing = watched.standing
    left, middle, right = st.columns([2, 4, 3], gap="medium")
    with left:
        is_stale = standing.is_stale(now_s)
        word = STALE if is_stale else STATE_WORDS[standing.state]
        st.markdown(f"{wording.badge(word)} **{wording.plain(standing.name)}**")
        if standing.sink:
            st.caption(wording.plain(f"{standing.source} → {standing.sink}"))
        if standing.listed and not is_named(standing.name, standing.listed):
            st.caption(f"*Watch this* calls it {wording.plain(standing.listed)}.")
    with middle:
        st.html(strip(watched.slots))
        st.markdown(wording.plain(standing.why))
        if is_stale:
            ago = wording.duration(now_s - standing.at_s)
            st.caption(f"The watch last wrote {ago} ago: nothing newer is known.")
    with right:
        if standing.state is not State.REFUSED:
            st.caption(wording.plain(figures(standing)))
        if standing.waived:
            kinds = ", ".join(map(wording.kind_title, standing.waived))
            st.caption(f":material/notifications_off: Waived: {wording.plain(kinds)}.")
        if standing.next_step:
            st.markdown(f"**Now:** {wording.plain(standing.next_step)}")
        if standing.sink:
            link(watched)
        if contract is not None:
            buttons(contract, is_running=not is_stale)


def figures(standing: Standing) -> str:
    """Says the figures of a contract."""
    late = wording.count(standing.late, "input")
    due = wording.count(standing.due, "input")
    return (
        f"{due} due, {late} late. {wording.count(standing.withheld, 'offset')} withheld."
        f" {wording.count(standing.behind, 'offset')} not judged yet, delay"
        f" {wording.duration(standing.delay_s)}."
    )


def link(watched: WatchedStanding) -> None:
    """Shows the way to what is wrong, or to the sink."""
    standing, params = watched.standing, _cluster_params(watched)
    if params is None:
        where = standing.bootstrap or "the embedded Kafka"
        st.caption(f"Its topics are on another cluster: {wording.plain(where)}.")
        return
    topic, partition, offset = standing.place or (standing.sink, None, None)
    params |= {"topic": topic}
    label = wording.plain(f"Compare {topic}")
    if partition is not None:
        params |= {"partition": str(partition), "offset": str(offset)}
        label = wording.plain(f"Compare {topic} {partition} at {offset:,}")
    st.page_link("views/compare.py", label=label, icon=":material/compare:", query_params=params)


def strip(slots: Sequence[State | None]) -> str:
    """Returns the last day as HTML."""
    parts = []
    for state, run in groupby(slots):
        colour, height = STRIP_STATES[state]
        parts.append(f'<div style="flex:{len([*run])};height:{height}%;background:{colour}"></div>')
    watched = [state for state in slots if state is not None]
    shares = [
        f"{state} {100 * watched.count(state) / len(watched):.0f} %"
        for state in State
        if state in watched
    ]
    words = ", ".join(shares) or "not watched"
    return (
        f'<div role="img" aria-label="Last day: {words}" title="{words}"'
        f' style="display:flex;align-items:flex-end;height:{STRIP_PX}px">{"".join(parts)}</div>'
    )


def _rank(standing: Standing, now_s: int) -> float:
    """How much a contract needs somebody: one that nobody watches any more comes behind those that
    are violated."""
    if standing.is_stale(now_s):
        return SEVERITY[State.VIOLATED] - 0.5
    return SEVERITY[standing.state]


def _cluster_params(watched: WatchedStanding) -> dict[str, str] | None:
    """Returns the parameters that name the contract's cluster; None if this dashboard cannot look
    at it. A watch may have called the page's cluster by another name or address."""
    standing = watched.standing
    if standing.cluster in settings.named_clusters:
        return {CLUSTER_PARAMETER: standing.cluster}
    of_page = (settings.cluster or "", settings.bootstrap or "")
    is_here = (standing.cluster, standing.bootstrap) == of_page
    if not is_here and state_name(page_cluster_id(settings)) != watched.state_name:
        return None
    return {} if settings.cluster is None else {CLUSTER_PARAMETER: settings.cluster}


page()
