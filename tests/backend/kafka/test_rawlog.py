"""The raw log of real topics, held against what two consumers get from them."""

from __future__ import annotations

import gc
import socket
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

import psutil
import pyarrow as pa
import pytest
from kafka.record import MemoryRecordsBuilder

from tests.backend.kafka.topics import (
    FATE_LETTERS,
    Writer,
    broker_setting,
    delete_below,
    fates_by_consumers,
    model,
)
from tests.conftest import wait_until
from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError, TopicError, UsageError
from topicproof.backend.kafka.browse.records import read_window
from topicproof.backend.kafka.log import client, rawlog
from topicproof.backend.kafka.log.batches import (
    COMPRESSIONS,
    DECOMPRESSED_BYTES_MAX,
    HEADER,
    SCHEMA,
    batch_positions,
    batch_rows,
    cut,
    decompress,
    record_positions,
    require_crc,
)
from topicproof.backend.kafka.log.fates import FATES, balance, fate_ranges, total, transactions
from topicproof.backend.kafka.log.rawlog import Connection, connect, fetch_bounds, scan
from topicproof.validators.finding import Bounds, Fate, PartitionBounds

NewTopic = Callable[..., str]

PLACES = ("base_offset", "last_offset")
ATTRIBUTES_AT, PRODUCER_ID_AT = 21, 43
"""Positions in a batch's header (KIP-98)."""


def fates(table: pa.Table, bounds: Bounds) -> dict[tuple[int, int], str]:
    """The fate of every offset, by place."""
    found = {}
    for row in pa.Table.from_pandas(fate_ranges(table, bounds)).to_pylist():
        for offset in range(row["first_offset"], row["last_offset"] + 1):
            found[(row["partition"], offset)] = row["fate"]
    return found


def as_consumers_say(found: dict[tuple[int, int], str]) -> dict[tuple[int, int], str]:
    """What consumers cannot tell apart is one."""
    return {
        place: "NO_RECORD" if fate in ("MARKER", "GONE") else fate for place, fate in found.items()
    }


@pytest.mark.parametrize(
    "line",
    [
        "A3 A+ A2 A-",
        "A2 B1 A1 n2 B2 A- B+",
        "n3 A2 A+ A2 n1",
        "B1 A1 B+ A1 n1 B2 B-",
        "A1 A+ A1 A+ A1 A+ A1 A- A1 A+",
    ],
)
def test_fates_are_what_the_line_and_two_consumers_say(
    bootstrap: str, new_topic: NewTopic, line: str
) -> None:
    """Producers take turns on one partition, some end nothing. Log, model and two consumers
    agree."""
    topic = new_topic()
    Writer(bootstrap, topic).write(line)
    bounds = fetch_bounds(Address(bootstrap), topic)
    found = fates(scan(Address(bootstrap), topic, bounds), bounds)
    expected = model(line.split(), bounds.partitions[0].lso)
    assert [found[(0, offset)] for offset in range(bounds.offsets)] == [
        FATE_LETTERS[letter] for letter in expected
    ]
    assert as_consumers_say(found) == fates_by_consumers(bootstrap, bounds)


def test_a_topic_of_several_partitions_is_read_whole(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three partitions, one empty, and a fetch size below that of any batch. Each batch still comes
    whole."""
    monkeypatch.setattr(rawlog, "PARTITION_BYTES_MAX", 1)
    monkeypatch.setattr(rawlog, "RESPONSE_BYTES_MAX", 1)
    topic = new_topic(partitions=3)
    writer = Writer(bootstrap, topic)
    for _ in range(4):
        writer.write("A50 B5 A+ B-", partition=0)
        writer.write("n7 A20 A-", partition=2)
    bounds = fetch_bounds(Address(bootstrap), topic)
    table = scan(Address(bootstrap), topic, bounds)
    assert table.schema == SCHEMA
    assert set(table["partition"].to_pylist()) == {0, 2}
    assert bounds.partitions[1] == PartitionBounds(1, 0, 0, 0)
    assert as_consumers_say(fates(table, bounds)) == fates_by_consumers(bootstrap, bounds)
    counts = total(balance(fate_ranges(table, bounds), bounds))
    assert counts == dict.fromkeys(FATES, 0) | {
        Fate.COMMITTED: 228,
        Fate.ABORTED: 100,
        Fate.MARKER: 12,
    }
    assert transactions(table, bounds)["outcome"].value_counts().to_dict() == {
        "ABORTED": 8,
        "COMMITTED": 4,
    }


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_log_that_starts_inside_a_batch(
    bootstrap: str, new_topic: NewTopic, compression: str
) -> None:
    """Records were deleted up to the middle of a batch, whatever its compression. Only the part
    that is left counts."""
    topic = new_topic()
    writer = Writer(bootstrap, topic, {"compression.type": compression, "linger.ms": 200})
    writer.write("A40 A+ A3 A+")
    whole = fetch_bounds(Address(bootstrap), topic)
    before = scan(Address(bootstrap), topic, whole)
    delete_below(bootstrap, topic, 15)
    bounds = fetch_bounds(Address(bootstrap), topic)
    assert bounds.partitions == (PartitionBounds(0, 15, 45, 45),)
    table = scan(Address(bootstrap), topic, bounds)
    assert table["compression"][0].as_py() == compression
    assert table["base_offset"][0].as_py() == 15
    assert table["base_sequence"][0].as_py() == before["base_sequence"][0].as_py() + 15
    assert sum(table["count"].to_pylist()) == 25 + 1 + 3 + 1
    assert transactions(table, bounds)["records"].tolist() == [25, 3]
    assert as_consumers_say(fates(table, bounds)) == fates_by_consumers(bootstrap, bounds)
    # The older bounds still balance: what was deleted since then is gone.
    late = scan(Address(bootstrap), topic, whole)
    assert total(balance(fate_ranges(late, whole), whole))[Fate.GONE] == 15
    # And an older table is taken over only as far as it still holds.
    assert scan(Address(bootstrap), topic, bounds, since=before).equals(table)


def test_only_what_is_new_is_read_again(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live page reads a topic, the topic grows, the page reads on. The sum is the same as reading
    everything again."""
    topic = new_topic(partitions=2)
    writer = Writer(bootstrap, topic)
    writer.write("A5 A+ B2")
    first = scan(Address(bootstrap), topic, fetch_bounds(Address(bootstrap), topic))
    writer.write("B1 B- A2 A+")
    writer.write("A1 A+", partition=1)
    bounds = fetch_bounds(Address(bootstrap), topic)
    asked: list[dict[int, list[tuple[int, int]]]] = []
    original = rawlog.missing_spans

    def listen(
        bounds: Bounds, since: pa.Table | None
    ) -> tuple[pa.Table, dict[int, list[tuple[int, int]]]]:
        answer = original(bounds, since)
        asked.append({partition: list(spans) for partition, spans in answer[1].items()})
        return answer

    monkeypatch.setattr(rawlog, "missing_spans", listen)
    table = scan(Address(bootstrap), topic, bounds, since=first)
    assert table.equals(scan(Address(bootstrap), topic, bounds))
    assert asked == [{0: [(8, 13)], 1: [(0, 2)]}, {0: [(0, 13)], 1: [(0, 2)]}]
    assert scan(Address(bootstrap), topic, bounds, since=table).equals(table)


def test_bounds_are_the_same_from_one_response_and_from_three(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """An open transaction holds the LSO below the high watermark, and the log start was moved. Both
    ways agree."""
    topic = new_topic(partitions=2)
    Writer(bootstrap, topic).write("n4 A2 n3", partition=1)
    delete_below(bootstrap, topic, 1, partition=1)
    with connect(Address(bootstrap)) as kafka:
        bounds = kafka.bounds(topic)
        assert bounds == kafka.bounds_in_order(topic)
    assert bounds == Bounds(topic, (PartitionBounds(0, 0, 0, 0), PartitionBounds(1, 1, 4, 9)))


def test_an_empty_topic_has_bounds_and_an_empty_table(bootstrap: str, new_topic: NewTopic) -> None:
    """A topic was made and never written to. That is no error here; the judge may call it one."""
    topic = new_topic(partitions=2)
    bounds = fetch_bounds(Address(bootstrap), topic)
    table = scan(Address(bootstrap), topic, bounds)
    assert bounds.offsets == 0
    assert table.num_rows == 0 and table.schema == SCHEMA
    assert transactions(table, bounds).empty and fate_ranges(table, bounds).empty


def test_a_missing_topic_is_named_and_not_made(bootstrap: str) -> None:
    """Somebody misspells a topic, twice. The second question must not find that the first one made
    it."""
    for _ in range(2):
        with pytest.raises(TopicError, match="There is no topic squars at 127"):
            fetch_bounds(Address(bootstrap), "squars")
    with pytest.raises(TopicError, match="There is no topic no such"):
        fetch_bounds(Address(bootstrap), "no such name")


def test_a_topic_that_was_listed_and_is_gone_keeps_nobody_waiting(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a watch has just listed all topics, then one is deleted. It is asked for once: the
    other contracts wait for the answer."""
    questions: list[object] = []
    ask = Connection._metadata

    def counted(kafka: Connection, topics: Any) -> object:
        questions.append(topics)
        return ask(kafka, topics)

    monkeypatch.setattr(Connection, "_metadata", counted)
    with (
        pytest.raises(TopicError, match="There is no topic squars"),
        connect(Address(bootstrap), new_topic_patience_s=0) as kafka,
    ):
        kafka.bounds("squars")
    assert len(questions) == 1


def test_an_unreachable_broker_is_named_with_its_reason() -> None:
    """Nothing listens at the address, or it is no address. The sentence says which, at once."""
    with pytest.raises(ClusterError, match=r"127.0.0.1:1: Connection refused.*Check the address"):
        fetch_bounds(Address("127.0.0.1:1"), "squares")
    with pytest.raises(UsageError, match="must be host:port"):
        fetch_bounds(Address("127.0.0.1:none"), "squares")


def test_one_dead_address_among_several_does_no_harm(bootstrap: str, new_topic: NewTopic) -> None:
    """One of the two addresses does not answer. The other one does, and no socket is left behind to
    warn about."""
    topic = new_topic()
    for _ in range(4):
        assert fetch_bounds(Address(f"127.0.0.1:1,{bootstrap}"), topic).offsets == 0
    gc.collect()


def test_what_listens_but_is_no_broker_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something else listens at the address and says nothing in TLS. It is given up on in time."""
    monkeypatch.setattr(client, "CONNECT_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address(f"127.0.0.1:{silent.getsockname()[1]}", {"security.protocol": "SSL"})
        with pytest.raises(ClusterError, match=f"{address}: it accepts .* answers nothing"):
            fetch_bounds(address, "squares")


def test_compaction_leaves_holes_that_balance(bootstrap: str, new_topic: NewTopic) -> None:
    """Keys are written again and again until the cleaner removes the older ones, and whole batches.
    Consumers agree."""
    topic = new_topic(
        cleanup_policy="compact",
        segment_ms="100",
        segment_bytes="1048576",
        min_cleanable_dirty_ratio="0.001",
        max_compaction_lag_ms="100",
        delete_retention_ms="100",
    )
    writer = Writer(bootstrap, topic)

    def look() -> tuple[Bounds, pa.Table]:
        bounds = fetch_bounds(Address(bootstrap), topic)
        return bounds, scan(Address(bootstrap), topic, bounds)

    def thinned() -> bool:
        writer.write("A5 A+ B2 B- A2 A+")
        _, table = look()
        span = [
            last - base + 1
            for base, last in zip(*(table[n].to_pylist() for n in PLACES), strict=True)
        ]
        return any(
            0 < count < width for count, width in zip(table["count"].to_pylist(), span, strict=True)
        )

    def agreed() -> bool:
        # The cleaner goes on, so the three views may be of different moments at first.
        bounds, table = look()
        ranges = fate_ranges(table, bounds)
        try:
            rows = read_window(Address(bootstrap), topic, 0, 0, bounds.offsets, bounds, ranges)
        except ClusterError:
            return False  # The cleaner has removed a record since.
        counts = Counter(row.fate for row in rows)
        said = as_consumers_say({(0, row.offset): row.fate.value for row in rows})
        return (
            {fate: count for fate, count in total(balance(ranges, bounds)).items() if count}
            == counts
            and counts[Fate.GONE] > 0
            and said == fates_by_consumers(bootstrap, bounds)
        )

    with broker_setting(bootstrap, "log.cleaner.backoff.ms", "100"):
        wait_until(thinned, 60, "a batch that compaction has thinned out")
        wait_until(agreed, 60, "agreement of headers and consumers on the compacted log")


def test_bounds_that_the_log_does_not_reach_are_an_error(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is shorter than the bounds say, as after a truncation. Nothing is made up about the
    missing part."""
    topic = new_topic()
    Writer(bootstrap, topic).write("n3")
    monkeypatch.setattr(rawlog, "FAILOVER_TIMEOUT_S", 1.0)
    with pytest.raises(ClusterError, match="returned nothing from offset 3 on"):
        scan(Address(bootstrap), topic, Bounds(topic, (PartitionBounds(0, 0, 9, 9),)))
    with pytest.raises(ClusterError, match="became shorter than offset 7"):
        scan(Address(bootstrap), topic, Bounds(topic, (PartitionBounds(0, 7, 9, 9),)))


def test_a_broker_that_repeats_itself_is_not_read_for_ever(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a broken broker, or whoever stands before one, answers every fetch with the first
    batch of the log. The scan ends in a sentence."""
    topic = new_topic()
    Writer(bootstrap, topic).write("n3")
    Writer(bootstrap, topic).write("n3")
    fetch = Connection._fetch

    def fetch_first(kafka: Connection, topic: str, leaders: Any, offsets: Any, _: int) -> Any:
        return fetch(kafka, topic, leaders, dict.fromkeys(offsets, 0), 1)

    monkeypatch.setattr(Connection, "_fetch", fetch_first)
    monkeypatch.setattr(rawlog, "FAILOVER_TIMEOUT_S", 1.0)
    with pytest.raises(ClusterError, match="returned nothing from offset 3 on"):
        scan(Address(bootstrap), topic, Bounds(topic, (PartitionBounds(0, 0, 6, 6),)))


def thinned_batch(offsets: list[int], compression: int) -> memoryview:
    """A batch as compaction leaves it: some of the offsets between the first and the last are
    missing."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=compression, batch_size=10_000)
    at = 0
    for offset in offsets:
        builder.skip(offset - at)
        builder.append(timestamp=1_000 + offset, key=b"k" * 90, value=None, headers=[])
        at = offset + 1
    builder.close()
    return memoryview(bytes(builder.buffer()))


def test_a_thinned_out_batch_says_fewer_records_than_offsets() -> None:
    """Compaction left three records of ten offsets. Cut at both ends, only the one in the middle is
    described."""
    batch = thinned_batch([0, 4, 9], compression=0)
    (row,) = batch_rows(batch, batch_positions(batch, "t-0"), 0)
    assert (row["base_offset"], row["last_offset"], row["count"]) == (0, 9, 3)
    offsets, timestamps = record_positions(batch)
    assert offsets.tolist() == [0, 4, 9] and timestamps.tolist() == [1_000, 1_004, 1_009]
    middle = cut(row, batch, 2, 8, "t-0")
    assert (middle["base_offset"], middle["last_offset"], middle["count"]) == (4, 7, 1)
    assert middle["first_timestamp"] == 1_004
    nothing = cut(row, batch, 5, 8, "t-0")
    assert (nothing["base_offset"], nothing["last_offset"], nothing["count"]) == (5, 7, 0)


def test_a_response_may_end_inside_a_batch() -> None:
    """The broker cuts a response at its size, in the middle of a batch. Only what is whole is
    read."""
    batch = bytes(thinned_batch([0, 1], compression=0))
    for end in (len(batch) - 1, HEADER.itemsize, 5):
        assert batch_positions(memoryview(batch + batch[:end]), "t-0") == [0]


def test_records_older_than_transactions_are_refused() -> None:
    """The log holds message format version 1, from before Kafka 0.11. It knows no transactions."""
    builder = MemoryRecordsBuilder(magic=1, compression_type=0, batch_size=10_000)
    builder.append(timestamp=1_000, key=None, value=b"v", headers=[])
    builder.close()
    with pytest.raises(TopicError, match="old-0 holds records in message format version 1"):
        batch_positions(memoryview(bytes(builder.buffer())), "old-0")


def test_what_is_no_batch_is_an_error() -> None:
    """A length of zero would be read endlessly. It is refused, and so is a codec that Kafka does
    not have."""
    with pytest.raises(ClusterError, match="impossible length 0"):
        batch_positions(memoryview(struct.pack(">qiib", 0, 0, 0, 2) + bytes(80)), "t-0")
    with pytest.raises(ClusterError, match="codec 7"):
        decompress(memoryview(b""), 7)


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_broken_data_keeps_no_memory(codec: str) -> None:
    """Story: a page looks at a damaged batch every second. Once, each look kept as much as a batch
    may have after decompression, for good."""
    before = psutil.Process().memory_info().vms
    for _ in range(100):
        with pytest.raises((OSError, ValueError)):
            decompress(memoryview(b"broken" * 20), COMPRESSIONS.index(codec))
    assert psutil.Process().memory_info().vms < before + 10 * DECOMPRESSED_BYTES_MAX


def test_a_batch_that_differs_from_its_checksum_is_named() -> None:
    """One bit of the second of two batches has flipped, in its header or in its last record. Whole
    ones pass."""
    first, second = (
        bytes(thinned_batch([0, 1], compression=0)),
        bytearray(thinned_batch([0, 1], compression=0)),
    )
    struct.pack_into(
        ">q", second, 0, 2
    )  # The offset lies before what the checksum covers: a broker gives it.
    whole = memoryview(first + second)
    positions = batch_positions(whole, "t-0")
    require_crc(whole, positions, "t-0")
    for at in (PRODUCER_ID_AT, len(second) - 1):
        broken = bytearray(second)
        broken[at] ^= 1
        with pytest.raises(
            ClusterError,
            match=r"^t-0: the record batch at offset 2 is corrupt \(its CRC is .*replica",
        ):
            require_crc(memoryview(first + broken), positions, "t-0")


@pytest.mark.parametrize("compression", [0, 1, 3, 4])
def test_records_that_cannot_be_decoded_are_named(compression: int) -> None:
    """A batch must be cut, and its records are no records. The sentence says where, whatever the
    codec said."""
    batch = bytearray(thinned_batch([0], compression=0))
    batch[ATTRIBUTES_AT + 1] = compression
    batch[HEADER.itemsize :] = b"\xff" * (len(batch) - HEADER.itemsize)
    (row,) = batch_rows(memoryview(batch), [0], 0)
    with pytest.raises(
        ClusterError, match=r"^t-0: the record batch at offset 0 is corrupt \(its records cannot be"
    ):
        cut(row, memoryview(batch), 0, 1, "t-0")


def test_checksums_of_a_topic_are_checked_on_request(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic is read with its checksums, and all is well. Then a bit flips on the way, which only
    they notice."""
    topic = new_topic()
    Writer(bootstrap, topic).write("n3 A2 A+")
    bounds = fetch_bounds(Address(bootstrap), topic)
    table = scan(Address(bootstrap), topic, bounds)
    assert scan(Address(bootstrap), topic, bounds, check_crc=True).equals(table)
    original = rawlog.Connection._fetch

    def flip(*arguments: Any) -> dict[int, Any]:
        found = original(*arguments)
        for answer in found.values():
            answer.records = bytearray(answer.records)
            answer.records[table["size"][0].as_py() + HEADER.itemsize + 9] ^= 1
        return found

    monkeypatch.setattr(rawlog.Connection, "_fetch", flip)
    assert scan(Address(bootstrap), topic, bounds).equals(table)
    with pytest.raises(ClusterError, match=f"^{topic}-0: the record batch at offset 3 is corrupt"):
        scan(Address(bootstrap), topic, bounds, check_crc=True)


def test_snappy_of_java_clients_is_read() -> None:
    """Java frames snappy in blocks of its own, librdkafka does not. The same records come out of
    both."""
    codec = pa.Codec("snappy")
    blocks = [codec.compress(text, asbytes=True) for text in (b"a" * 300, b"b" * 5)]
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    framed += b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    assert decompress(memoryview(framed), COMPRESSIONS.index("snappy")) == b"a" * 300 + b"b" * 5
    assert decompress(memoryview(blocks[0]), COMPRESSIONS.index("snappy")) == b"a" * 300
