"""Real topics written as a line of text, and what consumers say about them: the slow witness of the
quick readers.

`A3` writes three records in a transaction of producer A (begun when needed), `A+` commits it, `A-`
aborts it, `n2` writes two records outside of any transaction. A transaction that the line does not
end stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from kafka import KafkaProducer

from tests.conftest import wait_until
from topicproof.backend.address import Address
from topicproof.backend.kafka.client_configs import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    admin_config,
    consumer_config,
    idempotent_producer_config,
    transactional_producer_config,
)
from topicproof.backend.kafka.log.rawlog import Connection, connect
from topicproof.backend.kafka.look import LookBudget
from topicproof.validators.finding import Bounds

FATE_LETTERS = {
    "C": "COMMITTED",
    "A": "ABORTED",
    "P": "PENDING",
    "M": "MARKER",
    "G": "GONE",
    "U": "UNEXPLAINED",
}
"""A letter for each fate, in the order of the balance."""


Answer = TypeVar("Answer")
Given = ParamSpec("Given")


def ask(
    address: Address,
    question: Callable[Concatenate[Connection, Given], Answer],
    *args: Given.args,
    **kwargs: Given.kwargs,
) -> Answer:
    """The cluster's answer to a request, over a separate connection."""
    with connect(address) as kafka:
        return question(kafka, *args, **kwargs)


def look(address: Address, reader: Callable[..., Answer], *args: Any, **kwargs: Any) -> Answer:
    """What a reader takes in with a budget of its own, over a separate connection."""
    with connect(address) as kafka:
        return reader(kafka, *args, budget=LookBudget(), **kwargs)


class _Name(str):
    """A header's name, which kafka-python then writes as these bytes."""

    written: bytes

    def encode(self, *_args: object, **_more: object) -> bytes:
        return self.written


def write_headers(bootstrap: str, topic: str, names: Sequence[bytes]) -> None:
    """A record for each name, with a header of that name: any bytes, as clients in C and Go may
    write it."""
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for name in names:
        given = _Name("x" * len(name))
        given.written = name
        producer.send(topic, b"value", headers=[(given, b"1")])
    producer.flush(30)
    producer.close()


@dataclass
class Writer:
    """Writes lines to one topic. Its producers live on between lines, and so do their open
    transactions."""

    bootstrap: str
    topic: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Producer settings, such as a compression."""
    value: bytes = b"value of some length, value of some length"
    headers: dict[str, bytes] | list[tuple[str, bytes]] = field(default_factory=dict)
    client: Mapping[str, str] = field(default_factory=dict)
    """Properties that open the cluster."""
    producers: dict[str, Producer] = field(default_factory=dict)
    under_way: dict[str, set[int]] = field(default_factory=dict)
    """The partitions that each open transaction has written to."""

    def __post_init__(self) -> None:
        self._asker = Consumer(
            consumer_config(
                Address(self.bootstrap, self.client), f"{self.topic}-writer", READ_UNCOMMITTED
            )
        )

    def write(self, line: str, partition: int = 0) -> None:
        for token in line.split():
            self._write(token[0], token[1:], partition)

    def transactional_id(self, who: str) -> str:
        return f"{self.topic}-{who}"

    def _write(self, who: str, what: str, partition: int) -> None:
        producer = self._producer(who)
        if what in "+-":
            before = {touched: self._end(touched) for touched in self.under_way.pop(who, ())}
            (producer.commit_transaction if what == "+" else producer.abort_transaction)()
            # The broker answers when the outcome is decided; the markers are written a moment
            # later.
            wait_until(
                lambda: all(self._end(p) > end for p, end in before.items()),
                10,
                f"the marker of {who}",
            )
            return
        if who != "n":
            if who not in self.under_way:
                producer.begin_transaction()
            self.under_way.setdefault(who, set()).add(partition)
        for number in range(int(what)):
            producer.produce(
                self.topic,
                self.value,
                key=f"{who}{number}",
                partition=partition,
                headers=self.headers,  # type: ignore[arg-type]
            )
        # An abort would purge what was not sent yet, and the order of the line is the order of the
        # log.
        producer.flush()

    def _end(self, partition: int) -> int:
        watermarks = self._asker.get_watermark_offsets(
            TopicPartition(self.topic, partition), timeout=10
        )
        assert watermarks is not None, f"no answer about {self.topic}"
        return watermarks[1]

    def _producer(self, who: str) -> Producer:
        if who not in self.producers:
            config = (
                idempotent_producer_config(Address(self.bootstrap, self.client))
                if who == "n"
                else transactional_producer_config(
                    Address(self.bootstrap, self.client), self.transactional_id(who)
                )
            )
            self.producers[who] = Producer({**config, **self.options})
            if who != "n":
                self.producers[who].list_topics()
                self.producers[who].init_transactions()
        return self.producers[who]


def delivered(
    bootstrap: str, bounds: Bounds, isolation: str
) -> dict[tuple[int, int], bytes | None]:
    """Every record from the starts on that a consumer at this level gets until nothing is left:
    place and value."""
    consumer = Consumer(consumer_config(Address(bootstrap), f"{bounds.topic}-oracle", isolation))
    consumer.assign([TopicPartition(bounds.topic, p.partition, p.start) for p in bounds.partitions])
    found: dict[tuple[int, int], bytes | None] = {}
    at_end: set[int] = set()

    def read_on() -> bool:
        for message in consumer.consume(1_000, timeout=0.1):
            error = message.error()
            if error is None:
                found[(message.partition() or 0, message.offset() or 0)] = message.value()
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition() or 0)
            else:
                raise AssertionError(error)
        return len(at_end) == len(bounds.partitions)

    wait_until(read_on, 20, f"the end of {bounds.topic} at {isolation}")
    consumer.close()
    return found


def fates_by_consumers(bootstrap: str, bounds: Bounds) -> dict[tuple[int, int], str]:
    """The fate of every offset as two consumers show it; NO_RECORD where neither got anything."""
    committed = delivered(bootstrap, bounds, READ_COMMITTED)
    uncommitted = delivered(bootstrap, bounds, READ_UNCOMMITTED)
    found = {}
    for p in bounds.partitions:
        for offset in range(p.start, p.hw):
            place = (p.partition, offset)
            found[place] = (
                "PENDING"
                if offset >= p.lso
                else "COMMITTED"
                if place in committed
                else "ABORTED"
                if place in uncommitted
                else "NO_RECORD"
            )
    return found


def delete_below(bootstrap: str, topic: str, offset: int, partition: int = 0) -> None:
    """Move the log start, as an operator or retention would."""
    admin = AdminClient(admin_config(Address(bootstrap)))
    for future in admin.delete_records([TopicPartition(topic, partition, offset)]).values():
        future.result()


@contextmanager
def broker_setting(bootstrap: str, name: str, value: str) -> Iterator[None]:
    """All brokers with one setting changed while they run, and then restored."""
    admin = AdminClient(admin_config(Address(bootstrap)))

    def change(operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        for broker in admin.list_topics(timeout=10).brokers:
            resource = ConfigResource(
                ConfigResource.Type.BROKER, str(broker), incremental_configs=[entry]
            )
            for future in admin.incremental_alter_configs([resource]).values():
                future.result()

    change(AlterConfigOpType.SET)
    try:
        yield
    finally:
        change(AlterConfigOpType.DELETE)


def model(tokens: Sequence[str], lso: int) -> list[str]:
    """The fate of every offset as a letter, found slowly: each one looks ahead for its producer's
    marker."""
    offsets: list[str] = []
    for token in tokens:
        who, what = token[0], token[1:]
        offsets += [token] if what in "+-" else [who] * int(what)
    answer = []
    for offset, what in enumerate(offsets):
        if offset >= lso:
            answer.append("P")
        elif what == ".":
            answer.append("G")
        elif what == "n":
            answer.append("C")
        elif len(what) == 2:
            answer.append("M")
        else:
            marker = next(
                (other for other in offsets[offset:] if len(other) == 2 and other[0] == what), None
            )
            answer.append("U" if marker is None else "C" if marker[1] == "+" else "A")
    return answer
