"""A dashboard of the session's home, and a real Chromium to look at it with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.backend.kafka.topics import Writer
from tests.ports import free_ports
from topicproof.backend.services.dashboard import dashboard
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PAGE_MS = 60_000
WIDTH, HEIGHT = 1280, 800
expect.set_options(timeout=PAGE_MS)


@pytest.fixture(scope="module")
def address(settings: Settings, cluster: Services) -> Iterator[str]:
    """A dashboard of this session's home."""
    assert cluster.bootstrap
    with dashboard(settings, free_ports(1)[0]) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium of Debian's, without a profile."""
    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture
def window(browser: Browser) -> Iterator[Page]:
    """A window in which no request leaves this machine and nothing goes wrong unseen."""
    opened = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
    opened.set_default_timeout(PAGE_MS)
    asked: list[str] = []
    crashed: list[str] = []
    forbidden: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("pageerror", lambda error: crashed.append(str(error)))
    opened.on(
        "console",
        lambda said: (
            forbidden.append(said.text) if "Content Security Policy" in said.text else None
        ),
    )
    yield opened
    opened.close()
    assert [
        url for url in asked if not re.match(r"(https?|wss?)://127\.0\.0\.1[:/]|data:|blob:", url)
    ] == []
    assert crashed == []
    assert forbidden == []


@pytest.fixture
def written(bootstrap: str, new_topic: Callable[..., str]) -> str:
    """A topic of three partitions with a committed, an aborted and an open transaction each."""
    topic = new_topic(partitions=3)
    writer = Writer(bootstrap, topic)
    for partition in range(3):
        writer.write("A300 A+ B200 B- n100", partition)
        writer.write("C50", partition)
    return topic


def settled(window: Page) -> None:
    """Until the page's script has ended and nothing is still to be drawn."""
    expect(window.locator("[data-testid=stApp][data-test-script-state=notRunning]")).to_have_count(
        1
    )
    expect(window.get_by_test_id("stStatusWidget")).to_have_count(0)
    expect(window.get_by_test_id("stSkeleton")).to_have_count(0)
    # What is about to be replaced is drawn pale meanwhile.
    expect(window.locator("[data-stale=true]")).to_have_count(0)
    expect(window.get_by_test_id("stException")).to_have_count(0)
    # What was pale comes back by and by. In between its contrast is that of nothing anybody reads.
    window.wait_for_function(
        """() => document.getAnimations().every(animation =>
            animation.playState !== "running"
            || animation.effect?.getComputedTiming().endTime === Infinity)"""
    )


def at_tab(window: Page, name: str) -> None:
    """Until the page is open that this tab of its place leads to."""
    expect(window.get_by_role("radio", name=name, exact=True, checked=True)).to_be_visible()
