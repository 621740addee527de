"""A record's key or value for display: as text if it is text, otherwise hexadecimal, and never as
markup."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from typing import Any

import streamlit as st

from topicproof.app import wording
from topicproof.backend.formats.decoded import DecodedValue, Format
from topicproof.backend.formats.formats import Formats, Part
from topicproof.backend.kafka.browse.records import Record, as_text, is_printable
from topicproof.backend.kafka.browse.search import Row

DETAIL_CHARACTERS = 4_000
TREE_CHARACTERS = 200_000
"""Longer decoded values are shown as text, cut."""
CELL_BYTES_MAX = 20_000
"""Longer values are not decoded for a cell of a table: a page shows hundreds."""
TREE_LEVELS = 3
"""Levels of a decoded value that are open."""
INTEGER_MAX = 2**53
"""Larger integers are not exact in a browser."""
_BOX = (
    "margin:0;padding:0.6rem 0.8rem;border-radius:0.5rem;background:rgba(128,128,128,0.12);"
    "font-size:0.875rem;font-family:'Source Code Pro',monospace;white-space:pre-wrap;"
    "overflow-wrap:anywhere;user-select:all;max-height:24rem;overflow-y:auto"
)


def payload(name: str, value: bytes | None, cut: bool = False) -> None:
    """Shows the content, up to a length that a browser renders at once. `cut`: there is more than
    `value`."""
    st.caption(f"{name}: {'the first ' if cut else ''}{wording.size(value)}")
    if value is not None:
        verbatim(as_text(value, DETAIL_CHARACTERS))


def decoded_part(
    row: Record | Row, topic: str, formats: Formats, part: Part = "value"
) -> DecodedValue | None:
    """Returns the decoded key or value of a record; None if the record has none."""
    data: bytes | None = getattr(row, part)
    if data is None:
        return None
    if isinstance(row, Row) and not row.whole:
        return DecodedValue(reason="It is too long to be decoded here.")
    return formats.decode(data, topic, part)


def decoded(row: Record | Row, topic: str, formats: Formats, part: Part) -> None:
    """Shows a decoded key or value as a tree, with its schema, or why it is not decoded."""
    content, name = decoded_part(row, topic, formats, part), part.capitalize()
    if content is None:
        return
    if content.known:
        st.caption(f"{name}, decoded: {wording.plain(content.origin)}")
        text = content.text or ""
        if len(text) > TREE_CHARACTERS:
            verbatim(text[:DETAIL_CHARACTERS] + "…")
        else:
            st.json(_exact(content.value), expanded=TREE_LEVELS)
    if content.reason is not None:
        note = content.reason if content.known else f"{name} is not decoded. {content.reason}"
        st.caption(f":material/info: {wording.plain(note)}")


def cell_text(
    row: Record | Row, topic: str, formats: Formats, characters: int, part: Part = "value"
) -> str | None:
    """Returns a key or value as a table shows it: decoded if that is known, otherwise as text."""
    data: bytes | None = getattr(row, part)
    if data is None:
        return None
    if len(data) <= CELL_BYTES_MAX:
        content = decoded_part(row, topic, formats, part)
        if content is not None and content.text is not None and content.format is not Format.JSON:
            # Characters that no font shows are spelled.
            text = content.text if is_printable(content.text) else json.dumps(content.value)
            return as_text(text.encode(), characters)
    return as_text(data, characters)


def _exact(value: Any) -> Any:
    """Returns integers that a browser would round as text."""
    match value:
        case dict():
            return {name: _exact(item) for name, item in value.items()}
        case list():
            return [_exact(item) for item in value]
        case int() if abs(value) > INTEGER_MAX:
            return str(value)
    return value


def verbatim(text: str) -> None:
    """Shows a text unchanged in a box; one click selects all of it. Streamlit's own code box loads
    a highlighter, which takes a browser a quarter of a second."""
    st.html(f'<pre tabindex="0" style="{_BOX}">{html.escape(text)}</pre>')


def download(name: str, file_name: str, whole: Callable[[], bytes]) -> None:
    """Offers raw bytes as a download; `whole` fetches them."""
    st.download_button(
        name,
        whole,
        file_name=file_name,
        mime="application/octet-stream",
        key=f"download {file_name}",
        icon=":material/download:",
        on_click="ignore",
    )
