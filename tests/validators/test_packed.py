"""Verdicts where lineage is packed are those of headers on every record; where it cannot be known,
they are UNKNOWN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tests.backend.kafka.topics import delete_below
from tests.packs import write_broken
from topicproof.backend.address import Address
from topicproof.backend.judging.capture import capture_topics
from topicproof.backend.judging.capture_store import Question, read_capture
from topicproof.backend.judging.judge import judge_capture, judge_topics, with_headers
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.kafka.log.rawlog import fetch_bounds
from topicproof.validators.finding import Outcome
from topicproof.validators.lineage.headers import LINEAGE_HEADER, TRANSACTION_HEADER
from topicproof.validators.lineage.packs import PACKED_HEADER
from topicproof.validators.report import Report

NewTopic = Callable[..., str]


@pytest.fixture
def source(bootstrap: str, new_topic: NewTopic) -> str:
    topic = new_topic(partitions=2)
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    for partition in (0, 1):
        for offset in range(8):
            producer.produce(topic, b"%d" % offset, partition=partition)
    producer.flush()
    producer.close()
    return topic


def told(report: Report) -> dict[str, tuple[int, list[tuple[int | None, int | None, str | None]]]]:
    """Of each kind that was found, how many, and where."""
    return {
        one.kind: (
            one.primary,
            [(example.partition, example.offset, example.lineage) for example in one.examples],
        )
        for one in report.findings
        if one.count
    }


def test_what_is_wrong_is_found_as_with_headers_on_every_record(
    bootstrap: str, new_topic: NewTopic, source: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: two producers take turns in a partition, a pack of theirs is aborted, and there are a
    duplicate, a gap and an inversion. The same topic is written twice. Both verdicts find the same
    at the same places, and the kept readings hold the same headers; judged again from the evidence
    nothing changes."""
    reports, headers = [], []
    question = Question(fetch_bounds(Address(bootstrap), source), "")
    for packed in (False, True):
        sink, folder = new_topic(), tmp_path / str(packed)
        write_broken(bootstrap, sink, source, packed)
        reports.append(
            judge_topics(spark, Address(bootstrap), replace(question, sink=sink), folder)
        )
        taken = read_capture(spark, folder / "evidence")
        whole = with_headers(taken, folder / "whole")
        headers.append(
            [
                sorted(
                    (row.offset, one.key, bytes(one.value))
                    for row in reading.collect()
                    for one in row.headers
                )
                for reading in (whole.committed, whole.uncommitted)
            ]
        )
        assert told(judge_capture(spark, taken, folder / "again")) == told(reports[-1])
    assert told(reports[0]) == told(reports[1])
    found = {
        kind: (count, [lineage for _, _, lineage in where])
        for kind, (count, where) in told(reports[1]).items()
    }
    assert found["duplicate"] == (1, [f"{source}/0/5/0"])
    assert found["gap"] == (1, [f"{source}/0/6"])
    assert found["order"] == (1, [f"{source}/1/5/0", f"{source}/0/5/0"]), (
        "of which the duplicate explains one"
    )
    assert reports[1].verdict is Outcome.VIOLATED
    assert headers[0] == headers[1]
    assert {name for _, name, _ in headers[1][1]} == {LINEAGE_HEADER, TRANSACTION_HEADER, "own"}


def test_records_whose_pack_has_lost_its_head_make_the_verdict_unknown(
    bootstrap: str, new_topic: NewTopic, source: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: the sink's log is trimmed inside the first two packs. What is left of them names no
    input, and is given none of another pack; the verdict says how many, instead of calling them
    phantoms."""
    sink = new_topic()
    write_broken(bootstrap, sink, source, packed=True)
    delete_below(bootstrap, sink, 2)
    report = judge_topics(
        spark,
        Address(bootstrap),
        Question(fetch_bounds(Address(bootstrap), source), sink),
        tmp_path,
    )
    assert report.verdict is Outcome.UNKNOWN
    assert "the first record of their pack" in report.why and "6" in report.why
    taken = with_headers(read_capture(spark, tmp_path / "evidence"), tmp_path / "whole")
    names = {row.offset: {one.key for one in row.headers} for row in taken.committed.collect()}
    assert {offset for offset, found in names.items() if LINEAGE_HEADER not in found} == set(
        range(2, 8)
    )


def test_without_the_raw_log_packed_lineage_is_unknown(
    bootstrap: str, new_topic: NewTopic, source: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: the raw log is missing. Which input a record belongs to is unknown, and the verdict
    says so."""
    sink = new_topic()
    write_broken(bootstrap, sink, source, packed=True)
    question = Question(fetch_bounds(Address(bootstrap), source), sink)
    taken = capture_topics(spark, Address(bootstrap), question, tmp_path)
    unheard = replace(taken, batches=None, packs=None)
    report = judge_capture(spark, unheard, tmp_path / "again")
    assert report.verdict is Outcome.UNKNOWN
    assert (
        "lineage is packed, and only the raw log, which is missing, shows which input" in report.why
    )
    assert PACKED_HEADER in {one.key for row in taken.committed.collect() for one in row.headers}
