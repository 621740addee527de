"""How long records and runs wait: latency at a rate, in real time, and the start of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks import sides
from benchmarks.latency import LATENCY_RATE, LATENCY_S, latencies, latencies_of_spark
from benchmarks.line import Line, rates
from benchmarks.sides import Bench, Timed

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
