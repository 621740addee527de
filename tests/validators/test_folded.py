"""Verdicts whose evidence keeps no payloads: the readings are folded as they come, and nothing else
changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tests.written_sinks import write_broken, write_healthy
from topicproof.backend.address import Address, Sides
from topicproof.backend.errors import EvidenceError
from topicproof.backend.evidence.copy import copy_evidence, without_payloads
from topicproof.backend.evidence.folded import PIECES_SEEN
from topicproof.backend.evidence.folder import EVIDENCE
from topicproof.backend.evidence.manifest import Payloads, read_manifest, write_manifest
from topicproof.backend.judging.capture_store import COMMITTED, INPUTS, UNCOMMITTED, read_capture
from topicproof.backend.judging.judge import JudgeOptions, judge_topics
from topicproof.backend.judging.selftest import WITHOUT_RECORDS, self_test
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.kafka.log.rawlog import fetch_bounds
from topicproof.backend.verifying.verify import verify
from topicproof.validators.finding import Outcome
from topicproof.validators.folded import offset_runs as pieces
from topicproof.validators.question import Question
from topicproof.validators.report import Report

NewTopic = Callable[..., str]
READINGS = {COMMITTED, UNCOMMITTED, INPUTS}


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


def judged(
    spark: SparkSession, bootstrap: str, source: str, sink: str, folder: Path, payloads: Payloads
) -> Report:
    question = Question(fetch_bounds(Address(bootstrap), source), sink)
    return judge_topics(
        spark, Sides(Address(bootstrap)), question, folder, JudgeOptions(payloads=payloads)
    )


def told_alike(one: Report, other: Report) -> bool:
    return replace(one, took_s=0) == replace(other, took_s=0)


def spelled(folder: Path, text: str) -> list[str]:
    """The files below the folder in which a text stands; those in Parquet are unpacked."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    said = {
        path: repr(
            pq.read_table(path).to_pylist() if path.suffix == ".parquet" else path.read_bytes()
        )
        for path in files
    }
    return [path.name for path in files if text in said[path]]


@pytest.mark.parametrize("few", [True, False], ids=["few", "many"])
def test_a_healthy_topic_is_proved_without_keeping_a_record(
    bootstrap: str,
    new_topic: NewTopic,
    source: str,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    few: bool,
) -> None:
    """Story: a topic holds what nobody may copy. The verdict is the one of whole evidence, kind by
    kind; no reading is on disk, and what is there proves it again, in a copy of the evidence
    too."""
    if not few:
        monkeypatch.setattr(pieces, "FEW_OFFSETS_MAX", 0)
    sink = new_topic()
    write_healthy(bootstrap, sink, source)
    whole, bare = (
        judged(spark, bootstrap, source, sink, tmp_path / one, one)
        for one in (Payloads.ALL, Payloads.NONE)
    )
    assert whole.verdict is Outcome.HOLDS and told_alike(whole, bare)
    evidence = tmp_path / Payloads.NONE / EVIDENCE
    assert {path.name for path in (tmp_path / Payloads.ALL / EVIDENCE).iterdir()} >= READINGS
    assert not READINGS & {path.name for path in evidence.iterdir()}
    assert "content" not in pq.read_schema(evidence / PIECES_SEEN).names
    assert spelled(tmp_path / Payloads.ALL, "said-3") and not spelled(
        tmp_path / Payloads.NONE, "said-3"
    )
    assert read_manifest(evidence).payloads is Payloads.NONE
    copy_evidence(evidence, tmp_path / "copy", Payloads.MASKED)
    for folder in (evidence, tmp_path / "copy"):
        found = verify(spark, folder)
        assert found.contradictions == () and found.exit_code == 0


def test_whatever_is_odd_is_looked_at_record_by_record(
    bootstrap: str, new_topic: NewTopic, source: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: there are a duplicate, a gap and an inversion. Folded readings do not tell where, so
    the topics are read again, and what records said is taken out of the evidence in the end."""
    sink = new_topic()
    write_broken(bootstrap, sink, source)
    whole, bare = (
        judged(spark, bootstrap, source, sink, tmp_path / one, one)
        for one in (Payloads.ALL, Payloads.NONE)
    )
    assert whole.verdict is Outcome.VIOLATED and told_alike(whole, bare)
    evidence = tmp_path / Payloads.NONE / EVIDENCE
    assert spelled(evidence, "said-3")
    without_payloads(evidence)
    assert not spelled(tmp_path / Payloads.NONE, "said-3")
    assert read_manifest(evidence).payloads is Payloads.NONE
    found = verify(spark, evidence)
    assert found.judged is not None and found.judged.verdict is Outcome.VIOLATED
    before = read_manifest(evidence)
    without_payloads(evidence)
    assert read_manifest(evidence) == before


def test_what_needs_records_says_that_there_are_none(
    bootstrap: str, new_topic: NewTopic, source: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: somebody takes a row out of the proof and hashes everything again; it no longer proves
    the report. What needs records refuses with a message, and the self-test has nothing to inject
    into."""
    sink = new_topic()
    write_healthy(bootstrap, sink, source)
    report = judged(spark, bootstrap, source, sink, tmp_path, Payloads.NONE)
    evidence = tmp_path / EVIDENCE
    with pytest.raises(EvidenceError, match="without payloads"):
        read_capture(spark, evidence).committed.count()
    test = self_test(spark, tmp_path)
    assert (test.caught, test.reason) == ((), WITHOUT_RECORDS)
    rows = pq.read_table(evidence / PIECES_SEEN)
    pq.write_table(rows.slice(1), evidence / PIECES_SEEN)
    write_manifest(evidence, report.run, report.verdict, Payloads.NONE)
    with pytest.raises(EvidenceError, match="do not prove the report again"):
        verify(spark, evidence)
