"""What people rely on, in a real Chromium: addresses, forms, findings on the strip, decisions."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from playwright.sync_api import Page, expect

from tests.browser.conftest import at_tab, settled
from topicproof.backend.address import Address
from topicproof.backend.evidence.manifest import differences
from topicproof.backend.history.signoff import Decision, breaking, sign, signable
from topicproof.backend.history.store import History
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs.check import check
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.question import Question

RUN_MS = 300_000
Checked = Callable[[list[int]], tuple[str, str]]


@pytest.fixture
def checked(settings: Settings, cluster: Services, new_topic: Callable[..., str]) -> Checked:
    """Writes a hundred keys to a source and these keys to a sink, and checks them. Returns the sink
    and the id of the check."""

    def judge(keys: list[int]) -> tuple[str, str]:
        source, sink = new_topic(), new_topic()
        address = Address(cluster.bootstrap)
        producer = Producer(idempotent_producer_config(address))
        for topic, written in ((source, range(100)), (sink, keys)):
            for key in written:
                producer.produce(topic, key=str(key), value=str(key * key), partition=0)
        assert producer.flush(30) == 0
        question = Question(
            source=Cluster(address).bounds(source), sink=sink, identity=Identity.KEY
        )
        report = check(settings, cluster, History(settings), question)
        assert report.run is not None
        return sink, report.run

    return judge


def test_the_start_page_has_a_name_and_its_form_survives_a_reload(
    address: str, window: Page
) -> None:
    """Story: somebody types the address of a page as it is called, fills in its form, and reloads
    before the start."""
    window.goto(f"{address}/run")
    at_tab(window, "Run")
    expect(window.get_by_text("Page not found")).to_have_count(0)
    records = window.get_by_role("spinbutton", name="Records", exact=True)
    records.fill("5000")
    records.press("Tab")
    window.wait_for_url("**plan_records=5000*")
    window.reload()
    expect(records).to_have_value("5000")


def test_a_duplicate_is_seen_signed_and_downloaded(
    address: str, window: Page, settings: Settings, checked: Checked, tmp_path: Path
) -> None:
    """Story: a check finds a replay. The strip of its sink shows it and leads to the first copy and
    to the verdict. QA waives and accepts; the decision and the download say so."""
    sink, run = checked([*range(100), *range(10, 20)])
    window.goto(f"{address}/compare?topic={sink}&partition=0&offset=105")
    expect(window.get_by_text("Duplicates: 10 in 1 place.")).to_be_visible()
    settled(window)
    # The browser loads the drawing code first.
    expect(window.locator(".stPlotlyChart .main-svg").first).to_be_visible()
    expect(window.locator(".stPlotlyChart text", has_text="2×")).to_have_count(1)
    window.get_by_role("button", name="Its first copy: partition 0, offset 15").click()
    expect(window.get_by_role("heading", name="Offset 15")).to_be_visible()
    settled(window)
    window.get_by_role("link", name=re.compile("Verdict$")).last.click()
    window.wait_for_url(f"**/verdict?run={run}")
    settled(window)
    window.get_by_role("button", name="Sign", exact=True).click()
    expect(window.get_by_text("A sign-off needs a name.")).to_be_visible()
    expect(window.get_by_text("--by")).to_have_count(0)

    history = History(settings)
    reports, digest = signable(settings, history.get(run))
    kinds = [one.kind for one in breaking(*reports)]
    # All of them at once.
    window.get_by_text("Waive findings").click()
    window.get_by_role("textbox", name="Your name").fill("Grace Hopper")
    window.get_by_role("textbox", name="Comment").fill("known")
    window.get_by_role("button", name="Sign", exact=True).click()
    expect(
        window.get_by_text(re.compile(r"Grace Hopper \(unauthenticated\) waived"))
    ).to_have_count(len(kinds))
    waived = f"{len(kinds)} of {len(kinds)} findings waived, but nobody has accepted the verdict."
    expect(window.get_by_text(waived)).to_be_visible()
    sign(history, run, reports, digest, Decision.ACCEPT, "Grace Hopper")
    window.reload()
    expect(window.get_by_text(f"accepted with {len(kinds)} waiver")).to_be_visible()
    with window.expect_download() as download:
        window.get_by_role("button", name="Download evidence").click()
    download.value.save_as(tmp_path / "evidence.zip")
    with zipfile.ZipFile(tmp_path / "evidence.zip") as packed:
        packed.extractall(tmp_path)
    kept = tmp_path / run
    assert [one["decision"] for one in json.loads((kept / "signoffs.json").read_text())] == [
        *["waive"] * len(kinds),
        "accept",
    ]
    assert "Grace Hopper" in (kept / "report.html").read_text() and differences(kept) == []


def test_a_pair_without_transactions_gets_a_verdict(
    address: str, window: Page, checked: Checked
) -> None:
    """Story: two clean topics that no transaction wrote. Each input has its output once, and the
    raw log says that no record could have been aborted."""
    _sink, run = checked(list(range(100)))
    window.goto(f"{address}/verdict?run={run}")
    expect(window.get_by_text("HOLDS · exactly_once")).to_be_visible()
