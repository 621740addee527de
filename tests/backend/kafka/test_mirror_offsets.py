"""Bytes of MirrorMaker's offset syncs and checkpoints; test_migration.py reads real ones."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Producer

from tests.backend.judging.test_record_sizes import write_bomb
from topicproof.backend.address import Address
from topicproof.backend.judging.mirrored import _group_note, _is_copy, _pairs
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.look import LIMITS, MIRRORS, LookBudget, LookLimits
from topicproof.backend.kafka.mirror_offsets import (
    SHARES,
    Checkpoint,
    Checkpoints,
    Sync,
    checkpoints,
    parse_checkpoint,
    parse_sync,
)
from topicproof.validators.finding import Bounds, PartitionBounds

KEY = b"\x00\x06orders\x00\x00\x00\x01"
VALUE = b"\x00\x00\x00\x00\x00\x00\x02\xd5\x00\x00\x00\x00\x00\x00\x02\xd0"


def test_a_sync_of_a_real_mirror_maker_is_parsed() -> None:
    assert parse_sync(KEY, VALUE) == Sync("orders", 1, 725, 720)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (KEY, None),
        (None, VALUE),
        (KEY, VALUE[:-1]),
        (KEY[:-1], VALUE),
        (KEY + b"\x00", VALUE),
        (b"\x00", VALUE),
        (b"\xff\xff\x00\x00\x00\x01", VALUE),
        (b"\x01\x00" + b"t" * 256 + b"\x00\x00\x00\x01", VALUE),
        (b"\x00\x01\xff\x00\x00\x00\x01", VALUE),
    ],
)
def test_other_bytes_are_no_sync(key: bytes | None, value: bytes | None) -> None:
    assert parse_sync(key, value) is None


GROUP_KEY = b"\x00\x07billing\x00\x08migrated\x00\x00\x00\x01"
OFFSETS = b"\x00\x00" + VALUE + b"\x00\x00"


def test_a_topic_that_exhausts_its_readers_is_passed_over(
    bootstrap: str,
) -> None:
    """Story: somebody makes a topic whose name is that of a mirror's checkpoints, and writes a
    record of 128 MB of zeros into it, 4 kB in the log. The genuine checkpoints are read."""
    few = LookLimits(size=SHARES * len(GROUP_KEY))
    cluster, number = Cluster(Address(bootstrap)), uuid.uuid4().hex[:6]
    genuine, forged = f"a{number}.checkpoints.internal", f"b{number}.checkpoints.internal"
    for topic in (genuine, forged):
        cluster.create_topic(topic, 1, exists_ok=False)
    try:
        producer = Producer(idempotent_producer_config(Address(bootstrap)))
        producer.produce(genuine, OFFSETS, GROUP_KEY)
        assert producer.flush() == 0
        write_bomb(bootstrap, forged)
        for limits, expected in ((LIMITS, [genuine]), (few, [])):
            budget = LookBudget(limits)
            found = checkpoints(Address(bootstrap), ["migrated"], budget=budget)
            assert [each.topic for each in found if number in each.topic] == expected
            assert budget.left_out[MIRRORS] >= 1
    finally:
        cluster.delete_topics([genuine, forged])


def test_a_checkpoint_of_a_real_mirror_maker_is_parsed() -> None:
    assert parse_checkpoint(GROUP_KEY, OFFSETS) == Checkpoint("billing", "migrated", 1, 725, 720)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (GROUP_KEY, None),
        (None, OFFSETS),
        (GROUP_KEY[:-1], OFFSETS),
        (GROUP_KEY[:12], OFFSETS),
        (KEY, OFFSETS),
        (GROUP_KEY, OFFSETS[:17]),
        (GROUP_KEY, b"\x00\x01" + OFFSETS[2:]),
    ],
)
def test_other_bytes_are_no_checkpoint(key: bytes | None, value: bytes | None) -> None:
    assert parse_checkpoint(key, value) is None


@pytest.mark.parametrize(
    ("sink", "copy"),
    [("orders", True), ("east.orders", True), ("reorders", False), ("orders2", False)],
)
def test_a_mirror_has_the_name_of_its_source(sink: str, copy: bool) -> None:
    assert _is_copy(sink, "orders") is copy


def test_made_up_groups_make_no_long_note() -> None:
    """Story: somebody makes a topic of a mirror's kind with 100,000 checkpoints: of 90,000 groups,
    and of one with 10,000 partitions. Going through all of them for each took half an hour."""
    many = (Checkpoint("loud", "orders", partition, 5, 7) for partition in range(10_000))
    others = (Checkpoint(f"g{number}", "orders", 0, 5, 7) for number in range(90_000))
    translated = Checkpoints("a.checkpoints.internal", (*many, *others))
    note = _group_note(Address("here:9092"), translated)
    assert "of 90,001 groups on orders. loud: partition 0, 5 to 7, partition 1, 5 to 7," in note
    assert ", and 9,995 more partitions; g0: " in note and note.endswith(
        "; and 89,996 more groups."
    )
    assert len(note) < 600


def test_a_sync_of_a_partition_that_no_topic_has_is_no_pair() -> None:
    orders = Bounds("orders", (PartitionBounds(0, 0, 9, 9), PartitionBounds(1, 0, 9, 9)))
    syncs = (Sync("orders", 1, 5, 4), Sync("orders", 2, 5, 4), Sync("orders", 2**31 - 1, 5, 4))
    assert _pairs(syncs, orders, orders).to_pylist() == [
        {"partition": 1, "offset": 5, "sink_partition": 1, "sink_offset": 4}
    ]
