"""A topic's records: a search, and one record in full."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from topicproof.app import wording
from topicproof.app.session.access import may, open_history, show_errors
from topicproof.app.session.connection import decoders, page_settings
from topicproof.app.session.page_masks import hidden_fields
from topicproof.app.session.record_reads import search_results, unmasked_records
from topicproof.app.shell import downloads
from topicproof.app.shell.url_state import (
    NEEDLE_CHARACTERS,
    NEWEST,
    OLDEST,
    TopicsState,
    write_topics,
)
from topicproof.app.topic import tables
from topicproof.app.topic.field_columns import (
    COLUMNS_MAX,
    as_path,
    field_columns,
    offered,
    with_fields,
)
from topicproof.app.topic.payload import RowDecoder, decoded, download, payload
from topicproof.app.topic.snapshot import Snapshot
from topicproof.backend.formats.formats import Part
from topicproof.backend.history.audit import allow
from topicproof.backend.kafka.browse import search as browse
from topicproof.backend.kafka.browse.search import KEPT_BYTES_MAX, Row, Search, Stop
from topicproof.backend.kafka.log.fates import DATA_FATES
from topicproof.backend.services.keeper import Services
from topicproof.backend.trust.identity import Action
from topicproof.backend.trust.masking import masked_part

TABLE_PX = 560
ROW_PX = 28
PARTITION_PX, OFFSET_PX, TIME_PX, NEEDLE_PX = 110, 120, 175, 140
ALL = "all"
WAYS_ON = 3
"""Unfinished partitions that get a button to go on."""
NEEDLES = ("key", "value", "header")
HINTS = {
    "header": " Each header is taken as name=value.",
    "value": ' With a schema registry also in the decoded JSON, such as "id": 5.',
}


def go(selection: TopicsState) -> None:
    """Moves the page to this view."""
    st.query_params.from_dict(write_topics(selection))


def records(kafka: Services, snapshot: Snapshot, selection: TopicsState) -> None:
    """Shows the record browser."""
    conditions(snapshot, selection)
    progress = st.empty()
    partitions = (
        [snapshot.partition(selection.partition)]
        if selection.partition is not None
        else snapshot.bounds.partitions
    )
    total = sum(min(browse.SCAN_OFFSETS_MAX, p.hw - p.start) for p in partitions)

    def on_progress(offsets: int, matches: int) -> None:
        progress.progress(
            min(1.0, offsets / max(1, total)),
            f"{offsets:,} offsets read, {wording.count(matches, 'record')} found",
        )

    with show_errors(), st.spinner("Reading…"):
        results = search_results(page_settings(), kafka, snapshot, selection, on_progress)
    progress.empty()
    outcome(snapshot, selection, results)
    rows = [row for result in results.values() for row in result.rows]
    chosen = next(
        (row for row in rows if (row.partition, row.offset) == selection.record),
        next(iter(rows), None),
    )
    if chosen is None:
        return
    left, right = st.columns([2.1, 1], gap="medium")
    with left:
        listing(selection, rows, chosen)
    with right:
        detail(kafka, snapshot, chosen)


def conditions(snapshot: Snapshot, selection: TopicsState) -> None:
    """Asks where a search begins and what a record must contain."""
    state = st.session_state
    p = None if selection.partition is None else snapshot.partition(selection.partition)
    state["partition"] = ALL if selection.partition is None else selection.partition
    state["first"], state["time"], state["until"] = (
        selection.offset,
        selection.time or "",
        selection.until or "",
    )
    keep_needles(selection)
    state["fate"] = list(selection.fates)
    state["order"] = NEWEST if selection.newest else OLDEST
    partitions = [bounds.partition for bounds in snapshot.bounds.partitions]

    def partition_chosen() -> None:
        partition = None if state["partition"] == ALL else state["partition"]
        go(replace(selection, partition=partition, offset=None, record=None))

    def offset_chosen() -> None:
        go(replace(selection, offset=state["first"], time=None, record=None))

    def time_chosen() -> None:
        begin = state["time"].strip() or None
        go(
            replace(
                selection,
                offset=selection.offset if begin is None else None,
                time=begin,
                until=state["until"].strip() or None,
                record=None,
            )
        )

    def changed() -> None:
        words = {name: state[name].strip() for name in NEEDLES}
        newest = state["order"] == NEWEST
        go(replace(selection, **words, newest=newest, fates=tuple(state["fate"]), record=None))

    # Not in columns: in a narrow window they wrap, where columns would cut their words.
    row = st.container(horizontal=True, vertical_alignment="bottom")
    row.selectbox(
        "Partition",
        partitions if len(partitions) == 1 else [ALL, *partitions],
        key="partition",
        on_change=partition_chosen,
        width=PARTITION_PX,
        help="A search of all partitions begins where Kafka's partitioner puts the key.",
    )
    row.number_input(
        "Below offset" if selection.newest else "From offset",
        min_value=p.start if p else 0,
        max_value=p.hw if p else 0,
        value=None,
        step=1,
        placeholder="" if p is None else f"{p.hw if selection.newest else p.start}",
        key="first",
        on_change=offset_chosen,
        width=OFFSET_PX,
        disabled=p is None,
        help="Choose one partition to begin at an offset."
        if p is None
        else (
            f"Partition {selection.partition} holds the offsets {p.start:,} to"
            f" {max(p.start, p.hw - 1):,}."
        ),
    )
    row.text_input(
        "Below a time (UTC)" if selection.newest else "From a time (UTC)",
        placeholder="2026-01-31 12:00:00",
        key="time",
        on_change=time_chosen,
        width=TIME_PX,
        help="The search of each partition begins at its first record of that time or a later"
        " one. With the newest records first, it begins below that record.",
    )
    row.text_input(
        "Down to a time (UTC)" if selection.newest else "Until a time (UTC)",
        placeholder="2026-01-31 12:05:00",
        key="until",
        on_change=time_chosen,
        width=TIME_PX,
        help="The search of each partition ends before its first record with that timestamp or a"
        " later one. With the newest records first, it ends with that record.",
    )
    needles([row] * len(NEEDLES), changed, NEEDLE_PX)
    present = [fate for fate in DATA_FATES if snapshot.fates[fate] or fate in selection.fates]
    with row:
        st.segmented_control(
            "Order of the search",
            [OLDEST, NEWEST],
            format_func=lambda order: f"{order.capitalize()} first",
            key="order",
            on_change=changed,
            required=True,
            label_visibility="collapsed",
        )
        st.pills(
            "Only these fates",
            present,
            selection_mode="multi",
            format_func=wording.fate_label,
            key="fate",
            on_change=changed,
            label_visibility="collapsed",
        )


def keep_needles(selection: TopicsState) -> None:
    """Puts the search words of the URL into their fields."""
    for name in NEEDLES:
        st.session_state[name] = getattr(selection, name)


def needles(
    slots: Sequence[DeltaGenerator],
    changed: Callable[[], None],
    width: int | Literal["stretch"] = "stretch",
) -> None:
    """Asks what a record must contain."""
    for slot, name in zip(slots, NEEDLES, strict=True):
        slot.text_input(
            f"{name.capitalize()} contains",
            key=name,
            max_chars=NEEDLE_CHARACTERS,
            on_change=changed,
            placeholder="name=value" if name == "header" else "text or 0x…",
            help="Text in upper or lower case, or bytes in hexadecimal after 0x."
            + HINTS.get(name, ""),
            width=width,
        )


def outcome(snapshot: Snapshot, selection: TopicsState, results: Mapping[int, Search]) -> None:
    """Shows how far the search came, and how to continue."""
    partitions = [p.partition for p in snapshot.bounds.partitions]
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(wording.search_sentence(results, snapshot.bounds))
        left = [
            partition
            for partition in (partitions if selection.partition is None else [selection.partition])
            if partition not in results or results[partition].stop is not Stop.END
        ]
        for partition in left[:WAYS_ON]:
            result = results.get(partition)
            direction = "below" if selection.newest else "from"
            label = f"{direction} offset {result.reached:,}" if result else "not searched yet"
            st.button(
                f"Go on {label}"
                if selection.partition is not None
                else f"More of partition {partition}, {label}",
                key=f"go_on {partition}",
                icon=":material/skip_next:",
                on_click=go,
                args=(
                    replace(
                        selection,
                        partition=partition,
                        offset=result.reached if result else None,
                        time=None,
                        record=None,
                    ),
                ),
            )
        if len(left) > WAYS_ON:
            st.caption(
                f"{wording.count(len(left) - WAYS_ON, 'more partition')} not searched to the end."
                " Choose one above."
            )
    if (selection.time or selection.until) and all(
        result.first == result.end for result in results.values()
    ):
        where = "this topic" if selection.partition is None else f"partition {selection.partition}"
        between = selection.until is not None or selection.newest
        phrase = "lies between these times" if between else "has that timestamp or a later one"
        st.info(f"No record in {where} {phrase}.")
    elif not any(result.rows for result in results.values()):
        st.info("No record matches there. Markers and holes are not records; Compare shows them.")
        if selection.partition is not None and len(partitions) > 1:
            st.button(
                "Search all partitions",
                icon=":material/search:",
                on_click=go,
                args=(replace(selection, partition=None, offset=None, record=None),),
            )


def listing(selection: TopicsState, rows: Sequence[Row], chosen: Row) -> None:
    """Lists the records found."""
    ends = (rows[0].offset, rows[-1].offset)
    key = f"rows {selection.partition} {ends} {selection.wanted} {selection.newest}"

    def picked() -> None:
        cells = st.session_state[key].selection.cells
        if cells and cells[0][0] < len(rows):
            row = rows[cells[0][0]]
            go(replace(selection, record=(row.partition, row.offset)))

    formats = decoders(page_settings())
    decoder = RowDecoder(formats, selection.topic)
    choose_fields(selection, offered(map(decoder.decode, rows)))
    table = tables.row_table(rows, selection.partition is None, decoder)
    if selection.fields:
        table = with_fields(table, field_columns(map(decoder.decode, rows), selection.fields))
    where = "all partitions" if selection.partition is None else f"partition {selection.partition}"
    st.dataframe(
        tables.row_tints(table, rows, chosen),
        hide_index=True,
        height=min(TABLE_PX, ROW_PX * (len(table) + 1) + 10),
        row_height=ROW_PX,
        key=key,
        on_select=picked,
        selection_mode="single-cell",
        placeholder="null",
        alt=f"Records of {selection.topic}, {where}",
        column_config=columns()
        | (
            {"value": st.column_config.TextColumn(width=105)} if selection.partition is None else {}
        ),
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(
            "Click a row to see the whole record; “Compare” opens its offset at both levels in a"
            " new tab."
        )
        cut = (
            f" Keys, values and headers are cut at {KEPT_BYTES_MAX:,} bytes; `size` gives their"
            " full length."
        )
        place = "all" if selection.partition is None else selection.partition
        downloads.offer(
            selection.topic, f"{selection.topic}-{place}-{ends[0]}", rows, formats, note=cut
        )


def choose_fields(selection: TopicsState, paths: Sequence[str]) -> None:
    """Asks which fields of the values are columns, if there are any."""
    if not paths and not selection.fields:
        return
    st.session_state["fields"] = list(selection.fields)

    def chosen() -> None:
        paths = []
        for text in st.session_state["fields"]:
            try:
                paths.append(as_path(text))
            except ValueError as error:
                st.toast(wording.plain(f"{text} is not a column: {error}."))
        go(replace(selection, fields=tuple(dict.fromkeys(paths))))

    st.multiselect(
        "Fields as columns",
        list(dict.fromkeys([*selection.fields, *paths])),
        key="fields",
        on_change=chosen,
        max_selections=COLUMNS_MAX,
        accept_new_options=True,
        placeholder="Fields of the value as columns",
        label_visibility="collapsed",
        help="Choose fields, or type a path such as $.items[0].id.",
    )


def columns() -> dict[str, Any]:
    return {
        "partition": st.column_config.NumberColumn(width=65),
        "offset": st.column_config.NumberColumn(width=75),
        "fate": st.column_config.TextColumn(width=105),
        "timestamp (UTC)": st.column_config.TextColumn(width=175),
        "key": st.column_config.TextColumn(width=70),
        "value": st.column_config.TextColumn(width=170),
        "size": st.column_config.TextColumn(width=70, alignment="right"),
        "open": st.column_config.LinkColumn("", display_text="Compare", width=75),
        "producer": st.column_config.NumberColumn(format="%d", width=75),
    }


def detail(kafka: Services, snapshot: Snapshot, row: Row) -> None:
    """Shows one record, with links to its surroundings."""
    name = snapshot.bounds.topic
    place = {"topic": name, "partition": str(row.partition), "offset": str(row.offset)}

    settings = page_settings()
    history, fields = open_history(settings), hidden_fields(settings, name)

    # It runs when the button is pressed, outside of the page, where nobody is known.
    def saved(part: str, value: bytes) -> bytes:
        what = f"the {part} of {name}-{row.partition}, offset {row.offset}"
        allow(history, Action.EXPORT, what)
        if not cut(value):
            return value
        (record,) = unmasked_records(settings, kafka, snapshot, row.partition, row.offset, 1)
        return masked_part(part, getattr(record, part), fields) or b""

    with st.container(border=True):
        st.markdown(f"#### Offset {row.offset:,} {wording.badge(wording.FATE_WORDS[row.fate])}")
        st.caption(f"{wording.moment_of_ms(row.timestamp_ms)} · {wording.data_size(row.size)}")
        st.page_link(
            "views/compare.py",
            label="Compare both levels",
            icon=":material/compare:",
            query_params=place,
        )
        parts: dict[Part, bytes | None] = {"key": row.key, "value": row.value}
        formats = decoders(page_settings())
        for part, value in parts.items():
            payload(part.capitalize(), value, cut(value))
            decoded(row, name, formats, part)
        with st.container(horizontal=True, gap="small"):
            for part, value in parts.items():
                if value and may(Action.EXPORT):
                    download(
                        f"Whole {part}" if cut(value) else f"Save {part}",
                        f"{name}-{row.partition}-{row.offset}.{part}",
                        partial(saved, part, value),
                    )
        if row.headers:
            st.caption(wording.count(len(row.headers), "header"))
            st.dataframe(
                tables.header_table(row.headers),
                hide_index=True,
                placeholder="null",
                alt="The headers of the record",
                column_config=tables.HEADER_WIDTHS,
            )


def cut(value: bytes | None) -> bool:
    """Whether the search kept only the beginning of the value."""
    return value is not None and len(value) == KEPT_BYTES_MAX
