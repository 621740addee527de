"""Open and hanging transactions of real topics, and who writes to them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin._transactions import TransactionDescription, TransactionState

from tests.backend.kafka.hanging import GHOST, NOT_VERIFIED, append_late, hang
from tests.backend.kafka.topics import Writer, ask
from tests.conftest import wait_until
from topicproof.backend.address import Address
from topicproof.backend.errors import TopicError
from topicproof.backend.kafka.client_configs import TRANSACTION_TIMEOUT_MS
from topicproof.backend.kafka.coordination.coordinator import open_transactions, topic_producers
from topicproof.backend.kafka.coordination.transaction_state import StateEntry
from topicproof.backend.kafka.log.fates import fate_ranges
from topicproof.backend.kafka.log.rawlog import fetch_bounds, scan
from topicproof.validators.coordinator import CLEANUP_MS, STUCK_MS, OpenTransaction
from topicproof.validators.finding import PartitionBounds

NewTopic = Callable[..., str]


def test_an_open_transaction_is_named_with_what_it_withholds(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """One transaction is open, and four records of other producers wait behind its two. The other
    partition is free."""
    topic = new_topic(partitions=2)
    writer = Writer(bootstrap, topic)
    writer.write("A1 A+ B2 n3 A1 A+")
    writer.write("A5 A+", partition=1)
    (found,) = ask(Address(bootstrap), open_transactions, topic)
    assert (found.partition, found.start_offset, found.withheld, found.hanging) == (0, 2, 6, False)
    assert found.records == 2 and not found.overdue and not found.stuck
    assert found.transactional_id == writer.transactional_id("B")
    assert found.state == "Ongoing"
    assert found.timeout_ms == TRANSACTION_TIMEOUT_MS
    assert 0 <= found.age_ms < TRANSACTION_TIMEOUT_MS
    assert (
        "is open for" in found.why
        and "withholds 6 records of partition 0 from offset 2 on" in found.why
    )
    bounds = fetch_bounds(Address(bootstrap), topic)
    ranges = fate_ranges(scan(Address(bootstrap), topic, bounds), bounds)
    assert ask(Address(bootstrap), open_transactions, topic, bounds, ranges)[0].withheld == 6
    writer.write("B-")
    assert ask(Address(bootstrap), open_transactions, topic) == ()


def test_one_transaction_open_on_two_partitions_is_told_for_each(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """A transaction has written to both partitions, another one to the second only. Each place has
    its own start."""
    topic = new_topic(partitions=2)
    writer = Writer(bootstrap, topic)
    writer.write("A1")
    writer.write("B1 A2", partition=1)
    found = ask(Address(bootstrap), open_transactions, topic)
    assert [(each.partition, each.start_offset, each.withheld) for each in found] == [
        (0, 0, 1),
        (1, 0, 3),
        (1, 1, 2),
    ]
    assert [each.transactional_id for each in found] == [
        writer.transactional_id(who) for who in "ABA"
    ]
    assert "withholds 1 record of" in found[0].why


def test_a_hanging_transaction_is_found_from_its_partition(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """A late write opened a transaction that its coordinator does not know. Nothing will end it,
    and the answer says so."""
    topic = new_topic()
    wait_until(
        lambda: append_late(bootstrap, topic) == NOT_VERIFIED, 10, "the refusal of today's brokers"
    )
    hang(bootstrap, topic)
    Writer(bootstrap, topic).write("n2")
    assert fetch_bounds(Address(bootstrap), topic).partitions == (PartitionBounds(0, 0, 0, 3),)
    (found,) = ask(Address(bootstrap), open_transactions, topic)
    assert found.hanging
    assert (found.producer_id, found.start_offset, found.records, found.withheld) == (
        GHOST,
        0,
        1,
        3,
    )
    assert (found.transactional_id, found.state, found.timeout_ms) == (None, None, None)
    assert found.why.startswith(f"Hanging: producer {GHOST} last wrote")
    assert (
        "withholds 3 records of partition 0 from offset 0 on until an operator aborts it"
        in found.why
    )


def test_a_late_write_after_the_commit_hangs_under_its_producers_name(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """A committed, then one of its writes arrived late, as before KIP-890. It hangs although its
    name is known."""
    topic = new_topic()
    writer = Writer(bootstrap, topic)
    writer.write("A2 A+")
    (of_a,) = ask(Address(bootstrap), topic_producers, topic).to_dict("records")
    hang(bootstrap, topic, of_a["producer_id"], of_a["producer_epoch"], of_a["last_sequence"] + 1)
    (found,) = ask(Address(bootstrap), open_transactions, topic)
    assert (found.hanging, found.start_offset, found.transactional_id) == (
        True,
        3,
        writer.transactional_id("A"),
    )
    assert (found.state, found.timeout_ms) == ("CompleteCommit", None)
    assert (
        f"producer {of_a['producer_id']} of {writer.transactional_id('A')} last wrote" in found.why
    )


OVERDUE = TRANSACTION_TIMEOUT_MS + CLEANUP_MS + 1


@pytest.mark.parametrize(
    ("state", "age_ms", "says"),
    [
        ("Ongoing", 5_000, "is open for 5.0 s of at most 1 minute and withholds"),
        ("Ongoing", OVERDUE, "1 minute 10 seconds of at most 1 minute, which is over and"),
        ("PrepareCommit", 5_000, "(PrepareCommit) is open for 5.0 s"),
        (
            "PrepareCommit",
            OVERDUE,
            "decided to commit it, but the marker is not here, and it withholds 3 records",
        ),
        ("PrepareAbort", OVERDUE, "decided to abort it, but the marker is not here"),
    ],
)
def test_a_transaction_that_does_not_end_in_time_is_said(
    state: str, age_ms: int, says: str
) -> None:
    """The same transaction at five moments of its life. Only what is really late is called that."""
    found = OpenTransaction(
        0, 7, 0, 0, 12, "payments", state, age_ms, TRANSACTION_TIMEOUT_MS, 1, 3, False
    )
    assert says in found.why
    assert found.overdue == (age_ms == OVERDUE) and found.stuck == found.why.startswith("Stuck: ")


@pytest.mark.parametrize(("decided_ms", "stuck"), [(STUCK_MS + 1, True), (30, False)])
def test_a_decision_is_as_old_as_the_coordinators_log_says(
    bootstrap: str,
    new_topic: NewTopic,
    monkeypatch: pytest.MonkeyPatch,
    decided_ms: int,
    stuck: bool,
) -> None:
    """A transaction of a minute was decided long ago, or just now. Only the first is stuck, long
    before its timeout."""
    topic = new_topic()
    writer = Writer(bootstrap, topic)
    writer.write("A1")
    now_ms = int(time.time() * 1000)
    name, place = writer.transactional_id("A"), frozenset({(topic, 0)})
    (of_a,) = ask(Address(bootstrap), topic_producers, topic).to_dict("records")
    decided = StateEntry(
        name,
        of_a["producer_id"],
        -1,
        0,
        900_000,
        "PrepareCommit",
        place,
        now_ms - decided_ms,
        now_ms - 60_000,
        None,
    )
    told = TransactionDescription(
        0,
        TransactionState.PREPARE_COMMIT,
        of_a["producer_id"],
        0,
        900_000,
        now_ms - 60_000,
        {TopicPartition(topic, 0)},
    )
    # No broker can be made to keep a marker back, so the coordinator's answer and its log are
    # played.
    monkeypatch.setattr(KafkaAdminClient, "describe_transactions", lambda *_: {name: told})
    monkeypatch.setattr(
        "topicproof.backend.kafka.coordination.coordinator.read_states", lambda *_: (decided,)
    )
    (found,) = ask(Address(bootstrap), open_transactions, topic)
    assert (found.stuck, found.overdue, found.hanging) == (stuck, False, False)
    assert found.decided_ms is not None and found.decided_ms >= decided_ms
    assert found.why.startswith(f"Stuck: {name} (PrepareCommit)") == stuck


def test_producers_of_a_topic(bootstrap: str, new_topic: NewTopic) -> None:
    """Three producers wrote: one committed, one is open, one is only idempotent. Each is told
    apart."""
    topic = new_topic()
    writer = Writer(bootstrap, topic)
    writer.write("A1 A+ B1 n1")
    found = ask(Address(bootstrap), topic_producers, topic)
    states = dict(zip(found["transactional_id"], found["state"], strict=True))
    assert states == {
        writer.transactional_id("A"): "CompleteCommit",
        writer.transactional_id("B"): "Ongoing",
        None: None,
    }
    assert found["open_from"].dropna().tolist() == [2]


def test_an_untouched_topic_has_neither(bootstrap: str, new_topic: NewTopic) -> None:
    """Nobody ever wrote here. Both answers are empty tables, and a missing topic is still an
    error."""
    topic = new_topic(partitions=2)
    assert ask(Address(bootstrap), open_transactions, topic) == ()
    assert ask(Address(bootstrap), topic_producers, topic).empty
    with pytest.raises(TopicError):
        ask(Address(bootstrap), topic_producers, "no-such-topic")
