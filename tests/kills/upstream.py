"""Spark's own Kafka sink in Real-Time Mode, with Spark killed: `python -m tests.kills.upstream`.

Its documents promise at-least-once. This shows how many outputs come twice after one kill of the
server. `python -m tests.kills --real-time --victims spark --states processing` does the same to
this project's sink, which must stay exact.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.errors import PySparkException

from tests.conftest import wait_until
from tests.kills.pipeline import START_S
from tests.runs import read_all
from topicproof.backend.address import Address
from topicproof.backend.kafka.client_configs import (
    READ_COMMITTED,
    idempotent_producer_config,
    spark_source_options,
)
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.services.jars import SPARK, jar_files
from topicproof.backend.services.keeper import services
from topicproof.backend.services.spark import EmbeddedSpark
from topicproof.backend.services.spark_session import spark_session
from topicproof.backend.settings import Settings, read_settings

SOURCE, SINK = "numbers", "squares"
RECORDS, RATE, PARTITIONS = 3_000, 300, 2
KILLED_AFTER = 1_000
"""So many outputs are there when Spark is killed."""


@contextmanager
def running(settings: Settings, bootstrap: str, checkpoint: Path) -> Iterator[EmbeddedSpark]:
    """A server of its own, on which the query runs that Spark's documents show."""
    server = EmbeddedSpark(settings.home / "spark", jar_files(settings, SPARK))
    server.start()
    try:
        with spark_session(server.remote) as spark:
            options = spark_source_options(Address(bootstrap), READ_COMMITTED)
            rows = (
                spark.readStream.format("kafka")
                .options(**options, subscribe=SOURCE, startingOffsets="earliest")
                .load()
            )
            writer: Any = (
                rows.select("key", "value", "partition")
                .writeStream.format("kafka")
                .options(**{"kafka.bootstrap.servers": bootstrap}, topic=SINK)
                .option("checkpointLocation", checkpoint.as_uri())
                .outputMode("update")
            )
            # Any: PySpark's stubs lack this trigger.
            writer.trigger(realTime="5 seconds").start()
            yield server
    except PySparkException:
        # The session of a killed server cannot be closed.
        if server.process is None or server.process.poll() is None:
            raise
    finally:
        server.stop()


def feed(bootstrap: str) -> None:
    """Produce the numbers at a steady rate."""
    producer = Producer({**idempotent_producer_config(Address(bootstrap)), "linger.ms": 0})
    began = time.monotonic()
    for number in range(RECORDS):
        time.sleep(max(0.0, began + number / RATE - time.monotonic()))
        producer.produce(SOURCE, b"%d" % number, partition=number % PARTITIONS)
    producer.flush()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="upstream-") as folder:
        settings = read_settings(home=Path(folder) / "home")
        checkpoint = Path(folder) / "checkpoint"
        with services(settings, spark=False) as found:
            cluster = Cluster(found.address)
            for topic in (SOURCE, SINK):
                cluster.create_topic(topic, PARTITIONS)
            feeding = threading.Thread(target=feed, args=(found.bootstrap,))

            def outputs() -> list[bytes]:
                return [message.value or b"" for message in read_all(found.bootstrap, SINK)]

            with running(settings, found.bootstrap, checkpoint) as server:
                feeding.start()
                wait_until(lambda: len(outputs()) >= KILLED_AFTER, START_S, "the first outputs")
                assert server.process is not None
                server.process.kill()
                server.process.wait()
            with running(settings, found.bootstrap, checkpoint):
                wait_until(lambda: len({*outputs()}) == RECORDS, START_S, "all outputs")
            feeding.join()
            written = outputs()
    twice = len(written) - len({*written})
    sys.stdout.write(
        f"{RECORDS:,} inputs, {len(written):,} outputs, {len({*written}):,} different ones:"
        f" {twice:,} duplicates\n"
    )


if __name__ == "__main__":
    main()
