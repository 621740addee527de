"""A window of one partition at both levels, on real topics: every offset is a row, and says why it
is seen or not."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pytest

from tests.backend.kafka.topics import Writer, delete_below
from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, RecordTooLarge, TopicError
from topicproof.backend.kafka import client_configs
from topicproof.backend.kafka.browse import records as records_module
from topicproof.backend.kafka.browse.readable import Suspects
from topicproof.backend.kafka.browse.records import (
    ID_CHARACTERS,
    Record,
    _name,
    as_text,
    read_window,
)
from topicproof.backend.kafka.log.fates import fate_ranges
from topicproof.backend.kafka.log.rawlog import fetch_bounds, scan
from topicproof.backend.kafka.reading import HEADER_BYTES, RECORD_BYTES, RecordBudget
from topicproof.validators.finding import Bounds, Fate, PartitionBounds
from topicproof.validators.lineage.compact import format_compact
from topicproof.validators.lineage.headers import Lineage, Transaction

NewTopic = Callable[..., str]


def known(bootstrap: str, topic: str) -> tuple[Bounds, pd.DataFrame]:
    bounds = fetch_bounds(Address(bootstrap), topic)
    return bounds, fate_ranges(scan(Address(bootstrap), topic, bounds), bounds)


def window(bootstrap: str, topic: str, first: int = 0, count: int = 1_000) -> list[Record]:
    bounds, ranges = known(bootstrap, topic)
    return read_window(Address(bootstrap), topic, 0, first, count, bounds, ranges)


def test_every_offset_says_why_a_consumer_gets_it_or_not(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """Two transactions end, a third stays open, and more is written behind it. Each row names the
    deciding marker."""
    topic = new_topic()
    Writer(bootstrap, topic).write("A1 B1 A+ B- n1 C1 n1 A1 A+ B1 B-")
    records = window(bootstrap, topic)
    assert [(r.offset, r.fate.value, r.delivered, r.key) for r in records] == [
        (0, "COMMITTED", True, b"A0"),
        (1, "ABORTED", False, b"B0"),
        (2, "MARKER", False, None),
        (3, "MARKER", False, None),
        (4, "COMMITTED", True, b"n0"),
        (5, "PENDING", False, b"C0"),
        (6, "PENDING", False, b"n0"),
        (7, "PENDING", False, b"A0"),
        (8, "PENDING", False, None),
        (9, "PENDING", False, b"B0"),
        (10, "PENDING", False, None),
    ]
    behind = "waits behind the open transaction that holds the last stable offset at 5."
    assert [r.why for r in records] == [
        "Delivered: its transaction committed (marker at 2).",
        "Not delivered: its transaction was aborted (marker at 3).",
        "A commit marker for the transaction that began at 0; no consumer ever gets one.",
        "An abort marker for the transaction that began at 1; no consumer ever gets one.",
        "Delivered: it is in no transaction.",
        "Not yet: its transaction is open; the last stable offset is 5.",
        f"Not yet: it is in no transaction, but {behind}",
        f"Not yet: its transaction committed (marker at 8), but it {behind}",
        "A commit marker for the transaction that began at 7; no consumer ever gets one.",
        f"Never: its transaction was aborted (marker at 10); until then it {behind}",
        "An abort marker for the transaction that began at 9; no consumer ever gets one.",
    ]
    assert [r.offset for r in records if r.marker] == [2, 3, 8, 10]
    assert [r.transaction is None for r in records] == [offset in (4, 6) for offset in range(11)]
    assert records[0].transaction == records[2].transaction == records[7].transaction
    assert (records[0].timestamp_ms or 0) > 1_600_000_000_000


def test_our_headers_name_the_transaction_and_the_input(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """A record of our sink carries its lineage and transaction. Its marker carries nothing, but is
    named like it."""
    topic = new_topic()
    headers = {
        "topicproof-lineage": b"numbers/1/41/0",
        "topicproof-transaction": b"run7-a-numbers-1/42/2/c0ffee/1",
    }
    Writer(bootstrap, topic, headers=headers).write("A1 A+")
    record, marker = window(bootstrap, topic)
    assert record.lineage == "numbers/1/41/0"
    assert record.transaction == marker.transaction == "run7-a-numbers-1/42, attempt 2"
    assert marker.lineage is None and marker.headers == ()

    # A program that passes its input's headers on: those of its own sink come last.
    passed_on = [(name, b"run6-a/" + value) for name, value in headers.items()]
    Writer(bootstrap, topic, headers=[*passed_on, *headers.items()]).write("A1 A+")
    record = window(bootstrap, topic)[2]
    assert (record.lineage, len(record.headers)) == ("numbers/1/41/0", 4)
    assert record.transaction == "run7-a-numbers-1/42, attempt 2"


@pytest.mark.parametrize(
    ("first", "count"), [(0, 3), (2, 4), (4, 2), (5, 3), (7, 100), (-5, 6), (9, 1), (11, 5), (3, 0)]
)
def test_a_window_is_cut_out_of_the_whole(
    bootstrap: str, new_topic: NewTopic, first: int, count: int
) -> None:
    """A page shows a part of a partition, which may end in markers or aborted records. It equals
    that part of all."""
    topic = new_topic()
    Writer(bootstrap, topic).write("A2 A- n1 A3 A- A2 A-")
    whole = window(bootstrap, topic)
    part = window(bootstrap, topic, first, count)
    assert part == [record for record in whole if first <= record.offset < first + count]
    assert [record.offset for record in whole] == list(range(11))


def test_deleted_offsets_are_rows_below_older_bounds(bootstrap: str, new_topic: NewTopic) -> None:
    """Records are deleted after the bounds were taken. New bounds show the hole; old ones say that
    they are old."""
    topic = new_topic()
    Writer(bootstrap, topic).write("n2 A1 A+ n2")
    bounds, ranges = known(bootstrap, topic)
    delete_below(bootstrap, topic, 3)
    with pytest.raises(TopicError, match=r"Records of .* were deleted after the bounds were taken"):
        read_window(Address(bootstrap), topic, 0, 0, 10, bounds, ranges)
    wide = Bounds(topic, (PartitionBounds(0, 0, 6, 6),))
    ranges = fate_ranges(scan(Address(bootstrap), topic, wide), wide)
    rows = read_window(Address(bootstrap), topic, 0, 3, 10, wide, ranges)
    assert [row.fate for row in rows] == [Fate.MARKER, Fate.COMMITTED, Fate.COMMITTED]
    assert [row.offset for row in window(bootstrap, topic)] == [3, 4, 5]


def test_a_hole_is_a_row(bootstrap: str, new_topic: NewTopic) -> None:
    """Batch headers show a batch of three offsets of which one record is left. The readings tell
    which one it is."""
    topic = new_topic()
    Writer(bootstrap, topic).write("n1 A1 A+ n1")
    bounds = fetch_bounds(Address(bootstrap), topic)
    thinned = pd.DataFrame(
        {
            "partition": [0, 0],
            "first_offset": [0, 3],
            "last_offset": [2, 3],
            "fate": ["COMMITTED", "GONE"],
            "records": [2, 0],
            "producer_id": pd.array([None, None], dtype="Int64"),
            "transactional": [False, False],
            "control": pd.Series([None, None], dtype=object),
            "transaction": pd.array([None, None], dtype="Int64"),
            "inflated": [0, 0],
            "ratio": [1.0, 0.0],
        }
    )
    rows = read_window(Address(bootstrap), topic, 0, 0, 10, bounds, thinned)
    assert [row.fate for row in rows] == [Fate.COMMITTED, Fate.COMMITTED, Fate.GONE, Fate.GONE]
    assert rows[2].why == "Nothing is left here: it was compacted or deleted."
    assert rows[3].delivered and "one of them is wrong" in rows[3].why, (
        "a record where the headers prove a hole"
    )


def test_records_that_do_not_come_are_an_error(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bounds promise records, but the broker does not answer any more. The first one that is
    missing is named."""
    topic = new_topic()
    Writer(bootstrap, topic).write("n2")
    bounds, ranges = known(bootstrap, topic)
    monkeypatch.setattr(client_configs, "REQUEST_TIMEOUT_MS", 1_000)
    with pytest.raises(ClusterError, match="did not deliver offset 0 within 1 s"):
        read_window(Address("127.0.0.1:1"), topic, 0, 0, 2, bounds, ranges)


def test_a_partition_that_does_not_exist_is_named(bootstrap: str, new_topic: NewTopic) -> None:
    """An address in a browser names partition 7 of a topic that has one. The page says so, and does
    not show it as empty."""
    topic = new_topic()
    bounds, ranges = known(bootstrap, topic)
    with pytest.raises(TopicError, match="has no partition 7; it has 1"):
        read_window(Address(bootstrap), topic, 7, 0, 2, bounds, ranges)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (b"", ""),
        ("grün €".encode(), "grün €"),
        (b"a\nline", "a\nline"),
        ("👩\u200d👧\u3000\u00a0x".encode(), "👩\u200d👧\u3000\u00a0x"),
        ("a\u202eb".encode(), "0x61e280…"),
        (b"\x00\x00\x00\x00\x07", "0x000000…"),
        (b"\xff\xfe", "0xfffe"),
        (b"12345678", "12345678"),
        (b"123456789", "12345678…"),
        ("€".encode() * 9, "€" * 8 + "…"),
        ("€".encode() * 8 + b"\xff" * 90, "0xe282ac…"),
        (b"x" * 10_000_000, "x" * 8 + "…"),
    ],
)
def test_bytes_are_shown_as_what_they_are(value: bytes | None, text: str) -> None:
    """Values may be text, numbers in binary, or huge. None of them may break a page or fill it."""
    assert as_text(value, 8) == text


def test_the_name_of_a_transaction_takes_no_room() -> None:
    """Story: each record of a window names a transaction by a text of 65 kB with one emoji, which
    is kept beside the header in four bytes a character. The name is cut, and still tells its
    attempts apart."""
    long_id = "\U0001f600" + "a" * 65_000
    for transactional_id in (long_id, "squares-0"):
        transaction = Transaction(transactional_id, 7, 2, "abcdefgh", 1)
        header = format_compact(Lineage("numbers", 0, 5, 0), bytes(16), transaction)
        shown = transactional_id[:ID_CHARACTERS]
        assert _name((("topicproof", header),)) == f"{shown}/7, attempt 2"
    assert _name((("topicproof", b"no header of ours"),)) is None


def test_a_window_ends_before_its_records_take_too_much(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: records whose headers are large, which compress to nothing. A window of them ends
    before the first that does not fit, at either level, and one record is always read."""
    topic = new_topic()
    writer = Writer(bootstrap, topic, headers=[("large", bytes(10_000))])
    writer.write("A2 A- n4")
    whole = window(bootstrap, topic)
    assert [record.offset for record in whole] == list(range(7))
    limit = 3 * whole[0].kept_bytes
    for room, offsets in ((2 * limit, [0, 1, 2, 3]), (limit, [0]), (2, [0])):
        monkeypatch.setattr(records_module, "WINDOW_BYTES_MAX", room)
        assert window(bootstrap, topic) == whole[: len(offsets)]
        assert [record.offset for record in window(bootstrap, topic)] == offsets
    assert window(bootstrap, topic, 3) == whole[3:4]


def test_measuring_ends_when_a_reader_may_wait_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a partition has batches of which only decompressing tells the size. One at least is
    measured, each once, and what lies before the next one can be read."""
    columns = {"first_offset": [0, 10, 20, 30], "last_offset": [9, 19, 29, 39]}
    ranges = pd.DataFrame({"partition": 0, "inflated": 2**26, **columns})
    suspects = Suspects(Address("nowhere:1"), "topic", ranges, 0)
    refusal, measured = RecordTooLarge("too large"), []

    def measure(self: Suspects, number: int) -> int:
        measured.append(number)
        self._refusals[number] = refusal if number == 3 else None
        return 7

    monkeypatch.setattr(Suspects, "_measure", measure)
    assert suspects.readable(5, 40, is_over=lambda _bytes: True) == (10, None, 7)
    assert suspects.readable(5, 40, 2) == (20, None, 7)
    assert suspects.readable(0, 40, is_over=lambda size: size > 0) == (30, None, 7)
    assert suspects.readable(0, 40) == (30, refusal, 7)
    assert suspects.readable(35, 36) == (35, refusal, 0)
    assert suspects.readable(50, 60) == (60, None, 0)
    assert measured == [0, 1, 2, 3]
    assert [suspects.last_few(0, 40, count) for count in (1, 2, 9)] == [30, 20, 0]
    assert suspects.last_few(15, 40, 2) == 20 and suspects.last_few(25, 40, 2) == 25


def test_all_of_a_record_counts_against_a_budget() -> None:
    """Story: records are small in the log, and large in memory: by a key, by names of headers in
    another alphabet, by many empty headers, or because there are many of them."""
    budget = RecordBudget(10_000)
    assert budget.hold(None, None) == RECORD_BYTES
    assert budget.hold(b"k" * 10, b"v" * 20, [("name", None)]) == 1_034 + HEADER_BYTES
    assert not budget.is_spent
    name = budget.hold(None, None, [("ж" * 2_000, b"")])
    assert name == RECORD_BYTES + HEADER_BYTES + 8_000 and budget.is_spent
    budget.release(name)
    assert not budget.is_spent
    budget.hold(None, None, [("", b"")] * 100)
    assert budget.is_spent
