"""The cells of the matrix: all of them, or those that somebody chose, each with its plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from topicproof.backend.errors import UsageError
from topicproof.backend.matrix.matrix_table import BROKERS, RESTARTED, TABLE, Trouble
from topicproof.backend.matrix.promises import PROMISES, Damage, Promise

SIZE: Mapping[str, Any] = {"records": 600, "partitions": 2, "per_transaction": 100, "seed": 3}
"""The plan of every cell: at least three transactions in each of two partitions, so that one
follows the fault."""

SMALL = frozenset(
    {
        ("exactly_once", "none"),
        ("exactly_once", "abort"),
        ("exactly_once", "crash-produced"),
        ("at_least_once", "crash-produced"),
        ("at_least_once-deduplicated", "crash-produced"),
        ("at_most_once", "crash-offset-sent"),
    }
)
"""A first impression: each guarantee's typical damage, and a reader that drops repeats."""


@dataclass(frozen=True)
class Cell:
    """A promise under a trouble: the plan of its run, and the damage that theory expects."""

    promise: Promise
    trouble: Trouble
    plan: Mapping[str, Any]
    must: frozenset[Damage]
    may: frozenset[Damage]
    refused: bool
    may_refuse: bool = False

    @property
    def guarantee(self) -> str:
        return self.promise.name

    @property
    def fault(self) -> str:
        return self.trouble.name


def cells(only: Sequence[str] = (), small: bool = False, brokers: int | None = None) -> list[Cell]:
    """Return the cells of the matrix that match any of `only` (`guarantee=NAME,fault=NAME`).

    A name also matches longer names that begin with it: `fault=crash` is every crash. Cells that
    a cluster of so many brokers cannot run are left out; None: all are returned. Raises UsageError
    for an unknown name, or if no cell is left.
    """
    every_cell = [
        _cell(promise, trouble, expected)
        for promise in PROMISES
        for trouble in TABLE
        if (expected := _expected_of(promise, trouble)) is not None
        and (not small or (promise.name, trouble.name) in SMALL)
    ]
    filters = [_filter(text) for text in only]
    chosen = [
        cell
        for cell in every_cell
        if not filters or any(_fits(cell, filter_) for filter_ in filters)
    ]
    possible = [cell for cell in chosen if brokers is None or cell.trouble.possible(brokers)]
    if chosen and not possible:
        raise UsageError(
            f"These cells strike brokers, and need {BROKERS} embedded brokers. Add --brokers"
            f" {BROKERS} and remove --bootstrap."
        )
    return possible


def in_real_time(cells_chosen: Sequence[Cell]) -> list[Cell]:
    """Return the cells in real time, without those that write a table, which it does not support.

    A task that fails ends its whole query there, and the query starts again. So what makes one fail
    may show what a restart shows.
    """
    return [
        replace(
            cell,
            plan={**cell.plan, "trigger": "real_time"},
            may=cell.may | _may_restart(cell.promise) if "faults" in cell.plan else cell.may,
        )
        for cell in cells_chosen
        if cell.plan.get("scenario") != "table"
    ]


def _may_restart(promise: Promise) -> frozenset[Damage]:
    return _cell(promise, RESTARTED, _expected_of(promise, RESTARTED) or "").may


def _expected_of(promise: Promise, trouble: Trouble) -> str | None:
    """Return the expectation in the words of `Trouble.expected`; None if there is nothing to
    try."""
    guarantees = [plain.name for plain in PROMISES if plain.like is None]
    if promise.like is None:
        return trouble.expected[guarantees.index(promise.name)]
    if trouble.name not in promise.under:
        return None
    expected = (trouble.expected[guarantees.index(promise.like)] or "").split()
    dropped = {Damage.DUPLICATES.value, Damage.INVERSIONS.value}
    return " ".join(word for word in expected if word.removesuffix("?") not in dropped)


def _cell(promise: Promise, trouble: Trouble, expected: str) -> Cell:
    words = set(expected.split()) - {"refused"}
    return Cell(
        promise,
        trouble,
        {**SIZE, **promise.plan, **trouble.plan},
        frozenset(Damage(word) for word in words if not word.endswith("?")),
        frozenset(Damage(word[:-1]) for word in words if word.endswith("?")),
        "refused" in expected,
    )


def _filter(text: str) -> dict[str, str]:
    names = {
        "guarantee": [entry.name for entry in PROMISES],
        "fault": [entry.name for entry in TABLE],
    }
    values = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in names:
            raise UsageError(
                f"--only {text}: expected guarantee=NAME, fault=NAME or both with a comma between."
            )
        if not any(_begins(entry, value) for entry in names[name]):
            raise UsageError(
                f"--only {text}: there is no {name} {value!r}. Known: {', '.join(names[name])}."
            )
        values[name] = value
    return values


def _fits(cell: Cell, values: Mapping[str, str]) -> bool:
    return all(_begins(getattr(cell, name), value) for name, value in values.items())


def _begins(name: str, value: str) -> bool:
    return name == value or name.startswith(f"{value}-")
