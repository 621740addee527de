"""What benchmarks.speed puts side by side: this project by its own run path, and the programs of a
folder of peers."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer, TopicPartition

from topicproof.backend.address import Address, Sides
from topicproof.backend.errors import SetupError
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.history.store import History, Run
from topicproof.backend.judging.judge import JudgeOptions, judge_topics
from topicproof.backend.kafka.client_configs import (
    READ_COMMITTED,
    UNCOMPRESSED,
    idempotent_producer_config,
    spark_source_options,
)
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.consumers import record_consumer
from topicproof.backend.kafka.log.fates import transactions
from topicproof.backend.kafka.log.over_partitions import over_partitions
from topicproof.backend.kafka.log.rawlog import fetch_bounds, scan
from topicproof.backend.runs.clean import clean
from topicproof.backend.runs.context import make_context
from topicproof.backend.runs.create import create
from topicproof.backend.runs.execute import execute
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.services.jars import BROKER, STREAMS, jar_files
from topicproof.backend.services.keeper import Services, services
from topicproof.backend.services.processes import java
from topicproof.backend.services.spark import without_token
from topicproof.backend.services.spark_session import spark_session
from topicproof.backend.settings import Settings
from topicproof.backend.sink.entries import Declared, TaskStarted, TransactionEnded, decode
from topicproof.validators.finding import Outcome, Witness
from topicproof.validators.question import Question
from topicproof.validators.readings import read

RECORDS = 4_000_000
PARTITIONS = 4
FILL_AT_ONCE = 50_000
PEER_TIMEOUT_S = 600
SAMPLE_S, WEIGHED_EVERY = 0.5, 6
THREADS, COMMIT_MS = 2, 100
"""Of Kafka Streams: as many threads as this machine has cores, and the interval it is usually
told."""


@dataclass(frozen=True)
class Timed:
    """One pipeline run to the end of its source."""

    records: int
    seconds: float
    """From the first transaction that was begun to the last one that was committed."""
    whole_s: float
    """From the call that starts the run until it has returned."""
    first_s: float
    """From that call to the first committed transaction."""
    processor_s: dict[str, float] = field(default_factory=dict)
    """Processor time by process: broker, spark (its JVM), workers, run."""
    peak_bytes: int = 0
    """The most that Spark's server and its workers held together."""

    @property
    def rate(self) -> float:
        return self.records / self.seconds


@dataclass
class Bench:
    """Where everything is, and what was made on the way."""

    settings: Settings
    services: Services
    peers: Path | None = None
    """The folder of the peers; None: only this project is measured."""
    peers_python: str = sys.executable
    """For the peers in Python, which need libraries that this project does not have."""
    filled: dict[tuple[int, int, int], str] = field(default_factory=dict)
    """Topics that were filled, by records, bytes of a value and partitions."""

    @property
    def cluster(self) -> Cluster:
        return Cluster(Address(self.services.bootstrap, self.settings.client))

    @property
    def history(self) -> History:
        return History(self.settings)

    def source(self, records: int, value_bytes: int = 0, partitions: int = PARTITIONS) -> str:
        """A topic of the integers from 0 on, as text; filled once."""
        what = (records, value_bytes, partitions)
        if what not in self.filled:
            topic = f"speed-{records}-{value_bytes}-{uuid.uuid4().hex[:6]}"
            self.cluster.create_topic(topic, partitions)
            fill(self.services.bootstrap, topic, records, value_bytes, partitions)
            self.filled[what] = topic
        return self.filled[what]

    def drop(self, topic: str) -> None:
        """Delete a source that is not needed any more."""
        self.cluster.delete_topics([topic])
        self.filled = {what: one for what, one in self.filled.items() if one != topic}


@contextmanager
def three_brokers(bench: Bench) -> Iterator[Bench]:
    """The same Spark, and a Kafka of three brokers, each of which keeps a replica of every
    partition."""
    with tempfile.TemporaryDirectory(prefix="topicproof-bench-") as home:
        settings = bench.settings.model_copy(update={"home": Path(home), "brokers": 3})
        with services(settings, spark=False) as up:
            yield replace(
                bench, services=replace(bench.services, bootstrap=up.bootstrap), filled={}
            )


def fill(bootstrap: str, topic: str, records: int, value_bytes: int, partitions: int) -> None:
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    for first in range(0, records, FILL_AT_ONCE):
        while len(producer) > 10 * FILL_AT_ONCE:
            producer.poll(0.01)
        for partition in range(partitions):
            keys = [
                b"%d" % n
                for n in range(first + partition, min(first + FILL_AT_ONCE, records), partitions)
            ]
            messages = [{"key": key, "value": key.rjust(value_bytes, b"0")} for key in keys]
            producer.produce_batch(topic, messages, partition=partition)
    if producer.flush(PEER_TIMEOUT_S):
        sys.exit(f"Kafka did not take every record of {topic}.")


def ours(bench: Bench, source: str, records: int, **plan: Any) -> Timed:
    """One run without a verdict, by the way every run goes; cleaned afterwards."""
    with kept(bench, source, records, **plan) as (timed, _run):
        return timed


@contextmanager
def kept(bench: Bench, source: str, records: int, **plan: Any) -> Iterator[tuple[Timed, Run]]:
    """One run without a verdict, whose topics are there until the end of the block."""
    settings, services, history = bench.settings, bench.services, bench.history
    fields = {
        "scenario": "squares",
        "source": {"topic": source},
        "judged": False,
        "per_transaction": 10_000,
        **plan,
    }
    run = create(settings, services, history, make_plan(fields))
    try:
        with watched(services) as seen:
            began, began_at = time.monotonic(), time.time()
            execute(make_context(settings, services, history, run, threading.Event()))
            whole = time.monotonic() - began
        started, committed, inputs = journal_times(bench, run)
        if inputs != records:
            sys.exit(f"{run.id}: {inputs:,} of {records:,} inputs were committed.")
        seconds = max(committed[-1] - started, 1e-3)
        yield (
            Timed(records, seconds, whole, committed[0] - began_at, seen.processor_s, seen.peak),
            run,
        )
    finally:
        clean(settings, services, history, run.id)


def journal_times(bench: Bench, run: Run) -> tuple[float, list[float], int]:
    """By a run's journal: when its first task was about to write, when each transaction was
    committed, and of how many inputs all of these were."""
    consumer = record_consumer(
        bench.services.address, READ_COMMITTED, limits=UNCOMPRESSED, group="speed"
    )
    place = TopicPartition(run.facts.journal, 0)
    start, end = consumer.get_watermark_offsets(place, 10)
    consumer.assign([TopicPartition(place.topic, 0, start)])
    started, committed, inputs, at = math.inf, [], 0, start
    while at < end:
        for message in consumer.consume(10_000, 1):
            if message.error() is not None:
                continue
            at = (message.offset() or 0) + 1
            entry, said_at = decode(message.value() or b""), message.timestamp()[1] / 1000
            if isinstance(entry, TaskStarted):
                started = min(started, said_at)
            elif isinstance(entry, TransactionEnded) and entry.outcome is Declared.COMMITTED:
                committed.append(said_at)
                inputs += entry.inputs
    consumer.close()
    return started, sorted(committed), inputs


@dataclass
class Seen:
    """What the processes of a run took."""

    processor_s: dict[str, float] = field(default_factory=dict)
    memory: list[tuple[float, int, int]] = field(default_factory=list)
    """By second: the bytes of Spark with its workers, and of this process."""

    @property
    def peak(self) -> int:
        """The most that Spark and its workers held together."""
        return max((spark for _, spark, _ in self.memory), default=0)


@contextmanager
def watched(services: Services) -> Iterator[Seen]:
    """Processor time and memory of everybody during the block. A worker's that ended meanwhile is
    that of its last sample."""
    spark = _listening(services.spark_remote)
    broker = _listening(services.bootstrap.split(",")[0])
    seen, ended, began = Seen(), threading.Event(), time.monotonic()
    taken: dict[tuple[str, int], tuple[float, float]] = {}
    """By process: what it had used before, and by now."""

    def sample(first: bool = False, weighed: bool = True) -> None:
        workers = _workers(spark)
        for name, process in (
            ("broker", broker),
            ("spark", spark),
            ("run", psutil.Process()),
            *workers,
        ):
            try:
                times = process.cpu_times()
                used = times.user + times.system
            except psutil.Error:
                continue
            # One that was not there at the beginning has used nothing before.
            before = taken.get((name, process.pid), (used if first else 0.0, used))[0]
            taken[name, process.pid] = (before, used)
        if weighed:
            held = sum(_held(one) for one in (spark, *(process for _, process in workers)))
            seen.memory.append((time.monotonic() - began, held, _held(psutil.Process())))

    def watch() -> None:
        for turn in count(1):
            if ended.wait(SAMPLE_S):
                return
            # Weighing a process reads its whole map, so not every time.
            sample(weighed=turn % WEIGHED_EVERY == 0)

    sample(first=True)
    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield seen
    finally:
        ended.set()
        watching.join()
        sample()
        for (name, _), (before, after) in taken.items():
            seen.processor_s[name] = seen.processor_s.get(name, 0.0) + after - before


def _workers(spark: psutil.Process) -> list[tuple[str, psutil.Process]]:
    """The Python processes of the server: its children, and those that its forks made."""
    keeper = spark.parent()
    try:
        family = (keeper or spark).children(recursive=True)
    except psutil.Error:
        return []
    return [("workers", one) for one in family if one.pid != spark.pid and "python" in _name(one)]


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def _held(process: psutil.Process) -> int:
    """Its memory, of what it shares with the processes forked beside it only its part."""
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def _listening(address: str) -> psutil.Process:
    port = int(without_token(address).rpartition(":")[2])
    return next(
        psutil.Process(one.pid)
        for one in psutil.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN
        and one.laddr
        and one.laddr.port == port
        and one.pid is not None
    )


def streams(
    bench: Bench, source: str, records: int, guarantee: str, commit_ms: int = COMMIT_MS
) -> float:
    """Records per second of Kafka Streams on the same source, as it prints them. Raises
    SetupError."""
    return streams_sized(bench, source, records, guarantee, commit_ms)[0]


def streams_sized(
    bench: Bench, source: str, records: int, guarantee: str, commit_ms: int
) -> tuple[float, float]:
    """As `streams`, and beside it how many records its transactions had, by the raw log."""
    address, sink = bench.services.address, f"{source}-streams"
    with streaming(bench, source, records, guarantee, commit_ms) as process:
        said, _ = process.communicate(timeout=PEER_TIMEOUT_S)
        bounds = fetch_bounds(address, sink)
        sizes = over_partitions(transactions(scan(address, sink, bounds), bounds))["records"]
    found = re.search(r"(\d+) records/s", said)
    if process.returncode or found is None:
        raise SetupError("Kafka Streams did not end well.")
    return float(found[1]), float(sizes.mean()) if len(sizes) else 0.0


@contextmanager
def streaming(
    bench: Bench, source: str, records: int, guarantee: str, commit_ms: int = COMMIT_MS
) -> Iterator[subprocess.Popen[str]]:
    """Kafka Streams at work, into `<source>-streams`, which is there until the end of the block."""
    assert bench.peers is not None
    jars = [*jar_files(bench.settings, BROKER), *jar_files(bench.settings, STREAMS)]
    program = next((bench.peers.absolute() / "kafka-streams").rglob("Square.java"))
    sink = f"{source}-streams"
    bench.cluster.create_topic(sink, PARTITIONS)
    command = [
        java(),
        "-cp",
        os.pathsep.join(map(str, jars)),
        str(program),
        bench.services.bootstrap,
        source,
    ]
    command += [str(records), guarantee, str(THREADS), str(commit_ms)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=program.parent
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        bench.cluster.delete_topics([sink])


def python_loop(bench: Bench, source: str, per_transaction: int) -> float:
    """Records per second of the hand-written loop, as it prints them."""
    bounds = fetch_bounds(bench.services.address, source)
    records = sum(p.lso - p.start for p in bounds.partitions)
    found = re.search(
        r"(\d+) records/s",
        _peer(bench, "python_loop.py", source, str(records), str(per_transaction)),
    )
    return float(found[1]) if found else 0.0


def duckdb_check(bench: Bench, topic: str) -> float:
    """Seconds of the hand-written check, as it prints them."""
    found = re.search(r"([\d.]+) s in all", _peer(bench, "duckdb_check.py", topic))
    return float(found[1]) if found else 0.0


def _peer(bench: Bench, script: str, *arguments: str) -> str:
    """What a peer in Python prints. Raises SetupError."""
    assert bench.peers is not None
    words = (bench.services.bootstrap, *arguments)
    answer = subprocess.run(
        [bench.peers_python, "-P", str((bench.peers / script).absolute()), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=PEER_TIMEOUT_S,
        cwd=bench.peers,
    )
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["no word"])[-1]
        raise SetupError(f"{script} did not end well: {last}")
    return answer.stdout


def verdict(bench: Bench, run: Run, folder: Path, payloads: Payloads = Payloads.NONE) -> float:
    """Seconds of the full verdict on a run's topics, with its evidence."""
    began = time.monotonic()
    with spark_session(bench.services.spark_remote) as spark:
        source = fetch_bounds(bench.services.address, run.facts.source)
        question = Question(source, run.facts.sink)
        report = judge_topics(
            spark, Sides(bench.services.address), question, folder, JudgeOptions(payloads=payloads)
        )
    if report.verdict is not Outcome.HOLDS:
        sys.exit(f"{run.id}: {report.why}")
    return time.monotonic() - began


def plain_counts(bench: Bench, run: Run) -> float:
    """Seconds of three plain Spark counts: the source, and the sink at both levels, which is what a
    verdict reads."""
    began = time.monotonic()
    address = bench.services.address
    options = spark_source_options(address, READ_COMMITTED)
    levels = (Witness.READ_COMMITTED, Witness.READ_COMMITTED, Witness.READ_UNCOMMITTED)
    with spark_session(bench.services.spark_remote) as spark:
        for topic, level in zip(
            (run.facts.source, run.facts.sink, run.facts.sink), levels, strict=True
        ):
            read(spark, options, fetch_bounds(address, topic), level).count()
    return time.monotonic() - began


def percentile(values: Sequence[float], share: float) -> float:
    """Of many values, the one that so large a share lies at or below."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
