"""Browsing records on a real broker: what is found, where a search stops, what the newest are at
either level."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.backend.kafka.topics import Writer, delete_below, write_headers
from topicproof.app.topic.snapshot import take
from topicproof.backend.address import Address
from topicproof.backend.errors import TopicError
from topicproof.backend.kafka.browse import search as browse
from topicproof.backend.kafka.browse.describe import describe_cluster, describe_topic
from topicproof.backend.kafka.browse.readable import Suspects
from topicproof.backend.kafka.browse.records import (
    HEADERS_MAX,
    NAME_CHARACTERS,
    UNREADABLE,
    read_window,
)
from topicproof.backend.kafka.browse.search import (
    FOUND_MAX,
    RecordQuery,
    Row,
    Stop,
    committed_chunks,
    latest,
    offsets_at,
    search,
    search_all,
)
from topicproof.backend.kafka.client_configs import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    idempotent_producer_config,
)
from topicproof.backend.kafka.reading import HEADER_BYTES, RECORD_BYTES
from topicproof.backend.kafka.transaction import TransactionalProducer
from topicproof.validators.finding import Fate

SPECIALIZED = 50
"""After so many calls, Python has optimised one, and no longer notices an error beside a result."""
MOMENT_MS = 1_700_000_000_000


def test_records_are_found_by_what_is_in_them(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: a partition holds committed, aborted and plain records. Each condition finds exactly
    its own, and the search says that it came to the end."""
    topic = new_topic()
    writer = Writer(bootstrap, topic, headers={"Kind": b"Invoice"})
    writer.write("A3 A+ B4 B- n2 C1")
    seen = take(Address(bootstrap), topic)

    def found(wanted: RecordQuery, first: int = 0) -> list[tuple[int, Fate]]:
        answer = search(Address(bootstrap), seen.bounds, seen.ranges, 0, first, wanted)
        assert (answer.stop, answer.reached) == (Stop.END, seen.bounds.partitions[0].hw)
        return [(row.offset, row.fate) for row in answer.rows]

    everything = [0, 1, 2, 4, 5, 6, 7, 9, 10, 11]
    assert [offset for offset, _fate in found(RecordQuery())] == everything
    assert found(RecordQuery(fates=(Fate.ABORTED,))) == [
        (offset, Fate.ABORTED) for offset in (4, 5, 6, 7)
    ]
    assert found(RecordQuery(fates=(Fate.PENDING, Fate.ABORTED)), 6)[-1] == (11, Fate.PENDING)
    assert found(RecordQuery(key=b"b2")) == [(6, Fate.ABORTED)]
    assert len(found(RecordQuery(header=b"kind=invoice"))) == len(everything) and not found(
        RecordQuery(header=b"kind=x")
    )
    assert len(found(RecordQuery(value=b"SOME LENGTH"))) == len(everything) and not found(
        RecordQuery(value=b"\xff")
    )


def test_a_header_whose_name_is_not_text_hides_no_record(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: a program in Go names a header with any bytes. The client for Python cannot read the
    headers of this record; it and its neighbours are shown all the same."""
    topic = new_topic()
    write_headers(bootstrap, topic, [*[b"text"] * SPECIALIZED, b"\xff\xfe", b"text"])
    seen = take(Address(bootstrap), topic)
    answer = search(Address(bootstrap), seen.bounds, seen.ranges, 0, 0, RecordQuery())
    plain = (("text", b"1"),)
    every = [*[plain] * SPECIALIZED, ((UNREADABLE, None),), plain]
    assert [row.headers for row in answer.rows] == every
    window = read_window(Address(bootstrap), topic, 0, 0, 100, seen.bounds, seen.ranges)
    assert [one.headers for one in window] == every


def test_thousands_of_headers_are_not_kept(
    bootstrap: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: records of nothing but headers, some bytes of the log and megabytes of memory. The
    first and the last headers are kept, and the one that names the schema. Each header counts
    against what a search reads."""
    topic, count = new_topic(), 3 * HEADERS_MAX
    with TransactionalProducer(Address(bootstrap), topic) as producer, producer.transaction():
        headers = [(str(number), b"") for number in range(count)]
        schemas = [("__value_schema_id", b"\1other"), ("__value_schema_id", b"\1last")]
        headers[HEADERS_MAX : HEADERS_MAX + 2] = schemas
        producer.produce([(topic, None, b"", headers)] * 3)
    newest = take(Address(bootstrap), topic)
    between = (f"({count - HEADERS_MAX - 1:,} headers between, not kept)", None)
    answer = search(Address(bootstrap), newest.bounds, newest.ranges, 0, 0, RecordQuery())
    window = read_window(Address(bootstrap), topic, 0, 0, 3, newest.bounds, newest.ranges)
    last = latest(Address(bootstrap), newest.bounds, newest.ranges, READ_COMMITTED, 3)
    ((sample, _is_all),) = committed_chunks(
        Address(bootstrap),
        newest.bounds,
        newest.ranges,
        count=3,
        bytes_max=100,
        seconds=60,
        size=10,
    )
    assert len(last) == len(sample) == 3
    rows = (*answer.rows, *last, *sample)
    for kept in [row.headers for row in rows] + [record.headers for record in window]:
        assert len(kept) == HEADERS_MAX + 2
        assert kept[HEADERS_MAX // 2 : HEADERS_MAX // 2 + 2] == (between, schemas[1])
        assert (kept[0][0], kept[-1][0]) == ("0", str(count - 1))
    assert len(answer.rows) == 3 and answer.stop is Stop.END
    monkeypatch.setattr(browse, "SCAN_BYTES_MAX", count * (HEADER_BYTES + 10))
    answer = search(Address(bootstrap), newest.bounds, newest.ranges, 0, 0, RecordQuery())
    assert len(answer.rows) == 2 and answer.stop is Stop.BYTES


def test_names_and_contents_of_headers_are_not_kept(
    bootstrap: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: records whose headers have long names and contents, which compress to nothing. Names
    are cut, contents have one limit together, and all of it counts against what is read."""
    topic, name = new_topic(), "n" * (NAME_CHARACTERS + 100)
    headers = [(name, bytes(30_000)), ("next", bytes(30_000)), ("__value_schema_id", b"\1last")]
    with TransactionalProducer(Address(bootstrap), topic) as producer, producer.transaction():
        producer.produce([(topic, None, b"value", headers)] * 4)
    at = take(Address(bootstrap), topic)

    def newest() -> tuple[Row, ...]:
        return latest(Address(bootstrap), at.bounds, at.ranges, READ_COMMITTED, 4, bytes_max=20_000)

    whole = RecordQuery(header=name.encode() + b"=")
    assert len(search(Address(bootstrap), at.bounds, at.ranges, 0, 0, whole).rows) == 4
    rows = newest()
    cut = f"{name[:NAME_CHARACTERS]}…"
    note = ("(headers left out here: 1)", None)
    assert [row.headers for row in rows] == [((cut, bytes(20_000)), note, headers[-1])] * 4
    assert [row.offset for row in rows] == [3, 2, 1, 0]
    monkeypatch.setattr(browse, "LATEST_BYTES_MAX", 2 * rows[0].kept_bytes + 1)
    assert [row.offset for row in newest()] == [3, 2]
    # A search stops with what it may read, and with what its rows may take.
    monkeypatch.setattr(browse, "WINDOW_OFFSETS", 1)
    with monkeypatch.context() as patch:
        patch.setattr(browse, "ROWS_BYTES_MAX", 70_000)
        back = search(Address(bootstrap), at.bounds, at.ranges, 0, 4, RecordQuery(), newest=True)
        assert [row.offset for row in back.rows] == [3, 2] and back.stop is Stop.BYTES
    monkeypatch.setattr(browse, "SCAN_BYTES_MAX", 100_000)
    answer = search(Address(bootstrap), at.bounds, at.ranges, 0, 0, RecordQuery())
    assert (len(answer.rows), answer.stop) == (2, Stop.BYTES)


def test_nothing_older_takes_the_place_of_a_large_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: the newest records of one partition are too large together, and another partition has
    small old ones. The list ends where the first large one had to go."""
    monkeypatch.setattr(browse, "LATEST_BYTES_MAX", 250 + 3 * RECORD_BYTES)
    newest = browse._NewestRows(6)
    for at, size in ((100, 100), (101, 100), (102, 100), (103, 100), (1, 10), (2, 10), (102, 10)):
        value, partition = bytes(size), int(size == 10)
        newest.add(Row(partition, at, at, None, value, (), size, Fate.COMMITTED, None), fits=True)
    assert [(row.partition, row.offset) for row in newest.rows()] == [(0, 103), (1, 102), (0, 102)]


def test_what_is_not_decoded_above_a_hit_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: of ten records, three cannot be decoded and three match. Somebody asks for one match
    after the other, newest first. Each of the three is counted once."""

    def window(
        _consumer: object, _task: object, low: int, high: int, *_limits: object
    ) -> browse.Search:
        rows = tuple(
            Row(0, at, at, None, b"", (), 0, Fate.COMMITTED, None)
            for at in (4, 6, 8)
            if low <= at < high
        )
        unread = tuple(at for at in (5, 7, 9) if low <= at < high)
        return browse.Search(rows, low, high, high, Stop.END, unread)

    monkeypatch.setattr(browse, "_upwards", window)
    task: Any = SimpleNamespace(
        decodes=True,
        on_progress=lambda _offsets, _hits: None,
        suspects=SimpleNamespace(last_few=lambda low, _end, _count: low, measured_bytes=0),
    )
    consumer: Any = None
    reached, seen = 10, []
    while reached:
        part = browse._downwards(consumer, task, reached, 0, 1, float("inf"))
        seen.append(([row.offset for row in part.rows], part.unread_at))
        reached = part.reached
    assert seen == [([8], (9,)), ([6], (7,)), ([4], (5,)), ([], ())]


@pytest.mark.parametrize("newest", [False, True])
def test_measuring_a_batch_counts_in_a_search(
    bootstrap: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch, newest: bool
) -> None:
    """Story: a topic of large gzip batches, of each of which only decompressing tells its size. A
    search measures few before it reads, and what it measures counts. The next one goes on there,
    until each record was found, and each batch measured once."""
    topic, count = new_topic(), 12
    config = {**idempotent_producer_config(Address(bootstrap)), "compression.type": "gzip"}
    producer = Producer(config)
    for _ in range(count):
        producer.produce(topic, os.urandom(40_000).hex(), partition=0)
        assert producer.flush(30) == 0
    at = take(Address(bootstrap), topic)
    measured: list[int] = []
    measure = Suspects._measure

    def counted(suspects: Suspects, number: int) -> int:
        measured.append(number)
        return measure(suspects, number)

    monkeypatch.setattr(Suspects, "_measure", counted)
    monkeypatch.setattr(browse, "SUSPECTS_AT_ONCE", 2)
    monkeypatch.setattr(browse, "SCAN_BYTES_MAX", 260_000)
    place, end = (count, 0) if newest else (0, count)
    offsets, measured_at_once = [], []
    while place != end:
        before = len(measured)
        part = search(
            Address(bootstrap), at.bounds, at.ranges, 0, place, RecordQuery(), newest=newest
        )
        offsets += [row.offset for row in part.rows]
        measured_at_once.append(len(measured) - before)
        place = part.reached
    assert offsets == [*range(count)][:: -1 if newest else 1]
    assert sorted(measured) == [*range(count)]
    # Of 46 kB in the log each becomes 80 kB. Downwards, what is read counts for each window alone.
    assert measured_at_once == ([6, 6] if newest else [3, 3, 3, 3])


def test_the_newest_records_come_first_in_windows(
    bootstrap: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a search goes from the newest records to the oldest, three offsets at a time. It finds
    what a search in the other direction finds, and goes on where it stopped. A record that is too
    large for a window is found as well."""
    topic = new_topic()
    Writer(bootstrap, topic).write("A3 A+ B4 B- n2 C1")
    seen = take(Address(bootstrap), topic)
    given = Address(bootstrap), seen.bounds, seen.ranges, 0
    whole = search(*given, 0, RecordQuery()).rows
    monkeypatch.setattr(browse, "WINDOW_OFFSETS", 3)
    hw = seen.bounds.partitions[0].hw
    answer = search(*given, hw, RecordQuery(), newest=True)
    assert answer.rows == whole[::-1] and (answer.stop, answer.reached) == (Stop.END, 0)
    rows: list[Row] = []
    first = hw
    while first > 0:
        part = search(*given, first, RecordQuery(), newest=True, found_max=4)
        rows += part.rows
        first = part.reached
    assert tuple(rows) == whole[::-1]
    aborted = search(*given, hw, RecordQuery(fates=(Fate.ABORTED,)), newest=True)
    assert [row.offset for row in aborted.rows] == [7, 6, 5, 4]
    monkeypatch.setattr(browse, "SCAN_BYTES_MAX", max(row.size for row in whole))
    assert search(*given, hw, RecordQuery(), newest=True).rows[:2] == whole[:-3:-1]


def test_every_partition_is_searched(bootstrap: str, new_topic: Callable[..., str]) -> None:
    """Story: a key is in the last of four partitions. The search begins there, and covers all."""
    topic = new_topic(partitions=4)
    keys = [b"%d" % number for number in range(400)]
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    for key in keys:
        producer.produce(topic, b"value", key)
    assert producer.flush() == 0
    seen = take(Address(bootstrap), topic)
    given = Address(bootstrap), seen.bounds, seen.ranges
    found = search_all(*given, RecordQuery(key=b"399"))
    (row,) = [row for one in found.values() for row in one.rows]
    assert row.key == b"399" and next(iter(found)) == row.partition
    assert sorted(found) == [0, 1, 2, 3]
    assert all(one.stop is Stop.END for one in found.values())
    for newest in (False, True):
        shown = search_all(*given, RecordQuery(), newest=newest)
        assert [len(one.rows) for one in shown.values()] == [FOUND_MAX // 4] * 4


def test_a_search_stops_at_its_limits_and_goes_on(
    bootstrap: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a partition is longer than one search reads. Searches that continue where the last one
    stopped find every record once. Too many bytes stop a search as well, and progress is
    reported."""
    topic = new_topic()
    Writer(bootstrap, topic).write("n70 A30 A-")
    seen = take(Address(bootstrap), topic)
    monkeypatch.setattr(browse, "FOUND_MAX", 25)
    monkeypatch.setattr(browse, "SCAN_OFFSETS_MAX", 40)
    monkeypatch.setattr(browse, "TOLD_EVERY", 10)
    stops: list[Stop] = []
    offsets, told, first = [], [], 0
    while not stops or stops[-1] is not Stop.END:
        answer = search(
            Address(bootstrap),
            seen.bounds,
            seen.ranges,
            0,
            first,
            RecordQuery(),
            lambda *each: told.append(each),
        )
        stops.append(answer.stop)
        offsets += [row.offset for row in answer.rows]
        first = answer.reached
    assert offsets == list(range(100))
    assert stops == [Stop.FOUND] * 4 + [Stop.END]
    assert (10, 10) in told
    answer = search(Address(bootstrap), seen.bounds, seen.ranges, 0, 0, RecordQuery(key=b"A29"))
    assert (answer.rows, answer.stop, answer.reached) == ((), Stop.OFFSETS, 40)
    # What has another fate is not read, so it does not count.
    query = RecordQuery(key=b"A29", fates=(Fate.ABORTED,))
    answer = search(Address(bootstrap), seen.bounds, seen.ranges, 0, 0, query)
    assert [row.offset for row in answer.rows] == [99]
    monkeypatch.setattr(browse, "SCAN_BYTES_MAX", 100)
    answer = search(Address(bootstrap), seen.bounds, seen.ranges, 0, 0, RecordQuery())
    assert answer.stop is Stop.BYTES


def test_records_between_two_times(bootstrap: str, new_topic: Callable[..., str]) -> None:
    """Story: records carry the times 1 s, 2 s and 3 s, in two partitions. A time between two gives
    the later one's offset; a time after all of them gives the end. A search between two times finds
    what lies there in every partition, from either side."""
    topic = new_topic(partitions=2)
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    for number in range(6):
        at = MOMENT_MS + 1_000 * (number // 2 + 1)
        producer.produce(topic, b"value", partition=number % 2, timestamp=at)
    assert producer.flush(20) == 0
    producer.close()
    seen = take(Address(bootstrap), topic)
    given = Address(bootstrap), seen.bounds
    by_ms = {ms: offsets_at(*given, [0, 1], MOMENT_MS + ms) for ms in (0, 1_500, 3_000, 3_001)}
    assert list(by_ms.values()) == [{0: n, 1: n} for n in range(4)]
    with pytest.raises(TopicError, match="has no partition 7"):
        offsets_at(*given, [0, 7], 0)
    early, late = by_ms[1_500], by_ms[3_000]
    for newest, first, end in ((False, early, late), (True, late, early)):
        wanted = *given, seen.ranges, RecordQuery()
        found = search_all(*wanted, newest=newest, first=first, end=end)
        rows = [(row.partition, row.offset) for one in found.values() for row in one.rows]
        assert rows == [(0, 1), (1, 1)]
        assert all(one.stop is Stop.END for one in found.values())
        # A range that ends before it begins is empty.
        place = *given, seen.ranges, 0, end[0], RecordQuery()
        assert search(*place, newest=newest, end=first[0]).rows == ()


def test_the_newest_are_those_of_the_level(bootstrap: str, new_topic: Callable[..., str]) -> None:
    """Story: a tail at both levels. Aborted and pending records are only in the uncommitted one;
    many aborted ones do not hide the last committed ones."""
    topic = new_topic(partitions=2)
    writer = Writer(bootstrap, topic)
    writer.write("A5 A+ B60 B-")
    writer.write("n2 C3", 1)
    seen = take(Address(bootstrap), topic)
    committed = latest(Address(bootstrap), seen.bounds, seen.ranges, READ_COMMITTED, 10)
    assert sorted((row.partition, row.offset) for row in committed) == [
        (0, n) for n in range(5)
    ] + [(1, 0), (1, 1)]
    assert {row.fate for row in committed} == {Fate.COMMITTED}
    uncommitted = latest(Address(bootstrap), seen.bounds, seen.ranges, READ_UNCOMMITTED, 10)
    assert len(uncommitted) == 10 and uncommitted[0].fate is Fate.PENDING
    assert (
        latest(
            Address(bootstrap),
            take(Address(bootstrap), new_topic()).bounds,
            seen.ranges,
            READ_COMMITTED,
            10,
        )
        == ()
    )


def test_deleted_records_are_said(bootstrap: str, new_topic: Callable[..., str]) -> None:
    """Story: records are deleted between the bounds and the search."""
    topic = new_topic()
    Writer(bootstrap, topic).write("n9")
    seen = take(Address(bootstrap), topic)
    delete_below(bootstrap, topic, 5)
    with pytest.raises(TopicError, match="deleted after the bounds were taken"):
        search(Address(bootstrap), seen.bounds, seen.ranges, 0, 0, RecordQuery())


def test_what_a_cluster_and_a_topic_are_made_of(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: somebody made a topic with a setting of its own. It comes before the defaults; the
    cluster has a controller, and does not show its own topics."""
    topic = new_topic(partitions=3, retention_ms="86400000")
    cluster = describe_cluster(Address(bootstrap))
    shape = next(one for one in cluster.topics if one.topic == topic)
    assert (shape.partitions, shape.replicas, shape.out_of_sync) == (3, 1, 0)
    assert cluster.controller in [one.broker for one in cluster.brokers]
    assert not [one for one in cluster.topics if one.topic.startswith("__")]
    placements, settings = describe_topic(Address(bootstrap), topic)
    assert [one.partition for one in placements] == [0, 1, 2] and all(
        one.in_sync == one.replicas for one in placements
    )
    assert ("retention.ms", "86400000") in [
        (one.name, one.value) for one in settings if not one.default
    ]
    assert [one.default for one in settings] == sorted(one.default for one in settings)
    with pytest.raises(TopicError, match="There is no topic no-such-topic"):
        describe_topic(Address(bootstrap), "no-such-topic")
