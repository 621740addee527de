"""Why transactions were aborted, from the coordinators' own log."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from dataclasses import replace

import pandas as pd
import pytest
from confluent_kafka import Producer

from tests.backend.kafka.hanging import hang
from tests.backend.kafka.topics import Writer, look
from tests.conftest import wait_until
from topicproof.backend.address import Address
from topicproof.backend.errors import ClusterError
from topicproof.backend.kafka.client_configs import transactional_producer_config
from topicproof.backend.kafka.coordination import transaction_state
from topicproof.backend.kafka.coordination.abort import abort, plan_abort
from topicproof.backend.kafka.coordination.coordinator import topic_producers
from topicproof.backend.kafka.coordination.ended import ended_transactions
from topicproof.backend.kafka.coordination.reasons import abort_reasons, transactional_ids
from topicproof.backend.kafka.coordination.transaction_state import (
    TOPIC,
    StateEntry,
    client_versions,
    decode,
    is_exposed,
    partition_of,
    read_states,
)
from topicproof.backend.kafka.coordination.transactions import recently_ended
from topicproof.backend.kafka.log.fates import transactions
from topicproof.backend.kafka.log.rawlog import connect, fetch_bounds, scan
from topicproof.backend.kafka.look import LookBudget
from topicproof.validators.finding import Bounds, PartitionBounds

NewTopic = Callable[..., str]


def states_of(
    bootstrap: str, names: list[str] | None, topics: Collection[str] = ()
) -> tuple[StateEntry, ...]:
    bounds = fetch_bounds(Address(bootstrap), TOPIC)
    return read_states(Address(bootstrap), bounds, names, topics, budget=LookBudget())


def found_in(bootstrap: str, topic: str) -> tuple[pd.DataFrame, Bounds]:
    bounds = fetch_bounds(Address(bootstrap), topic)
    return transactions(scan(Address(bootstrap), topic, bounds), bounds), bounds


def test_the_three_reasons_of_an_abort_are_told_apart(bootstrap: str, new_topic: NewTopic) -> None:
    """A aborts itself, B is taken over by a successor, C is forgotten until its time is over. D
    commits."""
    topic = new_topic()
    writer = Writer(bootstrap, topic)
    Writer(bootstrap, topic, options={"transaction.timeout.ms": 4_000}).write("C1")
    writer.write("A1 A- D1 D+ B1")
    successor = Producer(
        transactional_producer_config(Address(bootstrap), writer.transactional_id("B"))
    )
    successor.init_transactions()
    # The coordinator looks for what is over its time every 10 s.
    wait_until(
        lambda: fetch_bounds(Address(bootstrap), topic).partitions[0].hw == 8, 30, "the abort of C"
    )
    found, _ = found_in(bootstrap, topic)
    states = states_of(bootstrap, [writer.transactional_id(who) for who in "ABCD"], [topic])
    names = transactional_ids(states)
    told = dict(
        zip(found["producer_id"].map(names), abort_reasons(topic, found, states), strict=True)
    )
    assert told == {
        writer.transactional_id("A"): "declared",
        writer.transactional_id("B"): "fenced",
        writer.transactional_id("C"): "timeout",
        writer.transactional_id("D"): None,
    }
    assert abort_reasons(topic, found, ())[1:] == ["declared", None, None], (
        "without the coordinators' log"
    )
    # The list of the whole cluster knows it from the coordinators' log alone.
    every = recently_ended(Address(bootstrap), budget=LookBudget())
    ended = {each.transactional_id: each for each in every if each.topics == (topic,)}
    assert {name: (each.outcome, each.reason) for name, each in ended.items()} == {
        name: ("COMMITTED" if reason is None else "ABORTED", reason)
        for name, reason in told.items()
    }
    timed_out = ended[writer.transactional_id("C")]
    assert timed_out.state == "CompleteAbort" and timed_out.partitions == ((topic, 0),)
    assert timed_out.began_ms is not None and timed_out.timeout_ms == 4_000
    assert timed_out.ended_ms - timed_out.began_ms >= 4_000
    times = [each.ended_ms for each in every]
    assert times == sorted(times, reverse=True)


def state(
    name: str, of: str, updated: int, began: int = -1, epoch: int = 0, version: int = 0
) -> StateEntry:
    places = {("tt", 1), ("tt", 0)} if of.startswith("Prepare") else set()
    return StateEntry(name, 7, -1, epoch, 4_000, of, frozenset(places), updated, began, version)


def test_each_end_in_the_log_is_listed_once() -> None:
    """One id aborts and commits, one times out, one is fenced, one has only its last entry left
    after compaction, one is still writing its markers, and one is of a newer client."""
    states = [
        *(state("A", "Empty", 0), state("A", "Ongoing", 10, 10), state("A", "Ongoing", 20, 10)),
        *(state("A", "PrepareAbort", 30, 10), state("A", "CompleteAbort", 31, 10)),
        *(state("A", "Ongoing", 40, 40), state("A", "PrepareCommit", 50, 40)),
        state("A", "CompleteCommit", 51, 40),
        *(state("B", "Ongoing", 100, 100), state("B", "PrepareAbort", 5_000, 100, 1)),
        state("B", "CompleteAbort", 5_001, 100, 1),
        *(state("C", "Ongoing", 100, 100), state("C", "PrepareAbort", 200, 100, 1)),
        *(state("C", "CompleteAbort", 201, 100, 1), state("C", "Empty", 202, epoch=2)),
        state("D", "CompleteCommit", 300, 250),
        *(state("E", "Ongoing", 400, 400), state("E", "PrepareCommit", 410, 400)),
        *(state("F", "Ongoing", 500, 500, 0, 2), state("F", "PrepareAbort", 510, 500, 1, 2)),
        *(state("F", "CompleteAbort", 511, 500, 1, 2), state("F", "Ongoing", 520, 520, 1, 2)),
    ]
    ended = ended_transactions(states)
    assert [
        (each.transactional_id, each.outcome, each.reason, each.began_ms, each.ended_ms)
        for each in ended
    ] == [
        ("B", "ABORTED", "timeout", 100, 5_001),
        ("F", "ABORTED", "declared", 500, 511),
        ("E", "COMMITTED", None, 400, 410),
        ("D", "COMMITTED", None, 250, 300),
        ("C", "ABORTED", "fenced", 100, 201),
        ("A", "COMMITTED", None, 40, 51),
        ("A", "ABORTED", "declared", 10, 31),
    ]
    assert [each.topics for each in ended if each.transactional_id in "DE"] == [("tt",), ()]
    assert ended[2].state == "PrepareCommit" and ended[2].partitions == (("tt", 0), ("tt", 1))
    assert ended_transactions(states, 2) == ended[:2]


def test_an_operators_abort_is_told_from_a_producers(bootstrap: str, new_topic: NewTopic) -> None:
    """A committed, a late write of it hung, and an operator aborted that. Nobody else decided
    so."""
    topic = new_topic()
    writer = Writer(bootstrap, topic)
    writer.write("A2 A+")
    (of_a,) = look(Address(bootstrap), topic_producers, topic).to_dict("records")
    hang(bootstrap, topic, of_a["producer_id"], of_a["producer_epoch"], of_a["last_sequence"] + 1)
    abort(Address(bootstrap), plan_abort(Address(bootstrap), topic, 0, 3))
    found, _ = found_in(bootstrap, topic)
    states = states_of(bootstrap, [writer.transactional_id("A")], [topic])
    assert abort_reasons(topic, found, states) == [None, "operator"]


def test_the_coordinators_log_tells_the_life_of_a_transaction(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """One transaction over two partitions is committed, and another aborted. Their id's entries
    are in one partition, and in order."""
    topic = new_topic(partitions=2)
    writer = Writer(bootstrap, topic)
    writer.write("A1")
    writer.write("A1 A+", partition=1)
    writer.write("A1")
    writer.write("A1 A-", partition=1)
    name = writer.transactional_id("A")
    mine = states_of(bootstrap, [name], [topic])
    prepared = [each.state for each in mine if each.state.startswith(("Prepare", "Complete"))]
    assert prepared == ["PrepareCommit", "CompleteCommit", "PrepareAbort", "CompleteAbort"]
    decided = mine[-2]
    assert decided.partitions == {(topic, 0), (topic, 1)}
    assert not any(each.partitions for each in states_of(bootstrap, [name], ["another"]))
    assert decided.began_ms <= decided.updated_ms and decided.timeout_ms > 0
    assert [
        each for each in states_of(bootstrap, None, [topic]) if each.transactional_id == name
    ] == list(mine)
    with connect(Address(bootstrap)) as kafka:
        told = kafka.admin.describe_transactions([name])[name]
    assert (told.producer_id, told.producer_epoch) == (
        mine[-1].producer_id,
        mine[-1].producer_epoch,
    )


def test_an_id_finds_its_partition_as_in_java() -> None:
    """Java's hash of a text, by hand: `a` is 97, `ab` is 31 * 97 + 98; a long one wraps around into
    the negative."""
    assert partition_of("a", 50) == 97 % 50
    assert partition_of("ab", 50) == (31 * 97 + 98) % 50
    assert partition_of("polygenelubricants", 50) == 0, (
        "its hash is the one whose absolute value is negative"
    )


def wire(version: int, tail: bytes = b"") -> bytes:
    """A value of version 0: producer 7, epoch 3, timeout 60 s, PrepareAbort, one partition."""
    one = struct.pack(">ih2sii", 1, 2, b"tt", 1, 4)
    return (
        struct.pack(">hqhib", version, 7, 3, 60_000, 3)
        + one
        + struct.pack(">qq", 2_000, 1_000)
        + tail
    )


KEY = struct.pack(">hh1s", 0, 1, b"x")


def test_the_older_version_of_an_entry_is_read_too() -> None:
    """A broker before Kafka 4 writes fixed lengths and no tags. It says the same."""
    assert decode(KEY, wire(0)) == StateEntry(
        "x", 7, -1, 3, 60_000, "PrepareAbort", frozenset({("tt", 4)}), 2_000, 1_000, None
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (KEY, wire(9)),
        (KEY, wire(0)[:-9]),
        (KEY, None),
        (None, wire(0)),
        (struct.pack(">h", 1), wire(0)),
        (KEY, b"\xff"),
        (KEY, struct.pack(">hqhib", 0, 7, 3, 60_000, 99)),
        (KEY, struct.pack(">hqhibi", 0, 7, 3, 60_000, 3, 2**31 - 1)),
    ],
)
def test_what_is_not_understood_is_passed_over(key: bytes | None, value: bytes | None) -> None:
    """A deleted id, a version of tomorrow, bytes cut short. None of them is an entry, and none is
    an error."""
    assert decode(key, value) is None


def test_flexible_fields_are_read_with_their_tags() -> None:
    """KIP-915: Kafka 4 writes variable lengths. Behind each struct come tags, known and unknown
    ones."""
    value = struct.pack(">hqhib", 1, 7, 3, 60_000, 3)
    value += b"\x02" + b"\x03tt" + b"\x02" + struct.pack(">i", 4) + b"\x00"
    value += struct.pack(">qq", 2_000, 1_000)
    value += (
        b"\x03"
        + b"\x00\x08"
        + struct.pack(">q", 5)
        + b"\x02\x02\x00\x02"
        + b"\x63\x81\x01"
        + bytes(129)
    )
    expected = StateEntry(
        "x", 7, 5, 3, 60_000, "PrepareAbort", frozenset({("tt", 4)}), 2_000, 1_000, 2
    )
    assert decode(KEY, value) == expected
    assert decode(KEY, value, ["another"]) == replace(expected, partitions=frozenset())
    assert all(decode(KEY, value[:end]) is None for end in range(len(value)))


def test_partitions_of_ongoing_transactions_take_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A producer adds 1,000 partitions one by one, and each time the coordinator writes all of
    them anew. None is kept. Aborts that name more than fit are refused in one sentence, because
    without its decision an abort would look like an operator's."""

    def of_state(state: int) -> bytes:
        fields = struct.pack(">hqhib", 0, 7, 0, 60_000, state)
        names = struct.pack(">ih2si", 1, 2, b"tt", 1_000) + struct.pack(">1000i", *range(1_000))
        return fields + names + struct.pack(">qq", 2_000, 1_000)

    def in_log(state: int) -> tuple[StateEntry, ...]:
        records = [(KEY, of_state(state))] * 600
        monkeypatch.setattr(transaction_state, "_records", lambda *_: iter(records))
        bounds = Bounds(TOPIC, (PartitionBounds(0, 0, 600, 600),))
        return read_states(Address("broker:9092"), bounds, None, ["tt"], budget=LookBudget())

    ongoing, decided = 1, 3
    assert sum(len(entry.partitions) for entry in in_log(ongoing)) == 0
    with pytest.raises(ClusterError, match="names more than 500,000 partitions of aborted"):
        in_log(decided)


def test_an_entry_without_a_version_is_of_an_older_client(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """A broker of Kafka 4 leaves the version of a librdkafka out, which is 0. Only a commit or an
    open transaction shows it: an abort may be a fence, with the version of the fencing client."""
    writer = Writer(bootstrap, new_topic())
    writer.write("A1 A+")
    mine = states_of(bootstrap, [writer.transactional_id("A")])
    assert client_versions(mine) == {writer.transactional_id("A"): 0}
    aborted = entry("CompleteAbort", 4, 2_000, 0)
    assert client_versions([aborted]) == {}
    assert client_versions([entry("Ongoing", 3, 1_000, 2), aborted]) == {"x": 2}
    assert [is_exposed(version) for version in (0, 2, None)] == [True, False, None]


def entry(state: str, epoch: int, updated_ms: int, client_version: int) -> StateEntry:
    return StateEntry(
        "x", 7, -1, epoch, 60_000, state, frozenset({("t", 0)}), updated_ms, 1_000, client_version
    )


@pytest.mark.parametrize(
    ("client_version", "then", "updated_ms", "reason"),
    [
        (2, None, 2_000, "declared"),
        (2, "Ongoing", 2_000, "declared"),
        (2, "Empty", 2_000, None),
        (2, "Ongoing", 70_000, "timeout"),
        (0, "Empty", 2_000, "fenced"),
    ],
)
def test_a_client_whose_every_end_raises_the_epoch(
    client_version: int, then: str | None, updated_ms: int, reason: str | None
) -> None:
    """A Java client of transaction version 2. Its aborts look like fences, and the entries that
    follow tell them apart."""
    row = {
        "partition": 0,
        "producer_id": 7,
        "producer_epoch": 3,
        "marker_epoch": 4,
        "outcome": "ABORTED",
    }
    table = pd.DataFrame([row | {"marker_timestamp": updated_ms + 3}])
    states = [entry("Ongoing", 3, 1_000, client_version), entry("PrepareAbort", 4, updated_ms, 2)]
    states += [entry("CompleteAbort", 4, updated_ms + 5, 2)]
    states += [entry(then, 4, updated_ms + 9, 2)] if then else []
    assert abort_reasons("t", table, states) == [reason]
    assert abort_reasons("another", table, states) == ["operator"], "decided for another topic"
    assert abort_reasons("another", table, ()) == [None]
