"""Lineage packed into one header for many records: as exact, and as well judged, as with headers on
every record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count
from math import isqrt
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.both_ways import assert_both_ways_count_the_same
from tests.runs import SMALL, Finished, read_all, run_to_end
from topicproof.backend.evidence.folder import EVIDENCE
from topicproof.backend.history.store import History
from topicproof.backend.judging.capture_store import read_capture
from topicproof.backend.judging.judge import ledger_of
from topicproof.backend.judging.selftest import self_test
from topicproof.backend.runs.context import make_context
from topicproof.backend.runs.stage_verdicts import Until, carried_through, judged_range
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.backend.verifying.verify import verify
from topicproof.validators.finding import Outcome
from topicproof.validators.lineage.headers import TRANSACTION_HEADER
from topicproof.validators.lineage.packs import PACKED_HEADER

ZOMBIE = {
    "records": 2_000,
    "partitions": 2,
    "per_transaction": 250,
    "faults": ["zombie@transaction=2"],
}
REFUSED = {
    "records": 2_000,
    "partitions": 2,
    "per_transaction": 250,
    "sink": {"dead_letters": True},
    "faults": ["refused@transaction=2,times=9"],
}


def counts(done: Finished) -> dict[str, Any]:
    """What a report says, without what differs from run to run: where each record lies, and
    when."""
    report = done.report
    return {
        "verdict": report.verdict,
        "inputs": report.source_records,
        "found": {one.kind: one.primary for one in report.findings if one.kind != "aborted_volume"},
        "checked": {one.kind for one in report.checked},
        "committed": report.fates["committed"],
        "named": (report.transactions.told_by, report.transactions.committed),
    }


@pytest.mark.parametrize(
    "plan", [SMALL, ZOMBIE, REFUSED], ids=["aborts and crashes", "zombie", "dead letters"]
)
def test_a_packed_run_is_exact_under_faults(
    settings: Settings, cluster: Services, plan: dict[str, Any]
) -> None:
    """Story: the same run twice, with headers on every record and packed, under faults. Both are
    exact, and their verdicts count the same."""
    packed = run_to_end(settings, cluster, **plan, lineage="packed")
    assert packed.report.verdict is Outcome.HOLDS, packed.report.why
    assert packed.run.error is None
    assert counts(packed) == counts(run_to_end(settings, cluster, **plan))
    messages = read_all(cluster.bootstrap, packed.sink)
    buried = plan["partitions"] if plan is REFUSED else 0
    assert len({message.value for message in messages}) == len(messages) == plan["records"] - buried
    named = Counter(name for message in messages for name, _ in message.headers)
    assert 0 < named[PACKED_HEADER] < plan["records"] / 10
    if plan is not REFUSED:
        assert named == {
            PACKED_HEADER: named[PACKED_HEADER],
            TRANSACTION_HEADER: named[PACKED_HEADER],
        }


@pytest.mark.parametrize("lineage", ["record", "packed"])
def test_a_run_with_aborts_and_crashes_is_counted_shortly(
    settings: Settings,
    cluster: Services,
    spark_sessions: Callable[[], SparkSession],
    tmp_path: Path,
    lineage: str,
) -> None:
    """Story: a run's evidence is judged again, by the short way, and then record by record: it
    counts the same."""
    done, spark, turns = (
        run_to_end(settings, cluster, **SMALL, lineage=lineage),
        spark_sessions(),
        count(),
    )
    taken = read_capture(spark, done.run.folder(settings) / EVIDENCE)
    assert (taken.packs is not None) == (lineage == "packed")
    assert_both_ways_count_the_same(lambda: ledger_of(spark, taken, tmp_path / str(next(turns))))


def test_a_packed_chain_is_judged_from_end_to_end(
    settings: Settings, cluster: Services, spark_sessions: Callable[[], SparkSession]
) -> None:
    """Story: every stage of a chain packs its lineage, under aborts and crashes. It holds stage by
    stage and end to end, its evidence judges again alike, and the self-test catches what is
    injected into it. Stopped inside a pack, it is judged up to the first input whose square was not
    labelled."""
    plan = {
        "scenario": "chain",
        "records": 1_200,
        "partitions": 2,
        "per_transaction": 100,
        "seed": 2,
    }
    done = run_to_end(
        settings,
        cluster,
        **plan,
        abort_probability=0.3,
        faults=["crash@transaction=2"],
        lineage="packed",
    )
    assert done.report.verdict is Outcome.HOLDS, done.report.why
    assert {one.verdict for one in done.run.facts.verdicts.values()} == {"HOLDS"}
    spark, folder = spark_sessions(), done.run.folder(settings)
    found = verify(spark, folder / "stages" / "square" / "evidence")
    assert (found.exit_code, found.contradictions) == (0, ())
    caught = self_test(spark, folder / "stages" / "square").caught
    assert {one.kind: one.found for one in caught} == {
        "duplicate": 1,
        "gap": 1,
        "order": 1,
        "torn": 1,
    }

    context = make_context(settings, cluster, History(settings), done.run)
    (_, keep), _, (_, label) = context.stages
    places = {
        int(m.value or b""): (m.partition, m.offset)
        for m in read_all(cluster.bootstrap, done.source)
    }
    squares = {(m.partition, m.offset): m for m in read_all(cluster.bootstrap, label.source)}
    partition, stopped = sorted(squares)[120]
    assert not squares[partition, stopped].headers, "it is not the first of its pack"
    context.cluster.commit_offsets(label.group, label.source, {partition: stopped})
    left = [
        places[isqrt(int(m.value or b""))]
        for place, m in squares.items()
        if partition == place[0] and place[1] >= stopped
    ]
    source, _ = judged_range(context, keep, Until.END)
    reached = {p.partition: p.lso for p in carried_through(context, spark, source).partitions}
    assert reached == {
        p.partition: min((offset for of, offset in left if of == p.partition), default=p.lso)
        for p in source.partitions
    }
