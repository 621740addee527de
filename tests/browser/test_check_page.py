"""Two topics of another program, checked, signed and downloaded in a real Chromium, without a
terminal; and a table beside them."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from axe_playwright_python.sync_playwright import Axe
from confluent_kafka import Producer
from playwright.sync_api import Locator, Page, expect

from tests import postgresql
from tests.browser.conftest import settled
from tests.browser.test_accessibility import violations
from tests.ports import free_ports
from topicproof.app.check.table_form import A_TABLE
from topicproof.backend.address import Address
from topicproof.backend.contracts.contract import parse_fields
from topicproof.backend.history.kept_contracts import find
from topicproof.backend.history.store import History
from topicproof.backend.kafka.client_configs import transactional_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.services.dashboard import dashboard
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings

RUN_MS = 300_000
INPUTS = 120
CLICKS_MAX = 10
TABLE_CLICKS_MAX = 15
PUT_ASIDE = (17, 90)
"""Orders that the pipeline could not invoice."""
WRONG = 40
"""The order whose row of the ledger has another total."""


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


@dataclass(frozen=True)
class Shop:
    """What a pipeline made of its orders, and a dashboard that may read its ledger."""

    orders: str
    invoices: str
    ledger: str
    """The table's address."""
    dashboard: str


@pytest.fixture
def shop(
    settings: Settings, cluster: Services, bootstrap: str, new_topic: Callable[..., str]
) -> Iterator[Shop]:
    """Orders; an invoice for each of them, or a dead letter as Kafka Connect writes it; and a row
    of the ledger for each invoice, one of which has another total."""
    assert cluster.bootstrap
    orders, invoices = new_topic(), new_topic()
    letters = f"{orders}.dlq"
    Cluster(Address(bootstrap)).create_topic(letters, 1, exists_ok=False)
    producer = Producer(transactional_producer_config(Address(bootstrap), f"shop-{orders}"))
    producer.init_transactions(30)
    producer.begin_transaction()
    for n in range(INPUTS):
        producer.produce(orders, json.dumps({"id": n, "price": f"{n}.25"}).encode())
        if n not in PUT_ASIDE:
            producer.produce(invoices, json.dumps({"id": n, "total": f"{2 * n}.50"}).encode())
            continue
        place = zip(("topic", "partition", "offset"), (orders, "0", str(n)), strict=True)
        headers: dict[str, str | bytes | None] = {
            f"__connect.errors.{name}": value for name, value in place
        }
        producer.produce(letters, b"?", headers=headers)
    producer.commit_transaction(30)
    producer.close()
    with postgresql.server() as url:
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as database:
            database.execute("create table ledger (order_id int, total numeric(12,2))")
            database.execute(
                "insert into ledger select n, n * 2 + case when n = %s then 7 else 0.5 end"
                " from generate_series(0, %s) n where n <> all(%s)",
                (WRONG, INPUTS - 1, list(PUT_ASIDE)),
            )
        place_of_table = f"jdbc:postgresql://{url.partition('@')[2]}?user=tests"
        listed = settings.model_copy(update={"tables": place_of_table})
        with dashboard(listed, free_ports(1)[0]) as address:
            yield Shop(orders, invoices, place_of_table, address)


def test_each_order_is_invoiced_or_put_aside_and_the_ledger_agrees(
    settings: Settings, window: Page, shop: Shop, artifacts: Path
) -> None:
    """Story: a QA lead begins with nothing. Each order is invoiced or in the dead letters: the
    draft says so already, and that holds. The ledger agrees with the invoices: a table is chosen
    as the sink, its key and its total are named, and the check finds the row that is wrong. The
    two contracts take fifteen clicks at most."""
    clicks: list[str] = []

    def click(target: Locator, what: str) -> None:
        target.click()
        clicks.append(what)

    def choose(side: str, name: str) -> None:
        box = window.get_by_role("combobox", name=side, exact=True)
        settled(window)
        expect(box).to_have_count(1)
        click(box, f"open {side}")
        box.fill(name)
        click(window.get_by_role("option", name=name, exact=True), f"choose {side}")

    def check(what: str, word: str) -> None:
        settled(window)
        click(window.get_by_role("button", name="Check now"), f"check the {what}")
        window.wait_for_url("**/check?run=*")
        verdict = window.get_by_role("link", name="Open the verdict and sign it")
        expect(verdict).to_be_visible(timeout=RUN_MS)
        expect(window.get_by_test_id("stAlert").filter(has_text=word).first).to_be_visible()

    window.goto(shop.dashboard)
    click(window.get_by_role("link", name="Checks", exact=True), "the page")
    choose("Source", shop.orders)
    choose("Sink", shop.invoices)
    letters = window.get_by_role("combobox", name="Dead letters (optional)")
    expect(letters).to_have_value(f"{shop.orders}.dlq")
    check("topics", "Holds")

    choose("Sink", A_TABLE)
    expect(window.get_by_role("combobox", name="Address of the database")).to_have_value(
        shop.ledger
    )
    choose("Source", shop.invoices)
    expect(window.get_by_role("combobox", name="Identity in the source")).to_have_value("json $.id")
    settled(window)
    name = window.get_by_role("textbox", name="Table or view")
    click(name, "the table")
    name.fill("ledger")
    name.press("Enter")
    expect(window.get_by_role("textbox", name="Contract name")).to_have_value("ledger")
    key = window.get_by_role("combobox", name="Columns that identify a row")
    click(key, "its key")
    key.fill("order_id")
    key.press("Enter")
    expect(window.get_by_role("button", name="Check now")).to_be_enabled()
    settled(window)
    value = window.get_by_role("textbox", name="Value of each column (optional)")
    click(value, "its values")
    value.fill("total: field('total'")
    value.press("Control+Enter")
    expect(window.get_by_text("does not parse").first).to_be_visible()
    settled(window)
    window.screenshot(path=artifacts / "check-table-mistake.png", full_page=True)
    value.fill("total: field('total')")
    value.press("Control+Enter")
    expect(window.get_by_text("does not parse")).to_have_count(0)
    settled(window)
    window.get_by_role("combobox", name="Source", exact=True).scroll_into_view_if_needed()
    window.screenshot(path=artifacts / "check-table.png", full_page=True)
    assert violations(Axe().run(window).response) == []
    check("table", "Violated")
    assert len(clicks) <= TABLE_CLICKS_MAX, clicks
    (artifacts / "check-table-clicks.txt").write_text("\n".join(clicks) + "\n")

    expect(window.get_by_text("1 of 118 rows").first).to_be_visible()
    history = History(settings)
    assert parse_fields(find(history, "ledger").text) == {
        "guarantee": "exactly_once",
        "source": {"topic": shop.invoices},
        "sink": {"table": {"url": shop.ledger, "name": "ledger", "key": ["order_id"]}},
        "identity": {"source": {"json": "$.id"}, "sink": "key"},
        "value": {"total": "field('total')"},
    }
    letters_term = parse_fields(find(history, shop.invoices).text)["dead_letters"]
    assert letters_term == {"topic": f"{shop.orders}.dlq", "origin": "connect"}
    history.engine.dispose()
