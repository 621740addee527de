"""Dead letters as their real writers write them: Kafka Streams (KIP-1034), a worker of Kafka
Connect (KIP-298) and a share group of Kafka 4.4 (KIP-1191).

Each time some inputs are no numbers. Then one of them gets an output too, and one dead letter is
written again; all other inputs have one outcome."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from pyspark.sql import SparkSession

from tests.brokers.broker import broker_of
from tests.brokers.connect import file_sink
from tests.conftest import wait_until
from topicproof.backend.address import Address, Sides
from topicproof.backend.contracts.contract import make_contract
from topicproof.backend.contracts.contract_question import question_of
from topicproof.backend.judging.judge import judge_topics
from topicproof.backend.kafka.client_configs import admin_config, idempotent_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.log.rawlog import fetch_bounds
from topicproof.backend.services.jars import BROKER, STREAMS, jar_files
from topicproof.backend.services.processes import end_process, java
from topicproof.backend.settings import Settings
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report

HERE = Path(__file__).parent
INPUTS, BAD, WAIT_S = 12, (3, 7, 11), 120
VALUES = ["bad" if number in BAD else str(number) for number in range(INPUTS)]


class Topics:
    """A filled source, an empty sink and a topic for dead letters, on one broker."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.bootstrap, self.cluster = bootstrap, Cluster(Address(bootstrap))
        self.source, self.sink, self.letters = f"{name}-in", f"{name}-out", f"dlq.{name}"
        for topic in (self.source, self.sink, self.letters):
            self.cluster.create_topic(topic, 1)
        self.write(self.source, ((str(n), value, []) for n, value in enumerate(VALUES)))

    def write(self, topic: str, records: Any) -> None:
        producer = Producer(idempotent_producer_config(Address(self.bootstrap)))
        for key, value, headers in records:
            producer.produce(topic, value, key, headers=headers)
        assert producer.flush(WAIT_S) == 0

    def deliver(self, numbers: Any) -> None:
        """Write the outputs of these inputs, where the program itself has another sink."""
        self.write(self.sink, ((str(n), VALUES[n], []) for n in numbers))

    def letters_written(self) -> int:
        return sum(
            p.lso - p.start for p in fetch_bounds(Address(self.bootstrap), self.letters).partitions
        )

    def judge(self, spark: SparkSession, folder: Path, origin: str) -> Report:
        contract = make_contract(
            {
                "source": {"topic": self.source},
                "sink": {"topic": self.sink},
                "identity": "key",
                "dead_letters": {"topic": self.letters, "origin": origin},
                "warn": {"dead_letter_share": 0.2},
            }
        )
        question = question_of(contract, self.cluster)
        return judge_topics(spark, Sides(Address(self.bootstrap)), question, folder)


def by_streams(settings: Settings, topics: Topics, folder: Path) -> None:
    jars = [*jar_files(settings, BROKER), *jar_files(settings, STREAMS)]
    group = f"{topics.sink}-app"
    command = [java(), "-cp", os.pathsep.join(map(str, jars)), str(HERE / "Streams.java")]
    command += [topics.bootstrap, topics.source, topics.sink, group, "exactly_once_v2"]
    command += [str(folder / "state"), "0", topics.letters]
    with _program(command, folder) as process:

        def done() -> bool:
            assert process.poll() is None, (folder / "program.log").read_text()
            return topics.cluster.committed(group, topics.source) == {0: INPUTS}

        wait_until(done, WAIT_S, "the end of the source")


def by_connect(settings: Settings, topics: Topics, folder: Path) -> None:
    """Its sink is a file: what it wrote there becomes the outputs."""
    with file_sink(settings, folder, topics.bootstrap, topics.source, topics.letters) as (
        process,
        lines,
    ):

        def done() -> bool:
            assert process.poll() is None, (folder / "stdout.log").read_text()
            return (
                topics.letters_written() >= len(BAD)
                and lines.exists()
                and len(lines.read_text().splitlines()) >= INPUTS - len(BAD)
            )

        wait_until(done, WAIT_S, "what Connect writes")
        numbers = list(map(int, lines.read_text().splitlines()))
    topics.deliver(numbers)


def by_share_group(_settings: Settings, topics: Topics, _folder: Path) -> None:
    group = f"{topics.sink}-queue"
    admin = AdminClient(admin_config(Address(topics.bootstrap)))
    for kind, name, entries in (
        ("TOPIC", topics.letters, {"errors.deadletterqueue.group.enable": "true"}),
        (
            "GROUP",
            group,
            {
                "share.auto.offset.reset": "earliest",
                "errors.deadletterqueue.topic.name": topics.letters,
            },
        ),
    ):
        changes = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in entries.items()
        ]
        resource = ConfigResource(ConfigResource.Type[kind], name, incremental_configs=changes)
        for changed in admin.incremental_alter_configs([resource]).values():
            changed.result()
    options = {"bootstrap.servers": topics.bootstrap, "group.id": group, "log_level": 2}
    consumer = ShareConsumer({**options, "share.acknowledgement.mode": "explicit"})
    consumer.subscribe([topics.source])
    processed: list[int] = []

    def done() -> bool:
        for message in consumer.poll(0.2):
            assert message.error() is None
            is_bad = message.value() == b"bad"
            consumer.acknowledge(
                message, AcknowledgeType.REJECT if is_bad else AcknowledgeType.ACCEPT
            )
            processed.append(message.offset() or 0)
        return len(processed) >= INPUTS and topics.letters_written() >= len(BAD)

    try:
        wait_until(done, WAIT_S, "the dead letters of the share group")
    finally:
        consumer.close()
    topics.deliver(n for n in range(INPUTS) if n not in BAD)


@contextmanager
def _program(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "program.log").open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        end_process(process)


@pytest.fixture(scope="module")
def newest(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker of Kafka 4.4: an older one has no dead letters of share groups."""
    kafka = broker_of(settings, "4.4.0", tmp_path_factory.mktemp("newest") / "kafka")
    kafka.start()
    yield kafka.bootstrap
    kafka.stop()


WRITERS: dict[str, Callable[[Settings, Topics, Path], None]] = {
    "streams": by_streams,
    "connect": by_connect,
    "kip-1191": by_share_group,
}


@pytest.mark.parametrize("origin", WRITERS)
def test_dead_letters_of_a_real_program(
    origin: str,
    settings: Settings,
    newest: str,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Story: a program puts three of twelve orders aside. Somebody processes one of them again and
    leaves its dead letter where it is, and another one is written twice. Both are found, all others
    are in the sink or in the dead letters, and the share of these is told."""
    topics = Topics(newest, origin)
    WRITERS[origin](settings, topics, tmp_path)
    topics.deliver([BAD[-1]])
    topics.write(topics.letters, [(None, None, _headers(topics, newest))])
    report = topics.judge(spark, tmp_path / "judged", origin)
    assert report.verdict is Outcome.VIOLATED, report.why
    violated = [each for each in report.findings if each.outcome is Outcome.VIOLATED]
    assert {each.kind: each.primary for each in violated} == {
        "both_outcomes": 1,
        "letter_repeated": 1,
    }
    assert report.notes == (
        "Outcomes of 12 inputs: 10 (83.3%) with an output, 3 (25.0%) with a dead letter in"
        f" {topics.letters}, 1 with both, 0 with neither.",
    )
    assert report.warnings == (
        "25.0% of the inputs are dead letters; the contract warns above 20.0%.",
    )


def _headers(topics: Topics, bootstrap: str) -> list[Any]:
    """The headers of the last dead letter."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    (bounds,) = fetch_bounds(Address(bootstrap), topics.letters).partitions
    consumer.assign([TopicPartition(topics.letters, 0, bounds.start)])
    headers: list[Any] = []

    def is_read() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            headers[:] = message.headers() or []
        return len(headers) > 0

    wait_until(is_read, WAIT_S, "a dead letter")
    consumer.close()
    return headers
