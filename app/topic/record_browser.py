"""A topic's records: a search, its list, and one record beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from topicproof.app import wording
from topicproof.app.session.access import show_errors
from topicproof.app.session.connection import decoders, page_settings
from topicproof.app.session.record_reads import fills_a_list, search_results
from topicproof.app.shell import downloads
from topicproof.app.shell.places import if_drawn
from topicproof.app.shell.url_state import (
    FURTHER_MAX,
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
from topicproof.app.topic.payload import RowDecoder
from topicproof.app.topic.record_detail import NEXT_KEY, PREVIOUS_KEY, detail
from topicproof.app.topic.snapshot import Snapshot
from topicproof.backend.kafka.browse import search as browse
from topicproof.backend.kafka.browse.field_conditions import (
    EXAMPLE,
    FILTER_CHARACTERS,
    parse_conditions,
)
from topicproof.backend.kafka.browse.search import KEPT_BYTES_MAX, Row, Search, Stop
from topicproof.backend.kafka.log.fates import DATA_FATES
from topicproof.backend.services.keeper import Services

TABLE_PX = 560
ROW_PX = 28
PARTITION_PX, OFFSET_PX, TIME_PX, NEEDLE_PX, WHERE_PX = 110, 120, 175, 140, 360
ALL = "all"
NEEDLES = ("key", "value", "header")
HINTS = {
    "header": " Each header is taken as name=value.",
    "value": ' With a schema registry also in the decoded JSON, such as "id": 5.',
}
WHERE_HELP = f"""Fields of a record, such as `{EXAMPLE} and headers.region != eu`.

`$` is the value, `key` the key, `headers.NAME` a header. Operators: `=` `!=` `<` `<=` `>` `>=`
`contains`. Put quotes around a text with spaces. A field that is missing is `null`."""
BESIDE = 1.35, 1.0
"""Widths of the list and of the record beside it."""
ALONE = 1.0, 0.001
"""The same while no record is open. Two columns all the time: the list keeps its position."""
SHORT_COLUMNS = ("partition", "offset", "fate", "key", "value")
"""Columns of the list beside an open record, which shows the others."""
LEFT_OUT = ("headers", "producer")
"""Columns that an open record shows: without them, values have more room."""


def go(selection: TopicsState) -> None:
    """Moves the page to this view."""
    st.query_params.from_dict(write_topics(selection))


def with_kept_fields(selection: TopicsState) -> TopicsState:
    """Returns the selection with the columns that were chosen for the topic before, unless the
    address names some. A tab that leads back here names none."""
    if "fields" in st.query_params:
        return selection
    return replace(selection, fields=_kept_fields().get(selection.topic, ()))


def _kept_fields() -> dict[str, tuple[str, ...]]:
    """Returns the columns that this person chose, by topic."""
    fields: dict[str, tuple[str, ...]] = st.session_state.setdefault("fields_of_topics", {})
    return fields


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
    rows = in_order(selection, [row for result in results.values() for row in result.rows])
    if not rows:
        return
    chosen = opened(selection, rows)

    def show(row: Row | None) -> None:
        if row is None and chosen is not None:
            st.session_state["closed_record"] = place_of(chosen)
        go(replace(selection, record=None if row is None else place_of(row)))

    if selection.record is not None and chosen is None:
        partition, offset = selection.record
        st.caption(
            f"Partition {partition}, offset {offset:,} is not in this list. Begin there to see it,"
            " or remove conditions."
        )
    left, right = st.columns(ALONE if chosen is None else BESIDE, gap="medium")
    with left:
        listing(selection, rows, chosen)
    if chosen is not None:
        with right:
            detail(kafka, snapshot, rows, chosen, show)


def place_of(row: Row) -> tuple[int, int]:
    return row.partition, row.offset


def in_order(selection: TopicsState, rows: list[Row]) -> list[Row]:
    """Returns the rows of several partitions by time. Those of one are in order already."""
    if selection.partition is not None:
        return rows
    return sorted(rows, key=lambda row: row.timestamp_ms, reverse=selection.newest)


def opened(selection: TopicsState, rows: Sequence[Row]) -> Row | None:
    """Returns the record to show beside the list: the chosen one, or the only one, unless somebody
    has closed it."""
    if selection.record is None and len(rows) == 1:
        is_closed = st.session_state.get("closed_record") == place_of(rows[0])
        return None if is_closed else rows[0]
    return next((row for row in rows if place_of(row) == selection.record), None)


def conditions(snapshot: Snapshot, selection: TopicsState) -> None:
    """Asks where a search begins and what a record must contain."""
    state = st.session_state
    state["partition"] = ALL if selection.partition is None else selection.partition
    state["order"] = NEWEST if selection.newest else OLDEST
    keep_needles(selection)

    def search(**changes: Any) -> None:
        go(replace(selection, record=None, further=0, **changes))

    def partition_chosen() -> None:
        partition = None if state["partition"] == ALL else state["partition"]
        search(partition=partition, offset=None)

    def changed() -> None:
        words = {name: state[name].strip() for name in NEEDLES}
        search(**words, newest=state["order"] == NEWEST, fates=tuple(state["fate"]))

    # Not in columns: in a narrow window they wrap, where columns would cut their words.
    row = st.container(horizontal=True, vertical_alignment="bottom")
    where(row, selection, search)
    needles([row], changed, NEEDLE_PX, NEEDLES[:1])
    partitions = [bounds.partition for bounds in snapshot.bounds.partitions]
    row.selectbox(
        "Partition",
        partitions if len(partitions) == 1 else [ALL, *partitions],
        key="partition",
        on_change=if_drawn(partition_chosen),
        width=PARTITION_PX,
        help="A search of all partitions begins where Kafka's partitioner puts the key.",
    )
    row.segmented_control(
        "Order of the search",
        [NEWEST, OLDEST],
        format_func=lambda order: f"{order.capitalize()} first",
        key="order",
        on_change=if_drawn(changed),
        required=True,
        label_visibility="collapsed",
    )
    active = sum(
        value not in (None, "")
        for value in (
            selection.value,
            selection.header,
            selection.offset,
            selection.time,
            selection.until,
        )
    )
    with row.popover(f"More conditions ({active})" if active else "More conditions"):
        needles([st] * 2, changed, "stretch", NEEDLES[1:])
        begin_and_end(snapshot, selection, search)
    present = [fate for fate in DATA_FATES if snapshot.fates[fate] or fate in selection.fates]
    state["fate"] = list(selection.fates)
    row.pills(
        "Only these fates",
        present,
        selection_mode="multi",
        format_func=wording.fate_label,
        key="fate",
        on_change=if_drawn(changed),
        label_visibility="collapsed",
    )


def where(row: DeltaGenerator, selection: TopicsState, search: Callable[..., None]) -> None:
    """Asks for conditions on fields. What cannot be parsed stays in its box, with the reason."""
    state = st.session_state
    topic, wrong = state.get("where_wrong", ("", ""))
    wrong = wrong if topic == selection.topic else ""
    state["where"] = wrong or selection.where

    def changed() -> None:
        text = state["where"].strip()
        try:
            parse_conditions(text)
        except ValueError:
            state["where_wrong"] = selection.topic, text
            return
        state["where_wrong"] = "", ""
        search(where=text)

    row.text_input(
        "Filter by fields",
        key="where",
        max_chars=FILTER_CHARACTERS,
        on_change=if_drawn(changed),
        placeholder=EXAMPLE,
        help=WHERE_HELP,
        width=WHERE_PX,
    )
    if wrong:
        try:
            parse_conditions(wrong)
        except ValueError as error:
            st.error(f"The filter is not applied: {wording.plain(str(error))}.")


def begin_and_end(snapshot: Snapshot, selection: TopicsState, search: Callable[..., None]) -> None:
    """Asks for the offset or the time where a search begins, and for the time where it ends."""
    state = st.session_state
    p = None if selection.partition is None else snapshot.partition(selection.partition)
    state["first"], state["time"] = selection.offset, selection.time or ""
    state["until"] = selection.until or ""

    def offset_chosen() -> None:
        search(offset=state["first"], time=None, newest=selection.newest)

    def time_chosen() -> None:
        begin = state["time"].strip() or None
        search(
            offset=selection.offset if begin is None else None,
            time=begin,
            until=state["until"].strip() or None,
        )

    st.number_input(
        "Below offset" if selection.newest else "From offset",
        min_value=p.start if p else 0,
        max_value=p.hw if p else 0,
        value=None,
        step=1,
        placeholder="" if p is None else f"{p.hw if selection.newest else p.start}",
        key="first",
        on_change=if_drawn(offset_chosen),
        disabled=p is None,
        help="Choose one partition to begin at an offset."
        if p is None
        else (
            f"Partition {selection.partition} holds the offsets {p.start:,} to"
            f" {max(p.start, p.hw - 1):,}."
        ),
    )
    st.text_input(
        "Below a time (UTC)" if selection.newest else "From a time (UTC)",
        placeholder="2026-01-31 12:00:00",
        key="time",
        on_change=if_drawn(time_chosen),
        help="The search of each partition begins at its first record of that time or a later"
        " one. With the newest records first, it begins below that record.",
    )
    st.text_input(
        "Down to a time (UTC)" if selection.newest else "Until a time (UTC)",
        placeholder="2026-01-31 12:05:00",
        key="until",
        on_change=if_drawn(time_chosen),
        help="The search of each partition ends before its first record with that timestamp or a"
        " later one. With the newest records first, it ends with that record.",
    )


def keep_needles(selection: TopicsState) -> None:
    """Puts the search words of the URL into their fields."""
    for name in NEEDLES:
        st.session_state[name] = getattr(selection, name)


def needles(
    slots: Sequence[Any],
    changed: Callable[[], None],
    width: int | Literal["stretch"] = "stretch",
    names: Sequence[str] = NEEDLES,
) -> None:
    """Asks what a record must contain. `slots`: where each is asked for."""
    for slot, name in zip(slots, names, strict=True):
        slot.text_input(
            f"{name.capitalize()} contains",
            key=name,
            max_chars=NEEDLE_CHARACTERS,
            on_change=if_drawn(changed),
            placeholder="name=value" if name == "header" else "text or 0x…",
            help="Text in upper or lower case, or bytes in hexadecimal after 0x."
            + HINTS.get(name, ""),
            width=width,
        )


def outcome(snapshot: Snapshot, selection: TopicsState, results: Mapping[int, Search]) -> None:
    """Shows how far the search came, and goes on with it on demand."""
    partitions = [p.partition for p in snapshot.bounds.partitions]
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(wording.search_sentence(results, snapshot.bounds), width="content")
        is_left = any(
            partition not in results or results[partition].stop is not Stop.END
            for partition in (partitions if selection.partition is None else [selection.partition])
        )
        if is_left and selection.further < FURTHER_MAX and not fills_a_list(results):
            st.button(
                "More",
                key="more",
                icon=":material/expand_more:",
                on_click=go,
                args=(replace(selection, further=selection.further + 1),),
                help="Goes on from where the search stopped, in every partition.",
            )
        elif is_left:
            st.caption("One list shows no more. Choose a partition or a time to begin further on.")
    unread = sum(result.unread for result in results.values())
    if unread:
        st.caption(
            f":material/info: {wording.count(unread, 'record')} may match too: a key or value in"
            " which the filter looks for a field is not decoded. Open one without the filter to see"
            " why."
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
                args=(replace(selection, partition=None, offset=None, record=None, further=0),),
            )


def listing(selection: TopicsState, rows: Sequence[Row], chosen: Row | None) -> None:
    """Lists the records found; a click opens one."""
    ends = (rows[0].offset, rows[-1].offset)
    # Not by the last row: what `More` adds keeps the position in the list.
    key = f"rows {selection.partition} {ends[0]} {selection.wanted} {selection.newest}"

    def picked() -> None:
        cells = st.session_state[key].selection.cells
        if cells and cells[0][0] < len(rows):
            go(replace(selection, record=place_of(rows[cells[0][0]])))

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
        on_select=if_drawn(picked),
        selection_mode="single-cell",
        placeholder="null",
        alt=f"Records of {selection.topic}, {where}",
        column_config=columns(),
        column_order=[
            str(name)
            for name in table
            if name in selection.fields
            or (name not in LEFT_OUT if chosen is None else name in SHORT_COLUMNS)
        ],
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(
            f"Click a row to see the whole record; {NEXT_KEY} and {PREVIOUS_KEY} go to the next and"
            " the one before. “Compare” opens an offset at both levels in a new tab."
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
        fields = tuple(dict.fromkeys(paths))
        _kept_fields()[selection.topic] = fields
        go(replace(selection, fields=fields))

    st.multiselect(
        "Fields as columns",
        list(dict.fromkeys([*selection.fields, *paths])),
        key="fields",
        on_change=if_drawn(chosen),
        max_selections=COLUMNS_MAX,
        accept_new_options=True,
        placeholder="Fields of the value as columns",
        label_visibility="collapsed",
        help="Choose fields, or type a path such as $.items[0].id.",
    )


def columns() -> dict[str, Any]:
    """Returns the widths of the columns. The value takes what the others leave."""
    return {
        "partition": st.column_config.NumberColumn(width=65),
        "offset": st.column_config.NumberColumn(width=80),
        "fate": st.column_config.TextColumn(width=105),
        "timestamp (UTC)": st.column_config.TextColumn(width=165),
        "key": st.column_config.TextColumn(width=110),
        "size": st.column_config.TextColumn(width=70, alignment="right"),
        "open": st.column_config.LinkColumn("", display_text="Compare", width=75),
        "headers": st.column_config.TextColumn(width=110),
        "producer": st.column_config.NumberColumn(format="%d", width=75),
    }
