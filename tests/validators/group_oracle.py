"""A slow and obvious judge of aggregates, over plain lists. It shares no code with the validators.

`judge` sees what a reader sees. `false` knows the truth: every record that was ever written, and
in which order.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from tests.validators.pair_oracle import COMMITTED, HOLDS, UNKNOWN, VIOLATED, Marker, Range

COUNT_ALL, COUNT, SUM, MIN, MAX = "count(*)", "count", "sum", "min", "max"
FUNCTIONS = (COUNT_ALL, COUNT, SUM, MIN, MAX)


class Policy(NamedTuple):
    function: str = SUM
    running: bool = False
    group: bool = False
    """Whether a consumer group tells which inputs are due."""
    moving: bool = False


@dataclass(frozen=True)
class Input:
    partition: int
    offset: int
    group: str | None
    value: str | None
    fate: str
    removed: bool = False


@dataclass(frozen=True)
class Output:
    partition: int
    offset: int
    written: int
    """Its turn among all outputs."""
    group: str | None
    value: str | None
    fate: str
    transaction: int | None = None
    removed: bool = False


@dataclass(frozen=True)
class Pair:
    policy: Policy
    source: tuple[Input, ...]
    sink: tuple[Output, ...]
    source_ranges: tuple[Range, ...]
    sink_ranges: tuple[Range, ...]
    markers: tuple[Marker, ...] = ()
    """Of the sink."""
    offsets: Mapping[int, int] | None = None
    """The consumer group's, by source partition."""

    @property
    def source_is_pending(self) -> bool:
        return any(bounds.hw > bounds.lso for bounds in self.source_ranges)

    @property
    def sink_is_pending(self) -> bool:
        return any(bounds.hw > bounds.lso for bounds in self.sink_ranges)

    @property
    def has_lost_inputs(self) -> bool:
        starts = any(bounds.start for bounds in self.source_ranges)
        return starts or any(record.removed for record in self.source)

    @property
    def has_lost_outputs(self) -> bool:
        """Whether retention has removed outputs. Compaction does no harm."""
        return any(bounds.start for bounds in self.sink_ranges)

    def is_due(self, record: Input) -> bool:
        if not self.policy.group:
            return True
        return record.offset < (self.offsets or {}).get(record.partition, 0)

    def committed_inputs(self) -> list[Input]:
        """Those that read_committed has, and those of them that were removed."""
        return [
            record
            for record in self.source
            if record.fate == COMMITTED and record.offset < self.source_ranges[record.partition].lso
        ]

    def committed_outputs(self) -> list[Output]:
        return [
            record
            for record in self.sink
            if record.fate == COMMITTED
            and not record.removed
            and record.offset < self.sink_ranges[record.partition].lso
        ]


def number(text: str | None) -> Fraction | None:
    """Reads an amount; None if there is none."""
    try:
        return None if text is None else Fraction(text)
    except ValueError:
        return None


def is_exact(text: str | None) -> bool:
    """Whether a text is a number with at most nine decimals, or no number at all."""
    value = number(text)
    return value is None or (value * 10**9).denominator == 1


def aggregate(function: str, values: Sequence[str | None]) -> Fraction | None:
    """Aggregates as SQL does: a null is left out, and nothing has no number but a count."""
    if function == COUNT_ALL:
        return Fraction(len(values))
    if function == COUNT:
        return Fraction(sum(value is not None for value in values))
    numbers = [amount for value in values if (amount := number(value)) is not None]
    if not numbers:
        return None
    if function == SUM:
        return sum(numbers, Fraction(0))
    return min(numbers) if function == MIN else max(numbers)


class Judgement(NamedTuple):
    outcome: str
    rows: Counter[tuple[str, str | None]]
    """How many rows by kind and cause."""


UNSURE = frozenset(
    {"source_removed", "sink_removed", "pending", "movement", "no_number"}
    | {"several_sinks", "several_sources"}
)


def judge(pair: Pair) -> Judgement:
    rows = Counter(_rows(pair))
    causes = {cause for _, cause in rows}
    if causes - UNSURE:
        return Judgement(VIOLATED, rows)
    moves = pair.policy.moving
    is_open = (pair.sink_is_pending or pair.source_is_pending) and not moves
    is_unclear = pair.has_lost_inputs or (moves and not pair.policy.group)
    return Judgement(UNKNOWN if causes or is_open or is_unclear else HOLDS, rows)


def _rows(pair: Pair) -> Iterator[tuple[str, str | None]]:
    inputs = [record for record in pair.committed_inputs() if not record.removed]
    outputs = pair.committed_outputs()
    for output in outputs:
        if output.group is None and output.value is not None:
            yield "group_unknown", None
    for name in _groups(inputs, outputs):
        yield from _GroupCase(pair, name, inputs, outputs).rows()


def _groups(inputs: Sequence[Input], outputs: Sequence[Output]) -> list[str]:
    names = {record.group for record in inputs} | {record.group for record in outputs}
    return sorted(name for name in names if name is not None)


class _GroupCase:
    """What a reader sees of one group."""

    def __init__(
        self, pair: Pair, name: str, inputs: Sequence[Input], outputs: Sequence[Output]
    ) -> None:
        self.pair, self.policy = pair, pair.policy
        self.inputs = sorted(
            (record for record in inputs if record.group == name),
            key=lambda record: (record.partition, record.offset),
        )
        self.outputs = sorted(
            (record for record in outputs if record.group == name),
            key=lambda record: (record.partition, record.offset),
        )
        self.due = sum(map(pair.is_due, self.inputs))
        self.is_spread = len({record.partition for record in self.outputs}) > 1
        several = len({record.partition for record in self.inputs}) > 1
        self.is_mixed = several and self.policy.function != COUNT_ALL
        counts = self.policy.function in (COUNT_ALL, COUNT)
        self.is_unreadable = not counts and any(
            record.value is not None
            and (number(record.value) is None or not is_exact(record.value))
            for record in self.inputs
        )

    def prefix(self, count: int) -> Fraction | None:
        return aggregate(self.policy.function, [record.value for record in self.inputs[:count]])

    def is_prefix(self, count: int, value: str | None) -> bool:
        amount = number(value)
        return amount is not None and amount == self.prefix(count)

    def rows(self) -> Iterator[tuple[str, str | None]]:
        fault = self.fault
        if fault is not None:
            yield fault, self.cause(fault)
        if self.policy.running and self.inputs and self.outputs:
            yield from self.updates(fault)

    @property
    def fault(self) -> str | None:
        if not self.inputs:
            is_gone = self.outputs[-1].value is None and not self.is_spread
            return None if is_gone else "group_unknown"
        if not self.outputs:
            return "group_missing" if self.due else None
        last = self.outputs[-1]
        if last.value is None:
            return "group_missing" if self.due else None
        if self.is_unreadable or self.is_spread or not is_exact(last.value):
            return "wrong_aggregate"
        counts = [len(self.inputs)]
        if self.due < len(self.inputs) and not self.is_mixed:
            counts = list(range(max(self.due, 1), len(self.inputs) + 1))
        right = any(self.is_prefix(count, last.value) for count in counts)
        return None if right else "wrong_aggregate"

    def cause(self, fault: str) -> str | None:
        pair, is_wrong = self.pair, fault == "wrong_aggregate"
        is_gone = bool(self.outputs) and self.outputs[-1].value is None
        if pair.has_lost_inputs:
            return "source_removed"
        if pair.source_is_pending or pair.sink_is_pending:
            return "pending"
        if is_wrong and (self.is_unreadable or not is_exact(self.outputs[-1].value)):
            return "no_number"
        if self.is_spread and (is_wrong or is_gone):
            return "several_sinks"
        if fault == "group_missing" and pair.has_lost_outputs:
            return "sink_removed"
        if is_wrong and self.is_mixed and self.due < len(self.inputs):
            return "several_sources"
        if fault != "group_unknown" and self.policy.moving and not self.policy.group:
            return "movement"
        return None

    def updates(self, fault: str | None) -> Iterator[tuple[str, str | None]]:
        if self.is_spread or self.is_mixed:
            yield "wrong_update", "several_sinks" if self.is_spread else "several_sources"
            return
        reached = 0
        for output in self.outputs:
            counts = range(1, len(self.inputs) + 1)
            of = [count for count in counts if self.is_prefix(count, output.value)]
            if not is_exact(output.value):
                of = []
            if output.value is None:
                of = [0]
            if not of or max(of) < reached:
                yield "wrong_update", self._of_update(output, fault)
            if of:
                reached = max(reached, min(of))

    def _of_update(self, output: Output, fault: str | None) -> str | None:
        if self.pair.has_lost_inputs:
            return "source_removed"
        if self.pair.source_is_pending:
            return "pending"
        if self.is_unreadable or not is_exact(output.value):
            return "no_number"
        return fault if output is self.outputs[-1] else None


def false(pair: Pair, outcome: str) -> str | None:
    """Why this verdict is false; None where the truth allows it."""
    wrong = set(_breaks(pair))
    if outcome == VIOLATED and not wrong:
        return "false VIOLATED: nothing is wrong"
    if outcome == HOLDS and wrong - {"unclear"}:
        return f"false HOLDS: {', '.join(sorted(wrong - {'unclear'}))}"
    return None


def _breaks(pair: Pair) -> Iterator[str]:
    """What is wrong for certain. Removed inputs count: the program had read them."""
    inputs, outputs = pair.committed_inputs(), pair.committed_outputs()
    if any(record.group is None and record.value is not None for record in outputs):
        yield "an output of no group"
    for name in _groups(inputs, outputs):
        of = [record for record in inputs if record.group == name]
        mine = sorted(
            (record for record in outputs if record.group == name),
            key=lambda record: record.written,
        )
        yield from _breaks_of(pair, of, mine)


def _breaks_of(pair: Pair, inputs: list[Input], outputs: list[Output]) -> Iterator[str]:
    function, due = pair.policy.function, [record for record in inputs if pair.is_due(record)]
    if not inputs:
        if outputs[-1].value is not None:
            yield "a group without inputs"
        return
    may_be_removed = pair.has_lost_outputs and not outputs
    if due and not may_be_removed and (not outputs or outputs[-1].value is None):
        yield "a group without an output"
    numbers = [record.value for record in inputs if function in (SUM, MIN, MAX)]
    if any(value is not None and number(value) is None for value in numbers):
        # Whoever adds what is no number may come to anything.
        yield "unclear"
        return
    lines = [
        [
            record
            for record in sorted(inputs, key=lambda each: each.offset)
            if record.partition == partition
        ]
        for partition in sorted({record.partition for record in inputs})
    ]
    every = list(itertools.product(*(range(len(line) + 1) for line in lines)))
    totals = {
        counts: aggregate(
            function,
            [
                record.value
                for line, count in zip(lines, counts, strict=True)
                for record in line[:count]
            ],
        )
        for counts in every
        if any(counts)
    }
    least = [sum(map(pair.is_due, line)) for line in lines]
    last = outputs[-1] if outputs else None
    if last is not None and last.value is not None:
        right = [
            counts
            for counts, total in totals.items()
            if all(map(int.__ge__, counts, least)) and total == number(last.value)
        ]
        if not right or number(last.value) is None:
            yield "a wrong aggregate"
    if pair.policy.running:
        reached = [tuple(0 for _ in lines)]
        for output in outputs:
            if output.value is None:
                after = [counts for counts in reached if not any(counts)]
            else:
                after = [
                    counts
                    for counts, total in totals.items()
                    if total == number(output.value)
                    and total is not None
                    and any(all(map(int.__le__, before, counts)) for before in reached)
                ]
            if not after:
                yield "a wrong update"
                return
            reached = after
