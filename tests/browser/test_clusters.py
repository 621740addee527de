"""The selector of named clusters in a real Chromium, with two real clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.backend.kafka.topics import Writer
from tests.browser.conftest import settled
from topicproof.backend.address import Address
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.services.dashboard import dashboard
from topicproof.backend.services.jars import BROKER, jar_files
from topicproof.backend.services.kafka import EmbeddedKafka
from topicproof.backend.services.processes import free_ports
from topicproof.backend.settings import Settings

WEST = "only-west"


@pytest.fixture
def two(settings: Settings, bootstrap: str, tmp_path: Path) -> Iterator[str]:
    """A dashboard that knows the session's cluster as east, and another one as west. Gives its
    address."""
    kafka = EmbeddedKafka(tmp_path / "west", jar_files(settings, BROKER))
    kafka.start()
    try:
        Cluster(Address(kafka.bootstrap)).create_topic(WEST, 1)
        Writer(kafka.bootstrap, WEST).write("A30 A+ n7", 0)
        path = tmp_path / "clusters.yaml"
        path.write_text(
            f'east: {{bootstrap: "{bootstrap}"}}\nwest: {{bootstrap: "{kafka.bootstrap}"}}\n'
        )
        named = settings.model_copy(update={"clusters": path, "cluster": "east"})
        with dashboard(named, free_ports(1)[0]) as found:
            yield found
    finally:
        kafka.stop()


def test_a_cluster_is_chosen_by_its_selector_and_its_address(
    two: str, bootstrap: str, new_topic: Callable[..., str], window: Page, artifacts: Path
) -> None:
    """Story: somebody opens a link to a topic of one cluster, and chooses the other one: its topics
    are listed, and those of the first are gone. The way back leads to the first again."""
    east = new_topic()
    Writer(bootstrap, east).write("n5", 0)
    clusters = window.get_by_test_id("stMain").get_by_role("combobox").first
    window.goto(f"{two}/topics?cluster=west&topic={WEST}")
    expect(window.get_by_text("37 records").first).to_be_visible()
    settled(window)
    window.screenshot(path=artifacts / "cluster-west.png")
    first = window.url

    clusters.click()
    window.get_by_role("option", name="Cluster: east").click()
    window.wait_for_url("**/topics?cluster=east")
    expect(window.get_by_role("textbox", name="Topic name contains")).to_be_visible()
    settled(window)
    window.goto(f"{window.url}&named={WEST}")
    expect(window.get_by_text("No topic matches these filters.")).to_be_visible()
    window.goto(f"{two}/topics?cluster=east&named={east}")
    expect(window.get_by_role("textbox", name="Topic name contains")).to_be_visible()
    settled(window)
    window.locator("[data-testid=stDataFrame]:visible").first.click(
        position={"x": 60, "y": 28 + 14}
    )
    window.wait_for_url(f"**/compare?topic={east}*cluster=east*")
    expect(window.get_by_text("5 offsets").first).to_be_visible()
    settled(window)
    window.screenshot(path=artifacts / "cluster-east.png")

    window.goto(first)
    expect(window.get_by_text("37 records").first).to_be_visible()
