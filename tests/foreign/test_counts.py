"""Counts of a Kafka Streams application that is killed in the middle of its work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tests.foreign.test_foreign import WAIT_S, Start, Topics, start, survive_a_kill
from topicproof.backend.address import Address, Sides
from topicproof.backend.contracts.contract import make_contract
from topicproof.backend.contracts.contract_question import question_of
from topicproof.backend.judging.judge import judge_topics
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report

__all__ = ["start"]
PARTITIONS, KEYS, RECORDS = 2, 20, 1_000


def test_the_counts_of_kafka_streams_survive_a_kill(
    settings: Settings,
    cluster: Services,
    new_topic: Callable[..., str],
    start: Start,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Story: Kafka Streams counts 1,000 records of 20 keys with exactly_once_v2. It is killed while
    a transaction is open, and its successor restores the counts. Each update is the count of the
    first records of its key, and the last one that of all. Then a count is written as KAFKA-20685
    left it: one too many. It is found, although it was written by a healthy producer."""
    address = Address(cluster.bootstrap)
    topics = Topics(settings, Cluster(address), new_topic(PARTITIONS), new_topic(PARTITIONS))
    producer = Producer(idempotent_producer_config(address))
    for number in range(RECORDS):
        key = number % KEYS
        producer.produce(topics.source, "order", f"k{key}", partition=key % PARTITIONS)
    assert producer.flush(WAIT_S) == 0
    survive_a_kill(topics, "Counts.java", start, tmp_path)
    report = judged(spark, topics, tmp_path / "healthy")
    assert report.verdict is Outcome.HOLDS, report.why
    assert report.why == (
        f"{KEYS} groups of {RECORDS:,} inputs, and each output is the aggregate of its inputs."
    )
    assert report.fates["committed"] == RECORDS and report.fates["aborted"]

    last = RECORDS // KEYS
    # Java's default partitioner.
    config = {**idempotent_producer_config(address), "partitioner": "murmur2_random"}
    producer = Producer(config)
    producer.produce(topics.sink, (last + 1).to_bytes(8), "k0")
    assert producer.flush(WAIT_S) == 0
    report = judged(spark, topics, tmp_path / "broken")
    assert report.verdict is Outcome.VIOLATED, report.why
    assert {each.kind: (each.count, each.primary) for each in report.findings if each.count} == {
        "wrong_aggregate": (1, 1),
        "wrong_update": (1, 0),
    }


def judged(spark: SparkSession, topics: Topics, folder: Path) -> Report:
    contract = make_contract(
        {
            "source": {"topic": topics.source},
            "sink": {"topic": topics.sink},
            "aggregate": {
                "group_by": "key",
                "value": "count(*)",
                "encoding": "long",
                "running": True,
            },
            "group": topics.group,
        }
    )
    question = question_of(contract, topics.cluster)
    return judge_topics(spark, Sides(topics.cluster.address), question, folder)
