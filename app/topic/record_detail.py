"""The drawer of one record: its place, what became of it and why, its content, and the ways on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial

import streamlit as st

from topicproof.app import wording
from topicproof.app.session.access import may, open_history, show_errors
from topicproof.app.session.connection import decoders, page_settings
from topicproof.app.session.coordination import topic_coordination
from topicproof.app.session.page_masks import hidden_fields
from topicproof.app.session.record_reads import records_in_window, unmasked_records
from topicproof.app.shell.url_state import TransactionsState, write_transactions
from topicproof.app.topic import tables
from topicproof.app.topic.payload import (
    TREE_CHARACTERS,
    decoded,
    decoded_part,
    download,
    exports_allowed,
    payload,
    verbatim,
)
from topicproof.app.topic.snapshot import Snapshot
from topicproof.backend.characters import visible
from topicproof.backend.formats.formats import Part
from topicproof.backend.history.audit import allow
from topicproof.backend.kafka.browse.record_json import decode_of, record_json
from topicproof.backend.kafka.browse.records import Headers
from topicproof.backend.kafka.browse.search import KEPT_BYTES_MAX, Row
from topicproof.backend.services.keeper import Services
from topicproof.backend.trust.identity import Action
from topicproof.backend.trust.masking import masked_part
from topicproof.validators.finding import Fate

TRANSACTION_SHOWN = 2_000
NEXT_KEY, PREVIOUS_KEY = "J", "K"
_copy = st.components.v2.component(
    "topicproof_copy",
    html='<button type="button"></button><span role="status"></span>',
    css="""button {
        font: inherit; font-size: 0.875rem; padding: 0.25rem 0.75rem; min-height: 2rem;
        color: var(--st-text-color); background: var(--st-background-color);
        border: 1px solid var(--st-border-color); border-radius: var(--st-button-radius);
        cursor: pointer;
    }
    button:hover {border-color: var(--st-primary-color); color: var(--st-link-color)}
    button:focus-visible {outline: 2px solid var(--st-primary-color); outline-offset: 2px}
    span {margin-left: 0.5rem; font-size: 0.875rem; color: var(--st-gray-text-color)}""",
    # Browsers have a clipboard only for pages of this machine or by HTTPS. Elsewhere a selection
    # is copied.
    js="""export default ({ data, parentElement }) => {
        const button = parentElement.querySelector("button");
        const status = parentElement.querySelector("[role=status]");
        button.textContent = data.label;
        const bySelection = () => {
            const area = document.createElement("textarea");
            area.value = data.text;
            document.body.append(area);
            area.select();
            const copied = document.execCommand("copy");
            area.remove();
            return copied ? Promise.resolve() : Promise.reject();
        };
        button.onclick = () => {
            const copied = navigator.clipboard
                ? navigator.clipboard.writeText(data.text)
                : bySelection();
            copied.then(
                () => { status.textContent = "copied"; },
                () => { status.textContent = "the browser does not allow it"; },
            );
        };
    };""",
)


def detail(
    kafka: Services,
    snapshot: Snapshot,
    rows: Sequence[Row],
    row: Row,
    show: Callable[[Row | None], None],
) -> None:
    """Shows one of the rows. `show` opens another one, or closes the drawer."""
    topic = snapshot.bounds.topic
    with st.container(border=True, gap="small"):
        head(rows, row, show)
        st.caption(
            f"{wording.plain(topic)}, partition {row.partition} ·"
            f" {wording.moment_of_ms(row.timestamp_ms)} · {wording.data_size(row.size)}"
        )
        story(kafka, snapshot, row)
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            st.page_link(
                "views/compare.py",
                label="Compare both levels",
                icon=":material/compare:",
                query_params={
                    "topic": topic,
                    "partition": str(row.partition),
                    "offset": str(row.offset),
                },
                width="content",
            )
            transaction_link(snapshot, row.partition, row.offset)
        content(kafka, snapshot, row)


def head(rows: Sequence[Row], row: Row, show: Callable[[Row | None], None]) -> None:
    """Shows the offset and the fate, with the ways to its neighbours in the list."""
    at = next(number for number, each in enumerate(rows) if each is row)
    with st.container(horizontal=True, gap="xsmall", vertical_alignment="center"):
        st.markdown(f"#### Offset {row.offset:,} {wording.badge(wording.FATE_WORDS[row.fate])}")
        st.space("stretch")
        for label, icon, shortcut, number in (
            ("Previous", ":material/keyboard_arrow_up:", PREVIOUS_KEY, at - 1),
            ("Next", ":material/keyboard_arrow_down:", NEXT_KEY, at + 1),
        ):
            is_there = 0 <= number < len(rows)
            st.button(
                label,
                icon=icon,
                key=f"{label} record",
                help="In the order of the list.",
                type="tertiary",
                shortcut=shortcut,
                disabled=not is_there,
                on_click=show,
                args=(rows[number] if is_there else row,),
            )
        st.button(
            "Close",
            icon=":material/close:",
            key="close",
            type="tertiary",
            on_click=show,
            args=(None,),
        )


def story(kafka: Services, snapshot: Snapshot, row: Row) -> None:
    """Says why a read_committed consumer gets the record or not, as Compare does."""
    with show_errors():
        (record,) = records_in_window(
            page_settings(), kafka, snapshot, row.partition, row.offset, 1
        )
    st.markdown(f"**Does a read\\_committed consumer get it?** {wording.plain(record.why)}")
    if record.fate is Fate.ABORTED:
        why_aborted(kafka, snapshot, row.partition, row.offset)
    if record.transaction is not None:
        st.caption("Transaction")
        verbatim(visible(record.transaction[:TRANSACTION_SHOWN]))


def content(kafka: Services, snapshot: Snapshot, row: Row) -> None:
    """Shows key, value and headers: decoded where that is known, with the bytes behind it."""
    topic, formats = snapshot.bounds.topic, decoders(page_settings())
    parts: dict[Part, bytes | None] = {"key": row.key, "value": row.value}
    for part, value in parts.items():
        decoded_value = decoded_part(row, topic, formats, part)
        if decoded_value is None or not decoded_value.known:
            payload(part.capitalize(), value, is_cut(value))
            decoded(row, topic, formats, part)
            continue
        decoded(row, topic, formats, part)
        with st.expander(f"{part.capitalize()} as it is in the log"):
            payload(part.capitalize(), value, is_cut(value))
    show_headers(row.headers)
    if not may(Action.EXPORT):
        return
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        copy_button(topic, row)
        for part, value in parts.items():
            if value:
                download(
                    f"Whole {part}" if is_cut(value) else f"Save {part}",
                    f"{topic}-{row.partition}-{row.offset}.{part}",
                    partial(saver(kafka, snapshot, row), part, value),
                )


def show_headers(headers: Headers) -> None:
    """Shows the headers of a record, if it has any."""
    if headers:
        st.caption(wording.count(len(headers), "header"))
        st.dataframe(
            tables.header_table(headers),
            hide_index=True,
            placeholder="null",
            alt="The headers of the record",
            column_config=tables.HEADER_WIDTHS,
        )


def is_cut(value: bytes | None) -> bool:
    """Whether the search kept only the beginning of the value."""
    return value is not None and len(value) == KEPT_BYTES_MAX


def copy_button(topic: str, row: Row) -> None:
    """Offers the record as JSON for the clipboard, if all of it is short enough for a page."""
    if not exports_allowed() or row.cut:
        return
    decode = decode_of(decoders(page_settings()), topic)
    document = record_json(topic, row, decode, TREE_CHARACTERS)
    text = json.dumps(document, indent=2, ensure_ascii=False)
    if len(text) <= TREE_CHARACTERS:
        _copy(
            key=f"copy {topic} {row.partition} {row.offset}",
            data={"label": "Copy as JSON", "text": text},
        )


def saver(kafka: Services, snapshot: Snapshot, row: Row) -> Callable[[Part, bytes], bytes]:
    """Returns what a button for a part saves. It runs when the button is pressed, outside of the
    page, where nobody is known."""
    settings, topic = page_settings(), snapshot.bounds.topic
    history, fields = open_history(settings), hidden_fields(settings, topic)

    def saved(part: Part, value: bytes) -> bytes:
        what = f"the {part} of {topic}-{row.partition}, offset {row.offset}"
        allow(history, Action.EXPORT, what)
        if not is_cut(value):
            return value
        (record,) = unmasked_records(settings, kafka, snapshot, row.partition, row.offset, 1)
        return masked_part(part, getattr(record, part), fields) or b""

    return saved


def transaction_link(snapshot: Snapshot, partition: int, offset: int) -> None:
    """Links to the transaction of an offset, if it is in one."""
    place = snapshot.transaction_at(partition, offset)
    if place is None:
        return
    st.page_link(
        "views/transactions.py",
        label="Show the transaction",
        icon=":material/timeline:",
        query_params=write_transactions(TransactionsState(snapshot.bounds.topic, chosen=place)),
        width="content",
    )


def why_aborted(kafka: Services, snapshot: Snapshot, partition: int, offset: int) -> None:
    """Says who ended the transaction of an aborted record, on demand: the coordinators' own log may
    be long."""
    place = snapshot.transaction_at(partition, offset)
    if place is None:
        return
    state, topic = st.session_state, snapshot.bounds.topic
    if state.get("why_of") != (topic, place):
        st.button(
            "Why was it aborted?",
            key="why",
            icon=":material/help:",
            on_click=state.update,
            args=({"why_of": (topic, place)},),
        )
        return
    with show_errors():
        coordination = topic_coordination(page_settings(), kafka, snapshot)
    reason = coordination.reasons.get(place)
    if reason is None:
        unknown = "The coordinators' own log no longer tells who aborted it."
        st.caption(wording.plain(coordination.not_heard or unknown))
        return
    began = snapshot.transactions[["partition", "first_offset"]].eq(place).all(axis=1)
    (producer_id,) = snapshot.transactions.loc[began, "producer_id"]
    name = coordination.names.get(producer_id, f"producer {producer_id}")
    st.markdown(
        f"**Why was it aborted?** {wording.plain(f'{name}: {wording.ABORT_WORDS[reason]}.')}"
    )
