"""The title of a page, and what the browser is told with it."""

from __future__ import annotations

from pathlib import Path

import streamlit as st
from streamlit.testing.v1 import AppTest

TIMEOUT_S = 30


def titled() -> None:
    import streamlit as st

    from topicproof.app.heading import heading

    heading("With charts", st.container(), charts=True)
    heading("Without", st.container(), charts=False)


def test_the_browser_is_told_where_plotly_is_and_only_where_there_are_charts() -> None:
    """Story: a page with charts and one without. The first names a file that Streamlit really
    serves."""
    page = AppTest.from_function(titled, default_timeout=TIMEOUT_S).run()
    assert [title.value for title in page.title] == ["With charts", "Without"]
    (script,) = (one.proto.body for one in page.get("html"))
    name = script.split('"./static/js/')[1].split('"')[0]
    assert (Path(st.__file__).parent / "static" / "static" / "js" / name).is_file()
