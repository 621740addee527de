"""A topic at a glance, on real topics."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka.errors import ClusterAuthorizationFailedError

from tests.backend.kafka.hanging import hang
from tests.backend.kafka.topics import Writer
from topicproof.backend.address import Address
from topicproof.backend.commands.show_topic import print_topic
from topicproof.backend.commands.terminal import Terminal
from topicproof.backend.errors import TopicError
from topicproof.backend.kafka.browse import inspect as inspection
from topicproof.backend.kafka.browse.inspect import inspect_topic
from topicproof.backend.kafka.client_configs import READ_COMMITTED, consumer_config
from topicproof.validators.finding import Fate

NewTopic = Callable[..., str]


def test_a_topic_is_shown_with_all_that_stands_in_its_way(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """Two partitions, a commit, an abort, plain records, an open transaction and a group. One look
    shows them all."""
    topic = new_topic(partitions=2)
    writer = Writer(bootstrap, topic)
    writer.write("A3 A+ B2 B- n1")
    writer.write("A1 A+ C2", partition=1)
    consumer = Consumer(consumer_config(Address(bootstrap), f"{topic}-group", READ_COMMITTED))
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()
    view = inspect_topic(Address(bootstrap), topic, check_crc=True)
    assert view.bounds.offsets == sum(view.fates.values()) == 12
    assert {fate: count for fate, count in view.fates.items() if count} == {
        Fate.COMMITTED: 5,
        Fate.ABORTED: 2,
        Fate.PENDING: 2,
        Fate.MARKER: 3,
    }
    assert view.outside == 1
    assert (view.transactions.committed, view.transactions.aborted, view.transactions.open) == (
        2,
        1,
        1,
    )
    assert (view.transactions.records_committed, view.transactions.records_aborted) == (4, 2)
    assert [each.outcome for each in view.transactions.last] == [
        "OPEN",
        "COMMITTED",
        "ABORTED",
        "COMMITTED",
    ]
    names = [each.transactional_id for each in view.transactions.last]
    assert names == [writer.transactional_id(who) for who in "CABA"]
    assert [each.reason for each in view.transactions.last] == [None, None, "declared", None]
    assert view.transactions.aborted_by == {"declared": 1}
    assert [each.transactional_id for each in view.open] == [writer.transactional_id("C")]
    assert len(view.producers) == 5
    (lag,) = (lag for lag in view.lags if lag.group == f"{topic}-group")
    assert (lag.visible, lag.uncommitted, lag.subtraction) == (4, 8, 11)
    assert [p.committed for p in lag.partitions] == [1, None], "nobody owns the second one"
    assert view.not_heard == ()
    told = json.loads(json.dumps(view.to_json()))
    assert told["fates"] == {
        "committed": 5,
        "aborted": 2,
        "pending": 2,
        "marker": 3,
        "gone": 0,
        "unexplained": 0,
    }
    assert told["partitions"][1]["fates"]["pending"] == 2
    assert told["bounds"] == [
        {"partition": 0, "start": 0, "lso": 8, "hw": 8},
        {"partition": 1, "start": 0, "lso": 2, "hw": 4},
    ]
    assert "has been open for" in told["open"][0]["why"]
    assert (told["open"][0]["overdue"], told["open"][0]["stuck"], told["unstable"]) == (
        False,
        False,
        [],
    )


@pytest.mark.parametrize("width", [80, 120])
def test_everything_fits_on_a_terminal(bootstrap: str, new_topic: NewTopic, width: int) -> None:
    """Committed, aborted, open, hanging, and a group that is stuck: nothing is cut off, and the way
    out is named."""
    topic = new_topic(partitions=3)
    writer = Writer(bootstrap, topic)
    writer.write("A3 A+ B2 B- n1")
    writer.write("A1 A+ C2", partition=1)
    writer.write("C1", partition=2)
    producer_id = hang(bootstrap, topic)
    consumer = Consumer(consumer_config(Address(bootstrap), f"{topic}-group", READ_COMMITTED))
    consumer.commit(offsets=[TopicPartition(topic, 0, 8)], asynchronous=False)
    consumer.close()
    said = io.StringIO()
    view = inspect_topic(Address(bootstrap), topic)
    print_topic(Terminal(file=said, width=width), view, " --cluster west")
    text = " ".join(said.getvalue().split())
    assert max(map(len, said.getvalue().splitlines())) <= width
    # One is open on two partitions, and one hangs.
    assert (
        "Transactions: 5 transactions = 2 committed (4 records)"
        " + 1 aborted (2 records; 1 declared) + 2 open, on 3 partitions" in text
    )
    assert f"Hanging: producer {producer_id} last wrote" in text
    assert f"Dry run of the abort: topicproof abort {topic} 0 8 --cluster west" in text
    assert (
        f"the hanging transaction of producer {producer_id} from offset 8 on withholds 1 record"
        in text
    )


def test_an_empty_topic_is_shown_as_empty(bootstrap: str, new_topic: NewTopic) -> None:
    """Nothing was ever written. Every count is 0 and nothing fails, but a missing topic does."""
    view = inspect_topic(Address(bootstrap), new_topic(partitions=3))
    assert view.bounds.offsets == 0 and not any(view.fates.values())
    assert (
        view.transactions.last == ()
        and view.unstable == ()
        and view.open == ()
        and view.producers == ()
    )
    assert json.dumps(view.to_json())
    with pytest.raises(TopicError, match="There is no topic"):
        inspect_topic(Address(bootstrap), "no-such-topic")


def test_what_the_cluster_does_not_answer_is_listed(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user may read the topic, but not list groups. The view says so instead of showing no
    lag."""

    def refuse(*_: object, **__: object) -> None:
        raise ClusterAuthorizationFailedError

    monkeypatch.setattr(inspection, "group_lags", refuse)
    topic = new_topic()
    Writer(bootstrap, topic).write("n1")
    view = inspect_topic(Address(bootstrap), topic)
    assert view.fates[Fate.COMMITTED] == 1
    (missing,) = view.not_heard
    assert missing.startswith("consumer groups: ") and "does not allow this client" in missing
