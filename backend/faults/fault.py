"""Faults and their text: `KIND@key=value,key=value`, such as `crash@transaction=3,step=begun`.

A kind names what goes wrong, its keys where. The kinds are data (kinds.py) for the command line,
the Run page and the checks of a plan. A family's own module only does the damage.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from topicproof.backend.errors import UsageError
from topicproof.backend.sink.hooks import Step


class Side(StrEnum):
    """The process that does the damage."""

    WORKER = "worker"
    """The sink, inside a task: once in transaction N of every source partition."""
    RUN = "run"
    """The run's own process: once, while the worker of source partition 0 waits."""


@dataclass(frozen=True)
class Key:
    """One key of a kind: a whole number from `least`, or one of `words`."""

    name: str
    default: str | None = None
    """None if the key is required."""
    words: Sequence[str] = ()
    least: int = 1

    def __str__(self) -> str:
        form = "|".join(self.words) if self.words else "N"
        return f"{self.name}={form}" + (
            "" if self.default is None else f" ({self.default} by default)"
        )


@dataclass(frozen=True)
class Kind:
    """Something that goes wrong on purpose."""

    name: str
    says: str
    """One sentence for help texts and pages."""
    side: Side
    keys: tuple[Key, ...]
    step: Step = Step.PRODUCED
    """The step where it strikes unless a key names another."""
    needs_transactions: bool = False
    """Whether it strikes something that exists only with exactly_once."""
    transactional_words: Sequence[str] = ()
    """Words of its keys that make it need transactions."""

    def has(self, name: str) -> bool:
        return any(key.name == name for key in self.keys)


TRANSACTION = Key("transaction")


def step_key(*steps: Step, default: Step = Step.PRODUCED) -> Key:
    return Key("step", default.value, tuple(step.value for step in steps or Step))


@dataclass(frozen=True)
class Fault:
    """One fault of a plan. `str` is its shortest form, which names it in the journal."""

    kind: Kind
    place: Mapping[str, str]
    """Every key of the kind with its value, defaults included."""

    @property
    def transaction(self) -> int:
        return self.number("transaction")

    @property
    def step(self) -> Step:
        return Step(self.place.get("step", self.kind.step))

    @property
    def needs_transactions(self) -> bool:
        words = set(self.kind.transactional_words) & set(self.place.values())
        return self.kind.needs_transactions or self.step is Step.COMMITTING or bool(words)

    def number(self, key: str) -> int:
        return int(self.place[key])

    def word(self, key: str) -> str:
        return self.place[key]

    def __str__(self) -> str:
        pairs = [
            f"{key.name}={self.place[key.name]}"
            for key in self.kind.keys
            if self.place[key.name] != key.default
        ]
        return f"{self.kind.name}@{','.join(pairs)}"


def parse(text: str, kinds: Sequence[Kind]) -> Fault:
    """Parse a fault. Raises UsageError, naming the known ones, for a text that is not a fault of
    `kinds`."""
    name, at, where = text.strip().partition("@")
    kind = next((kind for kind in kinds if kind.name == name), None)
    if kind is None or not at:
        syntax = "; ".join(f"{kind.name}@{_keys(kind)}" for kind in kinds)
        raise UsageError(
            f"Unknown fault {text!r}. Known: {syntax}. For example crash@transaction=3."
        )
    values: dict[str, str] = {}
    for part in where.split(","):
        key, equals, value = part.partition("=")
        if not equals or key in values:
            raise UsageError(
                f"Fault {text!r}: expected key=value, each key once, but found {part!r}."
            )
        values[key] = value
    unknown = [key for key in values if key not in {key.name for key in kind.keys}]
    if unknown:
        raise UsageError(f"Fault {text!r}: unknown key {unknown[0]!r}. {name} takes {_keys(kind)}.")
    return Fault(kind, {key.name: _value(text, key, values.get(key.name)) for key in kind.keys})


def _keys(kind: Kind) -> str:
    return ", ".join(str(key) for key in kind.keys)


def _value(text: str, key: Key, text_of_key: str | None) -> str:
    value = key.default if text_of_key is None else text_of_key
    if value is None:
        raise UsageError(f"Fault {text!r}: {key.name} is missing; add {key}.")
    if key.words and value not in key.words:
        raise UsageError(
            f"Fault {text!r}: unknown {key.name} {value!r}. Known: {', '.join(key.words)}."
        )
    if not key.words and not (re.fullmatch(r"[0-9]{1,9}", value) and int(value) >= key.least):
        raise UsageError(
            f"Fault {text!r}: {key.name} is {value!r}; it must be a whole number from {key.least}."
        )
    return value if key.words else str(int(value))
