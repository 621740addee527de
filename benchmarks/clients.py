"""What a transaction costs a broker, by what its client speaks. Run as `python -P -m
benchmarks.clients`: four minutes.

The sink's client, librdkafka, speaks the first version of transactions, and each of its requests
holds the records of one partition. For each of those partitions, and for the offset, the broker
then asks its transaction coordinator. Here it is held against a client that only this benchmark
could live with, as it knows no other brokers and no way on after an error: it speaks the second
version (KIP-890), sends all partitions in one request, and has its batches ready. Each client sends
the same records to the same topic, in transactions and, at-least-once, without, in turns; what
counts is the broker's processor time, and how much more it is with transactions.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import TopicPartition
from kafka.errors import for_code
from kafka.protocol.consumer import OffsetCommitRequest
from kafka.protocol.producer import (
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from kafka.record.default_records import DefaultRecordBatchBuilder
from rich.console import Console
from rich.table import Table

from topicproof.backend.address import Address
from topicproof.backend.kafka.client_configs import REQUEST_TIMEOUT_MS
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.consumers import offset_consumer
from topicproof.backend.kafka.log.rawlog import Connection, connect
from topicproof.backend.kafka.plain_producer import PlainProducer
from topicproof.backend.kafka.transaction import TransactionalProducer
from topicproof.backend.services.jars import BROKER, jar_files
from topicproof.backend.services.kafka import EmbeddedKafka
from topicproof.backend.settings import read_settings

SINK, SOURCE = "sink", "source"
PARTITIONS = 4
RECORDS = 21_000
"""In a transaction: what a core gets through in 100 ms."""
WARM = 3_000
"""Small transactions of each kind before, until the broker's Java has compiled what they need."""
WARM_RECORDS = 100
BATCH_BYTES = 1_000_000
"""How large a batch may become, as the sink sets it."""
PAUSE_S = 0.02
"""Between two transactions, so that the broker has ended the one before."""

Send = Callable[[int], None]
"""Sends everything of transaction N and waits for its end."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=200, help="in a turn")
    parser.add_argument("--times", type=int, default=7, help="turns of each")
    asked = parser.parse_args()
    console, errors = Console(), Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="topicproof-bench-") as folder:
        kafka = EmbeddedKafka(Path(folder), jar_files(read_settings(), BROKER))
        errors.print("starting Apache Kafka")
        kafka.start()
        try:
            cluster = Cluster(Address(kafka.bootstrap))
            for topic in (SINK, SOURCE):
                cluster.create_topic(topic, PARTITIONS)
            console.print(table(measured(kafka, asked.transactions, asked.times, errors.print)))
        finally:
            kafka.stop()


def table(found: Mapping[Client, list[float]]) -> Table:
    shown = Table(
        title=(
            f"Processor time of the broker, {RECORDS:,} records a transaction: ms, median of the"
            " turns"
        )
    )
    for heading in ("client", "exactly-once", "at-least-once", "more", "lowest to highest"):
        shown.add_column(heading, justify="left" if heading == "client" else "right")
    for client in dict.fromkeys(name for name, _ in found):
        dear, cheap = found[client, True], found[client, False]
        more = [one - other for one, other in zip(dear, cheap, strict=True)]
        medians = (f"{statistics.median(figures):.1f}" for figures in (dear, cheap, more))
        shown.add_row(client, *medians, f"{min(more):.1f} to {max(more):.1f}")
    return shown


@contextmanager
def librdkafka(bootstrap: str, records: int, transactions: bool) -> Iterator[Send]:
    """The sink's producers."""
    group = uuid.uuid4().hex
    rows = [(SINK, key, value, ()) for key, value in pairs(records)]
    with closing(offset_consumer(Address(bootstrap), group)) as consumer:
        if transactions:
            named = consumer.consumer_group_metadata()
            with TransactionalProducer(Address(bootstrap), group) as producer:

                def send(number: int) -> None:
                    with producer.transaction():
                        producer.produce(rows)
                        producer.send_offset(TopicPartition(SOURCE, 0, number, metadata="1"), named)

                yield send
        else:
            with PlainProducer(Address(bootstrap), True, "all") as plain:

                def send_plainly(number: int) -> None:
                    plain.produce(rows)
                    plain.flush()
                    offset = TopicPartition(SOURCE, 0, number, metadata="1")
                    consumer.commit(offsets=[offset], asynchronous=False)

                yield send_plainly


@contextmanager
def second_version(bootstrap: str, records: int, transactions: bool) -> Iterator[Send]:
    """One request for all partitions; the broker adds them, and the group, to the transaction by
    itself."""
    with connect(Address(bootstrap)) as kafka:
        yield SecondVersion(kafka, records, transactions).send


class SecondVersion:
    def __init__(self, kafka: Connection, records: int, transactions: bool) -> None:
        self.kafka = kafka
        self.name = uuid.uuid4().hex
        """Of the group, and the transactional id."""
        self.transactional_id = self.name if transactions else None
        self.leader = kafka.leaders(SINK)[0]
        self.count = records // PARTITIONS
        self.batch = DefaultRecordBatchBuilder(2, 0, transactions, -1, -1, -1, BATCH_BYTES)
        now = int(time.time() * 1000)
        for offset, (key, value) in enumerate(pairs(self.count)):
            self.batch.append(offset, now, key, value, ())
        asked = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=REQUEST_TIMEOUT_MS,
            producer_id=-1,
            producer_epoch=-1,
            min_version=5,
            max_version=5,
        )
        answer = kafka.with_retries(lambda: self._ask(asked))
        self.identity = answer.producer_id, answer.producer_epoch
        self.sequence = 0

    def send(self, number: int) -> None:
        self._produce()
        self._commit_offset(number)
        self.sequence += self.count
        if self.transactional_id:
            answer = self._ask(
                EndTxnRequest(
                    transactional_id=self.transactional_id,
                    producer_id=self.identity[0],
                    producer_epoch=self.identity[1],
                    committed=True,
                    min_version=5,
                    max_version=5,
                )
            )
            # Every end of a transaction gives the producer another epoch, in which it counts anew.
            self.identity, self.sequence = (answer.producer_id, answer.producer_epoch), 0

    def _produce(self) -> None:
        topic = ProduceRequest.TopicProduceData
        batch = self._batch()
        parts = [topic.PartitionProduceData(index=p, records=batch) for p in range(PARTITIONS)]
        asked = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=REQUEST_TIMEOUT_MS,
            topic_data=[topic(name=SINK, partition_data=parts)],
            min_version=12,
            max_version=12,
        )

        def ask() -> None:
            for part in self._ask(asked).responses[0].partition_responses:
                _raise(part.error_code)

        self.kafka.with_retries(ask)

    def _commit_offset(self, number: int) -> None:
        offset = {"partition_index": 0, "committed_offset": number, "committed_leader_epoch": -1}
        asked: Any
        if self.transactional_id:
            topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
            part = topic.TxnOffsetCommitRequestPartition(**offset, committed_metadata="1")
            asked = TxnOffsetCommitRequest(
                transactional_id=self.transactional_id,
                group_id=self.name,
                producer_id=self.identity[0],
                producer_epoch=self.identity[1],
                topics=[topic(name=SOURCE, partitions=[part])],
                min_version=5,
            )
        else:
            topic = OffsetCommitRequest.OffsetCommitRequestTopic
            part = topic.OffsetCommitRequestPartition(**offset, committed_metadata="1")
            asked = OffsetCommitRequest(
                group_id=self.name,
                topics=[topic(name=SOURCE, partitions=[part])],
                min_version=8,
                max_version=8,
            )
        self.kafka.with_retries(lambda: _raise(self._ask(asked).topics[0].partitions[0].error_code))

    def _batch(self) -> bytes:
        """The records, as sent by this producer in this epoch from this sequence on."""
        self.batch.set_producer_state(
            *self.identity, self.sequence, self.transactional_id is not None
        )
        return bytes(self.batch.build())

    def _ask(self, request: Any) -> Any:
        answer = self.kafka.send({self.leader: request})[self.leader]
        _raise(getattr(answer, "error_code", 0))
        return answer


def _raise(code: int) -> None:
    if code:
        raise for_code(code)


def pairs(records: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of the size that the sink writes."""
    return ((b"%d" % number, b"%d" % (number * number + 10**12)) for number in range(records))


Client = tuple[str, bool]
"""Its name, and whether in transactions."""

CLIENTS: Mapping[Client, Callable[[str, int], AbstractContextManager[Send]]] = {
    (name, transactions): partial(client, transactions=transactions)
    for name, client in (("librdkafka", librdkafka), ("version 2, one request", second_version))
    for transactions in (True, False)
}


def measured(
    kafka: EmbeddedKafka, transactions: int, times: int, say: Callable[[str], None]
) -> dict[Client, list[float]]:
    """By client and whether in transactions: the broker's processor time in ms a transaction, one a
    turn."""
    broker = psutil.Process(kafka.pids()[0])
    found: dict[Client, list[float]] = {one: [] for one in CLIENTS}
    for one, client in CLIENTS.items():
        for records, count in ((WARM_RECORDS, WARM), (RECORDS, transactions)):
            say(
                f"warming up: {one[0]}, {'exactly-once' if one[1] else 'at-least-once'}, {records}"
                " records"
            )
            with client(kafka.bootstrap, records) as send:
                for number in range(count):
                    send(number)
    for turn in range(times):
        # There and back: what comes later has a warmer broker.
        for one in list(CLIENTS)[:: -1 if turn % 2 else 1]:
            with CLIENTS[one](kafka.bootstrap, RECORDS) as send:
                before = sum(broker.cpu_times()[:2])
                for number in range(transactions):
                    send(number)
                    time.sleep(PAUSE_S)
                found[one].append((sum(broker.cpu_times()[:2]) - before) / transactions * 1000)
        say(f"turn {turn + 1} of {times}")
    return found


if __name__ == "__main__":
    main()
