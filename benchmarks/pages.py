"""How soon each page of the dashboard shows its frame and its content, and answers a click, in a
real browser.

Run as `make bench-pages`; with `ARGS="--records 1000000"` a smaller one, with `ARGS="--partitions
200 --topics 300"` a large cluster. A topic of 16 partitions and 10 million offsets is written in
transactions, every fifth of them aborted, to a Kafka that is thrown away afterwards, with small
topics and two small runs beside it. Each page is opened once to
warm it (which scans the topic's log), and then again and again; the median counts.

Frame: the page's title can be seen. Content: what the page is for can be seen, and its script has
ended. Both are taken twice: in the open dashboard, by somebody who goes to another page and back,
and by a link in a tab of its own, where the browser starts all of the dashboard's and Plotly's
programs anew. Reaction: from a click to what it asked for. The page itself takes these times, at
the animation frame that shows what is waited for: Playwright looks twice a second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

from confluent_kafka import Producer
from playwright.sync_api import BrowserContext, Page, ViewportSize, expect, sync_playwright
from rich.console import Console
from rich.table import Table

from benchmarks.click import CHROMIUM, FLAGS, PATIENCE_MS
from topicproof.backend.address import Address
from topicproof.backend.history.store import History
from topicproof.backend.kafka.client_configs import transactional_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.matrix.cells import RESULTS, Result
from topicproof.backend.matrix.choice import cells
from topicproof.backend.runs.context import make_context
from topicproof.backend.runs.create import create
from topicproof.backend.runs.execute import execute
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.services.dashboard import dashboard
from topicproof.backend.services.keeper import Services, services
from topicproof.backend.services.processes import free_ports
from topicproof.backend.settings import Settings, read_settings

RECORDS, PARTITIONS, TOPICS = 10_000_000, 16, 10
TOPIC = "ten-million"
OTHER = "events-{}"
"""Name of a small topic."""
FEW = 100
"""Records of a small topic."""
AT_ONCE = 10_000
"""Records of one transaction."""
BATCH = 500
"""Records of one batch, of which the log's scan reads the header."""
ABORTED_EVERY = 5
COUNTED = 5
SCREEN: ViewportSize = {"width": 1280, "height": 900}
EAGER = "--js-flags=--no-enable-lazy-source-positions"
"""While a program steers the browser, every stack trace asks where in the source it is, and V8
parses the whole of Plotly anew to tell: half a second that nobody else waits. So positions are
noted at once."""
LIMITS = {
    "frame": 1.0,
    "content": 2.0,
    "reaction": 0.5,
    "frame by link": 1.0,
    "content by link": 2.0,
}
"""Seconds."""
PLAN = {
    "records": 6_000,
    "partitions": 3,
    "per_transaction": 500,
    "abort_probability": 0.3,
    "seed": 1,
}


SEEN = """([sights, whole]) => {
    const app = document.querySelector("[data-testid=stApp]");
    if (whole && app?.dataset.testScriptState !== "notRunning") return false;
    const says = (root, text) => {
        const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
        while (texts.nextNode()) {
            const found = texts.currentNode;
            if (found.data.includes(text) && found.parentElement.checkVisibility()) return true;
        }
        return false;
    };
    const shows = (root, text) => text ? says(root, text) : root.getClientRects().length > 0;
    const seen = ([selector, text]) =>
      [...document.querySelectorAll(selector)].some(root => shows(root, text));
    return sights.every(seen) && performance.now();
}"""
"""The milliseconds since the navigation began, once all sights can be seen (`whole`: and the script
has ended)."""
BACK = "(() => { const at = performance.now(); history.back(); return at; })()"
CLICKS = "addEventListener('pointerdown', () => { window.clickedAt = performance.now(); }, true);"


@dataclass(frozen=True)
class Sight:
    """A text somewhere below what a CSS selector finds; without a text, what the selector finds."""

    selector: str
    text: str = ""


TITLE = Sight("h1")
TABLE = Sight("[data-testid=stDataFrame] canvas")
HEAT_MAP = Sight(".stPlotlyChart .heatmaplayer image")


@dataclass(frozen=True)
class Visit:
    """A page: where it is, what it is for, and a click on it."""

    name: str
    address: str
    content: Sequence[Sight]
    click: Callable[[Page], None] | None = None
    answer: Sight | None = None
    before: Callable[[Page], None] | None = None
    """What must be open for the click, as a list of options."""
    title: str = ""
    """Its heading, if that is not its name."""
    back_from: str = "Lab"
    """The place from which the user comes back."""


@dataclass(frozen=True)
class Figures:
    """Medians of one page, in seconds; None: the page has nothing to click that asks anything."""

    name: str
    frame: float
    content: float
    reaction: float | None
    linked_frame: float
    linked_content: float


def visits(runs: Sequence[str]) -> list[Visit]:
    newest, older = runs

    def heading(name: str) -> Sight:
        return Sight("h1, h2, h3, h4", name)

    def text(said: str) -> Sight:
        return Sight("[data-testid=stMain]", said)

    def press(name: str) -> Callable[[Page], None]:
        return lambda page: page.get_by_role("button", name=name).first.click()

    def unfold(label: str) -> Callable[[Page], None]:
        return lambda page: page.get_by_role("combobox", name=label).click()

    def choose(option: str) -> Callable[[Page], None]:
        return lambda page: page.get_by_role("option", name=option).first.click()

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
        Visit("Home", "", [text("asked at"), text("not signed")], title="Topicproof"),
        Visit(
            "Run",
            f"run?run={newest}",
            [text("Recent runs")],
            second_row(35),
            heading(older),
            title="Lab",
            back_from="Checks",
        ),
        Visit(
            "Demos",
            f"demos?story=aborts&runs={newest}",
            [text("What there is to see")],
            title="Lab",
            back_from="Checks",
        ),
        Visit(
            "Compare",
            f"compare?topic={TOPIC}&partition=3",
            [HEAT_MAP, heading("Offset")],
            press("Next marker"),
            text("no consumer ever gets"),
            title="Topics",
        ),
        Visit(
            "Transactions",
            f"transactions?topic={TOPIC}",
            [Sight(".stPlotlyChart .barlayer .point path"), TABLE],
            second_row(28),
            text("Compare at its marker"),
            title="Topics",
        ),
        Visit(
            "Topics",
            f"topics?topic={TOPIC}",
            [TABLE, heading("Offset")],
            segment("Partitions"),
            text("Offsets by fate"),
        ),
        Visit(
            "All topics",
            "topics?view=cluster",
            [TABLE, text("shown. Asked at")],
            lambda page: page.get_by_role("button", name="with withheld records").click(),
            text("No topic matches these filters."),
            title="Topics",
        ),
        Visit(
            "All groups",
            "topics?view=all-groups",
            [TABLE, text("stuck behind an open transaction")],
            lambda page: page.get_by_role("button", name="with members").click(),
            text("No group matches these filters."),
            title="Topics",
        ),
        Visit(
            "Check",
            f"check?source={OTHER.format(0)}&sink={OTHER.format(1)}",
            [text("What the identity matches"), TABLE],
            choose("several, by a count"),
            Sight("[data-testid=stTextInput] label", "Count"),
            unfold("Outputs per input"),
            title="Checks",
        ),
        Visit(
            "Verdict",
            f"verdict?run={newest}",
            [text("Sign-off")],
            choose(older),
            text(f"/{older}"),
            unfold("Run or check"),
            title="Checks",
        ),
        Visit(
            "Matrix",
            "matrix",
            [HEAT_MAP, TABLE, text("cells agree")],
            second_row(28),
            heading("under"),
            title="Lab",
            back_from="Checks",
        ),
        Visit(
            "History",
            "history",
            [Sight(".stPlotlyChart .scatterlayer .point"), heading("Two side by side")],
            choose("inputs judged"),
            Sight(".stPlotlyChart", "inputs judged"),
            unfold("Figure"),
        ),
    ]


def measure(
    browser: BrowserContext, address: str, visit: Visit
) -> tuple[float, float, float | None, float, float]:
    """As `Figures` has them, in seconds."""
    page = browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.add_init_script(CLICKS)
    page.goto(f"{address}/{visit.address}", wait_until="commit")
    linked_frame, linked_content = shown(page, visit)
    page.get_by_test_id("stTopNavLink").filter(has_text=visit.back_from).click()
    seen(page, Sight("h1", visit.back_from), whole=True)
    page.wait_for_load_state("networkidle")
    left = page.evaluate(BACK) / 1000
    frame, content = shown(page, visit)
    reaction = None
    if visit.click is not None and visit.answer is not None:
        page.wait_for_load_state("networkidle")
        if visit.before is not None:
            visit.before(page)
        visit.click(page)
        reaction = seen(page, visit.answer) - page.evaluate("window.clickedAt / 1000")
    expect(page.get_by_test_id("stException")).to_have_count(0)
    page.close()
    return frame - left, content - left, reaction, linked_frame, linked_content


def shown(page: Page, visit: Visit) -> tuple[float, float]:
    """When frame and content can be seen, in seconds since the navigation."""
    return seen(page, Sight(TITLE.selector, visit.title or visit.name)), seen(
        page, *visit.content, whole=True
    )


def seen(page: Page, *sights: Sight, whole: bool = False) -> float:
    """Seconds from the navigation until all can be seen; `whole`: and the page's script has
    ended."""
    wanted = [[sight.selector, sight.text] for sight in sights]
    at = page.wait_for_function(SEEN, arg=[wanted, whole], polling="raf")
    return float(at.json_value()) / 1000


def fill(bootstrap: str, records: int, partitions: int, topics: int) -> None:
    """The large topic, and small ones."""
    cluster = Cluster(Address(bootstrap))
    cluster.create_topic(TOPIC, partitions)
    config = {
        "batch.num.messages": BATCH,
        "linger.ms": 50,
        "queue.buffering.max.messages": 10 * AT_ONCE,
    }
    producer = Producer({**transactional_producer_config(Address(bootstrap), TOPIC), **config})
    producer.init_transactions(30)
    for number in range(records // AT_ONCE):
        producer.begin_transaction()
        messages = [{"key": b"%d" % n, "value": b"%d" % (n * n)} for n in range(AT_ONCE)]
        producer.produce_batch(TOPIC, messages, partition=number % partitions)
        producer.flush(60)
        if number % ABORTED_EVERY:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
    producer.begin_transaction()
    for number in range(topics):
        cluster.create_topic(OTHER.format(number), 1)
        messages = [{"key": b"%d" % n, "value": b"%d" % n} for n in range(FEW)]
        producer.produce_batch(OTHER.format(number), messages, partition=0)
    producer.commit_transaction(60)
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
        Result(
            one.guarantee,
            one.fault,
            one.plan,
            "squares-none",
            "HOLDS",
            {},
            "exact",
            "it fired",
            (),
            6.0,
        )
        for one in cells()
    ]
    path = settings.home / RESULTS
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(one) for one in results]), encoding="utf-8")


def main() -> None:
    options = argparse.ArgumentParser(description="How soon the pages answer.")
    options.add_argument("--records", type=int, default=RECORDS)
    options.add_argument("--partitions", type=int, default=PARTITIONS)
    options.add_argument("--topics", type=int, default=TOPICS, help="small ones beside it")
    options.add_argument("--times", type=int, default=COUNTED)
    options.add_argument("--page", help="only this one")
    asked = options.parse_args()
    out, errors = Console(), Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="topicproof-bench-") as home:
        settings = read_settings(home=Path(home))
        with (
            services(settings, say=errors.print) as found,
            dashboard(settings, free_ports(1)[0]) as address,
        ):
            began = time.monotonic()
            fill(found.bootstrap, asked.records, asked.partitions, asked.topics)
            errors.print(f"{TOPIC}: {asked.records:,} records in {time.monotonic() - began:.0f} s")
            runs = [small_run(settings, found) for _ in range(2)]
            whole_matrix(settings)
            with sync_playwright() as driver:
                # A profile on disk, as a person's: one in memory compiles the dashboard's scripts
                # anew in every tab.
                browser = driver.chromium.launch_persistent_context(
                    Path(home) / "browser",
                    executable_path=CHROMIUM,
                    args=[*FLAGS, EAGER],
                    viewport={"width": 1280, "height": 900},
                )
                figures = []
                for visit in visits(runs[::-1]):
                    if asked.page and asked.page.lower() != visit.name.lower():
                        continue
                    first = measure(browser, address, visit)
                    errors.print(f"{visit.name}: content after {first[-1]:.1f} s the first time")
                    figures.append(
                        medians(
                            visit.name,
                            [measure(browser, address, visit) for _ in range(asked.times)],
                        )
                    )
                browser.close()
    scene = f"{asked.records:,} records in {asked.partitions} partitions, {asked.topics} topics"
    out.print(as_table(figures, scene))


def medians(name: str, times: Sequence[tuple[float, float, float | None, float, float]]) -> Figures:
    found = []
    for column in zip(*times, strict=True):
        known = [one for one in column if one is not None]
        found.append(statistics.median(known) if known else None)
    return Figures(name, *found)  # type: ignore[arg-type]


def as_table(figures: Sequence[Figures], scene: str) -> Table:
    table = Table(title=f"Pages at {scene}, warm, seconds")
    table.add_column("page", no_wrap=True)
    for name, limit in LIMITS.items():
        table.add_column(f"{name} (< {limit:g})", justify="right")
    for one in figures:
        found = zip(astuple(one)[1:], LIMITS.values(), strict=True)
        table.add_row(
            one.name,
            *("–" if s is None else f"{s:.2f}{'' if s < limit else ' !'}" for s, limit in found),
        )
    return table


if __name__ == "__main__":
    main()
