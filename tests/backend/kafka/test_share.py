"""Share groups on real coordinators: where they begin, what is left, and what transactions do for
them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import ShareConsumer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from tests.backend.kafka.topics import Writer
from tests.conftest import wait_until
from topicproof.backend.address import Address
from topicproof.backend.commands.show_topic import print_topic
from topicproof.backend.commands.terminal import Terminal
from topicproof.backend.kafka.browse.inspect import TopicView, inspect_topic
from topicproof.backend.kafka.client_configs import admin_config
from topicproof.backend.kafka.coordination.share import ShareGroup

NewTopic = Callable[..., str]


def configure(bootstrap: str, group: str, **settings: str) -> None:
    entries = [
        ConfigEntry(f"share.{name}", value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    wanted = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=entries)
    admin = AdminClient(admin_config(Address(bootstrap)))
    for changed in admin.incremental_alter_configs([wanted]).values():
        changed.result()


@contextmanager
def share_member(bootstrap: str, group: str, topic: str) -> Iterator[ShareConsumer]:
    """A member of a share group."""
    # librdkafka announces on the terminal that its share consumer is a preview.
    options = {"bootstrap.servers": bootstrap, "group.id": group, "log_level": 2}
    consumer = ShareConsumer({**options, "client.id": "sharer"})
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def received(consumer: ShareConsumer, count: int) -> list[int]:
    """The offsets of the next records, each acknowledged by the poll after it."""
    offsets: list[int] = []

    def enough() -> bool:
        for message in consumer.poll(0.2):
            assert message.error() is None
            offsets.append(message.offset() or 0)
        return len(offsets) >= count

    wait_until(enough, 60, f"{count} records for the share group")
    return offsets


def share_of(view: TopicView, group: str) -> ShareGroup:
    assert view.not_heard == ()
    (found,) = (each for each in view.shares if each.group == group)
    return found


def test_a_share_group_is_shown_with_its_start_its_lag_and_the_trap(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """Story: a share group reads a topic with transactions, as configured by default. It receives
    the aborted and the open records too, and the topic's view warns of that. After it acknowledged
    all, nothing is left."""
    topic = new_topic()
    group = f"{topic}-queue"
    Writer(bootstrap, topic).write("A2 A+ B3 B- C1")
    configure(bootstrap, group, **{"auto.offset.reset": "earliest"})
    with share_member(bootstrap, group, topic) as consumer:
        assert received(consumer, 6) == [0, 1, 3, 4, 5, 7], "also aborted and open records"
        found = share_of(inspect_topic(Address(bootstrap), topic), group)
        assert (found.state, found.isolation) == ("Stable", "read_uncommitted")
        assert [(each.client, each.partitions) for each in found.members] == [
            ("sharer", ((topic, 0),))
        ]

        def done() -> bool:
            consumer.poll(0.2)
            seen = share_of(inspect_topic(Address(bootstrap), topic), group)
            return (seen.left, seen.partitions[0].reported) == (0, 0)

        wait_until(done, 60, "the acknowledgement of all records")
    view = inspect_topic(Address(bootstrap), topic)
    told = next(each for each in view.to_json()["shares"] if each["group"] == group)
    assert json.dumps(told) and (told["left"], told["stuck"]) == (0, False)
    assert told["trap"] == (
        f"{group} also receives records of open and aborted transactions: a share group reads"
        " read_uncommitted unless its group configuration sets"
        " share.isolation.level=read_committed."
    )
    for width in (80, 120):
        said = io.StringIO()
        print_topic(Terminal(file=said, width=width), view)
        assert max(map(len, said.getvalue().splitlines())) <= width
        text = " ".join(said.getvalue().split())
        assert "Share groups: left is in records, at most" in text
        assert "also receives records of open and aborted transactions" in text


def test_a_share_group_at_read_committed_is_stuck_behind_an_open_transaction(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """Story: the same at read_committed: no aborted record arrives, and the rest is withheld by an
    open transaction, which is named. The coordinator's start offset stays
    behind what was acknowledged."""
    topic = new_topic()
    group = f"{topic}-safe"
    writer = Writer(bootstrap, topic)
    writer.write("A2 A+ B3 B- C1 n2")
    configure(
        bootstrap,
        group,
        **{"auto.offset.reset": "earliest", "isolation.level": "read_committed"},
    )
    with share_member(bootstrap, group, topic) as consumer:
        assert received(consumer, 2) == [0, 1]

        def stuck() -> bool:
            consumer.poll(0.2)
            return share_of(inspect_topic(Address(bootstrap), topic), group).stuck

        wait_until(stuck, 60, "the end of what is stable")
    found = share_of(inspect_topic(Address(bootstrap), topic), group)
    assert found.trap is None and found.isolation == "read_committed"
    (one,) = found.partitions
    assert (one.left, one.withheld, one.stuck) == (0, 3, True)
    assert f"the open transaction of {writer.transactional_id('C')} from offset 7" in one.why


def test_a_share_group_that_acknowledged_nothing_names_where_it_begins(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """Story: a member has just joined. Until its group acknowledges a record, no coordinator
    tells where it begins. The view says what decides it, and invents no number."""
    topic = new_topic()
    group = f"{topic}-new"
    Writer(bootstrap, topic).write("n2")
    with share_member(bootstrap, group, topic) as consumer:

        def joined() -> bool:
            view = inspect_topic(Address(bootstrap), topic)
            return any(each.group == group for each in view.shares)

        wait_until(lambda: bool(consumer.poll(0.1) or joined()), 60, "the group's first member")
        found = share_of(inspect_topic(Address(bootstrap), topic), group)
    (one,) = found.partitions
    assert (one.start_offset, one.left, one.reported, found.left) == (None, None, None, None)
    assert one.why.endswith("The group begins where share.auto.offset.reset says: latest.")
