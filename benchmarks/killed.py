"""A killed worker in Spark's Real-Time Mode: what a read_committed consumer gets twice or never, of
Spark's own Kafka sink and of this one.

`python -m benchmarks.killed` prints both counts.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from benchmarks.latency import KAFKA_SERVERS, feed, ours
from benchmarks.sides import PARTITIONS, Bench
from topicproof.backend.errors import SetupError
from topicproof.backend.kafka.client_configs import READ_COMMITTED, spark_source_options
from topicproof.backend.matrix.recount import recount
from topicproof.backend.matrix.table import Damage
from topicproof.backend.services.keeper import services
from topicproof.backend.services.spark import spark_session
from topicproof.backend.settings import read_settings

RATE, SECONDS = 200, 20
DEADLY = b"2000"
"""The key at which a worker is killed."""
BATCH_S = 20
WITHIN_S = 120


def spark_counts(bench: Bench) -> dict[Damage, int]:
    """Spark's own sink behind an operator in Python whose worker is killed once."""
    source, sink = f"killed-{time.monotonic_ns()}", f"killed-{time.monotonic_ns()}-spark"
    for topic in (source, sink):
        bench.cluster.create_topic(topic, PARTITIONS)
    options = spark_source_options(bench.services.address, READ_COMMITTED)
    with (
        tempfile.TemporaryDirectory(prefix="topicproof-bench-") as folder,
        spark_session(bench.services.spark_remote) as spark,
    ):
        spark.conf.set("spark.sql.streaming.realTimeMode.allowlistCheck", "false")
        rows = (
            spark.readStream.format("kafka")
            .options(**options, subscribe=source, startingOffsets="earliest")
            .load()
            .select("key", "value")
        )
        writer: Any = (
            rows.mapInArrow(partial(_die_once, Path(folder) / "died"), rows.schema)
            .writeStream.format("kafka")
            .options(**{KAFKA_SERVERS: options[KAFKA_SERVERS]}, topic=sink)
            .option("checkpointLocation", (Path(folder) / "checkpoint").as_uri())
            .outputMode("update")
        )
        query = writer.trigger(realTime=f"{BATCH_S} seconds").start()
        try:
            # Waiting for the query also keeps the session alive.
            return _counted(bench, source, sink, lambda: query.awaitTermination(1))
        finally:
            query.stop()
            if not (Path(folder) / "died").exists():
                raise SetupError("No worker was killed.")


def our_counts(bench: Bench) -> dict[Damage, int]:
    """This sink, whose workers are all killed once."""
    source = f"killed-{time.monotonic_ns()}"
    bench.cluster.create_topic(source, PARTITIONS)
    plan = {"trigger": "real_time", "faults": ["crash@transaction=100"]}
    with ours(bench, source, plan) as sink:
        return _counted(bench, source, sink)


def _die_once(marker: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if DEADLY in batch.column("key").to_pylist() and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch


def _counted(
    bench: Bench, source: str, sink: str, wait: Callable[[], object] = lambda: None
) -> dict[Damage, int]:
    """Feed the source, and count when every input has arrived, or after a while."""
    count = RATE * SECONDS
    feeding = threading.Thread(
        target=feed, args=(bench, source, [0.0] * count, RATE, range(count)), daemon=True
    )
    feeding.start()
    while feeding.is_alive():
        wait()
        feeding.join(1)
    ends_at = time.monotonic() + WITHIN_S
    while True:
        found = recount(bench.cluster, bench.cluster.bounds(source), sink)
        if found[Damage.GAPS] == 0 or time.monotonic() > ends_at:
            return found
        wait()


def main() -> None:
    out, errors = Console(), Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="topicproof-bench-") as home:
        settings = read_settings(home=Path(home))
        with services(settings, say=errors.print) as up:
            bench = Bench(settings, up)
            for name, counts in (("Spark's own sink", spark_counts), ("this sink", our_counts)):
                found = ", ".join(f"{count:,} {what}" for what, count in counts(bench).items())
                out.print(f"{name}, {RATE * SECONDS:,} records: {found}")


if __name__ == "__main__":
    main()
