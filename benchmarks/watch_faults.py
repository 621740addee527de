"""How soon a watch tells planted faults, and whether it is silent about healthy traffic. Run as
`make bench-watch-faults`.

In the first part, pipelines of one partition each write at once, with a tenth of their transactions
aborted and repeated. Each gets a copy, two outputs in the wrong order, a lost output and a hanging
transaction, at random moments that the seed decides. A pipeline whose faults were all told, or not
told in time, gives its place to a new one, until `--planted` of each were planted. In the second
part, healthy pipelines run for `--healthy-minutes` through aborts, restarts, fenced zombies,
rebalances of their readers, and added partitions. Each alarm there is a false one. `--out` has the
figures so far at any time. The Kafka is thrown away.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from rich.console import Console
from rich.table import Table

from benchmarks.watch_process import (
    Results,
    WatchProcess,
    contract_file,
    contract_text,
    throwaway_kafka,
    watch_process,
)
from tests.backend.kafka.hanging import hang
from topicproof.backend.address import Address
from topicproof.backend.history.store import History
from topicproof.backend.kafka.client_configs import (
    admin_config,
    idempotent_producer_config,
    transactional_producer_config,
)
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.settings import Settings
from topicproof.backend.watch.cluster_look import cluster_id
from topicproof.backend.watch.watch_list import ListedContract, list_contract, unlist_contract
from topicproof.validators.lineage.compact import COMPACT_HEADER, format_compact
from topicproof.validators.lineage.headers import Lineage

EVERY_S = 2.0
TICK_S = 0.25
OF_RECORDS = ("duplicate", "order", "gap")
"""Faults that records show, by the kind that a watch tells."""
HANGING = "hanging_transaction"
WITHIN_S = 2
"""Of the contracts with planted faults: a gap is none before."""
TICKS_BEFORE, TICKS_OF_FAULTS = 8, 40
"""A pipeline is healthy at first, then gets its faults within so many ticks."""
TELL_TIMEOUT_S = 60.0
PER_TICK = 10
"""Inputs of a pipeline in a tick."""
ABORTED_SHARE = 0.1
OF_HEALTHY = ("abort", "restart", "zombie", "rebalance", "partition")
PARTITIONS, PARTITIONS_MAX = 2, 12
TIMEOUT_S = 30


@dataclass
class Plant:
    """One planted fault."""

    kind: str
    at: float
    """Seconds of the monotonic clock."""
    told_s: float | None = None
    """How long it took until the watch told it."""


@dataclass
class Pipeline:
    """A source and a sink of one partition, and what is planted there."""

    name: str
    contract: ListedContract
    moments: dict[str, int]
    """The tick of its life at which each fault of `OF_RECORDS` comes."""
    sent: int = 0
    tick: int = 0
    plants: dict[str, Plant] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return f"in-{self.name}"

    @property
    def sink(self) -> str:
        return f"out-{self.name}"

    def outputs(self, chance: random.Random) -> tuple[list[int], list[str]]:
        """Return the inputs whose outputs a tick writes, and the faults in them."""
        inputs = [*range(self.sent, self.sent + PER_TICK)]
        kinds = [kind for kind, tick in self.moments.items() if tick == self.tick]
        for kind in kinds:
            at = chance.randrange(PER_TICK - 1)
            if kind == "gap":
                del inputs[at]
            elif kind == "order":
                inputs[at], inputs[at + 1] = inputs[at + 1], inputs[at]
            else:
                inputs.append(chance.randrange(self.sent))
        return inputs, kinds

    def is_told(self, now: float) -> bool:
        """Whether each fault of records was told, or was not told in time."""
        return len(self.plants) >= len(OF_RECORDS) and all(
            plant.told_s is not None or now - plant.at > TELL_TIMEOUT_S
            for plant in self.plants.values()
        )


@dataclass
class Planting:
    """All that was planted so far, and what nobody has planted."""

    plants: list[Plant] = field(default_factory=list)
    false_alarms: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        return {
            "kinds": {
                kind: of_kind([plant for plant in self.plants if plant.kind == kind])
                for kind in (*OF_RECORDS, HANGING)
            },
            "false_alarms": self.false_alarms,
        }


def of_kind(plants: Sequence[Plant]) -> dict[str, Any]:
    told = sorted(plant.told_s for plant in plants if plant.told_s is not None)
    return {
        "planted": len(plants),
        "missed": len(plants) - len(told),
        "median_s": round(statistics.median(told), 2) if told else None,
        "max_s": round(told[-1], 2) if told else None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-watch-faults ARGS=…", description=__doc__)
    parser.add_argument("--planted", type=int, default=100, help="of each fault; 0: none")
    parser.add_argument("--at-once", type=int, default=8, help="pipelines with planted faults")
    parser.add_argument("--healthy-minutes", type=float, default=30, help="0: not this part")
    parser.add_argument("--every", type=float, default=EVERY_S)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, help="a file for the figures, written as they come")
    options = parser.parse_args()
    results = Results(options.out)
    with throwaway_kafka() as (bootstrap, folder):
        if options.planted:
            (of_part := folder / "planted").mkdir()
            plant_faults(bootstrap, of_part, options, results)
        if options.healthy_minutes:
            (of_part := folder / "healthy").mkdir()
            run_healthy(bootstrap, of_part, options, results)
    console = Console()
    for table in as_tables(results.figures):
        console.print(table)
    console.print_json(json.dumps(results.figures))
    return int(not is_sound(results.figures))


def is_sound(figures: dict[str, Any]) -> bool:
    """Whether nothing was missed, and nothing was told that nobody has planted."""
    kinds = figures.get("planted", {}).get("kinds", {}).values()
    alarms = [alarm for part in figures.values() for alarm in part["false_alarms"]]
    healthy = figures.get("healthy", {"verdicts": []})["verdicts"]
    return not alarms and not any(each["missed"] for each in kinds) and {*healthy} <= {1.0}


# --- planted faults -------------------------------------------------------------------------------


def plant_faults(
    bootstrap: str, folder: Path, options: argparse.Namespace, results: Results
) -> None:
    """Plant faults until there are enough of each, and note how soon they were told."""
    address, chance = Address(bootstrap), random.Random(options.seed)
    (home := folder / "home").mkdir()
    history = History(Settings(home=home, bootstrap=bootstrap))
    kafka, cluster, planting = Cluster(address), cluster_id(address), Planting()
    inputs = Producer(idempotent_producer_config(address))
    outputs = Producer(transactional_producer_config(address, "planted"))
    outputs.init_transactions(TIMEOUT_S)
    active: list[Pipeline] = []
    # Pipelines take turns of less than two minutes each.
    until = time.monotonic() + 180 * (options.planted / options.at_once + 1)
    begun, noted = 0, 0.0
    with watch_process(bootstrap, folder, [], options.every) as watch:
        watch.wait_until_caught_up(TIMEOUT_S)
        while (active or begun < options.planted) and time.monotonic() < until:
            if not watch.is_alive:
                raise RuntimeError("The watch ended. Its output is above.")
            while len(active) < options.at_once and begun < options.planted:
                active.append(begin_pipeline(kafka, history, cluster, begun, chance))
                begun += 1
            began = time.monotonic()
            write_tick(inputs, outputs, active, planting, chance)
            take_notices(watch, active, planting)
            for pipeline in list(active):
                if pipeline.is_told(time.monotonic()) and HANGING not in pipeline.plants:
                    hang(bootstrap, pipeline.sink)
                    plant(pipeline, HANGING, planting)
                if HANGING in pipeline.plants and pipeline.is_told(time.monotonic()):
                    unlist_contract(history, pipeline.contract)
                    # With it goes the transaction.
                    kafka.delete_topics((pipeline.source, pipeline.sink))
                    active.remove(pipeline)
            if began - noted > 5:
                noted = began
                results.note("planted", planting.figures())
            time.sleep(max(0.0, TICK_S - (time.monotonic() - began)))
    results.note("planted", planting.figures())
    history.engine.dispose()


def begin_pipeline(
    kafka: Cluster, history: History, cluster: str, number: int, chance: random.Random
) -> Pipeline:
    ticks = chance.sample(range(TICKS_BEFORE, TICKS_BEFORE + TICKS_OF_FAULTS), len(OF_RECORDS))
    name = f"pipeline-{number}"
    text = contract_text(f"in-{name}", f"out-{name}", f"{WITHIN_S}s")
    contract = ListedContract.at(history.settings, cluster, name, text)
    pipeline = Pipeline(name, contract, dict(zip(OF_RECORDS, ticks, strict=True)))
    for topic in (pipeline.source, pipeline.sink):
        kafka.create_topic(topic, 1, exists_ok=False)
    list_contract(history, contract)
    return pipeline


def write_tick(
    inputs: Producer,
    outputs: Producer,
    active: Sequence[Pipeline],
    planting: Planting,
    chance: random.Random,
) -> None:
    """Write the inputs of a tick, then the outputs in one transaction, faults among them."""
    writing = [pipeline for pipeline in active if HANGING not in pipeline.plants]
    written = {pipeline.name: pipeline.outputs(chance) for pipeline in writing}
    for pipeline in writing:
        for _ in range(PER_TICK):
            send(inputs, pipeline.source, 0)
    inputs.flush(TIMEOUT_S)
    for is_aborted in [True] * (chance.random() < ABORTED_SHARE) + [False]:
        outputs.begin_transaction()
        for pipeline in writing:
            for offset in written[pipeline.name][0]:
                write_output(outputs, pipeline.source, pipeline.sink, 0, offset)
        outputs.flush(TIMEOUT_S)
        if is_aborted:
            outputs.abort_transaction(TIMEOUT_S)
        else:
            outputs.commit_transaction(TIMEOUT_S)
    for pipeline in writing:
        for kind in written[pipeline.name][1]:
            plant(pipeline, kind, planting)
        pipeline.sent += PER_TICK
        pipeline.tick += 1


def write_output(producer: Producer, source: str, sink: str, partition: int, offset: int) -> None:
    place = format_compact(Lineage(source, partition, offset, 0))
    send(producer, sink, partition, [(COMPACT_HEADER, place)])


def send(
    producer: Producer,
    topic: str,
    partition: int,
    headers: list[tuple[str, str | bytes | None]] | None = None,
) -> None:
    """Queue a record. A partition that was just added is not known to each client at once."""
    until = time.monotonic() + TIMEOUT_S
    while True:
        try:
            producer.produce(topic, b"value", partition=partition, headers=headers or [])
            return
        except KafkaException as error:
            is_unknown = error.args[0].code() == KafkaError._UNKNOWN_PARTITION
            if not is_unknown or time.monotonic() > until:
                raise
            producer.list_topics(topic, TIMEOUT_S)
            producer.poll(TICK_S)


def plant(pipeline: Pipeline, kind: str, planting: Planting) -> None:
    pipeline.plants[kind] = Plant(kind, time.monotonic())
    planting.plants.append(pipeline.plants[kind])


def take_notices(watch: WatchProcess, active: Sequence[Pipeline], planting: Planting) -> None:
    """Match what the watch has told with what was planted."""
    for notice in watch.new_notices():
        if notice["change"] == "ended":
            continue
        kind = notice["finding"] or notice["kind"]
        plants = [
            pipeline.plants[kind]
            for pipeline in active
            if kind in pipeline.plants
            and (notice["contract"] == pipeline.name or pipeline.sink in notice["topics"])
        ]
        if not plants:
            planting.false_alarms.append(f"{notice['kind']}: {notice['what']}")
        for each in plants:
            each.told_s = each.told_s or time.monotonic() - each.at


# --- healthy traffic ------------------------------------------------------------------------------


class HealthyPipeline:
    """A pipeline of several partitions that goes on through what happens to healthy ones."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.address = Address(bootstrap)
        self.source, self.sink, self.group = f"in-{name}", f"out-{name}", f"readers-{name}"
        self.sent = [0] * PARTITIONS
        for topic in (self.source, self.sink):
            Cluster(self.address).create_topic(topic, PARTITIONS, exists_ok=False)
        self.inputs = Producer(idempotent_producer_config(self.address))
        self.outputs = self._producer()
        self.readers = [self._reader()]

    def _producer(self) -> Producer:
        producer = Producer(transactional_producer_config(self.address, self.sink))
        producer.init_transactions(TIMEOUT_S)
        return producer

    def _reader(self) -> Consumer:
        reader = Consumer(
            {
                "bootstrap.servers": self.address.bootstrap,
                "group.id": self.group,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        reader.subscribe([self.sink])
        return reader

    def tick(self, event: str) -> None:
        """Write one transaction, to which this event happens, and read."""
        if event == "partition" and len(self.sent) < PARTITIONS_MAX:
            self._add_partition()
        spans = [(p, sent, sent + PER_TICK) for p, sent in enumerate(self.sent)]
        for partition, first, end in spans:
            for _ in range(first, end):
                send(self.inputs, self.source, partition)
        self.inputs.flush(TIMEOUT_S)
        if event in ("abort", "restart", "zombie"):
            self._write(spans)
            if event == "abort":
                self.outputs.abort_transaction(TIMEOUT_S)
            else:
                # Its successor fences it, and Kafka aborts what it has left open.
                zombie, self.outputs = self.outputs, self._producer()
                if event == "zombie":
                    with suppress(KafkaException):
                        zombie.commit_transaction(TIMEOUT_S)
        self._write(spans)
        self.outputs.commit_transaction(TIMEOUT_S)
        self.sent = [end for _, _, end in spans]
        if event == "rebalance":
            if len(self.readers) > 1:
                self.readers.pop().close()
            else:
                self.readers.append(self._reader())
        for reader in self.readers:
            messages = [each for each in reader.consume(1_000, TICK_S / 10) if not each.error()]
            if messages:
                # Of a partition that was just taken away, nothing is committed.
                with suppress(KafkaException):
                    reader.commit(asynchronous=False)

    def _add_partition(self) -> None:
        admin = AdminClient(admin_config(self.address))
        count = len(self.sent) + 1
        for topic in (self.sink, self.source):
            admin.create_partitions([NewPartitions(topic, count)])[topic].result(TIMEOUT_S)
        self.sent.append(0)

    def _write(self, spans: Sequence[tuple[int, int, int]]) -> None:
        self.outputs.begin_transaction()
        for partition, first, end in spans:
            for offset in range(first, end):
                write_output(self.outputs, self.source, self.sink, partition, offset)
        self.outputs.flush(TIMEOUT_S)

    def close(self) -> None:
        for reader in self.readers:
            reader.close()


def run_healthy(
    bootstrap: str, folder: Path, options: argparse.Namespace, results: Results
) -> None:
    """Run healthy pipelines, and note each alarm and what has happened to them."""
    chance = random.Random(options.seed)
    pipelines = [HealthyPipeline(bootstrap, f"healthy-{number}") for number in range(2)]
    contracts = [contract_file(folder, each.source, each.sink) for each in pipelines]
    events: Counter[str] = Counter()
    false_alarms: list[str] = []
    until = time.monotonic() + 60 * options.healthy_minutes
    with watch_process(bootstrap, folder, contracts, options.every) as watch:
        noted = 0.0
        while time.monotonic() < until and watch.is_alive:
            began = time.monotonic()
            for pipeline in pipelines:
                event = next(drawn(chance), "")
                pipeline.tick(event)
                events[event or "plain"] += 1
            false_alarms += [
                f"{notice['change']} {notice['kind']}: {notice['what']}"
                for notice in watch.new_notices()
            ]
            if began - noted > 5:
                noted = began
                figures = {"events": dict(events), "false_alarms": false_alarms}
                results.note("healthy", {**figures, "verdicts": watch.metrics("contract_verdict")})
            time.sleep(max(0.0, TICK_S - (time.monotonic() - began)))
        # The last inputs are due some time after their end.
        over = time.monotonic() + 2 * TIMEOUT_S
        while {*(verdicts := watch.metrics("contract_verdict"))} != {1.0}:
            if time.monotonic() > over or not watch.is_alive:
                break
            time.sleep(TICK_S)
    figures = {"events": dict(events), "false_alarms": false_alarms}
    results.note("healthy", {**figures, "verdicts": verdicts})
    for pipeline in pipelines:
        pipeline.close()


def drawn(chance: random.Random) -> Iterator[str]:
    """Yield what happens to a transaction, if anything does: aborts most often, partitions least
    often."""
    weights = dict(zip(OF_HEALTHY, (0.15, 0.03, 0.02, 0.03, 0.005), strict=True))
    draw = chance.random()
    for event, weight in weights.items():
        if draw < weight:
            yield event
            return
        draw -= weight


def as_tables(figures: dict[str, Any]) -> Iterator[Table]:
    if planted := figures.get("planted"):
        table = Table("fault", "planted", "missed", "told after, median, s", "max, s")
        for kind, each in planted["kinds"].items():
            table.add_row(kind, *(str(value) for value in each.values()))
        table.caption = f"A gap is one after {WITHIN_S} s. False alarms: " + (
            "; ".join(planted["false_alarms"]) or "none."
        )
        yield table
    if healthy := figures.get("healthy"):
        table = Table("what happened to healthy transactions", "times")
        for event, count in sorted(healthy["events"].items()):
            table.add_row(event, str(count))
        table.caption = f"Verdicts at the end (1 holds): {healthy['verdicts']}. False alarms: " + (
            "; ".join(healthy["false_alarms"]) or "none."
        )
        yield table


if __name__ == "__main__":
    sys.exit(main())
