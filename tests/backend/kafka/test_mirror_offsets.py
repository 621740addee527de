"""Bytes of MirrorMaker's offset syncs and checkpoints; test_migration.py reads real ones."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Producer

from tests.backend.judging.test_record_sizes import write_bomb
from topicproof.backend.address import Address
from topicproof.backend.judging.mirrored import _is_copy
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.mirror_offsets import (
    Checkpoint,
    Sync,
    checkpoints,
    parse_checkpoint,
    parse_sync,
)

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
        (b"\x00\x01\xff\x00\x00\x00\x01", VALUE),
    ],
)
def test_other_bytes_are_no_sync(key: bytes | None, value: bytes | None) -> None:
    assert parse_sync(key, value) is None


GROUP_KEY = b"\x00\x07billing\x00\x08migrated\x00\x00\x00\x01"
OFFSETS = b"\x00\x00" + VALUE + b"\x00\x00"


def test_a_topic_that_exhausts_its_readers_is_passed_over(bootstrap: str) -> None:
    """Story: somebody makes a topic whose name is that of a mirror's checkpoints, and writes a
    record of 128 MB of zeros into it, 4 kB in the log. The genuine checkpoints are read."""
    cluster, number = Cluster(Address(bootstrap)), uuid.uuid4().hex[:6]
    genuine, forged = f"a{number}.checkpoints.internal", f"b{number}.checkpoints.internal"
    for topic in (genuine, forged):
        cluster.create_topic(topic, 1, exists_ok=False)
    try:
        producer = Producer(idempotent_producer_config(Address(bootstrap)))
        producer.produce(genuine, OFFSETS, GROUP_KEY)
        assert producer.flush() == 0
        write_bomb(bootstrap, forged)
        topics = [each.topic for each in checkpoints(Address(bootstrap), ["migrated"])]
        assert [topic for topic in topics if number in topic] == [genuine]
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
