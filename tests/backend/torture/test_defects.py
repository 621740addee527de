"""Defects planted one at a time: in the sink, in the log, in a reader, and in the judge's readings.
The verdict must name each, with the right kind, on the schedule of a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession, functions as F

from tests.backend.torture import defective_sinks as planted
from tests.runs import Finished, run_to_end
from topicproof.backend.evidence.findings import PARQUET as FINDINGS
from topicproof.backend.evidence.folder import EVIDENCE
from topicproof.backend.judging.capture_store import Capture, read_capture
from topicproof.backend.judging.judge import judge_capture
from topicproof.backend.runs import query
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.backend.torture.schedule import parse
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report

SCHEDULE = "exactly_once records={} partitions={} per_transaction=20 seed=7: "
PRIMARY: Mapping[str, set[str]] = {
    "no defect": set(),
    "it trusts Spark to remember": {"duplicate"},
    "it commits the offset first": {"gap", "offset_ahead"},
    "it commits the offset afterwards": {"duplicate"},
    "it commits no offset": {"offset_behind"},
    "its offset is one too high": {"offset_ahead"},
    "it drops a record": {"gap"},
    "it repeats a record": {"duplicate"},
    "it swaps records": {"order"},
    "it names the wrong input": {"duplicate", "gap"},
    "it commits too few records": {"torn"},
    "it splits a transaction": {"late_append"},
    "it hides an abort": {"wrong_attribution"},
    "it commits what it calls aborted": {"wrong_attribution"},
    "it writes a record outside": {"intruder", "order"},
}
"""Kinds that the verdict names in the partition of a defect, without those that another explains.
"""


def primary_by_defect(
    settings: Settings,
    cluster: Services,
    sink: type[planted.DefectiveSink],
    defects: Mapping[str, planted.Defect],
    troubles: str,
) -> dict[str, set[str]]:
    """Primary kinds in each partition of one run whose partitions have a defect each."""
    size = len(defects)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query, "InjectingSink", sink)
        schedule = parse(SCHEDULE.format(80 * size, size) + troubles)
        finished = run_to_end(settings, cluster, **schedule.plan())
    assert finished.report.verdict is Outcome.VIOLATED
    violated = primary(finished.report)
    kinds: dict[str, set[str]] = {defect: set() for defect in defects}
    rows = pq.read_table(settings.runs / finished.run.id / EVIDENCE / FINDINGS).to_pylist()
    for row in rows:
        if row["explained_by"] is None and row["kind"] in violated:
            # Each output goes to the partition with the number of its input's.
            place = row["partition"] if row["partition"] is not None else row["source_partition"]
            kinds[list(defects)[place]].add(row["kind"])
    return kinds


@pytest.mark.parametrize(
    ("sink", "defects", "troubles"),
    [
        (planted.QuietSink, planted.QUIET, ""),
        (
            planted.CrashedSink,
            planted.CRASHED,
            "crash-begun@2 crash-offset-sent@2 crash-produced@4",
        ),
    ],
    ids=["quiet", "crashed"],
)
def test_the_verdict_names_each_defect_of_a_sink(
    sink: type[planted.DefectiveSink],
    defects: Mapping[str, planted.Defect],
    troubles: str,
    settings: Settings,
    cluster: Services,
) -> None:
    """Story: a sink does something else wrong in each of its source partitions, and nothing in one.
    The verdict names each, where it is, and nothing else. The code that the defects change step by
    step is sound under the same troubles."""
    kinds = primary_by_defect(settings, cluster, sink, defects, troubles)
    assert kinds == {defect: PRIMARY[defect] for defect in defects}


def test_the_verdict_names_a_sink_without_a_fence(settings: Settings, cluster: Services) -> None:
    """Story: workers pause until their successors have begun, and continue. Without its fence the
    sink writes a transaction twice; how both lie among each other is chance. With it nothing
    happens."""
    kinds = primary_by_defect(settings, cluster, planted.PausedSink, planted.PAUSED, "zombie@2")
    assert kinds["no defect"] == set() and "duplicate" in kinds["it skips its fence"]


@pytest.fixture(scope="module")
def healthy(settings: Settings, cluster: Services) -> tuple[Finished, Path]:
    """A healthy run with aborts and a reader, and the evidence of its verdict."""
    plan = parse(SCHEDULE.format(160, 2)).plan() | {"abort_probability": 0.3, "reader": True}
    finished = run_to_end(settings, cluster, **plan)
    assert finished.report.verdict is Outcome.HOLDS
    return finished, settings.runs / finished.run.id / EVIDENCE


def lost_marker(capture: Capture) -> Capture:
    """The log has lost the marker of the first committed transaction."""
    batches = _log(capture)
    marker = pc.index(batches["control"], "COMMIT").as_py()
    return replace(capture, batches=_without(batches, marker))


def stale_epoch(capture: Capture) -> Capture:
    """A broker let a batch of a fenced epoch in."""
    batches = _log(capture)
    data = [at for at, one in enumerate(batches["control"].to_pylist()) if one is None]
    raised = batches["producer_epoch"].to_pylist()
    raised[data[0]] += 1
    return replace(capture, batches=_with(batches, "producer_epoch", raised))


def repeated_sequence(capture: Capture) -> Capture:
    """A broker appended a batch under numbers that were used before."""
    batches = _log(capture)
    sequences, control = batches["base_sequence"].to_pylist(), batches["control"].to_pylist()
    last = max(at for at, one in enumerate(control) if one is None and sequences[at] > 0)
    sequences[last] = 0
    return replace(capture, batches=_with(batches, "base_sequence", sequences))


def skipping_reader(capture: Capture) -> Capture:
    """A read_committed reader never received what it polled between two other receipts."""
    polled = capture.run_accounts.polled
    assert polled is not None
    received = [one for one in polled.to_pylist() if one["first_offset"] <= one["last_offset"]]
    of_line = [(one["session"], one["partition"]) for one in received]
    inner = (
        number
        for number, line in enumerate(of_line)
        if line in of_line[:number] and line in of_line[number + 1 :]
    )
    left_out = received[next(inner)]
    kept = [one for one in polled.to_pylist() if one != left_out]
    table = pa.Table.from_pylist(kept, polled.schema)
    return replace(capture, run_accounts=capture.run_accounts._replace(polled=table))


def hasty_reader(capture: Capture) -> Capture:
    """A read_committed reader received records above the last stable offset."""
    polled = capture.run_accounts.polled
    assert polled is not None
    stable = [min(one["lso"], one["first_offset"]) for one in polled.to_pylist()]
    table = _with(polled, "lso", stable)
    return replace(capture, run_accounts=capture.run_accounts._replace(polled=table))


def faulty_reader(capture: Capture) -> Capture:
    """Both at once: neither hides the other."""
    return hasty_reader(skipping_reader(capture))


def judge_beyond(capture: Capture) -> Capture:
    """The judge's read_committed reading holds what was aborted."""
    every = capture.kept._replace(committed=capture.uncommitted)
    return replace(capture, readings=every)


def judge_blind(capture: Capture) -> Capture:
    """The judge's read_committed reading lacks a committed record."""
    first = capture.committed.agg(F.min("offset")).collect()[0][0]
    committed = capture.committed.where(F.col("offset") != first)
    return replace(capture, readings=capture.kept._replace(committed=committed))


CAPTURES: dict[str, tuple[Callable[[Capture], Capture], set[str]]] = {
    "the log has lost a marker": (lost_marker, {"wrong_attribution"}),
    "a fenced epoch wrote again": (stale_epoch, {"zombie_write"}),
    "a batch was appended twice": (repeated_sequence, {"sequence_hole"}),
    "a reader skips, and is ahead of the last stable offset": (
        faulty_reader,
        {"poll_skip", "precommitted_read"},
    ),
    "the judge reads aborted records": (judge_beyond, {"aborted_read"}),
    "the judge misses a committed record": (judge_blind, {"reading_mismatch"}),
}


@pytest.mark.parametrize("defect", CAPTURES)
def test_the_verdict_names_the_defect_of_a_log_a_reader_or_the_judge(
    defect: str, healthy: tuple[Finished, Path], spark: SparkSession, tmp_path: Path
) -> None:
    """Story: the evidence of a healthy run is changed as the name says."""
    change, kinds = CAPTURES[defect]
    report = judge_capture(spark, change(read_capture(spark, healthy[1])), tmp_path)
    # Sequences alone break no promise: each input is still committed once.
    shown_only = kinds == {"sequence_hole"}
    assert (report.verdict is Outcome.HOLDS) == shown_only
    assert kinds <= primary(report)


def _log(capture: Capture) -> pa.Table:
    assert capture.batches is not None
    return capture.batches


def _without(table: pa.Table, row: int) -> pa.Table:
    return pa.concat_tables([table.slice(0, row), table.slice(row + 1)])


def _with(table: pa.Table, name: str, values: list[object]) -> pa.Table:
    """The table with other values in one column."""
    at = table.schema.get_field_index(name)
    return table.set_column(at, name, pa.array(values, table.schema.field(at).type))


def primary(report: Report) -> set[str]:
    """Kinds with findings that no other kind explains."""
    return {one.kind for one in report.findings if one.outcome is Outcome.VIOLATED and one.primary}
