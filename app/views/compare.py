"""Compare: one topic, read_uncommitted beside read_committed, on one axis of offsets. The URL
determines what is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import streamlit as st

from topicproof.app import wording
from topicproof.app.session.access import show_errors
from topicproof.app.session.connection import decoders, page_settings
from topicproof.app.session.record_reads import committed_retry, records_in_window
from topicproof.app.session.reports import verdict_findings
from topicproof.app.shell import downloads
from topicproof.app.shell.places import if_drawn
from topicproof.app.shell.url_state import (
    BOTH,
    COMMITTED,
    LEVELS,
    UNCOMMITTED,
    WINDOW,
    CompareState,
    read_compare,
    verdict_params,
    write_compare,
)
from topicproof.app.topic import tables, topic_header, topic_strip
from topicproof.app.topic.payload import RowDecoder, decoded, payload, verbatim
from topicproof.app.topic.record_detail import (
    TRANSACTION_SHOWN,
    show_headers,
    transaction_link,
    why_aborted,
)
from topicproof.app.topic.snapshot import FATES_NEXT, Snapshot, next_of
from topicproof.app.topic.topic_findings import TopicFindings, first_copy
from topicproof.backend.characters import visible
from topicproof.backend.kafka.browse.records import WINDOW_BYTES_MAX, Record
from topicproof.backend.kafka.log import fates
from topicproof.backend.services.keeper import Services
from topicproof.validators.finding import Fate
from topicproof.validators.lineage.headers import parse_lineage
from topicproof.validators.sentences import counted

TABLE_PX = 560
PARTITION_PX, OFFSET_PX = 110, 150
ROW_PX = 28
HEAD_PX = 71
SHORT_BYTES = 16  # Key and value are side by side if neither is longer than this.
LEVEL_NAMES = {BOTH: "both", UNCOMMITTED: "uncommitted", COMMITTED: "committed"}

settings = page_settings()


def go(selection: CompareState) -> None:
    """Moves the page to this place."""
    st.query_params.from_dict(write_compare(selection))


def body(kafka: Services, snapshot: Snapshot, live: bool) -> None:
    """Draws everything that depends on the topic's snapshot."""
    if topic_header.empty(snapshot):
        return
    selection, notices = read_compare(
        st.query_params, snapshot.bounds, next_of(snapshot.ranges, -1, -1, Fate.ABORTED)
    )
    for notice in notices:
        st.warning(notice, icon=":material/info:")
    with show_errors():
        topic_findings = (
            None
            if live
            else verdict_findings(settings, selection.topic, selection.run, selection.stage)
        )

    def cell_chosen(partition: int, offset: int) -> None:
        go(replace(selection, partition=partition, offset=offset, record=offset))

    strip = topic_strip.head(
        kafka,
        snapshot,
        (selection.partition, selection.record),
        cell_chosen,
        live=live,
        topic_findings=topic_findings,
    )
    controls(snapshot, selection)
    with show_errors():
        records = window(kafka, snapshot, selection)
        chosen = next((record for record in records if record.offset == selection.record), None)
        if chosen is None:
            chosen = next(
                iter(
                    records_in_window(
                        settings, kafka, snapshot, selection.partition, selection.record, 1
                    )
                ),
                None,
            )
    left, right = st.columns([2.1, 1], gap="medium")
    with left:
        listing(snapshot, selection, records, strip)
    with right:
        if chosen is not None:
            detail(kafka, snapshot, selection, chosen, topic_findings)


def window(kafka: Services, snapshot: Snapshot, selection: CompareState) -> tuple[Record, ...]:
    """Returns the records of the window. If they are too large together, and it would end before
    the chosen offset, it begins there."""
    first, partition = selection.first, selection.partition
    records = records_in_window(settings, kafka, snapshot, partition, first, WINDOW)
    if records and records[-1].offset < selection.offset:
        first = selection.offset
        records = records_in_window(settings, kafka, snapshot, partition, first, WINDOW)
    return records


def controls(snapshot: Snapshot, selection: CompareState) -> None:
    """Asks for the place, the level and the fates."""
    state = st.session_state
    state["partition"], state["offset"] = selection.partition, selection.offset
    state["level"], state["fate"] = selection.level, list(selection.fates)
    p = snapshot.partition(selection.partition)
    numbers = [bounds.partition for bounds in snapshot.bounds.partitions]

    def partition_chosen() -> None:
        start = snapshot.partition(state["partition"]).start
        go(replace(selection, partition=state["partition"], offset=start, record=start))

    def offset_chosen() -> None:
        go(replace(selection, offset=state["offset"], record=state["offset"]))

    def level_chosen() -> None:
        go(replace(selection, level=state["level"] or BOTH))

    def fate_chosen() -> None:
        go(replace(selection, fates=tuple(state["fate"])))

    # Not in columns: in a narrow window they wrap, where columns would cut their words.
    row = st.container(horizontal=True, vertical_alignment="bottom")
    row.selectbox(
        "Partition",
        numbers,
        key="partition",
        on_change=if_drawn(partition_chosen),
        width=PARTITION_PX,
    )
    row.number_input(
        "Offset",
        min_value=p.start,
        max_value=max(p.start, p.hw - 1),
        step=1,
        key="offset",
        on_change=if_drawn(offset_chosen),
        width=OFFSET_PX,
        help=(
            f"Partition {selection.partition} holds the offsets {p.start:,} to"
            f" {max(p.start, p.hw - 1):,}."
        ),
    )
    row.segmented_control(
        "Isolation level",
        LEVELS,
        format_func=lambda level: LEVEL_NAMES[level],
        key="level",
        on_change=if_drawn(level_chosen),
        required=True,
        help=(
            "Which isolation level the table shows: read_uncommitted, read_committed, or both in"
            " one row per offset."
        ),
    )
    present = [fate for fate in fates.FATES if snapshot.fates[fate] or fate in selection.fates]
    row.pills(
        "Only these fates",
        present,
        selection_mode="multi",
        format_func=wording.fate_label,
        key="fate",
        on_change=if_drawn(fate_chosen),
        help="None chosen: every offset of the window is shown.",
    )
    jumps(snapshot, selection)


def jumps(snapshot: Snapshot, selection: CompareState) -> None:
    """Offers the next stretch of each fate in the topic, and the neighbouring windows."""
    p = snapshot.partition(selection.partition)
    with st.container(horizontal=True, gap="small"):
        for fate in FATES_NEXT:
            target = next_of(snapshot.ranges, selection.partition, selection.record, fate)
            if target is not None:
                st.button(
                    f"Next {wording.FATE_WORDS[fate].word}",
                    key=f"next_{fate.lower()}",
                    icon=":material/skip_next:",
                    on_click=go,
                    args=(
                        replace(selection, partition=target[0], offset=target[1], record=target[1]),
                    ),
                    help=f"To partition {target[0]}, offset {target[1]:,}.",
                )
        earlier, later = (
            max(p.start, selection.offset - WINDOW),
            min(p.hw - 1, selection.offset + WINDOW),
        )
        st.button(
            f"{WINDOW} earlier",
            key="earlier",
            icon=":material/chevron_left:",
            disabled=selection.offset <= p.start,
            on_click=go,
            args=(replace(selection, offset=earlier, record=earlier),),
        )
        st.button(
            f"{WINDOW} later",
            key="later",
            icon=":material/chevron_right:",
            disabled=selection.offset >= p.hw - 1,
            on_click=go,
            args=(replace(selection, offset=later, record=later),),
        )


def not_shown(snapshot: Snapshot, selection: CompareState, records: Sequence[Record]) -> str:
    """Returns a sentence about the offsets of the window that its budget left out; empty if it left
    out none."""
    begin = records[-1].offset + 1
    end = min(records[0].offset + WINDOW, snapshot.partition(selection.partition).hw)
    if begin >= end:
        return ""
    return (
        f"Not shown: {counted(end - begin, 'offset')} of this window, from {begin:,} on. Its"
        f" records at both levels may take {wording.data_size(WINDOW_BYTES_MAX)} of memory. Go to"
        f" offset {begin:,} for what follows."
    )


def listing(
    snapshot: Snapshot,
    selection: CompareState,
    records: Sequence[Record],
    strip: downloads.Chart,
) -> None:
    """Lists both levels, offset by offset."""
    visible = [
        record for record in records if not selection.fates or record.fate in selection.fates
    ]
    if not records:
        st.info("This partition is empty.")
        return
    if sentence := not_shown(snapshot, selection, records):
        st.info(sentence, icon=":material/info:")
    first, last = records[0].offset, records[-1].offset
    window = f"Partition {selection.partition}, offsets {first:,} to {last:,}"
    if not visible:
        words = " or ".join(wording.FATE_WORDS[fate].word for fate in selection.fates)
        st.info(f"{window}: none of these {len(records):,} is {words}. Use “Next” to go to one.")
        return

    # A selection belongs to what was on the screen: the rows of another window are other records.
    key = f"records {selection.partition} {first} {selection.level} {' '.join(selection.fates)}"

    def chosen() -> None:
        cells = st.session_state[key].selection.cells
        if cells and cells[0][0] < len(visible):
            go(replace(selection, record=visible[cells[0][0]].offset))

    formats = decoders(page_settings())
    table = tables.record_table(visible, selection.level, RowDecoder(formats, selection.topic))
    st.dataframe(
        tables.tinted(table, visible, selection.record),
        hide_index=True,
        height=min(TABLE_PX, HEAD_PX + ROW_PX * len(visible) + 3),
        row_height=ROW_PX,
        key=key,
        on_select=if_drawn(chosen),
        selection_mode="single-cell",
        placeholder="null",
        alt=f"{window} of {selection.topic}, one row per offset, at both isolation levels",
        column_config=tables.widths(table),
    )
    filtered = (
        f"{len(visible):,} of the {len(records):,} offsets"
        if selection.fates
        else f"all {len(records):,} offsets"
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(f"{window}: {filtered}. Click a row to see the whole record.")
        downloads.offer(
            selection.topic,
            f"{selection.topic}-{selection.partition}-{first}",
            visible,
            formats,
            strip,
        )


def detail(
    kafka: Services,
    snapshot: Snapshot,
    selection: CompareState,
    record: Record,
    topic_findings: TopicFindings | None,
) -> None:
    """Shows one offset: what the verdict found there, why a read_committed consumer gets it or not,
    and its content."""
    word = wording.FATE_WORDS[record.fate]
    with st.container(border=True):
        st.markdown(f"#### Offset {record.offset:,} {wording.badge(word)}")
        st.caption(f"{wording.plain(selection.topic)}, partition {record.partition}")
        findings(snapshot, selection, topic_findings)
        st.markdown(f"**Does a read\\_committed consumer get it?** {wording.plain(record.why)}")
        if record.fate is Fate.ABORTED:
            with show_errors():
                instead = committed_retry(settings, kafka, snapshot, record)
            if instead is not None:
                st.button(
                    f"Its input was committed at {instead:,}",
                    key="instead",
                    icon=":material/redo:",
                    on_click=go,
                    args=(replace(selection, offset=instead, record=instead),),
                    help=(
                        "The same output of the same input, by a later attempt, on this partition."
                    ),
                )
            why_aborted(kafka, snapshot, selection.partition, record.offset)
        if record.transaction is not None:
            st.caption("Transaction")
            verbatim(visible(record.transaction[:TRANSACTION_SHOWN]))
            transaction_link(snapshot, selection.partition, record.offset)
        if record.timestamp_ms is None:
            return
        lineage = None if record.lineage is None else parse_lineage(record.lineage.encode())
        if lineage is not None:
            st.page_link(
                "views/compare.py",
                label=f"Its input: p{lineage.partition}, {lineage.offset:,}",
                icon=":material/conversion_path:",
                query_params={
                    "topic": lineage.topic,
                    "partition": str(lineage.partition),
                    "offset": str(lineage.offset),
                    **verdict_params(selection.run, selection.stage),
                },
                help="Partition and offset in the source: lineage, from the record's header.",
            )
        beside = len(record.key or b"") <= SHORT_BYTES and len(record.value or b"") <= SHORT_BYTES
        left, right = st.columns(2) if beside else (st.container(), st.container())
        with left:
            payload("Key", record.key)
        with right:
            payload("Value", record.value)
        formats = decoders(page_settings())
        decoded(record, selection.topic, formats, "key")
        decoded(record, selection.topic, formats, "value")
        show_headers(record.headers)
        st.caption(f"Timestamp {wording.moment_of_ms(record.timestamp_ms)}")


def findings(
    snapshot: Snapshot, selection: CompareState, topic_findings: TopicFindings | None
) -> None:
    """Shows what the topic's verdict found at the chosen offset, with a way to the first copy of a
    duplicate."""
    if topic_findings is None:
        return
    for finding in topic_findings.at(selection.partition, selection.record).to_dict("records"):
        st.warning(
            wording.plain(finding["why"]),
            title=wording.kind_label(finding["kind"]),
        )
        first = first_copy(finding)
        if first is not None and first[0] in {p.partition for p in snapshot.bounds.partitions}:
            partition, offset = first
            st.button(
                f"Its first copy: partition {partition}, offset {offset:,}",
                key="first_copy",
                icon=":material/content_copy:",
                on_click=go,
                args=(replace(selection, partition=partition, offset=offset, record=offset),),
            )


topic_header.page(settings, topic_header.COMPARE_TAB, body)
