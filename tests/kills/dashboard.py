"""Kills of the dashboard while a person starts a run in it. The run has a process of its own."""

from __future__ import annotations

import random
import time
from contextlib import suppress

import psutil
from playwright.sync_api import Browser, Error as PlaywrightError, expect, sync_playwright

from tests.browser.conftest import CHROMIUM, FLAGS, PAGE_MS
from tests.conftest import wait_until
from tests.kills.kill import Kill
from tests.kills.pipeline import RESUME_S, start, wrong
from tests.ports import free_ports
from topicproof.backend.history.store import History, State
from topicproof.backend.services.dashboard import dashboard
from topicproof.backend.settings import Settings

PAGE = "run?plan_records=1200&plan_rate=300&plan_partitions=2&plan_per_transaction=50"
DELAY_S = 8.0
"""The kill comes up to this long after the click."""
SETTLED_S = 10.0
"""How long a run that nobody sees yet may take to appear in the history."""


def kill_dashboard(settings: Settings, chance: random.Random) -> Kill:
    """Start a run by a click, kill the dashboard, and look for the run in another dashboard."""
    history = History(settings)
    before = {one.id for one in history.list()}
    port = free_ports(1)[0]
    delay = chance.uniform(0, DELAY_S)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        with dashboard(settings, port) as address:
            page = browser.new_page()
            page.set_default_timeout(PAGE_MS)
            page.goto(f"{address}/{PAGE}")
            page.get_by_role("button", name="Start the run").click()
            time.sleep(delay)
            _process(port).kill()
            page.close()
        killed = time.monotonic()
        try:
            surprise = _surprise(settings, history, before, browser, port)
        except (AssertionError, PlaywrightError) as error:
            surprise = f"{type(error).__name__}: {error}"
        browser.close()
    moment = f"click + {delay:.1f} s"
    return Kill("dashboard", moment, time.monotonic() - killed, "", surprise)


def _process(port: int) -> psutil.Process:
    """Return the web server, a child of this process."""
    for one in psutil.Process().children():
        with suppress(psutil.ZombieProcess):  # another one, which has ended
            if {"streamlit", str(port)} <= set(one.cmdline()):
                return one
    raise AssertionError(f"there is no dashboard at port {port}")


def _surprise(
    settings: Settings, history: History, before: set[str], browser: Browser, port: int
) -> str:
    """Return what is wrong with the run, in the history and in another dashboard."""

    def found() -> set[str]:
        return {one.id for one in history.list()} - before

    with suppress(AssertionError):
        wait_until(lambda: bool(found()), SETTLED_S, "the run's entry")
    if not found():
        return ""  # The kill came before the run was started.
    (run_id,) = found()
    wait_until(lambda: not history.get(run_id).alive, RESUME_S, "the end of the run")
    if history.get(run_id).state is not State.DONE:
        resumed = start(settings, "resume", run_id)
        told, _ = resumed.communicate(timeout=RESUME_S)
        if resumed.returncode != 0 or "HOLDS" not in told:
            return f"resume: exit code {resumed.returncode}: {told[-600:]}"
    with dashboard(settings, port) as address:
        page = browser.new_page()
        page.goto(f"{address}/run?run={run_id}")
        expect(page.get_by_text("HOLDS").first).to_be_visible(timeout=PAGE_MS)
        page.close()
    return wrong(settings, run_id)
