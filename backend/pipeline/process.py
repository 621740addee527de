"""Process: the streaming query from the source topic through the scenario's expressions into the exactly-once sink."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from backend import errors
from backend.errors import Fenced, OffsetMissing, SourceGap, SparkError, TopicproofError
from backend.kafka.cluster import Cluster
from backend.pipeline.plan import RunPlan
from backend.pipeline.scenarios import outputs, scenario
from backend.pipeline.sink import FORMAT, REMEDY_SHUFFLED, KafkaTransactionalSink
from backend.settings import spark_source_options
from validators.finding import Guarantee

POLL_S = 0.2
TRIGGER = "100 milliseconds"


@dataclass(frozen=True)
class Names:
    """The Kafka names of one run."""

    source: str
    sink: str
    journal: str
    group: str
    prefix: str
    """`<prefix>-<source topic>-<partition>` are the transactional ids."""

    def transactional_ids(self, partitions: list[int]) -> list[str]:
        return [f"{self.prefix}-{self.source}-{p}" for p in partitions]


def prepare(spark: SparkSession, cluster: Cluster, plan: RunPlan, names: Names) -> DataFrame:
    """The rows for the sink, after everything that must be refused before a record is written.

    Raises SinkError for a refusal, SparkError for a Spark that is set up unsoundly.
    """
    require_no_speculation(spark)
    offsets = require_offsets(cluster, names)
    spark.dataSource.register(KafkaTransactionalSink)
    rows = transform(read_source(spark, cluster, plan, names, offsets), plan)
    require_no_shuffle(rows)
    return rows


def process(
    rows: DataFrame,
    cluster: Cluster,
    plan: RunPlan,
    names: Names,
    checkpoint: str,
    stopped: Callable[[], bool],
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Run the query until its source is exhausted (or, with `until_stopped`, until `stopped`).

    However it ends, no transaction of this run is left open. Raises SinkError for a refusal of the sink, SparkError
    for a failure of Spark's own.
    """
    settled = False
    try:
        _await(start_query(rows, cluster, plan, names, checkpoint), stopped, tick)
        settled = not stopped()
    except PySparkException as error:
        cause = explained(error)
        # Whoever fenced us is at work; settling would fence them in turn.
        settled = isinstance(cause, Fenced)
        raise cause from error
    finally:
        if not settled and Guarantee(plan.guarantee) is Guarantee.EXACTLY_ONCE:
            cluster.settle(names.transactional_ids(cluster.partitions(names.source)))


def read_source(
    spark: SparkSession, cluster: Cluster, plan: RunPlan, names: Names, offsets: Mapping[int, int]
) -> DataFrame:
    options = {
        **spark_source_options(cluster.bootstrap, cluster.client, plan.source.isolation),
        **plan.source.options,
        "subscribe": names.source,
        # Used only while there is no checkpoint: a lost one starts again where the sink really stands.
        "startingOffsets": json.dumps({names.source: {str(p): offset for p, offset in offsets.items()}}),
    }
    return spark.readStream.format("kafka").options(**options).load()


def transform(source: DataFrame, plan: RunPlan) -> DataFrame:
    """One row per input record, with its outputs."""
    chosen = scenario(plan.scenario)
    key, value = F.col("key"), F.col("value")
    made = outputs(chosen.key(key, value), chosen.value(key, value))
    return source.select("topic", "partition", "offset", made.alias("outputs"))


def start_query(rows: DataFrame, cluster: Cluster, plan: RunPlan, names: Names, checkpoint: str) -> StreamingQuery:
    options = {
        **{f"kafka.{name}": value for name, value in cluster.client.items()},
        "kafka.bootstrap.servers": cluster.bootstrap,
        "topic": names.sink,
        "group": names.group,
        "transactionalIdPrefix": names.prefix,
        "journal": names.journal,
        "guarantee": plan.guarantee,
        "idempotence": str(plan.idempotence).lower(),
        "acks": plan.acks,
        "recordsPerTransaction": str(plan.per_transaction),
        "transactionTimeoutMs": str(plan.transaction_timeout_ms),
        "attemptsMax": str(plan.attempts_max),
        "abortProbability": str(plan.abort_probability),
        "seed": str(plan.seed),
        "faults": " ".join(plan.faults),
        "checkpointLocation": checkpoint,
    }
    writer = rows.writeStream.format(FORMAT).options(**options)
    if plan.until_stopped:
        return writer.trigger(processingTime=TRIGGER).start()
    return writer.trigger(availableNow=True).start()


def require_offsets(cluster: Cluster, names: Names) -> dict[int, int]:
    """The committed offset of every source partition, which must still be in the log.

    Raises OffsetMissing for an absent one, SourceGap where the source was trimmed past it: before anything is written.
    """
    bounds = cluster.bounds(names.source)
    committed = cluster.committed(names.group, names.source)
    for partition in bounds.partitions:
        offset = committed.get(partition.partition)
        where = f"{names.source}-{partition.partition}"
        if offset is None:
            raise OffsetMissing(
                f"Group {names.group} has no committed offset for {where}: it was deleted or has expired, so nobody "
                "knows what was processed. Start a new run into an empty sink topic."
            )
        if offset < partition.start:
            raise SourceGap(
                f"{where}: offset {offset} is next, but the source was trimmed up to {partition.start}; "
                f"{partition.start - offset} offsets are lost. Start a new run from what is left."
            )
    return committed


def require_no_speculation(spark: SparkSession) -> None:
    if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
        raise SparkError(
            "Spark runs with spark.speculation=true: two copies of a task would fence each other for ever. Turn it off."
        )


def require_no_shuffle(rows: DataFrame) -> None:
    """Raises ShuffledInput when rows of one source partition would be spread over tasks: seen to lose records."""
    plan = io.StringIO()
    with contextlib.redirect_stdout(plan):
        rows.explain()
    if re.search(r"\bExchange\b", plan.getvalue()):
        raise errors.ShuffledInput(f"The stream is shuffled before the sink. {REMEDY_SHUFFLED}")


def explained(error: PySparkException) -> TopicproofError:
    """The sink's own error when Spark's text carries one (a worker's exception reaches us as text), else SparkError."""
    text = str(error)
    for match in re.finditer(r"backend\.errors\.(\w+): (.+)", text):
        kind = getattr(errors, match.group(1), None)
        if isinstance(kind, type) and issubclass(kind, TopicproofError):
            return kind(match.group(2).strip())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # The last line of a worker's traceback says what happened; Spark's own first line only that something did.
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    if "PYTHON_EXCEPTION" in text and raised:
        return SparkError(f"The Spark query failed in a Python worker: {raised[0][:500]}")
    return SparkError(f"The Spark query failed: {lines[0][:500] if lines else type(error).__name__}")


def _await(query: StreamingQuery, stopped: Callable[[], bool], tick: Callable[[], None]) -> None:
    # awaitTermination, because it keeps the Connect session alive as well.
    while not query.awaitTermination(POLL_S):  # type: ignore[arg-type]
        tick()
        if stopped():
            query.stop()
            return
