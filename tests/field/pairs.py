"""Topics as public reports describe them, one report a partition: inputs 0, 1, 2 and so on in the
source, and their outputs in the sink, in the transactions of plain clients."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from pyspark.sql import SparkSession

from tests.conftest import wait_until
from topicproof.backend.address import Address, Sides
from topicproof.backend.commands.show import report_lines
from topicproof.backend.commands.terminal import plain_text
from topicproof.backend.contracts.contract import make_contract
from topicproof.backend.contracts.contract_question import question_of
from topicproof.backend.judging.judge import judge_topics
from topicproof.backend.kafka.client_configs import (
    idempotent_producer_config,
    transactional_producer_config,
)
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.log.rawlog import fetch_bounds
from topicproof.validators.report import Report

TIMEOUT_S = 30
COORDINATOR_MOVES = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
"""Errors of a commit that pass by themselves."""


@dataclass
class TopicPair:
    """A source and a sink, and a consumer group that reads the source."""

    bootstrap: str
    partitions: int = 1
    dead_letters: str | None = None
    """A second topic of outputs, of one partition."""
    source: str = ""
    sink: str = ""

    def __post_init__(self) -> None:
        number = uuid.uuid4().hex[:6]
        self.source, self.sink = f"orders-{number}", f"invoices-{number}"
        for topic in (self.source, self.sink):
            self.cluster.create_topic(topic, self.partitions)
        if self.dead_letters is not None:
            self.dead_letters = f"{self.dead_letters}-{number}"
            self.cluster.create_topic(self.dead_letters, 1)

    @property
    def cluster(self) -> Cluster:
        return Cluster(Address(self.bootstrap))

    @property
    def sinks(self) -> list[str]:
        return [self.sink, *([self.dead_letters] if self.dead_letters else [])]

    def settle(self) -> None:
        """Wait until the markers of ended transactions are written: brokers answer before that."""

        def settled() -> bool:
            return all(
                partition.lso == partition.hw
                for topic in (self.source, *self.sinks)
                for partition in fetch_bounds(Address(self.bootstrap), topic).partitions
            )

        wait_until(settled, 20, f"the last marker of {self.sink}")

    def judge(self, spark: SparkSession, folder: Path, **terms: Any) -> Report:
        """Check the topics by key, unless the terms of the contract say something else. None takes
        a term out."""
        fields: dict[str, Any] = {
            "source": {"topic": self.source},
            "sink": {"topics": self.sinks} if self.dead_letters else {"topic": self.sink},
            "identity": "key",
            **terms,
        }
        fields = {term: value for term, value in fields.items() if value is not None}
        question = question_of(make_contract(fields), self.cluster)
        return judge_topics(spark, Sides(Address(self.bootstrap)), question, folder / "report")

    def text(self, sentence: str) -> str:
        """A sentence with the names of docs/FIELD.md instead of the test's."""
        names = {self.source: "orders", self.sink: "invoices", self.dead_letters: "dead-letters"}
        for topic, name in names.items():
            sentence = sentence.replace(topic or name, name)
        return sentence

    def terminal_text(self, report: Report) -> str:
        """What `topicproof check` prints of a report."""
        return self.text("\n".join(plain_text(line) for line in report_lines(report)))


@dataclass
class Pipeline:
    """A pipeline that has a source partition and some sink partitions to itself, from the same
    number on. Its transactional ids and keys begin with its name."""

    pair: TopicPair
    name: str
    partition: int = 0
    producers: dict[str, Producer] = field(default_factory=dict)

    def key(self, number: int) -> str:
        """The key of an input and of its output; the value is the same."""
        return f"{self.name}-{number}"

    def fill(self, numbers: Iterable[int]) -> None:
        """Write inputs outside of any transaction."""
        self.write(self.pair.source, ((self.key(each), self.key(each)) for each in numbers))

    def write(
        self, topic: str, records: Iterable[tuple[str | None, str | None]], partition: int = 0
    ) -> None:
        """Write key and value of each record outside of any transaction."""
        producer = Producer(idempotent_producer_config(Address(self.pair.bootstrap)))
        for key, value in records:
            producer.produce(topic, value, key, self.partition + partition)
        assert producer.flush(TIMEOUT_S) == 0

    def start(self, who: str, **config: Any) -> Producer:
        """Start a process with this transactional id: it fences a former one and aborts its open
        transaction."""
        transactional_id = f"{self.name}-{who}-{self.pair.sink}"
        producer = Producer(
            {
                **transactional_producer_config(Address(self.pair.bootstrap), transactional_id),
                **{key.replace("_", "."): value for key, value in config.items()},
            }
        )
        producer.init_transactions(TIMEOUT_S)
        self.producers[who] = producer
        return producer

    def begin(self, who: str) -> Producer:
        producer = self.producers.get(who) or self.start(who)
        producer.begin_transaction()
        return producer

    def produce(
        self, who: str, numbers: Iterable[int], partition: int = 0, topic: str | None = None
    ) -> None:
        """Write records into the open transaction: into the sink, or into this topic."""
        place = 0 if topic == self.pair.dead_letters else self.partition + partition
        for number in numbers:
            key = self.key(number)
            self.producers[who].produce(topic or self.pair.sink, key, key, place)
        assert self.producers[who].flush(TIMEOUT_S) == 0

    def deliver(self, who: str, numbers: Iterable[int], commits: bool = True) -> None:
        """Write outputs in a transaction, and end it."""
        producer = self.begin(who)
        self.produce(who, numbers)
        producer.commit_transaction() if commits else producer.abort_transaction()

    def move_group(self, offset: int) -> None:
        """Commit the group's offset, as the program does beside its outputs."""
        group = {"bootstrap.servers": self.pair.bootstrap, "group.id": self.pair.source}
        consumer = Consumer(group)
        place = TopicPartition(self.pair.source, self.partition, offset)

        def commits() -> bool:
            try:
                consumer.commit(offsets=[place], asynchronous=False)
            except KafkaException as error:
                # A broker that has just started does not coordinate the group yet.
                if error.args[0].code() not in COORDINATOR_MOVES:
                    raise
                return False
            return True

        wait_until(commits, TIMEOUT_S, f"the offset of group {self.pair.source}")
        consumer.close()


def chunks(numbers: range, size: int) -> Iterator[range]:
    for first in range(numbers.start, numbers.stop, size):
        yield range(first, min(first + size, numbers.stop))
