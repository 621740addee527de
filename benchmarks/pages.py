"""How soon each page of the dashboard shows its frame and its content, and answers a click, in a real browser.

Run as `make bench-pages`; `python -m benchmarks.pages --records 1000000` is a smaller one. A topic of 16 partitions and
10 million offsets is written in transactions, every fifth of them aborted, to a Kafka that is thrown away afterwards,
with two small runs beside it. Each page is opened once to warm it (which scans the topic's log), and then again in
windows of their own, as by somebody who follows a link; the median counts.

Frame: the page's title can be seen. Content: what the page is for can be seen, and its script has ended. Reaction: from
a click to what it asked for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import Producer
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
from rich.console import Console
from rich.table import Table

from backend.dashboard import dashboard
from backend.history.store import History
from backend.kafka.broker import free_ports
from backend.kafka.cluster import Cluster
from backend.matrix import RESULTS, Result
from backend.matrix_table import cells
from backend.pipeline.plan import make_plan
from backend.pipeline.run import create, execute, make_context
from backend.services import Services, services
from backend.settings import Settings, read_settings, transactional_producer_config
from benchmarks.click import CHROMIUM, FLAGS, PATIENCE_MS

RECORDS, PARTITIONS = 10_000_000, 16
TOPIC = "ten-million"
AT_ONCE = 10_000
"""Records of one transaction."""
BATCH = 500
"""Records of one batch, of which the log's scan reads the header."""
ABORTED_EVERY = 5
COUNTED = 5
LIMITS = (1.0, 2.0, 0.5)
"""Seconds: frame, content, reaction."""
PLAN = {"records": 6_000, "partitions": 3, "per_transaction": 500, "abort_probability": 0.3, "seed": 1}


@dataclass(frozen=True)
class Visit:
    """A page: where it is, what it is for, and a click on it."""

    name: str
    address: str
    content: Callable[[Page], Locator]
    click: Callable[[Page], None] | None = None
    answer: Callable[[Page], Locator] | None = None


@dataclass(frozen=True)
class Figures:
    """Medians of one page, in seconds; None: the page has nothing to click that asks anything."""

    name: str
    frame: float
    content: float
    reaction: float | None


def visits(runs: Sequence[str]) -> list[Visit]:
    newest, older = runs

    def heading(name: str) -> Callable[[Page], Locator]:
        return lambda page: page.get_by_role("heading", name=name).first

    def text(said: str) -> Callable[[Page], Locator]:
        return lambda page: page.get_by_text(said).first

    def drawn(said: str) -> Callable[[Page], Locator]:
        return lambda page: page.locator(".stPlotlyChart").get_by_text(said).first

    def press(name: str) -> Callable[[Page], None]:
        return lambda page: page.get_by_role("button", name=name).first.click()

    def choose(label: str, option: str) -> Callable[[Page], None]:
        def chosen(page: Page) -> None:
            page.get_by_role("combobox", name=label).click()
            page.get_by_role("option", name=option).first.click()

        return chosen

    def segment(name: str) -> Callable[[Page], None]:
        return lambda page: page.get_by_test_id("stButtonGroup").get_by_text(name).click()

    def second_row(row_px: int) -> Callable[[Page], None]:
        """A click into the second row of the page's first table."""

        def clicked(page: Page) -> None:
            table = page.locator("[data-testid=stDataFrame]:visible").first
            table.scroll_into_view_if_needed()
            table.click(position={"x": 60, "y": row_px * 2.5})

        return clicked

    return [
        Visit("Run", f"?run={newest}", text("Recent runs"), second_row(35), heading(older)),
        Visit("Demos", f"demos?story=aborts&runs={newest}", text("What there is to see")),
        Visit(
            "Compare",
            f"compare?topic={TOPIC}&partition=3",
            heading("Offset"),
            press("Next marker"),
            text("no consumer ever gets"),
        ),
        Visit(
            "Transactions",
            f"transactions?topic={TOPIC}",
            lambda page: page.locator(".stPlotlyChart .barlayer .point").first,
            second_row(28),
            text("Compare at its marker"),
        ),
        Visit("Topics", f"topics?topic={TOPIC}", heading("Offset"), segment("Partitions"), text("Offsets by fate")),
        Visit("Verdict", f"verdict?run={newest}", text("Sign-off"), choose("Run or check", older), text(f"/{older}")),
        Visit("Matrix", "matrix", text("cells agree"), second_row(28), heading("under")),
        Visit(
            "History", "history", heading("Two side by side"), choose("Figure", "inputs judged"), drawn("inputs judged")
        ),
    ]


def measure(browser: Browser, address: str, visit: Visit) -> tuple[float, float, float | None]:
    """Seconds until the frame, the content, and what a click asks for."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(PATIENCE_MS)
    began = time.monotonic()
    page.goto(f"{address}/{visit.address}", wait_until="commit")
    page.get_by_role("heading", level=1).wait_for()
    frame = time.monotonic() - began
    visit.content(page).wait_for()
    done(page)
    content = time.monotonic() - began
    reaction = None
    if visit.click is not None and visit.answer is not None:
        page.wait_for_load_state("networkidle")
        began = time.monotonic()
        visit.click(page)
        visit.answer(page).wait_for()
        reaction = time.monotonic() - began
    expect(page.get_by_test_id("stException")).to_have_count(0)
    page.close()
    return frame, content, reaction


def done(page: Page) -> None:
    """Until the page's script has ended."""
    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for()


def fill(bootstrap: str, records: int) -> None:
    """The large topic."""
    cluster = Cluster(bootstrap, {})
    cluster.create_topic(TOPIC, PARTITIONS)
    config = {"batch.num.messages": BATCH, "linger.ms": 50, "queue.buffering.max.messages": 10 * AT_ONCE}
    producer = Producer({**transactional_producer_config(bootstrap, {}, TOPIC), **config})
    producer.init_transactions(30)
    for number in range(records // AT_ONCE):
        producer.begin_transaction()
        messages = [{"key": b"%d" % n, "value": b"%d" % (n * n)} for n in range(AT_ONCE)]
        producer.produce_batch(TOPIC, messages, partition=number % PARTITIONS)
        producer.flush(60)
        if number % ABORTED_EVERY:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
    producer.close()


def small_run(settings: Settings, found: Services) -> str:
    history = History(settings)
    run = create(settings, found, history, make_plan(dict(PLAN)))
    execute(make_context(settings, found, history, run, threading.Event()))
    history.engine.dispose()
    return run.id


def whole_matrix(settings: Settings) -> None:
    """Results of every cell, as a matrix leaves them: nothing is run, only shown."""
    results = [
        Result(one.guarantee, one.fault, one.plan, "squares-none", "HOLDS", {}, "exact", "it fired", (), 6.0)
        for one in cells()
    ]
    path = settings.home / RESULTS
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(one) for one in results]), encoding="utf-8")


def main() -> None:
    options = argparse.ArgumentParser(description="How soon the pages answer.")
    options.add_argument("--records", type=int, default=RECORDS)
    options.add_argument("--times", type=int, default=COUNTED)
    options.add_argument("--page", help="only this one")
    asked = options.parse_args()
    out, errors = Console(), Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="topicproof-bench-") as home:
        settings = read_settings(home=Path(home))
        with services(settings, errors.print) as found, dashboard(settings, free_ports(1)[0]) as address:
            began = time.monotonic()
            fill(found.bootstrap, asked.records)
            errors.print(f"{TOPIC}: {asked.records:,} records in {time.monotonic() - began:.0f} s")
            runs = [small_run(settings, found) for _ in range(2)]
            whole_matrix(settings)
            with sync_playwright() as driver:
                browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
                figures = []
                for visit in visits(runs[::-1]):
                    if asked.page and asked.page.lower() != visit.name.lower():
                        continue
                    first = measure(browser, address, visit)
                    errors.print(f"{visit.name}: content after {first[1]:.1f} s the first time")
                    figures.append(medians(visit.name, [measure(browser, address, visit) for _ in range(asked.times)]))
                browser.close()
    out.print(as_table(figures, asked.records))


def medians(name: str, times: Sequence[tuple[float, float, float | None]]) -> Figures:
    frames, contents, reactions = zip(*times, strict=True)
    known = [one for one in reactions if one is not None]
    return Figures(
        name, statistics.median(frames), statistics.median(contents), statistics.median(known) if known else None
    )


def as_table(figures: Sequence[Figures], records: int) -> Table:
    table = Table(title=f"Pages at {records:,} records in {PARTITIONS} partitions, warm, seconds")
    table.add_column("page")
    for name, limit in zip(("frame", "content", "reaction"), LIMITS, strict=True):
        table.add_column(f"{name} (< {limit:g})", justify="right")
    for one in figures:
        shown = zip((one.frame, one.content, one.reaction), LIMITS, strict=True)
        table.add_row(one.name, *("–" if s is None else f"{s:.2f}{'' if s < limit else ' !'}" for s, limit in shown))
    return table


if __name__ == "__main__":
    main()
