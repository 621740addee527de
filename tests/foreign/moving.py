"""A pair of topics that never rests: one program fills the source at a set rate, and an
exactly-once loop, which does not know Topicproof, copies it into the sink. `python -m
tests.foreign.moving --checks 200` judges the pair meanwhile."""

from __future__ import annotations

import argparse
import collections
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, Producer

from tests.conftest import wait_until
from topicproof.backend.address import Address, Sides
from topicproof.backend.contracts.contract import make_contract
from topicproof.backend.contracts.contract_question import question_of
from topicproof.backend.judging.judge import judge_topics
from topicproof.backend.kafka.client_configs import (
    READ_COMMITTED,
    consumer_config,
    idempotent_producer_config,
    transactional_producer_config,
)
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.services.keeper import services
from topicproof.backend.services.spark_session import spark_session
from topicproof.backend.settings import read_settings
from topicproof.validators.report import Report

PARTITIONS, BATCH, PATIENCE_S, TIMEOUT_S = 2, 100, 0.05, 30


@contextmanager
def moving_pair(cluster: Cluster, rate: int, drop_every: int = 0) -> Iterator[tuple[str, str, str]]:
    """Source, sink and group of two programs at work; both end with the block. Raises what either
    of them raised. `drop_every`: which offsets of the source the loop loses; 0 for none."""
    name = f"moving-{uuid.uuid4().hex[:6]}"
    source, sink, group = f"{name}-in", f"{name}-out", f"{name}-app"
    for topic in (source, sink):
        cluster.create_topic(topic, PARTITIONS)
    over = threading.Event()
    with ExitStack() as stack:
        stack.enter_context(_thread(lambda: _fill(cluster, source, rate, over)))
        stack.enter_context(_thread(lambda: _copy(cluster, source, sink, group, over, drop_every)))
        stack.callback(over.set)
        written = partial(_written, cluster, sink)
        wait_until(written, TIMEOUT_S, f"outputs in every partition of {sink}")
        yield source, sink, group


def judged(cluster: Cluster, remote: str, fields: dict[str, object], folder: Path) -> Report:
    with spark_session(remote) as spark:
        (contract,) = make_contract(fields).each()
        return judge_topics(spark, Sides(cluster.address), question_of(contract, cluster), folder)


def _written(cluster: Cluster, topic: str) -> bool:
    return all(one.hw > 0 for one in cluster.bounds(topic).partitions)


@contextmanager
def _thread(work: Callable[[], None]) -> Iterator[None]:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if failed:
        raise failed[0]


def _fill(cluster: Cluster, source: str, rate: int, over: threading.Event) -> None:
    """A record every 1 / rate s, each with a key of its own."""
    producer = Producer(idempotent_producer_config(cluster.address))
    began, sent = time.monotonic(), 0
    while not over.wait(0.01):
        for number in range(sent, due := int((time.monotonic() - began) * rate)):
            producer.produce(source, str(number).encode(), f"key-{number}".encode())
        sent = due
        producer.poll(0)
    producer.flush()


def _copy(
    cluster: Cluster, source: str, sink: str, group: str, over: threading.Event, drop_every: int
) -> None:
    """Outputs and offsets of each batch in one transaction."""
    consumer = Consumer(
        {
            **consumer_config(cluster.address, group, READ_COMMITTED),
            "auto.offset.reset": "earliest",
        }
    )
    producer = Producer(transactional_producer_config(cluster.address, group))
    producer.init_transactions()
    consumer.subscribe([source])
    while not over.is_set():
        records = [one for one in consumer.consume(BATCH, PATIENCE_S) if one.error() is None]
        if not records:
            continue
        producer.begin_transaction()
        for record in records:
            if not drop_every or (record.offset() or 0) % drop_every:
                producer.produce(sink, record.value(), record.key())
        positions = [one for one in consumer.position(consumer.assignment()) if one.offset >= 0]
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
        producer.commit_transaction()
    consumer.close()


def terms(source: str, sink: str, group: str | None) -> dict[str, object]:
    named: Mapping[str, object] = {} if group is None else {"group": group}
    return {"source": {"topic": source}, "sink": {"topic": sink}, "identity": "key", **named}


def _check(
    cluster: Cluster, remote: str, pair: tuple[str, str, str], number: int, folder: Path
) -> Report:
    """One check, in turn with the pair's group and without; writes its verdict down."""
    source, sink, group = pair
    fields = terms(source, sink, group if number % 2 else None)
    report = judged(cluster, remote, fields, folder)
    how = "with its group" if number % 2 else "without a group"
    sys.stdout.write(f"{number + 1} {how}: {report.verdict}: {report.why}\n")
    sys.stdout.flush()
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checks", type=int, default=200)
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--checks-per-pair", type=int, default=10, help="then a new pair begins")
    given = parser.parse_args()
    verdicts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as home, services(read_settings(home=Path(home))) as up:
        cluster = Cluster(Address(up.bootstrap))
        for first in range(0, given.checks, given.checks_per_pair):
            numbers = range(first, min(first + given.checks_per_pair, given.checks))
            with moving_pair(cluster, given.rate) as pair:
                for number in numbers:
                    report = _check(cluster, up.spark_remote, pair, number, Path(home) / "check")
                    verdicts[report.verdict] += 1
    sys.stdout.write(f"{dict(verdicts)}\n")
    return 1 if verdicts["VIOLATED"] else 0


if __name__ == "__main__":
    sys.exit(main())
