"""One record must not end the Spark that everybody shares, nor the dashboard."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.backend.judging.test_check_premises import check, write
from topicproof.backend.address import Address
from topicproof.backend.contracts.sample import newest
from topicproof.backend.errors import RecordTooLarge
from topicproof.backend.formats.formats import Formats
from topicproof.backend.history.store import History, State
from topicproof.backend.judging import log_scan
from topicproof.backend.kafka.browse.records import read_window
from topicproof.backend.kafka.browse.search import RecordQuery, Stop, search
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.kafka.log.fates import fate_ranges
from topicproof.backend.kafka.log.rawlog import fetch_bounds, scan
from topicproof.backend.runs.context import make_context
from topicproof.backend.runs.create import create
from topicproof.backend.runs.execute import execute
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report
from topicproof.validators.spark_errors import first_line

NewTopic = Callable[..., str]


BOMB_BYTES = 2**27
"""Of a record, beyond all that is read."""


def write_bomb(bootstrap: str, topic: str, codec: str = "zstd") -> None:
    """Write one record within the broker's default limits that takes more than anybody reads."""
    settings = {"compression.type": codec, "message.max.bytes": 1_000_000_000}
    producer = Producer({**idempotent_producer_config(Address(bootstrap)), **settings})
    producer.produce(topic, bytes(BOMB_BYTES), b"bomb", partition=0)
    assert producer.flush() == 0


def judged(spark: SparkSession, bootstrap: str, folder: Path, source: str, sink: str) -> Report:
    sides = {"source": {"topic": source}, "sink": {"topic": sink}}
    (report,) = check(spark, bootstrap, folder, **sides, require=["duplicate", "gap", "phantom"])
    return report


@pytest.mark.parametrize("scanned_here", [True, False], ids=["by-this-process", "by-spark"])
def test_a_record_beyond_the_memory_is_named_and_the_next_check_holds(
    bootstrap: str,
    new_topic: NewTopic,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scanned_here: bool,
) -> None:
    """Story: somebody writes 128 MB of zeros into a sink, 4 kB in the log. The check says where
    they are, before Spark reads them. The same server judges the next pair."""
    source, sink, copy = new_topic(), new_topic(), new_topic()
    for topic in (source, sink, copy):
        write(bootstrap, topic, range(20))
    write_bomb(bootstrap, sink)
    if not scanned_here:
        monkeypatch.setattr(log_scan, "SCANNED_HERE_MAX", 0)
    with pytest.raises(RecordTooLarge) as refused:
        judged(spark, bootstrap, tmp_path / "bomb", source, sink)
    for part in (f"The record at {sink}-0, offset 20 takes more than", "zstd", "UNKNOWN"):
        assert part in str(refused.value)
    assert judged(spark, bootstrap, tmp_path / "next", source, copy).verdict is Outcome.HOLDS


def test_records_around_it_are_read_and_it_is_not(bootstrap: str, new_topic: NewTopic) -> None:
    """Story: twenty records, the large one, twenty records. Windows, searches in both directions
    and samples read up to it and beyond it, and name it when they meet it."""
    topic, address = new_topic(), Address(bootstrap)
    write(bootstrap, topic, range(20))
    write_bomb(bootstrap, topic, "gzip")
    write(bootstrap, topic, range(20))
    bounds = fetch_bounds(address, topic)
    batches = scan(address, topic, bounds)
    ranges = fate_ranges(batches, bounds)
    there = f"The record at {topic}-0, offset 20 takes more than"
    for first in (0, 21):
        window = read_window(address, topic, 0, first, 20, bounds, ranges)
        assert [record.offset for record in window] == list(range(first, first + 20))
    with pytest.raises(RecordTooLarge, match=there):
        read_window(address, topic, 0, 10, 20, bounds, ranges)
    for down, first, rest in ((False, 0, 20), (True, 41, 21)):
        part = search(address, bounds, ranges, 0, first, RecordQuery(), newest=down)
        assert (len(part.rows), part.reached, part.stop) == (20, rest, Stop.OFFSETS)
        with pytest.raises(RecordTooLarge, match=there):
            search(address, bounds, ranges, 0, rest, RecordQuery(), newest=down)
    with pytest.raises(RecordTooLarge, match=there):
        newest(address, topic, 30, Formats())
    assert len(newest(address, topic, 20, Formats()).rows) == 20


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        (r"repeat(cast(id as string), 20000) rlike '^(\\w|-)+$'", "recurses too deeply"),
        ("length(repeat(cast(id as string), 2147483647))", "more memory than Spark has"),
    ],
    ids=["stack", "heap"],
)
def test_a_task_that_exhausts_the_machine_fails_alone(
    spark: SparkSession, expression: str, why: str
) -> None:
    """An endless recursion, and a text longer than Java can hold: the task fails, says why in plain
    words, and the same session goes on."""
    rows = spark.range(1).selectExpr(f"{expression} as value")
    with pytest.raises(PySparkException) as failure:
        rows.collect()
    assert why in first_line(failure.value)
    assert spark.range(3).count() == 3


def test_a_run_that_meets_it_fails_and_others_go_on(
    settings: Settings, cluster: Services, spark: SparkSession
) -> None:
    """Story: somebody writes the record into the source of a run. The run says so instead of
    reading it; a question of somebody else to the same Spark is answered."""
    history = History(settings)
    run = create(settings, cluster, history, make_plan({"records": 100, "partitions": 1}))
    write_bomb(cluster.bootstrap, str(run.facts.source))
    context = make_context(settings, cluster, history, run, threading.Event())
    with pytest.raises(RecordTooLarge, match=f"The record at {run.facts.source}-0, offset"):
        execute(context)
    assert history.get(run.id).state is State.FAILED
    assert spark.range(3).count() == 3
