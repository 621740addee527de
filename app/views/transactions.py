"""Transactions: when each began and how it ended, by producer and partition; which are open, and
what they withhold."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import streamlit as st
from plotly.graph_objects import Figure
from streamlit.delta_generator import DeltaGenerator

from topicproof.app import wording
from topicproof.app.charts.timeline import timeline_figure, timeline_pointer
from topicproof.app.session.access import show_errors
from topicproof.app.session.connection import page_settings
from topicproof.app.session.coordination import Coordination, topic_coordination
from topicproof.app.session.record_reads import records_in_window
from topicproof.app.shell import downloads
from topicproof.app.shell.downloads import clickable
from topicproof.app.shell.places import if_drawn
from topicproof.app.shell.url_state import TransactionsState, read_transactions, write_transactions
from topicproof.app.topic import topic_header, topic_strip, transaction_rows
from topicproof.app.topic.snapshot import Snapshot
from topicproof.backend.kafka.browse.causes import abort_command, advice
from topicproof.backend.kafka.log.over_partitions import SPLIT
from topicproof.backend.services.keeper import Services
from topicproof.validators.coordinator import OpenTransaction, WholeTransaction, whole_transactions
from topicproof.validators.facts.log_facts import ABORTED
from topicproof.validators.sentences import in_words

OPEN_SHOWN, OPEN_DRAWN = 4, 50
"""Open transactions that are shown at once, and on demand."""
ROW_PX = 28
TABLE_PX = 420

settings = page_settings()


def go(selection: TransactionsState) -> None:
    """Moves the page to this selection."""
    st.query_params.from_dict(write_transactions(selection))


def body(kafka: Services, snapshot: Snapshot, live: bool) -> None:
    """Draws everything that depends on the topic's snapshot."""
    if topic_header.empty(snapshot):
        return
    topic_strip.head(kafka, snapshot, live=live)
    head = st.empty()
    with head.container():
        facts(snapshot, snapshot.transactions)
    open_slot, controls_slot = st.container(), st.container()
    # What is drawn at first is replaced. Later an empty place would flicker.
    first = st.session_state.get("coordinators_of") != snapshot.bounds.topic
    chart_slot = st.empty() if first else st.container()
    if first:
        chart_at_first(snapshot, chart_slot)
    with open_slot:
        coordination = standing(kafka, snapshot)
    rows = transaction_rows.with_hanging(snapshot.transactions, coordination.opened)
    if (rows["outcome"] == wording.HANGING).any():
        with head.container():
            facts(snapshot, rows)
    if rows.empty:
        st.info(
            f"None of the {wording.count(snapshot.bounds.offsets, 'offset')} belongs to a"
            " transaction: this topic was written without transactions. Both isolation levels get"
            " the same records.",
            title="No transactions",
        )
        compare_link(snapshot, None)
        return
    selection, notices = read_transactions(st.query_params, snapshot.bounds, rows)
    with controls_slot:
        for notice in notices:
            st.warning(notice, icon=":material/info:")
        controls(snapshot, rows, selection)
    fitting = transaction_rows.matching(rows, selection)
    if fitting.empty:
        whole = wording.count(len(snapshot.over_partitions), "transaction")
        chart_slot.info(f"None of the {whole} matches. Remove some filters.")
        return
    skip, listed = page_of(fitting, selection)
    detail_slot = st.container()
    if selection.chosen is not None:
        # A user who has clicked waits for this, but not for the chart to be redrawn.
        with detail_slot:
            detail(kafka, snapshot, rows, coordination, selection.chosen)
    with chart_slot.container():
        figure = timeline(snapshot, coordination, selection, listed, len(fitting), skip, live)
    listing(snapshot, selection, listed, coordination, figure)
    producers(coordination)


def page_of(fitting: pd.DataFrame, selection: TransactionsState) -> tuple[int, pd.DataFrame]:
    """Returns how many are skipped, and the transactions to draw and to list."""
    skip = selection.skip if selection.skip < len(fitting) else 0
    page = fitting.iloc[skip : skip + transaction_rows.PAGE]
    return skip, transaction_rows.timed(page, int(time.time() * 1000))


def chart_at_first(snapshot: Snapshot, slot: DeltaGenerator) -> None:
    """Draws the chart by the log alone when the topic is opened, because coordinators may take
    seconds to answer. Their answers name the lanes, and show what hangs."""
    st.session_state["coordinators_of"] = snapshot.bounds.topic
    rows = snapshot.transactions
    selection, _ = read_transactions(st.query_params, snapshot.bounds, rows)
    fitting = transaction_rows.matching(rows, selection)
    if fitting.empty:
        return
    _, listed = page_of(fitting, selection)
    drawn, order = in_lanes(snapshot, {}, selection, listed)
    slot.plotly_chart(
        timeline_figure(drawn[drawn["lane"].isin(order)], order),
        key="timeline at first",
        config=downloads.PICTURE_ONLY,
        alt=f"When the transactions of {snapshot.bounds.topic} were open, by outcome.",
    )


def in_lanes(
    snapshot: Snapshot, names: Mapping[int, str], selection: TransactionsState, rows: pd.DataFrame
) -> tuple[pd.DataFrame, list[str]]:
    """Returns the bars, and their lanes in order. `names`: transactional ids by producer id."""
    drawn = rows.assign(lane=transaction_rows.lanes(rows, names))
    if not transaction_rows.by_partition(rows):
        drawn = transaction_rows.whole_ones(drawn, snapshot.numbers, selection.chosen)
    return drawn, transaction_rows.lane_order(drawn["lane"])


def facts(snapshot: Snapshot, rows: pd.DataFrame) -> None:
    """Shows the number of each outcome, and how much of the topic was aborted."""
    counts = transaction_rows.whole_outcomes(rows, snapshot.numbers, snapshot.over_partitions)
    balance = wording.transactions_balance(counts, int(rows["partition"].nunique()))
    st.markdown(f"### {balance}")
    if rows.empty:
        return
    records = int(rows["records"].sum())
    aborted = int(rows.loc[rows["outcome"] == ABORTED, "records"].sum())
    plain = snapshot.ranges[
        ~snapshot.ranges["transactional"].astype(bool) & snapshot.ranges["control"].isna()
    ]
    outside = int(plain["records"].sum())
    st.caption(
        f"{aborted:,} of {wording.count(records, 'record')} in "
        f"transactions ({aborted / max(1, records):.1%}) were aborted"
        + (
            f"; {wording.count(outside, 'further record')} in none."
            if outside
            else "; every record is in one."
        )
    )
    split = counts.get(SPLIT, 0)
    if split:
        st.error(
            f"{wording.count(split, 'transaction')} committed on one partition and aborted on"
            " another.",
            title="Split transactions",
            icon=":material/call_split:",
        )


def standing(kafka: Services, snapshot: Snapshot) -> Coordination:
    """Shows what is open now. Returns the coordinators' answers."""
    coordination = topic_coordination(settings, kafka, snapshot)
    what_is_open(snapshot, coordination)
    return coordination


def what_is_open(snapshot: Snapshot, coordination: Coordination) -> None:
    """Shows hanging transactions first, then the oldest."""
    if coordination.not_heard is not None:
        st.warning(
            wording.plain(coordination.not_heard),
            title="The transaction coordinators did not answer: what they know is missing here",
            icon=":material/hearing_disabled:",
        )
    if coordination.note:
        st.caption(wording.plain(coordination.note))
    if not coordination.opened and coordination.not_heard is None:
        st.markdown(
            ":green-badge[:material/check: nothing is open] No transaction holds anything back."
        )
        return
    ordered = whole_transactions((snapshot.bounds.topic, part) for part in coordination.opened)
    for transaction in ordered[:OPEN_SHOWN]:
        open_one(snapshot, transaction)
    if ordered[OPEN_SHOWN:]:
        with st.expander(f"{wording.count(len(ordered) - OPEN_SHOWN, 'further open transaction')}"):
            for transaction in ordered[OPEN_SHOWN:OPEN_DRAWN]:
                open_one(snapshot, transaction)
            if ordered[OPEN_DRAWN:]:
                st.caption(f"{len(ordered) - OPEN_DRAWN:,} more are in the table below.")


def open_one(snapshot: Snapshot, transaction: WholeTransaction) -> None:
    """Shows one open transaction: its age and limit, what it withholds, what to do."""
    _topic, worst = transaction.worst
    word = wording.open_word(worst)
    with st.container(border=True, gap="xxsmall"):
        left, right = st.columns([3.2, 1], vertical_alignment="center")
        why = wording.without_badge(transaction.why, word)
        left.markdown(f"{wording.badge(word)} {wording.plain(why)}")
        with right:
            compare_link(snapshot, (worst.partition, worst.start_offset))
        age(worst)
        st.caption(wording.plain(advice(worst)))
        if transaction.hanging:
            # Each partition has its own marker to get.
            commands = (
                abort_command(part, topic, settings.cluster_options)
                for topic, part in transaction.parts
            )
            st.code("\n".join(commands), language=None, wrap_lines=True)


def age(transaction: OpenTransaction) -> None:
    """Shows how much of its time an open transaction has used."""
    old = in_words(transaction.age_ms)
    if (
        transaction.hanging
        or transaction.unseen
        or transaction.two_phase
        or not transaction.timeout_ms
    ):
        # No timeout ends it, so its age is a share of nothing, and a bar would look like one.
        end = "Nothing will end it by itself." if transaction.hanging else "It has no known limit."
        st.caption(f"{old}. {end}")
        return
    share = min(1.0, transaction.age_ms / transaction.timeout_ms)
    st.progress(share, f"{old} of at most {in_words(transaction.timeout_ms)}")


def controls(snapshot: Snapshot, rows: pd.DataFrame, selection: TransactionsState) -> None:
    """Asks which transactions to show."""
    state = st.session_state
    state["partition_of"], state["producer_of"] = selection.partition, selection.producer
    state["outcomes"] = list(selection.outcomes)

    def changed() -> None:
        go(
            replace(
                selection,
                partition=state["partition_of"],
                producer=state["producer_of"],
                outcomes=tuple(state["outcomes"]),
                skip=0,
            )
        )

    columns = st.columns([0.8, 1.2, 3], vertical_alignment="bottom")
    columns[0].selectbox(
        "Partition",
        [p.partition for p in snapshot.bounds.partitions],
        index=None,
        placeholder="all",
        key="partition_of",
        on_change=if_drawn(changed),
    )
    columns[1].selectbox(
        "Producer id",
        transaction_rows.producer_ids(rows, selection.producer),
        index=None,
        placeholder="all",
        key="producer_of",
        on_change=if_drawn(changed),
        help=f"The {transaction_rows.PRODUCERS_MAX:,} whose transactions began last, at most.",
    )
    present = set(rows["outcome"]) | set(selection.outcomes)
    columns[2].pills(
        "Only these outcomes",
        [outcome for outcome in wording.TRANSACTION_WORDS if outcome in present],
        selection_mode="multi",
        format_func=wording.outcome_label,
        key="outcomes",
        on_change=if_drawn(changed),
        help="None chosen: every transaction is shown.",
    )


def timeline(
    snapshot: Snapshot,
    coordination: Coordination,
    selection: TransactionsState,
    listed: pd.DataFrame,
    fitting: int,
    skip: int,
    live: bool,
) -> Figure:
    """Draws the period of each transaction. Returns the chart."""
    drawn, lanes = in_lanes(snapshot, coordination.names, selection, listed)
    by_partition = transaction_rows.by_partition(listed)
    hidden = int((~drawn["lane"].isin(lanes)).sum())
    drawn = drawn[drawn["lane"].isin(lanes)]

    def clicked() -> None:
        points = st.session_state["timeline"].selection.points
        if points and "customdata" in points[0]:
            st.session_state["timeline_bar"] = (
                snapshot.bounds.topic,
                *list(points[0]["customdata"])[:2],
            )
        topic_then, *bar = st.session_state.get("timeline_bar", ("",))
        # Clicking the same bar again deselects it. Show it anyway, because another may have been
        # chosen meanwhile.
        if topic_then == snapshot.bounds.topic:
            partition, first = (int(part) for part in bar)
            go(replace(selection, chosen=(partition, first)))

    figure = timeline_figure(drawn, lanes)
    pointer = (
        timeline_pointer(drawn, lanes, selection.chosen) if selection.chosen is not None else None
    )
    alt = (
        f"When the transactions of {snapshot.bounds.topic} were open, by outcome. The table has the"
        " same data."
    )
    clickable(figure, pointer, "timeline", clicked, alt)
    whole = len(transaction_rows.whole_ones(listed, snapshot.numbers, None))
    which = (
        wording.all_listed(whole)
        if len(listed) == fitting
        else (
            f"Drawn and listed: rows {skip + 1:,} to {skip + len(listed):,} of the {fitting:,}"
            " that match, the latest first. A transaction has a row for each of its partitions"
        )
    )
    row = (
        "A row is a partition"
        if by_partition
        else "A row is a transactional id, a bar a whole transaction"
    )
    st.caption(
        f"{which}. "
        + (f"{hidden:,} of them, in further rows, are only listed. " if hidden else "")
        + f"{row}. Times are UTC: from the first record's timestamp, which its producer sets, to"
        " the marker's, at the tick. "
        + f"Bounds taken {snapshot.taken_at:%H:%M:%S} UTC"
        + (", again every 2 s while the run continues." if live else ".")
    )
    if len(listed) == fitting:
        return figure
    with st.container(horizontal=True, gap="small"):
        st.button(
            "Later ones",
            key="newer",
            icon=":material/chevron_left:",
            disabled=skip == 0,
            on_click=go,
            args=(replace(selection, skip=max(0, skip - transaction_rows.PAGE)),),
        )
        st.button(
            "Earlier ones",
            key="older",
            icon=":material/chevron_right:",
            disabled=skip + len(listed) >= fitting,
            on_click=go,
            args=(replace(selection, skip=skip + transaction_rows.PAGE),),
        )
    return figure


def detail(
    kafka: Services,
    snapshot: Snapshot,
    rows: pd.DataFrame,
    coordination: Coordination,
    chosen: tuple[int, int],
) -> None:
    """Shows one transaction: its place, its outcome, why it ended so, and links to its records."""
    of = (rows["partition"] == chosen[0]) & (rows["first_offset"] == chosen[1])
    row: dict[Any, Any] = transaction_rows.timed(rows[of], int(time.time() * 1000)).to_dict(
        "records"
    )[0]
    word = wording.TRANSACTION_WORDS[row["outcome"]]
    marker = None if pd.isna(row["marker_offset"]) else int(row["marker_offset"])
    with st.container(border=True, gap="small"):
        left, right = st.columns([3, 1])
        with left:
            st.markdown(f"#### Partition {chosen[0]}, offset {chosen[1]:,} {wording.badge(word)}")
            others = [partition for partition in snapshot.parts[chosen] if partition != chosen[0]]
            elsewhere = f"It wrote to {_partitions(others)} as well. " if others else ""
            ended = f"its marker is at {marker:,}" if marker is not None else "it has no marker yet"
            st.markdown(
                f"{wording.count(row['records'], 'record')} ({wording.data_size(row['bytes'])} as"
                f" stored) at the offsets {chosen[1]:,} to {row['last_offset']:,}; {ended}."
                f" {elsewhere}Began {wording.moment_of_ms(row['first_timestamp'])},"
                f" {'open for' if marker is None else 'took'} {in_words(row['duration_ms'])}."
            )
            explain(kafka, snapshot, coordination, chosen, row)
        with right:
            compare_link(snapshot, chosen, "Compare at its first offset")
            if marker is not None:
                compare_link(snapshot, (chosen[0], marker), "Compare at its marker")


def explain(
    kafka: Services,
    snapshot: Snapshot,
    coordination: Coordination,
    chosen: tuple[int, int],
    row: dict[Any, Any],
) -> None:
    """Explains why it ended so, and what wrote it."""
    opened = next(
        (
            transaction
            for transaction in coordination.opened
            if (transaction.partition, transaction.start_offset) == chosen
        ),
        None,
    )
    reason = transaction_rows.why(row["outcome"], opened, coordination.reasons.get(chosen))
    if reason:
        st.markdown(wording.plain(reason[0].upper() + reason[1:]) + ".")
    transactional_id = coordination.names.get(row["producer_id"])
    with show_errors():
        first = next(iter(records_in_window(settings, kafka, snapshot, *chosen, 1)), None)
    name = first.transaction if first is not None else None
    st.caption(
        f"Producer {row['producer_id']}, epoch {row['producer_epoch']}, transactional id "
        + (
            wording.plain(transactional_id)
            if transactional_id
            else "no longer known to any coordinator"
        )
        + (f". In its records it is {wording.plain(name)}." if name and "/" in name else ".")
    )


def _partitions(numbers: Sequence[int]) -> str:
    return f"partition{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def compare_link(
    snapshot: Snapshot, place: tuple[int, int] | None, label: str = "Compare both levels"
) -> None:
    params = {"topic": snapshot.bounds.topic}
    if place is not None:
        params |= {"partition": str(place[0]), "offset": str(place[1])}
    st.page_link("views/compare.py", label=label, icon=":material/compare:", query_params=params)


def listing(
    snapshot: Snapshot,
    selection: TransactionsState,
    rows: pd.DataFrame,
    coordination: Coordination,
    figure: Figure,
) -> None:
    """Lists the transactions of the timeline, the latest first."""
    places: Sequence[tuple[int, int]] = [
        (int(partition), int(first))
        for partition, first in zip(rows["partition"], rows["first_offset"], strict=True)
    ]
    # A selection belongs to what was on the screen: the rows of another list are other
    # transactions.
    key = f"transactions {hash(tuple(places))}"

    def chosen() -> None:
        cells = st.session_state[key].selection.cells
        if cells and cells[0][0] < len(places):
            go(replace(selection, chosen=places[cells[0][0]]))

    listed = transaction_rows.table(
        rows, snapshot.parts, coordination.names, coordination.opened, coordination.reasons
    )
    st.dataframe(
        transaction_rows.tinted(listed, rows, selection.chosen),
        hide_index=True,
        height=min(TABLE_PX, ROW_PX * (len(rows) + 1) + 10),
        row_height=ROW_PX,
        key=key,
        on_select=if_drawn(chosen),
        selection_mode="single-cell",
        placeholder="–",
        alt="The transactions of the timeline, one row per transaction and partition",
        column_config={
            "outcome": st.column_config.TextColumn(width=105),
            "partition": st.column_config.NumberColumn(width=65),
            "first offset": st.column_config.NumberColumn(width=85),
            "last offset": st.column_config.NumberColumn(width=85),
            "records": st.column_config.NumberColumn(width=70),
            "size": st.column_config.TextColumn(width=75, alignment="right"),
            "begin (UTC)": st.column_config.DatetimeColumn(
                format="YYYY-MM-DD HH:mm:ss.SSS", width=175
            ),
            "end (UTC)": st.column_config.DatetimeColumn(
                format="YYYY-MM-DD HH:mm:ss.SSS", width=175
            ),
            "duration": st.column_config.TextColumn(width=95, alignment="right"),
            "why": st.column_config.TextColumn(width=262),
            "producer id": st.column_config.NumberColumn(format="%d", width=85),
            "epoch": st.column_config.NumberColumn(width=55),
            "marker": st.column_config.NumberColumn(width=75),
            "partitions": st.column_config.TextColumn(width=75),
        },
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption("Click a row, or a bar, to see one transaction and the way to its records.")
        whole = len(transaction_rows.whole_ones(rows, snapshot.numbers, None))
        caption = (
            f"{wording.count(whole, 'transaction')}, one row for each of its partitions. Times are"
            " UTC."
        )
        downloads.offer_table(
            f"{snapshot.bounds.topic}-transactions", lambda: listed, caption, lambda: figure
        )


def producers(coordination: Coordination) -> None:
    """Lists the producers that wrote here, as far as the leaders remember."""
    if coordination.producers.empty:
        return
    remembered = coordination.producers
    with st.expander(
        f"{wording.count(len(remembered), 'producer')} remembered by the partitions’ leaders",
        icon=":material/group:",
    ):
        listed = pd.DataFrame(
            {
                "partition": remembered["partition"],
                "producer id": remembered["producer_id"],
                "epoch": remembered["producer_epoch"],
                "transactional id": remembered["transactional_id"],
                "coordinator's state": remembered["state"],
                "late requests": remembered["transactional_id"].map(
                    lambda name: wording.EXPOSED_WORDS[coordination.exposed.get(name)]
                ),
                "open from": remembered["open_from"],
                "last sequence": remembered["last_sequence"],
                "last wrote (UTC)": pd.to_datetime(
                    remembered["last_timestamp"], unit="ms", errors="coerce"
                ),
                "coordinator epoch": remembered["coordinator_epoch"],
            }
        )
        st.dataframe(
            listed,
            hide_index=True,
            placeholder="–",
            alt="Producers that the leaders of the partitions remember",
            column_config={"producer id": st.column_config.NumberColumn(format="%d")},
        )
        st.caption(
            "A leader forgets a producer that has not written for a day, unless configured"
            " otherwise. " + (wording.EXPOSED if any(coordination.exposed.values()) else "")
        )


topic_header.page(settings, topic_header.TRANSACTIONS_TAB, body)
