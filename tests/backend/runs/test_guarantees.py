"""The three guarantees, each a real mode of the sink: what a killed worker does to each, and what
each may break."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tests.runs import Finished, read_all, run_to_end
from topicproof.backend.address import Address
from topicproof.backend.history.store import State
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.backend.sink.entries import FaultFired
from topicproof.backend.sink.hooks import Step
from topicproof.backend.sink.journal import read_journal
from topicproof.validators.finding import Outcome

RECORDS, PARTITIONS, PER_TRANSACTION = 600, 2, 100
CHUNK = 50
"""Records of a transaction in a run with crashes. The last one of a partition has fewer."""


def run(settings: Settings, cluster: Services, guarantee: str, **plan: Any) -> Finished:
    plan = {
        "records": RECORDS,
        "partitions": PARTITIONS,
        "per_transaction": PER_TRANSACTION,
        **plan,
    }
    return run_to_end(settings, cluster, guarantee=guarantee, **plan)


def copies(cluster: Services, done: Finished) -> tuple[int, int]:
    """How many outputs a plain client gets once too often, and how many never."""
    got = Counter(message.value for message in read_all(cluster.bootstrap, done.sink))
    expected = {str(n * n).encode() for n in range(RECORDS)}
    assert set(got) <= expected
    return sum(got.values()) - len(got), len(expected) - len(got)


def found(done: Finished, kind: str) -> int:
    return next(finding.primary for finding in done.report.findings if finding.kind == kind)


def crashes(steps: Sequence[Step]) -> list[str]:
    """Kills the worker of each partition at each of these steps, each in another transaction."""
    return [f"crash@transaction={n},step={step}" for n, step in enumerate(steps, start=2)]


def struck(cluster: Services, done: Finished) -> Counter[str]:
    """How many partitions each fault struck."""
    journal = read_journal(Address(cluster.bootstrap), done.run.facts.journal)
    return Counter(entry.fault for entry in journal if isinstance(entry, FaultFired))


@pytest.mark.parametrize("steps", [[*Step][:4], [*Step][4:]], ids=["until_commit", "from_commit"])
def test_exactly_once_is_exact_wherever_its_worker_dies(
    settings: Settings, cluster: Services, steps: list[Step]
) -> None:
    """Story: the worker is killed at each step of a transaction, each time in the next one. The
    sink is exact all the same."""
    faults = crashes(steps)
    done = run(settings, cluster, "exactly_once", per_transaction=CHUNK, faults=faults)
    assert done.report.verdict is Outcome.HOLDS, done.report.why
    assert copies(cluster, done) == (0, 0)
    assert [*struck(cluster, done).values()] == [PARTITIONS] * len(faults)
    assert done.run.progress.faults == len(faults) * PARTITIONS


def test_at_least_once_repeats_what_died_before_its_offset(
    settings: Settings, cluster: Services
) -> None:
    """Story: the worker dies with half of its records in the log, and with all of them in the next
    transaction, and their offset not committed. They come again, which at_least_once allows: the
    verdict counts them and holds."""
    faults = crashes([Step.PRODUCING, Step.PRODUCED])
    done = run(settings, cluster, "at_least_once", per_transaction=CHUNK, faults=faults)
    repeated = PARTITIONS * (CHUNK // 2 + CHUNK)
    assert [*struck(cluster, done).values()] == [PARTITIONS] * len(faults)
    assert copies(cluster, done) == (repeated, 0)
    assert found(done, "duplicate") == repeated
    assert done.report.verdict is Outcome.HOLDS, done.report.why


def test_at_most_once_loses_what_died_after_its_offset(
    settings: Settings, cluster: Services
) -> None:
    """Story: the worker dies with the offset committed and its records not produced, and with half
    of them produced in the next transaction. They never come, which at_most_once allows: the
    verdict counts them and holds."""
    faults = crashes([Step.OFFSET_SENT, Step.PRODUCING])
    done = run(settings, cluster, "at_most_once", per_transaction=CHUNK, faults=faults)
    lost = PARTITIONS * (CHUNK + CHUNK // 2)
    assert [*struck(cluster, done).values()] == [PARTITIONS] * len(faults)
    assert copies(cluster, done) == (0, lost)
    assert found(done, "gap") == lost
    assert done.report.verdict is Outcome.HOLDS, done.report.why


def test_a_failure_that_is_drawn_repeats_or_loses(settings: Settings, cluster: Services) -> None:
    """Story: transactions fail at random, by the seed. at_least_once repeats them, at_most_once in
    its producer form (nobody acknowledges) loses them, and both say how many."""
    again = run(
        settings, cluster, "at_least_once", abort_probability=0.4, seed=3, idempotence=False
    )
    repeated, lost = copies(cluster, again)
    assert (repeated, lost) == (found(again, "duplicate"), 0) and repeated > 0
    never = run(settings, cluster, "at_most_once", abort_probability=0.4, seed=3, acks="0")
    repeated, lost = copies(cluster, never)
    assert (repeated, lost) == (0, found(never, "gap")) and lost > 0
    assert {again.run.error, never.run.error} == {None}
    assert {again.run.state, never.run.state} == {State.DONE}


def test_without_lineage_a_run_is_exact_and_judged_by_key(
    settings: Settings, cluster: Services
) -> None:
    """Story: somebody needs the speed and turns lineage off. Half of the transactions are aborted
    and come again; no record has a header, each input is there once, and the verdict says so by
    key."""
    done = run(settings, cluster, "exactly_once", lineage="off", abort_probability=0.5, seed=2)
    assert done.report.verdict is Outcome.HOLDS, done.report.why
    assert copies(cluster, done) == (0, 0)
    assert done.report.fates["aborted"]
    assert {message.headers for message in read_all(cluster.bootstrap, done.sink)} == {()}


def test_without_lineage_repeats_are_counted_by_key(settings: Settings, cluster: Services) -> None:
    """Story: as before with at_least_once, where what is tried again is there again: the verdict
    counts it."""
    done = run(settings, cluster, "at_least_once", lineage="off", abort_probability=0.5, seed=2)
    repeated, missing = copies(cluster, done)
    assert repeated > 0 == missing
    assert found(done, "duplicate") == repeated
    assert done.report.verdict is Outcome.HOLDS, done.report.why
