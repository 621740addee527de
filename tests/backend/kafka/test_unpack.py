"""A window of a topic whose lineage is packed shows for every record what a header of its own would
show."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.packs import Sink, write_broken
from topicproof.backend.address import Address
from topicproof.backend.kafka.browse import unpack
from topicproof.backend.kafka.browse.records import Record, read_window
from topicproof.backend.kafka.log.fates import fate_ranges
from topicproof.backend.kafka.log.rawlog import fetch_bounds, scan

NewTopic = Callable[..., str]


def windows(bootstrap: str, topic: str, count: int) -> list[Record]:
    """Every offset, read in windows of so many."""
    bounds = fetch_bounds(Address(bootstrap), topic)
    batches = scan(Address(bootstrap), topic, bounds)
    ranges = fate_ranges(batches, bounds)
    firsts = range(0, bounds.offsets, count)
    return [
        one
        for first in firsts
        for one in read_window(Address(bootstrap), topic, 0, first, count, bounds, ranges, batches)
    ]


def told(records: list[Record]) -> list[tuple[object, ...]]:
    return [
        (one.offset, one.fate, one.delivered, one.lineage, one.transaction, one.key)
        for one in records
        if one.timestamp_ms is not None
    ]


def test_a_window_shows_packed_lineage(bootstrap: str, new_topic: NewTopic) -> None:
    """Story: the same records are written with headers on each and packed, by producers that take
    turns. Whole or cut into windows that begin inside packs, both say the same of every record."""
    plain, packed = new_topic(), new_topic()
    write_broken(bootstrap, plain, "numbers", packed=False)
    write_broken(bootstrap, packed, "numbers", packed=True)
    expected = told(windows(bootstrap, plain, 1_000))
    assert all(
        lineage is not None and "attempt 1" in str(name) for _, _, _, lineage, name, _ in expected
    )
    for count in (1_000, 1, 3):
        assert told(windows(bootstrap, packed, count)) == expected


def test_a_pack_that_lies_too_far_back_is_not_known(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a transaction has more packs before a window than are looked through. Its records
    there do not name their input; those of a pack that is reached do."""
    sink = Sink(bootstrap, new_topic(), "numbers", packed=True)
    sink.begin("a")
    for first in range(0, 12, 2):
        sink.write("a", [(0, first), (0, first + 1)])
    sink.end("a")
    monkeypatch.setattr(unpack, "PACKS_FOLLOWED", 3)
    found = [one.lineage for one in windows(bootstrap, sink.topic, 1)]
    heads = {n: f"numbers/0/{n}/0" for n in (0, 2, 4, 6, 8, 10)}
    assert found == [
        heads.get(n) or (f"numbers/0/{n}/0" if n <= 5 else None) for n in range(12)
    ] + [None]


def test_a_window_without_batches_says_nothing_of_packs(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """Story: a window is requested without batch headers. Only what the records themselves say is
    shown."""
    topic = new_topic()
    write_broken(bootstrap, topic, "numbers", packed=True)
    bounds = fetch_bounds(Address(bootstrap), topic)
    batches: pa.Table = scan(Address(bootstrap), topic, bounds)
    records = read_window(Address(bootstrap), topic, 0, 0, 4, bounds, fate_ranges(batches, bounds))
    assert [one.lineage for one in records] == [None] * 4
