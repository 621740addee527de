"""Brokers create each topic that a client asks about, unless somebody turns that off
(auto.create.topics.enable=true is Kafka's default). Whoever only reads must create none: not by a
wrong name, and not when a topic is deleted meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from tests.app.conftest import OpenPage, open_page  # noqa: F401  a fixture
from tests.field.conftest import BrokerWith
from tests.test_cli import call
from topicproof.app.pages import PAGES
from topicproof.backend.address import Address
from topicproof.backend.cli import COMMANDS
from topicproof.backend.kafka import client_configs
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.settings import Settings

pytestmark = pytest.mark.services

MISSING = "no-such-topic"
RUN = "squares-000000"
OTHER = "no-such-sink"
CALLS: dict[str, list[tuple[str, ...]]] = {
    "floor": [("--group", "nobody", "--topic", MISSING)],
    "process": [("--source", MISSING, "--sink", OTHER)],
    "check": [
        ("--source", MISSING, "--sink", OTHER, "--identity", "key"),
        ("--contract", "pair.yaml"),
        ("--contract", "sink.yaml"),
    ],
    "contract": [
        ("init", "--source", MISSING, "--sink", OTHER, "new.yaml"),
        ("lint", "pair.yaml"),
        ("preview", "pair.yaml"),
    ],
    "inspect": [(MISSING,), (MISSING, "--check-crc")],
    "transactions": [()],
    "abort": [(MISSING, "0", "0"), (MISSING, "0", "--producer-id", "1", "--yes")],
    "rights": [("--for", "check", "--principal", "User:judge", "--topic", MISSING)],
    "doctor": [("--topic", MISSING)],
    **{name: [(RUN,)] for name in ("stop", "release", "resume", "show", "totals", "clean")},
    "strike": [(RUN, "kill")],
    "evidence": [(RUN,)],
    "verify": [("no-such-folder",)],
    "signoff": [(RUN, "--decision", "accept", "--by", "Ada")],
    "compare": [(RUN, RUN)],
    "trend": [()],
    "runs": [()],
}
"""Each command that takes the name of a topic or of a run, with names of nothing."""
NO_NAMES = {"up", "fill", "run", "matrix", "torture", "keys", "login", "logout", "whoami", "audit"}
"""Commands that create their own topics, or that ask no broker."""
SINK = "sink: {topic: no-such-sink}\nidentity: key\n"
CONTRACTS = {
    "pair.yaml": f"source: {{topic: {MISSING}}}\ngroup: nobody\n{SINK}",
    "sink.yaml": f"unique: true\n{SINK}",
}


@pytest.fixture(scope="module")
def bootstrap(broker_with: BrokerWith) -> Iterator[str]:
    """A broker with Kafka's default, and one topic that exists."""
    with broker_with({"auto.create.topics.enable": "true"}) as address:
        Cluster(Address(address)).create_topic("orders", 1)
        yield address


def topics(bootstrap: str) -> list[str]:
    return Cluster(Address(bootstrap)).topics()


def test_no_client_of_ours_creates_a_topic_by_asking(bootstrap: str) -> None:
    """Story: a topic vanishes while clients of each kind ask about it. librdkafka's admin client
    and producer would create it, and lifelines asked once a second."""
    address = Address(bootstrap)
    clients: list[Any] = [
        AdminClient(client_configs.admin_config(address)),
        Producer(client_configs.idempotent_producer_config(address)),
        Producer(client_configs.journal_producer_config(address)),
        Producer(client_configs.transactional_producer_config(address, "asks")),
        Consumer(client_configs.consumer_config(address, "asks", client_configs.READ_COMMITTED)),
    ]
    for client in clients:
        assert client.list_topics(MISSING, timeout=30).topics[MISSING].error is not None
    assert Cluster(address).answers(MISSING)
    assert topics(bootstrap) == ["orders"]


def test_every_command_has_its_names_tried() -> None:
    """Story: somebody adds a command. The walk below calls it, or it is listed as one that cannot
    create a topic by a wrong name."""
    assert set(CALLS) | NO_NAMES == set(COMMANDS)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("command", CALLS)
def test_no_command_creates_a_topic_by_a_wrong_name(
    command: str,
    bootstrap: str,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Story: somebody mistypes a topic. Each command says that there is none, and no topic of that
    name exists afterwards."""
    monkeypatch.setenv("TOPICPROOF_HOME", str(settings.home))
    monkeypatch.setenv("TOPICPROOF_BOOTSTRAP", bootstrap)
    monkeypatch.chdir(tmp_path)
    for name, text in CONTRACTS.items():
        (tmp_path / name).write_text(text)
    for arguments in CALLS[command]:
        code = call(command, *arguments)
        text = "".join(capsys.readouterr())
        assert "fault of Topicproof" not in text, text
        if MISSING in arguments and command not in ("rights", "doctor"):
            assert code == 3 and f"no topic {MISSING}" in " ".join(text.split()), text
    assert topics(bootstrap) == ["orders"]


@pytest.mark.parametrize("page", [one.path for one in PAGES])
def test_no_page_creates_a_topic_by_a_wrong_name(
    page: str,
    bootstrap: str,
    open_page: OpenPage,  # noqa: F811  the fixture
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: somebody opens an old address of the dashboard. Its topic has been deleted."""
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path))
    monkeypatch.setenv("TOPICPROOF_BOOTSTRAP", bootstrap)
    app = open_page(page, topic=MISSING, source=MISSING, sink=OTHER, run=RUN)
    assert not app.exception
    assert topics(bootstrap) == ["orders"]
