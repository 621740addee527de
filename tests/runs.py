"""Real runs for the tests, and readers that share no code with what they check."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from topicproof.backend.address import Address
from topicproof.backend.history.store import History, Run
from topicproof.backend.kafka.client_configs import consumer_config, transactional_producer_config
from topicproof.backend.runs.context import make_context
from topicproof.backend.runs.create import create
from topicproof.backend.runs.execute import execute
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.validators.report import Report

_LOG = logging.getLogger(__name__)

SMALL: dict[str, Any] = {
    "records": 6_000,
    "partitions": 3,
    "per_transaction": 400,
    "abort_probability": 0.3,
    "faults": ["crash@transaction=2"],
    "seed": 1,
    "reader": True,
}


@dataclass(frozen=True)
class Finished:
    """A run that has ended, and what it said."""

    run: Run
    report: Report

    @property
    def source(self) -> str:
        return str(self.run.facts.source)

    @property
    def sink(self) -> str:
        return str(self.run.facts.sink)

    @property
    def group(self) -> str:
        return str(self.run.facts.group)


def run_to_end(settings: Settings, cluster: Services, **plan: Any) -> Finished:
    """Make and execute a run in this process. Logs how it ended: pytest shows that beside a
    failure."""
    history = History(settings)
    run = create(settings, cluster, history, make_plan(plan))
    report = execute(make_context(settings, cluster, history, run, threading.Event()))
    assert report is not None
    ended = history.get(run.id)
    _LOG.warning("%s: %s, %s: %s", run.id, ended.state, ended.verdict, ended.error or ended.why)
    return Finished(ended, report)


@dataclass(frozen=True)
class Message:
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


def read_all(
    bootstrap: str,
    topic: str,
    isolation: str = "read_committed",
    client: Mapping[str, str] | None = None,
) -> list[Message]:
    """Everything a plain client delivers, in offset order per partition. `client`: properties that
    open the cluster."""
    consumer = Consumer(consumer_config(Address(bootstrap, client or {}), "tests", isolation))
    partitions = list(consumer.list_topics(topic, 10).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
    found: list[Message] = []
    ended = 0
    while ended < len(partitions):
        message = consumer.poll(10)
        assert message is not None, f"{topic} went silent"
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended += 1
            continue
        pairs: Any = message.headers() or []
        headers = tuple((str(name), bytes(value)) for name, value in pairs)
        found.append(
            Message(
                message.partition() or 0,
                message.offset() or 0,
                message.key(),
                message.value(),
                headers,
            )
        )
    consumer.close()
    return sorted(found, key=lambda m: (m.partition, m.offset))


def write_committed(bootstrap: str, topic: str, messages: Sequence[Message]) -> None:
    """Append copies of messages to their partitions, in one transaction of a producer of its
    own."""
    producer = Producer(transactional_producer_config(Address(bootstrap), f"tests-{topic}"))
    producer.init_transactions(10)
    producer.begin_transaction()
    for message in messages:
        producer.produce(
            topic,
            message.value,
            message.key,
            partition=message.partition,
            headers=list(message.headers),
        )
    producer.commit_transaction(10)
    producer.close()
