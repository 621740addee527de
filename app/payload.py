"""A record's key or value for display: as text if it is text, otherwise hexadecimal, and never as
markup."""

from __future__ import annotations

import html
from collections.abc import Callable

import streamlit as st

from topicproof.app import wording
from topicproof.backend.kafka.browse.records import as_text

DETAIL_CHARACTERS = 4_000
_BOX = (
    "margin:0;padding:0.6rem 0.8rem;border-radius:0.5rem;background:rgba(128,128,128,0.12);"
    "font-size:0.875rem;font-family:'Source Code Pro',monospace;white-space:pre-wrap;"
    "overflow-wrap:anywhere;user-select:all"
)


def payload(name: str, value: bytes | None, cut: bool = False) -> None:
    """Shows the content, up to a length that a browser renders at once. `cut`: there is more than
    `value`."""
    st.caption(f"{name}: {'the first ' if cut else ''}{wording.size(value)}")
    if value is not None:
        verbatim(as_text(value, DETAIL_CHARACTERS))


def verbatim(text: str) -> None:
    """Shows a text unchanged in a box; one click selects all of it. Streamlit's own code box loads
    a highlighter, which takes a browser a quarter of a second."""
    st.html(f'<pre style="{_BOX}">{html.escape(text)}</pre>')


def download(name: str, file_name: str, value: bytes, whole: Callable[[], bytes] | None) -> None:
    """Offers the raw bytes as a download; `whole` fetches them if `value` was cut."""
    st.download_button(
        name,
        value if whole is None else whole,
        file_name=file_name,
        mime="application/octet-stream",
        key=f"download {file_name}",
        icon=":material/download:",
        on_click="ignore",
    )
