"""Addresses in a real Chromium: each kind opens what it names, in the window of somebody else as
well."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import settled
from tests.runs import Finished
from topicproof.backend.matrix.cells import RESULTS, Result
from topicproof.backend.settings import Settings

CELL = Result(
    "at_least_once",
    "abort",
    {},
    "squares-gone",
    "HOLDS",
    {"duplicates": 2},
    "duplicates",
    "it fired",
    (),
    7.0,
)


@pytest.fixture
def matrix(settings: Settings) -> Iterator[Result]:
    """One cell that a matrix left in the home."""
    path = settings.home / RESULTS
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps([asdict(CELL)]))
    yield CELL
    path.unlink()


def test_each_kind_of_link_opens_what_it_names(
    address: str, window: Page, finished: Finished, matrix: Result
) -> None:
    """Story: links in a chat. Each opens its page with what was chosen there, and stays the address
    of that."""
    run, sink = finished.run.id, finished.sink
    shown = {
        f"run?run={run}": f"{run}",
        f"demos?story=clean&runs={run}": "What there is to see",
        f"compare?topic={sink}&partition=1&offset=7&record=9&level=committed&fate=committed": (
            "Offset 9"
        ),
        f"transactions?topic={sink}&partition=2&outcome=aborted": "that match are drawn and listed",
        f"topics?topic={sink}&view=partitions&partition=0": (
            "Offsets by fate between log start and HW"
        ),
        f"topics?topic={sink}&view=records&partition=1&offset=20&record=21": "Offset 21",
        f"verdict?run={run}": finished.report.why,
        f"matrix?guarantee={matrix.guarantee}&fault={matrix.fault}": "at_least_once under abort",
        "history?guarantee=exactly_once&measure=inputs%20judged": "Over time",
    }
    for link, text in shown.items():
        window.goto(f"{address}/{link}")
        expect(window.get_by_text(text).first).to_be_visible()
        settled(window)
        assert not window.get_by_text("is ignored").count() and window.url.endswith(link), link
    # Names of places are addresses as well.
    for name, front in (("lab", "demos"), ("checks", "check"), ("home", "")):
        window.goto(f"{address}/{name}")
        window.wait_for_url(f"{address}/{front}")
    # The page Run was at the root once.
    window.goto(f"{address}/?run={run}")
    window.wait_for_url(f"**/run?run={run}")
    expect(window.get_by_role("heading", name=run)).to_be_visible()


def test_the_matrix_says_how_to_run_more_of_it(address: str, window: Page, matrix: Result) -> None:
    """Story: somebody looks at one cell and wants the others. Nothing was fetched to draw three
    lines of commands."""
    asked: list[str] = []
    window.on("request", lambda request: asked.append(request.url))
    window.goto(f"{address}/matrix?guarantee={matrix.guarantee}&fault={matrix.fault}")
    settled(window)
    window.get_by_text("Run more of it").click()
    expect(window.get_by_text("topicproof matrix --resume")).to_be_visible()
    expect(window.get_by_role("button", name="Run the small one")).to_be_visible()
    assert any("/PlotlyChart." in url for url in asked) and not any(
        "Highlighter" in url for url in asked
    )


def test_two_people_look_at_one_topic(address: str, browser: Browser, finished: Finished) -> None:
    """Story: two people look at the same topic at the same time, at different places. Neither moves
    the other, and a link from one opens the same view in the other's window."""
    link = f"{address}/compare?topic={finished.sink}"
    first, second = (browser.new_context().new_page() for _ in range(2))
    first.goto(f"{link}&partition=0&offset=3")
    second.goto(f"{link}&partition=1&offset=4")
    for window, said in ((first, "Offset 3"), (second, "Offset 4")):
        expect(window.get_by_role("heading", name=said)).to_be_visible()
    first.get_by_role("button", name="Next marker").click()
    first.wait_for_url("**offset=*")
    expect(first.get_by_text("no consumer ever gets one")).to_be_visible()
    settled(first)
    assert (
        "partition=1" in second.url and second.get_by_role("heading", name="Offset 4").is_visible()
    )
    second.goto(first.url)
    expect(second.get_by_text("no consumer ever gets one")).to_be_visible()
    for window in (first, second):
        window.context.close()
