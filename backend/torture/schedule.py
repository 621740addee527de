"""A schedule: a small run under several troubles of the matrix at once, drawn from a seed.

A schedule is text, so that failures can be replayed and shrunk by hand:

    exactly_once records=240 partitions=2 per_transaction=40 seed=7: open@2 zombie@4

The troubles are rows of the matrix (backend/matrix/matrix_table.py); the number after `@` is the
transaction that each strikes. `trigger=real_time` before the colon: the run is in real time. A
guarantee may show the union of what theory expects of it under each trouble. So exactly-once must
stay exact under any combination, and the others may break only as their table says.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from topicproof.backend.errors import UsageError
from topicproof.backend.matrix.matrix_table import RESTARTED, TABLE, Trouble
from topicproof.backend.matrix.promises import PROMISES, Damage, Promise
from topicproof.backend.sink.options import PACKED, PACKED_REMOVED
from topicproof.validators.finding import Guarantee

NEVER_DRAWN = frozenset({"none", "produce-overtaken"})
"""Troubles that are never drawn: none, and one that needs transactions of 30,000 records."""
_PROMISES = {one.name: one for one in PROMISES if one.like is None}
_TROUBLES = {one.name: one for one in TABLE if one.name not in NEVER_DRAWN}
_GHOST, _RESTART = "ghost-offset", "restart-"
_STRIKES = re.compile(r"transaction=\d+")
_SIZES = ("records", "partitions", "per_transaction")
MICRO_BATCH, REAL_TIME = "micro_batch", "real_time"
_FORM = (
    "expected GUARANTEE records=N partitions=N per_transaction=N seed=N"
    " trigger=micro_batch|real_time: TROUBLE@N TROUBLE@N"
)


@dataclass(frozen=True)
class Schedule:
    """One run to try. `str` formats it, `parse` reads it."""

    name: str
    """Name of the promise."""
    records: int
    partitions: int
    per_transaction: int
    strikes: tuple[tuple[str, int], ...]
    """Names of troubles, each with its transaction."""
    seed: int = 0
    """Seed of the run's own random choices: aborts."""
    trigger: str = MICRO_BATCH
    """Of the plan: or REAL_TIME."""

    def __str__(self) -> str:
        sizes = " ".join(f"{name}={getattr(self, name)}" for name in _SIZES)
        strikes = " ".join(f"{name}@{transaction}" for name, transaction in self.strikes)
        trigger = "" if self.trigger == MICRO_BATCH else f" trigger={self.trigger}"
        head = f"{self.name} {sizes} seed={self.seed}{trigger}"
        return f"{head}: {strikes}".rstrip()

    @property
    def troubles(self) -> tuple[Trouble, ...]:
        return tuple(_TROUBLES[name] for name, _ in self.strikes)

    @property
    def brokers(self) -> int:
        """Number of brokers that the cluster must have."""
        return max((trouble.brokers for trouble in self.troubles), default=1)

    @property
    def attempts(self) -> bool:
        """Whether the source is full of aborted attempts."""
        return any(trouble.attempts for trouble in self.troubles)

    @property
    def resumes(self) -> int:
        """How often the run is resumed if it fails."""
        return sum(trouble.resumes for trouble in self.troubles)

    @property
    def promise(self) -> Promise:
        return _PROMISES[self.name]

    @property
    def may(self) -> frozenset[Damage]:
        """Damage that the sink may show."""
        words = (word.removesuffix("?") for word in self._words())
        return frozenset(Damage(word) for word in words if word != _REFUSED)

    @property
    def may_refuse(self) -> bool:
        """Whether the sink may refuse to continue: the group's offset was moved."""
        return _REFUSED in self._words() or self._moved_by_ghost()

    def plan(self) -> dict[str, Any]:
        """Return the fields of a RunPlan (backend/runs/plan.py)."""
        plan: dict[str, Any] = {name: getattr(self, name) for name in _SIZES}
        plan |= {"seed": self.seed, "trigger": self.trigger}
        plan |= self.promise.plan
        faults = []
        for name, transaction in self.strikes:
            fields = dict(_TROUBLES[name].plan)
            faults += [
                _STRIKES.sub(f"transaction={transaction}", fault)
                for fault in fields.pop("faults", ())
            ]
            plan |= fields
        return {**plan, "faults": faults}

    def _moved_by_ghost(self) -> bool:
        """Whether a late offset that no transaction guards may move the group back before another
        start of the query, which compares it with the journal."""
        names = {trouble.name for trouble in self._struck()}
        plain = self.promise.guarantee is not Guarantee.EXACTLY_ONCE
        return plain and _GHOST in names and any(name.startswith(_RESTART) for name in names)

    def _struck(self) -> tuple[Trouble, ...]:
        """The troubles, with the restarts that they cause in real time: a task that fails there
        ends its whole query."""
        if self.trigger == REAL_TIME and any("faults" in trouble.plan for trouble in self.troubles):
            return (*self.troubles, RESTARTED)
        return self.troubles

    def _words(self) -> set[str]:
        number = list(_PROMISES).index(self.name)
        return {
            word for trouble in self._struck() for word in (trouble.expected[number] or "").split()
        }


_REFUSED = "refused"


def draw(seed: int, brokers: int = 1, trigger: str = MICRO_BATCH) -> Schedule:
    """Draw a seed's schedule for a cluster of this many brokers. Half of all schedules are
    exactly-once. With any trigger it is the same otherwise."""
    chance = random.Random(f"torture/{seed}")
    names = list(_PROMISES)
    promise = names[0] if chance.random() < 0.5 else chance.choice(names)
    per_transaction = chance.choice((10, 25, 40, 100))
    partitions = chance.choice((1, 1, 2, 3))
    transactions = chance.randint(3, 6)
    possible = [name for name in _TROUBLES if _possible(_PROMISES[promise], name, brokers)]
    count = chance.choice((0, 1, 1, 2, 2, 2, 3, 3))
    strikes = [(name, chance.randint(1, transactions)) for name in chance.sample(possible, count)]
    return Schedule(
        promise,
        per_transaction * partitions * transactions + chance.choice((0, 0, 1, 7)),
        partitions,
        per_transaction,
        tuple(sorted(strikes, key=lambda strike: (strike[1], strike[0]))),
        seed,
        trigger,
    )


def parse(text: str) -> Schedule:
    """Parse a schedule. Raises UsageError for other text."""
    head, _, tail = text.partition(":")
    promise, *fields = head.split() or [""]
    values = dict(field.partition("=")[::2] for field in fields)
    try:
        strikes = [
            (name, int(at)) for name, _, at in (strike.partition("@") for strike in tail.split())
        ]
        sizes = {name: int(values[name]) for name in _SIZES}
        seed = int(values.get("seed", "0"))
    except (KeyError, ValueError) as error:
        raise UsageError(f"Schedule {text!r}: {_FORM}.") from error
    if values.get("lineage") == PACKED:
        raise UsageError(f"Schedule {text!r}: lineage: {PACKED_REMOVED}.")
    trigger = values.get("trigger", MICRO_BATCH)
    if trigger not in (MICRO_BATCH, REAL_TIME):
        raise UsageError(
            f"Schedule {text!r}: unknown trigger {trigger!r}. Known: {MICRO_BATCH}, {REAL_TIME}."
        )
    unknown = [name for name, _ in strikes if name not in _TROUBLES]
    if promise not in _PROMISES or unknown:
        choices = ", ".join(_TROUBLES if unknown else _PROMISES)
        word = unknown[0] if unknown else promise
        raise UsageError(f"Schedule {text!r}: unknown {word!r}. Known: {choices}.")
    return Schedule(
        promise,
        **sizes,
        strikes=tuple(strikes),
        seed=seed,
        trigger=trigger,
    )


def smaller(schedule: Schedule) -> Iterator[Schedule]:
    """Yield schedules that are one step smaller, the largest steps first: without a trouble, with
    one partition, with fewer transactions."""
    for number in range(len(schedule.strikes)):
        yield replace(schedule, strikes=schedule.strikes[:number] + schedule.strikes[number + 1 :])
    if schedule.partitions > 1:
        yield replace(schedule, partitions=1, records=schedule.records // schedule.partitions)
    last = max((transaction for _, transaction in schedule.strikes), default=0)
    least = schedule.per_transaction * schedule.partitions * (last + 1)
    if schedule.records > least:
        yield replace(schedule, records=least)


def _possible(promise: Promise, name: str, brokers: int) -> bool:
    trouble = _TROUBLES[name]
    expected = trouble.expected[list(_PROMISES).index(promise.name)]
    return expected is not None and trouble.possible(brokers)
