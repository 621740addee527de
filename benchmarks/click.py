"""From a click to a verdict: a run of 10,000 records, started and read in a real browser. Run as
`make bench-click`.

Kafka, Spark and the dashboard are started in a home that is thrown away afterwards. The first runs
warm them and are not counted. Each counted time is what a person waits, from the click on *Start
the run* until the page shows the verdict, on cores that the browser shares with everything else.
"""

from __future__ import annotations

import re
import statistics
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from playwright.sync_api import Browser, expect, sync_playwright
from rich.console import Console

from topicproof.backend.history.store import History
from topicproof.backend.services.dashboard import dashboard
from topicproof.backend.services.keeper import services
from topicproof.backend.services.processes import free_ports
from topicproof.backend.settings import read_settings

RECORDS = 10_000
WARMING, COUNTED = 5, 9
PATIENCE_MS = 120_000
CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
]


@dataclass(frozen=True)
class Waited:
    """Seconds."""

    start: float
    """From the click until the run was in the history."""
    run: float
    seen: float
    """From the run's end until its verdict was on the page."""

    @property
    def whole(self) -> float:
        return self.start + self.run + self.seen


def click_to_verdict(browser: Browser, address: str, history: History) -> Waited:
    """From the click until the verdict is on the page."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(PATIENCE_MS)
    page.goto(address)
    for label, value in (("Records", RECORDS), ("In transaction", 0)):
        field = page.get_by_role("spinbutton", name=label, exact=True)
        field.fill(str(value))
        field.press("Tab")
    expect(page.get_by_test_id("stStatusWidget")).to_have_count(0, timeout=PATIENCE_MS)
    began = _now()
    page.get_by_role("button", name="Start the run").click()
    verdict = page.get_by_text(
        re.compile(rf"{RECORDS:,} of {RECORDS:,} inputs committed exactly once")
    ).first
    page.wait_for_url("**/run?run=*")
    # Not `expect`, which describes the whole page anew at every look, on the same cores.
    verdict.wait_for(timeout=PATIENCE_MS)
    ended = _now()
    expect(page.get_by_test_id("stException")).to_have_count(0)
    run = history.get(page.url.rpartition("run=")[2])
    page.close()
    assert run.ended_at is not None
    parts = (run.created_at - began, run.ended_at - run.created_at, ended - run.ended_at)
    return Waited(*(part.total_seconds() for part in parts))


def _now() -> datetime:
    """As the history writes it: UTC, without saying so."""
    return datetime.now(UTC).replace(tzinfo=None)


def main() -> None:
    out = Console()
    with tempfile.TemporaryDirectory() as home:
        settings = read_settings(home=Path(home))
        with (
            services(settings, say=out.print),
            dashboard(settings, free_ports(1)[0]) as address,
            sync_playwright() as driver,
        ):
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            times, history = [], History(settings)
            for number in range(WARMING + COUNTED):
                took = click_to_verdict(browser, address, history)
                warming = number < WARMING
                parts = (
                    f"{took.start:.1f} to start, {took.run:.1f} the run, {took.seen:.1f} until it"
                    " was seen"
                )
                out.print(f"{took.whole:5.1f} s: {parts}{' (warming)' if warming else ''}")
                times += [] if warming else [took.whole]
            browser.close()
    out.print(
        f"{RECORDS:,} records: median {statistics.median(times):.1f} s, worst {max(times):.1f} s of"
        f" {len(times)}"
    )


if __name__ == "__main__":
    main()
