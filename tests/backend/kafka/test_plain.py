"""The producer without transactions, on a real Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable

from confluent_kafka import Producer

from tests.conftest import wait_until
from topicproof.backend.address import Address
from topicproof.backend.kafka.plain_producer import PlainProducer

PRODUCERS = 80
"""Of those that ask for metadata only once, one in five to seventeen is late."""


def test_no_plain_producer_waits_half_a_second_for_its_id(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Story: an at-least-once producer starts again in every batch. An idempotent client sends
    nothing until it has a producer id; one that has found no broker to ask says that it waits for
    its transport, and looks again after half a second. By the client's own statistics, none of many
    new ones is in that state once it may be used."""
    # A broker that has just started has no ids to give yet.
    with PlainProducer(Address(bootstrap), idempotence=True, acks="all") as first:
        first.produce([(new_topic(), None, b"first", [])])
        first.flush()
    states = [_state_of_a_new_one(bootstrap) for _ in range(PRODUCERS)]
    assert {*states} <= {"WaitPID", "Assigned"}


def _state_of_a_new_one(bootstrap: str) -> str:
    statistics: list[str] = []
    plain = PlainProducer(Address(bootstrap), idempotence=True, acks="all")
    plain.producer = Producer(
        {**plain.config, "statistics.interval.ms": 1, "stats_cb": statistics.append}
    )
    with plain:
        # What it reported while it was entered is delivered only now, and forgotten.
        plain.producer.poll(0)
        statistics.clear()
        wait_until(
            lambda: plain.producer.poll(0.01) >= 0 and bool(statistics),
            10,
            "the client's statistics",
        )
    return str(json.loads(statistics[0])["eos"]["idemp_state"])
