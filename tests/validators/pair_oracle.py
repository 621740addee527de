"""A slow and obvious judge of one source and sink, over plain lists. It shares no code with the
validators.

`judge` sees only what a reader sees. `Truth` also knows which input each record belongs to, removed
records included. So two checks are possible: the validators must agree with `judge`, and no verdict
may contradict the truth.

The rules come in two parts. The contract is what every judge follows. `AMENDMENTS` are rules added
because the contract without them gives a false verdict; `judge(pair, amended=frozenset())` shows
what the bare contract would say.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

HOLDS, VIOLATED, UNKNOWN = "HOLDS", "VIOLATED", "UNKNOWN"
COMMITTED, ABORTED, OPEN = "committed", "aborted", "open"
LINEAGE, KEY, VALUE, HEADER = "lineage", "key", "value", "header"
ONE_TO_ONE, FILTERED, COUNTED, MANY = (
    "one_to_one",
    "zero_or_one",
    "zero_or_one, counted",
    "one_to_many",
)
PER_PARTITION, PER_KEY, NO_ORDER = "per_source_partition", "per_key", "none"
EXACTLY, AT_LEAST = "exactly_once", "at_least_once"
NO_LETTERS, BY_PLACE, BY_IDENTITY = "no dead letters", "by place", "by identity"
"""What names the input of a dead letter."""
LETTERS = -1
"""The partition of the dead letters: they have a topic of their own, with one partition."""

AMENDMENTS: Mapping[str, str] = {
    "not due": (
        "An input that is not due leaves room for its output all the same: its twin is no"
        " duplicate."
    ),
    "pending twin": (
        "A source record at or above the last stable offset shares its identity with what it may"
        " explain."
    ),
    "filtered": "An output of an input that must have none is a phantom, by key too.",
    "missing input": (
        "An input without identity may explain a duplicate, a wrong value or an aborted input by"
        " key."
    ),
    "removed input": (
        "By key, a removed input may explain a wrong value, an offset behind, or an aborted input."
    ),
    "removed output": (
        "A removed or unidentified output may explain an offset ahead, as it explains a gap."
    ),
    "disjoint": "Where no identity matches, phantoms, gaps and offsets tell nothing.",
    "moving group": (
        "A group's offset is behind while topics move: outputs were committed after it was asked."
    ),
    "first copy": (
        "Where duplicates are allowed and the first copy is removed or unidentified, order tells"
        " nothing."
    ),
}
SOUND = frozenset(AMENDMENTS)
PREMISES = frozenset(
    {
        *("identity_missing", "identity_repeated", "identity_disjoint", "outputs_alike"),
        *("source_removed", "sink_removed", "key_spread"),
    }
)
"""Facts that leave a verdict unknown, and rows that they explain."""
NAMELESS_LETTERS = "nameless letters"
"""No dead letter names an input, so the contract is taken for wrong and nothing is judged."""
UNSURE = PREMISES | {"movement", "pending", "no_offset"}
"""Causes that leave a row unknown."""
Place = tuple[int, int, int]


class Policy(NamedTuple):
    match: str = LINEAGE
    expect: str = ONE_TO_ONE
    order: str = PER_PARTITION
    guarantee: str = EXACTLY
    values: bool = False
    """Whether a contract says what each output's value must be."""
    group: bool = False
    moving: bool = False
    """Whether a topic grew during the check."""
    retained: bool = False
    """Whether only what Kafka has not removed is judged."""
    letters: str = NO_LETTERS


@dataclass(frozen=True)
class Input:
    partition: int
    offset: int
    identity: str | None
    key: str | None
    value: str
    fate: str
    expected: int = 1
    removed: bool = False


@dataclass(frozen=True)
class Record:
    partition: int
    offset: int
    written: int
    """Its turn among all records of the sink."""
    identity: str | None
    lineage: Place | None
    topic: bool
    """Whether its lineage names the source topic."""
    key: str | None
    value: str
    fate: str
    origin: Place | None = None
    """Which output of which input it really is; None for a phantom."""
    removed: bool = False
    transaction: int | None = None


class Range(NamedTuple):
    start: int
    lso: int
    hw: int


NO_RANGE = Range(0, 0, 0)


class Marker(NamedTuple):
    partition: int
    offset: int
    transaction: int
    commits: bool


@dataclass(frozen=True)
class Pair:
    policy: Policy
    source: tuple[Input, ...]
    sink: tuple[Record, ...]
    source_ranges: tuple[Range, ...]
    sink_ranges: tuple[Range, ...]
    markers: tuple[Marker, ...] = ()
    """Of the sink."""
    offsets: Mapping[int, int] | None = None
    """The consumer group's, by source partition."""
    letters: tuple[Record, ...] = ()
    """The dead letters. Their origin is output 0 of the input that was put aside."""
    letter_range: Range = NO_RANGE

    def lost(
        self, topic: tuple[Input, ...] | tuple[Record, ...], ranges: tuple[Range, ...]
    ) -> bool:
        return any(one.start for one in ranges) or any(one.removed for one in topic)

    @property
    def by_key(self) -> bool:
        return self.policy.match != LINEAGE

    def range_of(self, partition: int) -> Range:
        """That of a partition of the sink, or of the dead letters."""
        return self.letter_range if partition == LETTERS else self.sink_ranges[partition]

    @property
    def is_open(self) -> bool:
        """Whether something of the sink or the dead letters is pending."""
        return any(one.hw > one.lso for one in (*self.sink_ranges, self.letter_range))

    def pending(self, one: Record) -> bool:
        return one.offset >= self.range_of(one.partition).lso

    def unsettled(self, one: Input) -> bool:
        return one.offset >= self.source_ranges[one.partition].lso


class Judgement(NamedTuple):
    outcome: str
    rows: Counter[tuple[str, str | None]]
    """How many rows by kind and cause."""
    premises: frozenset[str]


def judge(pair: Pair, amended: frozenset[str] = SOUND) -> Judgement:
    case = _Case(pair, amended)
    rows = Counter(row for row in case.rows())
    premises = frozenset(case.premises())
    return Judgement(_outcome(pair, rows, premises), rows, premises)


def _outcome(pair: Pair, rows: Counter[tuple[str, str | None]], premises: frozenset[str]) -> str:
    allowed = {
        "range",
        *(("duplicate", "offset_behind") if pair.policy.guarantee == AT_LEAST else ()),
    }
    causes = {cause or kind for kind, cause in rows if kind not in allowed} - allowed
    if NAMELESS_LETTERS in premises:
        return UNKNOWN
    if causes - UNSURE:
        return VIOLATED
    still_open = not pair.policy.moving and pair.is_open
    return UNKNOWN if causes or premises or still_open else HOLDS


def _place(one: Input) -> tuple[int, int]:
    return one.partition, one.offset


class _Case:
    """What a reader sees, and what follows from it."""

    def __init__(self, pair: Pair, amended: frozenset[str]) -> None:
        self.pair, self.policy, self.amended = pair, pair.policy, amended
        seen = [one for one in pair.source if not one.removed]
        self.inputs = [one for one in seen if one.fate == COMMITTED and not pair.unsettled(one)]
        self.lost_inputs = [one for one in seen if one.fate == ABORTED and not pair.unsettled(one)]
        self.waiting = [one for one in seen if pair.unsettled(one)]
        kept = [one for one in pair.sink if not one.removed]
        self.committed = [one for one in kept if one.fate == COMMITTED and not pair.pending(one)]
        # Above the last stable offset the raw log may show an abort already: nothing comes of such
        # a record.
        self.undecided = [one for one in kept if pair.pending(one) and one.fate != ABORTED]
        self.produced = {self.name(one) for one in kept}
        self.source_removed = pair.lost(pair.source, pair.source_ranges)
        self.letters = _Letters(self)
        self.sink_removed = self.letters.removed or pair.lost(pair.sink, pair.sink_ranges)
        self.waiting_ids = {one.identity for one in self.waiting} if pair.by_key else set()
        self.counts = Counter(self.name(one) for one in self.committed)
        self.pending_counts = Counter(self.name(one) for one in self.undecided)
        self.copies = Counter(one.identity for one in self.inputs if one.identity is not None)

    def name(self, one: Record) -> Hashable:
        if self.pair.by_key:
            return one.identity
        return one.lineage if one.topic else None

    def names(self, one: Input) -> list[Hashable]:
        """The identities of its expected outputs."""
        if self.pair.by_key:
            return [one.identity] * one.expected if one.identity is not None else []
        return [(one.partition, one.offset, index) for index in range(one.expected)]

    @cached_property
    def room(self) -> Counter[Hashable]:
        """How many outputs there may be."""
        inputs = (
            self.inputs
            if "not due" in self.amended
            else [one for one in self.inputs if self.due(one)]
        )
        return Counter(name for one in inputs for name in self.names(one))

    @cached_property
    def wanted(self) -> Counter[Hashable]:
        """How many outputs there must be."""
        due = [
            one for one in self.inputs if self.due(one) and _place(one) not in self.letters.answered
        ]
        every = Counter(name for one in due for name in self.names(one))
        if self.policy.expect != FILTERED:
            return every
        if self.pair.by_key:
            return Counter(
                {
                    name: min(count, self.counts[name] + self.pending_counts[name])
                    for name, count in every.items()
                }
            )
        return Counter({name: count for name, count in every.items() if name in self.produced})

    def due(self, one: Input) -> bool:
        if self.policy.group:
            return one.offset < (self.pair.offsets or {}).get(one.partition, 0)
        return not self.policy.moving or one.offset < self.after.get(one.partition, 0)

    @cached_property
    def after(self) -> dict[int, int]:
        """By source partition, the offset behind the last input with a committed output."""
        ends: dict[int, int] = {}
        for partition, offset in self.reached():
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        return ends

    def reached(self) -> Iterator[tuple[int, int]]:
        if not self.pair.by_key:
            for one in self.committed:
                if (
                    one.topic
                    and one.lineage
                    and one.lineage[1] < self.pair.source_ranges[one.lineage[0]].hw
                ):
                    yield one.lineage[:2]
            return
        left = Counter(self.counts)
        # A committed output whose input is pending is wrong unless the group goes on behind it:
        # aborted, the input has no output; committed, it is processed again.
        for given in (*sorted(self.inputs, key=_place), *sorted(self.waiting, key=_place)):
            for name in self.names(given):
                if left[name] > 0:
                    left[name] -= 1
                    yield given.partition, given.offset

    @cached_property
    def disjoint(self) -> bool:
        emptied = self.source_removed and "disjoint" in self.amended
        there = [*self.committed, *(self.undecided if "disjoint" in self.amended else ())]
        if not there or not (self.inputs or emptied):
            return False
        if self.pair.by_key:
            return not {one.identity for one in there} & (
                {one.identity for one in self.inputs} - {None}
            )
        return not any(one.topic and one.lineage for one in there)

    @cached_property
    def unnamed_input(self) -> bool:
        return self.pair.by_key and any(
            one.identity is None for one in (*self.expecting, *self.lost_inputs, *self.waiting)
        )

    @property
    def expecting(self) -> list[Input]:
        """The inputs that must have an output. The others need no identity."""
        return [one for one in self.inputs if one.expected]

    def premises(self) -> Iterator[str]:
        unnamed: tuple[Input | Record, ...] = (*self.expecting, *self.committed, *self.undecided)
        if self.pair.by_key and any(one.identity is None for one in unnamed):
            yield "identity_missing"
        twins = Counter(self.copies)
        if "pending twin" in self.amended:
            twins.update(one.identity for one in self.waiting if one.identity is not None)
        if self.pair.by_key and any(count > 1 for count in twins.values()):
            yield "identity_repeated"
        if self.disjoint:
            yield "identity_disjoint"
        if self.pair.by_key and self.policy.expect == MANY:
            alike = Counter(
                (one.identity, one.key, one.value)
                for one in self.committed
                if one.identity is not None
            )
            if any(count > 1 for count in alike.values()):
                yield "outputs_alike"
        if self.letters.are_nameless:
            yield NAMELESS_LETTERS
        if self.source_removed and not self.policy.retained:
            yield "source_removed"
        if self.sink_removed and not self.policy.retained:
            yield "sink_removed"
        if self.policy.order == PER_KEY:
            homes: dict[tuple[int, str], set[int]] = {}
            for one, place in self.placed():
                if one.key is not None:
                    homes.setdefault((place[0], one.key), set()).add(one.partition)
            if any(len(partitions) > 1 for partitions in homes.values()):
                yield "key_spread"

    def rows(self) -> Iterator[tuple[str, str | None]]:
        yield from self.duplicates()
        yield from self.gaps()
        yield from self.phantoms()
        yield from self.letters.rows()
        if self.policy.order != NO_ORDER:
            yield from self.inversions()
        if self.policy.group:
            yield from self.group()
        if self.policy.values:
            yield from self.wrong_values()

    def doubtful(self, identity: str | None, *places: Record) -> str | None:
        """By key: which other source record may be the true input, where one may be. `places`: the
        records that must lie where no removed input has an output."""
        if not self.pair.by_key:
            return None
        if "pending twin" in self.amended and identity in self.waiting_ids:
            return "pending"
        if (
            "removed input" in self.amended
            and self.source_removed
            and not (places and all(map(self.is_judged, places)))
        ):
            return "source_removed"
        return (
            "identity_missing" if "missing input" in self.amended and self.unnamed_input else None
        )

    def duplicates(self) -> Iterator[tuple[str, str | None]]:
        if not self.pair.by_key:
            claims = {self.name(one): self._by_lineage(one) for one in self.committed}
            for name, cause in claims.items():
                # What it is an output of need not be there any more.
                if cause in ("no phantom", "range", "pending", "source_removed"):
                    why = "pending" if cause == "pending" else None
                    yield from [("duplicate", why)] * (self.counts[name] - 1)
            return
        for name in self.counts:
            mine = [one for one in self.committed if self.name(one) == name]
            mine.sort(key=lambda one: one.written)
            for later in mine[self.room[name] :] if self.room[name] else ():
                # Copies of twins may be those of either.
                places = (mine[0], later) if self.copies[str(name)] == 1 else ()
                yield "duplicate", self.doubtful(str(name), *places)

    def gaps(self) -> Iterator[tuple[str, str | None]]:
        short = {
            name: count - self.counts[name]
            for name, count in self.wanted.items()
            if count > self.counts[name]
        }
        waiting = sum(
            count if name in self.letters.waiting else min(count, self.pending_counts[name])
            for name, count in short.items()
        )
        missing = sum(short.values()) - waiting
        yield from [("gap", "pending")] * waiting
        causes = self.of_removal(short, missing)
        removed = self.removed_offsets if self.policy.retained else 0
        # Where each may be one of them, all may be.
        is_explained = 0 < missing <= self.unnamed_outputs + removed and self.unnamed_outputs > 0
        for number in range(missing):
            if causes[number]:
                yield "gap", causes[number]
            elif self.disjoint:
                yield "gap", "identity_disjoint"
            elif number < self.unnamed_outputs or is_explained:
                yield "gap", "identity_missing"
            else:
                yield "gap", "movement" if self.policy.moving and not self.policy.group else None

    def of_removal(self, short: Mapping[Hashable, int], missing: int) -> list[str | None]:
        """For each missing output, whether a removal from the sink may explain it."""
        if not self.sink_removed:
            return [None] * missing
        if not self.policy.retained or self.letters.removed:
            return ["sink_removed"] * missing
        # Of several inputs with one identity, the last ones lack their outputs.
        left = Counter({name: count - self.pending_counts[name] for name, count in short.items()})
        causes: list[str | None] = []
        for one in reversed([one for one in self.inputs if self.due(one)]):
            for name in self.names(one):
                if left[name] > 0:
                    left[name] -= 1
                    causes.append(self._of_missing(one))
        explained = sum(cause is not None for cause in causes)
        is_more = explained > self.removed_offsets + self.unnamed_outputs
        return [None] * missing if is_more else causes

    @property
    def unnamed_outputs(self) -> int:
        unnamed = (one.identity is None for one in (*self.committed, *self.undecided))
        return sum(unnamed) if self.pair.by_key else 0

    @property
    def removed_offsets(self) -> int:
        """How many offsets the sink has lost."""
        ranges = self.pair.sink_ranges
        inside = [
            one
            for one in self.pair.sink
            if one.removed and one.offset >= ranges[one.partition].start
        ]
        return sum(one.start for one in ranges) + len(inside)

    def _of_missing(self, one: Input) -> str | None:
        judged = self.retained
        if one.offset <= judged.inputs_from.get(one.partition, -1):
            return "range"
        shared = self.pair.by_key and any(count > 1 for count in self.copies.values())
        return None if one.partition in judged.complete and not shared else "sink_removed"

    @cached_property
    def retained(self) -> Retained:
        return Retained(self)

    def is_judged(self, one: Record) -> bool:
        """Whether no removed input has an output there."""
        return one.offset >= self.retained.judged_from.get(one.partition, one.offset + 1)

    def phantoms(self) -> Iterator[tuple[str, str | None]]:
        for one in self.committed:
            cause = self._by_key(one) if self.pair.by_key else self._by_lineage(one)
            if cause != "no phantom":
                yield "phantom", cause

    def _by_key(self, one: Record) -> str | None:
        if one.identity is None:
            # A dead letter that names nothing names no input, unless one cannot be named.
            if one.partition != LETTERS or self.unnamed_input:
                return "identity_missing"
            return "source_removed" if self.source_removed else None
        theirs = [given for given in self.inputs if given.identity == one.identity]
        is_letter = one.partition == LETTERS
        if any(given.expected or is_letter for given in theirs) or (
            theirs and "filtered" not in self.amended
        ):
            return "no phantom" if any(map(self.due, theirs)) else "range"
        if one.identity in self.waiting_ids:
            return "pending"
        aborted = any(given.identity == one.identity for given in self.lost_inputs)
        if not aborted and not theirs and one in self.retained.before:
            return "range"
        is_judged = self.is_judged(one)
        removed = self.source_removed and not is_judged
        if removed and ("removed input" in self.amended or not aborted):
            return "source_removed"
        if self.unnamed_input and ("missing input" in self.amended or not aborted):
            return "identity_missing"
        if aborted:
            return "aborted_input"
        is_disjoint = self.disjoint and "disjoint" in self.amended and not is_letter
        return "identity_disjoint" if is_disjoint else None

    def _by_lineage(self, one: Record) -> str | None:
        if not one.topic or one.lineage is None:
            if one.partition == LETTERS:
                return None
            return "identity_disjoint" if self.disjoint and "disjoint" in self.amended else None
        partition, offset, index = one.lineage
        if (
            partition >= len(self.pair.source_ranges)
            or offset >= self.pair.source_ranges[partition].hw
        ):
            return None
        bounds = self.pair.source_ranges[partition]
        found = [
            given
            for given in self.pair.source
            if (given.partition, given.offset) == (partition, offset)
        ]
        is_aborted = any(
            given.fate == ABORTED and not given.removed and bounds.start <= offset < bounds.lso
            for given in found
        )
        if index > 0 and self.policy.expect != MANY and not is_aborted:
            return None
        if offset < bounds.start:
            return "range"
        if offset >= bounds.lso:
            return "pending"
        if not found or found[0].removed:
            cause = "range" if self.policy.retained else "source_removed"
            return cause if found else None
        if found[0].fate != COMMITTED:
            return "aborted_input"
        if index >= found[0].expected and one.partition != LETTERS:
            return None
        return "no phantom" if self.due(found[0]) else "range"

    def placed(self) -> Iterator[tuple[Record, tuple[int, ...]]]:
        """Committed records and the places of their inputs, where these are certain."""
        unique = {
            one.identity: one
            for one in self.inputs
            if one.identity and self.copies[one.identity] == 1
        }
        for one in self.committed:
            if not self.pair.by_key and one.topic and one.lineage:
                if self._by_lineage(one) in ("no phantom", "range", "pending", "source_removed"):
                    yield one, one.lineage
            elif self.pair.by_key and one.identity in unique:
                yield one, (unique[one.identity].partition, unique[one.identity].offset)

    def inversions(self) -> Iterator[tuple[str, str | None]]:
        lines: dict[Hashable, list[tuple[Record, tuple[int, ...]]]] = {}
        seen: Counter[Hashable] = Counter()
        for one, place in sorted(self.placed(), key=lambda found: found[0].written):
            line = (one.partition, place[0], one.key if self.policy.order == PER_KEY else "")
            if self.policy.order == PER_KEY and one.key is None:
                continue
            seen[self.name(one)] += 1
            if seen[self.name(one)] <= (self.room[one.identity] if self.pair.by_key else 1):
                lines.setdefault(line, []).append((one, place))
        for found in lines.values():
            for (earlier, before), (one, place) in itertools.pairwise(
                sorted(found, key=lambda each: each[0].offset)
            ):
                if place < before:
                    yield "order", self._of_inversion(earlier, one)

    def _of_inversion(self, earlier: Record, one: Record) -> str | None:
        if self.pair.by_key and self.source_removed and not self.is_judged(earlier):
            return "source_removed"
        if self.policy.guarantee == AT_LEAST and "first copy" in self.amended:
            if self.sink_removed:
                return "sink_removed"
            if self.pair.by_key and any(each.identity is None for each in self.committed):
                return "identity_missing"
        return self.doubtful(one.identity, earlier, one)

    def group(self) -> Iterator[tuple[str, str | None]]:
        offsets = self.pair.offsets or {}
        repeated = self.pair.by_key and any(count > 1 for count in self.copies.values())
        for partition, bounds in enumerate(self.pair.source_ranges):
            if partition not in offsets:
                # What a consumer never received gives a group no offset.
                readable = any(one.partition == partition for one in self.inputs)
                removed = bounds.start or any(
                    one.removed for one in self.pair.source if one.partition == partition
                )
                if bounds.hw > bounds.start and (readable or removed or bounds.lso < bounds.hw):
                    yield "offset_ahead", "no_offset"
                continue
            offset, after = offsets[partition], self.after.get(partition, 0)
            if offset > bounds.hw:
                yield "offset_ahead", None
            if offset < after:
                moves = (
                    "movement" if self.policy.moving and "moving group" in self.amended else None
                )
                last = [
                    one.identity
                    for one in self.inputs
                    if (one.partition, one.offset) == (partition, after - 1)
                ]
                doubt = self.doubtful(last[0] if last else None)
                yield "offset_behind", "identity_repeated" if repeated else moves or doubt
            tail = [
                one
                for one in self.inputs
                if one.partition == partition and after <= one.offset < offset
            ]
            names = [
                name
                for one in tail
                for name in self.names(one)
                if self.wanted[name] > self.counts[name]
            ]
            if names:
                yield "offset_ahead", "identity_repeated" if repeated else self._of_tail(names)

    def _of_tail(self, names: list[Hashable]) -> str | None:
        if all(self.pending_counts[name] or name in self.letters.waiting for name in names):
            return "pending"
        if "removed output" in self.amended and self.sink_removed:
            return "sink_removed"
        if "disjoint" in self.amended and self.disjoint:
            return "identity_disjoint"
        unnamed = self.pair.by_key and any(
            one.identity is None for one in (*self.committed, *self.undecided)
        )
        return "identity_missing" if unnamed and "removed output" in self.amended else None

    def wrong_values(self) -> Iterator[tuple[str, str | None]]:
        values = {(one.partition, one.offset): one.value for one in self.inputs if self.due(one)}
        for one, place in self.placed():
            wanted = values.get((place[0], place[1]))
            if wanted is not None and (len(place) < 3 or place[2] == 0) and wanted != one.value:
                yield "wrong_value", self.doubtful(one.identity, one)


class _Letters:
    """What a reader sees of the dead letters, and what follows from it."""

    def __init__(self, case: _Case) -> None:
        self.case, pair = case, case.pair
        kept = [letter for letter in pair.letters if not letter.removed]
        self.committed = [
            letter for letter in kept if letter.fate == COMMITTED and not pair.pending(letter)
        ]
        self.undecided = [
            letter for letter in kept if pair.pending(letter) and letter.fate != ABORTED
        ]
        self.removed = pair.lost(pair.letters, (pair.letter_range,))

    @property
    def by_place(self) -> bool:
        return self.case.policy.letters == BY_PLACE

    @property
    def are_nameless(self) -> bool:
        there = [*self.committed, *self.undecided]
        return bool(there) and all(
            letter.lineage is None if self.by_place else letter.identity is None for letter in there
        )

    def inputs(self, letters: list[Record]) -> list[Input]:
        """The inputs that some dead letters name. Of inputs that share an identity, those come
        first that are due."""
        every = sorted(self.case.inputs, key=lambda one: (not self.case.due(one), _place(one)))
        if self.by_place:
            places = {letter.lineage[:2] for letter in letters if letter.topic and letter.lineage}
            return [one for one in every if _place(one) in places]
        left = Counter(letter.identity for letter in letters if letter.identity is not None)
        named = []
        for one in every:
            if one.identity is not None and left[one.identity] > 0:
                left[one.identity] -= 1
                named.append(one)
        return named

    @cached_property
    def answered(self) -> set[tuple[int, int]]:
        """The due inputs with a committed dead letter. They owe no output."""
        return {_place(one) for one in self.inputs(self.committed) if self.case.due(one)}

    @cached_property
    def waiting(self) -> set[Hashable]:
        """The outputs that are not due if a pending dead letter is committed."""
        return {name for one in self.inputs(self.undecided) for name in self.case.names(one)}

    def rows(self) -> Iterator[tuple[str, str | None]]:
        case = self.case
        for letter in self.committed:
            cause = case._by_lineage(letter) if self.by_place else case._by_key(letter)
            if cause != "no phantom":
                yield "phantom", cause
        if not case.pair.by_key:
            # What both are of need not be there any more.
            named = {
                letter.lineage[:2]
                for letter in (*self.committed, *case.committed)
                if letter.lineage and case._by_lineage(letter) in REAL
            }
            for place in named:
                of = [
                    [each for each in some if each.lineage and each.lineage[:2] == place]
                    for some in (self.committed, case.committed)
                ]
                outputs = [each for each in of[1] if each.topic and case._by_lineage(each) in REAL]
                if any(each.topic for each in of[0]) and outputs:
                    yield "both_outcomes", None
            return
        for one in self.inputs(self.committed):
            if one.expected and case.counts[one.identity]:
                is_shared = case.copies[str(one.identity)] > 1
                yield (
                    "both_outcomes",
                    ("identity_repeated" if is_shared else case.doubtful(one.identity)),
                )


REAL = ("no phantom", "range", "pending", "source_removed")
"""Causes of records that have an input."""


class Retained:
    """Where judging begins if only what is left is judged. A pair is small, so nothing is assumed
    of where a source partition has its outputs."""

    def __init__(self, case: _Case) -> None:
        pair, policy = case.pair, case.policy
        self.judged_from: dict[int, int] = {}
        """By sink partition: no removed input has an output there or later."""
        self.inputs_from: dict[int, int] = {}
        self.complete: set[int] = set()
        self.before: list[Record] = []
        """Records without an input that removed inputs explain."""
        if not policy.retained:
            return
        starts = {at for at, one in enumerate(pair.source_ranges) if one.start}
        sink_starts = {at for at, one in enumerate(pair.sink_ranges) if one.start}
        holes = [
            any(one.removed and one.offset >= ranges[one.partition].start for one in topic)
            for topic, ranges in ((pair.source, pair.source_ranges), (pair.sink, pair.sink_ranges))
        ]
        removed = starts if pair.by_key else set[int]()
        alone = [
            (one, place)
            for one, place in case.placed()
            if case.counts[case.name(one)] + case.pending_counts[case.name(one)] == 1
            and one.identity not in case.waiting_ids
        ]

        def sure(source: int, sink: int) -> bool:
            others = sink in sink_starts and removed - {source}
            return not pair.by_key or not (sink_starts - {sink} or others)

        firsts: dict[tuple[int, int], int] = {}
        earliest: dict[tuple[int, int], int] = {}
        for one, place in alone:
            cell = place[0], one.partition
            firsts[cell] = min(firsts.get(cell, one.offset), one.offset)
            earliest[cell] = min(earliest.get(cell, place[1]), place[1])
        promised = policy.order == PER_PARTITION and policy.guarantee == EXACTLY
        if pair.by_key:
            # An output that is there may be that of a removed input with the same identity.
            promised &= policy.expect != FILTERED and not case.unnamed_outputs
        matched_from: dict[int, int] = {}
        for sink in range(len(pair.sink_ranges)):
            mine = {source for source in removed if (source, sink) in firsts}
            if mine and not holes[0]:
                matched_from[sink] = max(firsts[source, sink] for source in mine)
            certain = promised and not any(holes) and all(sure(source, sink) for source in mine)
            if certain and removed and mine == removed:
                self.judged_from[sink] = max(firsts[source, sink] for source in mine)
        for source in {place[0] for _, place in alone} if not holes[1] else ():
            cells = [(source, sink) for sink in sink_starts]
            known = [earliest[cell] for cell in cells if cell in earliest]
            if known:
                self.inputs_from[source] = max(known)
            if promised and all(cell in earliest and sure(*cell) for cell in cells):
                self.complete.add(source)
        before = [
            one
            for one in case.committed
            if one.offset < matched_from.get(one.partition, 0)
            and one.identity is not None
            and one.identity not in case.waiting_ids
            and one.identity not in {given.identity for given in case.inputs}
            and one.identity not in {given.identity for given in case.lost_inputs}
        ]
        most = sum(one.start for one in pair.source_ranges)
        fits = policy.expect == MANY or len(before) <= most
        self.before = before if fits and not case.unnamed_input else []


class Truth:
    """What really happened to a pair, removed records included.

    Two things are left out, as no identity by key can tell them. An output beyond those that its
    input must have is a repeated one. An output of an aborted input is that of the committed input
    with its identity, where there is one.
    """

    def __init__(self, pair: Pair) -> None:
        self.pair, self.policy = pair, pair.policy
        self.inputs = {(one.partition, one.offset): one for one in pair.source}
        self.sink = tuple(replace(one, origin=self._claimed(one.origin)) for one in pair.sink)
        self.letters = pair.letters
        if pair.policy.letters == BY_IDENTITY:
            self.letters = tuple(
                replace(letter, origin=self._claimed(letter.origin)) for letter in pair.letters
            )

    def _claimed(self, origin: Place | None) -> Place | None:
        if origin is None or not self.pair.by_key:
            return origin
        given = self.inputs[origin[:2]]
        if given.fate == ABORTED and given.identity is not None:
            same = (
                one
                for one in self.pair.source
                if one.identity == given.identity and one.fate == COMMITTED
            )
            given = next((one for one in same if not self.pair.unsettled(one)), given)
        index = min(origin[2], given.expected - 1) if given.expected else origin[2]
        return given.partition, given.offset, index

    def false(self, outcome: str) -> str | None:
        """Why this verdict is false; None where the truth allows it."""
        if outcome == VIOLATED and not self.breaks(list(self.sink)):
            return "false VIOLATED: nothing is wrong"
        if outcome == HOLDS and self.policy.retained:
            wrong = self._breaks_of_retained()
            return f"false HOLDS: {', '.join(sorted(wrong))}" if wrong else None
        if outcome == HOLDS:
            seen = [one for one in self.sink if not (self.policy.moving and self.pair.pending(one))]
            wrong = self.breaks(seen) - ({"loss"} if self.policy.expect == FILTERED else set())
            return f"false HOLDS: {', '.join(sorted(wrong))}" if wrong else None
        return None

    def _breaks_of_retained(self) -> set[str]:
        """What is wrong with the records that are left, where they can be judged: a missing output
        that may lie in a removed part of the sink cannot, nor can an output before those of the
        inputs that are left."""
        firsts: dict[tuple[int, int], int] = {}
        earliest: dict[tuple[int, int], int] = {}
        kept = [one for one in self.sink if not one.removed and one.fate == COMMITTED]
        for one in kept:
            given = self.inputs.get(one.origin[:2]) if one.origin else None
            if one.origin and given and (not self.pair.by_key or not given.removed):
                cell = one.origin[0], one.partition
                earliest[cell] = min(earliest.get(cell, one.origin[1]), one.origin[1])
                if self.pair.source_ranges[one.origin[0]].start:
                    firsts[cell] = min(firsts.get(cell, one.offset), one.offset)
        judged_from: dict[int, int] = {}
        for (_, sink), offset in firsts.items():
            judged_from[sink] = max(judged_from.get(sink, 0), offset)

        def counts(one: Record) -> bool:
            given = self.inputs.get(one.origin[:2]) if one.origin else None
            if given is not None and given.removed:
                return False
            before = one.offset < judged_from.get(one.partition, 0)
            return not (self.pair.by_key and given is None and before)

        wrong = self.breaks([one for one in kept if counts(one)]) - {"loss"}
        for given in self.pair.source:
            excused = any(
                earliest.get((given.partition, sink), -1) >= given.offset
                for sink, one in enumerate(self.pair.sink_ranges)
                if one.start
            )
            # An identity names one input, also among those that are gone.
            excused |= self.pair.by_key and any(
                one.removed and one.identity == given.identity for one in self.pair.source
            )
            if not given.removed and not excused and self._is_lost(given, list(self.sink)):
                wrong.add("loss")
        return wrong - ({"loss"} if self.policy.expect == FILTERED else set())

    def breaks(self, sink: list[Record]) -> set[str]:
        """What is wrong for certain, as the policy has it."""
        committed = [one for one in sink if one.fate == COMMITTED]
        counts = Counter(one.origin for one in committed if one.origin is not None)
        found = self._of_letters(committed)
        if self.policy.guarantee == EXACTLY and any(count > 1 for count in counts.values()):
            found.add("duplicate")
        for one in committed:
            given = self.inputs.get(one.origin[:2]) if one.origin else None
            if given is None or one.origin is None or one.origin[2] >= given.expected:
                found.add("phantom")
            elif given.fate == ABORTED:
                found.add("aborted input")
            # The judged range ends at the group's offset.
            elif self._has_wrong_value(one, given) and (
                not self.policy.group or self._due(given, sink)
            ):
                found.add("wrong value")
        if any(self._is_lost(one, sink) for one in self.pair.source):
            found.add("loss")
        if self.policy.order != NO_ORDER and any(self._inversions(committed)):
            found.add("order")
        return found | self._of_group(committed)

    def _of_letters(self, committed: list[Record]) -> set[str]:
        found = set()
        done = {one.origin[:2] for one in committed if one.origin}
        for letter in self.letters:
            if letter.fate != COMMITTED or self.pair.pending(letter):
                continue
            named = self.inputs.get(letter.origin[:2]) if letter.origin else None
            if named is None or letter.origin is None:
                found.add("phantom letter")
            elif named.fate == ABORTED:
                found.add("letter of an aborted input")
            elif letter.origin[:2] in done:
                found.add("both outcomes")
        return found

    def _has_wrong_value(self, one: Record, given: Input) -> bool:
        return self.policy.values and one.value != given.value

    def _is_lost(self, one: Input, sink: list[Record]) -> bool:
        if one.fate != COMMITTED or self.pair.unsettled(one) or not self._due(one, sink):
            return False
        there = {each.origin for each in sink if each.fate != ABORTED}
        there |= {
            each.origin for each in self.sink if self.pair.pending(each) and each.fate != ABORTED
        }
        put_aside = {
            letter.origin[:2] for letter in self.letters if letter.origin and letter.fate != ABORTED
        }
        if (one.partition, one.offset) in put_aside:
            return False
        return any((one.partition, one.offset, index) not in there for index in range(one.expected))

    def _due(self, one: Input, sink: list[Record]) -> bool:
        if self.policy.group:
            return one.offset < (self.pair.offsets or {}).get(one.partition, 0)
        later = (each.origin for each in sink if each.fate == COMMITTED and each.origin)
        return not self.policy.moving or any(
            origin[0] == one.partition and origin[1] > one.offset for origin in later
        )

    def _inversions(self, committed: list[Record]) -> Iterator[bool]:
        lines: dict[Hashable, list[Record]] = {}
        firsts: set[Place] = set()
        for one in sorted(committed, key=lambda each: each.written):
            if (
                one.origin is None
                or one.origin in firsts
                or (self.policy.order == PER_KEY and one.key is None)
            ):
                continue
            firsts.add(one.origin)
            line = (one.partition, one.origin[0], one.key if self.policy.order == PER_KEY else "")
            lines.setdefault(line, []).append(one)
        for found in lines.values():
            places = [
                one.origin for one in sorted(found, key=lambda each: each.offset) if one.origin
            ]
            parts = 2 if self.pair.by_key else 3
            yield any(
                later[:parts] < earlier[:parts] for earlier, later in itertools.pairwise(places)
            )

    def _of_group(self, committed: list[Record]) -> set[str]:
        offsets, found = self.pair.offsets or {}, set()
        for partition, offset in offsets.items() if self.policy.group else ():
            if offset > self.pair.source_ranges[partition].hw:
                found.add("offset beyond the end")
            done = [one.origin[1] for one in committed if one.origin and one.origin[0] == partition]
            if (
                offset <= max(done, default=-1)
                and self.policy.guarantee == EXACTLY
                and not self.policy.moving
            ):
                found.add("offset behind")
        return found
