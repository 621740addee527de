"""The moments of a picture that tell its story, and the pace at which a replay goes through them.

A run does in a blink what people have to see one by one. So at most `MOMENTS_MAX` moments are
chosen, by what happened and not by which story it is, and a replay stops at each of them for as
long as its sentence takes to read. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from topicproof.app.charts.picture_causes import KILLED, LOST, kills
from topicproof.app.charts.picture_log import PLAIN, Part, PartitionHistory
from topicproof.app.charts.picture_words import Place, journal_event, planned_fault
from topicproof.backend.faults.by_hand import is_by_hand
from topicproof.backend.kafka.coordination.reasons import DECLARED, FENCED, OPERATOR, TIMEOUT
from topicproof.backend.sink.entries import (
    Declared,
    FaultFired,
    GenerationBegun,
    StampedEntry,
    TaskStarted,
    TransactionEnded,
)
from topicproof.validators.facts.log_facts import ABORTED, COMMITTED

MOMENTS_MAX = 6
SLOWED = 4
"""How many times slower a replay shows what happens between two events."""
STEP_LEAST_MS, STEP_MOST_MS = 80, 900
"""How long a replay takes from one event to the next."""
MOTION_MOST_MS = 15_000
"""How long a replay moves in all; a longer picture moves faster."""
HOLD_MS, READ_MS = 1_200, 40
"""How long a replay stops at a moment: this, and so much for each character of its sentence."""

_CROSSES: Mapping[str, str] = {
    KILLED: "A new worker takes over, and Kafka aborts what the killed one left open.",
    DECLARED: "An ABORT marker lands: these records stay in the log, and do not count.",
    FENCED: "A successor takes over. Kafka aborts what the old worker had open.",
    TIMEOUT: "Nobody ended the transaction in time. Kafka aborts it.",
    OPERATOR: "An operator aborts the transaction.",
    LOST: "The transaction is aborted: its records stay in the log, and do not count.",
}


@dataclass(frozen=True)
class Moment:
    """A moment that a replay stops at. Its time is in ms since 1970."""

    at: int
    says: str
    part: Part | None = None
    """The box that it is about."""
    place: Place | None = None
    """The source partition whose worker it is about."""


@dataclass(frozen=True)
class ReaderTotals:
    """How many records consumers got until the end of a run, a moment in ms since 1970."""

    at: int
    uncommitted: int
    committed: int
    repeated: int
    """Those that repeat an earlier one."""


@dataclass(frozen=True)
class Scene:
    """What moments are chosen from."""

    journal: Sequence[StampedEntry]
    parts: Sequence[Part]
    """By partition and offset."""
    histories: Mapping[int, PartitionHistory]
    causes: Mapping[Part, str]
    names: Mapping[Place, str]
    writers: Mapping[int, Place | None]
    repeated: Mapping[Part, int]
    """How many records of a part repeat an earlier one; absent: none."""
    totals: ReaderTotals | None
    """None while the run goes on."""

    @property
    def rising(self) -> list[Part]:
        return sorted(self.parts, key=lambda part: (part.written, part.partition, part.first))

    @property
    def by_end(self) -> list[Part]:
        """Those that have not ended come first."""
        return sorted(self.parts, key=lambda part: (part.ended or 0, part.partition))

    def delivered(self, part: Part) -> int | None:
        return self.histories[part.partition].delivered.get(part)

    def is_foreign(self, part: Part) -> bool:
        """Whether the records of a part name no source. Unread ones may yet do."""
        return part.outcome != PLAIN and self.writers.get(part.producer, ("", 0)) is None


def chosen_moments(scene: Scene) -> list[Moment]:
    """Returns the story's moments, at most `MOMENTS_MAX`, in the order of their times."""
    # What weighs most comes first.
    by_weight = [
        *_strikes(scene),
        *_refused(scene),
        *_held_and_released(scene),
        *_aborted(scene),
        *_repeated(scene),
        *_again(scene),
        *_committed(scene),
        *_opened(scene),
        *_waits(scene),
        *_restarted(scene),
        *_started(scene),
    ]
    ends = _ended(scene)
    # The end is never left out.
    heaviest = by_weight[: MOMENTS_MAX - len(ends)]
    return [*sorted(heaviest, key=lambda moment: moment.at), *ends]


def _strikes(scene: Scene) -> Iterator[Moment]:
    """Yields the first strike of each kind."""
    kinds = set()
    for stamped in scene.journal:
        entry = stamped.entry
        if not isinstance(entry, FaultFired):
            continue
        if planned_fault(entry) is None and not is_by_hand(entry.fault):
            continue  # Made up by whoever may write to the journal, or of another version.
        kind = entry.fault.partition("@")[0]
        says = journal_event(entry, scene.names, portions=False)
        if kind in kinds or says is None:
            continue
        kinds.add(kind)
        place = entry.source_topic, entry.source_partition
        foreign = None if kills(entry) else _foreign_after(scene, stamped.at_ms)
        at = stamped.at_ms if foreign is None else foreign.written
        yield Moment(at, says, foreign, None if foreign else place)


def _foreign_after(scene: Scene, at: int) -> Part | None:
    """Returns the first box of another producer from a moment on."""
    return next(
        (part for part in scene.rising if scene.is_foreign(part) and part.written >= at), None
    )


def _refused(scene: Scene) -> Iterator[Moment]:
    for stamped in scene.journal:
        entry = stamped.entry
        if isinstance(entry, TransactionEnded) and entry.outcome is Declared.FENCED:
            place = entry.source_topic, entry.source_partition
            if place in scene.names:
                says = (
                    f"The old worker of {scene.names[place]} writes, and Kafka refuses it: a newer"
                    " one has its place."
                )
                yield Moment(stamped.at_ms, says, place=place)
                return


def _held_and_released(scene: Scene) -> Iterator[Moment]:
    """Yields when the most records wait behind another producer's transaction, and its end."""
    foreign = [part for part in scene.rising if scene.is_foreign(part)]
    for first in foreign:
        # Its boxes in other partitions hold records back, too.
        opened = [part for part in foreign if part.producer == first.producer]
        behind = {waiting for part in opened for waiting in _behind(scene, part)}
        if not behind:
            continue
        records = sum(waiting.records for waiting in behind)
        fullest = max(waiting.ended or 0 for waiting in behind)
        says = f"{records:,} records are committed, and wait behind the open transaction."
        yield Moment(fullest, says, first)
        ends = [part.ended for part in opened if part.ended is not None]
        if len(ends) == len(opened):
            says = f"The open transaction ends: {records:,} records that waited are delivered."
            yield Moment(max(ends), says, first)
        return


def _behind(scene: Scene, blocker: Part) -> list[Part]:
    """Returns what was committed behind a box while it was open."""
    return [
        part
        for part in scene.parts
        if part.partition == blocker.partition
        and part.visible
        and part.first > blocker.first
        and part.ended is not None
        and (blocker.ended is None or part.ended < blocker.ended)
    ]


def _aborted(scene: Scene) -> Iterator[Moment]:
    for part in scene.by_end:
        if part.outcome == ABORTED and not scene.is_foreign(part) and part.ended is not None:
            yield Moment(part.ended, _CROSSES[scene.causes.get(part, LOST)], part)
            return


def _repeated(scene: Scene) -> Iterator[Moment]:
    for part in scene.rising:
        if scene.repeated.get(part):
            says = f"The same output again: {scene.repeated[part]:,} of these records came before."
            yield Moment(part.written, says, part)
            return


def _again(scene: Scene) -> Iterator[Moment]:
    """Yields the first commit of a worker after an aborted transaction of it."""
    aborted: dict[Place | None, int] = {}
    for part in scene.parts:
        if part.outcome == ABORTED and part.ended is not None and not scene.is_foreign(part):
            place = scene.writers.get(part.producer)
            aborted[place] = min(part.ended, aborted.get(place, part.ended))
    for part in scene.by_end:
        place = scene.writers.get(part.producer)
        if part.outcome == COMMITTED and part.begins >= aborted.get(place, float("inf")):
            says = "The same inputs again, in a new transaction: now they are committed."
            yield Moment(part.ended or 0, says, part)
            return


def _committed(scene: Scene) -> Iterator[Moment]:
    for part in scene.by_end:
        if part.outcome == COMMITTED and scene.delivered(part) == part.ended:
            says = "A COMMIT marker lands: read_committed gets the whole transaction at once."
            yield Moment(part.ended or 0, says, part)
            return


def _opened(scene: Scene) -> Iterator[Moment]:
    for part in scene.rising:
        if part.outcome == PLAIN:
            says = "No transactions: every reader gets each record as soon as it is written."
        elif not scene.is_foreign(part):
            says = "A transaction is open: only read_uncommitted gets its records so far."
        else:
            continue
        yield Moment(part.written, says, part)
        return


def _waits(scene: Scene) -> Iterator[Moment]:
    for part in scene.by_end:
        if part.outcome == COMMITTED and scene.delivered(part) != part.ended:
            says = (
                "Committed, but behind an older open transaction: these records wait at the gate."
            )
            yield Moment(part.ended or 0, says, part)
            return


def _restarted(scene: Scene) -> Iterator[Moment]:
    for stamped in scene.journal:
        if isinstance(stamped.entry, GenerationBegun) and stamped.entry.generation > 1:
            says = "Spark starts the query again: new workers, and old ones are locked out."
            yield Moment(stamped.at_ms, says)
            return


def _started(scene: Scene) -> Iterator[Moment]:
    for stamped in scene.journal:
        if isinstance(stamped.entry, TaskStarted):
            workers = len(scene.names)
            several = f"{workers:,} workers start, one for each partition of the source."
            yield Moment(stamped.at_ms, several if workers > 1 else "A worker starts.")
            return


def _ended(scene: Scene) -> list[Moment]:
    totals = scene.totals
    if totals is None or not totals.uncommitted:
        return []
    twice = f" {totals.repeated:,} of them came twice." if totals.repeated else ""
    if totals.uncommitted == totals.committed:
        says = f"At the end both readers got the same {totals.committed:,} records.{twice}"
    else:
        says = (
            f"At the end read_uncommitted got {totals.uncommitted:,} records, read_committed"
            f" {totals.committed:,}.{twice}"
        )
    return [Moment(totals.at, says)]


def replay_pace(
    moments: Sequence[tuple[int, str]], events: Iterable[int], length: int
) -> tuple[tuple[int, int, int], ...]:
    """Returns the pace of a replay, in rows of a time of the replay, a time of the picture, both in
    ms, and the number of the moment whose sentence is read from then on (-1: none yet).

    Between two rows time goes at an even pace. Each event gets its time, a pause does not last, and
    each of `moments` (when, and its sentence; rising) holds the picture.
    """
    points = sorted({0, length, *(at for at, _says in moments), *events})
    steps = [min(max(SLOWED * (b - a), STEP_LEAST_MS), STEP_MOST_MS) for a, b in pairwise(points)]
    hurry = min(1.0, MOTION_MOST_MS / max(1, sum(steps)))
    rows, now, latest = [], 0.0, -1
    for at, step in zip(points, [0, *steps], strict=True):
        now += hurry * step
        rows.append((round(now), at, latest))
        while latest + 1 < len(moments) and moments[latest + 1][0] <= at:
            latest += 1
            rows.append((round(now), at, latest))
            now += HOLD_MS + READ_MS * len(moments[latest][1])
            rows.append((round(now), at, latest))
    return tuple(rows)
