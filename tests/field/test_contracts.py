"""Public reports whose topics need a contract of their own, made on a real broker: the broken pair
and its healthy twin."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tests.backend.judging.test_check_premises import trim
from tests.field.pairs import Pipeline, TopicPair
from tests.field.reports import require_sentence
from topicproof.backend.address import Address
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.validators.finding import Outcome


@dataclass(frozen=True)
class Case:
    """One report. `write(pipeline, is_broken)` writes its records, or those of its healthy twin."""

    report: str
    write: Callable[[Pipeline, bool], None]
    rows: dict[str, int]
    """How many rows decide the verdict of the broken pair, by kind."""
    terms: dict[str, Any] = field(default_factory=dict)
    """Of the contract. None takes a default out."""
    verdict: Outcome = Outcome.VIOLATED
    partitions: int = 1


def store_keeps_an_aborted_write(pipeline: Pipeline, is_broken: bool) -> None:
    """A program counts words. Its store keeps the sixth count, whose transaction a crash has
    aborted, and counts on from it."""
    inputs = {number: {"word": "kafka", "n": number} for number in range(1, 9)}
    records = [(pipeline.key(number), json.dumps(each)) for number, each in inputs.items()]
    pipeline.write(pipeline.pair.source, records)

    def produce(numbers: range, store: int = 0) -> None:
        for number in numbers:
            value = json.dumps({"word": "kafka", "count": number + store})
            pipeline.producers["a"].produce(pipeline.pair.sink, value, pipeline.key(number), 0)

    for numbers, store in ((range(1, 6), 0), (range(6, 7), 0), (range(6, 9), int(is_broken))):
        producer = pipeline.begin("a")
        produce(numbers, store)
        producer.flush()
        producer.abort_transaction() if len(numbers) == 1 else producer.commit_transaction()


def create_of_a_changed_key_is_lost(pipeline: Pipeline, is_broken: bool) -> None:
    """A change of a primary key becomes a delete, a tombstone and a create. A restart between them
    loses the create of event 2."""
    pipeline.fill(range(5))
    producer = Producer(idempotent_producer_config(Address(pipeline.pair.bootstrap)))
    for number in range(5):
        outputs = [("old", '{"op": "d"}'), ("old", None), ("new", '{"op": "c"}')]
        for key, value in outputs[: 2 if is_broken and number == 2 else 3]:
            headers: list[tuple[str, str | bytes | None]] = [("event", pipeline.key(number))]
            producer.produce(pipeline.pair.sink, value, f"{key}-{number}", headers=headers)
    assert producer.flush() == 0


def number_is_given_twice(pipeline: Pipeline, is_broken: bool) -> None:
    """A standby takes over with an older store, and gives number 7 to a second key."""
    numbers = [*range(8), 7 if is_broken else 8]
    records = [(f"key-{at}", f"id-{number}") for at, number in enumerate(numbers)]
    pipeline.write(pipeline.pair.sink, records)


def keys_are_empty(pipeline: Pipeline, is_broken: bool) -> None:
    """Some keys are empty, and some are null."""
    keys = ["", "", None, "c3", "c4"] if is_broken else ["c0", "c1", "c2", "c3", "c4"]
    for topic in (pipeline.pair.source, pipeline.pair.sink):
        pipeline.write(topic, [(key, f"{number}") for number, key in enumerate(keys)])


def two_partitioners(pipeline: Pipeline, is_broken: bool) -> None:
    """Two instances write one topic, and their libraries choose another partition for a key."""
    for turn in range(2):
        records = [(f"user-{n}", json.dumps({"event": f"{turn}-{n}"})) for n in range(10)]
        pipeline.write(pipeline.pair.source, records)
        for at, record in enumerate(records):
            moved = is_broken and turn == 1
            pipeline.write(pipeline.pair.sink, [record], (at + moved) % 2)


def retention_removes_everything(pipeline: Pipeline, is_broken: bool) -> None:
    """Retention removes all inputs and their last marker. A reader at its old offset wonders what
    it lost."""
    pipeline.begin("source")
    pipeline.produce("source", range(10), topic=pipeline.pair.source)
    pipeline.producers["source"].commit_transaction()
    pipeline.deliver("a", range(10))
    pipeline.move_group(10)
    pipeline.pair.settle()
    if is_broken:
        trim(pipeline.pair.bootstrap, pipeline.pair.source, 11)


def log_begins_with_a_marker(pipeline: Pipeline, is_broken: bool) -> None:
    """The sink has lost an aborted transaction but for its marker, and the log begins with that.
    An output behind it is lost."""
    pipeline.fill(range(10))
    pipeline.deliver("a", range(5), commits=False)
    pipeline.deliver("b", [number for number in range(10) if number != 7 or not is_broken])
    pipeline.pair.settle()
    trim(pipeline.pair.bootstrap, pipeline.pair.sink, 5)


CASES = (
    Case(
        "KAFKA-20685",
        store_keeps_an_aborted_write,
        {"wrong_value": 3},
        {"value": {"count": "field('n')"}},
    ),
    Case(
        "debezium/debezium#7945",
        create_of_a_changed_key_is_lost,
        {"gap": 1},
        {
            "identity": {"source": "key", "sink": {"header": "event"}},
            "expect": "one_to_many",
            "count": 3,
        },
    ),
    Case(
        "apache/kafka#12540",
        number_is_given_twice,
        {"duplicate": 1},
        {"source": None, "identity": None, "unique": "value"},
    ),
    Case(
        "confluentinc/librdkafka#4510",
        keys_are_empty,
        {"identity_missing": 2, "identity_repeated": 1},
        {"order": "none"},
        Outcome.UNKNOWN,
    ),
    Case(
        "tulios/kafkajs#1154",
        two_partitioners,
        {"key_spread": 10},
        {"identity": {"json": "$.event"}, "order": "per_key"},
        Outcome.UNKNOWN,
        partitions=2,
    ),
    Case(
        "confluentinc/librdkafka#3171",
        retention_removes_everything,
        {"source_removed": 1},
        verdict=Outcome.UNKNOWN,
    ),
    Case("aio-libs/aiokafka#781", log_begins_with_a_marker, {"gap": 1}, {"range": "retained"}),
)


@pytest.mark.parametrize("is_broken", [True, False], ids=["broken", "healthy"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.report)
def test_a_contract_finds_what_was_reported(
    bootstrap: str, spark: SparkSession, tmp_path: Path, case: Case, is_broken: bool
) -> None:
    """Story: each writer's docstring. The rows are exact, the sentence is the one of docs/FIELD.md,
    and the healthy twin holds."""
    pair = TopicPair(bootstrap, case.partitions)
    case.write(Pipeline(pair, "job"), is_broken)
    pair.settle()
    report = pair.judge(spark, tmp_path, **case.terms)
    text = pair.terminal_text(report)
    assert report.verdict is (case.verdict if is_broken else Outcome.HOLDS), text
    if is_broken:
        rows = {
            finding.kind: finding.primary
            for finding in report.findings
            if finding.outcome is case.verdict and finding.primary
        }
        assert rows == case.rows, text
        require_sentence(case.report, text)


def test_outputs_behind_an_open_transaction_are_pending(
    bootstrap: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: a job pools its transactional ids, and one that it no longer uses has left a
    transaction open (FLINK-40626). In another partition the marker of the last transaction is late
    (FLINK-40585). Nothing is decided until both end, and then nothing is wrong."""
    pair = TopicPair(bootstrap, 2)
    pooled, bounded = Pipeline(pair, "pooled", 0), Pipeline(pair, "bounded", 1)
    pooled.fill(range(10))
    pooled.deliver("a", range(4))
    pooled.begin("b")
    pooled.produce("b", range(4, 5))
    pooled.deliver("c", range(4, 10))
    bounded.fill(range(10))
    bounded.deliver("a", range(8))
    bounded.begin("b")
    bounded.produce("b", range(8, 10))
    report = pair.judge(spark, tmp_path)
    text = pair.terminal_text(report)
    assert report.verdict is Outcome.UNKNOWN, text
    require_sentence("FLINK-40626", text)
    require_sentence("FLINK-40585", text)
    pooled.producers["b"].abort_transaction()
    bounded.producers["b"].commit_transaction()
    pair.settle()
    report = pair.judge(spark, tmp_path)
    assert report.verdict is Outcome.HOLDS, report.why
