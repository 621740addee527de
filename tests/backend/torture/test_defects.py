"""Defects planted one at a time: in the sink, in the log, in a reader, and in the judge's readings.
The verdict must name each, with the right kind, on the schedule of a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession, functions as F

from tests.backend.torture import defective_sinks as planted
from tests.runs import Finished, run_to_end
from topicproof.backend.evidence.folder import EVIDENCE
from topicproof.backend.judging.capture_store import Capture, read_capture
from topicproof.backend.judging.judge import judge_capture
from topicproof.backend.runs import query
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.backend.torture.schedule import parse
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report


class Planted(NamedTuple):
    """A defect of the sink, and the schedule under which it shows."""

    sink: type[planted.DefectiveSink]
    kind: str
    troubles: str = ""


SINKS = {
    "it trusts Spark to remember": Planted(planted.ForgetfulSink, "duplicate", "crash-produced@3"),
    "it skips its fence": Planted(planted.SinkWithoutFence, "duplicate", "zombie@2"),
    "it commits the offset first": Planted(planted.OffsetFirstSink, "gap", "crash-begun@2"),
    "it commits the offset afterwards": Planted(
        planted.OffsetAfterwardsSink, "duplicate", "crash-offset-sent@2"
    ),
    "it commits no offset": Planted(planted.SinkWithoutOffset, "offset_behind"),
    "its offset is one too high": Planted(planted.OffsetTooFarSink, "offset_ahead"),
    "it drops a record": Planted(planted.DroppingSink, "gap"),
    "it repeats a record": Planted(planted.RepeatingSink, "duplicate"),
    "it swaps records": Planted(planted.SwappingSink, "order"),
    "it names the wrong input": Planted(planted.MisnamingSink, "gap"),
    "it commits too few records": Planted(planted.ShortSink, "torn"),
    "it splits a transaction": Planted(planted.SplittingSink, "late_append"),
    "it hides an abort": Planted(planted.AbortHidingSink, "wrong_attribution"),
    "it commits what it calls aborted": Planted(planted.AbortCommittingSink, "wrong_attribution"),
    "it writes a record outside": Planted(planted.OutsideSink, "intruder"),
}
SCHEDULE = "exactly_once records=160 partitions=2 per_transaction=20 seed=7: "


@pytest.mark.parametrize("defect", SINKS)
def test_the_verdict_names_the_defect_of_a_sink(
    defect: str,
    settings: Settings,
    cluster: Services,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: the one in the name."""
    given = SINKS[defect]
    monkeypatch.setattr(query, "InjectingSink", given.sink)
    report = run_to_end(settings, cluster, **parse(SCHEDULE + given.troubles).plan()).report
    assert report.verdict is Outcome.VIOLATED
    assert given.kind in primary(report)


def test_the_sink_without_a_defect_is_exact(
    settings: Settings, cluster: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: the twin of all of them. The code that the defects change step by step is sound under
    their troubles."""
    monkeypatch.setattr(query, "InjectingSink", planted.DefectiveSink)
    troubles = "crash-begun@2 zombie@3 crash-produced@4"
    report = run_to_end(settings, cluster, **parse(SCHEDULE + troubles).plan()).report
    assert report.verdict is Outcome.HOLDS, report.why


@pytest.fixture(scope="module")
def healthy(settings: Settings, cluster: Services) -> tuple[Finished, Path]:
    """A healthy run with aborts and a reader, and the evidence of its verdict."""
    plan = parse(SCHEDULE).plan() | {"abort_probability": 0.3, "reader": True}
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


def judge_beyond(capture: Capture) -> Capture:
    """The judge's read_committed reading holds what was aborted."""
    every = capture.kept._replace(committed=capture.uncommitted)
    return replace(capture, readings=every)


def judge_blind(capture: Capture) -> Capture:
    """The judge's read_committed reading lacks a committed record."""
    first = capture.committed.agg(F.min("offset")).collect()[0][0]
    committed = capture.committed.where(F.col("offset") != first)
    return replace(capture, readings=capture.kept._replace(committed=committed))


CAPTURES: dict[str, tuple[Callable[[Capture], Capture], str]] = {
    "the log has lost a marker": (lost_marker, "wrong_attribution"),
    "a fenced epoch wrote again": (stale_epoch, "zombie_write"),
    "a batch was appended twice": (repeated_sequence, "sequence_hole"),
    "a reader skips": (skipping_reader, "poll_skip"),
    "a reader is ahead of the last stable offset": (hasty_reader, "precommitted_read"),
    "the judge reads aborted records": (judge_beyond, "aborted_read"),
    "the judge misses a committed record": (judge_blind, "reading_mismatch"),
}


@pytest.mark.parametrize("defect", CAPTURES)
def test_the_verdict_names_the_defect_of_a_log_a_reader_or_the_judge(
    defect: str, healthy: tuple[Finished, Path], spark: SparkSession, tmp_path: Path
) -> None:
    """Story: the evidence of a healthy run is changed as the name says."""
    change, kind = CAPTURES[defect]
    report = judge_capture(spark, change(read_capture(spark, healthy[1])), tmp_path)
    # Sequences alone break no promise: each input is still committed once.
    shown_only = kind == "sequence_hole"
    assert (report.verdict is Outcome.HOLDS) == shown_only
    assert kind in primary(report)


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
