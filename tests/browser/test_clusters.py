"""The selector of named clusters in a real Chromium, with two real clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from tests.backend.kafka.topics import Writer
from tests.browser.conftest import settled
from tests.ports import free_ports
from topicproof.backend.address import Address
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.services.dashboard import dashboard
from topicproof.backend.services.jars import BROKER, jar_files
from topicproof.backend.services.kafka import EmbeddedKafka
from topicproof.backend.settings import Settings

WEST = "only-west"


class SlowBrowser:
    """A browser that, once `is_slow`, hears that a page is drawn only after it has polled: it still
    sends the values of widgets that the page no longer has."""

    def __init__(self, window: Page) -> None:
        self.is_slow = False
        self._late: list[bytes] = []
        self._is_polling = False
        window.route_web_socket("**/_stcore/stream", self._connected)

    def _connected(self, page: WebSocketRoute) -> None:
        server = page.connect_to_server()

        def asked(message: str | bytes) -> None:
            rerun = BackMsg.FromString(as_bytes(message)).rerun_script
            self._is_polling |= bool(self._late and rerun.is_auto_rerun)
            server.send(message)

        def answered(message: str | bytes) -> None:
            content = as_bytes(message)
            is_end = ForwardMsg.FromString(content).WhichOneof("type") == "script_finished"
            if not self._late and not (self.is_slow and is_end):
                page.send(content)
                return
            self._late.append(content)
            if self._is_polling and is_end:
                self.is_slow = self._is_polling = False
                for late in self._late:
                    page.send(late)
                self._late.clear()

        page.on_message(asked)
        server.on_message(answered)


def as_bytes(message: str | bytes) -> bytes:
    assert isinstance(message, bytes)
    return message


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
    are listed, and those of the first are gone, also in a slow browser, where the list polls before
    the page of the topic is forgotten. The way back leads to the first again."""
    browser = SlowBrowser(window)
    east = new_topic()
    Writer(bootstrap, east).write("n5", 0)
    clusters = window.get_by_test_id("stMain").get_by_role("combobox").first
    window.goto(f"{two}/topics?cluster=west&topic={WEST}")
    expect(window.get_by_text("37 records").first).to_be_visible()
    settled(window)
    window.screenshot(path=artifacts / "cluster-west.png")
    first = window.url

    clusters.click()
    browser.is_slow = True
    window.get_by_role("option", name="Cluster: east").click()
    window.wait_for_url("**/topics?cluster=east")
    expect(window.get_by_role("textbox", name="Topic name contains")).to_be_visible()
    settled(window)
    assert not browser.is_slow
    assert window.url == f"{two}/topics?cluster=east"
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
