"""An operator ends transactions of real topics: the plan, the deed, and every refusal in
between."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaException

from tests.backend.kafka.hanging import hang
from tests.backend.kafka.topics import Writer, delivered, look
from tests.test_cli import call
from topicproof.backend.address import Address
from topicproof.backend.errors import UsageError
from topicproof.backend.kafka.client_configs import READ_COMMITTED
from topicproof.backend.kafka.coordination.abort import abort, plan_abort
from topicproof.backend.kafka.coordination.coordinator import open_transactions, topic_producers
from topicproof.backend.kafka.log.rawlog import fetch_bounds
from topicproof.validators.coordinator import OpenTransaction
from topicproof.validators.finding import PartitionBounds

NewTopic = Callable[..., str]


def test_a_hanging_transaction_is_aborted_and_its_partition_flows_again(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """A late write hangs, and two records wait behind it. The plan says what goes; the marker lets
    them through."""
    topic = new_topic()
    producer_id = hang(bootstrap, topic)
    Writer(bootstrap, topic).write("n2")
    plan = plan_abort(Address(bootstrap), topic, 0, 0)
    assert (plan.found.records, plan.last_offset, plan.released, plan.next_stable) == (1, 0, 2, 3)
    assert (
        re.search(r"1 record \(\d+ bytes as stored\) at offsets 0 to 0", plan.lost)
        and str(producer_id) in plan.lost
    )
    assert "moves from 0 to 3 or beyond; 2 records of other producers wait behind it" in plan.gained
    assert fetch_bounds(Address(bootstrap), topic).partitions == (PartitionBounds(0, 0, 0, 3),), (
        "a plan changes nothing"
    )
    assert abort(Address(bootstrap), plan) == PartitionBounds(0, 0, 4, 4)
    assert look(Address(bootstrap), open_transactions, topic) == ()
    assert sorted(
        delivered(bootstrap, fetch_bounds(Address(bootstrap), topic), READ_COMMITTED)
    ) == [
        (0, 1),
        (0, 2),
    ]
    with pytest.raises(
        UsageError,
        match=r"no open transaction from offset 0 on by producer \d+\. None is open there",
    ):
        abort(Address(bootstrap), plan)


def test_a_late_write_of_a_producer_that_goes_on_is_aborted(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """A's late write hangs behind its commit, where its coordinator left a marker before. The plan
    names A."""
    topic = new_topic()
    writer = Writer(bootstrap, topic)
    writer.write("A2 A+")
    (of_a,) = look(Address(bootstrap), topic_producers, topic).to_dict("records")
    hang(bootstrap, topic, of_a["producer_id"], of_a["producer_epoch"], of_a["last_sequence"] + 1)
    plan = plan_abort(Address(bootstrap), topic, 0, producer_id=of_a["producer_id"])
    assert f"transactional id {writer.transactional_id('A')}" in plan.lost
    assert abort(Address(bootstrap), plan) == PartitionBounds(0, 0, 5, 5)


def test_an_ordinary_open_transaction_is_left_alone_unless_told(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """A transaction is simply open on two partitions. It is refused. With --open-too, it is aborted
    on both and A is fenced."""
    topic = new_topic(partitions=2)
    writer = Writer(bootstrap, topic)
    writer.write("A2 n1")
    writer.write("A3", partition=1)
    with pytest.raises(UsageError, match=r"not hanging.* add --open-too"):
        plan_abort(Address(bootstrap), topic, 0, 0)
    plan = plan_abort(Address(bootstrap), topic, 0, 0, open_too=True)
    assert "on all its partitions, and its producer is fenced" in plan.means
    assert abort(Address(bootstrap), plan).lso == 4
    assert look(Address(bootstrap), open_transactions, topic) == ()
    with pytest.raises(KafkaException):
        writer.write("A+")


def test_an_earlier_open_transaction_is_named(bootstrap: str, new_topic: NewTopic) -> None:
    """Two are open, and the second one is asked for. The plan says that the last stable offset will
    not move."""
    topic = new_topic()
    Writer(bootstrap, topic).write("A1 B1 n1")
    plan = plan_abort(Address(bootstrap), topic, 0, 1, open_too=True)
    assert (plan.next_stable, plan.released) == (0, 1)
    assert "stays at 0, where an earlier transaction is open" in plan.gained
    with pytest.raises(UsageError, match=r"Open there: offset 0 by producer .*; offset 1 by"):
        plan_abort(Address(bootstrap), topic, 0, 2)
    with pytest.raises(UsageError, match="has no partition 7"):
        plan_abort(Address(bootstrap), topic, 7, 0)
    with pytest.raises(UsageError, match="Say which transaction"):
        plan_abort(Address(bootstrap), topic, 0)


def test_a_decided_transaction_is_never_torn(
    bootstrap: str, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator has decided to commit and its marker is on the way. Not even --open-too
    aborts that."""
    decided = OpenTransaction(
        0, 7, 0, 0, 0, "payments", "PrepareCommit", 90_000, 60_000, 1, 1, False
    )
    monkeypatch.setattr(
        "topicproof.backend.kafka.coordination.abort.open_transactions", lambda *_, **__: (decided,)
    )
    with pytest.raises(UsageError, match=r"payments is already decided \(PrepareCommit\)"):
        plan_abort(Address(bootstrap), new_topic(), 0, 0, open_too=True)


def test_the_command_is_a_dry_run_until_told(
    bootstrap: str, new_topic: NewTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator asks first, and then says --yes. The first call changes nothing and says how to
    continue."""
    topic = new_topic()
    producer_id = hang(bootstrap, topic)
    asked = ["abort", topic, "0", "0", "--bootstrap", bootstrap]
    assert call(*asked) == 0
    told = capsys.readouterr().out
    assert (
        "Hanging: producer" in told and "Lost for every read_committed consumer: 1 record" in told
    )
    assert "Nothing was done. To abort it, repeat the command with --yes." in told
    assert fetch_bounds(Address(bootstrap), topic).partitions[0].lso == 0
    assert call(*asked, "--yes", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["done"], answer["after"]["lso"], answer["found"]["producer_id"]) == (
        True,
        2,
        producer_id,
    )
    assert call(*asked, "--yes") == 64
    assert "None is open there." in capsys.readouterr().err
