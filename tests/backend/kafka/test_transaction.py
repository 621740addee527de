"""The producer's `with` block on a real Kafka: what a failing transaction is called."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.conftest import wait_until
from tests.runs import read_all
from topicproof.backend.address import Address
from topicproof.backend.errors import Fenced, InjectedError, RecordRefused, UsageError
from topicproof.backend.faults.proxy import How, Proxy, Rule
from topicproof.backend.faults.requests import Api
from topicproof.backend.kafka import transaction
from topicproof.backend.kafka.client_configs import READ_COMMITTED, consumer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.transaction import Record, TransactionalProducer

CLIENT_TAKES_BYTES = 10_000_000
TIMEOUT_S = 60


def test_a_record_refused_while_others_are_queued_is_named(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: the broker refuses a record while the producer is still queueing others. Then the
    client takes no more and reports only an erroneous state; the raised error says that a record
    was refused, and why. The transaction is aborted, and the next producer commits."""
    topic = new_topic()
    refused: Record = (topic, None, os.urandom(2_000_000), [])

    def go_on(producer: TransactionalProducer) -> bool:
        producer.produce([(topic, None, b"behind", [])])
        return False

    def fail(producer: TransactionalProducer) -> None:
        with producer.transaction():
            producer.produce([refused])
            wait_until(lambda: go_on(producer), 10, "that the client takes no more records")

    large = TransactionalProducer(
        Address(bootstrap), f"{topic}-id", message_max_bytes=CLIENT_TAKES_BYTES
    )
    with large as producer, pytest.raises(RecordRefused, match="MSG_SIZE_TOO_LARGE"):
        fail(producer)
    with (
        TransactionalProducer(Address(bootstrap), f"{topic}-id") as producer,
        producer.transaction(),
    ):
        producer.produce([(topic, None, b"after", [])])
    assert [message.value for message in read_all(bootstrap, topic)] == [b"after"]


def test_an_id_that_librdkafka_would_cut_is_refused() -> None:
    """Story: somebody's open transaction of `payments\\0x` blocks a topic, and an operator aborts
    it. The client would take over `payments`, and abort the transaction of an innocent program."""
    with pytest.raises(UsageError, match=r"payments\\x00x' has a NUL.* another program's id"):
        TransactionalProducer(Address("127.0.0.1:1"), "payments\0x")


@pytest.mark.parametrize("request_kind", [Api.END_TXN, Api.TXN_OFFSET_COMMIT])
@pytest.mark.parametrize("defended", [True, False])
def test_a_new_epoch_refuses_what_arrives_late(
    bootstrap: str, new_topic: Callable[..., str], request_kind: Api, defended: bool
) -> None:
    """Story (KAFKA-17754): the connection breaks under the commit of "a" or under its offset, and
    the client repeats the request. The first copy arrives when "b" and its offset have been sent.
    A late commit ends the transaction of "b" without its offset, and the abort is in vain; a late
    offset takes the place of the offset of "b". With an epoch of its own "b" is safe."""
    topic, source = new_topic(), new_topic()
    consumer = Consumer(consumer_config(Address(bootstrap), f"{topic}-group", READ_COMMITTED))
    group = consumer.consumer_group_metadata()
    with (
        Proxy(bootstrap) as proxy,
        TransactionalProducer(Address(proxy.bootstrap), topic) as producer,
    ):
        rule = proxy.arm(Rule(request_kind, How.GHOST, seconds=TIMEOUT_S))
        with producer.transaction():
            producer.produce([(topic, None, b"a", [])])
            producer.send_offset(TopicPartition(source, 0, 1), group)
        assert rule.struck == 1
        if defended:
            assert producer.renew_if_unsure()
            assert not producer.renew_if_unsure()
        # The late commit has ended the transaction that is to be aborted: fatal to the client.
        with suppress(InjectedError, KafkaException), producer.transaction():
            producer.produce([(topic, None, b"b", [])])
            producer.send_offset(TopicPartition(source, 0, 2), group)
            rule.released.set()
            wait_until(lambda: rule.settled == 1, TIMEOUT_S, "the late request's arrival")
            if request_kind is Api.END_TXN:
                raise InjectedError("aborted")
    consumer.close()
    seen = b"".join(message.value or b"" for message in read_all(bootstrap, topic, READ_COMMITTED))
    offset = Cluster(Address(bootstrap)).committed(f"{topic}-group", source)[0]
    assert (seen, offset) == {
        (Api.END_TXN, True): (b"a", 1),
        (Api.END_TXN, False): (b"ab", 1),
        (Api.TXN_OFFSET_COMMIT, True): (b"ab", 2),
        (Api.TXN_OFFSET_COMMIT, False): (b"ab", 1),
    }[request_kind, defended]


def test_a_fatal_error_before_log_lines_is_still_named(
    bootstrap: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: another producer takes the id over while a record is queued. The client has the fatal
    error and a log line to deliver, in one flush. The error raised is that of a fenced producer,
    and closing it is quiet."""
    topic = new_topic()
    consumer = Consumer(consumer_config(Address(bootstrap), f"{topic}-group", READ_COMMITTED))
    offset = [TopicPartition(topic, 0, 1)], consumer.consumer_group_metadata(), TIMEOUT_S

    def be_fenced(fenced: TransactionalProducer) -> None:
        with fenced.transaction():
            with TransactionalProducer(Address(bootstrap), topic):
                pass
            fenced.produce([(topic, None, b"queued", [])])
            with pytest.raises(KafkaException, match="_FENCED"):
                fenced.producer.send_offsets_to_transaction(*offset)
            fenced.flush()

    # With a longer flush and more log lines the error is never the last event.
    monkeypatch.setattr(transaction, "LOOK_S", 1.0)
    fenced = TransactionalProducer(Address(bootstrap, {"debug": "all"}), topic)
    with fenced, pytest.raises(Fenced, match="was taken over by another producer") as raised:
        be_fenced(fenced)
    causes = [raised.value.__cause__, getattr(raised.value.__cause__, "__cause__", None)]
    assert [type(cause) for cause in causes] == [KafkaException, SystemError]
