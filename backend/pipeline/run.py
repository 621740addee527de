"""A run, from plan to verdict: made, filled, processed, judged; watched while it goes on; stopped, resumed, cleaned.

One operating-system process owns a run (its lease is in the history). The process may be killed at any point: what
has happened is in Kafka and in the history, and `resume` goes on from there.
"""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from backend.errors import SparkError, TopicError, TopicproofError, UsageError
from backend.history.store import History, Run, State
from backend.judge import Question, judge_topics
from backend.kafka.cluster import Cluster
from backend.pipeline.fill import fill, numbers_in
from backend.pipeline.journal import read_journal
from backend.pipeline.monitor import Context, watched
from backend.pipeline.plan import RunPlan
from backend.pipeline.process import Names, prepare, process
from backend.pipeline.scenarios import scenario
from backend.services import Services
from backend.settings import Settings
from backend.spark import connect, session_id, spark_session
from validators.finding import Bounds, Guarantee
from validators.report import Report


def create(settings: Settings, services: Services, history: History, plan: RunPlan) -> Run:
    """Make the run's topics, commit its floor, and enter it in the history. Raises ClusterError, TopicError."""
    cluster = Cluster(services.bootstrap, settings.client)
    cluster.check()
    chosen = scenario(plan.scenario)
    if plan.source.topic is not None and not plan.until_stopped:
        require_records(cluster.bounds(plan.source.topic))
    run = history.create("run", plan.scenario, plan.model_dump(mode="json"))
    try:
        source = plan.source.topic or f"{run.id}-{chosen.source}"
        sink = plan.sink.topic or f"{run.id}-{chosen.sink}"
        names = Names(source, sink, f"{run.id}-journal", f"{run.id}-{chosen.stage}", f"{run.id}-{chosen.stage}")
        made = [names.journal]
        if plan.fills:
            cluster.create_topic(source, plan.partitions)
            made.append(source)
        partitions = len(cluster.partitions(source))
        if plan.sink.topic is None or plan.sink.topic not in cluster.topics():
            cluster.create_topic(sink, plan.sink.partitions or partitions)
            made.append(sink)
        cluster.create_topic(names.journal, 1)
        history.remember(
            run.id,
            {
                **asdict(names),
                "made": made,
                "cluster": {"bootstrap": settings.bootstrap, "brokers": settings.brokers},
                "floor": _floor(cluster, plan, names),
                "sink_from": {str(p.partition): p.hw for p in cluster.bounds(sink).partitions},
                "filled": not plan.fills,
            },
        )
    except TopicproofError as error:
        history.end(run.id, State.FAILED, None, None, str(error))
        raise
    return history.get(run.id)


def execute(context: Context) -> Report | None:
    """Fill, process and judge, each as far as it is not done yet. Gives the report, or None where none was asked for.

    Raises TopicproofError for what is refused before a record is written, and for what keeps the run from being judged.
    A pipeline that fails on its way is judged all the same: the history has its error beside the verdict.
    """
    with watched(context), spark_session(context.services.spark_remote) as spark:
        context.remember(session=session_id(spark))
        try:
            failure = _work(context, spark)
        except TopicproofError as error:
            context.history.end(context.run.id, State.FAILED, None, None, str(error))
            raise
        report = _conclude(context, spark, failure)
        context.remember(session=None)
        return report


def _work(context: Context, spark: SparkSession) -> TopicproofError | None:
    """Fill and process. Gives what the pipeline failed with once it was under way."""
    with ThreadPoolExecutor(1) as pool:
        filling = _start_fill(context, pool)
        try:
            return _process(context, spark, filling)
        finally:
            if filling is not None:
                context.stop.set()


def _process(context: Context, spark: SparkSession, filling: Future[None] | None) -> TopicproofError | None:
    if context.stop.is_set():
        return None
    context.enter(State.PROCESSING)
    rows = prepare(spark, context.cluster, context.plan, context.names)
    checkpoint = (context.folder / "checkpoint").as_uri()
    try:
        process(
            rows,
            context.cluster,
            context.plan,
            context.names,
            checkpoint,
            context.stop.is_set,
            lambda: _surface(filling),
        )
    except TopicproofError as error:
        return error
    return None


def _start_fill(context: Context, pool: ThreadPoolExecutor) -> Future[None] | None:
    """Fill first, or beside the pipeline when the run goes on until stopped; None when there is nothing to wait for."""
    if context.run.facts["filled"]:
        return None
    if context.plan.until_stopped:
        return pool.submit(_fill, context)
    context.enter(State.FILLING)
    _fill(context)
    return None


def _surface(filling: Future[None] | None) -> None:
    """Raise what the concurrent fill raised, as soon as it did."""
    if filling is not None and filling.done():
        filling.result()


def _fill(context: Context) -> None:
    plan = context.plan

    def heard(count: int) -> None:
        context.filled = count

    fill(
        context.cluster,
        context.names.source,
        None if plan.until_stopped else plan.records,
        plan.rate,
        context.stop.is_set,
        heard,
        numbers_in(context.cluster, context.names.source),
    )
    if not context.stop.is_set():
        context.remember(filled=True)


def _conclude(context: Context, spark: SparkSession, failure: TopicproofError | None) -> Report | None:
    """Judge what there is, and say the last word in the history."""
    stopped = failure is None and (context.stop.is_set() or context.plan.until_stopped)
    state = State.FAILED if failure is not None else State.STOPPED if stopped else State.DONE
    report: Report | None = None
    if context.plan.judged:
        context.enter(State.JUDGING)
        try:
            report = judge_run(context, spark, partial=stopped)
        except TopicproofError as error:
            context.history.end(context.run.id, State.FAILED, None, None, str(failure or error))
            raise failure or error from error
    context.history.end(
        context.run.id,
        state,
        report.verdict if report else None,
        report.why if report else None,
        str(failure) if failure is not None else None,
    )
    if failure is not None and report is None:
        raise failure
    return report


def exit_code(run: Run, report: Report) -> int:
    """The verdict's, but a run that failed on its way never passes."""
    return report.exit_code or (3 if run.error else 0)


def judge_run(context: Context, spark: SparkSession, partial: bool) -> Report:
    """Judge a run's sink against its source. `partial`: only up to what the run had committed when it was stopped."""
    names, facts = context.names, context.run.facts
    source = context.cluster.bounds(names.source)
    floor = {int(p): offset for p, offset in facts["floor"].items()}
    source = replace(
        source, partitions=tuple(replace(p, start=max(p.start, floor[p.partition])) for p in source.partitions)
    )
    not_processed = 0
    if partial:
        committed = context.cluster.committed(names.group, names.source)
        cut = tuple(replace(p, lso=min(p.lso, committed[p.partition])) for p in source.partitions)
        not_processed = sum(p.lso - q.lso for p, q in zip(source.partitions, cut, strict=True))
        source = replace(source, partitions=cut)
    question = Question(
        source=source,
        sink=names.sink,
        guarantee=Guarantee(context.plan.guarantee),
        journal=read_journal(context.cluster.bootstrap, context.settings.client, names.journal),
        sink_from={int(p): offset for p, offset in facts["sink_from"].items()},
        run=context.run.id,
        not_processed=not_processed,
    )
    return judge_topics(spark, context.services.bootstrap, context.settings.client, question, context.folder)


def check(
    settings: Settings, services: Services, history: History, question: Question, folder: Path | None = None
) -> Report:
    """Judge two topics that no run of ours needs to have written, and keep the verdict in the history."""
    topics = {"source": question.source.topic, "sink": question.sink}
    entry = history.create("check", "check", {**topics, "identity": question.identity, "guarantee": question.guarantee})
    target = (folder or settings.runs / entry.id).absolute()
    history.remember(entry.id, {**topics, "folder": str(target)})
    history.enter(entry.id, State.JUDGING)
    try:
        with spark_session(services.spark_remote) as spark:
            judged = replace(question, run=entry.id)
            report = judge_topics(spark, services.bootstrap, settings.client, judged, target)
    except TopicproofError as error:
        history.end(entry.id, State.FAILED, None, None, str(error))
        raise
    history.end(entry.id, State.DONE, report.verdict, report.why)
    return report


def require_records(bounds: Bounds) -> None:
    """Raises TopicError when nobody could read a record from it."""
    if all(p.lso <= p.start for p in bounds.partitions):
        raise TopicError(
            f"Topic {bounds.topic} holds no record that a read_committed consumer could read. Fill it first."
        )


def make_context(
    settings: Settings, services: Services, history: History, run: Run, stop: threading.Event | None = None
) -> Context:
    cluster = Cluster(services.bootstrap, settings.client)
    plan = RunPlan.model_validate(run.plan)
    return Context(settings, services, history, cluster, run, plan, stop or threading.Event())


def resume(
    settings: Settings, services: Services, history: History, run_id: str, stop: threading.Event | None = None
) -> Report | None:
    """Go on with a run whose process was stopped or killed. Raises UsageError when there is nothing to go on with."""
    found = history.get(run_id)
    if found.kind != "run" or (found.state is State.DONE and not found.alive):
        raise UsageError(f"Run {run_id} is finished; there is nothing to resume. `topicproof show {run_id}` shows it.")
    if "floor" not in found.facts:
        raise UsageError(f"Run {run_id} ended before its topics were made. Start it anew: topicproof clean {run_id}")
    run = history.take(run_id)
    stop_orphan(services, run)
    return execute(make_context(settings, services, history, run, stop))


def stop_orphan(services: Services, run: Run) -> None:
    """Stop the query that a killed run's client left behind in the Spark server."""
    left = run.facts.get("session")
    if not left or not services.spark_remote:
        return
    try:
        spark = connect(f"{services.spark_remote}/;session_id={left}")
        for query in spark.streams.active:
            query.stop()
        spark.stop()
    except (SparkError, PySparkException) as error:
        # The server was restarted, or has ended the session, and with it the query.
        if "INVALID_HANDLE" not in f"{error} {error.__cause__}":
            raise


def clean(settings: Settings, services: Services, history: History, run_id: str) -> list[str]:
    """Delete a run's topics (only those it made), group, folder and entry. Gives the topics' names."""
    run = history.take(run_id)
    stop_orphan(services, run)
    cluster = Cluster(services.bootstrap, settings.client)
    deleted = cluster.delete_topics(run.facts.get("made", []))
    if "group" in run.facts:
        cluster.delete_group(run.facts["group"])
    shutil.rmtree(settings.runs / run.id, ignore_errors=True)
    history.forget(run_id)
    return deleted


def _floor(cluster: Cluster, plan: RunPlan, names: Names) -> dict[str, int]:
    """Commit where the run begins, so that an absent offset is an error from now on and never a fresh start."""
    bounds = cluster.bounds(names.source)
    floor = {p.partition: p.start if plan.source.starting == "earliest" else p.lso for p in bounds.partitions}
    cluster.commit_offsets(names.group, names.source, floor)
    return {str(p): offset for p, offset in floor.items()}
