"""Who wrote what a finding is about, in topics of other programs: no header names a transaction,
but the logs do."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.validators.history import history, side_by_side
from topicproof.validators.coordinator import AbortReason, Attribution
from topicproof.validators.facts.writers import time_of
from topicproof.validators.finding import Finding, Guarantee, Outcome
from topicproof.validators.judge import judge
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.report import Report

TIMELESS = ", no time known"
"""Of logs whose times are 0."""
LOST, TWICE, HANDED_OVER, DIVIDED, TAKEN_OVER = range(5)
ABORTED, TOGETHER, IN_TURN, PLAIN, SHARED = range(5)
"""Partitions, each with a story."""


def producer(partition: int, name: str) -> int:
    return 1000 * (1 + partition) + ord(name)


TOLD = Attribution(
    {
        producer(partition, name): f"{name}-of-{partition}"
        for partition in range(5)
        for name in "ab"
    },
    (AbortReason(LOST, 2, "timeout"),),
)


@pytest.fixture(scope="module")
def report(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Every story, each in its own partition, judged once."""
    stories = {
        # The coordinator aborts b's transaction after its time-out; the job goes on behind it.
        LOST: "a:0@ a:C b:1@ b:2@ b:A a:3@ a:C",
        # Both write input 1, each unaware of the other.
        TWICE: "a:0@ a:1@ a:C b:1@ b:2@ b:C",
        # b takes over where a has stopped: nothing is wrong.
        HANDED_OVER: "a:0@ a:1@ a:C b:2@ b:3@ b:C",
        # Two threads divide a partition's inputs and keep their order: nothing is wrong.
        DIVIDED: "a:0@ a:C b:1@ b:C a:2@ a:C",
        # a is started again, which raises its epoch.
        TAKEN_OVER: "a:0@ a:C a:1@ a:C a1:2@ a1:C",
    }
    inputs = {LOST: 4, TWICE: 3, HANDED_OVER: 4, DIVIDED: 3, TAKEN_OVER: 3}
    log = side_by_side(
        history(
            line,
            inputs=inputs[partition],
            first=partition,
            keys={(0, offset): f"{partition}.{offset}".encode() for offset in range(4)},
        )
        for partition, line in stories.items()
    )
    folder = tmp_path_factory.mktemp("writers")
    ledger = log.ledger(spark, folder, identity=Identity.KEY, attribution=TOLD)
    return judge(ledger, Guarantee.EXACTLY_ONCE)


def writer(partition: int, name: str, end: str) -> str:
    number = producer(partition, name)
    return f"transactional id {name}-of-{partition}, producer id {number}, epoch 0, {end}{TIMELESS}"


def finding_of(report: Report, kind: str) -> Finding:
    return next(finding for finding in report.findings if finding.kind == kind)


def test_a_gap_is_linked_with_its_aborted_output(report: Report) -> None:
    """Story: two inputs have no committed output. Both outputs are in one transaction that its
    coordinator aborted, and the verdict says whose it is, why and when it ended."""
    gap = finding_of(report, "gap")
    aborted = writer(LOST, "b", "aborted by time-out")
    says = (
        f"2 of 17 expected outputs are missing (of inputs numbers-{LOST}@1, numbers-{LOST}@2):"
        f" their outputs were written by {aborted}"
    )
    assert (gap.outcome, gap.why) == (Outcome.VIOLATED, f"{says}.")
    assert [example.why.partition(". ")[2] for example in gap.examples] == [
        f"Its output was aborted: squares-{LOST}@{offset}, {aborted}." for offset in (2, 3)
    ]
    assert {example.transaction for example in gap.examples} == {aborted}
    assert [example.identity for example in gap.examples] == [f'"{LOST}.1"', f'"{LOST}.2"']
    assert says in report.why


def test_both_copies_of_a_duplicate_name_their_writers(report: Report) -> None:
    """Story: an output is committed by two transactional ids. The later copy's writer is the row's
    transaction, the sentence names the first one's."""
    duplicate = finding_of(report, "duplicate")
    first, later = (writer(TWICE, name, "committed") for name in "ab")
    assert (
        duplicate.why
        == f"1 of 16 committed records repeats a committed output, written by {later}."
    )
    assert [(example.transaction, example.why) for example in duplicate.examples] == [
        (
            later,
            f"The output of this input is committed 2 times; the first is at squares-{TWICE}@1."
            f" That one is of {first}.",
        )
    ]


def test_two_ids_that_repeat_each_other_are_found(report: Report) -> None:
    """Story: two transactional ids write outputs of one input, unaware of each other. Elsewhere one
    takes over from the other, or they divide the inputs: only the first is a zombie's write."""
    zombie = finding_of(report, "zombie_write")
    assert (zombie.outcome, zombie.count) == (Outcome.VIOLATED, 1)
    assert [(example.partition, example.offset, example.why) for example in zombie.examples] == [
        (
            TWICE,
            3,
            f"Both a-of-{TWICE} and b-of-{TWICE} committed outputs of 1 input of one source"
            " partition, offset 1, in transactions one after the other.",
        )
    ]


@pytest.fixture(scope="module")
def unnamed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Every story, each in its own partition, where no coordinator names a transactional id."""
    stories = {
        ABORTED: "a:0@ a:C b:1@ b:A",
        # Both transactions are open at the same time, and hold input 1.
        TOGETHER: "a:0@ a:1@ b:1@ a:C b:C",
        # A job starts again from an old offset. Its transactional id may have a new producer id.
        IN_TURN: "a:0@ a:1@ a:C b:1@ b:C",
        PLAIN: "0! 1! 1!",
        # Two sinks of one job share the inputs, in transactions that are open at the same time.
        SHARED: "a:0@ b:1@ a:2@ a:C b:3@ b:C",
    }
    log = side_by_side(
        history(
            line,
            inputs=4 if partition == SHARED else 2,
            first=partition,
            keys={(0, offset): f"{partition}.{offset}".encode() for offset in range(4)},
        )
        for partition, line in stories.items()
    )
    folder = tmp_path_factory.mktemp("unnamed")
    return judge(log.ledger(spark, folder, identity=Identity.KEY), Guarantee.EXACTLY_ONCE)


def test_producers_are_named_where_no_coordinator_names_a_transactional_id(
    unnamed: Report,
) -> None:
    """Story: a client may not read the coordinators' log. Gaps and duplicates name the producer id,
    the epoch and the time; a batch outside transactions names a producer that has none."""
    gap = finding_of(unnamed, "gap")
    aborted = f"producer id {producer(ABORTED, 'b')}, epoch 0, aborted{TIMELESS}"
    assert gap.why == (
        f"1 of 12 expected outputs is missing (of input numbers-{ABORTED}@1): its output was"
        f" written by {aborted}."
    )
    assert [example.transaction for example in gap.examples] == [aborted]
    plain = f"a producer without idempotence, outside transactions{TIMELESS}"
    writers = [
        *(f"producer id {producer(p, 'b')}, epoch 0, committed{TIMELESS}" for p in (1, 2)),
        plain,
    ]
    duplicate = finding_of(unnamed, "duplicate")
    assert [example.transaction for example in duplicate.examples] == writers
    assert duplicate.examples[-1].why.endswith(
        f"; the first is at squares-{PLAIN}@1. That one is of {plain}."
    )


def test_ids_that_nothing_names_are_not_said_to_be_missing(unnamed: Report) -> None:
    """Story: the log is full of transactions, so there are transactional ids. Nothing names
    them."""
    change = finding_of(unnamed, "identity_change")
    assert (change.outcome, change.why) == (
        Outcome.UNKNOWN,
        "Nothing to look at: the log holds 8 transactions, but neither a header nor a coordinator"
        " names a transactional id.",
    )


def test_two_open_transactions_are_two_ids_whatever_their_names(unnamed: Report) -> None:
    """Story: two producers without names repeat an output. In one partition both transactions are
    open at the same time: these are two transactional ids, each unaware of the other. In another
    one follows the other, and may be its successor. In a third they overlap and repeat nothing."""
    zombie = finding_of(unnamed, "zombie_write")
    assert (zombie.outcome, [example.why for example in zombie.examples]) == (
        Outcome.VIOLATED,
        [
            f"Both producer id {producer(TOGETHER, 'a')} and producer id {producer(TOGETHER, 'b')}"
            " committed outputs of 1 input of one source partition, offset 1, in transactions"
            " that were open at the same time."
        ],
    )
    writer = f"producer id {producer(TOGETHER, 'b')}, epoch 0, committed{TIMELESS}"
    assert zombie.why == (
        "1 second writer worked among another's inputs, under a transactional id of its own, which"
        f" fences nobody, among 10 batches: {writer}."
    )


def test_coordinators_name_who_changed_identity_and_why_records_are_aborted(report: Report) -> None:
    """Story: no header names a transactional id, but the coordinators' log does."""
    change = finding_of(report, "identity_change")
    assert (change.outcome, [example.why for example in change.examples]) == (
        Outcome.HOLDS,
        [
            f"a-of-{TAKEN_OVER}: producer id {producer(TAKEN_OVER, 'a')} went from epoch 0 to"
            " 1 in at least 3 transactions: takeovers, fences or timeouts (transaction version 1)."
        ],
    )
    assert change.why == "1 of 9 transactional ids changed its producer id or epoch."
    (aborted,) = finding_of(report, "aborted_volume").examples
    assert aborted.why == (
        f"2 aborted records of b-of-{LOST}, producer id {producer(LOST, 'b')}, 28.6 % of the"
        f" partition's offsets: aborted by time-out."
    )


def test_times_that_no_calendar_has_are_left_out() -> None:
    """Story: a producer writes any 64 bits as a time."""
    assert [time_of(ms) for ms in (-1, 0, 1, 253_402_300_799_000, 2**63 - 1)] == [
        "",
        "",
        "1970-01-01 00:00:00 UTC",
        "9999-12-31 23:59:59 UTC",
        "",
    ]
