"""A run, from plan to verdict: made, filled, processed, judged; watched while it goes on; stopped,
resumed, cleaned.

One operating-system process owns a run (its lease is in the history). The process may be killed at
any point: what has happened is in Kafka and in the history, and `resume` goes on from there.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from urllib.parse import urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from topicproof.backend.errors import (
    OffsetMissing,
    OffsetsMoved,
    SparkError,
    TopicproofError,
    UsageError,
)
from topicproof.backend.evidence.copy import without_payloads, without_values
from topicproof.backend.evidence.folder import EVIDENCE
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.history.run_state import (
    DEAD_LETTERS,
    Facts,
    Names,
    RanOn,
    StageVerdict,
)
from topicproof.backend.history.store import History, Run, State
from topicproof.backend.judging.capture_store import Question
from topicproof.backend.judging.judge import judge_topics
from topicproof.backend.kafka.cluster import Cluster, require_records
from topicproof.backend.runs.duplicates import Cause, Twice, fill_twice, table_of
from topicproof.backend.runs.fault_director import Director, Struck
from topicproof.backend.runs.file_server import HOST, serving
from topicproof.backend.runs.fill import fill, numbers_in
from topicproof.backend.runs.monitor import Context, watched
from topicproof.backend.runs.plan import RunPlan
from topicproof.backend.runs.query import prepare, process, require_expressions
from topicproof.backend.runs.reader import FOLDER, reading
from topicproof.backend.runs.scenarios import Scenario, Stage, scenario
from topicproof.backend.runs.stage_verdicts import Judged, Until, judge_run
from topicproof.backend.runs.totals import current_totals, wrong_by
from topicproof.backend.services.kafka import free_ports
from topicproof.backend.services.keeper import Services
from topicproof.backend.services.spark import connect, session_id, spark_session
from topicproof.backend.settings import Settings
from topicproof.backend.sink.stateful import commit_batch_floor
from topicproof.backend.sink.table import (
    begin,
    drop_table,
    drop_tables,
    make_tables,
    require_no_table,
    shown_url,
)
from topicproof.validators.finding import Guarantee, Outcome
from topicproof.validators.report import Report
from topicproof.validators.report import exit_code as exit_code_of

PAYMENTS = "payments.db"
"""The file, in a run's folder, of the SQLite database whose table a transfer copies."""
TABLES = "tables.db"
"""The file, in a run's folder, of the SQLite database that has its tables."""


def create(settings: Settings, services: Services, history: History, plan: RunPlan) -> Run:
    """Make the run's topics, commit its initial offsets, and enter it in the history. Raises
    ClusterError, TopicError."""
    cluster = Cluster(services.address)
    cluster.check()
    chosen = scenario(plan.scenario)
    if plan.source.topic is not None and not plan.until_stopped:
        require_records(cluster.bounds(plan.source.topic))
    if chosen.expressions:
        with spark_session(services.spark_remote) as spark:
            require_expressions(spark, plan)
    if plan.sink.url is not None and plan.sink.topic is not None:
        require_no_table(plan.sink.url, plan.sink.topic)
    run = history.create("run", plan.scenario, plan.model_dump(mode="json"))
    try:
        topics = topics_of(run.id, plan, chosen)
        journal = f"{run.id}-journal"
        made = [journal, *_make_topics(cluster, plan, chosen, topics)]
        cluster.create_topic(journal, 1)
        stages = [stage_names(run.id, stage, topics, journal) for stage in chosen.stages]
        if chosen.tables:
            stages = [
                replace(names, database=_database(settings, run.id, plan)) for names in stages
            ]
        for stage, names in zip(chosen.stages, stages, strict=True):
            if stage.stateful:
                made.append(
                    commit_batch_floor(cluster, names.group, len(cluster.partitions(names.source)))
                )
        if plan.sink.dead_letters:
            stages = [_with_dead_letters(cluster, names, made) for names in stages]
        facts = Facts(
            source=topics[chosen.sources[0]],
            sink=topics[chosen.sinks[0]],
            journal=journal,
            group=stages[0].group,
            topics=topics,
            stages=tuple(stages),
            made=tuple(made),
            cluster=RanOn(settings.bootstrap, settings.brokers),
            initial_offsets={
                names.stage: _commit_initial_offsets(cluster, plan, names, topics, chosen)
                for names in stages
            },
            sink_from={
                sink: {str(p.partition): p.hw for p in cluster.bounds(sink).partitions}
                for names in stages
                if names.database is None
                for sink in names.sinks
            },
            database=shown_url(_database(settings, run.id, plan)) if chosen.tables else None,
            filled=not plan.fills,
            # The port is chosen once: the URLs in the source must still be right when the run is
            # resumed.
            served=f"http://{HOST}:{free_ports(1)[0]}/" if chosen.serves and plan.fills else "",
        )
        history.remember(run.id, facts)
    except TopicproofError as error:
        history.end(run.id, State.FAILED, None, None, str(error))
        raise
    return history.get(run.id)


def topics_of(run_id: str, plan: RunPlan, chosen: Scenario) -> dict[str, str]:
    """What the scenario's topics are called in Kafka. Dead letters are called after the sink they
    lie beside."""
    topics = {topic: f"{run_id}-{topic}" for topic in chosen.topics}
    topics[chosen.sources[0]] = plan.source.topic or topics[chosen.sources[0]]
    sink = chosen.sinks[0]
    topics[sink] = plan.sink.topic or topics[sink]
    if f"{sink}{DEAD_LETTERS}" in topics:
        topics[f"{sink}{DEAD_LETTERS}"] = f"{topics[sink]}{DEAD_LETTERS}"
    return topics


def _database(settings: Settings, run_id: str, plan: RunPlan) -> str:
    """Where a run's tables are: in the run's folder, unless the plan says another place."""
    if plan.sink.url is not None:
        return plan.sink.url
    folder = settings.runs / run_id
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / TABLES}"


def stage_names(run_id: str, stage: Stage, topics: Mapping[str, str], journal: str) -> Names:
    """What a stage of a run is called in Kafka."""
    sources, sinks = ([topics[topic] for topic in of] for of in (stage.sources, stage.sinks))
    own = f"{run_id}-{stage.name}"
    return Names(stage.name, tuple(sources), tuple(sinks), journal, own, own)


def _with_dead_letters(cluster: Cluster, names: Names, made: list[str]) -> Names:
    """Make a stage's topic of dead letters where it has none yet."""
    if names.dead_letters is not None:
        return names
    topic = f"{names.sink}{DEAD_LETTERS}"
    if topic not in cluster.topics():
        cluster.create_topic(topic, 1)
        made.append(topic)
    return replace(names, sinks=(*names.sinks, topic))


def _make_topics(
    cluster: Cluster, plan: RunPlan, chosen: Scenario, topics: Mapping[str, str]
) -> list[str]:
    """Make the topics that a run needs and that are not there; gives their names."""
    made = []
    if plan.fills:
        for source in chosen.sources:
            cluster.create_topic(topics[source], plan.partitions)
            made.append(topics[source])
    partitions = len(cluster.partitions(topics[chosen.sources[0]]))
    there = cluster.topics() if plan.sink.topic is not None else []
    for topic in [
        topics[one] for one in chosen.topics if one not in (*chosen.sources, *chosen.tables)
    ]:
        if topic not in there:
            cluster.create_topic(topic, plan.sink.partitions or partitions)
            made.append(topic)
    return made


def execute(context: Context) -> Report | None:
    """Fill, process and judge, each as far as it is not done yet. Gives the report, or None where
    none was asked for.

    Raises TopicproofError for what is refused before a record is written, and for what keeps the
    run from being judged. A pipeline that fails on its way is judged all the same: the history has
    its error beside the verdict.
    """
    with _served(context), watched(context), spark_session(context.services.spark_remote) as spark:
        context.remember(session=session_id(spark))
        try:
            failure = _work(context, spark)
        except TopicproofError as error:
            context.history.end(context.run.id, State.FAILED, None, None, str(error))
            raise
        report = _conclude(context, spark, failure)
        context.remember(session=None)
        return report


def _served(context: Context) -> AbstractContextManager[object]:
    """The files of the demo's data, for as long as the run goes on."""
    served = context.run.facts.served
    return serving(urlsplit(served).port or 0, context.requests_log) if served else nullcontext()


def _work(context: Context, spark: SparkSession) -> TopicproofError | None:
    """Fill and process. Gives what the pipeline failed with once it was under way."""
    with ThreadPoolExecutor(1) as pool:
        filling = _start_fill(context, pool)
        try:
            return _process(context, spark, filling)
        finally:
            if filling is not None:
                context.stop.set()


def _process(
    context: Context, spark: SparkSession, filling: Future[None] | None
) -> TopicproofError | None:
    if context.stop.is_set():
        return None
    context.enter(State.PROCESSING)
    cluster, plan = context.cluster, context.plan
    ready = [prepare(spark, cluster, context.work, stage, names) for stage, names in context.stages]
    checkpoints = (
        f"{plan.checkpoints}/{context.run.id}"
        if plan.checkpoints
        else (context.folder / "checkpoint").as_uri()
    )
    exactly_once = Guarantee(plan.guarantee) is Guarantee.EXACTLY_ONCE
    struck = Struck(context.settings, cluster, context.names, exactly_once)
    try:
        with _reading(context), Director(struck, plan.faults) as director:
            reached = [replace(one, bootstrap=director.bootstrap) for one in ready]
            process(
                reached, cluster, plan, checkpoints, context.stop.is_set, lambda: _surface(filling)
            )
    except TopicproofError as error:
        return error
    return None


def _reading(context: Context) -> AbstractContextManager[object]:
    """A reader of the sinks beside the pipeline, where the plan asks for one."""
    if not context.plan.reader:
        return nullcontext()
    return reading(context.cluster, context.run.facts.sink_from, context.folder / FOLDER)


def _start_fill(context: Context, pool: ThreadPoolExecutor) -> Future[None] | None:
    """Fill first, or beside the pipeline when the run goes on until stopped; None when there is
    nothing to wait for."""
    if context.run.facts.filled:
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
    """Fill every source of the scenario, with as many records each."""
    plan, chosen = context.plan, scenario(context.plan.scenario)
    value = chosen.value
    if value is None:
        return
    work = context.work
    if plan.duplicates is not None:
        _fill_twice(context, plan.duplicates)
        return
    counts = dict.fromkeys(chosen.sources, 0)

    def fill_one(role: str) -> None:
        topic = work.topics[role]

        def heard(count: int) -> None:
            counts[role] = count
            context.filled = sum(counts.values())

        fill(
            context.cluster,
            topic,
            None if plan.until_stopped else plan.records,
            plan.rate,
            context.stop.is_set,
            heard,
            numbers_in(context.cluster, topic, chosen.number),
            lambda number: value(number, work),
            chosen.key,
        )

    with ThreadPoolExecutor(len(counts)) as pool:
        list(pool.map(fill_one, counts))
    if not context.stop.is_set():
        context.remember(filled=True)


def _fill_twice(context: Context, cause: Cause) -> None:
    """Fill the scenario's one source with payments, some of them twice."""
    chosen = scenario(context.plan.scenario)
    topic = context.work.topics[chosen.sources[0]]

    def heard(count: int) -> None:
        # Who starts again counts from the beginning again.
        context.filled = max(context.filled, count)

    there = numbers_in(context.cluster, topic, chosen.number)
    database = context.plan.source.url or f"sqlite:///{context.folder / PAYMENTS}"
    context.folder.mkdir(parents=True, exist_ok=True)
    fill_twice(
        cause,
        Twice(
            context.cluster,
            topic,
            context.plan.records,
            database,
            context.stop.is_set,
            heard,
            there,
        ),
    )
    if not context.stop.is_set():
        context.remember(filled=True)


def _conclude(
    context: Context, spark: SparkSession, failure: TopicproofError | None
) -> Report | None:
    """Judge what there is, and say the last word in the history."""
    stopped = failure is None and (context.stop.is_set() or context.plan.until_stopped)
    state = State.FAILED if failure is not None else State.STOPPED if stopped else State.DONE
    judged: Judged | None = None
    if context.plan.judged:
        context.enter(State.JUDGING)
        try:
            judged = judge_run(context, spark, _until(context, failure, stopped))
            stages = {
                name: StageVerdict(one.verdict, one.why) for name, one in judged.stages.items()
            }
            context.remember(verdicts=stages, values=judged.values)
            if context.plan.scenario == "totals":
                known = current_totals(context.cluster, context.names.sink)
                context.remember(accounts=len(known), wrong_by=wrong_by(known))
        except TopicproofError as error:
            context.history.end(context.run.id, State.FAILED, None, None, str(failure or error))
            raise failure or error from error
    context.history.end(
        context.run.id,
        state,
        judged.verdict if judged else None,
        judged.why if judged else None,
        str(failure) if failure is not None else None,
    )
    if failure is not None and judged is None:
        raise failure
    return judged.report if judged else None


def _until(context: Context, failure: TopicproofError | None, stopped: bool) -> Until:
    # A stateful stage is not told apart by source partition in the journal.
    told = not any(stage.stateful for stage, _ in context.stages)
    if isinstance(failure, OffsetsMoved | OffsetMissing) and told:
        return Until.JOURNALLED
    return Until.COMMITTED if stopped else Until.END


def exit_code(run: Run, report: Report) -> int:
    """The verdict's, which is the worst of the run's stages'; but a run that failed on its way
    never passes."""
    worst = Outcome(run.verdict) if run.verdict else report.verdict
    code = report.exit_code if worst is report.verdict else exit_code_of(worst)
    return code or (3 if run.error else 0)


def check(
    settings: Settings,
    services: Services,
    history: History,
    question: Question,
    attachments: Mapping[str, str] | None = None,
    contract: str | None = None,
    payloads: Payloads = Payloads.ALL,
) -> Report:
    """Judge two topics that no run of ours needs to have written, and keep the verdict in the
    history. `attachments`: what else goes into the evidence, by file name. `contract`: by what name
    to find all checks of one. `payloads`: all, or none in the evidence."""
    source, sink = question.source.topic, question.sink
    said = {"identity": question.identity, "guarantee": question.guarantee}
    named = {} if contract is None else {"contract": contract}
    entry = history.create("check", "check", {"source": source, "sink": sink, **said, **named})
    history.remember(entry.id, Facts(source=source, sink=sink))
    history.enter(entry.id, State.JUDGING)
    folder = settings.runs / entry.id
    try:
        with spark_session(services.spark_remote) as spark:
            judged = replace(question, run=entry.id)
            every = {"plan.json": entry.plan, **(attachments or {})}
            report = judge_topics(spark, services.address, judged, folder, every, payloads)
        if payloads is Payloads.NONE:
            without_payloads(folder / EVIDENCE)
            report = without_values(report)
    except TopicproofError as error:
        if payloads is Payloads.NONE:
            # Readings that were looked at lie there whole until they are judged.
            shutil.rmtree(folder, ignore_errors=True)
        history.end(entry.id, State.FAILED, None, None, str(error))
        raise
    history.end(entry.id, State.DONE, report.verdict, report.why)
    return report


def make_context(
    settings: Settings,
    services: Services,
    history: History,
    run: Run,
    stop: threading.Event | None = None,
) -> Context:
    cluster = Cluster(services.address)
    plan = RunPlan.model_validate(run.plan)
    return Context(settings, services, history, cluster, run, plan, stop or threading.Event())


def resume(
    settings: Settings,
    services: Services,
    history: History,
    run_id: str,
    stop: threading.Event | None = None,
    offsets_forced: bool = False,
) -> Report | None:
    """Go on with a run whose process was stopped or killed. Raises UsageError when there is nothing
    to go on with.

    `offsets_forced`: from where its group stands, although the journal says that its offsets were
    moved.
    """
    found = history.get(run_id)
    if found.kind != "run" or (found.state is State.DONE and not found.alive):
        raise UsageError(
            f"Run {run_id} is finished; there is nothing to resume. `topicproof show {run_id}`"
            " shows it."
        )
    if found.facts.initial_offsets is None:
        raise UsageError(
            f"Run {run_id} ended before its topics were made. Start it anew: topicproof clean"
            f" {run_id}"
        )
    run = history.take(run_id)
    stop_orphan(services, run)
    context = make_context(settings, services, history, run, stop)
    if offsets_forced:
        context.plan = context.plan.model_copy(update={"offsets_forced": True})
    _extend(context)
    return execute(context)


def _extend(context: Context) -> None:
    """Commit the initial offset of source partitions that were added since the run began: their
    beginning."""
    offsets = context.run.facts.initial_offsets or {}
    initial = {
        stage: {of: dict(known) for of, known in one.items()} for stage, one in offsets.items()
    }
    for _, names in context.stages:
        for source in names.sources:
            known = initial[names.stage].setdefault(source, {})
            new = {
                p.partition: p.start
                for p in context.cluster.bounds(source).partitions
                if str(p.partition) not in known
            }
            if new:
                if names.database is not None:
                    begin(
                        names.database,
                        names.group,
                        {(source, p): offset for p, offset in new.items()},
                    )
                else:
                    context.cluster.commit_offsets(names.group, source, new)
                known |= {str(p): offset for p, offset in new.items()}
                context.remember(initial_offsets=initial)


def stop_orphan(services: Services, run: Run) -> None:
    """Stop the query that a killed run's client left behind in the Spark server."""
    left = run.facts.session
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
    """Delete a run's topics (only those it made), table, group, folder and entry. Gives what was
    deleted, by name."""
    run = history.take(run_id)
    stop_orphan(services, run)
    cluster = Cluster(services.address)
    deleted = cluster.delete_topics(run.facts.made)
    for names in run.facts.stages:
        cluster.delete_group(names.group)
        if names.database is not None:
            drop_tables(names.database, names.sink, names.group)
            deleted.append(names.sink)
    if given := run.plan.get("source", {}).get("url"):
        drop_table(given, table_of(run.facts.source))
    shutil.rmtree(settings.runs / run.id, ignore_errors=True)
    history.forget(run_id)
    return deleted


def _commit_initial_offsets(
    cluster: Cluster, plan: RunPlan, names: Names, topics: Mapping[str, str], chosen: Scenario
) -> dict[str, dict[str, int]]:
    """Commit where a stage begins, so that an absent offset is an error from now on and never a
    fresh start.

    Gives offset by topic and partition. Where a plan says `latest` that is meant of the run's
    sources: between two stages everything counts from where the run found it.
    """
    initial: dict[str, dict[str, int]] = {}
    outer = {topics[source] for source in chosen.sources}
    for source in names.sources:
        earliest = source in outer and plan.source.starting == "earliest"
        bounds = cluster.bounds(source)
        offsets = {p.partition: p.start if earliest else p.lso for p in bounds.partitions}
        if names.database is None:
            cluster.commit_offsets(names.group, source, offsets)
        initial[source] = {str(p): offset for p, offset in offsets.items()}
    if names.database is not None:
        begun = {
            (source, int(p)): offset
            for source, of_topic in initial.items()
            for p, offset in of_topic.items()
        }
        make_tables(names.database, names.sink, names.group, begun, Guarantee(plan.guarantee))
    return initial
