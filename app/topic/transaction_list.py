"""The transactions of a whole cluster, one row for each over all its topics and partitions: open
ones, and those that ended last. `?id=`, `?ends=` and `?period=` filter them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from topicproof.app import wording
from topicproof.app.charts.timeline import Hover, timeline_figure
from topicproof.app.session.access import show_errors
from topicproof.app.session.cluster_reads import cluster_overview, ended_in_cluster
from topicproof.app.shell import downloads
from topicproof.app.shell.downloads import clickable
from topicproof.app.shell.places import TRANSACTIONS, go_on, if_drawn, open_next
from topicproof.app.shell.url_state import TransactionsState, write_transactions
from topicproof.app.topic import transaction_rows
from topicproof.app.topic.record_browser import ROW_PX
from topicproof.backend.characters import label
from topicproof.backend.kafka.browse.overview import Overview
from topicproof.backend.kafka.cluster import INTERNAL_TOPICS
from topicproof.backend.kafka.coordination.ended import ENDED_MAX, EndedTransaction
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.validators.coordinator import WholeTransaction
from topicproof.validators.facts.log_facts import ABORTED, COMMITTED, OPEN
from topicproof.validators.sentences import brief, first_of

TABLE_PX, NAME_PX = 420, 320
TOPICS_NAMED = 3
ID_CHARACTERS = 32
"""The column shows so many: the end of an id, where those of one program differ."""
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
PERIODS = {
    "last 15 minutes": 15 * MINUTE_MS,
    "last hour": HOUR_MS,
    "last day": 24 * HOUR_MS,
    "all": None,
}
"""How long ago a transaction may have ended, in ms, by label."""
PERIOD = "last hour"
OUTCOMES = (OPEN, wording.HANGING, ABORTED, COMMITTED)
HOVER = Hover(
    ("number", "id_label", "topics_label", "total_ms"),
    "%{customdata[1]}<br>%{customdata[2]}<br>%{customdata[3]:,} ms",
)


def page(settings: Settings, kafka: Services) -> None:
    """Draws the filters, the timeline and the list."""
    go_on()
    with st.container(horizontal=True, vertical_alignment="center"):
        st.text_input(
            "Transactional id or topic contains",
            key="id",
            bind="query-params",
            placeholder="Part of a transactional id or a topic",
            label_visibility="collapsed",
            width=NAME_PX,
        )
        st.pills(
            "Only these outcomes",
            OUTCOMES,
            # The words alone: the address has them.
            format_func=lambda outcome: wording.TRANSACTION_WORDS[outcome].word,
            selection_mode="multi",
            key="ends",
            bind="query-params",
            label_visibility="collapsed",
        )
        st.segmented_control(
            "Open, or ended in",
            list(PERIODS),
            default=PERIOD,
            required=True,
            key="period",
            bind="query-params",
            label_visibility="collapsed",
        )
    with show_errors():
        cluster = cluster_overview(kafka.bootstrap, settings.client)
        ended, why = ended_in_cluster(kafka.bootstrap, settings.client)
    now_ms = int(time.time() * 1000)
    every = rows(cluster, ended, now_ms)
    matches = matching(
        every,
        st.session_state["id"].strip().lower(),
        st.session_state["ends"] or (),
        PERIODS[st.session_state["period"]],
        now_ms,
    )
    for note in filter(None, (*cluster.not_heard, why)):
        st.warning(wording.plain(note), title="Some transactions are missing")
    opened = int(every["outcome"].isin([OPEN, wording.HANGING]).sum())
    st.caption(
        f"{wording.count(opened, 'open transaction')}, of which"
        f" {int((every['outcome'] == wording.HANGING).sum()):,} hang;"
        f" {len(matches):,} of {wording.count(len(every), 'transaction')} shown. Asked at"
        f" {cluster.taken_at:%H:%M:%S} UTC. Kafka does not tell the client or the host of a"
        " transaction."
    )
    if matches.empty:
        st.info(
            "No transaction matches these filters."
            if len(every)
            else "No transaction is open in this cluster, and none has ended lately.",
            icon=":material/filter_alt_off:",
        )
        return
    timeline(matches, PERIODS[st.session_state["period"]], now_ms)
    listing(matches)


def rows(cluster: Overview, ended: Sequence[EndedTransaction], now_ms: int) -> pd.DataFrame:
    """Returns one row for each transaction: open ones first, hanging ones and the oldest before the
    others, then the ones that ended last."""
    opened = [_of_open(transaction, now_ms) for transaction in cluster.opened]
    # Markers of a transaction that is decided are on their way: the leaders still have it open.
    under_way = {row["name"] for row in opened if row["outcome"] == OPEN}
    closed = [
        _of_ended(transaction)
        for transaction in ended
        if not (
            transaction.state.startswith("Prepare") and transaction.transactional_id in under_way
        )
    ]
    return pd.DataFrame([*opened, *closed], columns=COLUMNS)


COLUMNS = [
    *("name", "outcome", "state", "why", "first_timestamp", "end_ms", "duration_ms", "timeout_ms"),
    *("withheld", "partitions", "topics", "topic", "producer_id"),
]


def _of_open(transaction: WholeTransaction, now_ms: int) -> dict[str, Any]:
    topic, worst = transaction.worst
    return {
        "name": worst.name,
        "outcome": wording.HANGING if transaction.hanging else OPEN,
        "state": worst.state or "",
        "why": transaction_rows.why(OPEN, worst, None),
        "first_timestamp": now_ms - transaction.age_ms,
        "end_ms": None,
        "duration_ms": transaction.age_ms,
        "timeout_ms": worst.timeout_ms,
        "withheld": transaction.withheld,
        "partitions": len(transaction.parts),
        "topics": first_of(transaction.topics, TOPICS_NAMED),
        "topic": topic,
        "producer_id": worst.producer_id,
    }


def _of_ended(transaction: EndedTransaction) -> dict[str, Any]:
    began = transaction.began_ms or transaction.ended_ms
    topics = [topic for topic in transaction.topics if topic not in INTERNAL_TOPICS]
    return {
        "name": transaction.transactional_id,
        "outcome": transaction.outcome,
        "state": transaction.state,
        "why": transaction_rows.why(transaction.outcome, None, transaction.reason),
        "first_timestamp": began,
        "end_ms": transaction.ended_ms,
        "duration_ms": max(0, transaction.ended_ms - began),
        "timeout_ms": transaction.timeout_ms,
        "withheld": 0,
        "partitions": len(transaction.partitions) or None,
        "topics": first_of(topics or transaction.topics, TOPICS_NAMED),
        "topic": next(iter(topics), None),
        "producer_id": transaction.producer_id,
    }


def matching(
    every: pd.DataFrame,
    text: str,
    outcomes: Sequence[str],
    period_ms: int | None,
    now_ms: int,
) -> pd.DataFrame:
    """Returns the rows that match the filters; an open one has not ended, so it is in any
    period."""
    fits = pd.Series(True, every.index)
    if text:
        named = every["name"].str.lower().str.contains(text, regex=False)
        fits &= named | every["topics"].str.lower().str.contains(text, regex=False)
    if outcomes:
        fits &= every["outcome"].isin(outcomes)
    if period_ms is not None:
        fits &= every["end_ms"].isna() | (every["end_ms"] >= now_ms - period_ms)
    return every[fits].reset_index(drop=True)


def timeline(matches: pd.DataFrame, period_ms: int | None, now_ms: int) -> None:
    """Draws when each was open: a row for each transactional id, those with something open
    first. A bar that began before the period is cut."""
    labels = transaction_rows.owner_labels(
        [("id", name) for name in dict.fromkeys(matches["name"])][: transaction_rows.LANES_MAX]
    )
    drawn = matches[matches["name"].isin([name for _kind, name in labels])]
    drawn = drawn.assign(
        lane=[labels["id", name] for name in drawn["name"]],
        number=drawn.index,
        id_label=drawn["name"].map(label),
        topics_label=drawn["topics"].map(label),
        total_ms=drawn["duration_ms"],
    )
    if period_ms is not None:
        begin = drawn["first_timestamp"].clip(lower=now_ms - period_ms)
        cut = begin - drawn["first_timestamp"]
        drawn = drawn.assign(first_timestamp=begin, duration_ms=drawn["duration_ms"] - cut)

    def clicked() -> None:
        points = st.session_state["cluster timeline"].selection.points
        if points and "customdata" in points[0]:
            number = int(points[0]["customdata"][0])
            if number < len(matches):
                show(matches.iloc[number])

    clickable(
        timeline_figure(drawn, list(labels.values()), HOVER),
        None,
        "cluster timeline",
        clicked,
        "When the transactions of the cluster were open, by outcome. The table has the same data.",
    )
    hidden = matches["name"].nunique() - len(labels)
    st.caption(
        "A row is a transactional id, a bar a whole transaction over all its partitions. Times are"
        " the coordinators', in UTC."
        + (f" {hidden:,} further ids are only listed." if hidden > 0 else "")
    )


def listing(matches: pd.DataFrame) -> None:
    """Shows one row for each transaction; a click opens it in its topic."""

    def chosen() -> None:
        cells = st.session_state["cluster transactions"].selection.cells
        if cells and cells[0][0] < len(matches):
            show(matches.iloc[cells[0][0]])

    listed = table(matches)
    st.dataframe(
        tinted(listed, matches),
        hide_index=True,
        row_height=ROW_PX,
        height=min(TABLE_PX, ROW_PX * (len(listed) + 1) + 10),
        key="cluster transactions",
        on_select=if_drawn(chosen),
        selection_mode="single-cell",
        placeholder="–",
        alt="The transactions of the cluster, one row for each over all its topics",
        column_config={
            "outcome": st.column_config.TextColumn(width=105),
            "transactional id": st.column_config.TextColumn(width=260),
            "why": st.column_config.TextColumn(width=250),
            "age or duration": st.column_config.TextColumn(width=110, alignment="right"),
            "of its timeout": st.column_config.ProgressColumn(
                width=95,
                min_value=0,
                max_value=1,
                format="percent",
                help="The age of an open transaction against the time after which its coordinator"
                " aborts it. Empty: nothing aborts it, or it has ended.",
            ),
            "withheld": st.column_config.NumberColumn(
                width=80, help="Records that it holds back from read_committed consumers."
            ),
            "partitions": st.column_config.NumberColumn(width=75),
            "topics": st.column_config.TextColumn(width=230),
            "state": st.column_config.TextColumn(
                width=115, help="The state that its coordinator has for it."
            ),
            "begin (UTC)": st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm:ss", width=150),
            "end (UTC)": st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm:ss", width=150),
            "producer id": st.column_config.NumberColumn(format="%d", width=85),
        },
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(
            "Click a row, or a bar, to see the transaction in its topic. Of those that have ended,"
            f" the last {ENDED_MAX:,} of the cluster are listed."
        )
        downloads.offer_table("transactions-of-the-cluster", lambda: listed, "", None)


def table(matches: pd.DataFrame) -> pd.DataFrame:
    """Builds the table of these rows, in the words of a topic's page Transactions."""
    is_open = matches["end_ms"].isna()
    timeout = matches["timeout_ms"].astype("float64")
    share = (matches["duration_ms"] / timeout).clip(upper=1)
    return pd.DataFrame(
        {
            "outcome": matches["outcome"].map(wording.outcome_label),
            "transactional id": matches["name"],
            "why": matches["why"],
            "age or duration": list(_ages(matches)),
            "of its timeout": share.where(is_open & (timeout > 0)),
            "withheld": matches["withheld"].where(is_open).astype("Int64"),
            "partitions": matches["partitions"].astype("Int64"),
            "topics": matches["topics"],
            "state": matches["state"],
            "begin (UTC)": pd.to_datetime(matches["first_timestamp"], unit="ms", errors="coerce"),
            "end (UTC)": pd.to_datetime(
                matches["end_ms"].astype("float64"), unit="ms", errors="coerce"
            ),
            "producer id": matches["producer_id"],
        }
    )


def _ages(matches: pd.DataFrame) -> Iterator[str]:
    columns = matches["first_timestamp"], matches["duration_ms"], matches["end_ms"]
    for begin, duration, end in zip(*columns, strict=True):
        # Of a transaction whose begin is unknown, only the end is.
        yield "" if begin == end else brief(int(duration)) + (" so far" if pd.isna(end) else "")


def tinted(listed: pd.DataFrame, matches: pd.DataFrame) -> Any:
    """Tints each row by its outcome."""
    styles = [transaction_rows.outcome_style(outcome) for outcome in matches["outcome"]]

    def tint(all_rows: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame(dict.fromkeys(all_rows.columns, styles), all_rows.index)

    formats: dict[Any, Any] = {
        "transactional id": lambda name: transaction_rows.short_name(name, ID_CHARACTERS),
        "withheld": "{:,}",
        "partitions": "{:,}",
    }
    return listed.style.apply(tint, axis=None).format(formats, na_rep="–")


def show(row: Mapping[str, Any] | pd.Series[Any]) -> None:
    """Opens a transaction in its topic; of an ended one whose topics are no longer known,
    nothing."""
    if row["topic"] is None:
        st.toast("The coordinators’ log no longer tells the topics of this transaction.")
        return
    outcomes = (OPEN,) if pd.isna(row["end_ms"]) else ()
    selection = TransactionsState(row["topic"], producer=int(row["producer_id"]), outcomes=outcomes)
    open_next(TRANSACTIONS, write_transactions(selection))
