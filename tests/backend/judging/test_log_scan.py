"""The raw log of captured topics, scanned by Spark's tasks instead of by this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from tests.backend.kafka.topics import Writer
from topicproof.backend.address import Address
from topicproof.backend.errors import SparkError, TopicError
from topicproof.backend.judging import log_scan
from topicproof.backend.kafka.log import rawlog
from topicproof.backend.kafka.log.rawlog import fetch_bounds
from topicproof.validators.finding import Bounds, PartitionBounds
from topicproof.validators.merged_topics import join


def test_spark_scans_a_log_that_is_too_long_for_one_process(
    spark: SparkSession,
    bootstrap: str,
    new_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two topics are judged as one. Both ways give the same batches in the same order."""
    address, topics = Address(bootstrap), [new_topic(partitions=2), new_topic(partitions=3)]
    for topic in topics:
        for partition in range(2):
            Writer(bootstrap, topic).write("A9 A- B3 B+ n2", partition=partition)
    bounds = join([fetch_bounds(address, topic) for topic in topics])
    here = log_scan.scan_log(spark, address, bounds)
    assert here["partition"].unique().to_pylist() == [0, 1, 2, 3]
    monkeypatch.setattr(log_scan, "SCANNED_HERE_MAX", 0)
    assert log_scan.scan_log(spark, address, bounds).equals(here)


@pytest.mark.parametrize("here", [True, False], ids=["here", "by Spark"])
def test_a_log_of_too_many_batches_is_refused(
    spark: SparkSession,
    bootstrap: str,
    new_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    here: bool,
) -> None:
    """The sentence says what would help."""
    address, topic = Address(bootstrap), new_topic()
    Writer(bootstrap, topic).write("A9 A- B3 B+ n2")
    bounds = fetch_bounds(address, topic)
    whole = log_scan.scan_log(spark, address, bounds)
    monkeypatch.setattr(log_scan, "SCANNED_HERE_MAX", 200 if here else 0)
    monkeypatch.setattr(rawlog, "BATCHES_MAX", whole.num_rows)
    assert log_scan.scan_log(spark, address, bounds).equals(whole)
    monkeypatch.setattr(rawlog, "BATCHES_MAX", whole.num_rows - 1)
    with pytest.raises(TopicError, match=r"has more than 4 batches .* kafka-delete-records\.sh"):
        log_scan.scan_log(spark, address, bounds)


def test_a_scan_by_spark_that_fails_says_what_was_read(
    spark: SparkSession, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody deletes the topic meanwhile."""
    monkeypatch.setattr(log_scan, "SCANNED_HERE_MAX", 0)
    gone = Bounds("gone-by-now", (PartitionBounds(0, 0, 5, 5),))
    with pytest.raises(SparkError, match="Spark could not read the log of gone-by-now: "):
        log_scan.scan_log(spark, Address(bootstrap), gone)
