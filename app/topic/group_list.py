"""The list of a cluster's groups: their state, what they really have left to read at both isolation
levels, and whom they wait for. `?grouped=` and `?groups=` filter it, `?group=` opens one."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from topicproof.app import wording
from topicproof.app.session.access import show_errors
from topicproof.app.session.cluster_reads import cluster_groups
from topicproof.app.shell.places import if_drawn
from topicproof.app.shell.url_state import ALL_GROUPS, GROUPS
from topicproof.app.topic import tables
from topicproof.app.topic.record_browser import ROW_PX
from topicproof.backend.kafka.browse.all_groups import ClusterGroup
from topicproof.backend.kafka.coordination.groups import EMPTY
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings

TABLE_PX, NAME_PX = 420, 320
TOPICS_LINKED = 6
STUCK, BEHIND, MEMBERS = "stuck", "behind", "members"
ONLY = {STUCK: "stuck behind a transaction", BEHIND: "with a lag", MEMBERS: "with members"}
"""Filters of the list, and their labels."""


def page(settings: Settings, kafka: Services) -> None:
    """Draws the list, and the group of the address in full."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.text_input(
            "Group name contains",
            key="grouped",
            bind="query-params",
            placeholder="Part of a group's name",
            label_visibility="collapsed",
            width=NAME_PX,
        )
        st.pills(
            "Only groups",
            list(ONLY),
            format_func=ONLY.__getitem__,
            selection_mode="multi",
            key="groups",
            bind="query-params",
            label_visibility="collapsed",
        )
    with show_errors():
        groups, note = cluster_groups(kafka.bootstrap, settings.client)
    named = st.session_state["grouped"].strip().lower()
    only = st.session_state["groups"] or ()
    matches = [
        group
        for group in groups
        if named in group.group.lower() and all(passes(group, condition) for condition in only)
    ]
    # Those that wait come first, then those with most to read.
    matches.sort(key=lambda group: (not group.stuck, -group.visible, group.group))
    stuck = sum(bool(group.stuck) for group in groups)
    st.caption(
        f"{wording.count(len(groups), 'group')}, {stuck:,} stuck behind an open transaction,"
        f" {len(matches):,} shown. {note}"
    )
    if not groups:
        st.info("This cluster has no group that this client may see.", icon=":material/group_off:")
        return
    if not matches:
        st.info("No group matches these filters.", icon=":material/filter_alt_off:")
        return
    requested = st.query_params.get("group")
    chosen = next((group for group in groups if group.group == requested), None)
    if requested is not None and chosen is None:
        st.warning(
            f"There is no group {wording.plain(requested)} now.", icon=":material/search_off:"
        )
    listing(matches)
    if chosen is not None:
        detail(chosen)


def passes(group: ClusterGroup, only: str) -> bool:
    """Whether a group passes one of the filters."""
    return {
        STUCK: bool(group.stuck),
        BEHIND: group.visible > 0,
        MEMBERS: group.state not in (EMPTY, "Dead", ""),
    }[only]


def listing(groups: Sequence[ClusterGroup]) -> None:
    """Shows one row for each group; a click opens it below."""

    def chosen() -> None:
        cells = st.session_state["all groups"].selection.cells
        if cells and cells[0][0] < len(groups):
            st.query_params["view"] = ALL_GROUPS
            st.query_params["group"] = groups[cells[0][0]].group

    st.dataframe(
        tables.formatted(
            tables.all_groups_table(groups), dict.fromkeys(tables.LAG_COLUMNS, "{:,}"), na_rep="–"
        ),
        hide_index=True,
        row_height=ROW_PX,
        height=min(TABLE_PX, ROW_PX * (len(groups) + 1) + 10),
        key="all groups",
        on_select=if_drawn(chosen),
        selection_mode="single-cell",
        placeholder="–",
        alt="The groups of the cluster: state, lag at both levels, and whom they wait for",
        column_config={
            "group": st.column_config.Column(width=260),
            "state": st.column_config.Column(width=90),
            "kind": st.column_config.Column(width=85),
            "read_committed lag": st.column_config.Column(
                width=130, help="Records that a read_committed consumer would get now."
            ),
            "read_uncommitted lag": st.column_config.Column(width=145),
            "withheld": st.column_config.Column(
                width=80, help="Records that open transactions hold back from it."
            ),
            "HW − committed": st.column_config.Column(
                width=115,
                help="What other tools call lag: with markers, aborted records and what is"
                " withheld.",
            ),
            "stuck behind": st.column_config.Column(width=230),
        },
    )
    inexact = [group for group in groups if not group.is_exact]
    st.caption(
        "Click a row to see the topics of its group. Partitions without a committed offset do not"
        " count."
        + (
            f" Of {wording.count(len(inexact), 'group')} a lag is at most so much: offsets were"
            " counted in place of records. The tab Groups of a topic counts its records."
            if inexact
            else ""
        )
    )


def detail(group: ClusterGroup) -> None:
    """Shows a group topic by topic, each with the way there."""
    with st.container(border=True, gap="small"):
        state = f" :small[{wording.plain(group.state)}]" if group.state else ""
        st.markdown(f"#### {wording.plain(group.group)}{state}")
        if not group.lags:
            st.caption(
                "A share group has no committed offsets: see the tab Groups of its topics."
                if group.kind == "share"
                else "It has committed no offset on a topic of this cluster."
            )
            return
        for topic in group.stuck:
            st.warning(
                wording.plain(wording.stuck_sentence(group.lags[topic])),
                title=f"Stuck on {wording.plain(topic)}",
                icon=":material/lock_clock:",
            )
        table = pd.DataFrame(
            {
                "topic": list(group.lags),
                "partitions": [len(lag.partitions) for lag in group.lags.values()],
                "read_committed lag": [lag.visible for lag in group.lags.values()],
                "read_uncommitted lag": [lag.uncommitted for lag in group.lags.values()],
                "withheld": [lag.withheld for lag in group.lags.values()],
                "HW − committed": [lag.subtraction for lag in group.lags.values()],
            }
        )
        st.dataframe(
            tables.formatted(tables.cut(table), dict.fromkeys(tables.LAG_COLUMNS, "{:,}")),
            hide_index=True,
            row_height=ROW_PX,
            alt=f"What {group.group} has left to read of each topic",
        )
        with st.container(horizontal=True):
            for topic in list(group.lags)[:TOPICS_LINKED]:
                st.page_link(
                    "views/topics.py",
                    label=f"Groups of {wording.plain(topic)}",
                    icon=":material/group:",
                    query_params={"topic": topic, "view": GROUPS},
                    width="content",
                )
            if group.stuck:
                st.page_link(
                    "views/transactions.py",
                    label="Open transactions",
                    icon=":material/timeline:",
                    query_params={"topic": group.stuck[0], "outcome": "open"},
                    width="content",
                )
