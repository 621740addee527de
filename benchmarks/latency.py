"""How long a record takes from its produce until a read_committed consumer has what became of it,
and how long before that a read_uncommitted one has it."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer, TopicPartition

from benchmarks.sides import PARTITIONS, Bench, streaming
from topicproof.backend.errors import SetupError
from topicproof.backend.kafka.client_configs import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchLimits,
    idempotent_producer_config,
    spark_source_options,
)
from topicproof.backend.kafka.consumers import record_consumer
from topicproof.backend.runs.clean import clean
from topicproof.backend.runs.context import make_context
from topicproof.backend.runs.create import create
from topicproof.backend.runs.execute import execute
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.services.spark_session import spark_session
from topicproof.backend.sink.options import BATCH_S

LATENCY_RATE, LATENCY_S = 1_000, 20
WARMING_S = 8
"""Not counted: the pipeline starts meanwhile."""
PATIENCE_S, START_WITHIN_S = 30, 120
KAFKA_SERVERS = "kafka.bootstrap.servers"


def latencies(
    bench: Bench, rate: int, seconds: int, streams_ms: int | None = None, **plan: Any
) -> list[float]:
    """Seconds from produce to committed output, of each record after the first `WARMING_S`, that a
    run until stopped takes, or Kafka Streams that commits every `streams_ms`."""
    total = rate * (WARMING_S + seconds)

    def at_work(source: str) -> AbstractContextManager[str]:
        if streams_ms is None:
            return ours(bench, source, plan)
        return _streams(bench, source, total, streams_ms)

    sent, heard = _watch(bench, rate, total, (READ_COMMITTED,), at_work)
    return _between(sent, heard[0], rate)


def latencies_of_spark(bench: Bench, rate: int, seconds: int) -> list[float]:
    """The same of Spark's own sink in Real-Time Mode, which is at-least-once."""
    total = rate * (WARMING_S + seconds)
    sent, heard = _watch(
        bench, rate, total, (READ_COMMITTED,), lambda source: _spark(bench, source)
    )
    return _between(sent, heard[0], rate)


def delays(bench: Bench, rate: int, seconds: int, **plan: Any) -> list[float]:
    """Seconds from when read_uncommitted shows each record's output until read_committed does."""
    _, (uncommitted, committed) = _watch(
        bench,
        rate,
        rate * (WARMING_S + seconds),
        (READ_UNCOMMITTED, READ_COMMITTED),
        lambda source: ours(bench, source, plan),
    )
    return _between(uncommitted, committed, rate)


def _between(earlier: list[float], later: list[float], rate: int) -> list[float]:
    """Raises SetupError when a record was not heard of: the slowest ones would be left out."""
    counted = range(rate * WARMING_S, len(later))
    if unheard := sum(not (earlier[number] and later[number]) for number in counted):
        raise SetupError(
            f"{unheard:,} of {len(counted):,} records did not come within {PATIENCE_S} s: the"
            " machine is too busy for this rate."
        )
    return [later[number] - earlier[number] for number in counted]


def _watch(
    bench: Bench,
    rate: int,
    total: int,
    levels: Sequence[str],
    at_work: Callable[[str], AbstractContextManager[str]],
) -> tuple[list[float], list[list[float]]]:
    """When each record was produced, and when each level showed its output. `at_work` processes a
    source until the end of its block, and gives the sink."""
    source = f"latency-{time.monotonic_ns()}"
    bench.cluster.create_topic(source, PARTITIONS)
    try:
        with at_work(source) as sink:
            sent = [0.0] * total
            listeners = [_Heard(bench, sink, total, level) for level in levels]
            for heard in listeners:
                heard.start()
            # The pipeline works when its first output has come. A busy machine starts it slowly.
            feed(bench, source, sent, rate, range(1))
            for heard in listeners:
                heard.first.wait(START_WITHIN_S)
            feed(bench, source, sent, rate, range(1, total))
            for heard in listeners:
                heard.join(PATIENCE_S)
                heard.ended.set()
                heard.join()
        return sent, [heard.at for heard in listeners]
    finally:
        bench.cluster.delete_topics([source])


class _Heard(threading.Thread):
    """When each record's output came."""

    def __init__(self, bench: Bench, sink: str, total: int, level: str) -> None:
        super().__init__(daemon=True)
        self.consumer = record_consumer(
            bench.services.address,
            level,
            limits=FetchLimits({"fetch.wait.max.ms": 10}),
            group="latency",
        )
        self.consumer.assign(
            [TopicPartition(sink, partition, 0) for partition in range(PARTITIONS)]
        )
        self.at = [0.0] * total
        self.first, self.ended = threading.Event(), threading.Event()

    def run(self) -> None:
        left = len(self.at)
        while left and not self.ended.is_set():
            for message in self.consumer.consume(1_000, 0.01):
                key = message.key()
                if message.error() is None and key is not None:
                    self.at[int(key)] = time.monotonic()
                    self.first.set()
                    left -= 1
        self.consumer.close()


def feed(bench: Bench, source: str, sent: list[float], rate: int, numbers: range) -> None:
    """One record after the other, each at its time, which goes into `sent`."""
    producer = Producer(
        {
            **idempotent_producer_config(bench.services.address),
            "linger.ms": 0,
        }
    )
    began = time.monotonic()
    for count, number in enumerate(numbers):
        wait = began + count / rate - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        sent[number] = time.monotonic()
        producer.produce(source, b"%d" % number, b"%d" % number, partition=number % PARTITIONS)
        producer.poll(0)
    producer.flush(PATIENCE_S)


@contextmanager
def ours(bench: Bench, source: str, plan: Mapping[str, Any]) -> Iterator[str]:
    """A run until stopped; gives its sink."""
    settings, services, history = bench.settings, bench.services, bench.history
    fields = {
        "scenario": "squares",
        "source": {"topic": source},
        "judged": False,
        "until_stopped": True,
    }
    run = create(
        settings, services, history, make_plan({**fields, "per_transaction": 10_000, **plan})
    )
    stop = threading.Event()
    context = make_context(settings, services, history, run, stop)
    working = threading.Thread(target=execute, args=(context,), daemon=True)
    working.start()
    try:
        yield str(run.facts.sink)
    finally:
        stop.set()
        working.join()
        clean(settings, services, history, run.id)


@contextmanager
def _streams(bench: Bench, source: str, total: int, commit_ms: int) -> Iterator[str]:
    with streaming(bench, source, total, "exactly_once_v2", commit_ms):
        yield f"{source}-streams"


@contextmanager
def _spark(bench: Bench, source: str) -> Iterator[str]:
    """Spark's own sink in Real-Time Mode; gives its topic."""
    sink = f"{source}-spark"
    bench.cluster.create_topic(sink, PARTITIONS)
    options = spark_source_options(bench.services.address, READ_COMMITTED)
    with (
        tempfile.TemporaryDirectory(prefix="topicproof-bench-") as checkpoint,
        spark_session(bench.services.spark_remote) as spark,
    ):
        rows = (
            spark.readStream.format("kafka")
            .options(**options, subscribe=source, startingOffsets="earliest")
            .load()
        )
        number = "cast(cast(value as string) as bigint)"
        writer: Any = (
            rows.selectExpr("key", f"cast({number} * {number} as string) as value")
            .writeStream.format("kafka")
            .options(**{KAFKA_SERVERS: options[KAFKA_SERVERS]}, topic=sink)
            .option("checkpointLocation", Path(checkpoint).as_uri())
            .outputMode("update")
        )
        # Any: PySpark's stubs lack this trigger.
        query = writer.trigger(realTime=f"{BATCH_S} seconds").start()
        try:
            yield sink
        finally:
            query.stop()
            bench.cluster.delete_topics([sink])
