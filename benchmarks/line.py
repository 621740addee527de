"""A line of the benchmark of speed: one figure, beside that of another program or way."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks import sides
from benchmarks.sides import Bench, Timed


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


def of_size(size: int) -> str:
    return f", {size} bytes" if size else ""
