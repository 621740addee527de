"""Errors on a page: a box with what happened, instead of a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from topicproof.app.wording import plain
from topicproof.backend.errors import ClusterError, NotPermitted, TopicproofError


@contextmanager
def show_errors() -> Iterator[None]:
    """Shows an error in the block on the page and stops the page: no traceback, and no silence."""
    try:
        yield
    except TopicproofError as error:
        show_error(error)
        st.stop()


def show_error(error: TopicproofError) -> None:
    st.error(plain(str(error)), title=_title(error), icon=":material/error:")


def _title(error: TopicproofError) -> str:
    if isinstance(error, NotPermitted):
        return "You may not do that"
    return "The request to Kafka failed" if isinstance(error, ClusterError) else "That did not work"
