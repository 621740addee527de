"""The picture of a run over time: source partitions, workers, sink partitions and two readers.

Everything in it comes from the journal and from the raw log of the sink; nothing is invented. The
log gives each transaction's boxes, its markers and the last stable offset (LSO). The journal gives
the workers, their progress and the faults. Pure: facts in, a picture out, which the browser plays
(app/run/picture.js).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

import pandas as pd

from topicproof.app.charts.picture_causes import CAUSES, LOST, abort_causes
from topicproof.app.charts.picture_log import PLAIN, Part, PartitionHistory, newest, parts_of, sweep
from topicproof.app.charts.picture_moments import (
    Moment,
    ReaderTotals,
    Scene,
    chosen_moments,
    replay_pace,
)
from topicproof.app.charts.picture_words import (
    Place,
    begins,
    ends,
    journal_event,
    left_out,
    opens_foreign,
    stops_worker,
    strikes_worker,
    worker_names,
)
from topicproof.backend.characters import visible
from topicproof.backend.faults.by_hand import CUT_OFF
from topicproof.backend.kafka.coordination.reasons import DECLARED
from topicproof.backend.kafka.log.over_partitions import over_partitions
from topicproof.backend.sink.entries import (
    EVERY_PARTITION,
    Declared,
    FaultFired,
    FaultPhase,
    FaultReport,
    GenerationBegun,
    StampedEntry,
    TaskStarted,
    TransactionEnded,
)
from topicproof.validators.finding import Bounds

TRANSACTIONS_MAX = 120
"""Transactions in a picture: those that ended last, and all that are open. The picture begins when
the last of the others ended, so it lacks nothing of the time that it shows."""
BATCHES_MAX = 360
"""Batches outside of transactions in a picture."""
LANES_MAX = 8
"""Sink partitions in a picture, and workers."""
EVENTS_MAX = 600
"""Events to step through, the newest ones."""
PAUSE_MS = 1_500
"""A longer time without any event is shortened to this."""
LEAD_MS = 400
"""How long the picture shows nothing before the first event."""
OTHERS = -1
"""In place of a worker: a producer that is not of the run, or whose records do not name it."""

Steps = tuple[tuple[int, int], ...]
"""A figure over time: its value from each moment on. Moments rise."""


@dataclass(frozen=True)
class RunFacts:
    """The facts of a run at one moment. Times are in ms since 1970."""

    sources: Mapping[Place, tuple[int, int]]
    """First and end offset of the inputs of each source partition."""
    journal: Sequence[StampedEntry]
    bounds: Bounds
    """Of the sink."""
    transactions: pd.DataFrame
    """Rows of `fates.transactions`."""
    plain: pd.DataFrame
    """Batches (`batches.SCHEMA`) outside of transactions."""
    writers: Mapping[int, Place | None]
    """Source partition of each producer id, by the headers of its records; None: they have no such
    header."""
    period: tuple[int, int]
    """When the run was created, and when these facts were read."""
    before: Mapping[int, int]
    """End offset of each sink partition before the run. Absent: the partition was empty."""
    repeated: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Offsets of records that repeat an earlier one, rising, by sink partition: as the verdict of
    the run found them. Empty without a verdict."""
    first_copies: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """Partition and offset of the first copy of each of them, as far as it is in this sink."""
    reasons: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """Proven reasons of aborts (`coordination.reasons`), by partition and first offset."""
    has_ended: bool = False


@dataclass(frozen=True)
class Worker:
    """The writer of one source partition."""

    name: str
    total: int
    """Inputs of its source partition so far, in offsets."""
    epoch: Steps
    """Epoch of its producer, by the log."""
    done: Steps
    """Inputs that are committed, by the journal."""
    struck: tuple[int, ...]
    """When a fault struck it."""
    zombies: Steps
    """When it was stopped without being killed, and when Kafka refused it after that: from,
    until."""


@dataclass(frozen=True)
class Lane:
    """One sink partition. The last three count records."""

    name: str
    hw: Steps
    lso: Steps
    uncommitted: Steps
    """A read_uncommitted consumer can have received them."""
    aborted: Steps
    """Those of them that were aborted."""
    committed: Steps
    """A read_committed consumer can have received them."""
    repeated: Steps
    """Those of them that repeat an earlier one."""


@dataclass(frozen=True)
class Box:
    """The records of one transaction in one sink partition, or a batch outside of transactions."""

    lane: int
    worker: int
    """Or `OTHERS`."""
    first: int
    end: int
    """After the last record."""
    records: int
    begins: int
    written: int
    ended: int
    """When its marker landed; -1: it is open."""
    delivered: int
    """When a read_committed consumer could receive it; -1: never, or not yet."""
    outcome: str
    epoch: int
    repeated: int
    """Records that repeat an earlier one."""
    first_copy: int
    """The box with the first copy of the first of them; -1: none, or it is not drawn."""
    cause: str
    """Why it has a cross, in a word or two; empty without one."""


@dataclass(frozen=True)
class Cue:
    """A moment that a replay stops at, and what it is about: a box or a worker (-1: none)."""

    at: int
    says: str
    box: int
    worker: int


@dataclass(frozen=True)
class Event:
    """A moment to stop at, and a sentence."""

    at: int
    says: str
    key: bool
    """Whether somebody who watches must not miss it."""


@dataclass(frozen=True)
class Picture:
    """Times are in ms of the picture, from 0. `clock` maps some of them to ms since the run was
    created, in which pauses are not shortened; between two of them time goes at an even pace."""

    workers: tuple[Worker, ...]
    lanes: tuple[Lane, ...]
    boxes: tuple[Box, ...]
    events: tuple[Event, ...]
    clock: Steps
    left_out: tuple[str, ...]
    """What the picture lacks."""
    summary: str
    """The picture in words."""
    frozen: Steps
    """When the workers were cut off from the brokers: from, until."""
    foreign_struck: tuple[int, ...]
    """When a fault let another producer open a transaction."""
    cues: tuple[Cue, ...]
    """The moments that tell the story, at most `MOMENTS_MAX`."""
    pace: tuple[tuple[int, int, int], ...]
    """How a replay goes through them (`replay_pace`)."""

    @property
    def length(self) -> int:
        return self.clock[-1][0]

    def as_json(self) -> dict[str, Any]:
        """Returns it for the browser. Boxes are lists in the order of `Box`'s fields. Who may write
        to the journal writes parts of its sentences, so what moves or hides text is spelled."""
        fields = asdict(self) | {"boxes": [astuple(box) for box in self.boxes]}
        return {name: _spelled(value) for name, value in fields.items()}


def _spelled(value: Any) -> Any:
    match value:
        case str():
            return visible(value)
        case dict():
            return {name: _spelled(item) for name, item in value.items()}
        case list() | tuple():
            return [_spelled(item) for item in value]
    return value


@dataclass(frozen=True)
class Clock:
    """Moments of the run beside moments of the picture, both rising."""

    true: tuple[int, ...]
    play: tuple[int, ...]

    def shown(self, at: int) -> int:
        """Returns the moment of the picture."""
        number = min(max(0, bisect_right(self.true, at) - 1), len(self.true) - 2)
        low, high = self.true[number : number + 2]
        share = (min(max(at, low), high) - low) / (high - low)
        return self.play[number] + round(share * (self.play[number + 1] - self.play[number]))

    def steps(self, base: int, values: Iterable[tuple[int, int]]) -> Steps:
        """Returns a figure over the picture's time, from its first value on. Of several values at
        one moment the last counts."""
        latest = {0: base} | {self.shown(at): value for at, value in values}
        rising = sorted(latest.items())
        return tuple(
            step
            for number, step in enumerate(rising)
            if not number or step[1] != rising[number - 1][1]
        )

    def sums(self, added: Iterable[tuple[int, int]]) -> Steps:
        """Returns a sum over the picture's time."""
        ordered = sorted(added)
        totals = accumulate(value for _at, value in ordered)
        return self.steps(0, zip((at for at, _value in ordered), totals, strict=True))


def make_clock(origin: int, end: int, moments: Iterable[int]) -> Clock:
    """Returns the clock of a picture: pauses between the moments are shortened."""
    true = sorted({origin, max(end, origin + 1), *(at for at in moments if origin <= at <= end)})
    play = list(accumulate((min(b - a, PAUSE_MS) for a, b in pairwise(true)), initial=0))
    # Only where the pace changes.
    shortened = {n for n, (a, b) in enumerate(pairwise(true)) if b - a > PAUSE_MS}
    turns = sorted({0, len(true) - 1} | shortened | {n + 1 for n in shortened})
    return Clock(tuple(true[n] for n in turns), tuple(play[n] for n in turns))


def picture(facts: RunFacts) -> Picture:
    """Returns the picture of a run. The same facts give the same picture."""
    parts = parts_of(facts.transactions, facts.plain, facts.before, facts.period)
    recent, older = newest(parts, TRANSACTIONS_MAX, BATCHES_MAX)
    began = max([facts.period[0], *(int(part.until) for part in older)])
    numbers = [p.partition for p in facts.bounds.partitions]
    # What is not drawn counts in the totals, and may still wait at the gate.
    histories = {
        number: sweep(_of(parts, number), facts.before.get(number, 0))
        for number in numbers[:LANES_MAX]
    }
    drawn = [part for part in recent if part.partition in histories]
    causes = abort_causes(drawn, facts.writers, facts.journal, facts.reasons)
    places = sorted(facts.sources)
    names = worker_names(places[:LANES_MAX])
    journal = [stamped for stamped in facts.journal if began <= stamped.at_ms <= facts.period[1]]
    events = sorted(
        [
            *_journal_events(journal, names, facts),
            *_log_events(drawn, names, facts, histories, causes),
        ],
        key=lambda event: event.at,
    )
    moments = {at for part in drawn for _offset, at, _what in part.points}
    moments |= {event.at for event in events}
    # Before its first event a run only fills its source.
    first = min((at for at in moments if at >= began), default=facts.period[1])
    clock = make_clock(max(began, first - LEAD_MS), facts.period[1], moments)
    lanes = list(histories)
    repeated = {part: count for part in drawn if (count := _repeated(part, facts))}
    totals = _totals(parts, histories, facts)
    scene = Scene(journal, drawn, histories, causes, names, facts.writers, repeated, totals)
    cues = [_cue(moment, drawn, list(names), clock) for moment in chosen_moments(scene)]
    boxes = tuple(
        _box(part, lanes, list(names), facts, histories[part.partition], clock, drawn, causes)
        for part in drawn
    )
    timed = [replace(event, at=clock.shown(event.at)) for event in events[-EVENTS_MAX:]]
    return Picture(
        workers=tuple(_worker(facts, place, names, journal, drawn, clock) for place in names),
        lanes=tuple(_lane(n, histories[n], _of(parts, n), facts, clock) for n in lanes),
        boxes=boxes,
        events=tuple(timed),
        clock=tuple(zip(clock.play, (at - facts.period[0] for at in clock.true), strict=True)),
        left_out=tuple(left_out(len(older), (len(lanes), len(numbers)), (len(names), len(places)))),
        summary=_summary(drawn, histories, names, causes, sum(repeated.values())),
        frozen=_frozen(facts, clock),
        foreign_struck=_foreign_strikes(journal, clock),
        cues=tuple(cues),
        pace=replay_pace(
            [(cue.at, cue.says) for cue in cues], [event.at for event in timed], clock.play[-1]
        ),
    )


def _totals(
    parts: Sequence[Part], histories: Mapping[int, PartitionHistory], facts: RunFacts
) -> ReaderTotals | None:
    """Returns what the readers of the drawn partitions got until the end; None while it goes on."""
    if not facts.has_ended:
        return None
    counted = [part for part in parts if part.partition in histories]
    return ReaderTotals(
        facts.period[1],
        sum(part.records for part in counted),
        sum(part.records for history in histories.values() for part in history.delivered),
        sum(_repeated(part, facts) for part in counted),
    )


def _cue(moment: Moment, drawn: Sequence[Part], places: Sequence[Place], clock: Clock) -> Cue:
    return Cue(
        clock.shown(moment.at),
        moment.says,
        -1 if moment.part is None else drawn.index(moment.part),
        places.index(moment.place) if moment.place in places else OTHERS,
    )


def _foreign_strikes(journal: Sequence[StampedEntry], clock: Clock) -> tuple[int, ...]:
    return tuple(
        clock.shown(stamped.at_ms)
        for stamped in journal
        if isinstance(stamped.entry, FaultFired) and opens_foreign(stamped.entry)
    )[-EVENTS_MAX:]


def _of(parts: Iterable[Part], partition: int) -> list[Part]:
    return [part for part in parts if part.partition == partition]


def _who(part: Part, names: Mapping[Place, str], facts: RunFacts) -> str:
    place = facts.writers.get(part.producer)
    name = None if place is None else names.get(place)
    return f"Producer {part.producer}" if name is None else f"The worker of {name}"


def _journal_events(
    journal: Sequence[StampedEntry], names: Mapping[Place, str], facts: RunFacts
) -> list[Event]:
    portions = facts.transactions.empty
    events = []
    for stamped in journal:
        says = journal_event(stamped.entry, names, portions)
        if says is not None:
            is_key = isinstance(stamped.entry, FaultFired | FaultReport | GenerationBegun)
            events.append(Event(stamped.at_ms, says, is_key))
    return events


def _log_events(
    drawn: Sequence[Part],
    names: Mapping[Place, str],
    facts: RunFacts,
    histories: Mapping[int, PartitionHistory],
    causes: Mapping[Part, str],
) -> list[Event]:
    """Returns when each transaction began, and when its markers landed."""
    by_place = {(part.partition, part.first): part for part in drawn if part.outcome != PLAIN}
    delivered = {
        part: at for history in histories.values() for part, at in history.delivered.items()
    }
    became_visible = Counter[tuple[int, int]]()
    for part, at in delivered.items():
        if part.ended is not None and part.ended < at:
            became_visible[part.partition, at] += part.records
    rows = facts.transactions
    places = zip(rows["partition"], rows["first_offset"], strict=True)
    is_drawn = pd.Series([place in by_place for place in places], rows.index, dtype=bool)
    events = []
    for transaction in over_partitions(rows[is_drawn]).to_dict("records"):
        places = zip(
            transaction["partitions"], transaction["first_offset_by_partition"], strict=True
        )
        parts = [by_place[place] for place in places]
        writer = _who(parts[0], names, facts)
        began = min(part.begins for part in parts)
        events.append(Event(began, begins(writer, parts), key=False))
        ended = max((part.ended for part in parts if part.ended is not None), default=None)
        if ended is None:
            continue
        moments = {(part.partition, part.ended) for part in parts if part.ended is not None}
        released = sum(became_visible[moment] for moment in moments)
        waits = any(part.visible and delivered.get(part) != part.ended for part in parts)
        cause = causes.get(parts[0], DECLARED)
        why = "" if cause in (DECLARED, LOST) else CAUSES[cause]
        says = ends(writer, parts, waits, released, why)
        events.append(Event(ended, says, key=released > 0))
    return events


def _worker(
    facts: RunFacts,
    place: Place,
    names: Mapping[Place, str],
    journal: Sequence[StampedEntry],
    drawn: Sequence[Part],
    clock: Clock,
) -> Worker:
    first, end = facts.sources[place]
    done = []
    for stamped in facts.journal:
        entry = stamped.entry
        if not isinstance(entry, TaskStarted | TransactionEnded) or place != (
            entry.source_topic,
            entry.source_partition,
        ):
            continue
        if isinstance(entry, TaskStarted) or entry.outcome is Declared.COMMITTED:
            done.append((stamped.at_ms, max(0, entry.next_offset - first)))
    written = [part for part in drawn if facts.writers.get(part.producer) == place]
    return Worker(
        names[place],
        end - first,
        clock.steps(-1, sorted((part.begins, part.epoch) for part in written)),
        clock.steps(0, done),
        tuple(
            clock.shown(stamped.at_ms)
            for stamped in journal
            if isinstance(stamped.entry, FaultFired)
            and strikes_worker(stamped.entry)
            and (stamped.entry.source_topic, stamped.entry.source_partition)
            in (place, (place[0], EVERY_PARTITION))
        )[-EVENTS_MAX:],
        _zombies(place, journal, clock),
    )


def _zombies(place: Place, journal: Sequence[StampedEntry], clock: Clock) -> Steps:
    """Returns when a worker of this source partition was stopped, and when it was refused."""
    stopped: dict[str, int] = {}
    periods = []
    for stamped in journal:
        entry = stamped.entry
        if not isinstance(entry, FaultFired | TransactionEnded):
            continue
        if place != (entry.source_topic, entry.source_partition):
            continue
        if isinstance(entry, FaultFired) and stops_worker(entry):
            stopped.setdefault(entry.task, stamped.at_ms)
        elif isinstance(entry, TransactionEnded) and entry.task in stopped:
            periods.append((stopped.pop(entry.task), stamped.at_ms))
    periods += [(at, clock.true[-1]) for at in stopped.values()]
    newest = sorted(periods)[-EVENTS_MAX:]
    return tuple((clock.shown(since), clock.shown(until)) for since, until in newest)


def _frozen(facts: RunFacts, clock: Clock) -> tuple[tuple[int, int], ...]:
    """Returns when a fault cut the workers off from the brokers, and when it healed."""
    began: dict[str, int] = {}
    periods = []
    for stamped in facts.journal:
        entry = stamped.entry
        if not isinstance(entry, FaultReport) or not entry.fault.startswith(CUT_OFF):
            continue
        if entry.what is FaultPhase.DONE:
            began[entry.fault] = stamped.at_ms
        elif entry.fault in began:
            periods.append((began.pop(entry.fault), stamped.at_ms))
    periods += [(at, facts.period[1]) for at in began.values()]
    newest = sorted(periods)[-EVENTS_MAX:]
    return tuple((clock.shown(since), clock.shown(until)) for since, until in newest)


def _repeated(part: Part, facts: RunFacts) -> int:
    """Counts the records of a box that repeat an earlier one."""
    offsets = facts.repeated.get(part.partition, ())
    return bisect_left(offsets, part.end) - bisect_left(offsets, part.first)


def _first_copy(part: Part, facts: RunFacts, drawn: Sequence[Part]) -> int:
    """Returns the box with the first copy of the first record of a box that is a repeat; -1: none
    is drawn."""
    offsets = facts.repeated.get(part.partition, ())
    number = bisect_left(offsets, part.first)
    if number == len(offsets) or offsets[number] >= part.end:
        return -1
    partition, offset = facts.first_copies.get((part.partition, offsets[number]), (-1, -1))
    return next(
        (
            box
            for box, other in enumerate(drawn)
            if other.partition == partition and other.first <= offset < other.end
        ),
        -1,
    )


def _lane(
    number: int,
    history: PartitionHistory,
    parts: Sequence[Part],
    facts: RunFacts,
    clock: Clock,
) -> Lane:
    lost = [part for part in parts if part.ended is not None and not part.visible]
    return Lane(
        f"p{number}",
        clock.steps(history.start, history.hw),
        clock.steps(history.start, history.lso),
        clock.sums((part.written, part.records) for part in parts),
        clock.sums((part.ended or 0, part.records) for part in lost),
        clock.sums((at, part.records) for part, at in history.delivered.items()),
        clock.sums(
            (at, repeated)
            for part, at in history.delivered.items()
            if (repeated := _repeated(part, facts))
        ),
    )


def _box(
    part: Part,
    lanes: Sequence[int],
    places: Sequence[Place],
    facts: RunFacts,
    history: PartitionHistory,
    clock: Clock,
    drawn: Sequence[Part],
    causes: Mapping[Part, str],
) -> Box:
    place = facts.writers.get(part.producer)
    delivered = history.delivered.get(part)
    return Box(
        lanes.index(part.partition),
        places.index(place) if place in places else OTHERS,
        part.first,
        part.end,
        part.records,
        clock.shown(part.begins),
        clock.shown(part.written),
        -1 if part.ended is None else clock.shown(part.ended),
        -1 if delivered is None else clock.shown(delivered),
        part.outcome,
        part.epoch,
        _repeated(part, facts),
        _first_copy(part, facts, drawn),
        CAUSES[causes[part]] if part in causes else "",
    )


def _summary(
    drawn: Sequence[Part],
    histories: Mapping[int, PartitionHistory],
    names: Mapping[Place, str],
    causes: Mapping[Part, str],
    repeated: int,
) -> str:
    """Returns the last moment of the picture in words."""
    counts: dict[str, int] = {}
    for part in drawn:
        counts[part.outcome] = counts.get(part.outcome, 0) + 1
    boxes = ", ".join(f"{count:,} {outcome.lower()}" for outcome, count in sorted(counts.items()))
    crosses = Counter(CAUSES[cause] for cause in causes.values())
    why = ", ".join(f"{count:,} {cause}" for cause, count in sorted(crosses.items()))
    behind = [
        f"p{number}: LSO {history.lso[-1][1]:,} of {history.hw[-1][1]:,}"
        for number, history in histories.items()
        if history.lso and history.lso[-1][1] < history.hw[-1][1]
    ]
    gate = (
        f"The last stable offset holds records back in {'; '.join(behind)}."
        if behind
        else "Nothing is held back."
    )
    return (
        f"{len(names):,} workers write to {len(histories):,} sink partitions."
        f" Boxes at the end: {boxes or 'none yet'}."
        f"{f' Crosses: {why}.' if why else ''}"
        f"{f' {repeated:,} records repeat earlier ones (2×).' if repeated else ''} {gate}"
    )
