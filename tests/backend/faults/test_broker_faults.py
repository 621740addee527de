"""Brokers that fail under a run: three of them, and the one that leads a role's partition is
killed, pauses, or is cut off from its peers."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.cimpl import NewTopic
from kafka.protocol.metadata import MetadataRequest
from pyspark.sql import SparkSession

from tests.backend.kafka.topics import look
from tests.conftest import wait_until
from tests.runs import Finished, read_all
from topicproof.backend.address import Address, Sides
from topicproof.backend.contracts.contract import make_contract
from topicproof.backend.contracts.contract_question import question_of
from topicproof.backend.errors import UsageError
from topicproof.backend.evidence.folder import REPORT
from topicproof.backend.faults.cluster_faults import OWN_TOPICS, leader, own_partition
from topicproof.backend.history.store import ENDED, History
from topicproof.backend.interpreter import python_path
from topicproof.backend.judging.judge import judge_topics
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.coordination.coordinator import open_transactions
from topicproof.backend.kafka.log.rawlog import connect, fetch_bounds
from topicproof.backend.kafka.transaction import TransactionalProducer
from topicproof.backend.runs.launch import said, start_resume, start_run
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.services.keeper import Services, brokers, services
from topicproof.backend.settings import Settings
from topicproof.backend.sink.entries import FaultPhase, FaultReport
from topicproof.backend.sink.journal import read_journal
from topicproof.validators.finding import Outcome
from topicproof.validators.kinds import hanging
from topicproof.validators.report import Report

RECORDS, PER_TRANSACTION = 1_200, 200
RUN_S = 240
SAYS = {
    "kill": ("was killed", "is back"),
    "pause": ("was stopped", "continues"),
    "isolate": ("was cut off from its peers", "reaches its peers again"),
}
"""When it strikes, and when it is healed."""
FORMS = {"kill": "", "pause": ",how=pause", "isolate": ",how=isolate,seconds=16"}
"""As the journal writes them, too: without what is the default."""


THEIRS = """
import socket

import pytest


def test_theirs(topicproof_brokers):
    assert topicproof_brokers.bootstrap == "{bootstrap}"
    orders = topicproof_brokers.topic("orders", committed=[1])
    known = topicproof_brokers.cluster.admin.list_topics(str(orders))
    leader = known.topics[str(orders)].partitions[0].leader
    place = known.brokers[leader].host, known.brokers[leader].port
    topicproof_brokers.kill(leader)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(place)
    topicproof_brokers.heal(leader)
    socket.create_connection(place).close()
"""


@pytest.fixture(scope="module")
def home(
    settings: Settings, cluster: Services, tmp_path_factory: pytest.TempPathFactory
) -> Settings:
    """A home with a Kafka of three brokers of its own, and the session's Spark."""
    # Where the pytest plugin has its three brokers, below the home of a test session.
    folder = tmp_path_factory.mktemp("session") / "three"
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
    run_id = start_run(history, make_plan(plan))
    wait_until(lambda: not history.get(run_id).alive, RUN_S, "the end of the run's process")
    in_one_go = history.get(run_id).state in ENDED
    if not in_one_go:
        start_resume(history, run_id)
        wait_until(lambda: not history.get(run_id).alive, RUN_S, "the end of the resumed run")
    run = history.get(run_id)
    assert run.verdict is not None, f"{run.error}: {said(home, run_id)}"
    return Finished(run, Report.from_json((home.runs / run_id / REPORT).read_text())), in_one_go


@pytest.mark.parametrize(
    "strikes",
    [
        (("source", "pause"), ("offsets", "isolate")),
        (("sink", "kill"), ("transactions", "kill")),
    ],
)
def test_a_run_outlives_the_brokers_that_lead_two_roles(
    home: Settings, three: Services, strikes: tuple[tuple[str, str], ...]
) -> None:
    """Story: in the middle of a transaction the broker that leads a role's partition is killed and
    started again, pauses, or is cut off from its peers until they have replaced it; some
    transactions later it happens to another role. The sink is exact, and the journal says for each
    which process it was and that it is back."""
    faults = [
        f"broker@transaction={number},role={role}{FORMS[how]}"
        for number, (role, how) in zip((1, 3), strikes, strict=True)
    ]
    plan = {"records": RECORDS, "partitions": 1, "per_transaction": PER_TRANSACTION}
    done, in_one_go = outlived(home, **plan, faults=faults)
    assert done.report.verdict is Outcome.HOLDS and done.run.error is None, done.report.why
    got = Counter(message.value for message in read_all(three.bootstrap, done.sink))
    assert got == Counter(str(n * n).encode() for n in range(RECORDS))
    entries = read_journal(Address(three.bootstrap), done.run.facts.journal)
    reports = [entry for entry in entries if isinstance(entry, FaultReport)]
    sentences = {(report.fault, report.what): report.said for report in reports}
    for fault, (_, how) in zip(faults, strikes, strict=True):
        struck, healed = SAYS[how]
        if in_one_go:
            assert struck in sentences[fault, FaultPhase.DONE]
            assert healed in sentences[fault, FaultPhase.HEALED]
        else:
            assert any(what is FaultPhase.DONE for _, what in sentences)


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


def test_a_test_of_somebodys_pipeline_kills_one_of_three_brokers(
    home: Settings, three: Services, tmp_path: Path
) -> None:
    """Story: the brokers of the pytest plugin run already, in the home that is named. A test kills
    the one that leads its topic, so that nobody listens there, and lets it come back."""
    (tmp_path / "test_theirs.py").write_text(THEIRS.format(bootstrap=three.bootstrap))
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_theirs.py"],
        cwd=tmp_path,
        env={**os.environ, "TOPICPROOF_HOME": str(home.home.parent), "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in answer.stdout, answer.stdout


def test_what_an_unclean_election_loses_is_named(home: Settings, three: Services) -> None:
    """Story: the sink's follower dies, its leader acknowledges transactions alone and dies too, and
    the follower is elected. Kafka has lost outputs whose inputs are committed. A plain consumer
    misses as many as the verdict names. The fault ends with the run, so all its seconds pass only
    on a slow machine."""
    # One partition: the fault strikes partition 0, and another's worker may come to it last.
    plan = {"records": RECORDS, "partitions": 1, "per_transaction": PER_TRANSACTION}
    done, _ = outlived(home, **plan, faults=["unclean@transaction=2,seconds=20"])
    entries = read_journal(Address(three.bootstrap), done.run.facts.journal)
    told = {entry.what: entry.said for entry in entries if isinstance(entry, FaultReport)}
    assert "which lacked what" in told[FaultPhase.HEALED]
    found = {one.kind: one.count for one in done.report.findings}
    got = {message.value for message in read_all(three.bootstrap, done.sink)}
    assert done.report.verdict is Outcome.VIOLATED, done.report.why
    # Behind a hanging transaction a plain consumer sees nothing.
    assert found[hanging.NAME] or found["gap"] == RECORDS - len(got) > 0


def test_an_unclean_election_that_loses_a_marker_is_named(
    home: Settings, three: Services, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: a sink allows unclean elections. Its follower fails, a transaction commits, and then
    its leader fails too. The follower comes back, is elected without the COMMIT marker, and every
    copy of the marker is lost (KAFKA-20716). The producer was told that its transaction is
    committed; read_committed readers wait for ever. The verdict names the hanging transaction."""
    address = Address(three.bootstrap)
    cluster, suffix = Cluster(address), uuid.uuid4().hex[:8]
    source, sink = f"inputs-{suffix}", f"outputs-{suffix}"
    cluster.create_topic(source, 1)
    nodes = sorted(cluster.admin.list_topics(timeout=10).brokers)
    first, second = nodes[:2]
    allowed = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    wanted = NewTopic(sink, 1, replica_assignment=[[first, second]], config=allowed)
    cluster.admin.create_topics([wanted])[sink].result()

    def partition() -> Any:
        return cluster.admin.list_topics(sink, timeout=10).topics[sink].partitions.get(0)

    def replicas_in_sync() -> int:
        # A broker that has just heard of the topic may answer without its partition.
        metadata = partition()
        return 0 if metadata is None else len(metadata.isrs)

    def bounds() -> tuple[int, int]:
        (one,) = fetch_bounds(address, sink).partitions
        return one.lso, one.hw

    def judged(name: str) -> Report:
        fields = {"source": {"topic": source}, "sink": {"topic": sink}, "identity": "key"}
        (contract,) = make_contract(fields).each()
        question = question_of(contract, cluster)
        return judge_topics(spark, Sides(address), question, tmp_path / name)

    wait_until(lambda: replicas_in_sync() == 2, 60, "both replicas in sync")
    records = [(str(n).encode(), b"value") for n in range(10)]
    with (
        TransactionalProducer(address, f"inputs-{suffix}") as filler,
        filler.transaction(),
    ):
        filler.produce([(source, *one, ()) for one in records])
    with brokers(home) as handle, TransactionalProducer(address, f"program-{suffix}") as producer:
        with producer.transaction():
            producer.produce([(sink, *one, ()) for one in records])
            producer.flush()
            handle(second, "kill")
            wait_until(lambda: partition().isrs == [first], 60, "the follower out of sync")
        wait_until(lambda: bounds() == (11, 11), 60, "the marker")
        assert judged("before").verdict is Outcome.HOLDS
        handle(first, "kill")
        handle(second, "heal")
        wait_until(lambda: partition().leader == second, 120, "the unclean election")
        handle(first, "heal")
        wait_until(lambda: len(partition().isrs) == 2, 120, "both replicas in sync")
    assert bounds() == (0, 10)
    report = judged("after")
    assert report.verdict is not Outcome.HOLDS
    (found,) = [one for one in report.findings if one.kind == hanging.NAME]
    assert found.primary == 1 and found.outcome is Outcome.VIOLATED
    (opened,) = look(address, open_transactions, sink)
    assert opened.hanging and "unclean leader election lost the marker" in opened.why


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
