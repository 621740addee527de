"""Fill: integers from 0 on, as text, by an idempotent producer outside any transaction.

Key and value are the integer, unless the scenario makes its own.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from topicproof.backend.errors import ClusterError, TopicError
from topicproof.backend.kafka.client_configs import (
    READ_UNCOMMITTED,
    REQUEST_TIMEOUT_MS,
    idempotent_producer_config,
)
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.reading import read_records

TIMEOUT_S = REQUEST_TIMEOUT_MS / 1000
TICK_S = 0.02
REPORT_EVERY = 5_000


def fill(
    cluster: Cluster,
    topic: str,
    records: int | None,
    rate: float | None = None,
    stopped: Callable[[], bool] = lambda: False,
    on_filled: Callable[[int], None] = lambda _count: None,
    present: Iterable[int] = (),
    value: Callable[[int], bytes] | None = None,
    key: Callable[[int], bytes] | None = None,
) -> int:
    """Append the missing integers of 0..records-1 until `stopped`. `records` None: no upper limit.

    `key` and `value` make a record's key and value; None: the integer as text. `rate` is in records
    per second. `on_filled` receives the number of integers present. `present` are those that an
    earlier, killed fill wrote. Returns the final number. Raises ClusterError if a record was not
    acknowledged.
    """
    numbers_present = set(present)
    numbers: Iterator[int] = iter(range(records)) if records is not None else itertools.count()
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(idempotent_producer_config(cluster.address))
    _connect(producer, topic)
    count, sent, started = len(numbers_present), 0, time.monotonic()
    for number in numbers:
        if number in numbers_present:
            continue
        text = str(number).encode()
        own_key, own_value = (text if make is None else make(number) for make in (key, value))
        _produce(producer, topic, own_key, own_value, delivered)
        count, sent = count + 1, sent + 1
        if rate is not None:
            _wait_for_turn(producer, started + sent / rate, stopped)
        if sent % REPORT_EVERY == 0 or rate is not None:
            on_filled(count)
            if failed or stopped():
                break
    left = producer.flush(TIMEOUT_S * 6)
    producer.close()
    if failed or left:
        why = failed[0].str() if failed else f"{left} were not acknowledged in time"
        raise ClusterError(
            f"Filling {topic} at {cluster.address} failed: {why}. The rest may or may not have been"
            " written."
        )
    on_filled(count)
    return count


def numbers_in(
    cluster: Cluster,
    topic: str,
    number: Callable[[Message], bytes | None] = lambda message: message.key(),
) -> set[int]:
    """Return the integers in a topic that a run filled. `number` gives a message's integer as text.

    Raises TopicError for any other record, RecordTooLarge for one that cannot be read.
    """
    spans = {p.partition: (p.start, p.hw) for p in cluster.bounds(topic).partitions}
    messages = read_records(cluster.address, topic, READ_UNCOMMITTED, spans)
    return {_number(topic, number(message)) for message in messages}


def _connect(producer: Producer, topic: str) -> None:
    """Fetch metadata first: then the producer id takes 0.05 s instead of up to 1 s."""
    try:
        producer.list_topics(topic, timeout=TIMEOUT_S)
    except KafkaException as error:
        raise ClusterError(
            f"Topic {topic} could not be looked up: {error.args[0].str()}."
        ) from error


def _number(topic: str, text: bytes | None) -> int:
    if text is None or not text.isdigit():
        raise TopicError(f"Topic {topic} holds records that no fill writes. Fill another topic.")
    return int(text)


def _produce(
    producer: Producer,
    topic: str,
    key: bytes,
    value: bytes,
    delivered: Callable[[KafkaError | None, Message], None],
) -> None:
    while True:
        try:
            producer.produce(topic, value, key, on_delivery=delivered)
            return
        except BufferError:
            producer.poll(0.05)


def _wait_for_turn(producer: Producer, due: float, stopped: Callable[[], bool]) -> None:
    """Serve delivery reports until `due` (monotonic seconds) or a stop."""
    while (left := due - time.monotonic()) > 0 and not stopped():
        producer.poll(min(left, TICK_S))
