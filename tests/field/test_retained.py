"""Topics that have lost their first records, as every topic with a retention has: what is left is
judged (apache/kafka 22248, 23091). Tombstones, groups and keys without a pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

from tests.backend.judging.test_check_premises import check, trim, write
from tests.field.reports import require_sentence
from tests.field.test_drafts import produce
from topicproof.backend.address import Address
from topicproof.backend.judging.selftest import self_test
from topicproof.backend.kafka.client_configs import transactional_producer_config
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report

NewTopic = Callable[..., str]
ALL_KINDS = {"require": None}


def rows(report: Report) -> dict[str, int]:
    """How many rows break the verdict, by kind."""
    return {
        finding.kind: finding.primary
        for finding in report.findings
        if finding.outcome is Outcome.VIOLATED and finding.primary
    }


@pytest.mark.parametrize(
    ("mirror", "sink_from", "verdict", "broken"),
    [
        ([*range(100)], 30, Outcome.HOLDS, {}),
        (
            [*range(70), *range(71, 80), 82, 81, 80, *range(83, 100), 90],
            *(50, Outcome.VIOLATED, {"duplicate": 1, "gap": 1, "order": 2}),
        ),
    ],
    ids=["healthy", "a loss, a repeat and a swap"],
)  # fmt: skip
def test_what_is_left_of_a_mirror_is_judged(
    bootstrap: str,
    new_topic: NewTopic,
    spark: SparkSession,
    tmp_path: Path,
    mirror: Sequence[int],
    sink_from: int,
    verdict: Outcome,
    broken: dict[str, int],
) -> None:
    """Story: retention has removed the first 50 of 100 records, and some of their copies. On the
    healthy mirror the self-test finds what it injects."""
    source, sink = new_topic(), new_topic()
    write(bootstrap, source, range(100))
    write(bootstrap, sink, mirror)
    trim(bootstrap, source, 50)
    trim(bootstrap, sink, sink_from)
    topics = {"source": {"topic": source}, "sink": {"topic": sink}}
    (report,) = check(spark, bootstrap, tmp_path, range="retained", **topics, **ALL_KINDS)
    assert (report.verdict, rows(report)) == (verdict, broken), report.why
    if verdict is Outcome.HOLDS:
        assert f"; judged from {sink}-0@50 on; 50 offsets lost by the source" in report.why
        caught = self_test(spark, tmp_path / "0").caught
        assert {one.kind for one in caught} == {"duplicate", "gap", "order"}


def test_22248_retention_that_overtakes_a_mirror(
    bootstrap: str, new_topic: NewTopic, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: a mirror has copied records 0 to 20 when retention removes the first 50, and goes on
    with the rest. The 29 between are nowhere, and nothing tells that they were promised."""
    source, sink = new_topic(), new_topic()
    write(bootstrap, source, range(100))
    trim(bootstrap, source, 50)
    write(bootstrap, sink, [*range(21), *range(50, 100)])
    topics = {"source": {"topic": source}, "sink": {"topic": sink}}
    (report,) = check(spark, bootstrap, tmp_path / "whole", **topics, **ALL_KINDS)
    assert report.verdict is Outcome.UNKNOWN
    (report,) = check(
        spark, bootstrap, tmp_path / "retained", range="retained", **topics, **ALL_KINDS
    )
    assert report.verdict is Outcome.HOLDS
    assert f"judged from {sink}-0@21 on;" in report.why
    require_sentence("apache/kafka#22248", report.why)


@pytest.mark.parametrize(("lost", "verdict"), [(None, Outcome.HOLDS), (4, Outcome.VIOLATED)])
def test_a_tombstone_needs_no_identity(
    bootstrap: str,
    new_topic: NewTopic,
    spark: SparkSession,
    tmp_path: Path,
    lost: int | None,
    verdict: Outcome,
) -> None:
    """Story: every tenth input is a tombstone, as Debezium writes behind each delete. The contract
    says that it has no output. Then an output of another input is lost."""
    source, sink = new_topic(), new_topic()
    records: list[Any] = [
        (0, f"k{n % 10}", None if n % 10 == 9 else f'{{"id": {n}}}') for n in range(50)
    ]
    produce(bootstrap, source, records)
    outputs = [(0, str(n), "out") for n in range(50) if n % 10 != 9 and n != lost]
    produce(bootstrap, sink, outputs)
    terms: dict[str, Any] = {
        "source": {"topic": source},
        "sink": {"topic": sink},
        "identity": {"source": {"json": "$.id"}, "sink": "key"},
        "expect": "zero_or_one",
        "count": "if(value is null, 0, 1)",
        "order": "none",
        **ALL_KINDS,
    }
    (report,) = check(spark, bootstrap, tmp_path, **terms)
    assert report.verdict is verdict, report.why
    assert rows(report) == ({} if lost is None else {"gap": 1})


@pytest.mark.parametrize(("commits", "verdict"), [(False, Outcome.HOLDS), (True, Outcome.UNKNOWN)])
def test_a_group_needs_no_offset_of_aborted_records(
    bootstrap: str,
    new_topic: NewTopic,
    spark: SparkSession,
    tmp_path: Path,
    commits: bool,
    verdict: Outcome,
) -> None:
    """Story: the records of source partition 1 were aborted, so the group received none and has no
    offset there. If they were committed, nothing tells where it continues. Each key occurs once, so
    nothing can be out of order."""
    source, sink = new_topic(2), new_topic()
    address = Address(bootstrap)
    producer = Producer(transactional_producer_config(address, f"{source}-writer"))
    producer.init_transactions(30)
    for partition, is_committed in ((0, True), (1, commits)):
        producer.begin_transaction()
        for number in range(10):
            producer.produce(source, b"v", f"{partition}-{number}", partition)
        producer.flush()
        producer.commit_transaction() if is_committed else producer.abort_transaction()
    produce(bootstrap, sink, [(0, f"0-{number}", "v") for number in range(10)])
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": source})
    consumer.commit(offsets=[TopicPartition(source, 0, 11)], asynchronous=False)
    consumer.close()
    terms = {"source": {"topic": source}, "sink": {"topic": sink}, "group": source}
    (report,) = check(spark, bootstrap, tmp_path, order="per_key", **terms, **ALL_KINDS)
    assert report.verdict is verdict, report.why
