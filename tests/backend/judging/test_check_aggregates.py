"""Contracts about aggregates: what programs write that keep a count or a sum for each key."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tests.backend.judging.test_check_letters import require_proven
from tests.backend.judging.test_check_premises import trim
from tests.conftest import wait_until
from topicproof.backend.address import Address, Sides
from topicproof.backend.contracts.contract import make_contract, parse_fields
from topicproof.backend.contracts.contract_question import question_of
from topicproof.backend.evidence.copy import copy_evidence, without_values
from topicproof.backend.evidence.folder import CONTRACT, EVIDENCE
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.judging.judge import JudgeOptions, judge_topics
from topicproof.backend.judging.selftest import self_test
from topicproof.backend.kafka.client_configs import (
    idempotent_producer_config,
    transactional_producer_config,
)
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.verifying.verify import verify
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report

NewTopic = Callable[..., str]
Written = Iterable[tuple[str | None, Any]]
TOTALS = """
aggregate:
  group_by: field('customer')
  value: {total: sum(field('amount')), n: count(*), least: min(field('amount'))}
  running: true
"""
COUNTS = "aggregate: {group_by: key, value: count(*), encoding: long}\n"
ANN = ((1, 1, 1), ("3.50", 2, 1), (2.5, 3, -1))
"""The updates of Ann, whose amounts are 1, 2.5 and -1."""


def write(producer: Producer, topic: str, written: Written, partition: int = 0) -> None:
    for key, value in written:
        data = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        producer.produce(topic, data, key, partition=partition)
    assert producer.flush(30) == 0


def orders(customer: str | None, *amounts: Any) -> Written:
    return [(None, {"customer": customer, "amount": amount}) for amount in amounts]


def totals(customer: str, *updates: tuple[Any, int, Any]) -> Written:
    return [(customer, {"total": t, "n": n, "least": least}) for t, n, least in updates]


def judged(
    spark: SparkSession, bootstrap: str, folder: Path, source: str, sink: str, terms: str
) -> Report:
    """Judge as `topicproof check` does, which keeps the contract in the evidence."""
    text = f"source: {{topic: {source}}}\nsink: {{topic: {sink}}}\n{terms}"
    address = Address(bootstrap)
    question = question_of(make_contract(parse_fields(text)), Cluster(address))
    options = JudgeOptions(attachments={CONTRACT: text})
    return judge_topics(spark, Sides(address), question, folder, options)


def is_settled(bootstrap: str, topic: str) -> bool:
    return all(p.lso == p.hw for p in Cluster(Address(bootstrap)).bounds(topic).partitions)


def rows_of(report: Report) -> dict[str, list[str]]:
    return {one.kind: [row.why for row in one.examples] for one in report.findings if one.examples}


def test_lost_doubled_and_resurrected_updates_are_found(
    bootstrap: str, new_topic: NewTopic, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: a program keeps a total for each customer. It is right about Ann, although a producer
    aborted an order of hers. It loses an update of Bob, adds one of Cleo twice, and writes an old
    total of Dan again. It never writes Eve, writes Fay who ordered nothing, and removes Gus. An
    order of Hal holds no number, and one is of nobody. Each mistake is found with its numbers and
    places; the evidence proves the verdict, and a copy without values names no customer."""
    source, sink = new_topic(), new_topic()
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    write(producer, source, [*orders("ann", 1, 2.5, -1), *orders("bob", 5, 6)])
    aborting = Producer(transactional_producer_config(Address(bootstrap), f"{source}-writer"))
    aborting.init_transactions(30)
    aborting.begin_transaction()
    write(aborting, source, [*orders("ann", 1000), *orders("ivy", 1)])
    aborting.abort_transaction(30)
    wait_until(lambda: is_settled(bootstrap, source), 30, "the marker")
    write(producer, source, [*orders("cleo", 10), *orders("dan", 5, 5, 5), *orders("eve", 7)])
    write(producer, source, [*orders("gus", 1), *orders("hal", 1, "ten"), *orders(None, 1)])
    write(producer, sink, [*totals("ann", *ANN), *totals("bob", (5, 1, 5))])
    write(producer, sink, totals("cleo", (10, 1, 10), (20, 2, 10)))
    write(producer, sink, totals("dan", (5, 1, 5), (10, 2, 5), (5, 1, 5), (15, 3, 5)))
    write(producer, sink, [*totals("fay", (1, 1, 1)), *totals("gus", (1, 1, 1)), ("gus", None)])
    write(producer, sink, [*totals("hal", (11, 2, 1)), *totals("jo", (1, 1, 1)), ("jo", None)])
    report = judged(spark, bootstrap, tmp_path / "broken", source, sink, TOTALS)

    assert report.verdict is Outcome.VIOLATED, report.why
    assert rows_of(report) == {
        "group_missing": [
            f'No committed output is of this group: "eve" has 1 input, {source}-0@12.',
            "The last output of this group has no value, which removes the group: "
            f'"gus" has 1 input, {source}-0@13.',
        ],
        "group_unknown": [
            'No input is of the group of this output: "fay", with 1 committed records of it.'
        ],
        "wrong_aggregate": [
            f'The last output of this group is not the aggregate of its inputs: "bob" has 2'
            f" inputs, from {source}-0@3 to {source}-0@4. total is 5, and 11 is expected. n is 1,"
            " and 2 is expected.",
            f'The last output of this group is not the aggregate of its inputs: "cleo" has 1'
            f" input, {source}-0@8. total is 20, and 10 is expected. n is 2, and 1 is expected.",
            "An input or the output of this group holds no number that can be compared exactly:"
            f' "hal" has 2 inputs, from {source}-0@14 to {source}-0@15. total is 11, and 1 is'
            " expected.",
        ],
        "wrong_update": [
            'This output is of fewer inputs than one before it: "dan", total 5, n 1, least 5, of 1'
            " of its inputs, after an output of 2.",
            'No first inputs of its group give this output: "cleo", total 20, n 2, least 10.',
            'This output is of fewer inputs than one before it: "gus", total null, n null, least'
            " null, of 0 of its inputs, after an output of 1.",
            'No first inputs of its group give this output: "hal", total 11, n 2, least 1.',
        ],
    }
    causes = {one.kind: (one.count, one.primary) for one in report.findings if one.count}
    assert causes == {
        "group_missing": (2, 2),
        "group_unknown": (1, 1),
        "wrong_aggregate": (3, 2),
        "wrong_update": (4, 1),
    }
    evidence = tmp_path / "broken" / EVIDENCE
    require_proven(spark, evidence, 1)
    assert not (evidence / "ledger" / "groups").exists()
    bare = [why for whys in rows_of(without_values(report)).values() for why in whys]
    assert "The last output of this group is not the aggregate of its inputs." in bare
    assert not any('"' in why or "expected" in why for why in bare)
    copy_evidence(evidence, tmp_path / "masked", Payloads.MASKED)
    # The numbers are digests there: the copy shows no totals, and proves none.
    assert verify(spark, tmp_path / "masked").exit_code == 3


def test_healthy_counts_hold_until_something_is_open_or_removed(
    bootstrap: str, new_topic: NewTopic, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: a program counts records by key and writes each count as Kafka's eight bytes. All
    counts are right. Nothing injects a fault into them, and the judge says so. Then a transaction
    stays open at the source, and later Kafka removes its oldest record: both leave the verdict
    open, although no count has changed."""
    source, sink = new_topic(partitions=2), new_topic()
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    empty = judged(spark, bootstrap, tmp_path / "empty", source, sink, COUNTS)
    assert empty.verdict is Outcome.UNKNOWN, empty.why
    write(producer, source, [("a", 1), ("a", 2), (None, 3)])
    write(producer, source, [("b", 4), ("a", 5)], partition=1)
    write(producer, sink, [("a", (2).to_bytes(8)), ("b", (1).to_bytes(8)), ("a", (3).to_bytes(8))])
    report = judged(spark, bootstrap, tmp_path / "healthy", source, sink, COUNTS)
    assert report.verdict is Outcome.HOLDS, report.why
    assert report.why == (
        "2 groups of 4 inputs, and the last output of each is the aggregate of its inputs; 1 input"
        " belongs to no group."
    )
    reasons = {check.kind: check.why for check in report.not_checked}
    assert reasons["order"].startswith("Not judged: it has no meaning for an aggregate.")
    assert "aggregate" in self_test(spark, tmp_path / "healthy").reason
    require_proven(spark, tmp_path / "healthy" / EVIDENCE, 0)

    opened = Producer(transactional_producer_config(Address(bootstrap), f"{source}-writer"))
    opened.init_transactions(30)
    opened.begin_transaction()
    write(opened, source, [("a", 6)])
    report = judged(spark, bootstrap, tmp_path / "open", source, sink, COUNTS)
    assert report.verdict is Outcome.UNKNOWN, report.why
    assert "1 offset of the source is pending, and may still belong to any group." in {
        one.why.partition("inputs. ")[2] for one in report.findings
    }
    opened.abort_transaction(30)
    wait_until(lambda: is_settled(bootstrap, source), 30, "the marker")

    trim(bootstrap, source, 1)
    report = judged(spark, bootstrap, tmp_path / "cut", source, sink, COUNTS)
    assert report.verdict is Outcome.UNKNOWN, report.why
    assert "source_removed" in report.why


def test_what_is_not_due_may_be_counted_or_not(
    bootstrap: str, new_topic: NewTopic, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: a program's group has committed half of its inputs. A total may count any number of
    the others, but none fewer than the half, and a customer of the other half needs no total yet.
    Sums of doubles differ in their last digit, as the contract allows. One customer's totals lie in
    two partitions, so none is known as the last."""
    source, sink = new_topic(), new_topic(partitions=2)
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    write(producer, source, [*orders("a", 0.1), *orders("b", 1, 1), *orders("d", 1)])
    write(producer, source, [*orders("a", 0.2, 0.7), *orders("b", 1), *orders("c", 1)])
    write(producer, sink, [("a", {"total": 0.30000000000000004}), ("b", {"total": 1})])
    write(producer, sink, [("d", {"total": 1})])
    write(producer, sink, [("d", {"total": 1})], partition=1)
    group = f"{sink}-app"
    Cluster(Address(bootstrap)).commit_offsets(group, source, {0: 4})
    terms = (
        "aggregate: {group_by: \"field('customer')\", value: {total: sum(field('amount'))},"
        f" tolerance: 1e-9}}\ngroup: {group}\n"
    )
    report = judged(spark, bootstrap, tmp_path / "half", source, sink, terms)
    assert report.verdict is Outcome.VIOLATED, report.why
    assert rows_of(report) == {
        "wrong_aggregate": [
            'The last output of this group is not the aggregate of its inputs: "b" has 3 inputs,'
            f" from {source}-0@1 to {source}-0@6. total is 1, and 3 is expected.",
            f'Outputs of this group lie in several partitions of the sink: "d" has 1 input,'
            f" {source}-0@3.",
        ]
    }
    assert "4 later inputs were not due" in report.why
