"""Judging a run: each stage's sinks against its sources, all the sinks of a stage as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from backend.judge import Question, judge_topics
from backend.pipeline.journal import read_journal
from backend.pipeline.monitor import Context
from backend.pipeline.process import Names
from backend.pipeline.scenarios import Stage
from backend.settings import READ_COMMITTED, spark_source_options
from validators.expected import Expected
from validators.finding import Bounds, Guarantee, Witness
from validators.joined import join, split
from validators.readings import read
from validators.report import Report


def judge_run(context: Context, spark: SparkSession, partial: bool) -> Report:
    """Judge a run. `partial`: only up to what it had committed when it was stopped."""
    stage, names = context.stages[0]
    return judge_stage(context, spark, stage, names, partial, context.folder)


def judge_stage(
    context: Context, spark: SparkSession, stage: Stage, names: Names, partial: bool, folder: Path
) -> Report:
    """Judge a stage's sinks against its sources; report and evidence go into `folder`."""
    source, not_processed = judged_range(context, names, partial)
    sinks = join([context.cluster.bounds(sink) for sink in names.sinks])
    begun: Mapping[str, Mapping[str, int]] = context.run.facts["sink_from"]
    question = Question(
        source=source,
        sink=names.sink,
        also=names.sinks[1:],
        guarantee=Guarantee(context.plan.guarantee),
        expected=_expected(context, spark, stage, source),
        journal=read_journal(context.cluster.bootstrap, context.settings.client, names.journal),
        sink_from={
            first + int(partition): offset
            for own, first in split(sinks)
            for partition, offset in begun[own.topic].items()
        },
        run=context.run.id,
        not_processed=not_processed,
    )
    papers: dict[str, Any] = {"plan.json": context.run.plan}
    return judge_topics(spark, context.services.bootstrap, context.settings.client, question, folder, papers)


def judged_range(context: Context, names: Names, partial: bool) -> tuple[Bounds, int]:
    """What of its sources a stage answers for, and how many offsets there were left to process."""
    ranges, not_processed = [], 0
    for topic in names.sources:
        floor: Mapping[str, int] = context.run.facts["floor"][names.stage][topic]
        source = context.cluster.bounds(topic)
        begun = tuple(replace(p, start=max(p.start, floor.get(str(p.partition), p.start))) for p in source.partitions)
        if partial:
            committed = context.cluster.committed(names.group, topic)
            cut = tuple(replace(p, lso=min(p.lso, committed[p.partition])) for p in begun)
            not_processed += sum(p.lso - q.lso for p, q in zip(begun, cut, strict=True))
            begun = cut
        ranges.append(replace(source, partitions=begun))
    return join(ranges), not_processed


def _expected(context: Context, spark: SparkSession, stage: Stage, source: Bounds) -> Expected:
    if stage.count is None or isinstance(stage.count, str):
        return Expected(stage.expect, stage.count)
    options = spark_source_options(context.cluster.bootstrap, context.settings.client, READ_COMMITTED)
    reading = read(spark, options, source, Witness.READ_COMMITTED)
    return Expected(stage.expect, stage.count(reading, context.work))
