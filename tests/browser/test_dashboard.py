"""The whole way in a real Chromium: start a run from the form, reload, read its verdict, see its
aborted records."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from threading import Event

from playwright.sync_api import Page, WebSocketRoute, expect
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from tests.backend.kafka.hanging import end_what_hangs, hang
from tests.backend.kafka.test_lag import commit
from tests.browser.conftest import HEIGHT, at_tab, settled
from tests.conftest import wait_until

RUN_MS = 300_000
HOME_POLL_S = 5


def test_a_run_from_the_form_to_its_aborted_records(
    address: str, window: Page, artifacts: Path
) -> None:
    """Story: a demo. One click starts a run; the browser is reloaded in the middle and loses
    nothing; the verdict comes; Compare shows aborted records and says why no read_committed
    consumer gets them."""
    window.goto(f"{address}/run")
    window.get_by_role("button", name="Start the run").click()
    window.wait_for_url("**/run?run=*")
    run_id = window.url.partition("run=")[2]
    # Streamlit's own head has a button of this name while a script runs.
    page = window.get_by_test_id("stMainBlockContainer")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    window.reload()
    expect(window.get_by_role("heading", name=run_id)).to_be_visible()
    expect(
        window.get_by_text(re.compile(r"[1-9][\d,]* of 20,000 inputs committed")).first
    ).to_be_visible()
    window.screenshot(path=artifacts / "run.png")

    link = window.get_by_role("link", name="Open the verdict")
    expect(link).to_be_visible(timeout=RUN_MS)
    link.click()
    at_tab(window, "Verdict")
    expect(
        window.get_by_text("20,000 of 20,000 inputs committed exactly once, in order")
    ).to_be_visible()
    settled(window)
    window.screenshot(path=artifacts / "verdict.png", full_page=True)
    main = window.get_by_test_id("stMain")
    assert main.evaluate("main => main.scrollHeight") <= 2 * HEIGHT, "a healthy report is short"
    main.evaluate("main => main.scrollTo(0, main.scrollHeight)")
    sign = window.get_by_role("button", name="Sign", exact=True)
    expect(sign).to_be_in_viewport()

    window.get_by_role("link", name="Compare both levels of the sink").click()
    at_tab(window, "Compare")
    expect(
        window.get_by_text("Not delivered: its transaction was aborted (marker at")
    ).to_be_visible()
    expect(window.locator(".stPlotlyChart .main-svg").first).to_be_visible()
    # Not over the table, whose tools would cover buttons in the picture of the README.
    window.mouse.move(0, 0)
    settled(window)
    window.screenshot(path=artifacts / "compare.png")
    window.get_by_role("button", name="Its input was committed at").click()
    expect(window.get_by_text("Delivered: its transaction committed (marker at")).to_be_visible()


def test_a_click_on_the_strip_and_on_a_row_is_an_address(
    address: str, window: Page, written: str
) -> None:
    """Story: somebody jumps to a topic by keyboard, clicks a cell of the strip, then a row of the
    table, and goes back: each is an address, and so is each tab."""
    window.goto(address)
    settled(window)
    # By keyboard alone: a box that leads to any topic.
    window.keyboard.press("Control+k")
    box = window.get_by_role("combobox", name="Topic, group, open transaction, run or contract")
    expect(box).to_be_focused()
    window.keyboard.type(f"topic · {written}")
    expect(window.get_by_role("option", name=f"topic · {written}")).to_be_visible()
    window.keyboard.press("Enter")
    window.wait_for_url(f"**/compare?topic={written}*")
    at_tab(window, "Compare")
    chart = window.locator(".stPlotlyChart")
    expect(chart.locator(".main-svg").first).to_be_visible()
    settled(window)
    chart.click(position={"x": 560, "y": 45})
    window.wait_for_url("**/compare?*partition=1*")
    clicked = window.url
    place = re.search(r"offset=(\d+)", clicked)
    assert place is not None
    # The record is drawn after the table: once it is there, so is the table of the new place.
    expect(window.get_by_role("heading", name=f"Offset {int(place[1]):,}")).to_be_visible()
    settled(window)
    table = window.locator("[data-testid=stDataFrame]:visible").first
    # Drawn on a canvas, which tells screen readers what is in it; the row below the offset of the
    # address.
    beside = table.get_by_test_id("glide-cell-0-6")
    expect(beside).to_have_text(str(int(place[1]) + 1))
    # Two rows of column names, then rows of 28 pixels: the seventh.
    table.click(position={"x": 150, "y": 71 + 28 * 6 + 14})
    window.wait_for_url("**record=*")
    window.go_back()
    window.wait_for_url(clicked)
    # Other tabs are about the same topic, and Compare is as it was left.
    settled(window)
    window.get_by_role("radio", name="Partitions").click()
    window.wait_for_url(f"**/topics?topic={written}&view=partitions")
    expect(window.get_by_text("Offsets by fate between log start and HW")).to_be_visible()
    at_tab(window, "Partitions")
    window.get_by_role("radio", name="Compare").click()
    window.wait_for_url(clicked)


def test_a_page_that_is_left_does_not_empty_the_next_one(
    address: str, window: Page, written: str
) -> None:
    """Story: somebody jumps from Home to Compare on a busy machine. The time comes when Home asks
    for its figures again, before the browser hears of Compare. Compare is drawn, and stays."""
    sockets: list[WebSocketRoute] = []
    held: list[str | bytes] = []
    leaving = Event()

    def relayed(browser_side: WebSocketRoute) -> None:
        server_side = browser_side.connect_to_server()

        def answered(message: str | bytes) -> None:
            if held or (leaving.is_set() and begins_page(message)):
                held.append(message)
            else:
                browser_side.send(message)

        server_side.on_message(answered)
        sockets.append(browser_side)

    window.clock.install()
    window.route_web_socket(re.compile(r"/_stcore/stream"), relayed)
    window.goto(address)
    settled(window)
    window.keyboard.press("/")
    box = window.get_by_role("combobox", name="Topic, group, open transaction, run or contract")
    expect(box).to_be_focused()
    window.keyboard.type(f"topic · {written}")
    expect(window.get_by_role("option", name=f"topic · {written}")).to_be_visible()
    leaving.set()
    window.keyboard.press("Enter")
    wait_until(lambda: window.evaluate("1") and bool(held), 60, "that Compare begins")
    window.clock.fast_forward(1000 * (HOME_POLL_S + 1))
    leaving.clear()
    while held:
        sockets[-1].send(held[0])
        held.pop(0)
    expect(window.locator(".stPlotlyChart .main-svg").first).to_be_visible()
    settled(window)
    at_tab(window, "Compare")
    expect(window.locator(".stPlotlyChart .main-svg").first).to_be_visible()


def begins_page(message: str | bytes) -> bool:
    """Whether Streamlit begins to draw a whole page."""
    answer = ForwardMsg()
    answer.ParseFromString(message if isinstance(message, bytes) else message.encode())
    return answer.WhichOneof("type") == "new_session" and not answer.metadata.run.fragment_ids


def test_from_a_transaction_and_a_record_to_compare(
    address: str, window: Page, written: str, artifacts: Path
) -> None:
    """Story: somebody sees an open transaction on top of the timeline, picks it in the table, then
    a bar, then finds an aborted record by its key and follows the link: Compare says why no
    read_committed consumer gets it."""
    window.goto(f"{address}/transactions?topic={written}")
    expect(window.get_by_text("withholds 150 records of 3 partitions")).to_be_visible()
    bars = window.locator(".stPlotlyChart .barlayer .point")
    # A bar for each transaction: three committed, three aborted, and an open one in all partitions.
    expect(bars).to_have_count(7)
    settled(window)
    window.screenshot(path=artifacts / "transactions.png", full_page=True)
    table = window.locator("[data-testid=stDataFrame]:visible").first
    table.click(position={"x": 60, "y": 28 * 2 + 14})
    window.wait_for_url("**/transactions?*transaction=*")
    expect(window.get_by_role("link", name="Compare at its first offset")).to_be_visible()
    settled(window)
    window.screenshot(path=artifacts / "transaction.png", full_page=True)
    window.goto(f"{address}/transactions?topic={written}")
    expect(bars).to_have_count(7)
    settled(window)
    # Plotly lays what hears the pointer over its bars.
    bars.first.click(force=True)
    window.wait_for_url("**/transactions?*transaction=*")
    expect(window.get_by_role("link", name="Compare at its first offset")).to_be_visible()

    window.get_by_role("link", name="Topics").click()
    expect(window.get_by_role("heading", name="Topics", level=1)).to_be_visible()
    window.goto(f"{address}/topics?topic={written}&partition=1")
    # In a field, a slash is a slash.
    window.get_by_role("textbox", name="Filter by fields").fill("headers.none = null")
    window.get_by_role("textbox", name="Filter by fields").press("Enter")
    window.wait_for_url("**/topics?*where=*")
    window.get_by_role("textbox", name="Key contains").press_sequentially("/")
    expect(window.get_by_role("textbox", name="Key contains")).to_have_value("/")
    window.get_by_role("textbox", name="Key contains").fill("b42")
    window.get_by_role("textbox", name="Key contains").press("Enter")
    window.wait_for_url("**/topics?*key=b42*")
    expect(window.get_by_role("heading", name="Offset 343")).to_be_visible()
    expect(window.get_by_text("1 record in 652 of 652 offsets of partition 1")).to_be_visible()
    settled(window)
    window.screenshot(path=artifacts / "topics.png", full_page=True)
    window.get_by_role("link", name="Compare both levels").click()
    window.wait_for_url("**/compare?*partition=1*offset=343*")
    expect(
        window.get_by_text("Not delivered: its transaction was aborted (marker at 501)")
    ).to_be_visible()
    window.get_by_role("button", name="Why was it aborted?").click()
    expect(window.get_by_text(f"{written}-B: its producer aborted it")).to_be_visible()


def test_what_is_wrong_is_seen_without_a_click(
    address: str,
    window: Page,
    bootstrap: str,
    written: str,
    new_topic: Callable[..., str],
    artifacts: Path,
) -> None:
    """Story: an operator opens the dashboard. Without a click, and without scrolling, they see what
    is wrong, who holds it, whom it holds back, and the command; the open transaction is there as
    soon as it has been open for long."""
    end_what_hangs(bootstrap)
    hung = new_topic()
    producer_id = hang(bootstrap, hung)
    for partition in range(3):
        commit(bootstrap, written, f"{written}-billing", 602, partition)
    window.set_viewport_size({"width": 1440, "height": 900})
    window.goto(address)
    for text in (
        f"Hanging: producer {producer_id} holds back 1 record on partition 0 of {hung}",
        f"topicproof abort {hung} 0 0",
        f"Open: {written}-C holds back 150 records on 3 partitions of {written}, and group"
        f" {written}-billing",
    ):
        expect(window.get_by_text(text)).to_be_in_viewport()
    window.screenshot(path=artifacts / "home-wrong.png")
    # The same from the side of the group.
    window.goto(f"{address}/topics?view=all-groups&group={written}-billing")
    expect(
        window.get_by_text(f"{written}-C holds back 150 records on partitions 0, 1 and 2")
    ).to_be_visible()
    window.go_back()
    window.get_by_role("link", name="Show the transaction").first.click()
    window.wait_for_url(f"**/transactions?topic={hung}&producer={producer_id}&outcome=open*")
    expect(window.get_by_text(f"producer {producer_id} last wrote", exact=False)).to_be_visible()
