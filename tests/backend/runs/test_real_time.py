"""Runs in real time: as exact as others, whatever happens to their workers and queries."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.runs import read_all, run_to_end
from topicproof.backend.errors import (
    ClusterError,
    OffsetsMoved,
    SparkError,
    TopicproofError,
    UsageError,
)
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.runs.real_time import TRIES, look_at_brokers, require_slots, start_again
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.backend.sink.entries import TaskStarted
from topicproof.backend.sink.journal import read_journal
from topicproof.validators.finding import Outcome

RECORDS, PARTITIONS = 600, 2
PLAN: dict[str, Any] = {
    "trigger": "real_time",
    "records": RECORDS,
    "partitions": PARTITIONS,
    "per_transaction": 60,
}


LONG_S = 3_600
"""Of a batch that no run waits for."""


def test_aborts_a_kill_and_a_restart_leave_it_exact(settings: Settings, cluster: Services) -> None:
    """Story: transactions are aborted, each worker is killed in its second transaction, and later
    the query is restarted. The batch would last an hour, and no more rows come, so Spark notices
    nothing. The verdict holds, and a plain client agrees."""
    done = run_to_end(
        settings,
        cluster,
        **PLAN,
        real_time_batch_s=LONG_S,
        abort_probability=0.2,
        faults=["crash@transaction=2", "restart@transaction=4"],
        seed=1,
    )
    assert done.report.verdict is Outcome.HOLDS, done.report.why
    got = Counter(message.value for message in read_all(cluster.bootstrap, done.sink))
    assert got == Counter(str(n * n).encode() for n in range(RECORDS))
    assert done.run.progress.faults == PARTITIONS + 1
    assert done.run.progress.aborted > 0
    journal = read_journal(cluster.address, str(done.run.facts.journal))
    starts = Counter(one.source_partition for one in journal if isinstance(one, TaskStarted))
    assert all(starts[partition] > 1 for partition in range(PARTITIONS))


def test_at_least_once_repeats_under_a_kill(settings: Settings, cluster: Services) -> None:
    """Story: the same kill under at-least-once. What was produced before it is produced again, and
    the verdict says so."""
    done = run_to_end(
        settings, cluster, **PLAN, guarantee="at_least_once", faults=["crash@transaction=2"]
    )
    assert done.report.verdict is Outcome.HOLDS, done.report.why
    got = Counter(message.value for message in read_all(cluster.bootstrap, done.sink))
    assert set(got) == {str(n * n).encode() for n in range(RECORDS)}
    duplicates = next(one for one in done.report.findings if one.kind == "duplicate")
    assert duplicates.count == sum(got.values()) - RECORDS > 0


def test_a_refusal_ends_the_run_at_once(settings: Settings, cluster: Services) -> None:
    """Story: somebody moves the group's offset back, and Spark replays the batch. The sink refuses,
    and the run ends with its sentence. Spark alone would repeat the batch forever."""
    with pytest.raises(OffsetsMoved, match="somebody moved it back") as refused:
        run_to_end(
            settings,
            cluster,
            **PLAN,
            real_time_batch_s=LONG_S,
            judged=False,
            faults=["offsets@transaction=2,how=rewound"],
        )
    assert "Set it to" in str(refused.value)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ({"scenario": "totals"}, "totals has a stateful stage, which real time does not support"),
        ({"scenario": "table"}, "table writes a table, which real time does not support"),
    ],
)
def test_what_real_time_cannot_do_is_refused(plan: dict[str, Any], why: str) -> None:
    """Story: somebody asks for a stateful stage or a table in real time. One sentence says what to
    choose instead."""
    with pytest.raises(UsageError, match=why):
        make_plan({"trigger": "real_time", **plan})


def test_batches_of_real_time_need_real_time() -> None:
    """Story: the length of a real-time batch is given to a run in micro-batches."""
    with pytest.raises(UsageError, match="only real time has such batches"):
        make_plan({"real_time_batch_s": 30})


def test_brokers_that_do_not_answer_end_no_query() -> None:
    """Story: a run looks how far its sink is while a broker restarts. It looks again later."""

    def fail() -> bool:
        raise ClusterError("no answer")

    assert not look_at_brokers(fail)
    assert look_at_brokers(lambda: True)


def test_too_few_task_slots_are_refused() -> None:
    """Story: six source partitions meet a Spark with four task slots. Two of them would wait for
    the end of each batch. Nobody knows the slots of a cluster."""
    with pytest.raises(SparkError, match=r"needs 6 task slots.*Spark has 4 \(local\[4,8\]\)"):
        require_slots("local[4,8]", 6)
    for master in ("local[6]", "spark://host:7077", ""):
        require_slots(master, 6)


def starts(error: TopicproofError, progress: list[int], stopped: bool = False) -> int:
    """How often a query was started that always fails, and comes so far each time."""
    reached = iter([0, *progress, *[progress[-1]] * TRIES])
    count = 0

    def work() -> None:
        nonlocal count
        count += 1
        raise error

    with pytest.raises(type(error)):
        start_again(work, lambda: next(reached), lambda: stopped)
    return count


def test_a_failed_query_is_started_again() -> None:
    """Story: a query fails. It gets as many starts as Spark gives a task, and each progress counts
    anew. A refusal, or a run that was stopped, is not tried again."""
    assert starts(SparkError("a worker crashed"), [0]) == TRIES
    assert starts(SparkError("a worker crashed"), [1, 2, 3]) == TRIES + 2
    assert starts(OffsetsMoved("moved"), [1]) == 1
    assert starts(SparkError("a worker crashed"), [1], stopped=True) == 1
