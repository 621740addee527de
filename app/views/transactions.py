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

from topicproof.app import export, topic, transactions, wording
from topicproof.app.charts.timeline import timeline_figure, timeline_pointer
from topicproof.app.clickable import clickable
from topicproof.app.session.connection import page_settings
from topicproof.app.session.coordination import Coordination, topic_coordination
from topicproof.app.session.errors import show_errors
from topicproof.app.session.records import records_in_window
from topicproof.app.snapshot import Snapshot
from topicproof.app.url_state import TransactionsState, read_transactions, write_transactions
from topicproof.backend.kafka.log.over_partitions import SPLIT
from topicproof.backend.services.keeper import Services
from topicproof.validators.coordinator import OpenTransaction
from topicproof.validators.durations import in_words
from topicproof.validators.facts.log_facts import ABORTED

OPEN_SHOWN = 4
ROW_PX = 28
TABLE_PX = 420

settings = page_settings()


def go(selection: TransactionsState) -> None:
    """Moves the page to this selection."""
    st.query_params.from_dict(write_transactions(selection))


def body(kafka: Services, seen: Snapshot, live: bool) -> None:
    """Draws everything that depends on the topic's snapshot."""
    head = st.empty()
    with head.container():
        facts(seen, seen.transactions)
    if topic.empty(seen):
        return
    open_slot, controls_slot = st.container(), st.container()
    # What is drawn at first is replaced. Later an empty place would flicker.
    first = st.session_state.get("coordinators_of") != seen.bounds.topic
    chart_slot = st.empty() if first else st.container()
    if first:
        chart_at_first(seen, chart_slot)
    with open_slot:
        told = standing(kafka, seen)
    found = transactions.with_hanging(seen.transactions, told.opened)
    if (found["outcome"] == wording.HANGING).any():
        with head.container():
            facts(seen, found)
    if found.empty:
        st.info(
            f"None of the {wording.count(seen.bounds.offsets, 'offset')} belongs to a transaction:"
            " this topic was written without transactions. Both isolation levels get the same"
            " records.",
            title="No transactions",
        )
        compare_link(seen, None)
        return
    selection, notices = read_transactions(st.query_params, seen.bounds, found)
    with controls_slot:
        for notice in notices:
            st.warning(notice, icon=":material/info:")
        controls(seen, found, selection)
    fitting = transactions.matching(found, selection)
    if fitting.empty:
        chart_slot.info(
            f"None of the {wording.count(len(found), 'transaction')} matches. Remove some filters."
        )
        return
    skip, shown = page_of(fitting, selection)
    detail_slot = st.container()
    if selection.chosen is not None:
        # A user who has clicked waits for this, but not for the chart to be redrawn.
        with detail_slot:
            detail(kafka, seen, found, told, selection.chosen)
    with chart_slot.container():
        figure = timeline(seen, told, selection, shown, len(fitting), skip, live)
    listing(seen, selection, shown, told, figure)
    producers(told)


def page_of(fitting: pd.DataFrame, selection: TransactionsState) -> tuple[int, pd.DataFrame]:
    """Returns how many are skipped, and the transactions to draw and to list."""
    skip = selection.skip if selection.skip < len(fitting) else 0
    page = fitting.iloc[skip : skip + transactions.PAGE]
    return skip, transactions.timed(page, int(time.time() * 1000))


def chart_at_first(seen: Snapshot, slot: DeltaGenerator) -> None:
    """Draws the chart by the log alone when the topic is opened, because coordinators may take
    seconds to answer. Their answers name the lanes, and show what hangs."""
    st.session_state["coordinators_of"] = seen.bounds.topic
    found = seen.transactions
    selection, _ = read_transactions(st.query_params, seen.bounds, found)
    fitting = transactions.matching(found, selection)
    if fitting.empty:
        return
    _, shown = page_of(fitting, selection)
    drawn, order = in_lanes(seen, {}, selection, shown)
    slot.plotly_chart(
        timeline_figure(drawn[drawn["lane"].isin(order)], order),
        key="timeline at first",
        config=export.PICTURE_ONLY,
        alt=f"When the transactions of {seen.bounds.topic} were open, by outcome.",
    )


def in_lanes(
    seen: Snapshot, names: Mapping[int, str], selection: TransactionsState, shown: pd.DataFrame
) -> tuple[pd.DataFrame, list[str]]:
    """Returns the bars, and their lanes in order. `names`: transactional ids by producer id."""
    drawn = shown.assign(lane=transactions.lanes(shown, names))
    if not _by_partition(drawn):
        drawn = transactions.whole_ones(drawn, seen.numbers, selection.chosen)
    return drawn, transactions.lane_order(drawn["lane"])


def _by_partition(drawn: pd.DataFrame) -> bool:
    return bool(drawn["lane"].str.fullmatch("p[0-9]+").all())


def facts(seen: Snapshot, found: pd.DataFrame) -> None:
    """Shows the number of each outcome, and how much of the topic was aborted."""
    counts = {
        str(outcome): int(number) for outcome, number in found["outcome"].value_counts().items()
    }
    st.markdown(f"### {wording.transactions_balance(counts)}")
    if found.empty:
        return
    records = int(found["records"].sum())
    aborted = int(found.loc[found["outcome"] == ABORTED, "records"].sum())
    plain = seen.ranges[~seen.ranges["transactional"].astype(bool) & seen.ranges["control"].isna()]
    outside = int(plain["records"].sum())
    st.caption(
        f"{wording.count(len(seen.over_partitions), 'transaction')}; {len(found):,} counted per"
        f" partition. {aborted:,} of {wording.count(records, 'record')} in "
        f"transactions ({aborted / max(1, records):.1%}) were aborted"
        + (
            f"; {wording.count(outside, 'further record')} in none."
            if outside
            else "; every record is in one."
        )
    )
    split = int((seen.over_partitions["outcome"] == SPLIT).sum())
    if split:
        st.error(
            f"{wording.count(split, 'transaction')} committed on one partition and aborted on"
            " another.",
            title="Split transactions",
            icon=":material/call_split:",
        )


def standing(kafka: Services, seen: Snapshot) -> Coordination:
    """Shows what is open now. Returns the coordinators' answers."""
    told = topic_coordination(settings, kafka, seen)
    what_is_open(seen, told)
    return told


def what_is_open(seen: Snapshot, told: Coordination) -> None:
    """Shows hanging transactions first, then the oldest."""
    if told.not_heard is not None:
        st.warning(
            wording.plain(told.not_heard),
            title="The transaction coordinators did not answer: what they know is missing here",
            icon=":material/hearing_disabled:",
        )
    if not told.opened and told.not_heard is None:
        st.markdown(
            ":green-badge[:material/check: nothing is open] No transaction holds anything back."
        )
        return
    ordered = sorted(told.opened, key=lambda one: (not one.hanging, -one.age_ms))
    for one in ordered[:OPEN_SHOWN]:
        open_one(seen, one)
    if ordered[OPEN_SHOWN:]:
        with st.expander(f"{wording.count(len(ordered) - OPEN_SHOWN, 'further open transaction')}"):
            for one in ordered[OPEN_SHOWN:]:
                open_one(seen, one)


def open_one(seen: Snapshot, one: OpenTransaction) -> None:
    """Shows one open transaction: its age and limit, what it withholds, what to do."""
    word = wording.open_word(one)
    with st.container(border=True, gap="xxsmall"):
        left, right = st.columns([3.2, 1], vertical_alignment="center")
        left.markdown(f"{wording.badge(word)} {wording.plain(one.why)}")
        with right:
            compare_link(seen, (one.partition, one.start_offset))
        age(one)
        st.caption(wording.plain(wording.open_advice(one)))
        if one.hanging:
            command = wording.abort_command(one, seen.bounds.topic, settings.cluster_options)
            st.code(command, language=None, wrap_lines=True)


def age(one: OpenTransaction) -> None:
    """Shows how much of its time an open transaction has used."""
    old = in_words(one.age_ms)
    if one.hanging or one.unseen or one.two_phase or not one.timeout_ms:
        # No timeout ends it, so its age is a share of nothing.
        st.progress(1.0, f"{old}, without a limit")
        return
    share = min(1.0, one.age_ms / one.timeout_ms)
    st.progress(share, f"{old} of at most {in_words(one.timeout_ms)}")


def controls(seen: Snapshot, found: pd.DataFrame, selection: TransactionsState) -> None:
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
        [p.partition for p in seen.bounds.partitions],
        index=None,
        placeholder="all",
        key="partition_of",
        on_change=changed,
    )
    columns[1].selectbox(
        "Producer id",
        transactions.producer_ids(found, selection.producer),
        index=None,
        placeholder="all",
        key="producer_of",
        on_change=changed,
        help=f"The {transactions.PRODUCERS_MAX:,} whose transactions began last, at most.",
    )
    there = set(found["outcome"]) | set(selection.outcomes)
    columns[2].pills(
        "Only these outcomes",
        [outcome for outcome in wording.TRANSACTION_WORDS if outcome in there],
        selection_mode="multi",
        format_func=wording.outcome_label,
        key="outcomes",
        on_change=changed,
        help="None chosen: every transaction is shown.",
    )


def timeline(
    seen: Snapshot,
    told: Coordination,
    selection: TransactionsState,
    shown: pd.DataFrame,
    fitting: int,
    skip: int,
    live: bool,
) -> Figure:
    """Draws the period of each transaction. Returns the chart."""
    drawn, lanes = in_lanes(seen, told.names, selection, shown)
    by_partition = _by_partition(drawn)
    hidden = int((~drawn["lane"].isin(lanes)).sum())
    drawn = drawn[drawn["lane"].isin(lanes)]

    def clicked() -> None:
        points = st.session_state["timeline"].selection.points
        if points and "customdata" in points[0]:
            st.session_state["timeline_bar"] = (
                seen.bounds.topic,
                *list(points[0]["customdata"])[:2],
            )
        topic_then, *bar = st.session_state.get("timeline_bar", ("",))
        # Clicking the same bar again deselects it. Show it anyway, because another may have been
        # chosen meanwhile.
        if topic_then == seen.bounds.topic:
            partition, first = (int(part) for part in bar)
            go(replace(selection, chosen=(partition, first)))

    figure = timeline_figure(drawn, lanes)
    here = (
        timeline_pointer(drawn, lanes, selection.chosen) if selection.chosen is not None else None
    )
    alt = (
        f"When the transactions of {seen.bounds.topic} were open, by outcome. The table has the"
        " same data."
    )
    clickable(figure, here, "timeline", clicked, alt)
    which = (
        f"All {wording.count(fitting, 'transaction')} that match are drawn and listed"
        if len(shown) == fitting
        else (
            f"Drawn and listed: {skip + 1:,} to {skip + len(shown):,} of the {fitting:,} that"
            " match, the latest first"
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
        + f"Bounds taken {seen.taken_at:%H:%M:%S} UTC"
        + (", again every 2 s while the run continues." if live else ".")
    )
    if len(shown) == fitting:
        return figure
    with st.container(horizontal=True, gap="small"):
        st.button(
            "Later ones",
            key="newer",
            icon=":material/chevron_left:",
            disabled=skip == 0,
            on_click=go,
            args=(replace(selection, skip=max(0, skip - transactions.PAGE)),),
        )
        st.button(
            "Earlier ones",
            key="older",
            icon=":material/chevron_right:",
            disabled=skip + len(shown) >= fitting,
            on_click=go,
            args=(replace(selection, skip=skip + transactions.PAGE),),
        )
    return figure


def detail(
    kafka: Services,
    seen: Snapshot,
    found: pd.DataFrame,
    told: Coordination,
    chosen: tuple[int, int],
) -> None:
    """Shows one transaction: its place, its outcome, why it ended so, and links to its records."""
    of = (found["partition"] == chosen[0]) & (found["first_offset"] == chosen[1])
    row: dict[Any, Any] = transactions.timed(found[of], int(time.time() * 1000)).to_dict("records")[
        0
    ]
    word = wording.TRANSACTION_WORDS[row["outcome"]]
    marker = None if pd.isna(row["marker_offset"]) else int(row["marker_offset"])
    with st.container(border=True, gap="small"):
        left, right = st.columns([3, 1])
        with left:
            st.markdown(f"#### Partition {chosen[0]}, offset {chosen[1]:,} {wording.badge(word)}")
            others = [partition for partition in seen.parts[chosen] if partition != chosen[0]]
            elsewhere = f"It wrote to {_partitions(others)} as well. " if others else ""
            ended = f"its marker is at {marker:,}" if marker is not None else "it has no marker yet"
            st.markdown(
                f"{wording.count(row['records'], 'record')} ({wording.data_size(row['bytes'])} as"
                f" stored) at the offsets {chosen[1]:,} to {row['last_offset']:,}; {ended}."
                f" {elsewhere}Began {wording.moment_of_ms(row['first_timestamp'])},"
                f" {'open for' if marker is None else 'took'} {in_words(row['duration_ms'])}."
            )
            explain(kafka, seen, told, chosen, row)
        with right:
            compare_link(seen, chosen, "Compare at its first offset")
            if marker is not None:
                compare_link(seen, (chosen[0], marker), "Compare at its marker")


def explain(
    kafka: Services,
    seen: Snapshot,
    told: Coordination,
    chosen: tuple[int, int],
    row: dict[Any, Any],
) -> None:
    """Explains why it ended so, and what wrote it."""
    opened = next((one for one in told.opened if (one.partition, one.start_offset) == chosen), None)
    reason = transactions.why(row["outcome"], opened, told.reasons.get(chosen))
    if reason:
        st.markdown(wording.plain(reason[0].upper() + reason[1:]) + ".")
    known = told.names.get(row["producer_id"])
    with show_errors():
        first = next(iter(records_in_window(settings, kafka, seen, *chosen, 1)), None)
    name = first.transaction if first is not None else None
    st.caption(
        f"Producer {row['producer_id']}, epoch {row['producer_epoch']}, transactional id "
        + (wording.plain(known) if known else "no longer known to any coordinator")
        + (f". In its records it is {wording.plain(name)}." if name and "/" in name else ".")
    )


def _partitions(numbers: Sequence[int]) -> str:
    return f"partition{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def compare_link(
    seen: Snapshot, place: tuple[int, int] | None, label: str = "Compare both levels"
) -> None:
    params = {"topic": seen.bounds.topic}
    if place is not None:
        params |= {"partition": str(place[0]), "offset": str(place[1])}
    st.page_link("views/compare.py", label=label, icon=":material/compare:", query_params=params)


def listing(
    seen: Snapshot,
    selection: TransactionsState,
    shown: pd.DataFrame,
    told: Coordination,
    figure: Figure,
) -> None:
    """Lists the transactions of the timeline, the latest first."""
    places: Sequence[tuple[int, int]] = [
        (int(one), int(first))
        for one, first in zip(shown["partition"], shown["first_offset"], strict=True)
    ]
    # A selection belongs to what was on the screen: the rows of another list are other
    # transactions.
    key = f"transactions {hash(tuple(places))}"

    def chosen() -> None:
        cells = st.session_state[key].selection.cells
        if cells and cells[0][0] < len(places):
            go(replace(selection, chosen=places[cells[0][0]]))

    listed = transactions.table(shown, seen.parts, told.names, told.opened, told.reasons)
    st.dataframe(
        transactions.tinted(listed, shown, selection.chosen),
        hide_index=True,
        height=min(TABLE_PX, ROW_PX * (len(shown) + 1) + 10),
        row_height=ROW_PX,
        key=key,
        on_select=chosen,
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
            "end (UTC)": st.column_config.DatetimeColumn(format="HH:mm:ss.SSS", width=100),
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
        said = f"{wording.count(len(listed), 'transaction')}, one row per partition. Times are UTC."
        export.offer_table(
            f"{seen.bounds.topic}-transactions", lambda: listed, said, lambda: figure
        )


def producers(told: Coordination) -> None:
    """Lists the producers that wrote here, as far as the leaders remember."""
    if told.producers.empty:
        return
    with st.expander(
        f"{wording.count(len(told.producers), 'producer')} remembered by the partitions’ leaders",
        icon=":material/group:",
    ):
        listed = pd.DataFrame(
            {
                "partition": told.producers["partition"],
                "producer id": told.producers["producer_id"],
                "epoch": told.producers["producer_epoch"],
                "transactional id": told.producers["transactional_id"],
                "coordinator's state": told.producers["state"],
                "late requests": told.producers["transactional_id"].map(
                    lambda name: wording.EXPOSED_WORDS[told.exposed.get(name)]
                ),
                "open from": told.producers["open_from"],
                "last sequence": told.producers["last_sequence"],
                "last wrote (UTC)": pd.to_datetime(
                    told.producers["last_timestamp"], unit="ms", errors="coerce"
                ),
                "coordinator epoch": told.producers["coordinator_epoch"],
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
            " otherwise. " + (wording.EXPOSED if any(told.exposed.values()) else "")
        )


topic.page(settings, "Transactions", body)
