"""Who caused what a verdict does not hold for, and what is said where nobody can know."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.app.test_history_page import TWICE
from topicproof.validators.expectation import PENDING, UNTOLD
from topicproof.validators.finding import Example, Finding, Outcome
from topicproof.validators.kinds.gap import NEAREST, WITHOUT_TRACE
from topicproof.validators.report import Report
from topicproof.validators.who import who_sentence

SINK, SOURCE = TWICE.sink.topic, TWICE.source.topic
COMMITTED = "committed 2026-11-28 14:03:12 UTC"
NAMED = f"transactional id a-1, transaction 2 of it, attempt 1, producer id 7, epoch 0, {COMMITTED}"
FOREIGN = f"transactional id b, producer id 9, epoch 3, {COMMITTED}"


def row(transaction: str | None, why: str = "", *, of_source: bool = False) -> Example:
    partition, offset = (None, None) if of_source else (0, 7)
    return Example(partition, offset, f"{SOURCE}/0/3", transaction, why)


def report_of(
    *examples: Example,
    kind: str = "duplicate",
    outcome: Outcome = Outcome.VIOLATED,
    why: str = "It is wrong.",
    explained_by: str | None = None,
    count: int | None = None,
) -> Report:
    count = len(examples) if count is None else count
    primary = 0 if explained_by else count
    finding = Finding(kind, outcome, count, primary, explained_by, examples, why)
    return replace(TWICE, verdict=outcome, findings=(finding,), not_checked=(), doubts=())


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (report_of(row(NAMED)), "written by transactional id a-1, producer id 7, epoch 0"),
        # Evidence of earlier versions has no producer beside the header's transaction.
        (report_of(row("a/1/2/1")), "written by transactional id a/1"),
        # Whoever chooses a name cannot pass for another producer.
        (
            report_of(row(f"transactional id x, producer id 1, epoch 1, {FOREIGN}")),
            "written by transactional id x, producer id 1, epoch 1, transactional id b, producer"
            " id 9, epoch 3",
        ),
        (
            report_of(row(NAMED), row(FOREIGN), count=50),
            "written by transactional id a-1, producer id 7, epoch 0 and transactional id b,"
            " producer id 9, epoch 3 (of 2 of 50 rows)",
        ),
        (
            report_of(row(f"a producer without idempotence, outside transactions, {COMMITTED}")),
            "written by a producer without idempotence",
        ),
        (
            report_of(row(None, f"It is lost. {WITHOUT_TRACE}.", of_source=True), kind="gap"),
            f"no writer is named, because no record of {SINK} names this input, aborted ones"
            " included",
        ),
        (
            report_of(
                row(
                    None,
                    f"{WITHOUT_TRACE}. {NEAREST}, {SINK}-0@2 of input {SOURCE}-0@2, was written by"
                    f" {FOREIGN}.",
                    of_source=True,
                ),
                kind="gap",
            ),
            f"no writer is named, because no record of {SINK} names this input, aborted ones"
            " included; the nearest output was written by transactional id b, producer id 9,"
            " epoch 3",
        ),
        (
            report_of(
                row(FOREIGN),
                row(None, of_source=True),
                kind="identity_missing",
                outcome=Outcome.UNKNOWN,
            ),
            "written by transactional id b, producer id 9, epoch 3; the producers"
            f" of {SOURCE} are not looked up in a check: `topicproof inspect {SOURCE}` lists those"
            " that its brokers remember",
        ),
        (
            report_of(
                row(None, of_source=True),
                kind="gap",
                outcome=Outcome.UNKNOWN,
                explained_by=PENDING,
            ),
            f"`topicproof inspect {SINK}` names the producers of open transactions",
        ),
        (
            report_of(row(None, of_source=True), kind="offset_ahead"),
            "a check does not look up who committed the group's offset: a producer in a"
            " transaction, a member, or an operator's reset. `kafka-dump-log.sh"
            " --offsets-decoder` shows its record in __consumer_offsets, which has a producer id if"
            " a transaction committed it",
        ),
    ],
)
def test_the_line_below_a_verdict_says_who(report: Report, expected: str) -> None:
    """Story: somebody asks who wrote it. A writer is named with the producer id and epoch; where
    nobody can be named, the line says why and where to look."""
    assert who_sentence(report) == f"{report.findings[0].kind}: {expected}"


def test_a_writer_that_the_sentence_names_is_not_named_again() -> None:
    """Story: the logs name the writer of every repeat, so the finding's sentence has it."""
    why = f"1 of 2 committed records repeats a committed output, written by {FOREIGN}."
    assert who_sentence(report_of(row(FOREIGN), why=why)) == ""


def test_nobody_did_what_holds() -> None:
    """Story: everything holds, or the group has committed no offset: nobody did anything."""
    absent = report_of(row(None), kind="offset_ahead", outcome=Outcome.UNKNOWN, explained_by=UNTOLD)
    assert who_sentence(absent) == ""
    assert who_sentence(report_of(row(NAMED), outcome=Outcome.HOLDS)) == ""
