"""The reader beside the pipeline: what it polled is recorded, and the verdict uses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backend.judging.test_record_sizes import write_bomb
from tests.backend.kafka.test_reading import little_memory
from tests.backend.kafka.topics import Writer
from tests.runs import Finished
from topicproof.backend.address import Address
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs.reader import read_account, reading, runs
from topicproof.validators.finding import Outcome, Witness
from topicproof.validators.merged_topics import join


def test_runs_are_told_in_the_order_of_receipt() -> None:
    """Story: a poll brought five offsets with a hole, and then one from before again."""
    assert runs([4, 5, 6, 9, 10, 5]) == [(4, 6), (9, 10), (5, 5)]


def test_a_reader_writes_down_what_it_polled(
    bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Story: two topics are read while they are written. On record is every committed record, once
    and in turn, and no aborted one; the last stable offset of each poll lies above what it
    brought."""
    topics = new_topic(partitions=2), new_topic()
    cluster = Cluster(Address(bootstrap))
    with reading(cluster, {topics[0]: {"0": 0, "1": 0}, topics[1]: {"0": 0}}, tmp_path):
        first, second = Writer(bootstrap, topics[0]), Writer(bootstrap, topics[1])
        first.write("A3 A+ A2 A- n2")
        first.write("A1 A+", partition=1)
        second.write("B2 B+")
    account = read_account(tmp_path, join([cluster.bounds(topic) for topic in topics]))
    assert account is not None
    received: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for row in account.to_pylist():
        received[row["partition"]] += range(row["first_offset"], row["last_offset"] + 1)
        assert row["last_offset"] < row["lso"] or row["poll"] == 0
    # Data 0 to 2, marker, aborted 4 and 5, marker, plain 7 and 8.
    assert received == {0: [0, 1, 2, 7, 8], 1: [0], 2: [0, 1]}


def test_a_record_that_is_too_large_ends_the_reader_alone(
    bootstrap: str,
    new_topic: Callable[..., str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Story: somebody has written 128 MB of zeros into a sink that is read. The reader names them,
    and the run goes on."""
    topic, cluster = new_topic(), Cluster(Address(bootstrap))
    write_bomb(bootstrap, topic)
    with little_memory(), reading(cluster, {topic: {"0": 0}}, tmp_path):
        pass
    assert f"ended early: The record at {topic}-0, offset 0 takes more than" in caplog.text


def test_a_verdict_hears_the_reader(finished: Finished) -> None:
    """Story: a run was read while its workers crashed and aborted. The reader received every
    committed record, in turn, and none too early; the verdict says how many."""
    committed = finished.report.fates["committed"]
    for kind in ("poll_skip", "precommitted_read"):
        (found,) = [one for one in finished.report.findings if one.kind == kind]
        (check,) = [one for one in finished.report.checked if one.kind == kind]
        assert (found.outcome, found.count, check.records) == (Outcome.HOLDS, 0, committed), (
            found.why
        )
        assert Witness.READER in check.witnesses
