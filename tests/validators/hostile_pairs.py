"""Hostile pairs of topics: a source, a pipeline with mistakes, a sink, and what was removed
afterwards.

A story is a policy and a list of operations. `simulate` plays them one after another and gives a
pair, which also knows its truth. Any part of the list is a story too, so that a pair is minimised
by leaving operations out.

    python -m tests.validators.hostile_pairs --pairs 20000 --seed 1     judges with Spark
    python -m tests.validators.hostile_pairs --pairs 20000 --rules   checks the oracle's rules alone
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from tests.validators.pair_ledger import batch_of, is_told, report_of, rows_of, verdict_of
from tests.validators.pair_oracle import (
    ABORTED,
    AMENDMENTS,
    AT_LEAST,
    BY_IDENTITY,
    BY_PLACE,
    COMMITTED,
    COUNTED,
    EXACTLY,
    FILTERED,
    HEADER,
    KEY,
    LETTERS,
    LINEAGE,
    MANY,
    NO_LETTERS,
    NO_ORDER,
    ONE_TO_ONE,
    OPEN,
    PER_KEY,
    PER_PARTITION,
    SOUND,
    VALUE,
    Input,
    Marker,
    Pair,
    Place,
    Policy,
    Range,
    Record,
    Truth,
    judge,
)
from topicproof.backend.judging.spark_tuning import tune
from topicproof.backend.services.keeper import services
from topicproof.backend.services.spark_session import connect
from topicproof.backend.settings import read_settings

log = logging.getLogger(__name__)


class Op(NamedTuple):
    """One operation; what its numbers mean depends on its kind."""

    kind: str
    a: int = 0
    b: int = 0
    c: int = 0


class Story(NamedTuple):
    policy: Policy
    sources: int
    sinks: int
    ops: tuple[Op, ...]


@dataclass
class _Output:
    """A record that the pipeline means to write."""

    origin: Place | None
    identity: str | None
    lineage: Place | None
    key: str | None
    value: str
    home: int


MISTAKES = (
    *(
        "duplicate",
        "lose",
        "swap",
        "phantom",
        "extra",
        "corrupt",
        "stray_aborted",
        "stray_pending",
        "beside",
        "unfiltered",
    ),
    *("spread", "restamp", "alike"),
)
READINGS = ("shuffled", "blocks", "instances", "earlier_source", "earlier_sink")
"""What differs in the whole plan: the order of reading, how many instances process it, and topics
that were deleted and made again."""
REMOVALS = ("source_start", "sink_start", "source_hole", "sink_hole")
LETTER_REMOVALS = ("letter_start", "letter_hole")
LETTER_WORDS = (
    *("aside", "aside", "aside", "aside", "both", "stray"),
    *("nameless", "elsewhere", "of_aborted", "of_pending", "again", "lost"),
)
"""What becomes of an input that is put aside. `aside` is right; `lost` has no dead letter in the
end."""
LETTER_ENDS = ("plain", "plain", "plain", COMMITTED, "retried", ABORTED, OPEN)
"""How the transaction of a dead letter ends."""
MISSING = ("unnamed_input", "unnamed_output", "unnamed_inputs", "unnamed_outputs", "wrong_topic")


def draw(count: int, number: int, policy: Policy | None = None) -> list[Story]:
    """So many stories, the same ones for the same number, each of a policy of its own unless one is
    given."""
    chance = random.Random(number)
    return [draw_story(chance, policy or draw_policy(chance)) for _ in range(count)]


def draw_policy(chance: random.Random) -> Policy:
    policy = Policy(
        chance.choice((LINEAGE, KEY, VALUE, HEADER)),
        chance.choice((ONE_TO_ONE, ONE_TO_ONE, FILTERED, COUNTED, MANY)),
        chance.choice((PER_PARTITION, PER_KEY, NO_ORDER)),
        chance.choice((EXACTLY, EXACTLY, EXACTLY, AT_LEAST)),
        chance.random() < 0.5,
        chance.random() < 0.5,
        chance.random() < 0.3,
    )
    # Values are compared where an input has one output, and by value there is nothing else to
    # compare.
    names = (NO_LETTERS, BY_PLACE, *((BY_IDENTITY,) if policy.match != LINEAGE else ()))
    letters = chance.choice(names)
    values = policy.values and policy.expect != MANY and policy.match != VALUE
    return policy._replace(values=values, letters=letters)


def draw_retained(count: int, number: int) -> list[Story]:
    """So many stories in which only what is left is judged, and in which most topics have lost
    their first records. By key, an input has one output at most."""
    chance = random.Random(number)
    stories = []
    for _ in range(count):
        policy = draw_policy(chance)._replace(
            retained=True, group=False, moving=False, letters=NO_LETTERS
        )
        if policy.match != LINEAGE and policy.expect == MANY:
            policy = policy._replace(expect=ONE_TO_ONE)
        story = draw_story(chance, policy)
        kinds = [kind for kind in ("source_start", "sink_start") if chance.random() < 0.6]
        starts = [Op(kind, chance.randint(0, 2), chance.randint(0, 6)) for kind in kinds * 2]
        stories.append(story._replace(ops=(*story.ops, *starts)))
    return stories


def draw_story(chance: random.Random, policy: Policy) -> Story:
    """A story of a policy. Each kind of trouble is left out of most of them: one alone shows
    most."""

    def ops(
        likely: float, kinds: Sequence[str], most: int, a: int = 11, b: int = 11, c: int = 9
    ) -> list[Op]:
        count = chance.randint(1, most) if chance.random() < likely else 0
        limits = (a, b, c)
        return [
            Op(chance.choice(kinds), *(chance.randint(0, limit) for limit in limits))
            for _ in range(count)
        ]

    every: tuple[list[Op], ...] = (
        ops(0.95, ("input",), 12, a=2, b=3, c=8),
        ops(0.15, ("input",), 1, a=2, b=3, c=9),
        ops(0.1, ("input",), 3, a=2, b=3, c=11),
        ops(0.2, ("twin",), 3),
        ops(0.5, ("count",), 4, b=3),
        ops(0.2, ("stop",), 1, a=2),
        ops(0.6, MISTAKES, 2),
        ops(0.6, ("chunk",), 4, a=5, b=7),
        ops(0.15, MISSING, 1),
        ops(0.25, REMOVALS, 2),
        ops(0.4, ("offset",), 2, a=2, b=6, c=3),
        ops(0.25, READINGS, 1),
    )
    if policy.letters != NO_LETTERS:
        of_letters = (
            ops(0.8, ("letter",), 3, b=len(LETTER_ENDS) - 1, c=len(LETTER_WORDS) - 1),
            ops(0.1, LETTER_REMOVALS, 1, b=3),
        )
        every = (*every, *of_letters)
    return Story(
        policy,
        chance.randint(1, 3),
        chance.randint(1, 3),
        tuple(itertools.chain.from_iterable(every)),
    )


def simulate(story: Story) -> Pair:
    return _Simulator(story).play()


class _Simulator:
    """Plays a story: the source is filled, the pipeline plans its outputs, errs and writes, and
    records are removed."""

    def __init__(self, story: Story) -> None:
        self.story, self.policy = story, story.policy
        self.inputs: list[Input] = []
        self.ends = [0] * story.sources
        self.lsos: dict[int, int] = {}
        self.stops: dict[int, int] = {}
        self.plan: list[_Output] = []
        self.records: list[Record] = []
        self.markers: list[Marker] = []
        self.sink_ends = [0] * story.sinks
        self.sink_lsos: dict[int, int] = {}
        self.topic = True
        self.letter_plan: list[tuple[Record, str]] = []
        self.letters: list[Record] = []
        self.letter_end = 0
        self.letter_lso: int | None = None

    def ops(self, *kinds: str) -> Iterator[Op]:
        return (op for op in self.story.ops if op.kind in kinds)

    def play(self) -> Pair:
        for op in self.ops("input"):
            self.add_input(op)
        for op in self.ops("twin", "count"):
            self.change_input(op)
        for op in self.ops("stop"):
            self.stops[op.a % self.story.sources] = op.b
        alike, spread = any(self.ops("alike")), any(self.ops("spread"))
        self.plan = [
            self.output(one, index, alike, spread)
            for one in self.inputs
            if self.reads(one)
            for index in range(0 if self.skips(one) else one.expected)
        ]
        for op in self.ops(*READINGS):
            self.read_otherwise(op)
        for op in self.ops("letter") if self.policy.letters != NO_LETTERS else ():
            self.put_aside(op)
        for op in self.ops(*MISTAKES):
            self.err(op)
        for op in self.ops("chunk"):
            self.write(
                op.a + 1,
                ("plain", COMMITTED, COMMITTED, COMMITTED, "retried", "retried", ABORTED, OPEN)[
                    op.b
                ],
            )
        self.write(len(self.plan), COMMITTED)
        for letter, how in self.letter_plan:
            self.write_letter(letter, how)
        for op in self.ops(*MISSING):
            self.forget(op)
        starts, sink_starts = [0] * self.story.sources, [0] * self.story.sinks
        letter_start = self.remove_letters()
        for op in self.ops(*REMOVALS):
            self.remove(op, starts, sink_starts)
        source = tuple(
            replace(one, removed=one.removed or one.offset < starts[one.partition])
            for one in self.inputs
        )
        sink = tuple(
            replace(
                one,
                removed=one.removed or one.offset < sink_starts[one.partition],
                topic=self.topic,
            )
            for one in self.records
        )
        return Pair(
            self.policy,
            source,
            sink,
            tuple(Range(starts[p], self.lsos.get(p, end), end) for p, end in enumerate(self.ends)),
            tuple(
                Range(sink_starts[p], self.sink_lsos.get(p, end), end)
                for p, end in enumerate(self.sink_ends)
            ),
            tuple(self.markers),
            self.group() if self.policy.group else None,
            tuple(
                replace(letter, removed=letter.removed or letter.offset < letter_start)
                for letter in self.letters
            ),
            Range(
                letter_start,
                self.letter_end if self.letter_lso is None else self.letter_lso,
                self.letter_end,
            ),
        )

    def add_input(self, op: Op) -> None:
        """The numbers: partition, key, and how its transaction ended."""
        partition, number = op.a % self.story.sources, len(self.inputs)
        fate = {8: ABORTED, 9: OPEN}.get(op.c, COMMITTED)
        identity = f"i{number}"
        key = identity if self.policy.match == KEY else (None, "a", "b", "c")[op.b]
        value = identity if self.policy.match == VALUE else f"v{number}"
        expected = 2 if self.policy.expect == MANY else 1
        self.inputs.append(
            Input(partition, self.ends[partition], identity, key, value, fate, expected)
        )
        if fate == OPEN:
            self.lsos.setdefault(partition, self.ends[partition])
        self.ends[partition] += 2 if op.c in (7, 8) else 1

    def change_input(self, op: Op) -> None:
        if not self.inputs:
            return
        one = self.inputs[op.a % len(self.inputs)]
        if op.kind == "count":
            if self.policy.expect in (COUNTED, MANY):
                most = 1 if self.policy.expect == COUNTED else 3
                self.inputs[op.a % len(self.inputs)] = replace(one, expected=min(op.b, most))
            return
        twin = self.inputs[op.b % len(self.inputs)]
        key = twin.key if self.policy.match == KEY else one.key
        value = twin.value if self.policy.match == VALUE else one.value
        self.inputs[op.a % len(self.inputs)] = replace(
            one, identity=twin.identity, key=key, value=value
        )

    def reads(self, one: Input) -> bool:
        if one.fate != COMMITTED or one.offset >= self.lsos.get(
            one.partition, self.ends[one.partition]
        ):
            return False
        return one.offset < self.stops.get(one.partition, self.ends[one.partition])

    def skips(self, one: Input) -> bool:
        """Whether the pipeline filters it out, where no count says so."""
        number = self.inputs.index(one)
        filtered = (op.b == 0 and op.a % len(self.inputs) == number for op in self.ops("count"))
        return self.policy.expect == FILTERED and any(filtered)

    def output(self, one: Input, index: int, alike: bool = False, spread: bool = False) -> _Output:
        value = (
            one.value
            if alike or index == 0 or self.policy.match == VALUE
            else f"{one.value}#{index}"
        )
        # A key's outputs go to one partition, as Kafka's own partitioner has it; without keys a
        # partition's do.
        by_key = sum(one.key.encode()) if one.key is not None else one.partition
        home = (self.inputs.index(one) if spread else by_key) % self.story.sinks
        place = one.partition, one.offset, index
        return _Output(place, one.identity, place, one.key, value, home)

    def read_otherwise(self, op: Op) -> None:
        """Changes the plan as a whole. By lineage a topic that was made again cannot be told from
        the first one without Kafka's topic ids, which a pair does not have."""
        plan = self.plan
        if op.kind == "shuffled":
            random.Random(op.a * 12 + op.b).shuffle(plan)
        elif op.kind == "blocks":
            # A few records of each source partition in turn, not in the order of writing.
            size, turns = op.a % 4 + 1, Counter[int]()
            blocks: dict[tuple[int, int], list[_Output]] = {}
            for one in plan:
                partition = one.origin[0] if one.origin else 0
                blocks.setdefault((turns[partition] // size, -partition), []).append(one)
                turns[partition] += 1
            self.plan = [one for block in sorted(blocks) for one in blocks[block]]
        elif op.kind == "instances":
            # Side by side, or one long after the other; with another time stamp where values may
            # differ.
            differ = self.policy.match != VALUE and not self.policy.values
            differ = differ and not self.tells_by_bytes()
            again = [replace(one, value=f"{one.value}'" if differ else one.value) for one in plan]
            self.plan = (
                [one for both in zip(plan, again, strict=True) for one in both]
                if op.a % 2
                else plan + again
            )
        elif op.kind == "earlier_source" and self.policy.match != LINEAGE:
            for at in range(op.a % 3 + 1):
                name = f"e{at}"
                key, value = (name if self.policy.match == by else f"z{at}" for by in (KEY, VALUE))
                home = at % self.story.sinks
                plan.insert(0, _Output(None, name, None, key, value, home))
        elif op.kind == "earlier_sink":
            del plan[: op.a % 4 + 1]

    def err(self, op: Op) -> None:
        plan = self.plan
        one = plan[op.a % len(plan)] if plan else None
        to = op.b % (len(plan) + 1)
        if op.kind == "phantom":
            name = f"x{op.a}"
            key, value = (name if self.policy.match == by else f"z{op.a}" for by in (KEY, VALUE))
            lineage = None if op.c % 2 else (0, self.ends[0] + op.c, 0)
            plan.insert(to, _Output(None, name, lineage, key, value, op.c % self.story.sinks))
        elif op.kind in ("stray_aborted", "stray_pending"):
            waits = [
                given.offset >= self.lsos.get(given.partition, given.offset + 1)
                for given in self.inputs
            ]
            aborted = [
                given.fate == ABORTED and not wait
                for given, wait in zip(self.inputs, waits, strict=True)
            ]
            wanted = aborted if op.kind == "stray_aborted" else waits
            strays = [
                given for given, is_wanted in zip(self.inputs, wanted, strict=True) if is_wanted
            ]
            if strays:
                plan.insert(to, self.output(strays[op.a % len(strays)], 0))
        elif op.kind == "unfiltered":
            filtered = [given for given in self.inputs if self.reads(given) and not given.expected]
            if filtered:
                plan.insert(to, self.output(filtered[op.a % len(filtered)], 0))
        elif one is None:
            return
        elif op.kind == "duplicate":
            plan.insert(to, replace(one, home=one.home if op.c < 7 else op.c % self.story.sinks))
        elif op.kind == "restamp":
            if not self.policy.values and self.policy.match != VALUE and not self.tells_by_bytes():
                plan.insert(to, replace(one, value=f"{one.value}'"))
        elif op.kind == "lose":
            plan.remove(one)
        elif op.kind == "swap":
            other = next((each for each in plan if each is not one and self.alike(one, each)), one)
            here, there = (
                next(at for at, each in enumerate(plan) if each is found) for found in (one, other)
            )
            plan[here], plan[there] = other, one
        elif op.kind == "extra" and one.origin:
            beyond = (*one.origin[:2], max(each.origin[2] for each in plan if each.origin) + 1)
            # Where only bytes tell outputs apart, one too many is like the last one.
            mine = [each for each in plan if each.origin and each.origin[:2] == one.origin[:2]]
            like = max(mine, key=lambda each: each.origin or ()) if self.tells_by_bytes() else one
            plan.insert(to, replace(like, origin=beyond, lineage=beyond))
        elif op.kind == "corrupt" and self.policy.match != VALUE and not self.tells_by_bytes():
            one.value += "!"
        elif op.kind == "beside":
            twins = [
                each for each in plan if each.identity == one.identity and each.origin != one.origin
            ]
            if twins:
                plan[next(at for at, each in enumerate(plan) if each is twins[0])] = replace(one)

    def tells_by_bytes(self) -> bool:
        """Whether only its bytes tell a repeated output from another one: then no repeated one may
        have others."""
        return self.policy.expect == MANY and self.policy.match != LINEAGE

    def alike(self, one: _Output, other: _Output) -> bool:
        return bool(one.origin and other.origin and one.origin[0] == other.origin[0])

    def write(self, size: int, how: str) -> None:
        """Writes the next outputs of the plan in one transaction, or in none."""
        taken, self.plan = self.plan[:size], self.plan[size:]
        transaction = None if how == "plain" else len(self.records)
        fate = {"plain": COMMITTED, "retried": ABORTED}.get(how, how)
        for one in taken:
            offset = self.sink_ends[one.home]
            if fate == OPEN:
                self.sink_lsos.setdefault(one.home, offset)
            self.sink_ends[one.home] += 1
            by_key = self.policy.match != LINEAGE
            record = Record(
                partition=one.home,
                offset=offset,
                written=len(self.records),
                identity=one.identity if by_key else None,
                lineage=None if by_key else one.lineage,
                topic=True,
                key=one.key,
                value=one.value,
                fate=fate,
                origin=one.origin,
                transaction=transaction,
            )
            self.records.append(record)
        if how == "retried":
            self.plan = taken + self.plan
        if transaction is not None and fate != OPEN:
            for partition in sorted({one.home for one in taken}):
                self.markers.append(
                    Marker(partition, self.sink_ends[partition], transaction, fate == COMMITTED)
                )
                self.sink_ends[partition] += 1

    def put_aside(self, op: Op) -> None:
        """Plans a dead letter, and what becomes of the outputs of its input."""
        word, how = LETTER_WORDS[op.c], LETTER_ENDS[op.b]
        by_place = self.policy.letters == BY_PLACE
        if word in ("stray", "nameless", "elsewhere"):
            place = (0, self.ends[0] + op.a, 0) if by_place and word != "nameless" else None
            identity = None if by_place or word == "nameless" else f"x{op.a}"
            letter = _letter(identity, place, None)
            letter = replace(letter, topic=word != "elsewhere")
            self.letter_plan.append((letter, how))
            return
        if word == "again":
            self.letter_plan += self.letter_plan[op.a % 3 : op.a % 3 + 1]
            return
        some = [
            given
            for given in self.inputs
            if self.is_unsettled(given) == (word == "of_pending")
            and (self.is_unsettled(given) or (given.fate == ABORTED) == (word == "of_aborted"))
        ]
        if not some:
            return
        given = some[op.a % len(some)]
        place = given.partition, given.offset, 0
        if word in ("aside", "lost"):
            self.plan = [
                output
                for output in self.plan
                if output.origin is None or output.origin[:2] != place[:2]
            ]
        identity = None if by_place else given.identity
        how = ABORTED if word == "lost" else how
        self.letter_plan.append((_letter(identity, place if by_place else None, place), how))

    def is_unsettled(self, given: Input) -> bool:
        return given.offset >= self.lsos.get(given.partition, given.offset + 1)

    def write_letter(self, letter: Record, how: str) -> None:
        """Writes a dead letter in a transaction of its own, or in none."""
        turn = len(self.records) + len(self.letters)
        transaction = None if how == "plain" else 500 + turn
        fate = {"plain": COMMITTED, "retried": ABORTED}.get(how, how)
        if fate == OPEN and self.letter_lso is None:
            self.letter_lso = self.letter_end
        self.letters.append(
            replace(
                letter, offset=self.letter_end, written=turn, fate=fate, transaction=transaction
            )
        )
        self.letter_end += 1
        if transaction is not None and fate != OPEN:
            self.markers.append(Marker(LETTERS, self.letter_end, transaction, fate == COMMITTED))
            self.letter_end += 1
        if how == "retried":
            self.write_letter(letter, "plain")

    def remove_letters(self) -> int:
        """Returns where the log of the dead letters starts."""
        start, lso = 0, self.letter_end if self.letter_lso is None else self.letter_lso
        for op in self.ops(*LETTER_REMOVALS) if self.policy.letters != NO_LETTERS else ():
            if op.kind == "letter_start":
                start = min(op.b, lso)
            elif self.letters and self.letters[op.a % len(self.letters)].offset < lso:
                at = op.a % len(self.letters)
                self.letters[at] = replace(self.letters[at], removed=True)
        return start

    def forget(self, op: Op) -> None:
        """Takes the identity from one record or from all. A key that is the identity goes with it,
        a value too."""
        if op.kind == "wrong_topic":
            self.topic = self.policy.match != LINEAGE
            return
        count = len(self.inputs if "input" in op.kind else self.records)
        if self.policy.match == LINEAGE or not count:
            return
        for at in range(count) if op.kind.endswith("s") else [op.a % count]:
            if "input" in op.kind:
                given = self.inputs[at]
                self.inputs[at] = replace(given, identity=None, key=self.left(given.key))
                # A program can name no input by what it does not have.
                self.letters = [
                    replace(letter, identity=None)
                    if letter.origin and letter.origin[:2] == (given.partition, given.offset)
                    else letter
                    for letter in self.letters
                ]
            else:
                record = self.records[at]
                self.records[at] = replace(record, identity=None, key=self.left(record.key))

    def left(self, key: str | None) -> str | None:
        """What is left of a record's key without its identity."""
        return None if self.policy.match == KEY else key

    def remove(self, op: Op, starts: list[int], sink_starts: list[int]) -> None:
        if op.kind == "source_start":
            partition = op.a % self.story.sources
            starts[partition] = min(op.b, self.lsos.get(partition, self.ends[partition]))
        elif op.kind == "sink_start":
            partition = op.a % self.story.sinks
            sink_starts[partition] = min(
                op.b, self.sink_lsos.get(partition, self.sink_ends[partition])
            )
        elif op.kind == "source_hole" and self.inputs:
            at = op.a % len(self.inputs)
            self.inputs[at] = replace(self.inputs[at], removed=True)
        elif op.kind == "sink_hole" and self.records:
            at = op.a % len(self.records)
            # The cleaner never goes beyond the last stable offset.
            if self.records[at].offset < self.sink_lsos.get(
                self.records[at].partition, self.records[at].offset + 1
            ):
                self.records[at] = replace(self.records[at], removed=True)

    def group(self) -> dict[int, int]:
        """Right offsets, unless an operation says otherwise."""
        offsets = {}
        for partition, end in enumerate(self.ends):
            mine = [one for one in self.records if one.origin and one.origin[0] == partition]
            done = max(
                (one.origin[1] + 1 for one in mine if one.origin and one.fate == COMMITTED),
                default=0,
            )
            is_open = any(one.fate == OPEN for one in mine)
            read = min(self.lsos.get(partition, end), max(done, self.stops.get(partition, end)))
            offsets[partition] = done if is_open else read
        for op in self.ops("offset"):
            partition, far = op.a % self.story.sources, op.c + 1
            if op.b == 6:
                offsets.pop(partition, None)
            elif partition in offsets and op.b > 2:
                to = {
                    3: max(offsets[partition] - far, 0),
                    4: offsets[partition] + far,
                    5: self.ends[partition] + far,
                }
                offsets[partition] = to[op.b] if op.b != 4 else min(to[4], self.ends[partition])
        return offsets


def _letter(identity: str | None, lineage: Place | None, origin: Place | None) -> Record:
    """A dead letter, which will be written."""
    return Record(LETTERS, 0, 0, identity, lineage, True, None, "letter", COMMITTED, origin)


def minimised(story: Story, fails: Callable[[Sequence[Story]], list[bool]]) -> Story:
    """The story without all that it fails without. `fails` judges many stories at once."""
    while True:
        shorter = [
            story._replace(ops=story.ops[:at] + story.ops[at + 1 :]) for at in range(len(story.ops))
        ]
        if story.sources > 1:
            shorter.append(story._replace(sources=1))
        if story.sinks > 1:
            shorter.append(story._replace(sinks=1))
        kept = story.policy
        plainer = (
            *(kept._replace(values=False), kept._replace(group=False), kept._replace(moving=False)),
            *(kept._replace(order=NO_ORDER), kept._replace(guarantee=EXACTLY)),
            kept._replace(letters=NO_LETTERS),
        )
        shorter += [story._replace(policy=policy) for policy in plainer if policy != kept]
        smaller = next(itertools.compress(shorter, fails(shorter)), None)
        if smaller is None:
            return story
        story = smaller


def told(story: Story) -> str:
    """A pair in a few lines, for a person."""
    pair = simulate(story)
    lines = [
        f"{story.policy}",
        f"  operations: {' '.join(f'{op.kind}({op.a},{op.b},{op.c})' for op in story.ops)}",
    ]
    for one in pair.source:
        where = f"{one.partition}/{one.offset}"
        gone = " REMOVED" if one.removed else ""
        lines.append(
            f"  input  {where} id={one.identity} key={one.key} {one.value} {one.fate}"
            f" x{one.expected}{gone}"
        )
    for each in pair.sink:
        where, gone = f"{each.partition}/{each.offset}", " REMOVED" if each.removed else ""
        name = (
            each.identity
            if pair.by_key
            else f"{'' if each.topic else 'other topic '}{each.lineage}"
        )
        lines.append(
            f"  output {where} id={name} key={each.key} {each.value} {each.fate} of"
            f" {each.origin}{gone}"
        )
    for letter in pair.letters:
        gone = " REMOVED" if letter.removed else ""
        of = f"{letter.identity if letter.lineage is None else letter.lineage}"
        elsewhere = "" if letter.topic else "other topic "
        lines.append(
            f"  letter {letter.offset} id={elsewhere}{of} {letter.fate} of {letter.origin}{gone}"
        )
    lines.append(
        f"  letters {_ranges([pair.letter_range])}"
        f" source {_ranges(pair.source_ranges)} sink {_ranges(pair.sink_ranges)} group"
        f" {pair.offsets}"
    )
    return "\n".join(lines)


def _ranges(ranges: Iterable[Range]) -> str:
    return " ".join(f"{one.start}..{one.lso}/{one.hw}" for one in ranges)


def false_by_rule(found: Iterable[Story]) -> dict[str, list[tuple[Story, str]]]:
    """Stories on which the oracle contradicts the truth, by the amendment that is left out. `all
    kept` keeps all."""
    wrong: dict[str, list[tuple[Story, str]]] = {}
    for story in found:
        pair = simulate(story)
        truth = Truth(pair)
        for name in ("all kept", *AMENDMENTS):
            why = truth.false(judge(pair, SOUND - {name}).outcome)
            if why and (name == "all kept" or not truth.false(judge(pair).outcome)):
                wrong.setdefault(name, []).append((story, why))
    return wrong


def _rules(stories: Sequence[Story]) -> int:
    wrong = false_by_rule(stories)
    for name, found in wrong.items():
        by_why = Counter(why for _, why in found)
        log.info("%s: %s", name, dict(by_why))
        for wanted in by_why:
            story = min(
                (each for each, why in found if why == wanted), key=lambda each: len(each.ops)
            )
            ruled = SOUND - {name}

            def fails(
                some: Sequence[Story], ruled: frozenset[str] = ruled, wanted: str = wanted
            ) -> list[bool]:
                return [
                    Truth(pair).false(judge(pair, ruled).outcome) == wanted
                    for pair in map(simulate, some)
                ]

            small = minimised(story, fails)
            judged = judge(simulate(small), ruled)
            log.info("%s\n%s\n  judged: %s", wanted, told(small), judged)
    return len(wrong.get("all kept", ()))


class Difference(NamedTuple):
    """A verdict of the validators that the oracle or the truth contradicts."""

    story: Story
    why: str
    told: str
    """The pair, and what both sides found."""


def difference(story: Story, verdict: str, found: object) -> Difference | None:
    pair = simulate(story)
    slow = judge(pair)
    why = Truth(pair).false(verdict) or (
        f"{verdict}, not {slow.outcome}" if verdict != slow.outcome else None
    )
    return (
        Difference(story, why, f"{told(story)}\n  found: {found}\n  oracle: {slow}")
        if why
        else None
    )


def grouped(found: Iterable[Story]) -> list[list[Story]]:
    """The stories that can be judged, in groups that share a ledger; the largest first."""
    groups: dict[tuple[object, ...], list[Story]] = {}
    for story in found:
        pair = simulate(story)
        if is_told(pair) and (name := batch_of(pair)) is not None:
            groups.setdefault(name, []).append(story)
    return sorted(groups.values(), key=len, reverse=True)


def differences(spark: SparkSession, folder: Path, found: Sequence[Story]) -> list[Difference]:
    """What differs among stories of one group, by the rows of evidence."""
    pairs = [simulate(story) for story in found]
    rows = rows_of(spark, folder, pairs)
    every = [
        difference(story, verdict_of(own, pair), dict(own))
        for story, pair, own in zip(found, pairs, rows, strict=True)
    ]
    return [one for one in every if one]


def difference_alone(spark: SparkSession, folder: Path, story: Story) -> Difference | None:
    """What differs when a pair is judged alone, by its report. A kind without anything to look at
    is no difference."""
    report = report_of(spark, folder, simulate(story))
    uncounted = {one.kind for one in report.not_checked}
    unknown = [
        one for one in report.findings if one.outcome == "UNKNOWN" and one.kind not in uncounted
    ]
    empty = all(one.why.startswith("Nothing to look at") for one in unknown) and unknown
    if report.verdict == "UNKNOWN" and empty and judge(simulate(story)).outcome == "HOLDS":
        return None
    return difference(story, report.verdict, report.why)


def _smallest(spark: SparkSession, folder: Path, one: Difference) -> Difference:
    """The same difference with as few operations as possible."""
    known: dict[Story, Difference] = {}

    def fails(some: Sequence[Story]) -> list[bool]:
        for group in grouped(some):
            known.update(
                {
                    each.story: each
                    for each in differences(spark, folder, group)
                    if each.why == one.why
                }
            )
        return [story in known for story in some]

    return known.get(minimised(one.story, fails), one)


def _judged(spark: SparkSession, folder: Path, asked: argparse.Namespace) -> int:
    began, count, wrong, shown = time.monotonic(), 0, Counter[str](), Counter[str]()
    verdicts: Counter[str] = Counter()
    number = asked.seed
    while count < asked.pairs:
        number += 1
        chance = random.Random(number)
        policy = draw_policy(chance)
        if asked.letters and policy.letters == NO_LETTERS:
            continue
        groups = grouped(draw(asked.batch, number, policy))
        # The large groups for the number of pairs, and one of the others for rare circumstances.
        large, rare = groups[: asked.ledgers - 1], groups[asked.ledgers - 1 :]
        for group in (*large, *chance.sample(rare, min(len(rare), 1))):
            found = differences(spark, folder, group)
            count += len(group)
            log.info("%d pairs: %d differ", len(group), len(found))
            for story in group:
                slow = judge(simulate(story))
                verdicts[slow.outcome] += 1
                verdicts.update(
                    {f"{kind} by {cause}" if cause else kind for kind, cause in slow.rows}
                    | slow.premises
                )
            for one in found:
                wrong[one.why] += 1
                if wrong[one.why] == 1:
                    log.info("%s, at first\n%s", one.why, one.told)
                if shown[one.why] < asked.shown:
                    shown[one.why] += 1
                    small = _smallest(spark, folder, one)
                    log.info("%s\n%s", small.why, small.told)
        took = time.monotonic() - began
        log.info(
            "%d pairs, %.3f s a pair, %d wrong", count, took / max(count, 1), sum(wrong.values())
        )
    for at, story in enumerate(draw(20 * asked.singly, asked.seed)):
        if (
            at % 20 == 0
            and is_told(simulate(story))
            and (alone := difference_alone(spark, folder, story))
        ):
            wrong[alone.why] += 1
            log.info("alone: %s\n%s", alone.why, alone.told)
    log.info("verdicts and reasons: %s", dict(verdicts.most_common()))
    log.info("wrong: %s", dict(wrong))
    return min(sum(wrong.values()), 1)


def main() -> int:
    options = argparse.ArgumentParser(
        description="Judge hostile pairs of topics, and hold the verdicts to the truth."
    )
    options.add_argument("--pairs", type=int, default=2_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument(
        "--batch", type=int, default=500, help="pairs that are drawn of one policy"
    )
    options.add_argument(
        "--ledgers", type=int, default=8, help="how many ledgers the pairs of one policy are put in"
    )
    options.add_argument("--singly", type=int, default=0, help="how many are also judged alone")
    options.add_argument(
        "--shown", type=int, default=2, help="how many differences of each kind are minimised"
    )
    options.add_argument(
        "--letters", action="store_true", help="only pairs with dead letters, with Spark"
    )
    options.add_argument(
        "--rules", action="store_true", help="only the oracle against the truth, without Spark"
    )
    options.add_argument(
        "--retained", action="store_true", help="with --rules: only what is left is judged"
    )
    asked = options.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    for noisy in ("pyspark", "py4j", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    if asked.rules:
        drawn = (draw_retained if asked.retained else draw)(asked.pairs, asked.seed)
        return min(_rules(drawn), 1)
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        with services(read_settings(home=folder), kafka=False) as found:
            spark = connect(found.spark_remote)
            tune(spark, offsets=0)
            return _judged(spark, folder, asked)


if __name__ == "__main__":
    raise SystemExit(main())
