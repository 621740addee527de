"""Faults on purpose: each fires where it says, and a sink that promised exactly once stays
exact."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.runs import Finished, read_all, run_to_end
from topicproof.backend.address import Address
from topicproof.backend.errors import OffsetsMoved
from topicproof.backend.history.store import History
from topicproof.backend.runs.resume import resume
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.backend.sink.entries import (
    Declared,
    Entry,
    FaultFired,
    TaskStarted,
    TransactionEnded,
)
from topicproof.backend.sink.hooks import Step
from topicproof.backend.sink.journal import read_journal
from topicproof.validators.finding import Outcome
from topicproof.validators.lineage.headers import REASON_HEADER

RECORDS, PARTITIONS, PER_TRANSACTION = 400, 2, 50


def struck(settings: Settings, cluster: Services, *faults: str) -> tuple[Finished, list[Entry]]:
    """A run with these faults that must be exact in the end, and its journal. Every fault has fired
    everywhere once."""
    done = run_to_end(
        settings,
        cluster,
        records=RECORDS,
        partitions=PARTITIONS,
        per_transaction=PER_TRANSACTION,
        faults=faults,
    )
    assert done.report.verdict is Outcome.HOLDS, done.report.why
    assert done.run.error is None
    got = Counter(message.value for message in read_all(cluster.bootstrap, done.sink))
    assert got == Counter(str(n * n).encode() for n in range(RECORDS))
    entries = read_journal(Address(cluster.bootstrap, settings.client), done.run.facts.journal)
    fired = Counter(
        (one.fault, one.source_partition) for one in entries if isinstance(one, FaultFired)
    )
    assert fired == {(fault, p): 1 for fault in faults for p in range(PARTITIONS)}
    return done, entries


def tasks(entries: list[Entry]) -> int:
    return sum(isinstance(one, TaskStarted) for one in entries)


def declared(entries: list[Entry], outcome: Declared) -> list[TransactionEnded]:
    return [one for one in entries if isinstance(one, TransactionEnded) and one.outcome is outcome]


def test_an_exception_at_any_step_is_an_attempt_more(settings: Settings, cluster: Services) -> None:
    """Story: the worker's code raises at each step, each time in a later transaction. Spark runs
    the task again."""
    faults = [
        f"error@transaction={n}{'' if step is Step.PRODUCED else f',step={step}'}"
        for n, step in enumerate(Step, 1)
    ]
    _, entries = struck(settings, cluster, *faults[:4])
    assert tasks(entries) == PARTITIONS * 5
    assert len(declared(entries, Declared.UNKNOWN)) == PARTITIONS * 4


@pytest.mark.parametrize("step", ["begun", "offset_sent"])
def test_a_zombie_is_fenced(settings: Settings, cluster: Services, step: str) -> None:
    """Story: a worker is cut off and paused while Spark runs its task again. When it continues, it
    is fenced: what it had produced is aborted, and it cannot commit."""
    _, entries = struck(settings, cluster, f"zombie@transaction=2,step={step}")
    fenced = declared(entries, Declared.FENCED)
    assert {(one.source_partition, one.sequence) for one in fenced} == {
        (p, 2) for p in range(PARTITIONS)
    }
    assert all("was taken over by another producer" in one.reason for one in fenced)


def test_a_hijacked_worker_takes_its_id_back(settings: Settings, cluster: Services) -> None:
    """Story: another process takes the transactional id between produce and commit, and leaves. The
    worker is fenced; its task's next attempt continues."""
    _, entries = struck(settings, cluster, "hijack@transaction=3")
    fenced = declared(entries, Declared.FENCED)
    assert {(one.source_partition, one.sequence) for one in fenced} == {
        (p, 3) for p in range(PARTITIONS)
    }
    assert tasks(entries) == PARTITIONS * 2


@pytest.mark.parametrize("forced", [False, True])
def test_a_run_whose_offsets_were_moved_refuses_or_says_what_came_of_it(
    settings: Settings, cluster: Services, forced: bool
) -> None:
    """Story: somebody moves the group's offsets back during a run. The run refuses to continue, and
    refuses again when resumed. A plan that continues anyway repeats a transaction of every
    partition, and the verdict counts exactly these."""
    plan = {"records": RECORDS, "partitions": PARTITIONS, "per_transaction": PER_TRANSACTION}
    fault = "offsets@transaction=2,how=rewound"
    done = run_to_end(settings, cluster, **plan, faults=[fault], offsets_forced=forced)
    got = Counter(message.value for message in read_all(cluster.bootstrap, done.sink))
    if forced:
        found = {finding.kind: finding.primary for finding in done.report.findings}
        assert sum(got.values()) - len(got) == found["duplicate"] == PARTITIONS * PER_TRANSACTION
        assert done.report.verdict is Outcome.VIOLATED and done.run.error is None
    else:
        says = (
            "left it at 100: somebody moved it back, and continuing would repeat offsets 50 to 99"
        )
        assert says in str(done.run.error) and set(got.values()) == {1}
        # What it refused to go on with is not lost: it waits.
        report = done.report
        assert (
            report.verdict is Outcome.HOLDS
            and report.not_processed == RECORDS - sum(got.values()) > 0
        ), report.why
        with pytest.raises(OffsetsMoved, match=says):
            resume(settings, cluster, History(settings), done.run.id)


def test_a_refused_input_is_a_dead_letter_and_nothing_is_missing(
    settings: Settings, cluster: Services
) -> None:
    """Story: the broker refuses a record of every partition for good. The run's plan has a place
    for dead letters, so the input's offset goes there with its reason, and the verdict over both
    topics holds."""
    plan = {"records": RECORDS, "partitions": PARTITIONS, "per_transaction": PER_TRANSACTION}
    fault = "refused@transaction=2,times=99"
    done = run_to_end(settings, cluster, **plan, faults=[fault], sink={"dead_letters": True})
    assert done.report.verdict is Outcome.HOLDS, done.report.why
    buried = read_all(cluster.bootstrap, f"{done.sink}.dead-letters")
    assert len(buried) == PARTITIONS, read_journal(
        Address(cluster.bootstrap), done.run.facts.journal
    )
    assert len(read_all(cluster.bootstrap, done.sink)) == RECORDS - PARTITIONS
    assert all(b"MSG_SIZE_TOO_LARGE" in dict(letter.headers)[REASON_HEADER] for letter in buried)
