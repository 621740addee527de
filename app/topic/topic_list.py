"""The list of a cluster's topics: which are large, which withhold records, which have readers that
are behind. `?named=` and `?only=` filter it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from topicproof.app import wording
from topicproof.app.session.access import show_error, show_errors
from topicproof.app.session.cluster_reads import (
    cluster_overview,
    cluster_view,
    newest_records_of,
    read_newest_records,
)
from topicproof.app.shell.places import COMPARE, go_on, if_drawn, open_next
from topicproof.app.topic import tables
from topicproof.app.topic.record_browser import ROW_PX
from topicproof.backend.errors import TopicproofError
from topicproof.backend.kafka.browse.overview import (
    NEWEST_OFFSETS,
    NewestRecords,
    Overview,
    TopicOverview,
)
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.validators.finding import Fate

BUDGET_S, POLL_S = 0.5, 0.8
"""How long one look reads batch headers before it shows what it has, and when the next one
follows."""
TABLE_PX, NAME_PX = 620, 320
WITHHELD, ABORTED, BEHIND, EMPTY = "withheld", "aborted", "behind", "not empty"
ONLY = {
    WITHHELD: "with withheld records",
    ABORTED: "with aborted records",
    BEHIND: "with groups behind",
    EMPTY: "not empty",
}
"""Filters of the list, and their labels."""
FORMATS: dict[Any, Any] = {
    **dict.fromkeys(("partitions", "offsets", "withheld", "open", "lag, at most"), "{:,}"),
    "aborted": "{:.1%}",
    "size, MB": "{:,.2f}",
}


def page(settings: Settings, kafka: Services) -> None:
    """Draws the list. Every topic is there at once; what needs batch headers follows."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.text_input(
            "Topic name contains",
            key="named",
            bind="query-params",
            placeholder="Part of a topic's name",
            label_visibility="collapsed",
            width=NAME_PX,
        )
        st.pills(
            "Only topics with",
            list(ONLY),
            format_func=ONLY.__getitem__,
            selection_mode="multi",
            key="only",
            bind="query-params",
            label_visibility="collapsed",
        )
    with show_errors():
        cluster = cluster_overview(kafka.bootstrap, settings.client)
    named = st.session_state["named"].strip().lower()
    topics = [overview for overview in cluster.topics if named in overview.topic.lower()]
    newest, refused = newest_records_of(settings, kafka, topics)
    loading = len(topics) > len(newest) + len(refused)
    polled = st.fragment(listing, run_every=POLL_S if loading else None)
    polled(settings, kafka, cluster, topics, loading)
    with st.expander("Brokers", icon=":material/dns:"):
        brokers(settings, kafka)


def listing(
    settings: Settings,
    kafka: Services,
    cluster: Overview,
    topics: Sequence[TopicOverview],
    loading: bool,
) -> None:
    """Shows the topics that pass the filters. While `loading`, then reads more of them for the next
    time."""
    go_on()
    newest, refused = newest_records_of(settings, kafka, topics)
    read_count = len(newest) + len(refused)
    only = st.session_state["only"] or ()
    matches = [
        overview
        for overview in topics
        if all(passes(overview, newest, condition) for condition in only)
    ]
    st.caption(
        f"Cluster {wording.plain(cluster.cluster)} at {wording.plain(kafka.bootstrap)}:"
        f" {wording.count(cluster.brokers, 'broker')},"
        f" {wording.count(len(cluster.topics), 'topic')}, {len(matches):,} shown."
        f" Asked at {cluster.taken_at:%H:%M:%S} UTC."
        + (
            ""
            if read_count == len(topics)
            else f" Newest records: {read_count:,} of {len(topics):,} topics read."
        )
    )
    for why in (*cluster.not_heard, *cluster.not_sized, *list(refused.values())[:1]):
        st.warning(wording.plain(why), title="Some figures are missing")
    if matches:
        table(matches, newest)
    elif cluster.topics:
        st.info("No topic matches these filters.", icon=":material/filter_alt_off:")
    else:
        st.info("This cluster has no topics yet.", icon=":material/info:")
    if read_count < len(topics):
        try:
            read_newest_records(settings, kafka, topics, BUDGET_S)
        except TopicproofError as error:
            show_error(error)
    elif loading:
        # All are known now: drawn by the page itself, this fragment is no longer polled.
        st.rerun()


def passes(overview: TopicOverview, newest: Mapping[str, NewestRecords], only: str) -> bool:
    """Whether a topic passes one of the filters."""
    latest = newest.get(overview.topic)
    return {
        WITHHELD: overview.withheld > 0,
        ABORTED: latest is not None and latest.fates[Fate.ABORTED] > 0,
        BEHIND: bool(overview.stuck)
        or (overview.behind is not None and overview.behind.records > 0),
        EMPTY: overview.bounds.offsets > 0,
    }[only]


def table(topics: Sequence[TopicOverview], newest: Mapping[str, NewestRecords]) -> None:
    """Shows one row for each topic; a click opens it."""

    def chosen() -> None:
        cells = st.session_state["topics"].selection.cells
        if cells and cells[0][0] < len(topics):
            open_next(COMPARE, {"topic": topics[cells[0][0]].topic})

    st.dataframe(
        tables.formatted(tables.topic_table(topics, newest), FORMATS, na_rep="–"),
        hide_index=True,
        row_height=ROW_PX,
        height=min(TABLE_PX, ROW_PX * (len(topics) + 1) + 10),
        key="topics",
        on_select=if_drawn(chosen),
        selection_mode="single-cell",
        placeholder="–",
        alt="The topics of the cluster, without Kafka's own",
        column_config={
            "topic": st.column_config.Column(width=240),
            "partitions": st.column_config.Column(width=80),
            "offsets": st.column_config.Column(
                width=90,
                help="From log start to HW: records, markers, and what compaction removed.",
            ),
            "size, MB": st.column_config.Column(width=80),
            "aborted": st.column_config.Column(
                width=75, help=f"Share of the records among the newest {NEWEST_OFFSETS:,} offsets."
            ),
            "withheld": st.column_config.Column(
                width=75,
                help="Offsets at or above the LSO: read_committed consumers do not see them yet.",
            ),
            "open": st.column_config.Column(
                width=55, help="Open transactions, hanging ones included."
            ),
            "lag, at most": st.column_config.Column(
                width=90,
                help="Offsets below the LSO that the slowest group has not read, with markers and"
                " aborted records. Groups and lag counts records.",
            ),
            "slowest group": st.column_config.Column(
                help="The group that is most behind, or one that is stuck: it has read all it can,"
                " and an open transaction withholds the rest.",
            ),
            "newest record (UTC)": st.column_config.Column(
                width=180,
                help=f"The largest timestamp among the newest {NEWEST_OFFSETS:,} offsets. Producers"
                " set it, unless the topic uses the brokers' time.",
            ),
        },
    )
    st.caption("Click a row to open its topic. A click on a column name sorts.")


def brokers(settings: Settings, kafka: Services) -> None:
    """Shows the brokers, and which one is the active controller."""
    with show_errors():
        cluster = cluster_view(kafka.bootstrap, settings.client)
    st.dataframe(
        pd.DataFrame(
            {
                "broker": [node.broker for node in cluster.brokers],
                "address": [f"{node.host}:{node.port}" for node in cluster.brokers],
                "rack": [node.rack for node in cluster.brokers],
                "controller": [
                    "active" if node.broker == cluster.controller else ""
                    for node in cluster.brokers
                ],
            }
        ),
        hide_index=True,
        row_height=ROW_PX,
        placeholder="–",
        alt="The brokers of the cluster",
    )
