"""Hostile aggregates: a source, a program that keeps a number for each group and errs, its sink,
and what was removed afterwards.

As in tests/validators/hostile_pairs.py, a story is a policy and a list of operations, and any part
of the list is a story too.

    python -m tests.validators.hostile_groups --pairs 2000 --seed 1     judges with Spark
    python -m tests.validators.hostile_groups --pairs 20000 --rules     checks the oracle alone
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from tests.validators.group_ledger import batch_of, ledger_of, rows_of
from tests.validators.group_oracle import (
    FUNCTIONS,
    Input,
    Output,
    Pair,
    Policy,
    aggregate,
    false,
    judge,
)
from tests.validators.hostile_pairs import Op
from tests.validators.pair_ledger import Row
from tests.validators.pair_oracle import ABORTED, COMMITTED, OPEN, Marker, Range
from topicproof.backend.judging.spark_tuning import tune
from topicproof.backend.services.keeper import services
from topicproof.backend.services.spark_session import connect
from topicproof.backend.settings import read_settings
from topicproof.validators.expectation import judge_rows, merge
from topicproof.validators.finding import Guarantee, Outcome
from topicproof.validators.judge import judge as judge_ledger

log = logging.getLogger(__name__)

AMOUNTS = ("1", "2", "3", "0", "-1", "2.5")
ODD_AMOUNTS = (None, None, "x", "1e-12")
STEPS = ("skip", "twice", "of_aborted", "of_pending", "restore")
"""What goes wrong while the program reads."""
WRITES = (
    *("drop", "repeat", "old", "wrong", "tombstone", "end", "phantom", "nameless"),
    *("spread", "text", "gone"),
)
"""What goes wrong when it writes."""
ENDS = ("plain", COMMITTED, COMMITTED, COMMITTED, "retried", ABORTED, OPEN)
REMOVALS = ("source_start", "source_hole", "sink_start", "sink_hole")


class Story(NamedTuple):
    policy: Policy
    sources: int
    sinks: int
    ops: tuple[Op, ...]


@dataclass
class _Update:
    """A record that the program means to write."""

    group: str | None
    value: str | None
    home: int
    of: tuple[int, int] | None
    """The place of the input behind it."""


def draw_policy(chance: random.Random) -> Policy:
    return Policy(
        chance.choice(FUNCTIONS),
        chance.random() < 0.5,
        chance.random() < 0.5,
        chance.random() < 0.3,
    )


def draw(count: int, number: int, policy: Policy | None = None) -> list[Story]:
    """So many stories, the same ones for the same number."""
    chance = random.Random(number)
    return [_draw_story(chance, policy or draw_policy(chance)) for _ in range(count)]


def _draw_story(chance: random.Random, policy: Policy) -> Story:
    def ops(likely: float, kinds: Sequence[str], most: int, b: int = 11, c: int = 11) -> list[Op]:
        count = chance.randint(1, most) if chance.random() < likely else 0
        return [
            Op(
                chance.choice(kinds),
                chance.randint(0, 11),
                chance.randint(0, b),
                chance.randint(0, c),
            )
            for _ in range(count)
        ]

    every = (
        ops(0.98, ("input",), 9, b=2, c=len(AMOUNTS) - 1),
        ops(0.2, ("fate",), 2, b=1),
        ops(0.15, ("amount",), 1, b=len(ODD_AMOUNTS) - 1),
        ops(0.1, ("keyless",), 1),
        ops(0.15, ("mixed",), 1),
        ops(0.2, ("stop",), 1),
        ops(0.4, STEPS, 2),
        ops(0.5, WRITES, 2),
        ops(0.5, ("chunk",), 3, b=len(ENDS) - 1),
        ops(0.15, REMOVALS, 1, b=5),
        ops(0.3, ("offset",), 1, b=3),
    )
    sources, sinks = chance.randint(1, 2), chance.randint(1, 2)
    return Story(policy, sources, sinks, tuple(itertools.chain.from_iterable(every)))


def simulate(story: Story) -> Pair:
    return _Program(story).play()


class _Program:
    """Plays a story."""

    def __init__(self, story: Story) -> None:
        self.story, self.policy = story, story.policy
        self.inputs: list[Input] = []
        self.ends = [0] * story.sources
        self.lsos: dict[int, int] = {}
        self.plan: list[_Update] = []
        self.outputs: list[Output] = []
        self.markers: list[Marker] = []
        self.sink_ends = [0] * story.sinks
        self.sink_lsos: dict[int, int] = {}
        self.unwritten: dict[int, int] = {}
        """By source partition, the first input whose update is not committed."""

    def ops(self, *kinds: str) -> Iterator[Op]:
        return (op for op in self.story.ops if op.kind in kinds)

    def play(self) -> Pair:
        self.fill()
        stops = {op.a % self.story.sources: op.b for op in self.ops("stop")}
        self.process(stops)
        for op in self.ops(*WRITES):
            self.err(op)
        for op in self.ops("chunk"):
            self.write(op.a % 4 + 1, ENDS[op.b])
        self.write(len(self.plan), COMMITTED)
        starts, sink_starts = [0] * self.story.sources, [0] * self.story.sinks
        for op in self.ops(*REMOVALS):
            self.remove(op, starts, sink_starts)
        source = (
            replace(record, removed=record.removed or record.offset < starts[record.partition])
            for record in self.inputs
        )
        sink = (
            replace(record, removed=record.removed or record.offset < sink_starts[record.partition])
            for record in self.outputs
        )
        ranges, sink_ranges = (
            tuple(Range(start[p], lsos.get(p, end), end) for p, end in enumerate(ends))
            for start, lsos, ends in (
                (starts, self.lsos, self.ends),
                (sink_starts, self.sink_lsos, self.sink_ends),
            )
        )
        offsets = self.group(stops) if self.policy.group else None
        return Pair(
            self.policy,
            tuple(source),
            tuple(sink),
            ranges,
            sink_ranges,
            tuple(self.markers),
            offsets,
        )

    def fill(self) -> None:
        input_ops = list(self.ops("input"))
        fates = {op.a % max(len(input_ops), 1): (ABORTED, OPEN)[op.b] for op in self.ops("fate")}
        amounts = {op.a % max(len(input_ops), 1): ODD_AMOUNTS[op.b] for op in self.ops("amount")}
        keyless = {op.a % max(len(input_ops), 1) for op in self.ops("keyless")}
        is_mixed = any(self.ops("mixed"))
        for number, op in enumerate(input_ops):
            partition = (op.a if is_mixed else op.b) % self.story.sources
            fate = fates.get(number, COMMITTED)
            group = None if number in keyless else "abc"[op.b]
            value = amounts.get(number, AMOUNTS[op.c])
            self.inputs.append(Input(partition, self.ends[partition], group, value, fate))
            if fate == OPEN:
                self.lsos.setdefault(partition, self.ends[partition])
            self.ends[partition] += 2 if fate == ABORTED else 1

    def is_read(self, record: Input, stops: Mapping[int, int]) -> bool:
        is_stable = record.offset < self.lsos.get(record.partition, record.offset + 1)
        return (
            record.fate == COMMITTED
            and is_stable
            and record.offset < stops.get(record.partition, 99)
        )

    def process(self, stops: Mapping[int, int]) -> None:
        """Reads the inputs in the order of writing, and plans an update for each."""
        steps: list[Input] = [record for record in self.inputs if self.is_read(record, stops)]
        restores: dict[int, int] = {}
        for op in self.ops(*STEPS):
            at = op.a % (len(steps) + 1)
            extra = {
                "of_aborted": [record for record in self.inputs if record.fate == ABORTED],
                "of_pending": [record for record in self.inputs if record.fate == OPEN],
            }
            if op.kind == "restore":
                restores[at] = op.b % 3 + 1
            elif op.kind in extra:
                steps[at:at] = extra[op.kind][:1]
            elif at < len(steps):
                steps[at : at + 1] = [steps[at]] * (2 if op.kind == "twice" else 0)
        counted: dict[str, list[str | None]] = {}
        for number, record in enumerate(steps):
            if record.group is None:
                continue
            values = counted.setdefault(record.group, [])
            if number in restores:
                # The store is older than the sink.
                del values[-restores[number] :]
            values.append(record.value)
            total = aggregate(self.policy.function, values)
            if total is None:
                continue
            text = str(int(total)) if total.denominator == 1 else str(float(total))
            self.plan.append(
                _Update(
                    record.group, text, self.home(record.group), (record.partition, record.offset)
                )
            )

    def home(self, group: str) -> int:
        return ord(group) % self.story.sinks

    def err(self, op: Op) -> None:
        plan, to = self.plan, op.b % (len(self.plan) + 1)
        if op.kind == "phantom":
            plan.insert(to, _Update("z", "1", self.home("z"), None))
        elif op.kind == "gone":
            plan.insert(to, _Update("y", None, self.home("y"), None))
        elif op.kind == "nameless":
            value = None if op.c % 2 else "1"
            plan.insert(to, _Update(None, value, op.c % self.story.sinks, None))
        if not plan:
            return
        record = plan[op.a % len(plan)]
        match op.kind:
            case "drop":
                plan.remove(record)
            case "repeat":
                plan.insert(to, replace(record, of=None))
            case "old":
                plan.append(replace(record, of=None))
            case "wrong":
                plan[op.a % len(plan)] = replace(record, value="7")
            case "tombstone":
                plan.insert(to, replace(record, value=None, of=None))
            case "end":
                plan.append(replace(record, value=None, of=None))
            case "spread":
                plan[op.a % len(plan)] = replace(record, home=op.c % self.story.sinks)
            case "text":
                text = ("x", "1e-12", "07.0", "+1")[op.c % 4]
                plan[op.a % len(plan)] = replace(record, value=text)

    def write(self, size: int, how: str) -> None:
        """Writes the next updates of the plan in one transaction, or in none."""
        updates, self.plan = self.plan[:size], self.plan[size:]
        transaction = None if how == "plain" else len(self.outputs)
        fate = {"plain": COMMITTED, "retried": ABORTED}.get(how, how)
        for update in updates:
            offset = self.sink_ends[update.home]
            if fate == OPEN:
                self.sink_lsos.setdefault(update.home, offset)
            self.sink_ends[update.home] += 1
            turn = len(self.outputs)
            self.outputs.append(
                Output(update.home, offset, turn, update.group, update.value, fate, transaction)
            )
            if how in (ABORTED, OPEN) and update.of is not None:
                partition, place = update.of
                first = self.unwritten.get(partition, place)
                self.unwritten[partition] = min(first, place)
        if how == "retried":
            self.plan = updates + self.plan
        if transaction is not None and fate != OPEN:
            for partition in sorted({update.home for update in updates}):
                end = self.sink_ends[partition]
                self.markers.append(Marker(partition, end, transaction, fate == COMMITTED))
                self.sink_ends[partition] += 1

    def remove(self, op: Op, starts: list[int], sink_starts: list[int]) -> None:
        source, sink = op.a % self.story.sources, op.a % self.story.sinks
        if op.kind == "source_start":
            starts[source] = min(op.b, self.lsos.get(source, self.ends[source]))
        elif op.kind == "sink_start":
            sink_starts[sink] = min(op.b, self.sink_lsos.get(sink, self.sink_ends[sink]))
        elif op.kind == "source_hole" and self.inputs:
            at = op.a % len(self.inputs)
            self.inputs[at] = replace(self.inputs[at], removed=True)
        elif op.kind == "sink_hole":
            # Compaction leaves the last output of each group in a partition.
            for at, record in enumerate(self.outputs):
                lso = self.sink_lsos.get(record.partition, self.sink_ends[record.partition])
                is_superseded = any(
                    later.fate == COMMITTED
                    and (later.partition, later.group) == (record.partition, record.group)
                    and record.offset < later.offset < lso
                    for later in self.outputs
                )
                if is_superseded and record.group is not None:
                    self.outputs[at] = replace(record, removed=True)

    def group(self, stops: Mapping[int, int]) -> dict[int, int]:
        """Right offsets, unless an operation says otherwise."""
        offsets = {}
        for partition, end in enumerate(self.ends):
            read = min(self.lsos.get(partition, end), stops.get(partition, end))
            offsets[partition] = min(read, self.unwritten.get(partition, read))
        for op in self.ops("offset"):
            partition = op.a % self.story.sources
            match op.b:
                case 0:
                    del offsets[partition]
                case 1:
                    offsets[partition] = max(0, offsets[partition] - 1 - op.c % 3)
                case 2:
                    offsets[partition] = min(self.ends[partition], offsets[partition] + 1)
        return offsets


def minimised(story: Story, fails: Callable[[Sequence[Story]], list[bool]]) -> Story:
    """The story without all that it fails without. `fails` judges many stories at once."""
    while True:
        shorter = [
            story._replace(ops=story.ops[:at] + story.ops[at + 1 :]) for at in range(len(story.ops))
        ]
        plainer = (
            story.policy._replace(running=False),
            story.policy._replace(group=False),
            story.policy._replace(moving=False),
        )
        shorter += [story._replace(policy=each) for each in plainer if each != story.policy]
        smaller = next(itertools.compress(shorter, fails(shorter)), None)
        if smaller is None:
            return story
        story = smaller


def describe(story: Story) -> str:
    """A pair in a few lines, for a person."""
    pair = simulate(story)
    lines = [f"{story.policy}", f"  {' '.join(f'{op.kind}{op[1:]}' for op in story.ops)}"]
    for name, records in (("input", pair.source), ("output", pair.sink)):
        lines += [
            f"  {name} {record.partition}/{record.offset} {record.group}={record.value}"
            f" {record.fate}{' REMOVED' if record.removed else ''}"
            for record in records
        ]
    for name, ranges in (("source", pair.source_ranges), ("sink", pair.sink_ranges)):
        ends = " ".join(f"{each.start}..{each.lso}/{each.hw}" for each in ranges)
        lines.append(f"  {name} {ends}")
    return "\n".join([*lines, f"  group {pair.offsets}  oracle {judge(pair)}"])


def grouped(stories: Iterable[Story]) -> list[list[Story]]:
    """The stories in groups that share a ledger; the largest first."""
    groups: dict[tuple[object, ...], list[Story]] = {}
    for story in stories:
        groups.setdefault(batch_of(simulate(story)), []).append(story)
    return sorted(groups.values(), key=len, reverse=True)


class Difference(NamedTuple):
    """A verdict of the validators that the oracle or the truth contradicts."""

    story: Story
    why: str
    text: str


def differences(spark: SparkSession, folder: Path, stories: Sequence[Story]) -> list[Difference]:
    """What differs among stories of one group, by the rows of evidence."""
    pairs = [simulate(story) for story in stories]
    return [
        Difference(story, why, f"{describe(story)}\n  rows {dict(rows)}")
        for story, pair, rows in zip(stories, pairs, rows_of(spark, folder, pairs), strict=True)
        if (why := _difference(pair, rows))
    ]


def _difference(pair: Pair, rows: Counter[Row]) -> str | None:
    slow = judge(pair)
    if rows != slow.rows:
        return f"rows {dict(rows)}, not {dict(slow.rows)}"
    outcomes = [judge_rows(kind, {cause: 1}, Guarantee.EXACTLY_ONCE) for kind, cause in rows]
    by_rows = merge(outcomes or [Outcome.HOLDS])
    # What is unknown of a whole topic has no row.
    verdict = slow.outcome if by_rows is Outcome.HOLDS else by_rows
    return false(pair, verdict) or (
        f"{verdict}, not {slow.outcome}" if verdict != slow.outcome else None
    )


def difference_alone(spark: SparkSession, folder: Path, story: Story) -> Difference | None:
    """What differs when a pair is judged alone, by its report. A kind without anything to look at
    is no difference."""
    pair = simulate(story)
    report = judge_ledger(ledger_of(spark, folder, [pair]), Guarantee.EXACTLY_ONCE)
    slow = judge(pair)
    is_empty = "Nothing to look at" in " ".join(each.why for each in report.findings)
    if report.verdict == "UNKNOWN" and slow.outcome == "HOLDS" and is_empty:
        return None
    why = false(pair, report.verdict) or (
        f"{report.verdict}, not {slow.outcome}" if report.verdict != slow.outcome else None
    )
    return Difference(story, why, f"{describe(story)}\n  report {report.why}") if why else None


def _rules(stories: Sequence[Story]) -> int:
    """Compares the oracle with the truth."""
    wrong: dict[str, list[Story]] = {}
    outcomes: Counter[str] = Counter()
    for story in stories:
        pair = simulate(story)
        outcomes[judge(pair).outcome] += 1
        why = false(pair, judge(pair).outcome)
        if why:
            wrong.setdefault(why, []).append(story)
    for why, some in wrong.items():

        def fails(shorter: Sequence[Story], why: str = why) -> list[bool]:
            pairs = [simulate(story) for story in shorter]
            return [false(pair, judge(pair).outcome) == why for pair in pairs]

        log.info("%s: %d times\n%s", why, len(some), describe(minimised(some[0], fails)))
    log.info("verdicts: %s", dict(outcomes))
    return len(wrong)


def _judged(spark: SparkSession, folder: Path, arguments: argparse.Namespace) -> int:
    began, count, wrong = time.monotonic(), 0, Counter[str]()
    reasons: Counter[str] = Counter()
    number = arguments.seed
    while count < arguments.pairs:
        number += 1
        groups = grouped(draw(arguments.batch, number, draw_policy(random.Random(number))))
        for stories in groups[: arguments.ledgers]:
            differ = differences(spark, folder, stories)
            count += len(stories)
            for story in stories:
                slow = judge(simulate(story))
                reasons[slow.outcome] += 1
                reasons.update(f"{kind} by {cause}" for kind, cause in slow.rows)
            for each in differ:
                wrong[each.why] += 1
                if wrong[each.why] == 1:
                    log.info("%s\n%s", each.why, each.text)
        took = time.monotonic() - began
        log.info("%d pairs, %.3f s a pair, %d wrong", count, took / count, sum(wrong.values()))
    for story in draw(arguments.singly, arguments.seed):
        alone = difference_alone(spark, folder, story)
        if alone:
            wrong[alone.why] += 1
            log.info("alone: %s\n%s", alone.why, alone.text)
    log.info("verdicts and reasons: %s", dict(reasons.most_common()))
    log.info("wrong: %s", dict(wrong))
    return min(sum(wrong.values()), 1)


def main() -> int:
    options = argparse.ArgumentParser(description="Judge hostile aggregates.")
    options.add_argument("--pairs", type=int, default=2_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--batch", type=int, default=500, help="pairs drawn of one policy")
    options.add_argument("--ledgers", type=int, default=5, help="ledgers of one policy")
    options.add_argument("--singly", type=int, default=0, help="how many are also judged alone")
    options.add_argument("--rules", action="store_true", help="only the oracle, without Spark")
    arguments = options.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    if arguments.rules:
        return min(_rules(draw(arguments.pairs, arguments.seed)), 1)
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        with services(read_settings(home=folder), kafka=False) as up:
            spark = connect(up.spark_remote)
            tune(spark, offsets=0)
            return _judged(spark, folder, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
