"""Charts that react to clicks, and downloads: records with their offsets and fates as CSV, JSON or
Parquet, a chart as a standalone page.

`client.disableDataExport` in .streamlit/config.toml (or STREAMLIT_CLIENT_DISABLE_DATA_EXPORT=true)
removes them, together with the downloads of Streamlit's own tables.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from topicproof.app.charts.layout import Pointer
from topicproof.app.session.access import may, open_history
from topicproof.app.session.connection import page_settings
from topicproof.app.shell.places import if_drawn
from topicproof.app.topic.payload import EXPORT, RowDecoder, download, exports_allowed
from topicproof.backend.characters import defused
from topicproof.backend.formats.formats import Decoder, Formats
from topicproof.backend.history.audit import allow
from topicproof.backend.kafka.browse.records import Record
from topicproof.backend.kafka.browse.search import Row
from topicproof.backend.trust.identity import Action

Chart = Callable[[], go.Figure]
"""Builds the figure on request."""
PICTURE_ONLY: dict[str, Any] = {"displaylogo": False, "modeBarButtons": [["toImage"]]}
"""A chart's toolbar offers only a picture of the chart, and nothing that would move it."""


def record_frame(
    topic: str, rows: Sequence[Record | Row], formats: Decoder | None = None
) -> pd.DataFrame:
    """Returns one row per offset: topic, partition, offset, fate, timestamp (ISO 8601, UTC),
    transaction or producer, size (bytes of key, value and headers), key, value, headers (a JSON
    array of name and value), decoded (the value as JSON text, within the limits of `EXPORT` for all
    rows) and schema (its format and schema, or why it is not decoded).

    Bytes that are not UTF-8 become Base64 after `base64:`, so nothing is lost and nothing is
    guessed. An offset without a record (a marker, a hole) has no timestamp, key and value.
    """
    decoder = RowDecoder(Formats() if formats is None else formats, topic, EXPORT)
    texts = [decoder.text(row) for row in rows]
    return pd.DataFrame(
        {
            "topic": [topic] * len(rows),
            "partition": [row.partition for row in rows],
            "offset": [row.offset for row in rows],
            "fate": [row.fate.value for row in rows],
            "timestamp": [_iso(row.timestamp_ms) for row in rows],
            "transaction": [_transaction(row) for row in rows],
            "size": [_size(row) for row in rows],
            "key": [_text(row.key) for row in rows],
            "value": [_text(row.value) for row in rows],
            "headers": [
                json.dumps([[name, _text(value)] for name, value in row.headers]) for row in rows
            ],
            "decoded": [text for text, _account in texts],
            "schema": [account for _text, account in texts],
        }
    )


def as_csv(frame: pd.DataFrame) -> bytes:
    """Writes cells that no spreadsheet runs: a formula gets an apostrophe in front. Texts are in
    quotes, so a spreadsheet that separates cells otherwise does not cut one into a formula."""
    return as_raw_csv(frame.rename(columns=_safe).apply(lambda column: column.map(_safe)))


def as_raw_csv(frame: pd.DataFrame) -> bytes:
    """Writes cells unchanged: a spreadsheet may run them."""
    return frame.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC).encode()


def _safe(cell: Any) -> Any:
    return defused(cell) if isinstance(cell, str) else cell


def as_json(frame: pd.DataFrame) -> bytes:
    """Writes one object per line."""
    return str(
        frame.to_json(
            orient="records", lines=True, force_ascii=False, date_format="iso", date_unit="ms"
        )
    ).encode()


def as_parquet(frame: pd.DataFrame) -> bytes:
    target = io.BytesIO()
    frame.to_parquet(target, index=False)
    return target.getvalue()


def as_page(chart: go.Figure) -> bytes:
    """Writes the chart with its script inside, so it opens without a network."""
    return str(chart.to_html(include_plotlyjs=True)).encode()


KINDS: tuple[tuple[str, str, str, Callable[[pd.DataFrame], bytes]], ...] = (
    ("CSV", "csv", "text/csv", as_csv),
    ("JSON lines", "jsonl", "application/jsonl", as_json),
    ("Parquet", "parquet", "application/vnd.apache.parquet", as_parquet),
)


def offer(
    topic: str,
    name: str,
    rows: Sequence[Record | Row],
    formats: Formats,
    chart: Chart | None = None,
    note: str = "",
) -> None:
    """Offers downloads of these rows and of the chart beside them, in files called `name`. They are
    created only on request."""
    if rows:
        caption = (
            f"{len(rows):,} offsets with their fates, whatever the table cuts. Times are UTC.{note}"
        )
        offer_table(name, lambda: record_frame(topic, rows, formats), caption, chart)


def offer_table(
    name: str, table: Callable[[], pd.DataFrame], caption: str, chart: Chart | None = None
) -> None:
    """Offers downloads of a table, and of the chart that shows it."""
    if not exports_allowed() or not may(Action.EXPORT):
        return
    history = open_history(page_settings())

    def audited(write: Callable[[pd.DataFrame], bytes]) -> Callable[[], bytes]:
        def written() -> bytes:
            allow(history, Action.EXPORT, name)
            return write(table())

        return written

    with st.popover("Export", icon=":material/download:", width="content"):
        st.caption(caption)
        raw = st.checkbox(
            "CSV with formulas",
            key=f"raw {name}",
            help="Keeps cells that a spreadsheet runs as formulas. Without it, an apostrophe in"
            " front makes a text of each.",
        )
        for label, ending, mime, write in KINDS:
            write = as_raw_csv if raw and write is as_csv else write
            download(label, f"{name}.{ending}", audited(write), mime)
        if chart is not None:
            download("Chart as a page", f"{name}.html", lambda: as_page(chart()), "text/html")


def _transaction(row: Record | Row) -> str | None:
    if isinstance(row, Record):
        return row.transaction
    return None if row.producer_id is None else f"producer {row.producer_id}"


def _size(row: Record | Row) -> int:
    if isinstance(row, Row):
        return row.size
    named = sum(len(name.encode()) + len(value or b"") for name, value in row.headers)
    return len(row.key or b"") + len(row.value or b"") + named


def _iso(timestamp_ms: int | None) -> str | None:
    if timestamp_ms is None:
        return None
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        # Brokers accept any number. It must not end the export of the records around it.
        return f"{timestamp_ms} ms, which is not a date"
    return moment.isoformat(timespec="milliseconds")


def _text(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode()


def clickable(
    figure: go.Figure, pointer: Pointer | None, key: str, clicked: Callable[[], None], alt: str
) -> None:
    """Draws the chart, and the pointer over it. `clicked` finds the clicked item in the session
    state, under `key`."""
    with st.container(gap=None):
        # The pointer lies over the chart rather than in it: otherwise a browser would redraw the
        # whole chart to move it.
        st.html(pointer.html() if pointer is not None else "<div></div>")
        st.plotly_chart(
            figure,
            key=key,
            on_select=if_drawn(clicked),
            selection_mode="points",
            config=PICTURE_ONLY,
            alt=alt,
        )
