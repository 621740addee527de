"""What pages keep of topics: a bounded number of batches, however small and many these are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.backend.kafka.topics import Writer
from topicproof.app.topic import snapshot
from topicproof.app.topic.snapshot import Watches
from topicproof.backend.address import Address
from topicproof.backend.errors import TopicError

NewTopic = Callable[..., str]


def test_topics_looked_at_longest_ago_make_room(bootstrap: str, new_topic: NewTopic) -> None:
    """Story: somebody writes transactions of one record each, 156 bytes of log with the marker.
    Pages keep 800 bytes for each of these batches, so they keep a bounded number together."""
    address = Address(bootstrap)
    topics = [new_topic(), new_topic(), new_topic()]
    for topic in topics:
        Writer(bootstrap, topic).write("A1 A+")
    watches = Watches(batches_max=5)
    first, second = (watches.get(address, topic, age_max_s=60) for topic in topics[:2])
    assert (first.batches.num_rows, second.batches.num_rows) == (2, 2)
    assert watches.get(address, topics[0], age_max_s=60) is first, "both have room"
    watches.get(address, topics[2], age_max_s=60)
    assert watches.get(address, topics[0], age_max_s=60) is first, "it was looked at since"
    assert watches.get(address, topics[1], age_max_s=60) is not second, "it made room"


def test_a_log_of_too_many_batches_is_not_shown(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: a topic of 20 million batches would take 15 GB of the dashboard. The sentence names
    the commands that still examine it, also for a topic that has grown since it was shown."""
    address, topic = Address(bootstrap), new_topic()
    monkeypatch.setattr(snapshot, "BATCHES_MAX", 3)
    watches, writer = Watches(), Writer(bootstrap, topic)
    writer.write("A1 A+")
    assert watches.get(address, topic, age_max_s=0).batches.num_rows == 2
    writer.write("A1 A+")
    with pytest.raises(TopicError, match=r"more than 3 batches .* `topicproof check` examine"):
        watches.get(address, topic, age_max_s=0)
