"""What happened, where the logs prove it: sentences that stand behind a finding's own, and the next
step that follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from topicproof.validators.facts.writers import time_of
from topicproof.validators.finding import Bounds
from topicproof.validators.sentences import counted

PRODUCERS_MAX = 3
"""A sentence names at most this many producer ids."""


@dataclass(frozen=True)
class Incident:
    """The story of a finding, and what to do about it; each a few sentences."""

    story: str
    next_step: str
    clause: str = ""
    """What follows from it, as the end of the finding's first sentence."""
    began_one_low: bool = False
    """The pipeline began again at the last processed record instead of the one after it."""


@dataclass(frozen=True)
class Writer:
    """Who wrote records: a transactional id, a producer, or a producer without idempotence."""

    name: str | None
    """The transactional id, if a coordinator named it."""
    number: int
    """The producer id; -1: the batch has none."""
    epochs: tuple[int, int]
    """The lowest and the highest epoch."""

    @property
    def text(self) -> str:
        """`job-a (producer id 23, epoch 0)`, `producer id 23, epoch 0`."""
        low, high = self.epochs
        epoch = f"epoch {low}" if low == high else f"epochs {low} to {high}"
        producer = f"producer id {self.number}, {epoch}"
        return producer if self.name is None else f"{self.name} ({producer})"

    @property
    def log(self) -> str:
        """Where its application's own log is to be looked for."""
        if self.name is not None:
            return f"the log of {self.name}"
        return log_of_producers([self.number])

    @property
    def label(self) -> str:
        """`job-a`, `producer id 23`."""
        return self.name or f"producer id {self.number}"


@dataclass(frozen=True)
class Inputs:
    """Some inputs of one source partition. `last` is inclusive."""

    partition: int
    first: int
    last: int
    count: int


def log_of_producers(numbers: Sequence[int]) -> str:
    """Says where the log of the application with these producer ids is to be looked for."""
    others = [str(number) for number in numbers[1:PRODUCERS_MAX]]
    others += ["another of them"] if len(numbers) > PRODUCERS_MAX else []
    more = "".join(f", or {other}" for other in others)
    return (
        f'the log of the application that prints "ProducerId set to {numbers[0]}"{more} (Kafka'
        " keeps no client id and no host)"
    )


def inputs_text(source: Bounds, ranges: Sequence[Inputs]) -> str:
    """Formats inputs as `orders-0@7`, `orders-0@0-9`, `orders-0@5 and @10`, `3 of orders-0@5-10`,
    `30 inputs of 2 partitions`."""
    if len(ranges) != 1:
        count = sum(each.count for each in ranges)
        return f"{counted(count, 'input')} of {counted(len(ranges), 'partition')}"
    (only,) = ranges
    topic, number = source.place(only.partition)
    place = f"{topic}-{number}"
    if only.first == only.last:
        return f"{place}@{only.first}"
    if only.count == only.last - only.first + 1:
        return f"{place}@{only.first}-{only.last}"
    if only.count == 2:
        return f"{place}@{only.first} and @{only.last}"
    return f"{only.count:,} of {place}@{only.first}-{only.last}"


def outputs_text(source: Bounds, ranges: Sequence[Inputs]) -> str:
    """Formats outputs as `the output of orders-0@7`, `the outputs of orders-0@0-9`."""
    is_single = sum(each.count for each in ranges) == 1
    return f"the {'output' if is_single else 'outputs'} of {inputs_text(source, ranges)}"


def merged(incidents: Iterable[Incident]) -> Incident | None:
    """Joins the incidents of one finding; each sentence once. None if there is none."""
    distinct = list(incidents)
    if not distinct:
        return None
    stories = dict.fromkeys(incident.story for incident in distinct if incident.story)
    steps = dict.fromkeys(incident.next_step for incident in distinct if incident.next_step)
    return Incident(" ".join(stories), " ".join(steps))


def clock(ms: int | None) -> str:
    """Formats as ` at 2026-11-28 14:03:12 UTC`; empty if no time is known."""
    time = "" if ms is None else time_of(ms)
    return f" at {time}" if time else ""
