"""A key or a value of a record as a person sees it: text where it is that, else hexadecimal, and never markup."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from app import wording
from backend.kafka.records import as_text

DETAIL_CHARACTERS = 4_000


def payload(name: str, value: bytes | None, cut: bool = False) -> None:
    """What is in it, up to a length that a browser shows at once; `cut`: there is more than `value`."""
    st.caption(f"{name}: {'the first ' if cut else ''}{wording.size(value)}")
    if value is not None:
        st.code(as_text(value, DETAIL_CHARACTERS), language=None, wrap_lines=True)


def download(name: str, file_name: str, value: bytes, whole: Callable[[], bytes] | None) -> None:
    """A button that saves the bytes as they are; `whole` fetches them where `value` was cut."""
    st.download_button(
        name,
        value if whole is None else whole,
        file_name=file_name,
        mime="application/octet-stream",
        key=f"download {file_name}",
        icon=":material/download:",
        on_click="ignore",
    )
