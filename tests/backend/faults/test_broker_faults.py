"""Brokers that fail under a run: three of them, and the one that leads a role's partition is
killed, pauses, or is cut off from its peers."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka.protocol.metadata import MetadataRequest

from tests.conftest import wait_until
from tests.runs import Finished, read_all
from topicproof.backend.address import Address
from topicproof.backend.errors import UsageError
from topicproof.backend.evidence.folder import REPORT
from topicproof.backend.faults.brokers import OWN_TOPICS, leader, own_partition
from topicproof.backend.history.store import ENDED, History
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.log.rawlog import connect, fetch_bounds
from topicproof.backend.runs.launch import said, start_resume, start_run
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.services.keeper import Services, brokers, services
from topicproof.backend.settings import Settings
from topicproof.backend.sink.journal import FaultTold, Told, read_journal
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report

RECORDS, PER_TRANSACTION = 1_200, 200
RUN_S = 240
SAYS = {
    "kill": ("was killed", "is back"),
    "pause": ("was stopped", "continues"),
    "isolate": ("was cut off from its peers", "reaches its peers again"),
}
"""When it strikes, and when it is healed."""


@pytest.fixture(scope="module")
def home(
    settings: Settings, cluster: Services, tmp_path_factory: pytest.TempPathFactory
) -> Settings:
    """A home with a Kafka of three brokers of its own, and the session's Spark."""
    folder = tmp_path_factory.mktemp("three")
    return settings.model_copy(
        update={
            "home": folder,
            "bootstrap": None,
            "brokers": 3,
            "spark_remote": cluster.spark_remote,
        }
    )


@pytest.fixture(scope="module")
def three(home: Settings) -> Iterator[Services]:
    with services(home) as found:
        yield found


def outlived(home: Settings, **plan: Any) -> tuple[Finished, bool]:
    """A run in its own process, and whether that process reached its end.

    librdkafka 2.16 sometimes aborts its process (SIGABRT) when a broker is killed. Then the run is
    resumed, as a user would, and must be as exact; the keeper has healed the broker when the
    process's connection ended.
    """
    history = History(home)
    run_id = start_run(home, make_plan(plan))
    wait_until(lambda: not history.get(run_id).alive, RUN_S, "the end of the run's process")
    in_one_go = history.get(run_id).state in ENDED
    if not in_one_go:
        start_resume(home, run_id)
        wait_until(lambda: not history.get(run_id).alive, RUN_S, "the end of the resumed run")
    run = history.get(run_id)
    assert run.verdict is not None, f"{run.error}: {said(home, run_id)}"
    return Finished(run, Report.from_json((home.runs / run_id / REPORT).read_text())), in_one_go


@pytest.mark.parametrize(
    ("role", "how"),
    [
        ("source", "pause"),
        ("sink", "kill"),
        ("transactions", "kill"),
        ("offsets", "kill"),
        ("offsets", "isolate"),
    ],
)
def test_a_run_outlives_the_broker_that_leads_a_role(
    home: Settings, three: Services, role: str, how: str
) -> None:
    """Story: in the middle of a transaction the broker that leads the role's partition is killed
    and started again, pauses, or is cut off from its peers until they have replaced it. The sink is
    exact, and the journal says which process it was and that it is back."""
    fault = f"broker@transaction=2,role={role},how={how}" + (
        ",seconds=16" if how == "isolate" else ""
    )
    plan = {"records": RECORDS, "partitions": 2, "per_transaction": PER_TRANSACTION}
    done, in_one_go = outlived(home, **plan, faults=[fault])
    assert done.report.verdict is Outcome.HOLDS and done.run.error is None, done.report.why
    got = Counter(message.value for message in read_all(three.bootstrap, done.sink))
    assert got == Counter(str(n * n).encode() for n in range(RECORDS))
    entries = read_journal(Address(three.bootstrap), done.run.facts.journal)
    told = {entry.what: entry.said for entry in entries if isinstance(entry, FaultTold)}
    struck, healed = SAYS[how]
    assert struck in told[Told.DONE]
    if in_one_go:
        assert healed in told[Told.HEALED]


def test_a_broker_that_is_cut_off_is_replaced_and_comes_back(
    home: Settings, three: Services
) -> None:
    """Story: a broker is cut off from its peers. They elect another leader, while clients still
    reach it, and it tells them that it leads. Healed, it follows, and is in sync again."""
    cluster, topic = Cluster(Address(three.bootstrap)), f"apart-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(topic, 1)
    cut = leader(cluster, "sink", topic, "")
    nodes = sorted(cluster.admin.list_topics(timeout=10).brokers)
    other = next(node for node in nodes if node != cut)
    wanted = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    with connect(Address(three.bootstrap)) as kafka, brokers(home) as handle:

        def told(node: int) -> tuple[int, int]:
            """By this broker: who leads, and how many are in sync."""
            partitions = kafka.send({node: wanted})[node].topics[0].partitions
            return (
                (partitions[0].leader_id, len(partitions[0].isr_nodes)) if partitions else (-1, 0)
            )

        def settled() -> bool:
            """All of them tell the same, and that all are in sync."""
            said = {told(node) for node in nodes}
            return len(said) == 1 and said.pop()[1] == len(nodes)

        wait_until(settled, 60, "all in sync")
        assert "was cut off from its peers" in handle(cut, "isolate")
        wait_until(lambda: told(other)[0] != cut, 60, "another leader")
        assert told(cut)[0] == cut
        assert "reaches its peers again" in handle(cut, "heal")
        wait_until(settled, 60, "all in sync again")


def test_a_group_is_kept_where_kafka_keeps_it(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: where a group's offsets lie is computed from its name. When it commits, that partition
    grows."""
    cluster, source = Cluster(Address(bootstrap)), new_topic()
    for number in range(5):
        group = f"{source}-{number}"
        cluster.commit_offsets(group, source, {0: 0})
        before = fetch_bounds(Address(bootstrap), OWN_TOPICS["offsets"]).partitions
        cluster.commit_offsets(group, source, {0: 1})
        after = fetch_bounds(Address(bootstrap), OWN_TOPICS["offsets"]).partitions
        grown = [a.partition for a, b in zip(after, before, strict=True) if a.hw > b.hw]
        assert own_partition(group, len(after)) in grown


def test_given_brokers_are_nobodys_to_kill(settings: Settings) -> None:
    """Story: the cluster was given by address. Its brokers are not ours, and the fault is
    refused."""
    with (
        pytest.raises(UsageError, match="Only brokers of the embedded Kafka"),
        brokers(settings.model_copy(update={"bootstrap": "b:1"})),
    ):
        pass
