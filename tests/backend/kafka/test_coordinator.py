"""Open and hanging transactions of real topics, and who writes to them."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin._transactions import TransactionDescription, TransactionState

from tests.backend.kafka.hanging import NOT_VERIFIED, append_late, ghost, hang
from tests.backend.kafka.topics import Writer, ask, look
from tests.conftest import wait_until
from topicproof.backend.address import Address
from topicproof.backend.errors import TopicError
from topicproof.backend.kafka.client_configs import TRANSACTION_TIMEOUT_MS
from topicproof.backend.kafka.coordination.coordinator import open_transactions, topic_producers
from topicproof.backend.kafka.coordination.transaction_state import StateEntry
from topicproof.backend.kafka.log.fates import fate_ranges
from topicproof.backend.kafka.log.rawlog import fetch_bounds, scan
from topicproof.backend.kafka.look import IDS, OPEN_TRANSACTIONS, PRODUCERS, LookBudget, LookLimits
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
    (found,) = look(Address(bootstrap), open_transactions, topic)
    assert (found.partition, found.start_offset, found.withheld, found.hanging) == (0, 2, 6, False)
    assert found.records == 2 and not found.overdue and not found.stuck
    assert found.transactional_id == writer.transactional_id("B")
    assert found.state == "Ongoing"
    assert found.timeout_ms == TRANSACTION_TIMEOUT_MS
    assert 0 <= found.age_ms < TRANSACTION_TIMEOUT_MS
    assert (
        "has been open for" in found.why
        and "withholds 6 records of partition 0 from offset 2 on" in found.why
    )
    bounds = fetch_bounds(Address(bootstrap), topic)
    ranges = fate_ranges(scan(Address(bootstrap), topic, bounds), bounds)
    assert look(Address(bootstrap), open_transactions, topic, bounds, ranges)[0].withheld == 6
    writer.write("B-")
    assert look(Address(bootstrap), open_transactions, topic) == ()


def test_of_many_open_transactions_the_oldest_of_each_partition_are_looked_at(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """Story: somebody opens transactions by the thousand. The one that holds the last stable offset
    of a partition is never left out for them, not even on the last of many topics, and what is left
    out is said."""
    topic = new_topic(partitions=2)
    writer = Writer(bootstrap, topic)
    writer.write("A1 B1 C1")
    writer.write("D1", partition=1)
    budget = LookBudget(LookLimits(transactions=3), transactions=3)
    found = ask(Address(bootstrap), open_transactions, topic, budget=budget)
    assert [(each.partition, each.start_offset) for each in found] == [(0, 0), (1, 0)]
    assert budget.note.startswith("Left out here: 2 open transactions. One look")
    spent = LookBudget(LookLimits(seconds=-1))
    assert ask(Address(bootstrap), open_transactions, topic, budget=spent) == ()
    assert spent.left_out[OPEN_TRANSACTIONS] == 4


def test_of_many_producers_the_latest_are_listed() -> None:
    """Story: a client takes 100,000 producer ids, each for one batch. A leader remembers each for a
    day, and the page listed all of them, with the ids of the whole cluster."""
    many = 100_000
    producers = [
        SimpleNamespace(
            producer_id=number,
            producer_epoch=0,
            last_sequence=0,
            last_timestamp=number,
            coordinator_epoch=0,
            current_transaction_start_offset=-1,
        )
        for number in range(many)
    ]
    asked: list[list[int]] = []

    def listed(producer_id_filters: list[int]) -> dict[int, list[Any]]:
        asked.append(producer_id_filters)
        return {
            0: [
                SimpleNamespace(
                    producer_id=number,
                    transactional_id="x" * 30_000,
                    state=SimpleNamespace(value="Empty"),
                )
                for number in producer_id_filters
            ]
        }

    kafka: Any = SimpleNamespace(
        leaders=lambda _: {0: 0},
        with_retries=lambda request: request(),
        admin=SimpleNamespace(
            describe_producers=lambda places: {
                places[0]: SimpleNamespace(active_producers=producers)
            },
            list_transactions=listed,
        ),
    )
    budget = LookBudget(LookLimits(size=40_000_000))
    rows = topic_producers(kafka, "t", budget=budget)
    most = budget.limits.producers
    assert sorted(rows["producer_id"]) == list(range(many - most, many))
    assert max(map(len, asked)) <= 1_000 and rows["transactional_id"].notna().sum() == 2_000
    assert (budget.left_out[PRODUCERS], budget.left_out[IDS]) == (many - most, most - 2_000)


def test_one_transaction_open_on_two_partitions_is_told_for_each(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """A transaction has written to both partitions, another one to the second only. Each place has
    its own start."""
    topic = new_topic(partitions=2)
    writer = Writer(bootstrap, topic)
    writer.write("A1")
    writer.write("B1 A2", partition=1)
    found = look(Address(bootstrap), open_transactions, topic)
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
        lambda: append_late(bootstrap, topic, ghost()) == NOT_VERIFIED,
        10,
        "the refusal of today's brokers",
    )
    producer_id = hang(bootstrap, topic)
    Writer(bootstrap, topic).write("n2")
    assert fetch_bounds(Address(bootstrap), topic).partitions == (PartitionBounds(0, 0, 0, 3),)
    (found,) = look(Address(bootstrap), open_transactions, topic)
    assert found.hanging
    assert (found.producer_id, found.start_offset, found.records, found.withheld) == (
        producer_id,
        0,
        1,
        3,
    )
    assert (found.transactional_id, found.state, found.timeout_ms) == (None, None, None)
    assert found.why.startswith(f"Hanging: producer {producer_id} last wrote")
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
    (of_a,) = look(Address(bootstrap), topic_producers, topic).to_dict("records")
    hang(bootstrap, topic, of_a["producer_id"], of_a["producer_epoch"], of_a["last_sequence"] + 1)
    (found,) = look(Address(bootstrap), open_transactions, topic)
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
        ("Ongoing", 5_000, "has been open for 5.0 s (aborted after 1 minute) and withholds"),
        ("Ongoing", OVERDUE, "1 minute 10 seconds (its timeout of 1 minute is over) and"),
        ("PrepareCommit", 5_000, "(PrepareCommit) has been open for 5.0 s"),
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
    (of_a,) = look(Address(bootstrap), topic_producers, topic).to_dict("records")
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
        "topicproof.backend.kafka.coordination.coordinator.read_states", lambda *_, **__: (decided,)
    )
    (found,) = look(Address(bootstrap), open_transactions, topic)
    assert (found.stuck, found.overdue, found.hanging) == (stuck, False, False)
    assert found.decided_ms is not None and found.decided_ms >= decided_ms
    assert found.why.startswith(f"Stuck: {name} (PrepareCommit)") == stuck


def test_producers_of_a_topic(bootstrap: str, new_topic: NewTopic) -> None:
    """Three producers wrote: one committed, one is open, one is only idempotent. Each is told
    apart."""
    topic = new_topic()
    writer = Writer(bootstrap, topic)
    writer.write("A1 A+ B1 n1")
    found = look(Address(bootstrap), topic_producers, topic)
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
    assert look(Address(bootstrap), open_transactions, topic) == ()
    assert look(Address(bootstrap), topic_producers, topic).empty
    with pytest.raises(TopicError):
        look(Address(bootstrap), topic_producers, "no-such-topic")
