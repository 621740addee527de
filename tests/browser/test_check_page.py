"""Two topics of another program, checked, signed and downloaded in a real Chromium, without a
terminal."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from confluent_kafka import Producer
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import settled
from tests.browser.test_accessibility import violations
from topicproof.backend.address import Address
from topicproof.backend.kafka.client_configs import transactional_producer_config

RUN_MS = 300_000
INPUTS = 120
CLICKS_MAX = 10


@pytest.fixture
def foreign(bootstrap: str, new_topic: Callable[..., str]) -> tuple[str, str]:
    """Orders, and an invoice for each of them, as another program writes them."""
    source, sink = new_topic(2), new_topic(2)
    producer = Producer(transactional_producer_config(Address(bootstrap), f"shop-{source}"))
    producer.init_transactions(30)
    producer.begin_transaction()
    for n in range(INPUTS):
        key = b"customer-%d" % (n % 7)
        producer.produce(source, json.dumps({"id": n}).encode(), key, n % 2)
        producer.produce(sink, json.dumps({"order": {"id": n}}).encode(), key, n % 2)
    producer.commit_transaction(30)
    producer.close()
    return source, sink


def test_a_newcomer_checks_signs_and_downloads_in_ten_clicks(
    address: str, window: Page, foreign: tuple[str, str], tmp_path: Path, artifacts: Path
) -> None:
    """Story: QA has never seen a terminal. Two topics of another program are chosen, a contract is
    drafted from them and understood by a preview, the check runs, its verdict is signed and its
    evidence downloaded. A reload in the middle loses nothing."""
    clicks: list[str] = []

    def click(target: Locator, what: str) -> None:
        target.click()
        clicks.append(what)

    window.goto(address)
    click(window.get_by_role("link", name="Checks", exact=True), "the page")
    for side, topic in zip(("Source", "Sink"), foreign, strict=True):
        box = window.get_by_role("combobox", name=side, exact=True)
        # The list of pipelines goes, and for a moment its page is beneath the next one.
        settled(window)
        expect(box).to_have_count(1)
        click(box, f"open {side}")
        box.fill(topic)
        click(window.get_by_role("option", name=topic), f"choose {side}")
    expect(window.get_by_text(f"of {INPUTS}", exact=True)).to_have_count(2)
    settled(window)
    window.screenshot(path=artifacts / "check.png", full_page=True)
    window.reload()
    expect(window.get_by_role("combobox", name="Identity in the sink")).to_have_value(
        "json $.order.id"
    )
    click(window.get_by_role("button", name="Check now"), "check")
    window.wait_for_url("**/check?run=*")
    verdict = window.get_by_role("link", name="Open the verdict and sign it")
    expect(verdict).to_be_visible(timeout=RUN_MS)
    click(verdict, "the verdict")
    expect(window.get_by_text(f"contract {foreign[1]}")).to_be_visible()
    expect(window.get_by_text("records matched by json $.id = json $.order.id")).to_be_visible()
    name = window.get_by_role("textbox", name="Your name")
    click(name, "the name")
    name.fill("Grace Hopper")
    click(window.get_by_role("button", name="Sign", exact=True), "sign")
    expect(window.get_by_text("Grace Hopper (unauthenticated) accepted HOLDS").first).to_be_visible(
        timeout=RUN_MS
    )
    with window.expect_download() as download:
        click(window.get_by_role("button", name="Download evidence"), "download")
    download.value.save_as(tmp_path / "evidence.zip")
    with zipfile.ZipFile(tmp_path / "evidence.zip") as evidence:
        (contract,) = (one for one in evidence.namelist() if one.endswith("contract.yaml"))
        assert f"sink: {{topic: {foreign[1]}}}" in evidence.read(contract).decode()
    assert len(clicks) <= CLICKS_MAX, clicks

    # It has a row among the pipelines, which leads back to its verdict.
    window.goto(f"{address}/check?pipeline={foreign[1]}")
    row = window.get_by_role("link", name=foreign[1])
    about = window.get_by_test_id("stHorizontalBlock").filter(has=row).last
    expect(about).to_contain_text(re.compile(r"first verdict.*accepted\s*by Grace Hopper"))
    settled(window)
    window.screenshot(path=artifacts / "pipelines.png", full_page=True)
    assert violations(Axe().run(window).response) == []
    window.get_by_role("button", name="Check this again").click()
    expect(about).to_contain_text(re.compile(r"as last time.*not signed"), timeout=RUN_MS)
    settled(window)
    window.screenshot(path=artifacts / "pipelines-again.png", full_page=True)
    row.click()
    window.wait_for_url("**/verdict?run=*")
    expect(window.get_by_text("As last time")).to_be_visible()

    window.get_by_role("link", name="Check again").first.click()
    expect(window.get_by_role("button", name="Check again")).to_be_enabled()
    expect(window.get_by_role("textbox", name="Contract name")).to_have_value(foreign[1])
