"""Nothing is found in a healthy log, whichever client wrote it: Kafka's Java client, or librdkafka
under any disturbance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.backend.kafka.test_oracle import COPIED_RECORDS, copy
from tests.backend.kafka.topics import Writer
from tests.conftest import wait_until
from topicproof.backend.address import Address, Sides
from topicproof.backend.judging.judge import JUDGING, READING, WRITING, JudgeOptions, judge_topics
from topicproof.backend.kafka.client_configs import transactional_producer_config
from topicproof.backend.kafka.log.rawlog import fetch_bounds
from topicproof.backend.services.spark_session import SHELL_FAILED, failed
from topicproof.backend.settings import Settings
from topicproof.validators.finding import Outcome
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.question import Question


def test_java_and_librdkafka_write_healthy_logs(
    bootstrap: str,
    settings: Settings,
    new_topic: Callable[..., str],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Story: Kafka's own copier (transaction version 2: an epoch a transaction) copies a topic and
    aborts at random. Beside it a producer of librdkafka (version 1) aborts what it flushed, what it
    only queued, and nothing at all; then a successor fences it. Only aborted records are
    reported. While they are judged, one `chmod` of Hadoop is killed: it is judged again."""
    source, sink = new_topic(), new_topic(partitions=2)
    Writer(bootstrap, source).write(f"n{COPIED_RECORDS}")
    copier = copy(bootstrap, settings, source, sink)
    for fenced in (True, False):
        producer = Producer(transactional_producer_config(Address(bootstrap), f"{sink}-other"))
        producer.list_topics()
        producer.init_transactions(10)
        for flushed, queued in ((50, 0), (0, 200), (7, 500), (0, 0), (9, 0)):
            producer.begin_transaction()
            produce(producer, sink, flushed)
            producer.flush()
            produce(producer, sink, queued)
            producer.abort_transaction(10)
        if fenced:
            producer.begin_transaction()
            produce(producer, sink, 1)
            producer.flush()
    assert copier.wait(60) == 0
    wait_until(
        lambda: all(p.lso == p.hw for p in fetch_bounds(Address(bootstrap), sink).partitions),
        20,
        "every marker",
    )

    question = Question(fetch_bounds(Address(bootstrap), source), sink, identity=Identity.KEY)
    steps: list[str] = []

    def killed(step: str) -> None:
        steps.append(step)
        if steps == [READING, JUDGING]:
            raise failed("Spark could not judge", PySparkException(f"({SHELL_FAILED})"))

    report = judge_topics(
        spark, Sides(Address(bootstrap)), question, tmp_path, JudgeOptions(on_step=killed)
    )
    assert steps == [READING, JUDGING, READING, JUDGING, WRITING]
    assert report.verdict is Outcome.HOLDS, report.why
    assert {finding.kind for finding in report.findings if finding.count} == {"aborted_volume"}
    looked_at = {check.kind: check.records for check in report.checked}
    for kind in ("reading_mismatch", "zombie_write", "sequence_hole", "marker_accounting"):
        assert looked_at[kind] > 0, kind


def produce(producer: Producer, sink: str, count: int) -> None:
    for _ in range(count):
        producer.produce(sink, b"never committed", b"other", partition=1)
