"""A run, from plan to verdict: made, filled, processed, judged; watched while it goes on; stopped, resumed, cleaned.

One operating-system process owns a run (its lease is in the history). The process may be killed at any point: what
has happened is in Kafka and in the history, and `resume` goes on from there.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from backend.errors import ClusterError, SparkError, TopicError, TopicproofError, UsageError
from backend.history.store import History, Run, State
from backend.judge import Question, judge_topics
from backend.kafka.cluster import Cluster
from backend.pipeline.fill import fill, numbers_in
from backend.pipeline.journal import Declared, Entry, FaultFired, JournalReader, TransactionEnded, read_journal
from backend.pipeline.plan import RunPlan
from backend.pipeline.process import Names, prepare, process
from backend.pipeline.scenarios import scenario
from backend.services import Services
from backend.settings import Settings
from backend.spark import connect, session_id, spark_session
from validators.finding import Bounds, Guarantee
from validators.report import Report

TICK_S = 0.5
RATE_WINDOW_S = 5.0


@dataclass(frozen=True)
class Progress:
    """The live figures of a run, as the page and the command line show them."""

    stage: str
    filled: int = 0
    processed: int = 0
    """Inputs whose outputs are committed."""
    total: int | None = None
    """Inputs there will be; None while nobody knows."""
    committed: int = 0
    """Transactions, as the journal declares them."""
    aborted: int = 0
    faults: int = 0
    records_per_s: float = 0.0
    seconds_left: float | None = None
    sink: tuple[dict[str, int], ...] = ()
    """Per partition of the sink: partition, start, lso, hw."""
    trouble: str | None = None
    """What the last look could not see, in one sentence."""


@dataclass
class Context:
    """What every stage of one run needs."""

    settings: Settings
    services: Services
    history: History
    cluster: Cluster
    run: Run
    plan: RunPlan
    stop: threading.Event = field(default_factory=threading.Event)
    stage: State = State.CREATED
    filled: int = 0

    @property
    def names(self) -> Names:
        facts = self.run.facts
        return Names(facts["source"], facts["sink"], facts["journal"], facts["group"], facts["prefix"])

    @property
    def folder(self) -> Path:
        return self.settings.runs / self.run.id

    def enter(self, state: State) -> None:
        self.stage = state
        self.history.enter(self.run.id, state)

    def remember(self, **facts: Any) -> None:
        self.history.remember(self.run.id, facts)
        self.run = self.history.get(self.run.id)


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
    with _watched(context), spark_session(context.services.spark_remote) as spark:
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


class Monitor(threading.Thread):
    """Renews the lease, publishes the live figures and hears a requested stop, every half second."""

    def __init__(self, context: Context) -> None:
        super().__init__(name="monitor", daemon=True)
        self.context = context
        self.ended = threading.Event()
        self.journal = JournalReader(context.cluster.bootstrap, context.settings.client, context.names.journal)
        self.seen = Progress(stage=State.CREATED)
        self.window: deque[tuple[float, int]] = deque()
        self.error: TopicproofError | None = None

    def run(self) -> None:
        while True:
            ended = self.ended.wait(TICK_S)
            try:
                self.seen = self._look()
            except ClusterError as error:
                # A broker that is away for a moment must not end the run; the page says what could not be seen.
                self.seen = replace(self.seen, stage=self.context.stage, trouble=str(error))
            try:
                if self.context.history.renew(self.context.run.id, asdict(self.seen)):
                    self.context.stop.set()
            except TopicproofError as error:
                self.error = error
                self.context.stop.set()
                return
            if ended:
                return

    def _look(self) -> Progress:
        context, names = self.context, self.context.names
        committed, aborted, faults = self.seen.committed, self.seen.aborted, self.seen.faults
        for entry in self.journal.news():
            committed += _ended(entry, Declared.COMMITTED)
            aborted += _ended(entry, Declared.ABORTED)
            faults += isinstance(entry, FaultFired)
        floor = context.run.facts["floor"]
        offsets = context.cluster.committed(names.group, names.source)
        source = context.cluster.bounds(names.source)
        # Offsets, not records: where the source is transactional its markers count too, on both sides alike.
        processed = sum(offset - floor.get(str(p), 0) for p, offset in offsets.items())
        there = sum(p.hw - floor.get(str(p.partition), 0) for p in source.partitions)
        rate = self._rate(processed)
        total = None if context.plan.until_stopped else context.plan.records if context.plan.fills else there
        left = (total - processed) / rate if total is not None and rate > 0 else None
        return Progress(
            stage=context.stage,
            filled=max(context.filled, there),
            processed=processed,
            total=total,
            committed=committed,
            aborted=aborted,
            faults=faults,
            records_per_s=round(rate, 1),
            seconds_left=None if left is None else round(max(0.0, left), 1),
            sink=tuple(asdict(p) for p in context.cluster.bounds(names.sink).partitions),
        )

    def _rate(self, processed: int) -> float:
        now = time.monotonic()
        self.window.append((now, processed))
        while now - self.window[0][0] > RATE_WINDOW_S:
            self.window.popleft()
        began, before = self.window[0]
        return (processed - before) / (now - began) if now > began else 0.0


def _ended(entry: Entry, outcome: Declared) -> bool:
    return isinstance(entry, TransactionEnded) and entry.outcome is outcome


@contextmanager
def _watched(context: Context) -> Iterator[None]:
    """The monitor beside the work. Raises what kept it from doing its part."""
    monitor = Monitor(context)
    monitor.start()
    try:
        yield
    finally:
        monitor.ended.set()
        monitor.join()
        monitor.journal.close()
    if monitor.error is not None:
        raise monitor.error
