"""The streaming queries of a scenario's stages, from sources through expressions into sinks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import ArrayType, MapType, StructType

from topicproof.backend.contracts.expressions import spark_sql
from topicproof.backend.errors import (
    Fenced,
    OffsetMissing,
    RecordTooLarge,
    ShuffledInput,
    SourceGap,
    SparkError,
    TopicproofError,
)
from topicproof.backend.faults.injecting import (
    InjectingSink,
    InjectingStatefulSink,
    start_injecting_real_time,
)
from topicproof.backend.faults.injecting_table import InjectingDatabaseSink
from topicproof.backend.history.run_state import Names
from topicproof.backend.kafka.client_configs import spark_source_options
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.log import rawlog
from topicproof.backend.kafka.records_source import OVERFLOW
from topicproof.backend.runs.checkpoints import usable_checkpoint
from topicproof.backend.runs.plan import RunPlan, refused
from topicproof.backend.runs.real_time import SourceEnds, look_at_brokers
from topicproof.backend.runs.scenarios import Stage, Work, as_text
from topicproof.backend.services.spark_session import server_gone
from topicproof.backend.sink.entries import GenerationBegun
from topicproof.backend.sink.journal import append_to_journal, read_journal
from topicproof.backend.sink.outputs import REMEDY_SHUFFLED
from topicproof.backend.sink.position import journalled, moved, next_generation
from topicproof.backend.sink.real_time import FOLLOWED, Pace
from topicproof.backend.sink.stateful import batches_topic
from topicproof.backend.sink.table import committed_offsets, set_generation
from topicproof.backend.sink.task_watch import RealTimeQuery, error_named
from topicproof.validators.finding import Bounds, Guarantee
from topicproof.validators.spark_errors import (
    OUT_OF_MEMORY,
    exhausted,
    first_line,
    raised_by_workers,
    spark_clause,
)
from topicproof.validators.spark_plans import explained_plan

POLL_S = 0.2
TRIGGER = "100 milliseconds"
Query = StreamingQuery | RealTimeQuery


@dataclass(frozen=True)
class PreparedStage:
    """A stage that passed all checks and may start."""

    stage: Stage
    names: Names
    rows: DataFrame
    """Rows for the sink."""
    bootstrap: str | None = None
    """The sink's own broker address; None: the same as for all other clients."""
    pace: Pace = FOLLOWED
    """How rows come in real time."""

    def transactional_ids(self, cluster: Cluster) -> list[str]:
        return transactional_ids(cluster, self.stage, self.names)


def transactional_ids(cluster: Cluster, stage: Stage, names: Names) -> list[str]:
    """Return the transactional ids of a stage; none if its sink is a table."""
    if names.database is not None:
        return []
    counted = (batches_topic(names.group),) if stage.stateful else names.sources
    return [f"{names.prefix}-{topic}-{p}" for topic in counted for p in cluster.partitions(topic)]


def prepare(
    spark: SparkSession,
    cluster: Cluster,
    plan: RunPlan,
    work: Work,
    stage: Stage,
    names: Names,
) -> PreparedStage:
    """Return the stage's rows, after all checks that must pass before a record is written.

    Raises SinkError for a refusal, SparkError for an unsafe Spark configuration.
    """
    require_no_speculation(spark)
    offsets = require_offsets(cluster, names, plan.offsets_forced)
    spark.dataSource.register(
        InjectingStatefulSink
        if stage.stateful
        else InjectingDatabaseSink
        if stage.table
        else InjectingSink
    )
    rows = transform(read_source(spark, cluster, plan, stage, names, offsets), stage, work)
    if stage.stateful:
        # A checkpoint's own number overrides this one. The sink refuses if they differ.
        spark.conf.set(
            "spark.sql.shuffle.partitions", str(len(cluster.partitions(batches_topic(names.group))))
        )
    else:
        require_no_shuffle(rows)
    return PreparedStage(stage, names, rows)


def process(
    stages: Sequence[PreparedStage],
    cluster: Cluster,
    plan: RunPlan,
    checkpoints: str,
    stopped: Callable[[], bool],
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Run the queries one after the other until their sources are exhausted. With `until_stopped`,
    run all concurrently until `stopped`. Each has its checkpoint below the URL `checkpoints`.

    However they end, no transaction of this run is left open. Raises SinkError for a refusal of the
    sink, SparkError for a failure of Spark itself.
    """
    for together in [stages] if plan.until_stopped else [[prepared] for prepared in stages]:
        if not stopped():
            _process(together, cluster, plan, checkpoints, stopped, tick)


def progress(stages: Sequence[tuple[Stage, Names]], cluster: Cluster) -> list[dict[int, int]]:
    """Return the committed offsets of all stages."""
    return [committed_of(cluster, names, source) for _, names in stages for source in names.sources]


def _process(
    stages: Sequence[PreparedStage],
    cluster: Cluster,
    plan: RunPlan,
    checkpoints: str,
    stopped: Callable[[], bool],
    tick: Callable[[], None],
) -> None:
    settled = False
    failure: TopicproofError | None = None
    going: list[Query] = []
    ends: list[SourceEnds] = []
    try:
        if plan.trigger == "real_time" and not plan.until_stopped:
            ends += [
                SourceEnds(cluster, prepared.names, plan.source.isolation) for prepared in stages
            ]
        for prepared in stages:
            going.append(
                start_query(prepared, cluster, plan, f"{checkpoints}/{prepared.stage.name}")
            )
        _await(going, lambda: stopped() or _all_reached(ends), tick)
        settled = not stopped()
    except TopicproofError as error:
        failure = error
        raise
    except PySparkException as error:
        failure = _too_large(stages, cluster) if OUT_OF_MEMORY in str(error) else None
        failure = failure or explained(error)
        raise failure from error
    finally:
        for end in ends:
            end.close()
        for query in going if len(stages) > 1 else []:
            # If one of several fails, the others would continue without it.
            query.stop()
        # The producer that fenced us is active: resolving its transaction would fence it in turn.
        settled = settled or isinstance(failure, Fenced)
        exactly_once = Guarantee(plan.guarantee) is Guarantee.EXACTLY_ONCE
        fenced = [prepared for prepared in stages if exactly_once or prepared.stage.table]
        if fenced and not settled:
            _settle(fenced, cluster, failure)


def _too_large(stages: Sequence[PreparedStage], cluster: Cluster) -> TopicproofError | None:
    """Return the sentence that names a record which no stage can read; None without such a
    record."""
    try:
        for stage in stages:
            for source in stage.names.sources:
                committed = committed_of(cluster, stage.names, source)
                _require_readable(cluster, cluster.bounds(source), committed)
    except RecordTooLarge as error:
        return error
    return None


def _settle(
    stages: Sequence[PreparedStage], cluster: Cluster, failure: TopicproofError | None
) -> None:
    """Abort what the stages left open. If that fails too, the error names `failure` first."""
    try:
        # First the generation: Spark does not wait for the workers of a query that it stops. A
        # late worker that acquires its transactional id must find its generation outdated.
        for prepared in stages:
            begin_generation(cluster, prepared.names)
        cluster.fence_and_abort(
            [name for prepared in stages for name in prepared.transactional_ids(cluster)]
        )
    except TopicproofError as error:
        if failure is None or str(error) == str(failure):
            raise
        raise type(failure)(
            f"{failure} Its open transaction could not be aborted either: {error}"
        ) from error


def begin_generation(cluster: Cluster, names: Names) -> int:
    """End the workers of earlier starts of the stage. Returns the generation of the next start."""
    generation = next_generation(cluster, names.group, names.journal)
    if generation > 1:
        # Before any lock is taken: a worker that a fault holds up may own it, and continues when it
        # reads this entry.
        append_to_journal(cluster.address, names.journal, GenerationBegun(generation))
    if names.database is not None:
        set_generation(names.database, names.group, generation)
    return generation


def committed_of(cluster: Cluster, names: Names, source: str) -> dict[int, int]:
    """Return the offset of a stage's next input by source partition, from where its sink commits
    it.

    Raises ClusterError, SinkError.
    """
    if names.database is not None:
        return committed_offsets(names.database, names.group, source)
    return cluster.committed(names.group, source)


def read_source(
    spark: SparkSession,
    cluster: Cluster,
    plan: RunPlan,
    stage: Stage,
    names: Names,
    offsets: Mapping[str, Mapping[int, int]],
) -> DataFrame:
    options = {
        **spark_source_options(cluster.address, plan.source.isolation),
        "includeHeaders": str(stage.headers).lower(),
        # In a stateful stage each shuffle partition writes one transaction per batch, and there are
        # as many shuffle partitions as source partitions.
        **(
            {
                "maxOffsetsPerTrigger": str(
                    plan.records_per_transaction * sum(map(len, offsets.values()))
                )
            }
            if stage.stateful
            else {}
        ),
        **plan.source.options,
        "subscribe": ",".join(names.sources),
        # Only used without a checkpoint: after its loss, the run starts from the sink's position.
        "startingOffsets": json.dumps(
            {
                topic: {str(p): offset for p, offset in of_topic.items()}
                for topic, of_topic in offsets.items()
            }
        ),
    }
    return spark.readStream.format("kafka").options(**options).load()


def transform(source: DataFrame, stage: Stage, work: Work) -> DataFrame:
    """Transform the input into one row per record, with its outputs."""
    return stage.transform(source, work)


def start_query(prepared: PreparedStage, cluster: Cluster, plan: RunPlan, checkpoint: str) -> Query:
    names = prepared.names
    checkpoint = usable_checkpoint(prepared.rows.sparkSession, checkpoint)
    options = {
        **{f"kafka.{name}": value for name, value in cluster.address.client.items()},
        "kafka.bootstrap.servers": prepared.bootstrap or cluster.address.bootstrap,
        "topic": names.sink,
        "group": names.group,
        "transactionalIdPrefix": names.prefix,
        "journal": names.journal,
        "generation": str(begin_generation(cluster, names)),
        "sourceIsolation": plan.source.isolation,
        **plan.sink_options,
        "checkpointLocation": checkpoint,
    }
    if names.dead_letters is not None:
        options["deadLetters"] = names.dead_letters
    if names.database is not None:
        options["url"] = names.database
    if plan.trigger == "real_time":
        return start_injecting_real_time(prepared.rows, options, plan.batch_s, prepared.pace)
    writer = prepared.rows.writeStream.format(prepared.stage.format).options(**options)
    if plan.until_stopped:
        return writer.trigger(processingTime=TRIGGER).start()
    return writer.trigger(availableNow=True).start()


def require_offsets(
    cluster: Cluster, names: Names, forced: bool = False
) -> dict[str, dict[int, int]]:
    """Return the committed offset of every source partition, by topic. Each must still be in the
    log.

    Raises OffsetMissing if an offset is absent, OffsetsMoved if it is below the journal's last
    transaction, SourceGap if the source was trimmed beyond it, and RecordTooLarge for a record that
    would exhaust Spark's memory. All this happens before anything is written. `forced`: an absent
    offset comes from the journal, and a moved one is accepted.
    """
    entries = read_journal(cluster.address, names.journal)
    offsets = {}
    for source in names.sources:
        bounds = cluster.bounds(source)
        committed = committed_of(cluster, names, source)
        for partition in bounds.partitions:
            where = f"{source}-{partition.partition}"
            recorded = journalled(entries, f"{names.prefix}-{where}")
            if forced and recorded is not None:
                committed.setdefault(partition.partition, recorded.offset)
            offset = committed.get(partition.partition)
            _require_offset(names.group, where, offset, partition.start)
            if (
                offset is not None
                and recorded is not None
                and offset < recorded.offset
                and not forced
            ):
                raise moved(names.group, where, offset, recorded)
        _require_readable(cluster, bounds, committed)
        offsets[source] = committed
    return offsets


def _require_readable(cluster: Cluster, bounds: Bounds, committed: Mapping[int, int]) -> None:
    """Raises RecordTooLarge for a record beyond the committed offsets that a task cannot hold."""
    partitions = [
        replace(p, start=max(p.start, committed.get(p.partition, p.start)))
        for p in bounds.partitions
    ]
    waiting = tuple(p for p in partitions if p.start < p.hw)
    if not waiting:
        return
    try:
        rawlog.scan(cluster.address, bounds.topic, Bounds(bounds.topic, waiting), readable=True)
    except RecordTooLarge as error:
        raise RecordTooLarge(
            f"{error} The run cannot pass it: start a new one with what is left after that."
        ) from error


def _require_offset(group: str, where: str, offset: int | None, start: int) -> None:
    if offset is None:
        raise OffsetMissing(
            f"Group {group} has no committed offset for {where}: it was deleted or has expired, so"
            " it is unknown what was processed. Start a new run into an empty sink topic."
        )
    if offset < start:
        raise SourceGap(
            f"{where}: offset {offset} is next, but the source was trimmed up to {start}; "
            f"{start - offset} offsets are lost. Start a new run from what is left."
        )


SOURCE_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)


def require_expressions(spark: SparkSession, plan: RunPlan) -> None:
    """Check the plan's expressions. Raises UsageError if Spark refuses one, or its result cannot
    become text."""
    rows = as_text(spark.createDataFrame([], SOURCE_COLUMNS))
    for field, text in (("key", plan.key), ("value", plan.value)):
        if text is None:
            continue
        try:
            kind = (
                rows.select("offset", F.expr(spark_sql(text)).alias(field)).schema[field].dataType
            )
        except PySparkException as error:
            reason = re.sub(r"^\w+: |\[[\w.]+\] | ?SQLSTATE: \w+.*", "", first_line(error)).rstrip(
                "."
            )
            raise refused(
                plan,
                field,
                f"Spark rejects the expression {text!r}: {reason}. It may use key, value, topic,"
                " partition, offset, timestamp and headers.",
            ) from error
        if isinstance(kind, ArrayType | MapType | StructType):
            raise refused(
                plan,
                field,
                f"the expression {text!r} gives {kind.simpleString()}, not a string. Use"
                " to_json(...).",
            )


def require_no_speculation(spark: SparkSession) -> None:
    if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
        raise SparkError(
            "Spark runs with spark.speculation=true: two copies of a task would fence each other"
            " endlessly. Turn it off."
        )


def require_no_shuffle(rows: DataFrame) -> None:
    """Raises ShuffledInput if rows of one source partition would be spread over several tasks,
    which loses records."""
    if re.search(r"\bExchange\b", explained_plan(rows)):
        raise ShuffledInput(f"The stream is shuffled before the sink. {REMEDY_SHUFFLED}")


def explained(error: PySparkException) -> TopicproofError:
    """Return the sink's own error if Spark's text carries one, else SparkError. A worker's
    exception reaches us only as text."""
    text = str(error)
    raised = raised_by_workers(text)
    for name, reason in raised:
        module, _, kind = name.rpartition(".")
        sink_error = (
            error_named(kind, reason.strip()) if module == TopicproofError.__module__ else None
        )
        if sink_error is not None:
            return sink_error
    if (gone := server_gone(error)) is not None:
        return gone
    if OVERFLOW in text:
        return SparkError(
            "Spark cannot represent a number that it read from the source: most likely a record's"
            " timestamp beyond the year 294,246. `topicproof check` can judge such a topic, but"
            " Spark cannot process it: remove the record."
        )
    if raised:
        # The text of an unknown error could hold a part of a record.
        return SparkError(
            f"The Spark query failed in a Python worker: {raised[0][0]}. Its text is in the log of"
            " Spark's worker."
        )
    if (clause := exhausted(text)) is not None:
        return SparkError(f"The Spark query failed: {clause}.")
    return SparkError(f"The Spark query failed: {spark_clause(error)}")


def _all_reached(ends: Sequence[SourceEnds]) -> bool:
    """Return whether real-time stages have processed their sources, of which each has an end."""
    return bool(ends) and all(look_at_brokers(end.reached) for end in ends)


def _await(going: list[Query], stopped: Callable[[], bool], tick: Callable[[], None]) -> None:
    """Wait until all queries end, or `stopped`. Ended queries are removed from the list."""
    while True:
        # awaitTermination also keeps the Connect session alive.
        wait_s = POLL_S / len(going)
        going[:] = [query for query in going if not query.awaitTermination(wait_s)]  # type: ignore[arg-type]
        if not going:
            return
        tick()
        if stopped():
            while going:
                going.pop().stop()
            return
