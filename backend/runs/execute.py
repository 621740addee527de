"""A run from fill to verdict: fill its sources, process them, judge the result.

The process may be killed at any point. All progress is in Kafka and in the history, and `resume`
continues from there.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from itertools import chain, repeat
from threading import Event
from urllib.parse import urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from topicproof.backend.doctor.workers import require_workers
from topicproof.backend.errors import NotAllowed, OffsetMissing, OffsetsMoved, TopicproofError
from topicproof.backend.evidence.attestation import attest_all
from topicproof.backend.evidence.folder import evidence_in
from topicproof.backend.history.run_state import RunResults, StageVerdict
from topicproof.backend.history.store import State
from topicproof.backend.kafka.look import LookBudget
from topicproof.backend.log_file import RUN_LOG, logged_to
from topicproof.backend.runs.checkpoints import private_checkpoints
from topicproof.backend.runs.context import Context
from topicproof.backend.runs.fault_director import Director, StrikeTarget
from topicproof.backend.runs.file_server import serving
from topicproof.backend.runs.fill_sources import raise_failure, start_fill
from topicproof.backend.runs.initial_offsets import extend
from topicproof.backend.runs.lifeline import lifeline
from topicproof.backend.runs.monitor import watched
from topicproof.backend.runs.pacing import Pacing, load
from topicproof.backend.runs.plan import RunPlan
from topicproof.backend.runs.query import PreparedStage, explained, prepare, process, progress
from topicproof.backend.runs.reader import FOLDER, reading
from topicproof.backend.runs.real_time import (
    SourceEnds,
    look_at_brokers,
    require_slots,
    start_again,
)
from topicproof.backend.runs.stage_verdicts import RunVerdicts, Until, judge_run
from topicproof.backend.runs.strikes import FOLDER as STRIKES
from topicproof.backend.runs.totals import END_LIMITS, current_totals, figures
from topicproof.backend.services.spark_session import session_id, spark_session
from topicproof.backend.storage import publish, spark_url
from topicproof.validators.finding import Guarantee
from topicproof.validators.report import Report

_LOG = logging.getLogger(__name__)


def execute(context: Context) -> Report | None:
    """Fill, process and judge, skipping what is already done. Returns the report, or None if the
    plan asks for no verdict.

    Raises TopicproofError if the run is refused before a record is written, or cannot be judged. A
    pipeline that fails later is still judged, and the history keeps its error beside the verdict.
    """
    try:
        with logged_to(lambda: context.folder / RUN_LOG):
            return _execute(context)
    except PySparkException as error:
        failure = explained(error)
        context.history.end(context.run.id, State.FAILED, None, None, str(failure))
        raise failure from error
    except TopicproofError as error:
        context.history.end(context.run.id, State.FAILED, None, None, str(error))
        raise


def _execute(context: Context) -> Report | None:
    remote = context.services.spark_remote
    storage = context.services.storage
    with (
        lifeline(context),
        _served(context),
        watched(context),
        spark_session(remote, storage) as spark,
    ):
        context.remember(session=session_id(spark))
        if context.settings.spark_remote is not None:
            require_workers(spark, context.services.address, context.folder)
        url = context.plan.checkpoints
        checkpoints = (
            spark_url(spark, context.folder / "checkpoint")
            if url is None
            else private_checkpoints(
                f"{url}/{context.run.id}", storage, context.settings.spark_remote is None
            )
        )
        failure = _work(context, spark, checkpoints)
        report = _conclude(context, spark, failure)
        context.remember(session=None)
        return report


def _served(context: Context) -> AbstractContextManager[object]:
    """Serve the demo's files until the block ends."""
    served = context.run.facts.served
    return serving(urlsplit(served).port or 0, context.requests_log) if served else nullcontext()


def _work(context: Context, spark: SparkSession, checkpoints: str) -> TopicproofError | None:
    """Fill and process. Returns the error of a pipeline that failed after its start."""
    with ThreadPoolExecutor(1) as pool:
        filling = start_fill(context, pool)
        try:
            return _process(context, spark, filling, checkpoints)
        finally:
            if filling is not None and not context.finished:
                context.stop.set()


def _process(
    context: Context, spark: SparkSession, filling: Future[None] | None, checkpoints: str
) -> TopicproofError | None:
    if context.stop.is_set():
        return None
    context.enter(State.PROCESSING)
    plan = context.plan
    ready = _ready(context, spark)
    exactly_once = Guarantee(plan.guarantee) is Guarantee.EXACTLY_ONCE
    struck = StrikeTarget(
        context.settings,
        context.cluster,
        context.names,
        exactly_once,
        lambda: context.released,
        context.folder / STRIKES if plan.by_hand else None,
    )
    try:
        with _reading(context), Director(struck, plan.faults) as director:
            while True:
                with closing(Finish(context, filling)) as finish:
                    _run_queries(
                        context,
                        spark,
                        ready,
                        director,
                        checkpoints,
                        tick=lambda: raise_failure(filling),
                        finish=finish,
                    )
                fault = None if context.stop.is_set() else director.take_restart()
                if fault is None:
                    return None
                if fault.word("checkpoint") == "lost":
                    # Inside of the first ones: a plan's folder is private, not the one above it.
                    checkpoints += "/again"
                if fault.word("partitions") == "more":
                    names = context.names
                    for topic in (names.source, *(() if names.database else (names.sink,))):
                        context.cluster.add_partition(topic)
                    extend(context)
                ready = _ready(context, spark)
                director.restarted(fault)
    except TopicproofError as error:
        return error


def _run_queries(
    context: Context,
    spark: SparkSession,
    ready: Sequence[PreparedStage],
    director: Director,
    checkpoints: str,
    tick: Callable[[], None],
    finish: Finish,
) -> None:
    """Run the stages' queries to their end, or until a fault asks for another start."""
    cluster, plan = context.cluster, context.plan

    def stopped() -> bool:
        return context.stop.is_set() or director.restart_due or finish.reached()

    def run(
        stages: Iterable[PreparedStage],
        plan: RunPlan,
        checkpoints: str,
        stopped: Callable[[], bool],
    ) -> None:
        connected = [replace(prepared, bootstrap=director.bootstrap) for prepared in stages]
        process(connected, cluster, plan, checkpoints, stopped, tick)

    if plan.trigger != "real_time":
        run(ready, plan, checkpoints, stopped)
        return
    starts = chain([ready], (_ready(context, spark) for _ in repeat(None)))
    names = [names for _, names in context.stages]

    def run_until_done() -> None:
        pacing = Pacing(lambda: load(cluster, names))
        while True:
            changed = Event()

            def ended(changed: Event = changed) -> bool:
                if look_at_brokers(pacing.changes):
                    changed.set()
                return stopped() or changed.is_set()

            # Rows continue at the group's offsets. An old checkpoint would repeat a whole batch.
            new = f"{checkpoints}/{uuid.uuid4().hex[:8]}"
            paced = [replace(prepared, pace=pacing.pace) for prepared in next(starts)]
            run(paced, plan, new, ended)
            if stopped() or not changed.is_set():
                return

    # A task may fail while the query is stopped for another start, which repeats its work.
    start_again(run_until_done, lambda: progress(context.stages, cluster), context.stop.is_set)


def _ready(context: Context, spark: SparkSession) -> list[PreparedStage]:
    if context.plan.trigger == "real_time":
        tasks = [
            sum(len(context.cluster.partitions(source)) for source in names.sources)
            for _, names in context.stages
        ]
        master = spark.conf.get("spark.master", None) or ""
        require_slots(master, (sum if context.plan.until_stopped else max)(tasks))
    return [
        prepare(spark, context.cluster, context.plan, context.work, stage, names)
        for stage, names in context.stages
    ]


def _reading(context: Context) -> AbstractContextManager[object]:
    """Read the sinks alongside the pipeline, if the plan asks for it."""
    if not context.plan.reader:
        return nullcontext()
    return reading(context.cluster, context.run.facts.sink_from, context.folder / FOLDER)


def _conclude(
    context: Context, spark: SparkSession, failure: TopicproofError | None
) -> Report | None:
    """Judge the result, and end the run in the history."""
    early = context.stop.is_set() or (context.plan.until_stopped and not context.finished)
    stopped = failure is None and early
    state = State.FAILED if failure is not None else State.STOPPED if stopped else State.DONE
    judged: RunVerdicts | None = None
    if context.plan.judged:
        context.enter(State.JUDGING)
        try:
            judged = judge_run(context, spark, _until(context, failure, stopped))
            launched_by = [identity.as_json() for identity in context.run.facts.launched_by]
            attest_all(context.settings, context.folder, launched_by)
            for evidence in evidence_in(context.folder):
                publish(context.services.storage, evidence)
            stages = {
                name: StageVerdict(report.verdict, report.why)
                for name, report in judged.stages.items()
            }
            results = RunResults(verdicts=stages, values=judged.values)
            context.remember(results=results)
        except TopicproofError as error:
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
    if judged is not None and context.plan.scenario == "totals":
        _remember_totals(context)
    return judged.report if judged else None


def _remember_totals(context: Context) -> None:
    """Note the figures of a run of totals beside its verdict. That is in the history already, and
    nothing that is read here changes it: anybody may have written to the sink since."""
    ended = context.history.get(context.run.id)
    try:
        budget = LookBudget(END_LIMITS)
        totals = current_totals(context.cluster, context.names.sink, budget=budget)
        # Another process may have resumed the run meanwhile.
        if context.history.get(context.run.id).ended_at == ended.ended_at:
            context.remember(results=replace(context.run.facts.results, **figures(totals)))
    except Exception:
        _LOG.warning("the totals of %s were not read", context.run.id, exc_info=True)


def _until(context: Context, failure: TopicproofError | None, stopped: bool) -> Until:
    # A stateful stage's journal does not distinguish source partitions.
    stateless = not any(stage.stateful for stage, _ in context.stages)
    if isinstance(failure, OffsetsMoved | OffsetMissing) and stateless:
        return Until.JOURNALLED
    refused = isinstance(failure, NotAllowed)
    return Until.COMMITTED if stopped or refused else Until.END


class Finish:
    """Watches whether the request to finish has been carried out."""

    def __init__(self, context: Context, filling: Future[None] | None) -> None:
        self.context, self.filling = context, filling
        self.ends: SourceEnds | None = None

    def reached(self) -> bool:
        """Return whether a run that was asked to finish has processed its source."""
        context = self.context
        if context.stop.is_set() or not context.plan.until_stopped or not context.fill_over:
            return False
        if self.filling is not None and not self.filling.done():
            return False
        context.finished = context.finished or look_at_brokers(self._processed)
        return context.finished

    def close(self) -> None:
        if self.ends is not None:
            self.ends.close()

    def _processed(self) -> bool:
        context = self.context
        if self.ends is None:
            self.ends = SourceEnds(context.cluster, context.names, context.plan.source.isolation)
        return self.ends.reached()
