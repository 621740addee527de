"""Checks of real topics that somebody else wrote, whose premises do not hold: trimmed, pending,
several sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from topicproof.backend.address import Address, Sides
from topicproof.backend.contracts.contract import make_contract
from topicproof.backend.contracts.contract_question import question_of
from topicproof.backend.judging.judge import judge_topics
from topicproof.backend.kafka.client_configs import (
    admin_config,
    idempotent_producer_config,
    transactional_producer_config,
)
from topicproof.backend.kafka.cluster import Cluster
from topicproof.validators.finding import Outcome
from topicproof.validators.lineage.headers import (
    LINEAGE_HEADER,
    TRANSACTION_HEADER,
    Lineage,
    Transaction,
    format_lineage,
    format_transaction,
)
from topicproof.validators.report import Report

NewTopic = Callable[..., str]


def write(bootstrap: str, topic: str, keys: Iterable[int]) -> None:
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    for key in keys:
        producer.produce(topic, b"value", str(key).encode(), partition=0)
    assert producer.flush() == 0


def trim(bootstrap: str, topic: str, offset: int) -> None:
    admin = AdminClient(admin_config(Address(bootstrap)))
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result()


def check(spark: SparkSession, bootstrap: str, folder: Path, **terms: Any) -> list[Report]:
    contract = make_contract(
        {"identity": "key", "require": ["duplicate", "gap", "order", "phantom"], **terms}
    )
    questions = [question_of(one, Cluster(Address(bootstrap))) for one in contract.each()]
    return [
        judge_topics(spark, Sides(Address(bootstrap)), one, folder / f"{n}")
        for n, one in enumerate(questions)
    ]


def test_headers_that_a_copy_hands_on_name_no_transaction_of_it(
    bootstrap: str, new_topic: NewTopic, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: two tasks of a run write a topic in turn. Another program copies it with its headers,
    as Kafka Streams does, three records a transaction. Every record is there once and in order.
    Then one is copied twice."""
    origin, copy = new_topic(), new_topic()
    written = []
    for sequence in range(1, 5):
        for task in range(2):
            producer = Producer(
                transactional_producer_config(Address(bootstrap), f"{origin}-{task}")
            )
            producer.init_transactions(30)
            producer.begin_transaction()
            for offset in (2 * sequence, 2 * sequence + 1):
                name = Transaction(f"run-{task}", sequence, 1, f"task {task}", 2)
                headers: list[tuple[str, str | bytes | None]] = [
                    (LINEAGE_HEADER, format_lineage(Lineage("numbers", task, offset, 0))),
                    (TRANSACTION_HEADER, format_transaction(name)),
                ]
                key = f"{task}-{offset}".encode()
                producer.produce(origin, b"value", key, headers=headers)
                written.append((key, headers))
            producer.commit_transaction(30)
    copier = Producer(transactional_producer_config(Address(bootstrap), f"{copy}-copier"))
    copier.init_transactions(30)

    def hand_on(records: Sequence[tuple[bytes, Any]]) -> None:
        copier.begin_transaction()
        for key, headers in records:
            copier.produce(copy, b"value", key, headers=headers)
        copier.commit_transaction(30)

    for at in range(0, len(written), 3):
        hand_on(written[at : at + 3])
    terms = {"source": {"topic": origin}, "sink": {"topic": copy}, "require": None}
    (report,) = check(spark, bootstrap, tmp_path / "once", **terms)
    assert report.verdict is Outcome.HOLDS, report.why
    hand_on(written[-1:])
    (report,) = check(spark, bootstrap, tmp_path / "twice", **terms)
    broken = {one.kind for one in report.findings if one.outcome is Outcome.VIOLATED}
    assert report.verdict is Outcome.VIOLATED and broken <= {"duplicate", "order"}


def premises(report: Report) -> set[str]:
    return {one.kind for one in report.findings if one.primary and one.outcome is Outcome.UNKNOWN}


@pytest.mark.parametrize(
    ("source_from", "sink_from", "accepted", "verdict", "broken"),
    [
        (0, 0, False, Outcome.HOLDS, set()),
        (5, 5, False, Outcome.UNKNOWN, {"source_removed", "sink_removed"}),
        (5, 5, True, Outcome.HOLDS, set()),
        # What is gone from the sink alone was there first, so it is not judged.
        (0, 5, True, Outcome.HOLDS, set()),
    ],
)
def test_what_retention_removed_is_neither_lost_nor_repeated(
    bootstrap: str,
    new_topic: NewTopic,
    spark: SparkSession,
    tmp_path: Path,
    source_from: int,
    sink_from: int,
    accepted: bool,
    verdict: Outcome,
    broken: set[str],
) -> None:
    """Story: twenty inputs were copied, and both logs may begin later by now."""
    source, sink = new_topic(), new_topic()
    for topic, start in ((source, source_from), (sink, sink_from)):
        write(bootstrap, topic, range(20))
        trim(bootstrap, topic, start)
    terms = {
        "source": {"topic": source},
        "sink": {"topic": sink},
        "range": "retained" if accepted else "whole",
    }
    (report,) = check(spark, bootstrap, tmp_path, **terms)
    assert (report.verdict, premises(report)) == (verdict, broken), report.why


def test_inputs_behind_an_open_transaction_are_pending(
    bootstrap: str, new_topic: NewTopic, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: two inputs are settled, one is in an open transaction, and one plain one waits behind
    it. A pipeline that reads read_uncommitted has processed all four. The plain one is no
    phantom."""
    source, sink = new_topic(), new_topic()
    write(bootstrap, source, range(2))
    producer = Producer(transactional_producer_config(Address(bootstrap), source))
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(source, b"value", b"2", partition=0)
    producer.flush()
    write(bootstrap, source, [3])
    write(bootstrap, sink, range(4))
    (report,) = check(spark, bootstrap, tmp_path, source={"topic": source}, sink={"topic": sink})
    found = {
        one.kind: (one.count, one.primary, one.explained_by) for one in report.findings if one.count
    }
    assert report.verdict is Outcome.UNKNOWN
    assert found == {"phantom": (2, 0, "pending"), "source_pending": (1, 1, None)}
    producer.abort_transaction()


def test_several_sinks_are_judged_each_by_itself(
    bootstrap: str, new_topic: NewTopic, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: each input has an output in both sinks. One is there twice in the first and never in
    the second. Counted as one, two outputs are there."""
    source, first, second = new_topic(), new_topic(), new_topic()
    write(bootstrap, source, range(4))
    write(bootstrap, first, [0, 1, 1, 2, 3])
    write(bootstrap, second, [0, 2, 3])
    as_one = {"sink": {"topics": [first, second]}, "expect": "one_to_many", "count": "2"}
    (report,) = check(spark, bootstrap, tmp_path / "one", source={"topic": source}, **as_one)
    assert (report.verdict, premises(report)) == (Outcome.UNKNOWN, {"outputs_alike"})
    apart = {"sinks": [{"topic": first}, {"topic": second}]}
    reports = check(spark, bootstrap, tmp_path / "two", source={"topic": source}, **apart)
    violated = [
        [one.kind for one in report.findings if one.outcome is Outcome.VIOLATED]
        for report in reports
    ]
    assert violated == [["duplicate", "order"], ["gap"]]


@pytest.mark.parametrize("removed", [True, False])
def test_a_source_without_records_is_judged_like_any_other(
    bootstrap: str, new_topic: NewTopic, spark: SparkSession, tmp_path: Path, removed: bool
) -> None:
    """Story: retention has removed all six inputs, and the sink still has their outputs. Or there
    never was an input, and somebody wrote outputs. Both end in a report with evidence."""
    source, sink = new_topic(), new_topic()
    if removed:
        write(bootstrap, source, range(6))
        trim(bootstrap, source, 6)
    write(bootstrap, sink, range(6))
    (report,) = check(spark, bootstrap, tmp_path, source={"topic": source}, sink={"topic": sink})
    outcomes = {finding.kind: finding.outcome for finding in report.findings}
    if removed:
        assert report.verdict is Outcome.UNKNOWN and "removed" in report.why
        assert outcomes["source_removed"] is Outcome.UNKNOWN
    else:
        assert report.verdict is Outcome.VIOLATED
        assert outcomes["phantom"] is Outcome.VIOLATED
    assert (tmp_path / "0" / "evidence" / "manifest.json").is_file()
