"""Screenshots of every page in six states, at three widths and in both themes, for people to look
at.

`python -m tests.browser.screenshots FOLDER` starts a Kafka, a Spark and a dashboard of its own, and
writes `FOLDER/STATE-PAGE-THEME-WIDTH.png`: a quarter of an hour for all 432. `--states`, `--pages`,
`--themes` and `--widths` take fewer: `--pages check topics --themes dark --widths 820`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from playwright.sync_api import Browser, Page, expect, sync_playwright

from benchmarks.pages import whole_matrix
from tests.backend.kafka.topics import Writer
from tests.browser.conftest import CHROMIUM, FLAGS
from tests.conftest import wait_until
from tests.ports import free_ports
from tests.runs import run_to_end
from topicproof.backend.address import Address
from topicproof.backend.history.store import History
from topicproof.backend.kafka.client_configs import transactional_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs.context import make_context, stop
from topicproof.backend.runs.create import create
from topicproof.backend.runs.execute import execute
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.services.dashboard import dashboard
from topicproof.backend.services.keeper import Services, services
from topicproof.backend.settings import Settings, read_settings

STATES = ("fresh", "healthy", "violated", "running", "hostile", "failing")
WIDTHS, THEMES = (1440, 1024, 820), ("light", "dark")
HEIGHT, HEIGHT_MAX = 900, 3_000
SMALL: dict[str, Any] = {"records": 6_000, "partitions": 3, "per_transaction": 400, "seed": 1}
LONG = "orders.of-the-european-subsidiary.with-a-very-long-name." * 4
KEYS = ("<script>alert(1)</script>", "tab\there\x00\x1b[31m\u202e", "![x](http://127.0.0.1/y) $x$")
Pages = dict[str, str]


def pages(run: str = "", topic: str = "", source: str = "") -> Pages:
    """The address of every page, about this run and this topic if there are any."""
    about = f"?run={run}" if run else ""
    at = f"?topic={topic}" if topic else ""
    return {
        "home": "",
        "run": f"run{about}",
        "demos": f"demos?story=clean&runs={run}" if run else "demos",
        "compare": f"compare{at}",
        "transactions": f"transactions{at}",
        "topics": f"topics{at}",
        "all-topics": "topics?view=cluster",
        "all-groups": "topics?view=all-groups",
        "all-transactions": "topics?view=all-transactions",
        "check": f"check?source={source}&sink={topic}" if source else "check",
        "verdict": f"verdict{about}",
        "watch": "watch",
        "matrix": "matrix",
        "history": "history",
    }


@contextmanager
def state(name: str, found: Settings, cluster: Services) -> Iterator[Pages]:
    """Bring about a state. Yields the pages that show it."""
    if name == "healthy":
        whole_matrix(found)
        done = run_to_end(found, cluster, **SMALL, abort_probability=0.3)
        yield pages(done.run.id, done.sink, done.source)
    elif name == "violated":
        fault = "offsets@transaction=2,how=rewound"
        done = run_to_end(found, cluster, **SMALL, faults=[fault], offsets_forced=True)
        yield pages(done.run.id, done.sink, done.source)
    elif name == "hostile":
        source, sink = hostile(cluster.bootstrap)
        words = ["check", "--source", source, "--sink", sink, "--identity", "key"]
        command = [sys.executable, "-m", "topicproof.backend.cli", *words]
        subprocess.run(command, check=False, env={**os.environ, **found.environment()})
        (run,) = History(found).list(1)
        yield pages(run.id, sink, source)
    elif name == "running":
        with running(found, cluster) as shown:
            yield shown
    else:
        newest = History(found).list(1)
        yield next((pages(one.id, one.facts.sink, one.facts.source) for one in newest), pages())


@contextmanager
def running(found: Settings, cluster: Services) -> Iterator[Pages]:
    """A live run in real time, with a transaction of somebody else that stays open."""
    history = History(found)
    plan: dict[str, Any] = {"until_stopped": True, "by_hand": True, "rate": 60, "partitions": 2}
    plan |= {"trigger": "real_time", "commit_interval_ms": 300, "slow_motion_ms": 900}
    run = create(found, cluster, history, make_plan(plan))
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(execute, make_context(found, cluster, history, run))
        wait_until(lambda: history.get(run.id).progress.committed > 5, 120, "transactions")
        Writer(cluster.bootstrap, run.facts.sink).write("A3 A- B5")
        yield pages(run.id, run.facts.sink, run.facts.source)
        stop(history, run.id)
        done.result()


def hostile(bootstrap: str) -> tuple[str, str]:
    """Two topics with names, ids, keys and values that pages find hard to show."""
    source, sink = f"{LONG}source", f"{LONG}sink"
    cluster = Cluster(Address(bootstrap))
    for topic in (source, sink):
        cluster.create_topic(topic, 3)
        name = f"<b>{topic[-6:]}</b>\n{'of-a-very-long-name-' * 6}"
        writer = Producer(transactional_producer_config(Address(bootstrap), name))
        writer.init_transactions(10)
        writer.begin_transaction()
        for n, key in enumerate(KEYS * 20):
            value = "W" * 200_000 if n % 7 == 0 else f'{{"a": {"[" * 30 + "]" * 30}, "k": "{n}"}}'
            headers: list[Any] = [("<i>header</i>" * 9, b"\x00\xff"), ("none", None)]
            writer.produce(topic, value.encode(), f"{n}{key}".encode(), n % 3, headers=headers)
        writer.commit_transaction(10)
    return source, sink


def shoot(
    browser: Browser, address: str, shown: Pages, name: str, wanted: argparse.Namespace
) -> None:
    """Open each page once per theme, and take it at each width."""
    for theme in wanted.themes:
        window = browser.new_page(color_scheme=theme)
        for page, link in shown.items():
            if page not in wanted.pages:
                continue
            window.set_viewport_size({"width": WIDTHS[0], "height": HEIGHT})
            window.goto(f"{address}/{link}")
            for width in wanted.widths:
                whole(window, width)
                window.screenshot(path=wanted.folder / f"{name}-{page}-{theme}-{width}.png")
        window.close()


def whole(window: Page, width: int) -> None:
    """Make the window so high that nothing has to be scrolled."""
    window.set_viewport_size({"width": width, "height": HEIGHT})
    expect(window.get_by_role("heading", level=1).first).to_be_visible()
    for pending in ("[data-testid=stSkeleton]", "[data-testid=stSpinner]", "[data-stale=true]"):
        expect(window.locator(pending)).to_have_count(0)
    expect(window.locator("[data-test-script-state=notRunning]")).to_have_count(1)
    window.wait_for_timeout(1_000)
    high = window.get_by_test_id("stMain").evaluate("main => main.scrollHeight")
    window.set_viewport_size({"width": width, "height": min(HEIGHT_MAX, max(HEIGHT, high))})
    window.wait_for_timeout(400)


def main(wanted: argparse.Namespace) -> None:
    wanted.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="topicproof-screenshots-") as home:
        found = read_settings(home=Path(home))
        gone = found.model_copy(update={"bootstrap": "127.0.0.1:1"})
        with services(found) as cluster, sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            for name in wanted.states:
                at = gone if name == "failing" else found
                with (
                    dashboard(at, free_ports(1)[0]) as address,
                    state(name, found, cluster) as shown,
                ):
                    shoot(browser, address, shown, name, wanted)
            browser.close()


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Take pictures of the dashboard's pages.")
    parser.add_argument("folder", type=Path)
    for name, known in (
        ("states", STATES),
        ("pages", tuple(pages())),
        ("themes", THEMES),
        ("widths", WIDTHS),
    ):
        kind = type(known[0])
        parser.add_argument(f"--{name}", nargs="+", type=kind, choices=known, default=known)
    return parser.parse_args()


if __name__ == "__main__":
    main(asked())
