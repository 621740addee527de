"""Topics: all topics, transactions and groups of a cluster, and of one topic
(`?topic=NAME&view=`) its records, readers, partitions and configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from topicproof.app import wording
from topicproof.app.session.access import show_errors
from topicproof.app.session.cluster_reads import (
    cluster_groups,
    cluster_overview,
    ended_in_cluster,
    topic_view,
)
from topicproof.app.session.connection import page_settings
from topicproof.app.session.coordination import mirrored_offsets, topic_lags, topic_share_groups
from topicproof.app.shell.places import TOPICS, Tab, tabs
from topicproof.app.shell.url_state import (
    ALL_GROUPS,
    ALL_TRANSACTIONS,
    CLUSTER,
    GROUPS,
    PARTITIONS,
    RECORDS,
    SETTINGS,
    TAIL,
    TopicsState,
    read_topics,
)
from topicproof.app.topic import (
    group_list,
    tables,
    topic_header,
    topic_list,
    topic_strip,
    transaction_list,
)
from topicproof.app.topic.record_browser import ROW_PX, records, with_kept_fields
from topicproof.app.topic.snapshot import Snapshot
from topicproof.app.topic.tail import tail
from topicproof.backend.kafka.browse.describe import VERDICT_SETTINGS
from topicproof.backend.kafka.coordination.lag import GroupLag
from topicproof.backend.kafka.coordination.share import ShareGroup
from topicproof.backend.kafka.mirror_offsets import Checkpoint
from topicproof.backend.services.keeper import Services

STUCK_SHOWN = 5
TOPICS_TAB = Tab("All topics", TOPICS, {"view": CLUSTER})
TRANSACTIONS_TAB = Tab("All transactions", TOPICS, {"view": ALL_TRANSACTIONS})
GROUPS_TAB = Tab("All groups", TOPICS, {"view": ALL_GROUPS})
CLUSTER_TABS = (TOPICS_TAB, TRANSACTIONS_TAB, GROUPS_TAB)

settings = page_settings()


def body(kafka: Services, snapshot: Snapshot, _live: bool) -> None:
    """Shows the chosen view of the topic; the others are not queried."""
    selection, notices = read_topics(st.query_params, snapshot.bounds)
    selection = with_kept_fields(selection)
    if selection.view == RECORDS and topic_header.empty(snapshot):
        return
    if snapshot.bounds.offsets:
        topic_strip.head(kafka, snapshot)
    else:
        topic_strip.balance(snapshot)
    for notice in notices:
        st.warning(notice, icon=":material/info:")
    views = {
        RECORDS: records,
        TAIL: tail,
        PARTITIONS: partitions,
        GROUPS: groups,
        SETTINGS: configuration,
    }
    views[selection.view](kafka, snapshot, selection)


def partitions(kafka: Services, snapshot: Snapshot, _selection: TopicsState) -> None:
    """Shows bounds, fates and replicas of every partition."""
    with show_errors():
        placements, _settings = topic_view(kafka.bootstrap, snapshot.bounds.topic, settings.client)
    table = tables.balance_table(snapshot.bounds, snapshot.counts)
    lies = pd.DataFrame(
        {
            "partition": [placement.partition for placement in placements],
            "leader": [placement.leader for placement in placements],
            "replicas": [", ".join(map(str, placement.replicas)) for placement in placements],
            "in sync": [", ".join(map(str, placement.in_sync)) for placement in placements],
        }
    )
    numbers: dict[Any, Any] = dict.fromkeys(table.columns, "{:,}")
    st.dataframe(
        tables.formatted(table.merge(lies, how="left", on="partition"), numbers),
        hide_index=True,
        row_height=ROW_PX,
        alt="Bounds, fates and brokers of every partition",
    )
    st.caption(
        f"Offsets by fate between log start and HW. Bounds taken {snapshot.taken_at:%H:%M:%S} UTC."
    )


def groups(kafka: Services, snapshot: Snapshot, selection: TopicsState) -> None:
    """Shows the topic's consumer and share groups, and what each really has left to read."""
    query = (kafka.bootstrap, snapshot.bounds.topic, snapshot.taken_at, settings.client, snapshot)
    with show_errors():
        lags, note = topic_lags(*query)
        shares, note_on_shares = topic_share_groups(*query)
    for sentence in filter(None, (note, note_on_shares)):
        st.caption(sentence)
    if not lags and not shares:
        st.info(
            "No consumer group owns a partition of this topic, or has committed an offset on it.",
            icon=":material/group_off:",
        )
    if lags:
        consumer_groups(lags, selection)
    if shares:
        share_groups(shares)
    members = tables.member_table((*lags, *shares), snapshot.bounds.topic)
    if len(members):
        with st.expander("Members of the groups", icon=":material/group:"):
            st.dataframe(
                members,
                hide_index=True,
                row_height=ROW_PX,
                alt="Clients in each group, and the partitions that each of them has",
            )
    # Last: a client may lack the right to read MirrorMaker's topic.
    with show_errors():
        mirrored, note = mirrored_offsets(kafka.bootstrap, snapshot.bounds.topic, settings.client)
    if note:
        st.caption(note)
    if mirrored:
        mirrored_groups(mirrored)


def consumer_groups(lags: Sequence[GroupLag], selection: TopicsState) -> None:
    """Shows the lag of each group, and warns of those that are stuck."""
    stuck = [lag for lag in lags if lag.stuck]
    for lag in stuck[:STUCK_SHOWN]:
        st.warning(
            wording.plain(wording.stuck_sentence(lag)),
            title=f"Group {wording.plain(lag.group)} is stuck behind an open transaction",
            icon=":material/lock_clock:",
        )
    if len(stuck) > STUCK_SHOWN:
        st.caption(f"{len(stuck) - STUCK_SHOWN:,} more groups are stuck too.")
    if stuck:
        st.page_link(
            "views/transactions.py",
            label="Open transactions",
            icon=":material/timeline:",
            query_params={"topic": selection.topic, "outcome": "open"},
        )
    st.dataframe(
        tables.formatted(
            tables.group_table(lags), dict.fromkeys(tables.LAG_COLUMNS, "{:,}"), na_rep="–"
        ),
        hide_index=True,
        row_height=ROW_PX,
        alt="What every group still has to read, in records, at both levels",
    )
    st.caption(
        "Lag counts the records that a consumer at that level would still get. HW − committed is"
        " what other tools show: it counts markers, aborted records and what is withheld, and may"
        " never reach 0."
    )
    with st.expander("Partition by partition", icon=":material/view_week:"):
        st.dataframe(
            tables.formatted(
                tables.group_partition_table(lags),
                dict.fromkeys(
                    ["committed", "read_committed lag", "read_uncommitted lag", "HW − committed"],
                    "{:,}",
                ),
                na_rep="–",
            ),
            hide_index=True,
            row_height=ROW_PX,
            alt="The same partition by partition",
        )


def share_groups(shares: Sequence[ShareGroup]) -> None:
    """Shows where each share group begins, what it has left, and whom transactions do not
    protect."""
    st.markdown("**Share groups**")
    for group in shares:
        if group.trap is not None:
            st.warning(wording.plain(group.trap), icon=":material/warning:")
    st.dataframe(
        tables.formatted(
            tables.share_table(shares), dict.fromkeys(tables.SHARE_COLUMNS, "{:,}"), na_rep="–"
        ),
        hide_index=True,
        row_height=ROW_PX,
        alt="Where every share group begins, and how many records it has left",
    )
    st.caption(
        "Below the start offset all records are done. Above it, members acknowledge records one by"
        " one, so what is left is an upper bound. Lag is what the coordinator tells, in offsets."
    )


def mirrored_groups(checkpoints: Sequence[Checkpoint]) -> None:
    """Shows where MirrorMaker would let groups of another cluster continue here."""
    st.markdown("**Groups of another cluster**")
    st.dataframe(
        tables.formatted(
            tables.mirrored_table(checkpoints),
            dict.fromkeys(tables.MIRRORED_COLUMNS, "{:,}"),
            na_rep="–",
        ),
        hide_index=True,
        row_height=ROW_PX,
        alt="Where groups of another cluster would continue on this topic",
    )
    st.caption("MirrorMaker’s newest checkpoints. A group that moves may read some records again.")


def configuration(kafka: Services, snapshot: Snapshot, _selection: TopicsState) -> None:
    """Shows the topic's settings, those changed from the default first."""
    with show_errors():
        _placements, values = topic_view(kafka.bootstrap, snapshot.bounds.topic, settings.client)
    table = pd.DataFrame(
        {
            "setting": [value.name for value in values],
            "value": [value.value for value in values],
            "set by": [
                value.source.replace("_CONFIG", "").replace("_", " ").lower() for value in values
            ],
            "a verdict depends on it": [
                "yes" if value.name in VERDICT_SETTINGS else "" for value in values
            ],
        }
    )
    changed = sum(not value.default for value in values)
    st.markdown(
        f"**{changed:,}** of {wording.count(len(values), 'setting')} are not the default; they come"
        " first."
    )
    st.dataframe(table, hide_index=True, row_height=ROW_PX, alt="Settings of the topic")


def whole_cluster(current: Tab) -> None:
    """Shows all topics of the cluster, all transactions, or all groups."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.title("Topics", anchor=False, width="content")
        tabs("Of the cluster", CLUSTER_TABS, current)
        st.space("stretch")
        st.button(
            "Refresh",
            icon=":material/refresh:",
            on_click=asked_again,
            help="Ask for all figures again.",
        )
    with show_errors():
        kafka = topic_header.connected(settings)
    if kafka is not None:
        pages = {TRANSACTIONS_TAB.label: transaction_list.page, GROUPS_TAB.label: group_list.page}
        pages.get(current.label, topic_list.page)(settings, kafka)


def asked_again() -> None:
    cluster_overview.clear()
    cluster_groups.clear()
    ended_in_cluster.clear()


view = st.query_params.get("view")
if view == ALL_GROUPS:
    whole_cluster(GROUPS_TAB)
elif view == ALL_TRANSACTIONS:
    whole_cluster(TRANSACTIONS_TAB)
elif view == CLUSTER or (view is None and "topic" not in st.query_params):
    # Without a snapshot of one topic, which may take a while.
    whole_cluster(TOPICS_TAB)
else:
    chosen_tab = topic_header.VIEW_TABS.get(view or RECORDS, topic_header.VIEW_TABS[RECORDS])
    topic_header.page(settings, chosen_tab, body, follow=False)
