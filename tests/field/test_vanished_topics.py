"""Brokers create each topic that a client asks about, unless somebody turns that off
(auto.create.topics.enable=true is Kafka's default). Whoever only reads must create none: not by a
wrong name, and not when a topic is deleted meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from tests.app.conftest import OpenPage, open_page, texts  # noqa: F401  a fixture
from tests.conftest import wait_until
from tests.field.conftest import BrokerWith
from tests.field.test_recreated_source import Pair
from tests.test_cli import call
from topicproof.app.shell.places import PAGES
from topicproof.backend.address import Address, Sides
from topicproof.backend.cli import COMMANDS
from topicproof.backend.contracts.contract import make_contract
from topicproof.backend.contracts.contract_question import question_of
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.judging import capture
from topicproof.backend.judging.judge import JudgeOptions, judge_topics
from topicproof.backend.judging.spark_tuning import tune
from topicproof.backend.kafka import client_configs
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.settings import Settings
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report

pytestmark = pytest.mark.services

MISSING = "no-such-topic"
RUN = "squares-000000"
OTHER = "no-such-sink"
RECORDS = 100
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
    "records": [(MISSING,), (MISSING, "--where", "$.id = 1")],
    "status": [()],
    "transactions": [()],
    "abort": [(MISSING, "0", "0"), (MISSING, "0", "--producer-id", "1", "--yes")],
    "commit": [(MISSING, "0", "0"), (MISSING, "0", "0", "--yes", "--confirm", "nobody")],
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
ASKING = {"floor", "process", "check", "contract", "inspect", "abort", "commit"}
"""Commands that need the topic. Each says that there is none."""
NO_NAMES = {"up", "fill", "run", "matrix", "torture", "keys", "login", "logout", "whoami", "audit"}
NO_NAMES |= {"watch", "mcp"}
"""Commands that create their own topics, that ask no broker, or that take no name."""
CONTRACTS = {
    "pair.yaml": f"source: {{topic: {MISSING}}}\nsink: {{topic: {OTHER}}}\nidentity: key\n",
    "sink.yaml": f"sink: {{topic: {MISSING}}}\nunique: key\n",
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
        if command in ASKING and arguments[0] != "lint":
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


@pytest.mark.parametrize("page", ["compare", "topics"])
def test_a_page_outlives_the_topic_that_it_shows(
    page: str,
    bootstrap: str,
    open_page: OpenPage,  # noqa: F811  the fixture
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: somebody looks at a topic, and a colleague deletes it. A fresh look says that there
    is no such topic; no traceback is shown, and the topic is not made again."""
    monkeypatch.setenv("TOPICPROOF_HOME", str(tmp_path))
    monkeypatch.setenv("TOPICPROOF_BOOTSTRAP", bootstrap)
    vanishing = Vanishing(bootstrap, f"{page}-page", None)
    sink = vanishing.pair.sink
    app = open_page(page, topic=sink, partition="0", offset="5")
    assert not app.exception
    assert "no topic" not in texts(app)
    vanishing.strike()
    wait_until(lambda: sink not in topics(bootstrap), 20, f"the end of {sink}")
    app.button(key="refresh").click().run()
    assert not app.exception
    assert f"no topic {sink}" in texts(app), texts(app)
    assert sink not in topics(bootstrap)
    vanishing.pair.cluster.delete_topics([vanishing.pair.source])


class Vanishing:
    """A healthy pair of topics, and what happens to its sink in the middle of a check."""

    def __init__(self, bootstrap: str, name: str, remade: int | None) -> None:
        self.pair = Pair(bootstrap, f"{name}-in", f"{name}-out")
        self.remade = remade
        """How many of its records the sink has afterwards; None: it stays deleted."""
        self.is_over = False
        for topic in (self.pair.source, self.pair.sink):
            self.pair.cluster.create_topic(topic, 1)
        self.pair.fill(range(RECORDS))
        self.pair.process(range(RECORDS), 0, transactional=False)

    def strike(self) -> None:
        """Delete the sink, and make it again, once."""
        if self.is_over:
            return
        self.is_over = True
        self.pair.cluster.delete_topics([self.pair.sink])
        if self.remade is not None:
            self.pair.cluster.create_topic(self.pair.sink, 1)
            self.pair.process(range(self.remade), 0, transactional=False)

    def judge(
        self,
        spark: SparkSession,
        folder: Path,
        payloads: Payloads,
        on_step: Callable[[str], None],
    ) -> Report:
        fields = {"source": {"topic": self.pair.source}, "sink": {"topic": self.pair.sink}}
        question = question_of(make_contract(fields), self.pair.cluster)
        address = Address(self.pair.bootstrap)
        return judge_topics(
            spark,
            Sides(address),
            question,
            folder / "report",
            JudgeOptions(payloads=payloads, on_step=on_step),
        )


@pytest.mark.parametrize(
    ("payloads", "at_step", "remade"),
    [
        (Payloads.ALL, True, 0),
        (Payloads.ALL, False, None),
        # Spark waits for the second half, and nothing but the topic's id says that it is in vain.
        (Payloads.ALL, False, RECORDS // 2),
        (Payloads.NONE, False, None),
    ],
    ids=["made again before", "deleted", "made again with less", "deleted, folded"],
)
def test_a_sink_that_vanishes_during_a_check_is_unknown(
    bootstrap: str,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    payloads: Payloads,
    at_step: bool,
    remade: int | None,
) -> None:
    """Story: somebody deletes the sink before a check reads it, or when its batch headers are read
    and Spark is about to read the records. The verdict is UNKNOWN and names the topic, no topic is
    made, and the next check in the same Spark works, which was about to read."""
    name = request.node.callspec.id.replace(" ", "-").replace(",", "")
    vanishing = Vanishing(bootstrap, name, remade)
    healthy = Vanishing(bootstrap, f"{name}-healthy", None)
    before = topics(bootstrap)

    def tune_after(*arguments: Any, **named: Any) -> None:
        vanishing.strike()
        tune(*arguments, **named)

    with monkeypatch.context() as patch:
        if not at_step:
            patch.setattr(capture, "tune", tune_after)
        report = vanishing.judge(
            spark, tmp_path, payloads, lambda _: vanishing.strike() if at_step else None
        )
    assert (report.verdict, report.exit_code) == (Outcome.UNKNOWN, 3), report.why
    how = "deleted" if remade is None else "deleted and made again"
    assert f"topic {name}-out was {how} while it was read: its id was " in report.why
    assert report.why.endswith(". Check again.")
    assert [each.topic for each in (report.source, report.sink)] == [f"{name}-in", f"{name}-out"]
    gone = {vanishing.pair.sink} if remade is None else set()
    assert set(topics(bootstrap)) == set(before) - gone
    if not at_step:
        report = healthy.judge(spark, tmp_path, payloads, lambda _: None)
        assert report.verdict is Outcome.HOLDS, report.why
    healthy.pair.cluster.delete_topics(set(before) - {"orders"})
