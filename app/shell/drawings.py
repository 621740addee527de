"""Which of a page's widgets still stand on it.

Streamlit forgets the value of a widget when a page was drawn whole without it, and calls what
belongs to the widget once more if a browser that has not heard of that yet asks for anything: the
value that the browser still sends looks like a new one. A page that polls asks all the time, so
what somebody left a moment ago would come back by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

import streamlit as st
from streamlit.runtime.scriptrunner import RerunException

P = ParamSpec("P")
_LATEST, _WHOLE = "latest_drawing", "latest_whole_drawing"
"""Session state: the number of the drawing that goes on, and of the newest one that came to its
end."""


@contextmanager
def drawing() -> Iterator[None]:
    """Numbers this drawing of a page. One that gives way to another one does not count as whole:
    widgets that it did not reach may stand on the page."""
    number = st.session_state[_LATEST] = st.session_state.get(_LATEST, 0) + 1
    is_whole = True
    try:
        yield
    except RerunException:
        is_whole = False
        raise
    finally:
        if is_whole:
            st.session_state[_WHOLE] = number


def if_drawn(callback: Callable[P, None]) -> Callable[P, None]:
    """Returns the callback for a widget that is drawn now. It does nothing once the page was drawn
    whole without that widget."""
    number = st.session_state.get(_LATEST, 0)

    def called(*args: P.args, **kwargs: P.kwargs) -> None:
        if number >= st.session_state.get(_WHOLE, 0):
            callback(*args, **kwargs)

    return called
