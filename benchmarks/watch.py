"""What a watch of contracts costs: delay behind the head, share of a core, memory. Run as `make
bench-watch`.

Three parts, on a Kafka that is thrown away afterwards. In the first, one pipeline writes `--rate`
records a second for `--minutes`, half of them inputs and half of them outputs in transactions of a
second, over 8 partitions each. The second repeats it for each rate of `--curve`, for
`--curve-minutes`. In the third, `--contracts` contracts are watched whose topics are quiet. The
watch is the command in a process of its own. Its delay is read from its own metrics, and its
processor time and memory from the kernel. `--out` has the figures so far at any time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.synchronize
import statistics
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from benchmarks.watch_process import (
    Results,
    WatchProcess,
    contract_file,
    throwaway_kafka,
    watch_process,
)
from topicproof.backend.address import Address
from topicproof.backend.kafka.client_configs import (
    idempotent_producer_config,
    transactional_producer_config,
)
from topicproof.backend.kafka.cluster import Cluster
from topicproof.validators.lineage.compact import COMPACT_HEADER, OFFSET_AT, format_compact
from topicproof.validators.lineage.headers import Lineage

PARTITIONS = 8
VALUE = bytes(100)
TICK_S = 0.1
SAMPLE_S = 0.5
NOTE_EVERY_S = 30.0
EVERY_S = 2.0
QUIET_EVERY_S = 10.0
QUIET_RECORDS = 10
EARLY_S = 300.0
"""Memory is compared with that of the first so many seconds, or with that of the first quarter."""
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
    early_memory_mib: float
    """The most of the first `EARLY_S`, or of the first quarter if that is shorter."""
    memory_mib: float
    """The most of the last quarter of the time."""
    is_caught_up: bool
    verdict: float | None
    """At the end: 1 holds."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-watch ARGS=…", description=__doc__)
    parser.add_argument("--rate", type=int, default=20_000, help="records a second, both topics")
    parser.add_argument("--minutes", type=float, default=20, help="0: not this part")
    parser.add_argument("--curve", default="1000,5000,20000,50000", help="rates; empty: none")
    parser.add_argument("--curve-minutes", type=float, default=2)
    parser.add_argument("--every", type=float, default=EVERY_S)
    parser.add_argument("--contracts", type=int, default=200, help="on quiet topics; 0: none")
    parser.add_argument("--quiet-minutes", type=float, default=5)
    parser.add_argument("--out", type=Path, help="a file for the figures, written as they come")
    parser.add_argument("--profile", help="a file for cProfile's figures of the busy watch")
    options = parser.parse_args()
    console, errors = Console(), Console(stderr=True)
    results = Results(options.out)
    parts = [(options.rate, options.minutes)] if options.minutes else []
    parts += [(int(rate), options.curve_minutes) for rate in options.curve.split(",") if rate]
    figures: dict[str, Figures] = {}
    with throwaway_kafka() as (bootstrap, folder):
        for number, (rate, minutes) in enumerate(parts):
            name = f"{rate} a second for {minutes:g} min"
            (of_part := folder / f"busy-{number}").mkdir()
            with busy(bootstrap, of_part, rate, options.every, options.profile) as watch:
                figures[name] = measured(watch, minutes, noting(results, name))
            errors.print(name, figures[name])
        if options.contracts:
            name = f"{options.contracts} quiet contracts"
            (of_part := folder / "quiet").mkdir()
            with quiet(bootstrap, of_part, options.contracts) as watch:
                figures[name] = measured(watch, options.quiet_minutes, noting(results, name))
    console.print(as_table(figures.items()))
    console.print_json(json.dumps({name: asdict(each) for name, each in figures.items()}))


def noting(results: Results, name: str) -> Callable[[Figures], None]:
    return lambda figures: results.note(name, asdict(figures))


@contextmanager
def busy(
    bootstrap: str, folder: Path, rate: int, every_s: float, profile: str | None
) -> Iterator[WatchProcess]:
    """Watch one pipeline that writes at a rate."""
    cluster = Cluster(Address(bootstrap))
    source, sink = f"numbers-{folder.name}", f"squares-{folder.name}"
    for topic in (source, sink):
        cluster.create_topic(topic, PARTITIONS, exists_ok=False)
    stop = multiprocessing.Event()
    feeder = multiprocessing.Process(
        target=feed, args=(bootstrap, source, sink, rate, stop), daemon=True
    )
    feeder.start()
    try:
        contract = contract_file(folder, source, sink)
        with watch_process(bootstrap, folder, [contract], every_s, profile) as watch:
            yield watch
    finally:
        stop.set()
        feeder.join(60)
        feeder.kill()
        cluster.delete_topics((source, sink))


@contextmanager
def quiet(bootstrap: str, folder: Path, count: int) -> Iterator[WatchProcess]:
    """Watch many contracts on topics to which nobody writes."""
    cluster = Cluster(Address(bootstrap))
    producer = Producer(idempotent_producer_config(Address(bootstrap)))
    contracts = []
    for number in range(count):
        source, sink = f"quiet-{number}", f"silent-{number}"
        for topic in (source, sink):
            cluster.create_topic(topic, 1, exists_ok=False)
        for offset in range(QUIET_RECORDS):
            place = format_compact(Lineage(source, 0, offset, 0))
            producer.produce(source, VALUE, partition=0)
            producer.produce(sink, VALUE, partition=0, headers=[(COMPACT_HEADER, place)])
        contracts.append(contract_file(folder, source, sink))
    producer.flush()
    with watch_process(bootstrap, folder, contracts, QUIET_EVERY_S) as watch:
        yield watch


def feed(
    bootstrap: str,
    source: str,
    sink: str,
    rate: int,
    stop: multiprocessing.synchronize.Event,
) -> None:
    """Write inputs and their outputs at a rate until the event is set."""
    address = Address(bootstrap)
    inputs = Producer({**idempotent_producer_config(address), "linger.ms": 20})
    outputs = Producer({**transactional_producer_config(address, sink), "linger.ms": 20})
    outputs.init_transactions()
    headers = [format_compact(Lineage(source, p, 0, 0)) for p in range(PARTITIONS)]
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
            queue(inputs, source, partition)
            queue(outputs, sink, partition, place)
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


def queue(producer: Producer, topic: str, partition: int, place: bytes | None = None) -> None:
    """Queue a record; wait while the queue is full, as on a busy machine."""
    headers: list[tuple[str, str | bytes | None]] = []
    if place is not None:
        headers.append((COMPACT_HEADER, place))
    while True:
        try:
            producer.produce(topic, VALUE, partition=partition, headers=headers)
            return
        except BufferError:
            producer.poll(TICK_S)


def measured(watch: WatchProcess, minutes: float, on_figures: Callable[[Figures], None]) -> Figures:
    """Wait until the watch is caught up, then measure for so long. `on_figures` gets those so
    far from time to time."""
    watch.wait_until_caught_up(CAUGHT_UP_S, SAMPLE_S)
    began, cpu_s = time.monotonic(), watch.cpu_s
    judged = sum(watch.metrics("records_judged_total"))
    delays: list[float] = []
    memory: list[tuple[float, float]] = []
    figures: Figures | None = None
    noted = took = 0.0
    while took < minutes * 60 and watch.is_alive:
        time.sleep(SAMPLE_S)
        delays += watch.metrics("contract_delay_seconds")
        took = time.monotonic() - began
        memory.append((took, watch.memory_mib))
        is_over = took >= minutes * 60
        if len(delays) < 2 or (took - noted < NOTE_EVERY_S and not is_over):
            continue
        noted = took
        cuts = statistics.quantiles(delays, n=100, method="inclusive")
        # Each output has an input.
        records = 2 * (sum(watch.metrics("records_judged_total")) - judged)
        verdicts = watch.metrics("contract_verdict")
        figures = Figures(
            contracts=len(verdicts),
            records_per_second=round(records / took),
            seconds=round(took, 1),
            delay_p50_s=round(cuts[49], 2),
            delay_p99_s=round(cuts[98], 2),
            delay_max_s=round(max(delays), 2),
            cores=round((watch.cpu_s - cpu_s) / took, 3),
            early_memory_mib=_most(memory, 0, min(EARLY_S, took / 4)),
            memory_mib=_most(memory, took * 3 / 4, took),
            is_caught_up=watch.is_caught_up,
            verdict=min(verdicts, default=None),
        )
        on_figures(figures)
    if figures is None:
        raise RuntimeError("The watch ended before there were figures. Its output is above.")
    return figures


def _most(memory: Iterable[tuple[float, float]], first_s: float, last_s: float) -> float:
    return round(max((mib for at_s, mib in memory if first_s <= at_s <= last_s), default=0), 1)


def as_table(figures: Iterable[tuple[str, Figures]]) -> Table:
    table = Table("part", "contracts", "records/s", "seconds", "delay p50, s", "p99, s", "max, s")
    for title in ("cores", "early memory, MiB", "memory, MiB", "caught up", "verdict"):
        table.add_column(title)
    for name, each in figures:
        table.add_row(name, *(str(value) for value in asdict(each).values()))
    return table


if __name__ == "__main__":
    main()
