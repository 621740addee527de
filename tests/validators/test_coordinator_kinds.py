"""What the coordinator and the partitions' leaders tell, judged: hanging, stalled, stuck, and all
of them healthy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.backend.kafka.hanging import hang
from tests.backend.kafka.topics import Writer
from tests.validators.history import hearing, history
from topicproof.backend.address import Address, Sides
from topicproof.backend.judging.judge import judge_topics
from topicproof.backend.kafka.log.rawlog import fetch_bounds
from topicproof.validators.coordinator import Coordinator, OpenTransaction, UnstableOffset
from topicproof.validators.finding import Guarantee, Outcome
from topicproof.validators.judge import judge
from topicproof.validators.kinds import hanging, lso_stall, unstable_offsets
from topicproof.validators.kinds.catalogue import Validator
from topicproof.validators.ledger.ledger import Ledger
from topicproof.validators.lineage.identity import Identity
from topicproof.validators.question import Question

NewTopic = Callable[..., str]

OPEN = OpenTransaction(
    partition=0,
    producer_id=7,
    producer_epoch=1,
    coordinator_epoch=0,
    start_offset=12,
    transactional_id="payments",
    state="Ongoing",
    age_ms=5_000,
    timeout_ms=60_000,
    records=2,
    withheld=5,
    hanging=False,
)
"""An ordinary open transaction, with three records of others behind it."""
LATE = replace(OPEN, age_ms=90_000)
HANGING = replace(LATE, transactional_id=None, state=None, timeout_ms=None, hanging=True)
STUCK = replace(LATE, state="PrepareCommit")

Rows = list[tuple[int | None, int | None, str, str | None]]


@pytest.fixture(scope="module")
def ledger(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """A sound topic; each test adds what the coordinator says."""
    return history("0 1 C", inputs=2).ledger(spark, tmp_path_factory.mktemp("ledger"))


def rows(
    validator: Validator,
    ledger: Ledger,
    *opened: OpenTransaction,
    unstable: tuple[UnstableOffset, ...] = (),
) -> Rows:
    heard = Coordinator(3, opened, 4, unstable)
    found = validator.find(hearing(ledger, coordinator=heard))
    told = found.collect() if found is not None else []
    return [
        (one["partition"], one["offset"], one["transaction"], one["explained_by"]) for one in told
    ]


@pytest.mark.parametrize(
    ("validator", "opened", "expected"),
    [
        (hanging, (), []),
        (hanging, (OPEN, LATE, STUCK), []),
        (hanging, (OPEN, HANGING), [(0, 12, "producer 7", None)]),
        (lso_stall, (), []),
        (lso_stall, (OPEN,), []),
        (lso_stall, (LATE,), [(0, 12, "payments", None)]),
        (lso_stall, (HANGING,), [(0, 12, "producer 7", "hanging")]),
        (lso_stall, (STUCK,), [(0, 12, "payments", "unstable_offsets")]),
        # Nothing of others waits behind it.
        (lso_stall, (replace(LATE, withheld=2),), []),
        # Younger than what may still end by itself, though nobody knows its timeout.
        (lso_stall, (replace(HANGING, age_ms=65_000),), []),
        # An earlier one holds the last stable offset, and is in time; on another partition it would
        # not be.
        (lso_stall, (LATE, replace(OPEN, start_offset=3)), []),
        (
            lso_stall,
            (LATE, replace(OPEN, start_offset=3, partition=1)),
            [(0, 12, "payments", None)],
        ),
        (unstable_offsets, (), []),
        (unstable_offsets, (OPEN, LATE, HANGING), []),
        (unstable_offsets, (STUCK,), [(0, 12, "payments", None)]),
        (unstable_offsets, (replace(STUCK, state="PrepareAbort"),), [(0, 12, "payments", None)]),
        (unstable_offsets, (replace(STUCK, age_ms=5_000),), []),
    ],
)
def test_a_kind_is_found_where_it_is_and_nowhere_else(
    validator: Validator, opened: tuple[OpenTransaction, ...], expected: Rows, ledger: Ledger
) -> None:
    """The same transaction in time, late, hanging and decided. Each kind names its own, and is
    silent on the rest."""
    assert rows(validator, ledger, *opened) == expected


@pytest.mark.parametrize(("holder", "found"), [(OPEN, 0), (LATE, 1), (HANGING, 1), (STUCK, 1)])
def test_an_offset_that_does_not_become_stable_is_told(
    holder: OpenTransaction, found: int, ledger: Ledger
) -> None:
    """A group's offset is in a transaction on `__consumer_offsets`. While that is in time, it is
    nobody's business."""
    waiting = UnstableOffset("billing", "numbers", 2, (holder,))
    assert (
        rows(unstable_offsets, ledger, unstable=(waiting,))
        == [(None, None, holder.name, None)] * found
    )
    assert "offset of group billing on numbers-2" in waiting.why


def test_a_sentence_names_who_blocks_and_what_waits(ledger: Ledger) -> None:
    """An operator reads the row. It says since when, by whom, and how many records of other
    producers wait."""
    found = lso_stall.find(hearing(ledger, coordinator=Coordinator(1, (LATE,), 0, ())))
    assert found is not None
    (row,) = found.collect()
    assert row["why"] == (
        "The last stable offset has been at 12 for 1 minute 30 seconds: payments (producer 7) holds"
        " it, and 3 records of other producers wait behind it."
    )


def test_without_the_coordinator_nothing_is_claimed(ledger: Ledger) -> None:
    """The client may not describe transactions. These kinds are unknown, and the verdict rests on
    the others."""
    deaf = judge(ledger, Guarantee.EXACTLY_ONCE)
    found = {one.kind: one.outcome for one in deaf.findings}
    assert found["hanging"] is found["lso_stall"] is found["unstable_offsets"] is Outcome.UNKNOWN
    assert deaf.verdict is Outcome.HOLDS


def test_what_was_not_looked_at_holds_for_nobody(ledger: Ledger) -> None:
    """More transactions are open than one look takes in. Those that were left out may hang, and one
    of them may hold an offset that looks stuck. The sentence says so."""
    waiting = UnstableOffset("billing", "numbers", 2, (LATE,), has_unseen_holders=True)
    assert "transaction of payments or another, which may be under way" in waiting.why
    kinds = "hanging", "lso_stall", "unstable_offsets"

    def unknown(left_out: int, offsets_left_out: int) -> dict[str, str]:
        coordinator = Coordinator(3, (OPEN,), 4, (waiting,), left_out, offsets_left_out)
        findings = judge(hearing(ledger, coordinator=coordinator), Guarantee.EXACTLY_ONCE).findings
        return {
            finding.kind: finding.why
            for finding in findings
            if finding.outcome is Outcome.UNKNOWN and finding.kind in kinds
        }

    why = "Not judged. Left out, because there are too many: 1 open transaction of the sink."
    assert unknown(1, 0) == dict.fromkeys(kinds, why)
    assert unknown(0, 2).keys() == {"unstable_offsets"}
    assert unknown(0, 0) == {}


def test_a_sound_topic_holds_with_its_denominators(ledger: Ledger) -> None:
    """Three partitions and four offsets of groups were asked about, and nothing is wrong. That is
    said with counts."""
    report = judge(hearing(ledger, coordinator=Coordinator(3, (), 4, ())), Guarantee.EXACTLY_ONCE)
    asked = {one.kind: one.records for one in report.checked}
    assert (asked["hanging"], asked["lso_stall"], asked["unstable_offsets"]) == (3, 3, 7)
    found = {one.kind: one for one in report.findings}
    assert found["hanging"].outcome is Outcome.HOLDS
    assert "None of 3 partitions holds a hanging transaction" in found["hanging"].why


def test_a_hanging_transaction_shows_in_the_verdict_on_real_topics(
    bootstrap: str, spark: SparkSession, new_topic: NewTopic, tmp_path: Path
) -> None:
    """A late write hangs on a real sink. The verdict names it; what is pending behind it is
    unknown, not violated."""
    source, sink = new_topic(), new_topic()
    for topic in (source, sink):
        Writer(bootstrap, topic).write("n3")
    question = Question(
        source=fetch_bounds(Address(bootstrap), source), sink=sink, identity=Identity.KEY
    )
    before = {
        one.kind: one
        for one in judge_topics(
            spark, Sides(Address(bootstrap)), question, tmp_path / "before"
        ).findings
    }
    assert before["hanging"].outcome is before["lso_stall"].outcome is Outcome.HOLDS
    producer_id = hang(bootstrap, sink)
    report = judge_topics(spark, Sides(Address(bootstrap)), question, tmp_path / "after")
    (found,) = [one for one in report.findings if one.kind == "hanging"]
    assert (found.outcome, found.count) == (Outcome.VIOLATED, 1)
    assert (found.examples[0].partition, found.examples[0].offset) == (0, 3)
    assert f"producer {producer_id} last wrote" in found.examples[0].why
    assert report.verdict is Outcome.UNKNOWN
