"""Judging a run: each stage's sinks, as one, against its sources, and the whole run end to end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions as F

from topicproof.backend.address import Sides
from topicproof.backend.evidence.folder import EVIDENCE
from topicproof.backend.history.run_state import Names, StageVerdict
from topicproof.backend.judging.capture_store import (
    ABORTED,
    COMMITTED,
    INPUTS,
    UNCOMMITTED,
    Capture,
    RunAccounts,
    empty,
    read_capture,
)
from topicproof.backend.judging.judge import JudgeOptions, conclude, judge_topics
from topicproof.backend.judging.log_scan import scan_log, source_options
from topicproof.backend.judging.table_check import judge_table
from topicproof.backend.kafka.coordination.unstable import committed_offsets
from topicproof.backend.kafka.origin import topic_names
from topicproof.backend.runs.context import Context
from topicproof.backend.runs.query import committed_of
from topicproof.backend.runs.reader import FOLDER, read_account
from topicproof.backend.runs.scenarios import Stage, scenario
from topicproof.backend.sink.delivery_options import OFF
from topicproof.backend.sink.journal import read_journal
from topicproof.backend.sink.position import journalled
from topicproof.backend.storage import keep_in
from topicproof.validators.contract_terms import NOTHING_MORE, ContractTerms
from topicproof.validators.expectation import merge
from topicproof.validators.expected import Expected
from topicproof.validators.finding import Bounds, Guarantee, Origin, Outcome, Witness
from topicproof.validators.lineage.identity import Identity, through, with_lineage
from topicproof.validators.merged_topics import join, split
from topicproof.validators.question import Question
from topicproof.validators.readings import Readings, read
from topicproof.validators.report import Report

STAGES = "stages"
"""Folder in a run's folder, with one report folder per stage, if there are several."""


class Until(Enum):
    """The end of the judged source range."""

    END = auto()
    COMMITTED = auto()
    """The committed offsets, which are the position of a stopped run."""
    JOURNALLED = auto()
    """The end of the last transactions in the journal, because the run refused to continue after
    its offsets were moved."""


@dataclass(frozen=True)
class RunVerdicts:
    """Verdicts on a run's topics."""

    report: Report
    """The report of a single stage, or of several stages end to end."""
    stages: Mapping[str, Report] = field(default_factory=dict)
    """The reports by stage, if there are several."""
    values: Mapping[str, StageVerdict] = field(default_factory=dict)
    """Verdicts on the values of each sink, if the scenario has them."""

    @property
    def verdict(self) -> Outcome:
        """The worst verdict. Values count only if they are wrong, not if they are unknown."""
        wrong = (Outcome.VIOLATED for _ in self._wrong())
        return merge(
            [self.report.verdict, *(report.verdict for report in self.stages.values()), *wrong]
        )

    def _wrong(self) -> list[str]:
        """Return the sinks with wrong values."""
        return [
            sink
            for sink, values_verdict in self.values.items()
            if values_verdict.verdict is Outcome.VIOLATED
        ]

    @property
    def why(self) -> str:
        """One sentence for the verdict, from the report or the stage that decided it."""
        if self.report.verdict is self.verdict:
            return self.report.why
        if not any(report.verdict is self.verdict for report in self.stages.values()):
            sink = self._wrong()[0]
            return f"Values of {sink}: {self.values[sink].why}"
        name, worst = next(
            (name, report) for name, report in self.stages.items() if report.verdict is self.verdict
        )
        return f"Stage {name}: {worst.why}"


def judge_run(context: Context, spark: SparkSession, until: Until) -> RunVerdicts:
    """Judge each stage of a run. If there are several, also judge them end to end."""
    stages = context.stages
    if len(stages) == 1:
        report = judge_stage(context, spark, *stages[0], until, context.folder)
        check = scenario(context.plan.scenario).values
        return RunVerdicts(
            report, values=check(context.cluster, context.run.facts.topics) if check else {}
        )
    of_stage = {
        names.stage: judge_stage(
            context, spark, stage, names, until, stage_folder(context.folder, names.stage)
        )
        for stage, names in stages
    }
    return RunVerdicts(_judge_end_to_end(context, spark, until), of_stage)


def stage_folder(folder: Path, stage: str) -> Path:
    """Return the folder of one stage's report and evidence, in a run of several stages."""
    return folder / STAGES / stage


def _judge_end_to_end(context: Context, spark: SparkSession, until: Until) -> Report:
    """Judge the last sink against the first source. The stages' readings are reused, so nothing is
    read twice."""
    empty(spark, context.folder / EVIDENCE)
    whole = _joined(context, spark, until)
    return conclude(spark, whole, context.folder, _attachments(context))


def _joined(context: Context, spark: SparkSession, until: Until) -> Capture:
    """Combine the readings of the last sink and the first source, kept in the run's evidence."""
    evidence = context.folder / EVIDENCE
    captures = [
        read_capture(spark, stage_folder(context.folder, names.stage) / EVIDENCE)
        for _, names in context.stages
    ]
    first, last = captures[0], captures[-1]
    between = [
        (capture.question.source.topic, capture.inputs) for capture in reversed(captures[1:])
    ]

    def up(reading: DataFrame) -> DataFrame:
        for topic, inputs in between:
            reading = through(reading, inputs, topic)
        return reading

    chosen = scenario(context.plan.scenario)
    source, not_processed = first.question.source, first.question.not_processed
    if until is not Until.END:
        cut = carried_through(context, spark, source, until)
        not_processed += sum(
            p.lso - q.lso for p, q in zip(source.partitions, cut.partitions, strict=True)
        )
        source = cut
    question = replace(
        last.question,
        source=source,
        expected=Expected(chosen.expect, chosen.count),
        agreed=NOTHING_MORE,
        group=None,
        not_processed=not_processed,
    )
    return replace(
        last,
        question=question,
        readings=Readings(
            committed=keep_in(up(last.committed), evidence / COMMITTED, last.offsets),
            uncommitted=keep_in(up(last.uncommitted), evidence / UNCOMMITTED, last.offsets),
            inputs=keep_in(first.inputs, evidence / INPUTS, first.offsets),
        ),
        source_batches=first.source_batches,
        circumstances=replace(
            last.circumstances, source_removed=first.circumstances.source_removed
        ),
        origin=_ends(first, last),
        notes=tuple(dict.fromkeys(note for capture in captures for note in capture.notes)),
        aborted=(
            None
            if first.aborted is None
            else keep_in(first.aborted, evidence / ABORTED, first.offsets)
        ),
    )


def _ends(first: Capture, last: Capture) -> Origin | None:
    """Return the ids of the first source and the last sink."""
    if first.origin is None or last.origin is None:
        return None
    every = {**first.origin.topics, **last.origin.topics}
    return Origin(
        last.origin.cluster,
        {name: every[name] for name in topic_names(first.question.source, last.sink)},
    )


def carried_through(
    context: Context, spark: SparkSession, source: Bounds, until: Until = Until.COMMITTED
) -> Bounds:
    """Return the inputs of the first source that every stage has processed. They end before the
    first input with an unprocessed record in a topic between two stages."""
    ends = {p.partition: p.lso for p in source.partitions}
    for number, (_, names) in enumerate(context.stages[1:], 1):
        bounds = context.cluster.bounds(names.source)
        reached = _reached(context, names, bounds, until)
        begins = tuple(
            replace(p, start=max(p.start, reached[p.partition])) for p in bounds.partitions
        )
        reading = _read_committed(context, spark, replace(bounds, partitions=begins))
        for _, upper in reversed(context.stages[1:number]):
            whole = _read_committed(context, spark, context.cluster.bounds(upper.source))
            reading = through(reading, whole, upper.source)
        named = with_lineage(reading).where(F.col("source_topic") == source.topic)
        firsts = (
            named.groupBy("source_partition").agg(F.min("source_offset").alias("first")).collect()
        )
        for row in firsts:
            ends[row["source_partition"]] = min(ends[row["source_partition"]], row["first"])
    return replace(
        source,
        partitions=tuple(
            replace(p, lso=max(p.start, ends[p.partition])) for p in source.partitions
        ),
    )


def _read_committed(context: Context, spark: SparkSession, bounds: Bounds) -> DataFrame:
    """Read a topic of the run within bounds, as read_committed."""
    address = context.cluster.address
    options = source_options(address, scan_log(spark, address, bounds))
    return read(spark, options, bounds, Witness.READ_COMMITTED)


def _attachments(context: Context) -> dict[str, Any]:
    return {"plan.json": context.run.plan}


def judge_stage(
    context: Context, spark: SparkSession, stage: Stage, names: Names, until: Until, folder: Path
) -> Report:
    """Judge a stage's sinks against its sources. Report and evidence go into `folder`."""
    source, not_processed = judged_range(context, names, until)
    guarantee = Guarantee(context.plan.guarantee)
    of_stage = (*names.sources, *names.sinks, names.journal)
    topic_ids = {
        of: topic_id for of, topic_id in context.run.facts.topic_ids.items() if of in of_stage
    }
    if names.database is not None:
        question = Question(
            source=source,
            sink=names.sink,
            guarantee=guarantee,
            run=context.run.id,
            not_processed=not_processed,
            topic_ids=topic_ids,
        )
        return judge_table(
            spark, context.cluster, names.database, question, folder, _attachments(context)
        )
    sinks = join([context.cluster.bounds(sink) for sink in names.sinks])
    begun = context.run.facts.sink_from
    question = Question(
        source=source,
        sink=names.sink,
        also=names.sinks[1:],
        guarantee=guarantee,
        identity=Identity.KEY if context.plan.lineage == OFF else Identity.LINEAGE,
        expected=_expected(context, spark, stage, source),
        order=stage.order,
        sink_from={
            first + int(partition): offset
            for sink_bounds, first in split(sinks)
            for partition, offset in begun[sink_bounds.topic].items()
        },
        run=context.run.id,
        not_processed=not_processed,
        agreed=ContractTerms(offsets=_group_offsets(context, stage, names, source, until)),
        group=names.group,
        topic_ids=topic_ids,
    )
    accounts = RunAccounts(
        journal=read_journal(context.cluster.address, names.journal),
        polled=read_account(context.folder / FOLDER, sinks),
    )
    options = JudgeOptions(_attachments(context), run_accounts=accounts)
    return judge_topics(spark, Sides(context.services.address), question, folder, options)


def _group_offsets(
    context: Context, stage: Stage, names: Names, source: Bounds, until: Until
) -> dict[int, int] | None:
    """Return the group's offsets, which must agree with the outputs; None if they need not.

    Only exactly-once commits both together, and a stateful stage counts batches instead of inputs.
    If somebody moved the offsets, they say nothing about the sink. A partition without a committed
    offset is processed from its start again.
    """
    atomic = Guarantee(context.plan.guarantee) is Guarantee.EXACTLY_ONCE and not stage.stateful
    if not atomic or until is Until.JOURNALLED:
        return None
    committed = committed_offsets(context.cluster, names.group, source)
    return {p.partition: committed.get(p.partition, p.start) for p in source.partitions}


def judged_range(context: Context, names: Names, until: Until) -> tuple[Bounds, int]:
    """Return the source range that a stage must have processed, and the number of offsets left to
    process."""
    ranges, not_processed = [], 0
    for topic in names.sources:
        began = context.run.facts.of_stage(names.stage)[topic]
        source = context.cluster.bounds(topic)
        begun = tuple(
            replace(p, start=max(p.start, began.get(str(p.partition), p.start)))
            for p in source.partitions
        )
        if until is not Until.END:
            reached = _reached(context, names, replace(source, partitions=begun), until)
            cut = tuple(replace(p, lso=min(p.lso, reached[p.partition])) for p in begun)
            not_processed += sum(p.lso - q.lso for p, q in zip(begun, cut, strict=True))
            begun = cut
        ranges.append(replace(source, partitions=begun))
    return join(ranges), not_processed


def _reached(context: Context, names: Names, source: Bounds, until: Until) -> Mapping[int, int]:
    """Return the offset of a stage's next input, by partition. The bounds of the source topic start
    where the stage began."""
    if until is Until.COMMITTED:
        return committed_of(context.cluster, names, source.topic)
    entries = read_journal(context.cluster.address, names.journal)
    positions = {
        p: journalled(entries, f"{names.prefix}-{source.topic}-{p.partition}")
        for p in source.partitions
    }
    return {
        p.partition: p.start if position is None else position.offset
        for p, position in positions.items()
    }


def _expected(context: Context, spark: SparkSession, stage: Stage, source: Bounds) -> Expected:
    if stage.count is None or isinstance(stage.count, str):
        return Expected(stage.expect, stage.count)
    counted = stage.count(_read_committed(context, spark, source), context.work)
    return Expected() if counted is None else Expected(stage.expect, counted)
