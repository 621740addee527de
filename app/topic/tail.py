"""The live tail of a topic: its newest records at one isolation level, of one partition or all, and
those of them that match."""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import pandas as pd
import streamlit as st

from topicproof.app import wording
from topicproof.app.session.access import note_look, page_identity
from topicproof.app.session.byte_budget import byte_budget
from topicproof.app.session.connection import decoders, page_settings, running_kafka
from topicproof.app.session.page_masks import hidden_fields, mask_records, require_unmasked
from topicproof.app.session.record_reads import size_of
from topicproof.app.shell import downloads
from topicproof.app.shell.places import if_drawn
from topicproof.app.shell.url_state import COMMITTED, UNCOMMITTED, TopicsState
from topicproof.app.topic import tables
from topicproof.app.topic.field_columns import field_columns, offered, with_fields
from topicproof.app.topic.payload import RowDecoder
from topicproof.app.topic.record_browser import (
    ALL,
    NEEDLES,
    ROW_PX,
    TABLE_PX,
    choose_fields,
    columns,
    go,
    keep_needles,
    needles,
)
from topicproof.app.topic.snapshot import Snapshot, page_snapshot
from topicproof.backend.errors import TopicproofError
from topicproof.backend.formats.frames import schema_header
from topicproof.backend.kafka.browse import search as browse
from topicproof.backend.kafka.browse.records import Headers
from topicproof.backend.kafka.browse.search import ANYTHING, Row
from topicproof.backend.kafka.client_configs import READ_COMMITTED, READ_UNCOMMITTED
from topicproof.backend.kafka.log.fates import DATA_FATES
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.validators.finding import Bounds, Fate

TAIL_S = 2.0
TAIL_ROWS = 50
SEARCHED_ROWS = 2_000
"""The newest records in which each look searches."""
ISOLATION = {COMMITTED: READ_COMMITTED, UNCOMMITTED: READ_UNCOMMITTED}


@dataclass(frozen=True)
class TailRows:
    """What a tail shows, and the snapshot of the topic with which it was read."""

    snapshot: Snapshot
    rows: tuple[Row, ...]


def tail(_kafka: Services, snapshot: Snapshot, selection: TopicsState) -> None:
    """Shows the newest records, refreshed continually."""
    state = st.session_state
    state["tail_level"] = selection.level
    state["tail_partition"] = ALL if selection.partition is None else selection.partition
    state.setdefault("paused", False)
    keep_needles(selection)

    def chosen() -> None:
        partition = None if state["tail_partition"] == ALL else state["tail_partition"]
        words = {name: state[name].strip() for name in NEEDLES}
        go(replace(selection, level=state["tail_level"], partition=partition, record=None, **words))

    with st.container(horizontal=True, vertical_alignment="center"):
        st.segmented_control(
            "Isolation level",
            [COMMITTED, UNCOMMITTED],
            format_func=ISOLATION.__getitem__,
            key="tail_level",
            on_change=if_drawn(chosen),
            required=True,
            label_visibility="collapsed",
        )
        st.toggle("Pause", key="paused", help="Stops the refresh; the rows shown stay.")
    slots = st.columns([0.8, 1.2, 1.2, 1.2])
    numbers = [p.partition for p in snapshot.bounds.partitions]
    slots[0].selectbox(
        "Partition",
        numbers if len(numbers) == 1 else [ALL, *numbers],
        key="tail_partition",
        on_change=if_drawn(chosen),
    )
    needles(slots[1:], chosen)
    paused = state["paused"]
    # Outside of what is redrawn every two seconds: there it could not be used.
    tail_rows = _shown_before(selection)
    rows = () if tail_rows is None else tail_rows.rows
    decoder = RowDecoder(decoders(page_settings()), selection.topic)
    choose_fields(selection, offered(map(decoder.decode, rows)))
    st.fragment(newest, run_every=None if paused else TAIL_S)(selection, paused)


def newest(selection: TopicsState, paused: bool) -> None:
    """Shows the newest records that a consumer at this level would have received. If Kafka does not
    answer, the rows stay and the next refresh asks again."""
    tail_rows = _shown_before(selection)
    if not paused or tail_rows is None:
        try:
            # An embedded Kafka that was started again may have another address.
            settings = page_settings()
            kafka = running_kafka(settings)
            snapshot = page_snapshot(settings, kafka, selection.topic, live=True)
            latest = read(settings, kafka, snapshot, selection)
            rows = merged(latest, () if tail_rows is None else tail_rows.rows, snapshot.ranges)
            tail_rows = TailRows(snapshot, rows)
            byte_budget().keep(_tail_key(selection), tail_rows, size_of(rows))
        except TopicproofError as error:
            st.warning(
                wording.plain(str(error)),
                title=f"Nothing new could be read. Trying again every {TAIL_S:.0f} s",
                icon=":material/sync_problem:",
            )
    if tail_rows is None:
        return
    st.markdown(sentence(tail_rows.snapshot, selection, tail_rows.rows, paused))
    if not tail_rows.rows:
        st.info("Nothing yet.", icon=":material/hourglass_empty:")
        return
    listing(selection, tail_rows.rows, paused)


def _shown_before(selection: TopicsState) -> TailRows | None:
    """Returns what this tab shows of the same tail to the same person."""
    tail_rows = byte_budget().kept_value(_tail_key(selection))
    return tail_rows if isinstance(tail_rows, TailRows) else None


def _tail_key(selection: TopicsState) -> Hashable:
    settings = page_settings()
    by = page_identity(settings)
    tab = st.session_state.setdefault("tail_tab", uuid.uuid4().hex)
    parts = selection.topic, selection.level, selection.partition, selection.wanted
    return "tail", tab, by.issuer, by.subject, hidden_fields(settings, selection.topic), *parts


def read(
    settings: Settings, kafka: Services, snapshot: Snapshot, selection: TopicsState
) -> tuple[Row, ...]:
    """Returns the newest records that match. Raises ClusterError, TopicError, NotPermitted."""
    formats = decoders(settings)
    if filtered(selection):
        require_unmasked(settings, selection.topic)
    note_look(settings, f"{selection.topic}, its newest records")

    def decode(value: bytes, headers: Headers) -> str | None:
        return formats.decode(value, selection.topic, header=schema_header(headers, "value")).text

    searched = filtered(selection)
    rows = browse.latest(
        kafka.address,
        within(snapshot.bounds, selection.partition),
        snapshot.ranges,
        ISOLATION[selection.level],
        SEARCHED_ROWS if searched else TAIL_ROWS,
        query=replace(selection.wanted, fates=()),
        text=decode if selection.value and formats.configured else None,
    )
    return mask_records(hidden_fields(settings, selection.topic), rows)


def filtered(selection: TopicsState) -> bool:
    """Whether only some records are wanted."""
    return replace(selection.wanted, fates=()) != ANYTHING


def within(bounds: Bounds, partition: int | None) -> Bounds:
    """Returns the bounds of one partition, or of all."""
    if partition is None:
        return bounds
    partitions = tuple(p for p in bounds.partitions if p.partition == partition)
    return replace(bounds, partitions=partitions)


def merged(latest: Sequence[Row], before: Sequence[Row], ranges: pd.DataFrame) -> tuple[Row, ...]:
    """Returns what was found now and before, the newest first: a record that matched stays, while
    newer ones come that do not match."""
    rows = {(row.partition, row.offset): row for row in latest}
    for row in before:
        if (row.partition, row.offset) in rows:
            continue
        fate = fate_at(ranges, row.partition, row.offset)
        if fate in DATA_FATES:
            rows[row.partition, row.offset] = replace(row, fate=fate)
    ordered = sorted(rows.values(), key=lambda row: (row.timestamp_ms, row.offset), reverse=True)
    return tuple(ordered[:TAIL_ROWS])


def fate_at(ranges: pd.DataFrame, partition: int, offset: int) -> Fate | None:
    """Returns the fate of an offset now; None if it is not in the topic any more."""
    covering = ranges[
        (ranges["partition"] == partition)
        & (ranges["first_offset"] <= offset)
        & (ranges["last_offset"] >= offset)
    ]
    return None if covering.empty else Fate(covering["fate"].iloc[0])


def sentence(snapshot: Snapshot, selection: TopicsState, rows: Sequence[Row], paused: bool) -> str:
    """Describes the rows: which records, from where, how current."""
    where = "all partitions" if selection.partition is None else f"partition {selection.partition}"
    level = wording.plain(ISOLATION[selection.level])
    noun = "matching record" if filtered(selection) else "record"
    withheld = sum(
        p.hw - p.lso
        for p in within(snapshot.bounds, selection.partition).partitions
        if p.hw > p.lso
    )
    text = (
        f"The newest {wording.count(len(rows), noun)} that a {level} consumer gets, from {where},"
        f" by timestamp. Read at {snapshot.taken_at:%H:%M:%S} UTC, "
    )
    text += "**paused**." if paused else f"again every {TAIL_S:.0f} s."
    if filtered(selection):
        text += f" Each look searches the newest {SEARCHED_ROWS:,} records."
    if withheld and selection.level == COMMITTED:
        text += (
            f" {wording.count(withheld, 'offset')} at or above the LSO: withheld from this level."
        )
    return text


def listing(selection: TopicsState, rows: Sequence[Row], paused: bool) -> None:
    """Lists the records."""
    formats = decoders(page_settings())
    decoder = RowDecoder(formats, selection.topic)
    table = tables.row_table(rows, True, decoder)
    if selection.fields:
        table = with_fields(table, field_columns(map(decoder.decode, rows), selection.fields))
    st.dataframe(
        tables.row_tints(table, rows, None),
        hide_index=True,
        height=min(TABLE_PX, ROW_PX * (len(table) + 1) + 10),
        row_height=ROW_PX,
        placeholder="null",
        alt=f"The newest records of {selection.topic} at {ISOLATION[selection.level]}",
        column_config=columns(),
    )
    if paused:
        # Only while paused: a menu that is redrawn every two seconds cannot be used.
        downloads.offer(selection.topic, f"{selection.topic}-newest", rows, formats)
