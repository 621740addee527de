"""More than one broker, and more than one executor."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks import sides
from benchmarks.latency import LATENCY_RATE, LATENCY_S, delays
from benchmarks.line import Line, rates, waited
from benchmarks.rows.throughput import GUARANTEES, warm_transactions
from benchmarks.sides import Bench, Timed
from benchmarks.standalone import standalone

SINK_PARTITIONS = (1, 4, 16)
EXECUTORS = (1, 2)


def row_brokers(bench: Bench, records: int, times: int) -> Iterator[Line]:
    """On one broker and on three that each keep a replica: what a transaction costs beside
    at-least-once, by how many partitions of the sink it writes to; what waiting for the replicas
    costs; and how long records are visible before they are committed."""
    records //= 4
    with sides.three_brokers(bench) as three:
        for at, place in ((bench, "1 broker"), (three, "3 brokers")):
            warm_transactions(at, 4 * records)
            source = at.source(records)
            for partitions in SINK_PARTITIONS:
                found: dict[str, list[Timed]] = {guarantee: [] for guarantee in GUARANTEES}
                for _ in range(times):
                    for guarantee, timed in found.items():
                        acks = "0" if guarantee == "at_most_once" else "all"
                        plan = {
                            "guarantee": guarantee,
                            "acks": acks,
                            "sink": {"partitions": partitions},
                        }
                        timed.append(
                            sides.ours(
                                at, source, records, lineage="off", per_transaction=1_000, **plan
                            )
                        )
                what = f"{partitions} partitions a transaction, {place}"
                plain = [one.rate for one in found["at_least_once"]]
                unanswered = [one.rate for one in found["at_most_once"]]
                line = rates(
                    "brokers",
                    f"exactly_once, {what}",
                    found["exactly_once"],
                    "at_least_once",
                    plain,
                )
                # Each source partition has its own transactions, and as many of these go on at once
                # as there are cores.
                transactions = records / 1_000 / (os.cpu_count() or 1)
                pairs = zip(found["exactly_once"], found["at_least_once"], strict=True)
                dearer = statistics.median(one.seconds - other.seconds for one, other in pairs)
                yield replace(
                    line,
                    more={**line.more, "ms dearer a transaction": dearer / transactions * 1_000},
                )
                yield rates(
                    "brokers",
                    f"at_least_once, {what}",
                    found["at_least_once"],
                    "at_most_once, acks=0",
                    unanswered,
                )
            seen = [delays(at, LATENCY_RATE, LATENCY_S) for _ in range(times)]
            yield waited("brokers", f"visible before it is committed, {place}", seen)


def row_executors(bench: Bench, records: int, times: int) -> Iterator[Line]:
    """One executor of one core of a standalone cluster, and two: runs, and verdicts on one of
    them."""
    source = bench.source(records)
    found: dict[int, list[Timed]] = {count: [] for count in EXECUTORS}
    judged: dict[int, list[float]] = {count: [] for count in EXECUTORS}
    with ExitStack() as up:
        clusters = {count: up.enter_context(standalone(bench, count)) for count in EXECUTORS}
        for turn in range(times + 1):
            for count, at in clusters.items():
                timed = sides.ours(at, source, records, lineage="off")
                # The first turn is not counted: each executor compiles what it is told.
                found[count] += [timed] if turn else []
        with (
            sides.kept(bench, source, records) as (_, run),
            tempfile.TemporaryDirectory(prefix="topicproof-bench-") as folder,
        ):
            for turn in range(times + 1):
                for count, at in clusters.items():
                    seconds = sides.verdict(at, run, Path(folder) / f"{turn}-{count}")
                    judged[count] += [seconds] if turn else []
    first = [one.rate for one in found[EXECUTORS[0]]]
    yield rates("executors", "1 executor of 1 core", found[EXECUTORS[0]])
    for count in EXECUTORS[1:]:
        yield rates("executors", f"{count} executors of 1 core", found[count], "1 executor", first)
        what, alone = f"full verdict, {count} executors of 1 core", tuple(judged[EXECUTORS[0]])
        yield Line("executors", what, "s", tuple(judged[count]), "1 executor", alone)
