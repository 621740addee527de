"""One record that becomes 128 MB ends no process, whichever part of Topicproof reads its topic."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer

from tests.backend.judging.test_check_premises import write
from tests.backend.judging.test_record_sizes import BOMB_BYTES, write_bomb
from topicproof.backend.address import Address
from topicproof.backend.errors import RecordTooLarge
from topicproof.backend.kafka.browse import writers
from topicproof.backend.kafka.browse.writers import Writer, writers_at
from topicproof.backend.kafka.client_configs import (
    KEEPS_UNCOMPRESSED,
    READ_COMMITTED,
    fetch_limits,
    idempotent_producer_config,
)
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.coordination import transaction_state
from topicproof.backend.kafka.log.fates import fate_ranges
from topicproof.backend.kafka.log.inflation import BATCH_BYTES_MAX, RECORD_BYTES_MAX
from topicproof.backend.kafka.log.rawlog import scan
from topicproof.backend.kafka.look import LookBudget
from topicproof.backend.kafka.reading import open_consumer, read_range, read_records
from topicproof.backend.kafka.transaction import TransactionalProducer
from topicproof.backend.matrix.cells import recount
from topicproof.backend.runs import windows
from topicproof.backend.runs.fill import numbers_in
from topicproof.backend.runs.totals import current_totals
from topicproof.backend.runs.windows import BY_EVENT_TIME, check_values
from topicproof.backend.sink.journal import read_journal
from topicproof.validators.finding import Outcome

GROWTH_MAX = BOMB_BYTES // 2


@pytest.fixture(scope="module")
def kafka(bootstrap: str) -> Cluster:
    return Cluster(Address(bootstrap))


@pytest.fixture(scope="module")
def bombed(kafka: Cluster) -> str:
    """A topic with a record, and one after it that becomes 128 MB."""
    topic = "bombed"
    kafka.create_topic(topic, 1)
    write(kafka.address.bootstrap, topic, range(1))
    write_bomb(kafka.address.bootstrap, topic)
    return topic


@contextmanager
def little_memory() -> Iterator[None]:
    """Require that the block never takes as much as the decompressed record."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _status("VmRSS")
    yield
    assert _status("VmHWM") - before < GROWTH_MAX


def _status(name: str) -> int:
    """Return a figure of this process's memory in bytes. VmHWM is the highest since it was
    cleared."""
    line = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert line is not None
    return int(line[1]) * 1024


Read = Callable[[Cluster, str], object]
READERS: dict[str, Read] = {
    "journal": lambda kafka, topic: read_journal(kafka.address, topic),
    "windows": lambda kafka, topic: check_values(kafka, {"payments": topic, BY_EVENT_TIME: topic}),
    "totals": lambda kafka, topic: current_totals(kafka, topic, budget=LookBudget()),
    "recount": lambda kafka, topic: recount(kafka, kafka.bounds(topic), kafka.bounds(topic)),
    "transaction-state": lambda kafka, topic: transaction_state.read_states(
        kafka.address, kafka.bounds(topic), budget=LookBudget()
    ),
    "fill": numbers_in,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_every_reader_names_a_record_that_is_too_large(
    kafka: Cluster, bombed: str, monkeypatch: pytest.MonkeyPatch, read: Read
) -> None:
    """Story: somebody writes 128 MB of zeros into a topic of ours, 4 kB in the log. Whoever reads
    it says where they are, and has not unpacked them."""
    # Brokers take no such record for the coordinators' own log: see below.
    monkeypatch.setattr(transaction_state, "TOPIC", bombed)
    sentence = f"The record at {bombed}-0, offset 1 takes more than {BATCH_BYTES_MAX:,} bytes"
    with little_memory(), pytest.raises(RecordTooLarge, match=sentence):
        read(kafka, bombed)


def test_a_picture_goes_without_the_writer_of_such_a_record(kafka: Cluster, bombed: str) -> None:
    """Its headers stay unread; those of the record before are read."""
    bounds = kafka.bounds(bombed)
    ranges = fate_ranges(scan(kafka.address, bombed, bounds), bounds)
    with little_memory():
        writers = writers_at(kafka.address, bombed, ranges, [(0, 1)])
    assert writers == {(0, 1): Writer()}


def test_names_of_writers_have_a_limit(kafka: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: records name writers of megabytes, which compress to nothing. Once they have had the
    room of all, the next ones are not read."""
    topic = "named"
    kafka.create_topic(topic, 1)
    name = "n" * 10_000
    headers: list[tuple[str, str | bytes | None]] = [
        ("topicproof-transaction", f"{name}/42/2/c0ffee/1".encode())
    ]
    producer = Producer(idempotent_producer_config(kafka.address))
    for _ in range(3):
        producer.produce(topic, b"value", partition=0, headers=headers)
    assert producer.flush(30) == 0
    bounds = kafka.bounds(topic)
    ranges = fate_ranges(scan(kafka.address, topic, bounds), bounds)
    places = [(0, offset) for offset in range(3)]
    named, nobody = Writer(transactional_id=name), Writer()
    assert [*writers_at(kafka.address, topic, ranges, places).values()] == [named] * 3
    monkeypatch.setattr(writers, "NAMES_BYTES_MAX", 15_000)
    assert [*writers_at(kafka.address, topic, ranges, places).values()] == [named, named, nobody]


def test_a_recount_of_windows_has_a_limit(kafka: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: somebody writes payments of accounts with long names into the source of a run. What is
    counted again is held, so at some size nothing is, and the verdict says so."""
    topic = "payments-of-many"
    kafka.create_topic(topic, 1)
    producer = Producer(idempotent_producer_config(kafka.address))
    payment = {"account": "a" * 10_000, "at": "2026-01-01T00:00:00+00:00"}
    for _ in range(3):
        producer.produce(topic, json.dumps(payment).encode(), partition=0)
    assert producer.flush(30) == 0
    topics = {"payments": topic, BY_EVENT_TIME: topic}
    assert check_values(kafka, topics)[BY_EVENT_TIME].verdict is Outcome.VIOLATED
    monkeypatch.setattr(windows, "COUNTS_BYTES_MAX", 20_000)
    verdict = check_values(kafka, topics)[BY_EVENT_TIME]
    assert verdict.verdict is Outcome.UNKNOWN and "were not counted again" in verdict.why


def test_what_stands_before_it_is_read(kafka: Cluster, bombed: str) -> None:
    (message,) = read_records(kafka.address, bombed, READ_COMMITTED, {0: (0, 1)})
    assert message.offset() == 0


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_a_broker_refuses_it_for_a_journal_and_for_its_own_log(kafka: Cluster, codec: str) -> None:
    """Story: a record that becomes 32 MB is sent to the journal of a run, which is read while it
    grows, and to the coordinators' log."""
    journal = f"journal-{codec}"
    kafka.create_topic(journal, 1, exists_ok=False, **KEEPS_UNCOMPRESSED)
    with TransactionalProducer(kafka.address, journal):
        pass  # The first transactional id makes the coordinators' log.
    config = {"compression.type": codec, "message.max.bytes": 1_000_000_000}
    # Brokers take records of their own topics from this client alone.
    config["client.id"] = "__admin_client"
    producer = Producer({**idempotent_producer_config(kafka.address), **config})
    refusals: list[KafkaError | None] = []
    for topic in (journal, transaction_state.TOPIC):
        producer.produce(
            topic,
            bytes(RECORD_BYTES_MAX),
            b"bomb",
            partition=0,
            on_delivery=lambda error, _message: refusals.append(error),
        )
        assert producer.flush(60) == 0
    assert [error and error.code() for error in refusals] == [KafkaError.MSG_SIZE_TOO_LARGE] * 2


class CountedConsumer:
    """A consumer that counts what it hands out of each partition."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.assign, self.pause, self.resume = consumer.assign, consumer.pause, consumer.resume
        self.received: Counter[int] = Counter()

    def poll(self, timeout_s: float) -> Message | None:
        message = self._consumer.poll(timeout_s)
        if message is not None and message.error() is None:
            self.received[message.partition() or 0] += 1
        return message


def test_a_partition_that_was_read_to_its_end_keeps_no_other_waiting(
    kafka: Cluster, new_topic: Callable[..., str]
) -> None:
    """Story: a watch is behind, and reads a part of each partition. What lies behind that part is
    not received in place of what the other partitions still have; the next part is read by the
    same consumer."""
    topic, records = new_topic(partitions=2), 20_000
    # Small batches: what has arrived when a partition ends is handed out.
    small = {"batch.num.messages": 100}
    producer = Producer(idempotent_producer_config(kafka.address) | small)
    for partition in (0, 1):
        for _ in range(records):
            producer.produce(topic, b"x" * 100, partition=partition)
    assert producer.flush(60) == 0
    limits = fetch_limits(100_000)
    with open_consumer(kafka.address, topic, READ_COMMITTED, limits) as consumer:
        counted = cast(Consumer, CountedConsumer(consumer))
        for spans in ({0: (0, 10), 1: (0, records)}, {0: (10, 20), 1: (0, 10)}):
            messages = [each for each in read_range(counted, topic, spans) if each is not None]
            assert Counter(each.partition() for each in messages) == {
                partition: end - first for partition, (first, end) in spans.items()
            }
    received = cast(CountedConsumer, counted).received
    assert received[0] < records / 2
