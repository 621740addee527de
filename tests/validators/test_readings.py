"""Readings of a real topic, at both levels, within bounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tests.conftest import wait_until
from topicproof.backend.address import Address
from topicproof.backend.kafka.client_configs import (
    idempotent_producer_config,
    spark_source_options,
    transactional_producer_config,
)
from topicproof.backend.kafka.cluster import Cluster
from topicproof.validators.finding import Bounds, PartitionBounds, Witness
from topicproof.validators.ledger.build import build_ledger
from topicproof.validators.ledger.ledger import LedgerInput
from topicproof.validators.question import Question
from topicproof.validators.readings import COLUMNS, Readings, keep, read


def test_both_levels_end_where_they_should_and_fates_follow(
    spark: SparkSession, bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Story: two records committed, one aborted, one never in a transaction, one in a transaction
    that stays open. Neither reading waits for that one, and every offset gets its fate."""
    topic = new_topic(partitions=2)
    transactional = Producer(transactional_producer_config(Address(bootstrap), f"{topic}-writer"))
    transactional.init_transactions()
    for keys, end in (
        (["a", "b"], transactional.commit_transaction),
        (["c"], transactional.abort_transaction),
    ):
        transactional.begin_transaction()
        _produce(transactional, topic, keys)
        end()
        # An end is answered before its marker is in the partition, and what comes next must lie
        # behind it.
        wait_until(lambda: _settled(bootstrap, topic), 20, "the marker in the partition")
    _produce(Producer(idempotent_producer_config(Address(bootstrap))), topic, ["d"])
    transactional.begin_transaction()
    _produce(transactional, topic, ["e"])
    # Data 0 and 1, marker 2, aborted 3, marker 4, plain 5, open 6; partition 1 stays empty.
    bounds = Bounds(topic, (PartitionBounds(0, 0, 6, 7), PartitionBounds(1, 0, 0, 0)))
    committed, uncommitted = (
        keep(
            read(spark, spark_source_options(Address(bootstrap), level.value), bounds, level),
            f"file:{tmp_path / level}",
            bounds.offsets,
        )
        for level in (Witness.READ_COMMITTED, Witness.READ_UNCOMMITTED)
    )
    source = Bounds("numbers", (PartitionBounds(0, 0, 0, 0),))
    nothing = spark.createDataFrame([], COLUMNS)
    ledger = build_ledger(
        LedgerInput(
            spark,
            Question(source, topic),
            sink_bounds=bounds,
            readings=Readings(committed, uncommitted, nothing),
            evidence=f"file:{tmp_path / 'ledger'}",
        )
    )
    transactional.abort_transaction()
    assert ledger.doubts == ()
    assert {row["offset"]: row["fate"] for row in ledger.sink.collect()} == {
        0: "COMMITTED",
        1: "COMMITTED",
        3: "ABORTED",
        5: "COMMITTED",
        6: "PENDING",
    }
    first = uncommitted.orderBy("offset").first()
    assert first is not None
    assert (first["key"], first["value"], first["headers"][0]["key"]) == (b"a", b"1", "h")


def test_an_empty_range_is_an_empty_frame(spark: SparkSession) -> None:
    """Story: nothing lies between the bounds. The reading asks no broker, and still has its
    columns."""
    bounds = Bounds("nowhere", (PartitionBounds(0, 7, 7, 7),))
    frame = read(
        spark, {"kafka.bootstrap.servers": "127.0.0.1:1"}, bounds, Witness.READ_UNCOMMITTED
    )
    assert (frame.columns, frame.count()) == (
        ["partition", "offset", "timestamp", "key", "value", "headers"],
        0,
    )


def test_only_a_reading_is_a_level(spark: SparkSession) -> None:
    """Story: somebody asks for the journal's isolation level. It has none."""
    with pytest.raises(ValueError, match="not an isolation level"):
        read(spark, {}, Bounds("t", (PartitionBounds(0, 0, 1, 1),)), Witness.JOURNAL)


def _settled(bootstrap: str, topic: str) -> bool:
    return all(one.lso == one.hw for one in Cluster(Address(bootstrap)).bounds(topic).partitions)


def _produce(producer: Producer, topic: str, keys: list[str]) -> None:
    for key in keys:
        producer.produce(topic, key=key, value=b"1", partition=0, headers=[("h", b"x")])
    assert producer.flush(10) == 0
