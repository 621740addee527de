"""What a watch of contracts costs: delay behind the head, share of a core, memory. Run as `make
bench-watch`.

Two parts, on a Kafka that is thrown away afterwards. In the first, one pipeline writes `--rate`
records a second for `--seconds`, half of them inputs and half of them outputs in transactions of a
second, over 8 partitions each. In the second, `--contracts` contracts are watched whose topics are
quiet. The watch is the command in a process of its own. Its delay is read from its own metrics, and
its processor time and memory from the kernel.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.synchronize
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import psutil
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from topicproof.backend.address import Address
from topicproof.backend.interpreter import python_environment
from topicproof.backend.kafka.client_configs import (
    idempotent_producer_config,
    transactional_producer_config,
)
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.services.jars import BROKER, jar_files
from topicproof.backend.services.kafka import EmbeddedKafka
from topicproof.backend.services.processes import free_ports
from topicproof.backend.settings import read_settings
from topicproof.validators.lineage.compact import COMPACT_HEADER, OFFSET_AT, format_compact
from topicproof.validators.lineage.headers import Lineage

PARTITIONS = 8
VALUE = bytes(100)
TICK_S = 0.1
SAMPLE_S = 0.5
EVERY_S = 2.0
QUIET_EVERY_S = 10.0
QUIET_RECORDS = 10
FIRST_SHARE = 0.25
"""Of the time, in which memory may still grow."""
CAUGHT_UP_S = 300.0


@dataclass(frozen=True)
class Figures:
    """One part of the measurement."""

    contracts: int
    records_per_second: int
    """Of both topics, as the watch judged them."""
    seconds: float
    delay_p50_s: float
    delay_p99_s: float
    delay_max_s: float
    cores: float
    """Processor time of the watch, for each second."""
    memory_mib: float
    """The most of the last quarter of the time."""
    memory_growth: float
    """From the end of the first quarter to the last one, as a share."""
    is_caught_up: bool
    verdict: float | None
    """At the end: 1 holds."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-watch ARGS=…", description=__doc__)
    parser.add_argument("--rate", type=int, default=20_000, help="records a second, both topics")
    parser.add_argument("--seconds", type=int, default=1_200)
    parser.add_argument("--every", type=float, default=EVERY_S)
    parser.add_argument("--contracts", type=int, default=200, help="on quiet topics; 0: none")
    parser.add_argument("--quiet-seconds", type=int, default=300)
    parser.add_argument("--profile", help="a file for cProfile's figures of the busy watch")
    options = parser.parse_args()
    console, errors = Console(), Console(stderr=True)
    figures = []
    with tempfile.TemporaryDirectory(prefix="topicproof-bench-") as folder:
        (home := Path(folder) / "kafka").mkdir()
        kafka = EmbeddedKafka(home, jar_files(read_settings(), BROKER))
        errors.print("starting Apache Kafka")
        kafka.start()
        try:
            if options.seconds:
                figures.append(busy(kafka.bootstrap, Path(folder), options))
                errors.print(figures[-1])
            if options.contracts:
                figures.append(quiet(kafka.bootstrap, Path(folder), options))
        finally:
            kafka.stop()
    console.print(as_table(figures))
    console.print_json(json.dumps([asdict(each) for each in figures]))


def busy(bootstrap: str, folder: Path, options: argparse.Namespace) -> Figures:
    """Measure a watch of one pipeline at a rate."""
    cluster = Cluster(Address(bootstrap))
    for topic in ("numbers", "squares"):
        cluster.create_topic(topic, PARTITIONS, exists_ok=False)
    stop = multiprocessing.Event()
    feeder = multiprocessing.Process(target=feed, args=(bootstrap, options.rate, stop))
    feeder.start()
    try:
        contract = _contract(folder, "numbers", "squares")
        with _watch(bootstrap, folder, [contract], options.every, options.profile) as watch:
            figures = _measured(watch, options.seconds)
            if options.profile:
                watch.process.terminate()
                watch.process.wait(60)
    finally:
        stop.set()
        feeder.join(60)
    return figures


def quiet(bootstrap: str, folder: Path, options: argparse.Namespace) -> Figures:
    """Measure a watch of many contracts on topics to which nobody writes."""
    cluster = Cluster(Address(bootstrap))
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    contracts = []
    for number in range(options.contracts):
        source, sink = f"quiet-{number}", f"silent-{number}"
        for topic in (source, sink):
            cluster.create_topic(topic, 1, exists_ok=False)
        for offset in range(QUIET_RECORDS):
            place = format_compact(Lineage(source, 0, offset, 0))
            producer.produce(source, VALUE, partition=0)
            producer.produce(sink, VALUE, partition=0, headers=[(COMPACT_HEADER, place)])
        contracts.append(_contract(folder, source, sink))
    producer.flush()
    with _watch(bootstrap, folder, contracts, QUIET_EVERY_S) as watch:
        return _measured(watch, options.quiet_seconds)


def feed(bootstrap: str, rate: int, stop: multiprocessing.synchronize.Event) -> None:
    """Write inputs and their outputs at a rate until the event is set."""
    address = Address(bootstrap)
    inputs = Producer({**idempotent_producer_config(address), "linger.ms": 20})
    outputs = Producer({**transactional_producer_config(address, "bench-watch"), "linger.ms": 20})
    outputs.init_transactions()
    headers = [format_compact(Lineage("numbers", p, 0, 0)) for p in range(PARTITIONS)]
    sent = [0] * PARTITIONS
    began, total, ticks = time.monotonic(), 0, 0
    outputs.begin_transaction()
    while not stop.is_set():
        due = int((time.monotonic() - began) * rate / 2) - total
        for _ in range(max(0, due)):
            partition = total % PARTITIONS
            offset = sent[partition]
            header = headers[partition]
            place = header[:OFFSET_AT] + struct.pack(">q", offset) + header[OFFSET_AT + 8 :]
            inputs.produce("numbers", VALUE, partition=partition)
            outputs.produce(
                "squares", VALUE, partition=partition, headers=[(COMPACT_HEADER, place)]
            )
            sent[partition] += 1
            total += 1
            if total % 1_000 == 0:
                inputs.poll(0)
                outputs.poll(0)
        ticks += 1
        if ticks % int(1 / TICK_S) == 0:
            inputs.flush()
            outputs.commit_transaction()
            outputs.begin_transaction()
        time.sleep(TICK_S)
    inputs.flush()
    outputs.commit_transaction()


class Watch:
    """A watch in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process, self.port = process, port
        self.kernel = psutil.Process(process.pid)

    def metrics(self, name: str) -> list[float]:
        """Return a figure of all contracts; none while it does not answer."""
        try:
            text = httpx.get(f"http://127.0.0.1:{self.port}/metrics", timeout=30).text
        except httpx.TransportError:
            return []
        return [
            float(value)
            for value in re.findall(rf"^topicproof_watch_{name}{{.*}} (\S+)$", text, re.M)
        ]

    @property
    def is_caught_up(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/readyz", timeout=30).is_success
        except httpx.TransportError:
            return False

    @property
    def cpu_s(self) -> float:
        times = self.kernel.cpu_times()
        return times.user + times.system

    @property
    def memory_mib(self) -> float:
        return self.kernel.memory_info().rss / 2**20


@contextmanager
def _watch(
    bootstrap: str,
    folder: Path,
    contracts: Sequence[Path],
    every_s: float,
    profile: str | None = None,
) -> Iterator[Watch]:
    (port,) = free_ports(1)
    command = [sys.executable, "-P", "-m", *(["cProfile", "-o", profile, "-m"] if profile else ())]
    command += ["topicproof", "watch", *map(str, contracts), "--bootstrap", bootstrap]
    command += ["--every", str(every_s), "--metrics", str(port), "--json", str(folder / "notices")]
    environment = {**python_environment(), "TOPICPROOF_HOME": str(folder / "home")}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL
    ) as process:
        try:
            yield Watch(process, port)
        finally:
            process.kill()


def _measured(watch: Watch, seconds: int) -> Figures:
    """Wait until the watch is caught up, then measure for so long."""
    until = time.monotonic() + CAUGHT_UP_S
    while not watch.is_caught_up and time.monotonic() < until:
        time.sleep(SAMPLE_S)
    began, cpu_s = time.monotonic(), watch.cpu_s
    judged = sum(watch.metrics("records_judged_total"))
    delays: list[float] = []
    memory: list[float] = []
    while time.monotonic() - began < seconds:
        delays += watch.metrics("contract_delay_seconds")
        memory.append(watch.memory_mib)
        time.sleep(SAMPLE_S)
    took = time.monotonic() - began
    quarter = max(1, int(len(memory) * FIRST_SHARE))
    before, after = max(memory[:quarter]), max(memory[-quarter:])
    cuts = statistics.quantiles(delays, n=100, method="inclusive")
    # Each output has an input.
    records = 2 * (sum(watch.metrics("records_judged_total")) - judged)
    verdicts = watch.metrics("contract_verdict")
    return Figures(
        contracts=len(verdicts),
        records_per_second=round(records / took),
        seconds=round(took, 1),
        delay_p50_s=round(cuts[49], 2),
        delay_p99_s=round(cuts[98], 2),
        delay_max_s=round(max(delays), 2),
        cores=round((watch.cpu_s - cpu_s) / took, 3),
        memory_mib=round(after, 1),
        memory_growth=round(after / before - 1, 3),
        is_caught_up=watch.is_caught_up,
        verdict=min(verdicts, default=None),
    )


def _contract(folder: Path, source: str, sink: str) -> Path:
    path = folder / f"{sink}.yaml"
    path.write_text(f"source: {{topic: {source}}}\nsink: {{topic: {sink}}}\nwithin: 30s\n")
    return path


def as_table(figures: Sequence[Figures]) -> Table:
    table = Table("contracts", "records/s", "seconds", "delay p50, s", "p99, s", "max, s", "cores")
    for title in ("memory, MiB", "growth", "caught up", "verdict"):
        table.add_column(title)
    for each in figures:
        table.add_row(*(str(value) for value in asdict(each).values()))
    return table


if __name__ == "__main__":
    main()
