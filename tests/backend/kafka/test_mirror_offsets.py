"""Bytes of MirrorMaker's offset syncs and checkpoints; test_migration.py reads real ones."""

from __future__ import annotations

import pytest

from topicproof.backend.judging.mirrored import _is_copy
from topicproof.backend.kafka.mirror_offsets import (
    Checkpoint,
    Sync,
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
