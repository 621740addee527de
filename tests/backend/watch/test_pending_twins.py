"""Records that share an identity, one of which is in an open transaction: nothing is told of a copy
before it is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.backend.watch.test_contracts import watching
from tests.backend.watch.test_unreadable import alarms, fields_of, looked
from tests.conftest import wait_until
from topicproof.backend.address import Address
from topicproof.backend.kafka.client_configs import transactional_producer_config
from topicproof.backend.kafka.log.rawlog import connect
from topicproof.backend.watch.alarms import Change, Notice
from topicproof.backend.watch.conditions import Kind
from topicproof.validators.finding import Outcome

NewTopic = Callable[..., str]


class Writer:
    """Writes records with keys, in transactions of one producer and topic."""

    def __init__(self, bootstrap: str, topic: str, *, number: int = 0) -> None:
        self.address, self.topic = Address(bootstrap), topic
        self._producer = Producer(transactional_producer_config(self.address, f"{topic} {number}"))
        self._producer.init_transactions(30)

    def begin(self, keys: Sequence[str], partition: int = 0) -> None:
        """Leave a transaction open."""
        self._producer.begin_transaction()
        for key in keys:
            self._producer.produce(self.topic, b"value", key, partition=partition)
        assert self._producer.flush(30) == 0

    def end(self, *, is_aborted: bool = False, withheld: int = 0) -> None:
        """End it. Returns once only so many partitions withhold records."""
        if is_aborted:
            self._producer.abort_transaction(30)
        else:
            self._producer.commit_transaction(30)

        def withheld_now() -> int:
            with connect(self.address) as kafka:
                return sum(p.lso < p.hw for p in kafka.bounds(self.topic).partitions)

        # The coordinator answers before it has written the marker.
        wait_until(lambda: withheld_now() == withheld, 30, "the marker")

    def write(self, *keys: str, partition: int = 0) -> None:
        self.begin(keys, partition)
        self.end()


@pytest.fixture
def source(bootstrap: str, new_topic: NewTopic) -> Writer:
    return Writer(bootstrap, new_topic())


@pytest.fixture
def sink(bootstrap: str, new_topic: NewTopic) -> Writer:
    return Writer(bootstrap, new_topic(partitions=2))


def contract(source: Writer, sink: Writer) -> dict[str, object]:
    return {**fields_of(source.topic, sink.topic), "identity": "key"}


def changes(notices: Sequence[Notice]) -> list[tuple[Change, str]]:
    """What was told of the contract."""
    return [
        (each.change, each.alarm.condition.finding)
        for each in notices
        if each.alarm.condition.contract
    ]


@pytest.mark.parametrize("partition", [0, 1])
def test_a_second_output_is_a_copy_once_its_transaction_is_committed(
    partition: int, bootstrap: str, source: Writer, sink: Writer, tmp_path: Path
) -> None:
    """Story: a program writes an output again in a transaction that stays open, and aborts. That is
    no copy. It does so once more, and commits: the next look tells it, once."""
    source.write("a", "b")
    sink.write("a", "b")
    with watching(bootstrap, tmp_path, contract(source, sink)) as (watcher, notices):
        looked(watcher)
        for is_aborted in (True, False):
            sink.begin(["a"], partition)
            for _ in range(2):
                assert looked(watcher).outcome is Outcome.HOLDS
            sink.end(is_aborted=is_aborted)
            assert looked(watcher).outcome is (Outcome.HOLDS if is_aborted else Outcome.VIOLATED)
            assert alarms(notices) == ({} if is_aborted else {"duplicate": Kind.VIOLATED})
        looked(watcher)
    assert changes(notices) == [(Change.BEGAN, "duplicate")]


def test_the_first_of_two_outputs_may_be_the_one_that_is_open(
    bootstrap: str, source: Writer, sink: Writer, tmp_path: Path
) -> None:
    """Story: an output lies in an open transaction, and a second program writes it too, and
    commits. The first transaction aborts. The next one commits, which makes a copy."""
    again = Writer(bootstrap, sink.topic, number=1)
    source.write("a", "b")
    with watching(bootstrap, tmp_path, contract(source, sink)) as (watcher, notices):
        for key, is_aborted in (("a", True), ("b", False)):
            sink.begin([key], 0)
            again.begin([key], 1)
            again.end(withheld=1)
            looked(watcher)
            sink.end(is_aborted=is_aborted)
            looked(watcher)
            copies = [each for each in changes(notices) if each[1] == "duplicate"]
            assert copies == ([] if is_aborted else [(Change.BEGAN, "duplicate")])


@pytest.mark.parametrize("is_aborted", [True, False], ids=["aborts", "commits"])
@pytest.mark.parametrize("partition", [0, 1])
def test_an_output_of_an_input_that_is_still_open_is_no_copy_of_its_twins(
    partition: int, is_aborted: bool, bootstrap: str, source: Writer, sink: Writer, tmp_path: Path
) -> None:
    """Story: an input has the key of an earlier one, and its transaction is open. A pipeline that
    reads at read_uncommitted has written its output. Until the transaction ends nobody knows
    whether that is a copy, and none is told. The look after an abort tells it. A restart meanwhile
    changes nothing."""
    source.write("twice", "fine")
    sink.write("twice", "fine")
    with watching(bootstrap, tmp_path, contract(source, sink)) as (watcher, notices):
        looked(watcher)
        assert looked(watcher).outcome is Outcome.HOLDS
        source.begin(["twice"])
        sink.write("twice", partition=partition)
        figures = looked(watcher)
        assert changes(notices) == [] and figures.verdict is not None
        duplicates = figures.verdict.by_kind["duplicate"]
        assert (duplicates.primary, duplicates.count, duplicates.explained_by) == (0, 1, "pending")
        assert figures.outcome is Outcome.UNKNOWN
    with watching(bootstrap, tmp_path, contract(source, sink)) as (watcher, notices):
        looked(watcher)
        assert changes(notices) == []
        source.end(is_aborted=is_aborted)
        figures = looked(watcher)
        assert figures.verdict is not None
        assert figures.verdict.by_kind["duplicate"].count == int(is_aborted)
        copies = [each for each in changes(notices) if each[1] == "duplicate"]
        assert copies == ([(Change.BEGAN, "duplicate")] if is_aborted else [])


@pytest.mark.parametrize("partition", [0, 1])
def test_an_open_transaction_of_the_source_hides_no_other_copy(
    partition: int, bootstrap: str, source: Writer, sink: Writer, tmp_path: Path
) -> None:
    """Story: while an input is open that has the key of an earlier one, the output of a third input
    is written again, be it behind the one of which nothing is known. The next look tells it."""
    source.write("twice", "copied")
    sink.write("twice", "copied")
    with watching(bootstrap, tmp_path, contract(source, sink)) as (watcher, notices):
        source.begin(["twice", "new"])
        sink.write("twice", partition=partition)
        assert looked(watcher).outcome is Outcome.UNKNOWN and changes(notices) == []
        sink.write("copied", partition=partition)
        figures = looked(watcher)
        assert changes(notices) == [(Change.BEGAN, "duplicate")] and figures.verdict is not None
        duplicates = figures.verdict.by_kind["duplicate"]
        assert (duplicates.primary, duplicates.count) == (1, 2)
    source.end(is_aborted=True)
