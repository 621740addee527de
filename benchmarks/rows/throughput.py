"""Records per second: beside Kafka Streams, by guarantee, and by size of a transaction."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks import sides
from benchmarks.latency import LATENCY_RATE, LATENCY_S, latencies
from benchmarks.line import Line, of_size, rates, waited
from benchmarks.sides import Bench, Timed

GUARANTEES = ("exactly_once", "at_least_once", "at_most_once")
SIZES = (0, 200)
"""Bytes of a value: 0 is as many as its digits, which makes a record of about 15 bytes."""
PER_TRANSACTION = (10, 100, 1_000, 10_000)
COSTLY = {10: 50, 100: 10}
"""Transactions this small are measured on so many times fewer records."""
COMMITS_MS = (1, 10, 100)
WARM_TURNS = 5
ABOUT_100_MS = 25_000
"""Records that a core gets through in about that time."""


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
            f"exactly-once, lineage off{of_size(size)}",
            mine,
            "Kafka Streams EOS",
            theirs,
            ">= 1.0",
        )


def row_lineage(bench: Bench, records: int, times: int) -> Iterator[Line]:
    """Exactly-once with lineage on every record, beside the same without."""
    for size in SIZES:
        source = bench.source(records, size)
        mine, without = [], []
        for _ in range(times):
            without.append(sides.ours(bench, source, records, lineage="off").rate)
            mine.append(sides.ours(bench, source, records))
        what = f"exactly-once, lineage on every record{of_size(size)}"
        yield rates("lineage", what, mine, "lineage off", without)


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
        what = f"{guarantee}, {size:,} a transaction{every}{of_size(value_bytes)}"
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
