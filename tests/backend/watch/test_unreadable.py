"""Records that nobody reads do not end the watch of a contract, on a real broker."""

from __future__ import annotations

import gzip
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from kafka.protocol.producer import ProduceRequest
from kafka.record import MemoryRecordsBuilder
from kafka.record.util import calc_crc32c

from tests.backend.judging.test_record_sizes import BOMB_BYTES, write_bomb
from tests.backend.watch.test_contracts import Pipeline, watching
from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.browse.readable import first_unreadable
from topicproof.backend.kafka.client_configs import (
    READ_COMMITTED,
    UNCOMPRESSED,
    idempotent_producer_config,
    transactional_producer_config,
)
from topicproof.backend.kafka.consumers import record_consumer
from topicproof.backend.kafka.log.batches import COMPRESSIONS, HEADER, ROW, SCHEMA, table
from topicproof.backend.kafka.log.fates import fate_ranges
from topicproof.backend.kafka.log.inflation import (
    BATCH_RECORDS_MAX,
    HEADED_BYTES_MIN,
    UnreadableBatch,
    refusals,
)
from topicproof.backend.kafka.log.rawlog import connect
from topicproof.backend.kafka.raw_records import raw_records
from topicproof.backend.kafka.reading import headers_in, receive
from topicproof.backend.watch import record_reader
from topicproof.backend.watch.alarms import Notice
from topicproof.backend.watch.conditions import Condition, Kind
from topicproof.backend.watch.contract_watch import ContractFigures
from topicproof.backend.watch.pair_reader import (
    INFLATED_AT_ONCE,
    LogSpan,
    ReadSizes,
    source_by_lineage,
    within_bytes,
)
from topicproof.backend.watch.record_reader import within_memory
from topicproof.backend.watch.watcher import Watcher
from topicproof.validators.finding import Bounds, Outcome, PartitionBounds

NewTopic = Callable[..., str]
_LENGTH_AT, _AFTER_LENGTH, _CRC_AT, _AFTER_CRC = 8, 12, 17, 21


def write(bootstrap: str, topic: str, keys: Sequence[str]) -> None:
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    for key in keys:
        producer.produce(topic, b"value", key, partition=0)
    assert producer.flush() == 0


def write_damaged(bootstrap: str, topic: str, size: int) -> None:
    """Write a batch of two records of so many bytes, whose gzip has a reserved flag: brokers pass
    over that, and decoders in C do not."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=10 * size + 1_000)
    for key in (b"first", b"second"):
        now_ms = int(time.time() * 1_000)
        builder.append(timestamp=now_ms, key=key, value=bytes(size), headers=[])
    builder.close()
    whole = bytes(builder.buffer())
    packed = bytearray(gzip.compress(whole[HEADER.itemsize :]))
    packed[3] |= 0x80
    send_batch(bootstrap, topic, whole[: HEADER.itemsize], bytes(packed), "gzip")


def write_tiny(bootstrap: str, topic: str, count: int) -> None:
    """Write a batch of so many records without key, value and headers."""
    records = bytearray()
    for offset in range(count):
        body = b"\0\0" + _varint(offset) + b"\1\1\0"
        records += _varint(len(body)) + body
    now_ms = int(time.time() * 1_000)
    header = struct.pack(
        ">qiibIhiqqqhii", 0, 0, -1, 2, 0, 0, count - 1, now_ms, now_ms, -1, -1, -1, count
    )
    packed = pa.Codec("zstd").compress(bytes(records), asbytes=True)
    send_batch(bootstrap, topic, header, packed, "zstd")


def _varint(number: int) -> bytes:
    """Return a number of 0 or more as Kafka writes it."""
    number, content = 2 * number, bytearray()
    while number > 127:
        content.append(number & 127 | 128)
        number >>= 7
    return bytes((*content, number))


def send_batch(bootstrap: str, topic: str, header: bytes, packed: bytes, codec: str) -> None:
    """Write a batch of compressed records into partition 0. What the header says of its length,
    codec and checksum is made right."""
    batch = bytearray(header) + packed
    struct.pack_into(">h", batch, _AFTER_CRC, COMPRESSIONS.index(codec))
    struct.pack_into(">i", batch, _LENGTH_AT, len(batch) - _AFTER_LENGTH)
    struct.pack_into(">I", batch, _CRC_AT, calc_crc32c(bytes(batch[_AFTER_CRC:])))
    data = ProduceRequest.TopicProduceData
    records = data.PartitionProduceData(index=0, records=bytes(batch))
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=5_000,
        topic_data=[data(name=topic, partition_data=[records])],
        max_version=11,
    )
    with connect(Address(bootstrap)) as kafka:
        leader = kafka.leaders(topic)[0]
        answer: Any = kafka.send({leader: request})[leader]
    assert answer.responses[0].partition_responses[0].error_code == 0


def fields_of(source: str, sink: str) -> dict[str, object]:
    """A contract by which each output is due at once."""
    return {"source": {"topic": source}, "sink": {"topic": sink}, "within": "1ms"}


def looked(watcher: Watcher) -> ContractFigures:
    """What is known after one more look, which reads all."""
    watcher.look()
    figures = watcher.figures.contracts["pair"]
    assert figures.verdict is not None and figures.trouble == "" and not figures.behind
    return figures


def alarms(notices: Sequence[Notice]) -> dict[str, Kind]:
    return {each.finding: each.kind for each in conditions_of_contract(notices)}


def conditions_of_contract(notices: Sequence[Notice]) -> list[Condition]:
    """Other tests leave transactions open in the same cluster, which are alarms, too."""
    return [each.alarm.condition for each in notices if each.alarm.condition.contract]


def test_a_bomb_in_a_sink_by_lineage_leaves_its_outputs_unknown(
    bootstrap: str, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a record of 128 MB lies in the sink, and the output of one input is missing: it may be
    that record. All around it is judged, without a consumer, which would decompress it. The watch
    starts again, a copy comes, and a second output is missing: both are alarms."""
    pipeline = Pipeline(bootstrap, new_topic(), new_topic())
    fields = fields_of(pipeline.source, pipeline.sink)
    pipeline.write_inputs(10)
    pipeline.write_outputs(range(5))
    write_bomb(bootstrap, pipeline.sink)
    pipeline.write_outputs([8, 9], is_aborted=True)
    pipeline.write_outputs(range(6, 10))
    with (
        monkeypatch.context() as patch,
        watching(bootstrap, tmp_path, fields) as (watcher, notices),
    ):
        patch.setattr(record_reader, "open_consumer", pytest.fail)
        looked(watcher)
        figures = looked(watcher)
        assert figures.verdict is not None and figures.outcome is Outcome.UNKNOWN
        place = f"1 record of {pipeline.sink} cannot be read: offset 6 of partition 0."
        assert place in figures.verdict.why
        assert f"The record at {pipeline.sink}-0, offset 6 takes more than" in figures.verdict.why
        assert figures.judged == 11 and figures.verdict.violating == ()
        assert alarms(notices) == {"doubts": Kind.UNKNOWN}
        (condition,) = conditions_of_contract(notices)
        assert condition.offsets == ((pipeline.sink, 0, 6),)
    pipeline.write_inputs(2)
    pipeline.write_outputs([3, 11])
    with watching(bootstrap, tmp_path, fields) as (watcher, notices):
        looked(watcher)
        figures = looked(watcher)
        assert figures.verdict is not None and place in figures.verdict.doubts[0]
        assert figures.outcome is Outcome.VIOLATED
        assert alarms(notices) == {"duplicate": Kind.VIOLATED, "gap": Kind.VIOLATED}
        by_kind = figures.verdict.by_kind
        assert (by_kind["duplicate"].count, by_kind["gap"].primary) == (1, 1)


def test_a_bomb_in_a_sink_by_key_leaves_one_output_unknown(
    bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Story: the large record is the output of a small input. A copy of another output that comes
    after a restart is an alarm."""
    source, sink = new_topic(), new_topic()
    fields = {**fields_of(source, sink), "identity": "key"}
    write(bootstrap, source, ["a", "bomb", "b", "c"])
    write(bootstrap, sink, ["a"])
    write_bomb(bootstrap, sink, "lz4")
    write(bootstrap, sink, ["b"])
    with watching(bootstrap, tmp_path, fields) as (watcher, notices):
        write(bootstrap, sink, ["c"])
        looked(watcher)
        figures = looked(watcher)
        assert figures.outcome is Outcome.UNKNOWN and figures.judged == 3
        assert alarms(notices) == {"doubts": Kind.UNKNOWN}
    write(bootstrap, sink, ["b"])
    with watching(bootstrap, tmp_path, fields) as (watcher, notices):
        assert looked(watcher).outcome is Outcome.VIOLATED
        assert alarms(notices) == {"duplicate": Kind.VIOLATED}


def test_a_bomb_in_a_source_by_key_explains_one_copy_and_no_more(
    bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Story: nobody knows the key of the large input. A second output of another key may be its
    own. Of two such copies, one cannot be."""
    source, sink = new_topic(), new_topic()
    fields = {**fields_of(source, sink), "identity": "key"}
    write(bootstrap, source, ["a", "b"])
    write_bomb(bootstrap, source, "gzip")
    write(bootstrap, source, ["c", "d"])
    write(bootstrap, sink, ["a", "b", "c", "d", "b"])
    with watching(bootstrap, tmp_path, fields) as (watcher, notices):
        looked(watcher)
        figures = looked(watcher)
        assert figures.verdict is not None and figures.outcome is Outcome.UNKNOWN
        assert f"1 record of {source} cannot be read: offset 2" in figures.verdict.why
        assert (figures.judged, figures.inputs_due, figures.inputs_late) == (5, 4, 0)
        assert alarms(notices) == {"doubts": Kind.UNKNOWN}
        (condition,) = conditions_of_contract(notices)
        assert condition.offsets == ((source, 0, 2),)
    write(bootstrap, sink, ["c"])
    with watching(bootstrap, tmp_path, fields) as (watcher, notices):
        looked(watcher)
        assert alarms(notices) == {"duplicate": Kind.VIOLATED}
        (condition,) = conditions_of_contract(notices)
        assert "cannot explain 1 of them" in condition.sentence


@pytest.mark.parametrize("size", [10, HEADED_BYTES_MIN], ids=["small", "large"])
def test_a_batch_that_cannot_be_decompressed_does_not_end_a_watch(
    bootstrap: str, new_topic: NewTopic, tmp_path: Path, size: int
) -> None:
    """Story: a producer writes a batch of gzip that brokers take. A small one is found to be broken
    by the consumer, in the midst of healthy records, a large one before."""
    source, sink = new_topic(), new_topic()
    fields = {**fields_of(source, sink), "identity": "key"}
    write(bootstrap, source, ["a", "b"])
    write(bootstrap, sink, ["a"])
    for topic in (source, sink):
        write_damaged(bootstrap, topic, size)
        write(bootstrap, topic, ["c"])
    write(bootstrap, sink, ["b"])
    with watching(bootstrap, tmp_path, fields) as (watcher, notices):
        looked(watcher)
        figures = looked(watcher)
        assert figures.verdict is not None and figures.outcome is Outcome.UNKNOWN
        assert (figures.judged, figures.inputs_due, figures.inputs_late) == (3, 3, 0)
        place = f"2 records of {sink} cannot be read: offsets 1 to 2 of partition 0."
        assert place in figures.verdict.why and "unread" not in alarms(notices)
        write(bootstrap, sink, ["a", "b", "c"])
        looked(watcher)
        assert alarms(notices)["duplicate"] is Kind.VIOLATED


def test_an_aborted_bomb_leaves_a_doubt(
    bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Story: a stranger aborts a transaction with a large record beside healthy outputs. These are
    decoded from the raw log, so nobody saw what a consumer gets there, and the verdict says so. A
    copy is found all the same."""
    pipeline = Pipeline(bootstrap, new_topic(), new_topic())
    fields = fields_of(pipeline.source, pipeline.sink)
    pipeline.write_inputs(3)
    pipeline.write_outputs(range(3))
    settings = {"compression.type": "zstd", "message.max.bytes": 1_000_000_000}
    stranger = transactional_producer_config(Address(bootstrap), f"{pipeline.sink}-stranger")
    producer = Producer({**stranger, **settings})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(pipeline.sink, bytes(BOMB_BYTES), partition=0)
    assert producer.flush() == 0
    producer.abort_transaction(30)
    with watching(bootstrap, tmp_path, fields) as (watcher, notices):
        looked(watcher)
        figures = looked(watcher)
        assert figures.verdict is not None and figures.outcome is Outcome.UNKNOWN
        assert "3 records" in figures.verdict.why and "was not observed" in figures.verdict.why
    pipeline.write_outputs([1])
    with watching(bootstrap, tmp_path, fields) as (watcher, notices):
        figures = looked(watcher)
        assert figures.verdict is not None and "was not observed" in figures.verdict.doubts[0]
        assert alarms(notices)["duplicate"] is Kind.VIOLATED


def test_a_broken_batch_that_the_end_cuts_is_told(bootstrap: str, new_topic: NewTopic) -> None:
    """Story: a broken batch of a few bytes, whose size nobody asks for, lies across the end of what
    is scanned. Where such batches are told, it is one; elsewhere the scan is refused."""
    topic = new_topic()
    write(bootstrap, topic, ["a"])
    write_damaged(bootstrap, topic, 10)
    part = Bounds(topic, (PartitionBounds(0, 0, 2, 2),))
    refused: list[UnreadableBatch] = []
    with connect(Address(bootstrap)) as kafka:
        batches = kafka.scan(topic, part, readable=True, on_unreadable=refused.append)
        assert batches["last_offset"].to_pylist() == [0, 1]
        assert [(batch.first, batch.last) for batch in refused] == [(1, 1)]
        with pytest.raises(ClusterError, match="cannot be decoded"):
            kafka.scan(topic, part, readable=True)


@pytest.mark.parametrize("records", [4, 3])
def test_a_broken_batch_with_holes_is_not_taken_for_removed(records: int) -> None:
    """Story: compaction left fewer records in a batch of the source than it has offsets, and nobody
    can read which. These inputs are no removed ones: they are a doubt. Of a whole batch each offset
    is an input."""
    rows = pd.DataFrame(
        {
            "base_offset": [0, 4],
            "last_offset": [3, 5],
            "count": [records, 1],
            "control": [None, None],
            "outcome": [None, None],
        }
    )
    broken = UnreadableBatch(0, 0, 3, records, "It is broken.")
    span = LogSpan(0, 0, 6, rows, 0, 0, 0, ((0, 6),), unreadable=(broken,))
    doubtful, of_source = source_by_lineage(span, 6, np.array([5], np.int64))
    is_dense = records == 4
    assert of_source.inputs.tolist() == ([0, 1, 2, 3, 5] if is_dense else [5])
    assert of_source.gone.tolist() == [4]
    assert doubtful.unreadable == (() if is_dense else (broken,))


def test_a_batch_of_more_records_than_a_client_holds_is_named(
    bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Story: somebody writes half a million empty records in one batch of a few hundred kB. A
    client would take 330 bytes for each. The watch names it, judges all around it, and so does the
    search of a page."""
    pipeline = Pipeline(bootstrap, new_topic(), new_topic())
    fields = fields_of(pipeline.source, pipeline.sink)
    pipeline.write_inputs(4)
    pipeline.write_outputs(range(3))
    write_tiny(bootstrap, pipeline.sink, BATCH_RECORDS_MAX + 1)
    pipeline.write_outputs([3, 3])
    with watching(bootstrap, tmp_path, fields) as (watcher, notices):
        looked(watcher)
        figures = looked(watcher)
        assert figures.verdict is not None
        assert figures.verdict.by_kind["duplicate"].count == 1
        assert alarms(notices)["duplicate"] is Kind.VIOLATED
        why = (
            f"The batch of 500,001 records at {pipeline.sink}-0, offset 4 has too many to be read."
        )
        assert why in " ".join(figures.verdict.doubts)
    with connect(Address(bootstrap)) as kafka:
        bounds = kafka.bounds(pipeline.sink)
        ranges = fate_ranges(kafka.scan(pipeline.sink, bounds), bounds)
    unreadable = first_unreadable(
        Address(bootstrap), pipeline.sink, ranges, 0, 0, bounds.partitions[0].hw
    )
    assert unreadable is not None and (unreadable[0], why in str(unreadable[1])) == (4, True)


def test_each_partition_has_its_turn_where_batches_are_large() -> None:
    """A look reads no further partition once it has enough records or bytes, and the next one
    begins behind it."""
    columns = {"base_offset": [0], "last_offset": [149_999], "count": [150_000]}
    spans = [
        LogSpan(number, 0, 150_000, pd.DataFrame(columns), 0, 0, 0, ((0, 150_000),))
        for number in range(3)
    ]
    empty = LogSpan(3, 7, 7, pd.DataFrame(columns)[:0], 0, 0, 0, ())

    def ends(turn: int, inflated: int = 0) -> list[int]:
        sizes = sizes_of(*((number, 0, inflated) for number in range(3)))
        return [span.end for span in within_memory([*spans, empty], sizes, turn)]

    assert [ends(0), ends(1)] == [[150_000, 150_000, 0, 7], [0, 150_000, 150_000, 7]]
    assert [ends(2), ends(3)] == [[150_000, 0, 150_000, 7], [150_000, 150_000, 0, 7]]
    assert ends(1, inflated=INFLATED_AT_ONCE) == [0, 150_000, 0, 7]


def test_a_look_ends_with_the_batch_that_fills_its_share() -> None:
    """A thousand headers in each record, a few bytes of the log: offsets do not tell how long it
    takes to read them."""
    sizes = sizes_of((0, 0, 2**25 + 1), (0, 10, 2**24), (0, 20, 1), (1, 5, 2**30), (1, 6, 1))
    spans = {0: (0, 30), 1: (5, 30), 2: (0, 0)}  # Nothing is new in the third.
    assert within_bytes(spans, sizes) == {0: (0, 10), 1: (5, 6), 2: (0, 0)}
    assert within_bytes({0: (0, 30)}, sizes) == {0: (0, 30)}


def sizes_of(*places: tuple[int, int, int]) -> ReadSizes:
    """Batches by partition, first offset, and bytes after decompression."""
    return ReadSizes(*np.array(places, np.int64).T)


def test_a_pending_bomb_may_be_the_output_that_is_late(
    bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Story: an open transaction of the sink withholds a large record and an output. Two inputs
    without an output wait for it, and a third one has lost its own."""
    pipeline = Pipeline(bootstrap, new_topic(), new_topic())
    fields = fields_of(pipeline.source, pipeline.sink)
    pipeline.write_inputs(4)
    pipeline.write_outputs([0])
    pipeline.begin()
    pipeline.write([1])
    write_bomb(bootstrap, pipeline.sink)
    with watching(bootstrap, tmp_path, fields) as (watcher, _notices):
        looked(watcher)
        figures = looked(watcher)
        assert figures.verdict is not None
        gap = figures.verdict.by_kind["gap"]
        assert (gap.primary, gap.count, gap.explained_by) == (1, 3, "pending")
    pipeline.end(is_aborted=True)


def test_records_of_the_raw_log_are_those_of_a_consumer(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """Story: records of each codec, with and without keys, values and headers, in a part of a log
    whose ends cut batches."""
    topic, address = new_topic(), Address(bootstrap)
    headers: list[tuple[str, str | bytes | None]] = [("name", b"1"), ("name", None), ("ä", b"")]
    for codec in COMPRESSIONS:
        settings = {"compression.type": codec, "linger.ms": 100}
        producer = Producer({**idempotent_producer_config(address), **settings})
        for number in range(20):
            producer.produce(
                topic,
                None if number % 3 == 0 else b"value" * number,
                None if number % 4 == 0 else f"{codec} {number}".encode(),
                headers=headers if number % 2 else [],
                timestamp=1_700_000_000_000 - number,
                partition=0,
            )
        assert producer.flush() == 0
    span = (7, 93)
    refused: list[UnreadableBatch] = []

    def contents(record: Any) -> tuple[object, ...]:
        parts = (record.offset(), record.timestamp(), record.key(), record.value())
        return (*parts, headers_in(record))

    with connect(address) as kafka:
        raw = [
            contents(record)
            for record in raw_records(kafka, topic, 0, span, lambda _row: True, refused.append)
        ]
    consumer = record_consumer(address, READ_COMMITTED, UNCOMPRESSED)
    try:
        received = [contents(message) for message in receive(consumer, topic, {0: span})]
    finally:
        consumer.close()
    assert raw == received and len(raw) == 86 and refused == []


def test_a_codec_that_kafka_does_not_have_is_named() -> None:
    """Story: the disk of a broker has turned the codec of a batch into another number."""
    rows = np.zeros(1, ROW)
    rows["compression"], rows["size"], rows["count"] = 7, HEADER.itemsize + 1, 1
    assert table(SCHEMA.empty_table(), [rows])["compression"].to_pylist() == ["unknown"]
    data = memoryview(bytes(HEADER.itemsize + 1))
    ((index, error),) = refusals(rows, data, [0], "orders")
    assert index == 0 and "unknown codec 7" in str(error)
