"""How fast the raw log's batch headers are scanned, and in how much memory. Run as `make
bench-scan`.

Two topics of 20 million records, one in batches of 500 and one of 1,250, are written to a Kafka
that is thrown away afterwards. Each scan runs in a process of its own, so that its peak of memory
is its own. Processor time is shown beside the time on the clock: on a machine with few cores the
broker, and whatever else runs there, takes its share of the latter.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import pyarrow.compute as pc
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from topicproof.backend.address import Address
from topicproof.backend.kafka.client_configs import idempotent_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.log.rawlog import fetch_bounds, scan
from topicproof.backend.services.jars import BROKER, jar_files
from topicproof.backend.services.kafka import EmbeddedKafka
from topicproof.backend.settings import read_settings
from topicproof.validators.finding import Bounds, PartitionBounds

RECORDS = 20_000_000
SCANNED = (1_000_000, 5_000_000, RECORDS)
BATCHES = (500, 1_250)
PARTITIONS = 4
VALUE = b"12345678"
AT_ONCE = 50_000
"""Records handed to the producer in one call."""


@dataclass(frozen=True)
class Figures:
    """One scan of one topic."""

    records: int
    batches: int
    records_per_batch: float
    seconds: float
    cpu_seconds: float
    """Processor time of the scanning process."""
    records_per_second: float
    records_per_cpu_second: float
    table_bytes: int
    growth_bytes: int
    """From the resident memory before the scan to the most that the process ever held: at most what
    the scan took."""


def main() -> None:
    console, errors = Console(), Console(stderr=True)
    found = []
    with tempfile.TemporaryDirectory(prefix="topicproof-bench-") as folder:
        kafka = EmbeddedKafka(Path(folder), jar_files(read_settings(), BROKER))
        errors.print("starting Apache Kafka")
        kafka.start()
        try:
            for size in BATCHES:
                with filled_topic(kafka.bootstrap, size, errors) as topic:
                    found += [scan_alone(kafka.bootstrap, topic, records) for records in SCANNED]
        finally:
            kafka.stop()
    console.print(as_table(found))
    console.print_json(json.dumps([asdict(one) for one in found]))


@contextmanager
def filled_topic(bootstrap: str, batch: int, errors: Console) -> Iterator[str]:
    """A topic of RECORDS records in batches of `batch`, deleted at the end of the block."""
    topic = f"bench-scan-{batch}-{uuid.uuid4().hex[:6]}"
    cluster = Cluster(Address(bootstrap))
    cluster.create_topic(topic, PARTITIONS)
    try:
        began = time.monotonic()
        fill(bootstrap, topic, batch)
        errors.print(f"{topic}: {RECORDS:,} records in {time.monotonic() - began:.0f} s")
        yield topic
    finally:
        cluster.delete_topics([topic])


def fill(bootstrap: str, topic: str, batch: int) -> None:
    producer = Producer(
        # A long linger, so that a batch is sent when it is full and not before.
        {
            **idempotent_producer_config(Address(bootstrap)),
            "batch.num.messages": batch,
            "linger.ms": 1_000,
        }
    )
    messages = [{"value": VALUE}] * AT_ONCE
    for number in range(RECORDS // AT_ONCE):
        while len(producer) > 10 * AT_ONCE:
            producer.poll(0.01)
        producer.produce_batch(topic, messages, partition=number % PARTITIONS)
    if producer.flush(120):
        sys.exit(f"Kafka at {bootstrap} did not take every record of {topic}.")


def scan_alone(bootstrap: str, topic: str, records: int) -> Figures:
    """Scan the first `records` in a process that has done nothing else."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(scan_once, (bootstrap, topic, records))


def scan_once(bootstrap: str, topic: str, records: int) -> Figures:
    whole = fetch_bounds(Address(bootstrap), topic)
    end = records // PARTITIONS
    bounds = Bounds(
        topic, tuple(PartitionBounds(p.partition, 0, end, end) for p in whole.partitions)
    )
    # Imports, connections and Arrow's own pools are there after a first small scan, and no part of
    # the growth.
    scan(
        Address(bootstrap),
        topic,
        Bounds(topic, tuple(PartitionBounds(p.partition, 0, 1, 1) for p in whole.partitions)),
    )
    before = psutil.Process().memory_info().rss
    began, cpu_began = time.perf_counter(), time.process_time()
    table = scan(Address(bootstrap), topic, bounds)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    growth = peak_bytes() - before
    counted = pc.sum(table["count"]).as_py()
    assert counted == records, f"{counted} records for {records}"
    return Figures(
        records,
        table.num_rows,
        records / table.num_rows,
        seconds,
        cpu_seconds,
        records / seconds,
        records / cpu_seconds,
        table.nbytes,
        growth,
    )


def peak_bytes() -> int:
    """The most memory this process ever held. Linux counts in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def as_table(found: list[Figures]) -> Table:
    table = Table(title="Scan of batch headers")
    for name in (
        "records",
        "per batch",
        "seconds",
        "records/s",
        "per CPU s",
        "table MB",
        "growth MB",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for one in found:
        table.add_row(
            f"{one.records / 1e6:.0f} M",
            f"{one.records_per_batch:,.0f}",
            f"{one.seconds:.2f}",
            f"{one.records_per_second / 1e6:.1f} M",
            f"{one.records_per_cpu_second / 1e6:.1f} M",
            f"{one.table_bytes / 1e6:.1f}",
            f"{one.growth_bytes / 1e6:.1f}",
        )
    return table


if __name__ == "__main__":
    main()
