"""Pages run as a browser would run them, without a browser, on what a real run left in the history
and in Kafka."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import psutil
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from topicproof.backend.history.store import History
from topicproof.backend.settings import ROOT, Settings

TIMEOUT_S = 180


class OpenPage(Protocol):
    """Opens a page by its name, with the parameters of its URL."""

    def __call__(self, name: str, **params: str) -> AppTest: ...


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., AppTest]]:
    """`open_page("compare", topic="squares")`. What the pages hold is released afterwards."""

    def page(name: str, **params: str) -> AppTest:
        app = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=TIMEOUT_S)
        for key, value in params.items():
            app.query_params[key] = value
        if name != "home":
            # Which pages there are is known after a first run.
            app.run()
            app.switch_page(f"views/{name}.py")
            for key, value in params.items():
                app.query_params[key] = value
        return app.run()

    monkeypatch.chdir(ROOT)
    yield page
    st.cache_data.clear()
    st.cache_resource.clear()


@pytest.fixture
def at_home(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """The pages read the session's home. A run that a failed test left behind would never end, so
    it is stopped."""
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    yield settings
    for run in History(settings).list(limit=20):
        if run.alive and (process := int((run.owner or "").split(":")[1])) != os.getpid():
            psutil.Process(process).kill()


@pytest.fixture
def empty_home(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages read a home in which nothing ever happened, of a cluster that does not answer."""
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path))
    monkeypatch.setenv("TOPICPROOF_BOOTSTRAP", "127.0.0.1:1")


def texts(app: AppTest) -> str:
    """All sentences of a page, one a line, without the marks that keep Markdown from reading
    them. A space that does not break is a space, and a word joiner is nothing."""
    found = [
        *app.title,
        *app.markdown,
        *app.caption,
        *app.info,
        *app.warning,
        *app.error,
        *app.success,
    ]
    return "\n".join(
        str(element.value).replace("\\", "").replace("\u2060", "").replace("\u00a0", " ")
        for element in found
    )


def boxes(app: AppTest) -> list[str]:
    """The texts in boxes, as a browser shows them."""
    bodies = (element.proto.body for element in app.get("html"))
    return [
        html.unescape(text)
        for body in bodies
        for text in re.findall(r"<pre[^>]*>([^<]*)</pre>", body)
    ]
