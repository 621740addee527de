"""Every transaction of a cluster that other tests use too: so each test looks for its own."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from kafka import TopicPartition

from tests.backend.kafka.hanging import hang
from tests.backend.kafka.topics import Writer, ask
from tests.test_cli import call
from topicproof.backend.address import Address
from topicproof.backend.kafka.coordination.coordinator import open_producers
from topicproof.backend.kafka.coordination.transactions import cluster_transactions

NewTopic = Callable[..., str]


def test_open_and_hanging_transactions_are_found_on_any_topic(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """One topic has an open transaction on two partitions, one a hanging one, one neither. Each is
    reported correctly."""
    opened, hung, sound = new_topic(partitions=2), new_topic(), new_topic()
    writer = Writer(bootstrap, opened)
    writer.write("A2")
    writer.write("A1", partition=1)
    Writer(bootstrap, sound).write("B1 B+")
    producer_id = hang(bootstrap, hung)
    view = cluster_transactions(Address(bootstrap))
    assert [(each.partition, each.name, each.hanging) for each in view.open[opened]] == [
        (partition, writer.transactional_id("A"), False) for partition in (0, 1)
    ]
    assert [(each.producer_id, each.hanging) for each in view.open[hung]] == [(producer_id, True)]
    assert sound not in view.open
    places = {TopicPartition(topic, 0) for topic in (hung, sound)}
    assert set(ask(Address(bootstrap), open_producers, places.__contains__)) == {hung}
    ids = {each.transactional_id: each for each in view.ids}
    assert ids[writer.transactional_id("A")].partitions == ((opened, 0), (opened, 1))
    assert ids[f"{sound}-B"].state == "CompleteCommit" and ids[f"{sound}-B"].age_ms is None
    # librdkafka keeps its epoch from transaction to transaction.
    assert ids[f"{sound}-B"].exposed and "exposed to KAFKA-17754" in view.protocols
    ages = [each.age_ms for each in view.ids if each.age_ms is not None]
    assert ages == sorted(ages, reverse=True)


def test_the_command_says_it_in_words_and_in_json(
    bootstrap: str, new_topic: NewTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator does not know which topic is stuck. The command names it, and how to see what an
    abort would lose."""
    topic = new_topic()
    Writer(bootstrap, topic).write("A1 A-")
    hang(bootstrap, topic)
    assert call("transactions", "--bootstrap", bootstrap) == 0
    told = capsys.readouterr().out
    assert f"Open on {topic}" in told and "Transactional ids: " in told and "Ended last" in told
    assert f"topicproof abort {topic} 0 2" in " ".join(told.split())
    assert call("transactions", "--bootstrap", bootstrap, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    (found,) = [each for each in answer["open"] if each["topic"] == topic]
    assert found["hanging"] and found["why"].startswith("Hanging: ")
    (ended,) = [each for each in answer["ended"] if each["partitions"] == [[topic, 0]]]
    assert (ended["outcome"], ended["reason"]) == ("aborted", "declared")
