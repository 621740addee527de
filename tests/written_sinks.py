"""Sinks written by plain transactional producers with lineage: a healthy one and a broken one."""

from __future__ import annotations

from dataclasses import dataclass, field

from confluent_kafka import Producer

from topicproof.backend.address import Address
from topicproof.backend.kafka.client_configs import transactional_producer_config
from topicproof.validators.lineage.headers import (
    LINEAGE_HEADER,
    TRANSACTION_HEADER,
    Transaction,
    format_transaction,
)

Place = tuple[int, int]
"""Partition and offset of an input."""


@dataclass
class Sink:
    """Partition 0 of a sink. What is written to it lies there in this order."""

    bootstrap: str
    topic: str
    source: str
    producers: dict[str, Producer] = field(default_factory=dict)
    sequences: dict[str, int] = field(default_factory=dict)

    def begin(self, who: str) -> None:
        if who not in self.producers:
            config = transactional_producer_config(Address(self.bootstrap), f"{self.topic}-{who}")
            self.producers[who] = Producer(config)
            self.producers[who].list_topics()
            self.producers[who].init_transactions(10)
        self.producers[who].begin_transaction()
        self.sequences[who] = self.sequences.get(who, 0) + 1

    def write(
        self, who: str, places: list[Place], first: int = 0, end: int | None = None, total: int = 4
    ) -> None:
        """The outputs of these inputs in [first, end)."""
        transaction = format_transaction(Transaction(who, self.sequences[who], 1, "task", total))
        for n, (partition, offset) in list(enumerate(places))[first:end]:
            lineage = f"{self.source}/{partition}/{offset}/0".encode()
            headers = [(LINEAGE_HEADER, lineage), (TRANSACTION_HEADER, transaction)]
            key, value = b"%d-%d" % (partition, offset), b"said-%d" % offset
            self.producers[who].produce(
                self.topic, value, key, partition=0, headers=[*headers, ("own", b"%d" % n)]
            )
        self.producers[who].flush()

    def end(self, who: str, commit: bool = True) -> None:
        (
            self.producers[who].commit_transaction
            if commit
            else self.producers[who].abort_transaction
        )(10)


def write_healthy(bootstrap: str, topic: str, source: str) -> None:
    """From two partitions with inputs 0 to 7: each once and in order, by two producers who take
    turns; the second half of one is aborted once before."""
    sink = Sink(bootstrap, topic, source)
    halves = [
        [(partition, offset) for offset in range(first, first + 4)]
        for first in (0, 4)
        for partition in (0, 1)
    ]
    for turns in (halves[:2], halves[2:3], halves[2:]):
        who = [("a", "b")[pack[0][0]] for pack in turns]
        for one in who:
            sink.begin(one)
        for first, end in ((0, 1), (1, 3), (3, 4)):
            for one, pack in zip(who, turns, strict=True):
                sink.write(one, pack, first, end)
        for one in who:
            sink.end(one, commit=len(who) == 2)
    for producer in sink.producers.values():
        producer.close()


def write_broken(bootstrap: str, topic: str, source: str) -> None:
    """From two partitions with inputs 0 to 7: a duplicate (5 of partition 0), a gap (6), an
    inversion (5 of partition 1); in between two producers take turns, and one transaction is
    aborted."""
    sink = Sink(bootstrap, topic, source)
    firsts = {
        who: [(partition, offset) for offset in range(4)] for who, partition in (("a", 0), ("b", 1))
    }
    for who in firsts:
        sink.begin(who)
    for first in (0, 1, 3):
        for who, pack in firsts.items():
            sink.write(who, pack, first, {0: 1, 1: 3, 3: 4}[first])
    for who in firsts:
        sink.end(who)
    sink.begin("a")
    sink.write("a", [(0, 4), (0, 5), (0, 6)], total=3)
    sink.end("a", commit=False)
    sink.begin("a")
    sink.begin("b")
    sink.write("a", [(0, 4), (0, 5)])
    sink.write("b", [(1, 4), (1, 6), (1, 5), (1, 7)], 0, 2)
    sink.write("a", [(0, 5), (0, 7)])
    sink.write("b", [(1, 4), (1, 6), (1, 5), (1, 7)], 2)
    sink.end("a")
    sink.end("b")
    for producer in sink.producers.values():
        producer.close()
