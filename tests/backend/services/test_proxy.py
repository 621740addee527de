"""The proxy: clients stay on it, and each way of hurting a request does to a topic what it does in
a real network."""

from __future__ import annotations

import gc
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.conftest import wait_until
from tests.runs import read_all
from topicproof.backend.address import Address
from topicproof.backend.faults.proxy import IN_NEXT, How, Proxy, Rule
from topicproof.backend.faults.requests import Api
from topicproof.backend.kafka.client_configs import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    admin_config,
    consumer_config,
    plain_producer_config,
    transactional_producer_config,
)
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.log.rawlog import fetch_bounds
from topicproof.backend.kafka.transaction import TransactionalProducer
from topicproof.backend.services.local_servers import HOST

TIMEOUT_S = 20
NewTopic = Callable[..., str]


@pytest.fixture
def proxy(bootstrap: str) -> Iterator[Proxy]:
    with Proxy(bootstrap) as made:
        yield made


def plain(proxy: Proxy, topic: str, **options: Any) -> Producer:
    producer = Producer({**plain_producer_config(Address(proxy.bootstrap), True, "all"), **options})
    producer.list_topics(topic, timeout=TIMEOUT_S)
    return producer


def send(producer: Producer, topic: str, values: str) -> None:
    """Produce each letter, and wait until all are acknowledged."""
    for value in values:
        producer.produce(topic, value)
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0


@pytest.mark.parametrize(
    "sent", [b"\0\0\0\2ab", b"\0\0\0\6abcdef", b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff"]
)
def test_bytes_of_a_stranger_end_their_connection_alone(
    proxy: Proxy, new_topic: NewTopic, bootstrap: str, sent: bytes
) -> None:
    """Story: another user of the machine connects to the proxy's port. The run does not end."""
    host, port = proxy.bootstrap.split(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as stranger:
        stranger.sendall(sent)
        assert stranger.recv(1) == b""
    topic = new_topic()
    send(plain(proxy, topic), topic, "a")
    assert letters(bootstrap, topic) == "a" and proxy.failure is None


def letters(bootstrap: str, topic: str, isolation: str = READ_UNCOMMITTED) -> str:
    return "".join(
        (message.value or b"").decode() for message in read_all(bootstrap, topic, isolation)
    )


def transactional(proxy: Proxy, topic: str, timeout_ms: int = 60_000) -> Producer:
    producer = Producer(
        transactional_producer_config(Address(proxy.bootstrap), f"{topic}-id", timeout_ms)
    )
    producer.list_topics(topic, timeout=TIMEOUT_S)
    producer.init_transactions(TIMEOUT_S)
    return producer


def test_a_client_stays_on_the_proxy(proxy: Proxy, bootstrap: str, new_topic: NewTopic) -> None:
    """Story: a client asks for the brokers and for its coordinator. It only ever gets addresses of
    the proxy."""
    topic = new_topic()
    ours = {int(address.rpartition(":")[2]) for address in proxy.bootstrap.split(",")}
    found = AdminClient(admin_config(Address(proxy.bootstrap))).list_topics(timeout=TIMEOUT_S)
    assert {f"{broker.host}:{broker.port}" for broker in found.brokers.values()} == {
        f"{HOST}:{port}" for port in ours
    }
    producer = transactional(proxy, topic)
    producer.begin_transaction()
    send(producer, topic, "a")
    proxy.isolate()
    # With a second way to its coordinator the commit would get through.
    with pytest.raises(KafkaException):
        producer.commit_transaction(1)
    assert (
        letters(bootstrap, topic) == "a"
        and fetch_bounds(Address(bootstrap), topic).partitions[0].lso == 0
    )
    proxy.heal()
    producer.commit_transaction(TIMEOUT_S)
    assert letters(bootstrap, topic, READ_COMMITTED) == "a"


@pytest.mark.parametrize(("idempotence", "left"), [(False, "aa"), (True, "a")])
def test_a_lost_acknowledgement_repeats_a_record_unless_idempotent(
    proxy: Proxy, bootstrap: str, new_topic: NewTopic, idempotence: bool, left: str
) -> None:
    """Story: a Produce arrives and its answer does not. The producer sends it again; only
    idempotence notices."""
    topic = new_topic()
    rule = proxy.arm(Rule(Api.PRODUCE, How.UNANSWERED, topic=topic))
    send(plain(proxy, topic, **{"enable.idempotence": idempotence}), topic, "a")
    assert (rule.struck, letters(bootstrap, topic)) == (1, left)


def test_a_lost_request_is_sent_again_and_nothing_is_repeated(
    proxy: Proxy, bootstrap: str, new_topic: NewTopic
) -> None:
    """Story: a Produce never arrives, twice; other topics are not hurt. The third one is the first
    in the log."""
    topic, other = new_topic(), new_topic()
    rule = proxy.arm(Rule(Api.PRODUCE, How.LOST, times=2, topic=topic))
    producer = plain(proxy, topic, **{"enable.idempotence": False})
    send(producer, other, "b")
    assert rule.struck == 0
    send(producer, topic, "a")
    assert (rule.struck, letters(bootstrap, topic), letters(bootstrap, other)) == (2, "a", "b")


@pytest.mark.parametrize(("idempotence", "left"), [(False, "0ba"), (True, "0ab")])
def test_an_overtaken_request_breaks_the_order_unless_idempotent(
    proxy: Proxy, bootstrap: str, new_topic: NewTopic, idempotence: bool, left: str
) -> None:
    """Story: of two requests in flight the first is delayed until the second is answered.
    Idempotence tells the broker to refuse what comes too early, and the producer to send it
    again."""
    topic = new_topic()
    producer = plain(proxy, topic, **{"enable.idempotence": idempotence, "batch.num.messages": 1})
    send(producer, topic, "0")
    rule = proxy.arm(Rule(Api.PRODUCE, How.OVERTAKEN, topic=topic, seconds=TIMEOUT_S))
    send(producer, topic, "ab")
    assert (rule.struck, letters(bootstrap, topic)) == (1, left)


def test_it_leaves_no_connection_behind(bootstrap: str, new_topic: NewTopic) -> None:
    """Story: the proxy ends while one client reads no more and another one was accepted a moment
    ago."""
    topic = new_topic()
    with Proxy(bootstrap) as proxy:
        producer = plain(proxy, topic)
        address = HOST, int(proxy.bootstrap.rpartition(":")[2])
        deaf = socket.create_connection(address, timeout=0.5)
        # An old client's question for all versions of all requests, more often than its answers
        # find room.
        with pytest.raises(TimeoutError):
            deaf.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1) * 1_000_000)
        proxy.isolate()
        late = socket.create_connection(address)
    # A connection that the system accepted and the proxy did not yet is reset, not ended.
    with deaf, late, suppress(ConnectionResetError):
        assert late.recv(1) == b""
    del producer
    # A connection that nobody closed warns when it is collected.
    gc.collect()


def test_a_transaction_goes_on_when_its_connection_breaks(
    proxy: Proxy, bootstrap: str, new_topic: NewTopic
) -> None:
    """Story: the connection to the only broker breaks under a Produce, and the next source offset
    is handed over before it is back. A client that then forgets its brokers would wait
    endlessly."""
    topic, source = new_topic(), new_topic()
    consumer = Consumer(consumer_config(Address(proxy.bootstrap), f"{topic}-group", READ_COMMITTED))
    with TransactionalProducer(Address(proxy.bootstrap), f"{topic}-id") as producer:
        for offset, value in enumerate("ab", start=1):
            rule = proxy.arm(Rule(Api.PRODUCE, How.LOST, times=offset - 1, topic=topic))
            with producer.transaction():
                producer.produce([(topic, None, value.encode(), [])])
                producer.send_offset(
                    TopicPartition(source, 0, offset), consumer.consumer_group_metadata()
                )
    consumer.close()
    assert (rule.struck, letters(bootstrap, topic, READ_COMMITTED)) == (1, "ab")
    assert Cluster(Address(bootstrap)).committed(f"{topic}-group", source) == {0: 2}


def test_a_late_commit_is_late_and_nothing_else(
    proxy: Proxy, bootstrap: str, new_topic: NewTopic
) -> None:
    """Story: the request that ends a transaction is delayed. Until it arrives nobody sees the
    record; then all do."""
    topic = new_topic()
    producer = transactional(proxy, topic)
    producer.begin_transaction()
    send(producer, topic, "a")
    rule = proxy.arm(Rule(Api.END_TXN, How.LATE, seconds=TIMEOUT_S))
    with ThreadPoolExecutor(1) as pool:
        committing = pool.submit(producer.commit_transaction, TIMEOUT_S)
        wait_until(lambda: rule.struck == 1, TIMEOUT_S, "the commit on its way")
        assert fetch_bounds(Address(bootstrap), topic).partitions[0].lso == 0
        rule.released.set()
        committing.result()
    assert letters(bootstrap, topic, READ_COMMITTED) == "a"


REPEATED = {
    # What read_committed shows while the second transaction is open, and the offset after it.
    Api.END_TXN: ("ab", 2),
    Api.ADD_PARTITIONS_TO_TXN: ("a", 2),
    Api.TXN_OFFSET_COMMIT: ("a", 1),
    Api.PRODUCE: ("a", 2),
}


@pytest.mark.parametrize("new_epoch", [False, True])
@pytest.mark.parametrize("api", REPEATED)
def test_a_ghost_arrives_in_the_next_transaction(
    proxy: Proxy, bootstrap: str, new_topic: NewTopic, api: Api, new_epoch: bool
) -> None:
    """Story (KAFKA-17754): a request of the first transaction is delayed, its producer repeats it
    and continues. The first copy arrives in the second transaction. A late commit ends it, a late
    offset replaces the newer one, and a late batch is dropped by its sequence. A new epoch makes
    the broker refuse all of them."""
    topic, source, said = new_topic(), new_topic(), list[str]()
    visible, offset = ("a", 2) if new_epoch else REPEATED[api]
    consumer = Consumer(consumer_config(Address(proxy.bootstrap), f"{topic}-group", READ_COMMITTED))
    group = consumer.consumer_group_metadata()
    producer = transactional(proxy, topic)
    rule = proxy.arm(Rule(api, How.GHOST, seconds=TIMEOUT_S, arrived=said.append))
    producer.begin_transaction()
    send(producer, topic, "a")
    producer.send_offsets_to_transaction([TopicPartition(source, 0, 1)], group, TIMEOUT_S)
    producer.commit_transaction(TIMEOUT_S)
    assert (rule.struck, rule.settled) == (1, 0)
    if new_epoch:
        producer = transactional(proxy, topic)
    producer.begin_transaction()
    send(producer, topic, "b")
    wait_until(
        lambda: letters(bootstrap, topic, READ_COMMITTED) == visible,
        TIMEOUT_S,
        "what a reader sees meanwhile",
    )
    producer.send_offsets_to_transaction([TopicPartition(source, 0, 2)], group, TIMEOUT_S)
    assert said == [f"{IN_NEXT}: {'INVALID_PRODUCER_EPOCH' if new_epoch else 'NO_ERROR'}"]
    producer.commit_transaction(TIMEOUT_S)
    consumer.close()
    assert letters(bootstrap, topic, READ_UNCOMMITTED) == "ab"
    wait_until(
        lambda: Cluster(Address(bootstrap)).committed(f"{topic}-group", source) == {0: offset},
        TIMEOUT_S,
        f"the group's offset {offset}",
    )


def test_a_ghost_of_an_abort_aborts_the_next_attempt(
    proxy: Proxy, bootstrap: str, new_topic: NewTopic
) -> None:
    """Story: commits pass, an abort is delayed and repeated. Its first copy aborts the attempt
    after it."""
    topic = new_topic()
    producer = transactional(proxy, topic)
    rule = proxy.arm(Rule(Api.END_TXN, How.GHOST, seconds=TIMEOUT_S, aborts=True))
    for end in (producer.commit_transaction, producer.abort_transaction):
        assert rule.struck == 0
        producer.begin_transaction()
        send(producer, topic, "a")
        end(TIMEOUT_S)
    producer.begin_transaction()
    send(producer, topic, "b")
    assert (rule.struck, rule.settled) == (1, 1)
    wait_until(
        lambda: fetch_bounds(Address(bootstrap), topic).partitions[0].lso == 6,
        TIMEOUT_S,
        "the abort",
    )
    assert letters(bootstrap, topic, READ_COMMITTED) == "a"


@pytest.mark.parametrize(
    ("acks", "before", "answer", "after"),
    [("all", "a", "NO_ERROR", "aa"), ("0", "", "no answer", "a")],
)
def test_a_ghost_without_a_next_transaction_arrives_when_the_proxy_heals(
    proxy: Proxy,
    bootstrap: str,
    new_topic: NewTopic,
    acks: str,
    before: str,
    answer: str,
    after: str,
) -> None:
    """Story: another producer's writes do not concern the ghost of a plain producer's batch. It
    arrives at the end. It is a repetition where the producer awaits answers."""
    topic, other, said = new_topic(), new_topic(), list[str]()
    rule = proxy.arm(
        Rule(Api.PRODUCE, How.GHOST, topic=topic, seconds=TIMEOUT_S, arrived=said.append)
    )
    producer = plain(proxy, topic, **{"enable.idempotence": False, "acks": acks})
    send(producer, topic, "a")
    wait_until(lambda: rule.struck == 1, TIMEOUT_S, "the strike")
    send(plain(proxy, other), other, "b")
    assert (rule.settled, letters(bootstrap, topic)) == (0, before)
    proxy.heal()
    assert said == [f"at the end of its time: {answer}"]
    wait_until(lambda: letters(bootstrap, topic) == after, TIMEOUT_S, "the late batch")


def test_who_is_isolated_for_longer_than_a_transaction_may_last_is_fenced(
    proxy: Proxy, bootstrap: str, new_topic: NewTopic
) -> None:
    """Story: a producer is cut off from the brokers until they have aborted its transaction. Then
    it cannot commit."""
    topic = new_topic()
    producer = transactional(proxy, topic, timeout_ms=1_000)
    producer.begin_transaction()
    send(producer, topic, "a")
    proxy.isolate()
    wait_until(
        lambda: fetch_bounds(Address(bootstrap), topic).partitions[0].lso > 0,
        60,
        "the coordinator's abort",
    )
    proxy.heal()
    with pytest.raises(KafkaException):
        producer.commit_transaction(TIMEOUT_S)
    assert letters(bootstrap, topic, READ_COMMITTED) == ""
