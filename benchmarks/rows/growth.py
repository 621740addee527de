"""What grows with the records: verdicts, memory, and time for each record."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import sides
from benchmarks.line import Line
from benchmarks.sides import RECORDS, Bench, Timed

MILLIONS = (1, 5, 20)
LARGE_MILLIONS = (1, 10, 100)
LARGE_PARTITIONS = 16


def row_verdict(bench: Bench, records: int, times: int) -> Iterator[Line]:
    """The full verdict beside plain counts of the same readings, and beside the hand-written
    check."""
    mine, counts, checks = [], [], []
    with (
        sides.kept(bench, bench.source(records), records) as (_, run),
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
    what = "full verdict, lineage on every record"
    yield Line("verdict", what, "s", tuple(mine), "plain Spark counts", tuple(counts), "<= 2")
    if checks:
        yield Line("verdict", what, "s", tuple(mine), "duckdb_check.py", tuple(checks), "<= 0.6")


def row_large(bench: Bench, _records: int, times: int) -> Iterator[Line]:
    """The verdict on 1 to 100 million records and as many inputs, with the memory that it takes; of
    Spark, and of the process that judges."""
    for millions in LARGE_MILLIONS:
        records = millions * 1_000_000
        source = bench.source(records, partitions=LARGE_PARTITIONS)
        spent: list[float] = []
        with (
            sides.kept(bench, source, records) as (_, run),
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
