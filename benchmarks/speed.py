"""How fast this project is beside what a user would pick instead. Run as `make bench ARGS="--peers
DIR"`.

Both sides of a row work on the same topic, in turn, at least three times; the ratio of each turn
counts, and of these the median, with the lowest and the highest beside it. Kafka and Spark are
started for it and thrown away afterwards. Without `--peers` (a folder of other programs, which is
no part of this project) only this project is measured.

The speed of a pipeline is its records over the time from the first transaction that was begun to
the last one that was committed; of Kafka Streams, over the time from its first record until it has
closed. What starting costs is in "whole".
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.console import Console

from benchmarks import sides
from benchmarks.latency import delays, latencies, latencies_of_spark
from benchmarks.sides import Bench, Timed
from benchmarks.speed_report import as_markdown, as_page
from benchmarks.standalone import standalone
from topicproof.backend.errors import TopicproofError
from topicproof.backend.services.keeper import services
from topicproof.backend.settings import ROOT, STOP_TIMEOUT_S, read_settings
from topicproof.backend.waiting import ask_until

RECORDS, TIMES = 4_000_000, 3
QUICK_RECORDS = 200_000
GUARANTEES = ("exactly_once", "at_least_once", "at_most_once")
SIZES = (0, 200)
"""Bytes of a value: 0 is as many as its digits, which makes a record of about 15 bytes."""
PER_TRANSACTION = (10, 100, 1_000, 10_000)
COSTLY = {10: 50, 100: 10}
"""Transactions this small are measured on so many times fewer records."""
COMMITS_MS = (1, 10, 100)
WARM_TURNS = 5
MILLIONS = (1, 5, 20)
LARGE_MILLIONS = (1, 10, 100)
LARGE_PARTITIONS = 16
ABOUT_100_MS = 25_000
"""Records that a core gets through in about that time."""
LATENCY_RATE, LATENCY_S = 1_000, 20
STEADY_S = 60
REAL_TIME_COMMITS_MS = (100, 10)
REAL_TIME = "real time"
REAL_TIME_GOALS = {
    LATENCY_RATE: ("p50 <= 0.03 s", "p99 <= 0.15 s"),
    20_000: ("", "p99 <= 0.5 s"),
}
CURVE_RATES = (100, 1_000, 5_000, 10_000, 20_000, 50_000, 100_000)
CRASHES = {"real_time": "crash@transaction=300", "micro_batch": "crash@transaction=60"}
"""Every worker is killed once, after the warming: real time writes more transactions."""
SINK_PARTITIONS = (1, 4, 16)
EXECUTORS = (1, 2)


@dataclass(frozen=True)
class Line:
    """One figure: ours, and beside it another's where there is one. In turns that belong
    together."""

    row: str
    what: str
    unit: str
    ours: tuple[float, ...]
    against: str = ""
    theirs: tuple[float, ...] = ()
    goal: str = ""
    more: dict[str, float] = field(default_factory=dict)
    """Further medians of ours."""
    memory: tuple[tuple[float, int, int], ...] = ()
    """By second: the bytes of Spark with its workers, and of the measuring process."""

    @property
    def ratios(self) -> tuple[float, ...]:
        return (
            tuple(mine / other for mine, other in zip(self.ours, self.theirs, strict=True))
            if self.theirs
            else ()
        )


Row = Callable[[Bench, int, int], Iterator[Line]]
"""Given how many records, and how many times."""


def row_streams(bench: Bench, records: int, times: int) -> Iterator[Line]:
    """Exactly-once without lineage beside Kafka Streams exactly_once_v2."""
    for size in SIZES:
        source = bench.source(records, size)
        mine, theirs = [], []
        for _ in range(times):
            mine.append(sides.ours(bench, source, records, lineage="off"))
            theirs += (
                [sides.streams(bench, source, records, "exactly_once_v2")] if bench.peers else []
            )
        yield rates(
            "streams",
            f"exactly-once, lineage off{_of(size)}",
            mine,
            "Kafka Streams EOS",
            theirs,
            ">= 1.0",
        )


def row_lineage(bench: Bench, records: int, times: int) -> Iterator[Line]:
    """Exactly-once with lineage, packed and on every record, beside the same without."""
    for size in SIZES:
        source = bench.source(records, size)
        found: dict[str, list[Timed]] = {"packed": [], "record": []}
        theirs = []
        for _ in range(times):
            theirs.append(sides.ours(bench, source, records, lineage="off").rate)
            for lineage, timed in found.items():
                timed.append(sides.ours(bench, source, records, lineage=lineage))
        for lineage, timed in found.items():
            what = f"exactly-once, lineage {lineage}{_of(size)}"
            yield rates(
                "lineage",
                what,
                timed,
                "lineage off",
                theirs,
                ">= 0.85" if lineage == "packed" else "",
            )


def row_guarantees(bench: Bench, records: int, times: int) -> Iterator[Line]:
    """Each guarantee beside at-least-once at 10,000 records a transaction, and how long its records
    take at a steady rate. Without lineage, of which only exactly-once writes a second header."""
    _warm_guarantees(bench, records, GUARANTEES)
    for value_bytes in SIZES:
        yield from _beside_at_least_once(
            "guarantees", bench, records, times, value_bytes, 10_000, GUARANTEES
        )
    waits: dict[str, list[list[float]]] = {guarantee: [] for guarantee in GUARANTEES}
    for _ in range(times):
        for guarantee, turns in waits.items():
            turns.append(
                latencies(bench, LATENCY_RATE, LATENCY_S, guarantee=guarantee, lineage="off")
            )
    for guarantee, turns in waits.items():
        yield waited("guarantees", f"{guarantee}, latency at {LATENCY_RATE:,} records/s", turns)


def row_interval(bench: Bench, records: int, times: int) -> Iterator[Line]:
    """Exactly-once beside at-least-once where each transaction has as many records as a core gets
    through in 100 ms."""
    both = ("exactly_once", "at_least_once")
    _warm_guarantees(bench, records, both)
    for value_bytes in SIZES:
        size = _in_100_ms(bench, records, value_bytes)
        yield from _beside_at_least_once("interval", bench, records, times, value_bytes, size, both)


def _warm_guarantees(bench: Bench, records: int, guarantees: Sequence[str]) -> None:
    """Not counted. What a broker has compiled for small transactions it throws away when it meets
    larger ones, and compiles again after some thousands of calls, of which 4 million records in
    such transactions make few: so it sees large ones of every kind first, and then many small
    ones."""
    for value_bytes in SIZES:
        for size in (10_000, ABOUT_100_MS):
            _turn(bench, records, value_bytes, size, guarantees)
    for guarantee in guarantees:
        warm_transactions(bench, records, guarantee)


def _beside_at_least_once(
    row: str,
    bench: Bench,
    records: int,
    times: int,
    value_bytes: int,
    size: int,
    guarantees: Sequence[str],
) -> Iterator[Line]:
    """The other guarantees beside it, at so many records a transaction."""
    found: dict[str, list[Timed]] = {guarantee: [] for guarantee in guarantees}
    for turn in range(times):
        # There and back: what everybody gains from turn to turn is nobody's then.
        for guarantee, timed in _turn(
            bench, records, value_bytes, size, guarantees[:: -1 if turn % 2 else 1]
        ).items():
            found[guarantee].append(timed)
    plain = [one.rate for one in found["at_least_once"]]
    for guarantee in (one for one in guarantees if one != "at_least_once"):
        every, goal = (", every 100 ms", ">= 0.97") if row == "interval" else ("", "")
        what = f"{guarantee}, {size:,} a transaction{every}{_of(value_bytes)}"
        line = rates(row, what, found[guarantee], "at_least_once", plain, goal)
        # Of all turns together, which a single slow one moves less than it does the ratio of its
        # turn.
        summed = sum(one.seconds for one in found["at_least_once"]) / sum(
            one.seconds for one in found[guarantee]
        )
        yield replace(line, more={**line.more, "of summed times": summed})


def row_sizes(bench: Bench, records: int, times: int) -> Iterator[Line]:
    """Records per second by records per transaction; beside Kafka Streams, at as many as its commit
    intervals give."""
    warm_transactions(bench, records)
    for size in PER_TRANSACTION:
        count = _enough(records, size)
        source = bench.source(count)
        timed = [
            sides.ours(bench, source, count, per_transaction=size, lineage="off")
            for _ in range(times)
        ]
        yield rates("sizes", f"{size:,} records a transaction", timed)
    for commit_ms in COMMITS_MS if bench.peers else ():
        source = bench.source(records)
        _, found = sides.streams_sized(bench, source, records, "exactly_once_v2", commit_ms)
        size = max(10, round(found))
        mine, theirs = [], []
        for _ in range(times):
            mine.append(sides.ours(bench, source, records, per_transaction=size, lineage="off"))
            theirs.append(sides.streams(bench, source, records, "exactly_once_v2", commit_ms))
        against = f"Kafka Streams EOS, every {commit_ms} ms"
        yield rates(
            "sizes",
            f"{size:,} records a transaction, as Kafka Streams",
            mine,
            against,
            theirs,
            ">= 1.0",
        )


def _in_100_ms(bench: Bench, records: int, value_bytes: int) -> int:
    """How many records a core gets through in that time, warm."""
    found = [
        _turn(bench, records, value_bytes, ABOUT_100_MS, ("exactly_once",))["exactly_once"]
        for _ in range(3)
    ]
    rate = statistics.median(one.rate for one in found)
    return int(max(1_000, round(rate / (os.cpu_count() or 1) / 10, -3)))


def _turn(
    bench: Bench, records: int, value_bytes: int, size: int, guarantees: Sequence[str]
) -> dict[str, Timed]:
    """One run of each guarantee without lineage, in this order, with so many records a
    transaction."""
    source = bench.source(records, value_bytes)
    plan = {"lineage": "off", "per_transaction": size}
    return {
        guarantee: sides.ours(bench, source, records, guarantee=guarantee, **plan)
        for guarantee in guarantees
    }


def warm_transactions(bench: Bench, records: int, guarantee: str = "exactly_once") -> None:
    """Not counted: a broker goes on compiling what a transaction needs for some ten thousand of
    them."""
    count = _enough(records, 100)
    for _ in range(WARM_TURNS):
        sides.ours(
            bench,
            bench.source(count),
            count,
            per_transaction=100,
            lineage="off",
            guarantee=guarantee,
        )


def _enough(records: int, size: int) -> int:
    """Fewer records where transactions are so small."""
    return max(10_000, records // COSTLY[size]) if size in COSTLY else records


def row_verdict(bench: Bench, records: int, times: int) -> Iterator[Line]:
    """The full verdict beside plain counts of the same readings, and beside the hand-written check;
    of lineage packed and on every record, whose topics are of different sizes."""
    for lineage in ("packed", "record"):
        mine, counts, checks = [], [], []
        with (
            sides.kept(bench, bench.source(records), records, lineage=lineage) as (_, run),
            tempfile.TemporaryDirectory(prefix="topicproof-bench-") as folder,
        ):
            # The first turn is not counted: a server compiles what it is told.
            for turn in range(times + 1):
                timed = (
                    sides.verdict(bench, run, Path(folder) / str(turn)),
                    sides.plain_counts(bench, run),
                )
                if turn:
                    mine.append(timed[0])
                    counts.append(timed[1])
                    checks += [sides.duckdb_check(bench, run.facts.sink)] if bench.peers else []
        what = f"full verdict, lineage {lineage}"
        yield Line("verdict", what, "s", tuple(mine), "plain Spark counts", tuple(counts), "<= 2")
        if checks:
            yield Line(
                "verdict", what, "s", tuple(mine), "duckdb_check.py", tuple(checks), "<= 0.6"
            )


def row_large(bench: Bench, _records: int, times: int) -> Iterator[Line]:
    """The verdict on 1 to 100 million records and as many inputs, with the memory that it takes; of
    Spark, and of the process that judges."""
    for millions in LARGE_MILLIONS:
        records = millions * 1_000_000
        source = bench.source(records, partitions=LARGE_PARTITIONS)
        spent: list[float] = []
        with (
            sides.kept(bench, source, records, lineage="packed") as (_, run),
            tempfile.TemporaryDirectory(prefix="topicproof-bench-") as folder,
        ):
            for turn in range(times):
                with sides.watched(bench.services) as seen:
                    spent.append(sides.verdict(bench, run, Path(folder) / str(turn)))
        bench.drop(source)
        yield Line(
            "large",
            f"full verdict on {records:,} + {records:,} records",
            "us/record",
            tuple(seconds / records * 1e6 for seconds in spent),
            more={
                "whole s": statistics.median(spent),
                "peak MB of Spark": seen.peak / 1e6,
                "peak MB of the judging process": max(own for _, _, own in seen.memory) / 1e6,
            },
            memory=tuple(seen.memory),
        )


def row_latency(bench: Bench, _records: int, times: int) -> Iterator[Line]:
    """From a record's produce until a read_committed consumer has its output, at a steady rate."""
    mine, theirs = [], []
    for _ in range(times):
        mine.append(latencies(bench, LATENCY_RATE, LATENCY_S))
        theirs += (
            [latencies(bench, LATENCY_RATE, LATENCY_S, streams_ms=sides.COMMIT_MS)]
            if bench.peers
            else []
        )
    for share, goal in ((0.5, "p50 <= 0.5 s"), (0.99, "p99 <= 1 s")):
        ours, others = ([sides.percentile(one, share) for one in of] for of in (mine, theirs))
        what = f"latency p{share * 100:.0f} at {LATENCY_RATE:,} records/s"
        yield Line(
            "latency",
            what,
            "s",
            tuple(ours),
            "Kafka Streams EOS" if others else "",
            tuple(others),
            goal,
        )


def row_real_time(bench: Bench, _records: int, times: int) -> Iterator[Line]:
    """The latency of a run in real time, beside Kafka Streams with commits every 100 and every 10
    ms; in turns. At the lower rate also beside shorter transactions, micro-batches and Spark's own
    sink in real time, and how long records wait when all workers are killed."""
    for rate, goals in REAL_TIME_GOALS.items():
        found: dict[str, list[list[float]]] = {}
        killed: dict[str, list[float]] = {}
        for _ in range(times):
            for side, measured in _beside_real_time(bench, rate).items():
                found.setdefault(side, []).append(measured())
            for trigger, fault in CRASHES.items() if rate == LATENCY_RATE else ():
                seen = latencies(bench, rate, LATENCY_S, trigger=trigger, faults=[fault])
                killed.setdefault(trigger, []).append(max(seen))
        mine = found.pop(REAL_TIME)
        for share, goal in zip((0.5, 0.99), goals, strict=True):
            ours = tuple(sides.percentile(one, share) for one in mine)
            what = f"real time, latency p{share * 100:.0f} at {rate:,} records/s"
            for against, turns in found.items() or [("", [])]:
                theirs = tuple(sides.percentile(one, share) for one in turns)
                yield Line("realtime", what, "s", ours, against, theirs, goal)
        if killed:
            yield Line(
                "realtime",
                "real time, longest latency when all workers are killed",
                "s",
                tuple(killed["real_time"]),
                "micro-batches",
                tuple(killed["micro_batch"]),
            )


def _beside_real_time(bench: Bench, rate: int) -> dict[str, Callable[[], list[float]]]:
    """What measures one turn of each side at that rate, by the side's name."""

    def of_streams(commit_ms: int) -> Callable[[], list[float]]:
        return lambda: latencies(bench, rate, STEADY_S, streams_ms=commit_ms)

    turns: dict[str, Callable[[], list[float]]] = {
        REAL_TIME: lambda: latencies(bench, rate, STEADY_S, trigger="real_time")
    }
    if bench.peers:
        for commit_ms in REAL_TIME_COMMITS_MS:
            turns[f"Kafka Streams EOS, every {commit_ms} ms"] = of_streams(commit_ms)
    if rate == LATENCY_RATE:
        turns[f"{REAL_TIME}, transactions of 10 ms"] = lambda: latencies(
            bench, rate, STEADY_S, trigger="real_time", commit_interval_ms=10
        )
        turns["micro-batches"] = lambda: latencies(bench, rate, LATENCY_S)
        turns["Spark's own sink in real time, at-least-once"] = lambda: latencies_of_spark(
            bench, rate, LATENCY_S
        )
    return turns


def row_curve(bench: Bench, _records: int, times: int) -> Iterator[Line]:
    """The latency of a run in real time by rate, beside Kafka Streams that commits every 100 ms."""
    # Not counted: at high rates Java compiles for half a minute.
    latencies(bench, CURVE_RATES[-1], LATENCY_S, trigger="real_time")
    for rate in CURVE_RATES:
        mine, theirs = [], []
        for _ in range(times):
            mine.append(latencies(bench, rate, LATENCY_S, trigger="real_time"))
            if bench.peers:
                theirs.append(latencies(bench, rate, LATENCY_S, streams_ms=sides.COMMIT_MS))
        for share in (0.5, 0.99):
            ours, others = (
                tuple(sides.percentile(one, share) for one in of) for of in (mine, theirs)
            )
            yield Line(
                "curve",
                f"real time, latency p{share * 100:.0f} at {rate:,} records/s",
                "s",
                ours,
                "Kafka Streams EOS" if others else "",
                others,
                more={"records/s": rate, "percentile": share * 100},
            )


def row_backlog(bench: Bench, records: int, times: int) -> Iterator[Line]:
    """The throughput of a run in real time whose source is full already, beside micro-batches."""
    source = bench.source(records)
    mine: list[Timed] = []
    theirs: list[Timed] = []
    for _ in range(times + 1):
        mine.append(sides.ours(bench, source, records, trigger="real_time"))
        theirs.append(sides.ours(bench, source, records))
    what = f"a backlog of {records:,}, in real time"
    # The first turn of each side is not counted: it warms the server.
    others = [one.rate for one in theirs[1:]]
    yield rates("backlog", what, mine[1:], "micro-batches", others, ">= 0.7")


def row_first(bench: Bench, _records: int, times: int) -> Iterator[Line]:
    """From the start of a run to its first committed transaction."""
    source = bench.source(10_000)
    found = [
        sides.ours(bench, source, 10_000, per_transaction=1_000).first_s for _ in range(times + 2)
    ]
    yield Line(
        "first", "run start to first committed record, warm", "s", tuple(found[2:]), goal="<= 2"
    )


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
            sides.kept(bench, source, records, lineage="packed") as (_, run),
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


def row_linear(bench: Bench, records: int, times: int) -> Iterator[Line]:
    """Microseconds a record and peak memory from 1 to 20 million records, or up to `records` where
    that is less."""
    counts = [millions * 1_000_000 * min(records, RECORDS) // RECORDS for millions in MILLIONS]
    sources = {count: bench.source(count) for count in counts}
    found: dict[int, list[Timed]] = {count: [] for count in counts}
    for _ in range(times):
        for count, source in sources.items():
            found[count].append(sides.ours(bench, source, count))
    for count, timed in found.items():
        per_record = tuple(one.seconds / count * 1e6 for one in timed)
        # Of the first turn too: Java keeps what it once had.
        peaks = {
            "peak MB, first": timed[0].peak_bytes / 1e6,
            "peak MB": max(one.peak_bytes for one in timed) / 1e6,
        }
        yield Line("linear", f"{count:,} records", "us/record", per_record, more=peaks)
        if count not in (records, 10_000):
            bench.drop(sources[count])


ROWS: dict[str, Row] = {
    "streams": row_streams,
    "lineage": row_lineage,
    "interval": row_interval,
    "guarantees": row_guarantees,
    "sizes": row_sizes,
    "verdict": row_verdict,
    "latency": row_latency,
    "realtime": row_real_time,
    "curve": row_curve,
    "backlog": row_backlog,
    "first": row_first,
    "linear": row_linear,
    "large": row_large,
    "brokers": row_brokers,
    "executors": row_executors,
}
QUICK_ROWS = ("streams", "lineage", "first")


def rates(
    row: str,
    what: str,
    mine: Sequence[Timed],
    against: str = "",
    theirs: Sequence[float] = (),
    goal: str = "",
) -> Line:
    """A line of records per second, with where the processor time of a record went."""
    more = {"whole s": statistics.median(one.whole_s for one in mine)}
    for name in mine[0].processor_s:
        more[f"{name} us"] = statistics.median(
            one.processor_s.get(name, 0) / one.records * 1e6 for one in mine
        )
    rate = tuple(one.rate for one in mine)
    return Line(row, what, "records/s", rate, against if theirs else "", tuple(theirs), goal, more)


def waited(row: str, what: str, turns: Sequence[Sequence[float]]) -> Line:
    """A line of seconds: the median of each turn's records, and beside it that of the slowest of a
    hundred."""
    slowest = statistics.median(sides.percentile(turn, 0.99) for turn in turns)
    return Line(
        row,
        what,
        "s",
        tuple(sides.percentile(turn, 0.5) for turn in turns),
        more={"p99 s": slowest},
    )


def _of(size: int) -> str:
    return f", {size} bytes" if size else ""


def measure(
    bench: Bench, rows: Sequence[str], records: int, times: int, say: Callable[[str], None]
) -> list[Line]:
    """The rows' figures. A peer that does not run is said, and its row left out."""
    found: list[Line] = []
    # Not counted: what a server is told for the first time, it compiles.
    for count in sorted({min(records, 10_000), records}):
        sides.ours(bench, bench.source(count), count)
    for row in rows:
        try:
            for line in ROWS[row](bench, records, times):
                found.append(line)
                beside = (
                    f", {statistics.median(line.ratios):.2f} of {line.against}"
                    if line.ratios
                    else ""
                )
                say(f"{line.what}: {statistics.median(line.ours):,.2f} {line.unit}{beside}")
        except (TopicproofError, OSError, subprocess.TimeoutExpired) as error:
            say(f"Row {row} was left out: {error}")
    return found


def write(found: Sequence[Line], folder: Path, records: int) -> None:
    """speed.json, speed.md and speed.html."""
    folder.mkdir(parents=True, exist_ok=True)
    head = {"commit": _commit(), "cores": os.cpu_count(), "records": records}
    lines = [{**asdict(line), "ratios": line.ratios} for line in found]
    (folder / "speed.json").write_text(
        json.dumps({**head, "lines": lines}, indent=2) + "\n", encoding="utf-8"
    )
    (folder / "speed.md").write_text(as_markdown(lines, head), encoding="utf-8")
    (folder / "speed.html").write_text(as_page(lines, head), encoding="utf-8")


def _commit() -> str:
    asked = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    options = argparse.ArgumentParser(
        description="How fast, beside what a user would pick instead."
    )
    options.add_argument(
        "--peers", type=Path, help="folder of the programs to measure beside this one"
    )
    options.add_argument(
        "--peers-python", default=sys.executable, help="a Python that has what its scripts import"
    )
    options.add_argument(
        "--quick", action="store_true", help="few records and the main rows: under three minutes"
    )
    options.add_argument("--records", type=int)
    options.add_argument("--times", type=int, default=TIMES)
    options.add_argument("--rows", default="", help=f"only these, of {', '.join(ROWS)}")
    options.add_argument(
        "--out", type=Path, default=Path("artifacts/speed"), help="folder for JSON, table and page"
    )
    asked = options.parse_args()
    out, errors = Console(), Console(stderr=True)
    rows = [row for row in asked.rows.split(",") if row] or (
        QUICK_ROWS if asked.quick else list(ROWS)
    )
    if unknown := set(rows) - set(ROWS):
        options.error(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    records = asked.records or (QUICK_RECORDS if asked.quick else RECORDS)
    if asked.peers is None:
        errors.print("No --peers: this project is measured alone.")
    with tempfile.TemporaryDirectory(prefix="topicproof-bench-") as home:
        settings = read_settings(home=Path(home))
        with services(settings, say=errors.print) as up:
            bench = Bench(settings, up, asked.peers, asked.peers_python)
            found = measure(bench, rows, records, asked.times, errors.print)
            write(found, asked.out, records)
        # They stop after their last user has left. Until then they write into the folder.
        running = settings.services / "running.json"
        ask_until(running.exists, operator.not_, 2 * STOP_TIMEOUT_S)
    out.print(
        (asked.out / "speed.md").read_text(encoding="utf-8"),
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()
