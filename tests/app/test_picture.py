"""The picture of a run, made of a journal and a log: pure."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pandas as pd
import pytest

from tests.validators.history import table_of
from topicproof.app.charts import picture as pictures
from topicproof.app.charts.picture import (
    EVENTS_MAX,
    OTHERS,
    PAUSE_MS,
    Box,
    Picture,
    RunFacts,
    Steps,
    picture,
)
from topicproof.app.charts.picture_moments import MOMENTS_MAX, replay_pace
from topicproof.backend.characters import visible
from topicproof.backend.faults.by_hand import Freeze, Kill
from topicproof.backend.kafka.log import fates
from topicproof.backend.sink.entries import (
    EVERY_PARTITION,
    Declared,
    Entry,
    FaultFired,
    FaultPhase,
    FaultReport,
    GenerationBegun,
    StampedEntry,
    TaskFailed,
    TaskStarted,
    TransactionEnded,
    WorkerBegan,
)
from topicproof.validators.facts.log_facts import BATCH_COLUMNS
from topicproof.validators.finding import Bounds, PartitionBounds

T = 1_700_000_000_000
"""When the run began."""
FOREIGN = 99


def batch(
    partition: int, first: int, last: int, producer: int, epoch: int, at: int, control: Any = None
) -> tuple[Any, ...]:
    count = last - first + 1
    many = (partition, first, last, count, producer, epoch, 0, producer >= 0, control)
    return (*many, T + at, T + at, 100, "none", 0)


LOG = [
    # Partition 0: worker 0 commits 0-9 with its marker at 10. A foreign one opens at 11 and never
    # ends. Worker 0 aborts 12-16 (marker 17), then commits them at a higher epoch (18-22, 23).
    batch(0, 0, 9, 7, 0, 100),
    batch(0, 10, 10, 7, 0, 150, "COMMIT"),
    batch(0, 11, 11, FOREIGN, 5, 200),
    batch(0, 12, 16, 7, 0, 300),
    batch(0, 17, 17, 7, 1, 400, "ABORT"),
    batch(0, 18, 22, 7, 1, 500),
    batch(0, 23, 23, 7, 1, 600, "COMMIT"),
    # Partition 1: the same two of worker 0, and one record outside of any transaction. Its producer
    # says that it is of the year 2081.
    batch(1, 0, 4, 7, 0, 110),
    batch(1, 5, 5, 7, 0, 151, "COMMIT"),
    batch(1, 6, 6, -1, -1, 3_500_000_000_000),
    batch(1, 7, 8, 7, 1, 510),
    batch(1, 9, 9, 7, 1, 601, "COMMIT"),
]
BOUNDS = Bounds("squares", (PartitionBounds(0, 0, 11, 24), PartitionBounds(1, 0, 10, 10)))


def ended(outcome: Declared, sequence: int, following: int, reason: str = "") -> TransactionEnded:
    name = "run-numbers-0"
    return TransactionEnded(
        "t", name, "numbers", 0, sequence, 1, outcome, reason, 10, 15, following
    )


JOURNAL: list[tuple[int, Entry]] = [
    (50, TaskStarted("t", "run-numbers-0", "numbers", 0, 1, 0)),
    (160, ended(Declared.COMMITTED, 1, 10)),
    (310, FaultFired("t", "error@transaction=2", "numbers", 0, 2)),
    (390, ended(Declared.ABORTED, 2, 15, "raised on purpose.")),
    (610, ended(Declared.COMMITTED, 2, 15)),
]


def seen(
    log: list[Any] = LOG,
    bounds: Bounds = BOUNDS,
    journal: list[tuple[int, Entry]] = JOURNAL,
    **more: Any,
) -> RunFacts:
    table = table_of(log, BATCH_COLUMNS)
    rows = table.to_pandas()
    given: dict[str, Any] = {
        "sources": {("numbers", 0): (0, 20), ("numbers", 1): (0, 20)},
        "journal": [StampedEntry(T + at, entry) for at, entry in journal],
        "bounds": bounds,
        "transactions": fates.transactions(table, bounds),
        "plain": rows[~rows["transactional"] & rows["control"].isna()],
        "writers": {7: ("numbers", 0), 8: ("numbers", 1), FOREIGN: None},
        "period": (T, T + 2_000),
        "before": {},
    }
    return RunFacts(**given | more)


def at(steps: Steps, moment: int) -> int:
    return [value for when, value in steps if when <= moment][-1]


def boxes(found: Picture, lane: int) -> list[Box]:
    return [box for box in found.boxes if box.lane == lane]


def test_a_committed_an_aborted_and_an_open_transaction_over_two_partitions() -> None:
    """Story: a run commits, aborts and tries again, while a foreign transaction stays open in
    partition 0. There the gate stands in front of it, and what is committed behind it waits; in
    partition 1 everything is delivered."""
    found = picture(seen())
    first, second = found.lanes
    assert [(b.outcome, b.records, b.delivered >= 0) for b in boxes(found, 0)] == [
        ("COMMITTED", 10, True),
        ("OPEN", 1, False),
        ("ABORTED", 5, False),
        ("COMMITTED", 5, False),
    ]
    assert [b.worker for b in boxes(found, 0)] == [0, OTHERS, 0, 0]
    # The gate: at the foreign record from the moment it is there, and before it wherever the oldest
    # open transaction began.
    assert [at(first.lso, moment) for moment in (99, 100, 150, 200, 600, found.length)] == [
        *(0, 0, 11, 11, 11, 11),
    ]
    assert at(second.lso, found.length) == 10
    for lane, p in zip(found.lanes, BOUNDS.partitions, strict=True):
        assert (lane.lso[-1][1], lane.hw[-1][1]) == (p.lso, p.hw), "as the broker says"
    assert [lane.uncommitted[-1][1] for lane in found.lanes] == [21, 8]
    assert [lane.aborted[-1][1] for lane in found.lanes] == [5, 0]
    assert [lane.committed[-1][1] for lane in found.lanes] == [10, 8]
    assert "p0: LSO 11 of 24" in found.summary and "1 open" in found.summary
    assert not found.left_out and found.clock[0] == (0, 0)


def test_the_worker_and_its_epoch() -> None:
    """Story: the worker of partition 0 was struck and came back with a higher epoch. Its progress
    is that of the journal; the other worker has done nothing."""
    worker, idle = picture(seen()).workers
    assert worker.epoch == ((0, -1), (100, 0), (500, 1))
    assert worker.done == ((0, 0), (160, 10), (610, 15)) and worker.total == 20
    assert worker.struck == (310,)
    assert idle.name == "p1" and idle.done == ((0, 0),) and idle.epoch == ((0, -1),)


def test_every_event_is_a_sentence_at_its_moment() -> None:
    """Story: somebody steps through the picture, or reads it instead of looking."""
    found = picture(seen())
    said = [(event.at, event.says) for event in found.events]
    assert said == [
        (50, "A worker takes over p0 at offset 0. Earlier workers of p0 can no longer commit."),
        (
            100,
            "The worker of p0 begins a transaction in p0 and p1. read_committed waits there.",
        ),
        (
            151,
            "COMMIT markers land in p0 and p1: 15 records of the worker of p0 are committed.",
        ),
        (200, "Producer 99 begins a transaction in p0. read_committed waits there."),
        (300, "The worker of p0 begins a transaction in p0. read_committed waits there."),
        (310, "The worker of p0 raises an error in its transaction 2 (error)."),
        (390, "The worker of p0 aborts its transaction: raised on purpose."),
        (
            400,
            "ABORT markers land in p0: 5 records of the worker of p0 stay in the log, and no"
            " read_committed consumer gets them.",
        ),
        (500, "The worker of p0 begins a transaction in p0 and p1. read_committed waits there."),
        (
            601,
            "COMMIT markers land in p0 and p1: 7 records of the worker of p0 are committed, and"
            " wait behind an open transaction.",
        ),
    ]


def test_what_waited_is_delivered_when_the_open_one_ends() -> None:
    """Story: the foreign transaction is aborted. The gate opens, and the event says how many
    records that were committed long before become visible."""
    log = [*LOG, batch(0, 24, 24, FOREIGN, 5, 900, "ABORT")]
    bounds = Bounds("squares", (PartitionBounds(0, 0, 25, 25), PartitionBounds(1, 0, 10, 10)))
    found = picture(seen(log, bounds))
    assert at(found.lanes[0].lso, 899) == 11 and at(found.lanes[0].lso, 900) == 25
    assert [b.delivered for b in boxes(found, 0)] == [150, -1, -1, 900]
    assert found.events[-1].says.endswith("5 records that waited become visible.")
    assert "Nothing is held back" in found.summary


def test_timestamps_of_producers_are_kept_within_the_run() -> None:
    """Story: a record claims to be of the year 2081. The box lies within the run, and what follows
    in its partition is not before it."""
    found = picture(seen())
    times = [(b.begins, b.written, b.ended) for b in boxes(found, 1)]
    assert times == sorted(times) and all(t <= found.length for row in times for t in row)
    assert boxes(found, 1)[1].outcome == "PLAIN" and boxes(found, 1)[1].delivered >= 0


def test_pauses_are_shortened_and_nothing_else() -> None:
    """Story: an open transaction is left alone for 20 minutes. The picture does not take as long,
    and the clock beside it tells the true time."""
    log = [*LOG[:3], batch(0, 12, 12, FOREIGN, 5, 1_200_000, "ABORT")]
    bounds = Bounds("squares", (PartitionBounds(0, 0, 13, 13),))
    found = picture(seen(log, bounds, JOURNAL[:2], period=(T, T + 1_200_010)))
    assert found.clock == (
        *((0, 0), (200, 200), (200 + PAUSE_MS, 1_200_000), (210 + PAUSE_MS, 1_200_010)),
    )
    assert boxes(found, 0)[-1].ended == 200 + PAUSE_MS


def test_a_picture_begins_shortly_before_its_first_event() -> None:
    """Story: a source is filled for a minute before anything is written. Nobody watches that."""
    log = [(*row[:9], row[9] + 60_000, row[10] + 60_000, *row[11:]) for row in LOG[:2]]
    bounds = Bounds("squares", (PartitionBounds(0, 0, 11, 11),))
    found = picture(seen(log, bounds, [], period=(T, T + 61_000)))
    assert found.clock == ((0, 59_700), (1_300, 61_000))
    assert found.boxes[0].begins == pictures.LEAD_MS


def test_a_long_run_shows_its_newest_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a run commits for hours. The payload stays small; what is left out is said, the totals
    still count it, and an open transaction is never left out, however old."""
    monkeypatch.setattr(pictures, "TRANSACTIONS_MAX", 3)
    log = [batch(0, 0, 0, FOREIGN, 0, 1)]
    for n in range(20):
        log += [
            batch(0, 1 + 3 * n, 2 + 3 * n, 7, 0, 10 * n + 10),
            batch(0, 3 + 3 * n, 3 + 3 * n, 7, 0, 10 * n + 15, "COMMIT"),
        ]
    bounds = Bounds("squares", (PartitionBounds(0, 0, 0, 61),))
    found = picture(seen(log, bounds, []))
    assert [b.first for b in found.boxes] == [0, 55, 58] and found.left_out == ("18 older boxes",)
    assert found.clock[0] == (0, 185) and found.boxes[0].begins == 0
    (lane,) = found.lanes
    assert lane.uncommitted[0] == (0, 37) and lane.uncommitted[-1][1] == 41
    # What is left out was withheld by the open one as well.
    assert lane.committed == ((0, 0),) and lane.lso == ((0, 0),)


def test_many_partitions_are_cut_and_said() -> None:
    """Story: a sink has 40 partitions and the source 20. The picture stays readable."""
    bounds = Bounds("squares", tuple(PartitionBounds(p, 0, 0, 0) for p in range(40)))
    sources = {("numbers", p): (0, 1) for p in range(20)}
    found = picture(seen([], bounds, [], sources=sources))
    assert len(found.lanes) == len(found.workers) == 8
    assert found.left_out == ("32 of 40 sink partitions", "12 of 20 workers")
    assert "none yet" in found.summary


def test_a_run_without_transactions_tells_its_portions() -> None:
    """Story: an at-least-once run. Each batch is delivered at once; the events are its offsets."""
    log = [(*row[:7], False, None, *row[9:]) for row in (LOG[0], LOG[7])]
    bounds = Bounds("squares", (PartitionBounds(0, 0, 10, 10), PartitionBounds(1, 0, 5, 5)))
    found = picture(seen(log, bounds, JOURNAL[:2]))
    assert {b.outcome for b in found.boxes} == {"PLAIN"}
    assert all(b.worker == 0 and b.delivered == b.written for b in found.boxes)
    assert [event.says for event in found.events] == [
        "A worker takes over p0 at offset 0.",
        "The worker of p0 commits its offset: 10 inputs done.",
    ]
    assert sum(lane.committed[-1][1] for lane in found.lanes) == 15


def test_a_sink_that_was_not_empty_begins_where_the_run_did() -> None:
    found = picture(seen(before={0: 11, 1: 10}))
    assert [b.first for b in found.boxes] == [11, 12, 18]
    assert found.lanes[0].lso[0] == (0, 11) and found.lanes[1].hw == ((0, 10),)


def test_the_browser_gets_small_lists_of_numbers() -> None:
    """Story: what is sent can be read back, and names of topics are text in it, never markup."""
    sources = {("<b>x</b>", 0): (0, 5), ("numbers", 0): (0, 5)}
    payload = picture(seen(sources=sources)).as_json()
    again = json.loads(json.dumps(payload))
    assert [worker["name"] for worker in again["workers"]] == ["<b>x</b> p0", "numbers p0"]
    assert len(again["boxes"][0]) == len(Box.__dataclass_fields__)


def test_no_sentence_of_a_journal_moves_or_hides_ours() -> None:
    """Story: who may write to the journal puts what reverses text, has no width or breaks lines
    into the name of a topic, a fault's end and an error."""
    hostile = "\u202enuof\u2028x\x1b[2J\n\u200b"
    entries: list[tuple[int, Entry]] = [
        (1, FaultReport("net", FaultPhase.HEALED, hostile)),
        (2, TaskFailed(2, hostile, hostile)),
    ]
    sources = {(hostile, 0): (0, 5), ("numbers", 0): (0, 5)}
    payload = picture(seen([], BOUNDS, entries, sources=sources)).as_json()
    text = json.dumps(payload, ensure_ascii=False)
    assert text == visible(text) and text.count("202enuof") >= 3


def test_the_rest_of_the_journal_in_words() -> None:
    """Story: faults of the run's own process, restarts and failed tasks are events too."""
    entries: list[tuple[int, Entry]] = [
        (1, GenerationBegun(2)),
        (2, FaultReport("open", FaultPhase.DONE, "a foreign transaction is open.")),
        (3, FaultReport("open", FaultPhase.HEALED, "it was aborted")),
        (4, TaskFailed(2, "Fenced", "taken over")),
        (5, ended(Declared.FENCED, 1, 10, "x" * 500)),
        (6, ended(Declared.UNKNOWN, 1, 10, "no answer")),
        (7, TaskStarted("t", "other-0", "elsewhere", 0, 1, 0)),
    ]
    said = [event.says for event in picture(seen([], BOUNDS, entries)).events]
    assert said[:4] == [
        "Spark starts the query again (generation 2): new workers, and old ones are locked out.",
        "The fault is under way: a foreign transaction is open.",
        "The fault ends: it was aborted.",
        "A task of Spark fails (Fenced). Spark runs it again.",
    ]
    assert said[4].startswith("The old worker of p0 writes, and Kafka refuses it")
    assert len(said[4]) < 300
    assert said[5].endswith("does not know how its transaction ended: no answer.")
    assert len(said) == 6, "a worker of another source is none of the picture's"


def test_strikes_by_hand_are_events_and_a_freeze_is_a_span() -> None:
    """Story: a worker is killed and the network is frozen, twice; the second time it still is."""
    kill, freeze, again = Kill(0).name(1), Freeze(2).name(2), Freeze(9).name(3)
    entries: list[tuple[int, Entry]] = [
        (40, WorkerBegan("t", "numbers", 0, "here", 1, 0.0)),
        (100, FaultFired("t", kill, "numbers", 0, 0)),
        (101, FaultReport(kill, FaultPhase.DONE, "process 1 was killed")),
        (200, FaultFired("", freeze, "numbers", EVERY_PARTITION, 0)),
        (201, FaultReport(freeze, FaultPhase.DONE, "every worker is cut off")),
        (900, FaultReport(freeze, FaultPhase.HEALED, "every worker reaches the brokers again")),
        (901, FaultReport(again, FaultPhase.FAILED, "the network is already frozen.")),
        (950, FaultReport(again, FaultPhase.DONE, "every worker is cut off")),
    ]
    found = picture(seen([], BOUNDS, entries))
    assert [event.says for event in found.events] == [
        "Somebody kills the worker of p0 with SIGKILL.",
        "Somebody freezes the network of every worker for 2 s.",
        "The fault ends: every worker reaches the brokers again.",
        "The fault is impossible: the network is already frozen.",
    ]
    struck = [event.at for event in found.events[:2]]
    assert [list(worker.struck) for worker in found.workers] == [struck, struck[1:]]
    (since, until), (second, end) = found.frozen
    assert struck[1] <= since < until < second < end == found.length


def test_a_flooded_journal_makes_no_large_picture() -> None:
    """Story: somebody writes faults into the journal without end. The browser gets the newest."""
    name = Freeze(1).name(1)
    entries: list[tuple[int, Entry]] = []
    for number in range(2 * EVENTS_MAX):
        entries += [
            (number, FaultFired("t", name, "numbers", 0, 0)),
            (number, FaultReport(name, FaultPhase.DONE, "cut off")),
            (number, FaultReport(name, FaultPhase.HEALED, "healed")),
        ]
    drawn = picture(seen([], BOUNDS, entries))
    lengths = [len(drawn.frozen), *(len(worker.struck) for worker in drawn.workers)]
    assert lengths == [EVENTS_MAX, EVENTS_MAX, 0]


def test_a_foreign_transaction_strikes_no_worker() -> None:
    """Story: another producer leaves a transaction open when the worker of p0 begins its second
    one, and p1 is killed in its second. Only p1 is struck, and the sentences say who did what."""
    entries: list[tuple[int, Entry]] = [
        (100, FaultFired("t", "open@transaction=2,end=release", "numbers", 0, 2)),
        (200, FaultFired("t", "crash@transaction=2", "numbers", 1, 2)),
        (300, FaultFired("t", "zombie@transaction=2", "numbers", 1, 2)),
        (400, FaultFired("t", "lunch@noon", "numbers", 0, 2)),
    ]
    found = picture(seen([], BOUNDS, entries))
    assert [len(worker.struck) for worker in found.workers] == [0, 2]
    assert [event.says for event in found.events] == [
        "Another producer opens a transaction in the sink, and does not end it (open).",
        "The worker of p1 is killed in its transaction 2 (crash).",
        "The worker of p1 is stopped, but not killed, in its transaction 2 (zombie).",
        "The fault lunch@noon, which this version does not know, fires at p0.",
    ]


def test_repeated_records_are_marked_in_their_boxes() -> None:
    """Story: at least once, a killed worker's records are written again. The box with the second
    copies has their number, and so have the readers."""
    log = [(*row[:7], False, None, *row[9:]) for row in (LOG[0], LOG[3])]
    bounds = Bounds("squares", (PartitionBounds(0, 0, 17, 17),))
    found = picture(seen(log, bounds, [], repeated={0: [9, 12, 13, 14]}))
    assert [(box.records, box.repeated) for box in found.boxes] == [(10, 1), (5, 3)]
    assert found.lanes[0].repeated[-1][1] == 4
    assert picture(seen(log, bounds, [])).lanes[0].repeated[-1][1] == 0


def test_each_cross_says_its_own_cause() -> None:
    """Story: of four transactions of p0 the worker aborts one, is killed in the next, wakes too
    late in the third, and the query restarts in the fourth. A foreign one timed out, as the
    coordinators' log proves."""
    log = []
    for n, epoch in enumerate(range(4)):
        log += [
            batch(0, 2 * n, 2 * n, 7, epoch, 100 * n + 50),
            batch(0, 2 * n + 1, 2 * n + 1, 7, epoch + 1, 100 * n + 90, "ABORT"),
        ]
    log += [batch(0, 8, 8, FOREIGN, 0, 420), batch(0, 9, 9, FOREIGN, 1, 430, "ABORT")]
    log += [batch(0, 10, 10, 7, 4, 450), batch(0, 11, 11, 7, 4, 460, "COMMIT")]
    name = "run-numbers-0"

    def end(task: str, outcome: Declared) -> TransactionEnded:
        return TransactionEnded(task, name, "numbers", 0, 1, 1, outcome, "why", 1, 1, 1)

    entries: list[tuple[int, Entry]] = [
        *((100 * n, TaskStarted(f"task-{n}", name, "numbers", 0, 1, 0)) for n in range(5)),
        (80, end("task-0", Declared.ABORTED)),
        (160, FaultFired("task-1", Kill(0).name(1), "numbers", 0, 0)),
        (310, end("task-2", Declared.FENCED)),
    ]
    bounds = Bounds("squares", (PartitionBounds(0, 0, 12, 12),))
    drawn = picture(
        seen(log, bounds, sorted(entries, key=lambda e: e[0]), reasons={(0, 8): "timeout"})
    )
    assert [box.cause for box in drawn.boxes] == [
        *("aborted", "killed", "fenced", "fenced", "timed out", ""),
    ]
    assert "Crosses: 1 aborted, 2 fenced, 1 killed, 1 timed out." in drawn.summary
    sentences = [event.says for event in drawn.events]
    assert any("the worker of p0 (killed) stay in the log" in says for says in sentences)


def test_a_zombie_is_there_from_its_stop_to_its_refusal() -> None:
    """Story: a worker is stopped, and its successor takes over. It is a ghost until Kafka refuses
    it; another one is never refused."""
    entries: list[tuple[int, Entry]] = [
        (100, FaultFired("old", "zombie@transaction=2", "numbers", 0, 2)),
        (200, TaskStarted("new", "run-numbers-0", "numbers", 0, 1, 0)),
        (300, replace(ended(Declared.FENCED, 2, 10, "taken over"), task="old")),
        (400, FaultFired("t", "zombie@transaction=2", "numbers", 1, 2)),
    ]
    drawn = picture(seen([], BOUNDS, entries))
    shown = {event.says[:22]: event.at for event in drawn.events}
    stopped, refused = shown["The worker of p0 is st"], shown["The old worker of p0 w"]
    waking = shown["The worker of p1 is st"]
    assert [worker.zombies for worker in drawn.workers] == [
        ((stopped, refused),),
        ((waking, drawn.length),),
    ]


def test_a_repeat_leads_to_the_box_with_its_first_copy() -> None:
    """Story: at least once, the killed worker's records came twice. The box with the second copies
    leads to that with the first ones, the moments name them, and the end has the sum."""
    log = [(*row[:7], False, None, *row[9:]) for row in (LOG[0], LOG[3])]
    bounds = Bounds("squares", (PartitionBounds(0, 0, 17, 17),))
    repeats = {"repeated": {0: [12, 13]}, "first_copies": {(0, 12): (0, 3), (0, 13): (0, 4)}}
    drawn = picture(seen(log, bounds, [], has_ended=True, **repeats))
    assert [box.first_copy for box in drawn.boxes] == [-1, 0]
    assert "2 records repeat earlier ones (2×)." in drawn.summary
    assert [(cue.says, cue.box) for cue in drawn.cues[1:]] == [
        ("The same output again: 2 of these records came before.", 1),
        ("At the end both readers got the same 15 records. 2 of them came twice.", -1),
    ]


def test_a_foreign_fault_belongs_to_the_foreign_producer() -> None:
    """Story: another producer leaves a transaction open, and the workers commit behind it. No
    worker is struck; the story stops at the fault, at what waits, and at the release."""
    foreign = "open@transaction=2,end=release"
    log = [*LOG[:7], batch(0, 24, 24, FOREIGN, 5, 900, "ABORT")]
    bounds = Bounds("squares", (PartitionBounds(0, 0, 25, 25),))
    entries = [
        *JOURNAL[:2],
        (190, FaultFired("t", foreign, "numbers", 0, 2)),
        (901, FaultReport(foreign, FaultPhase.HEALED, "it was aborted")),
    ]
    drawn = picture(seen(log, bounds, entries, has_ended=True))
    assert not any(worker.struck for worker in drawn.workers) and drawn.foreign_struck == (190,)
    assert "The foreign transaction ends: it was aborted." in [e.says for e in drawn.events]
    boxes_of = {
        cue.says: (drawn.boxes[cue.box].worker if cue.box >= 0 else None) for cue in drawn.cues
    }
    assert boxes_of == {
        "The same inputs again, in a new transaction: now they are committed.": 0,
        "Another producer opens a transaction in the sink, and does not end it (open).": OTHERS,
        "The transaction is aborted: its records stay in the log, and do not count.": 0,
        "5 records are committed, and wait behind the open transaction.": OTHERS,
        "The open transaction ends: 5 records that waited are delivered.": OTHERS,
        "At the end read_uncommitted got 21 records, read_committed 15.": None,
    }


def test_a_replay_stops_at_each_moment_for_as_long_as_it_takes_to_read() -> None:
    """Story: 28 transactions happen in half a second, then nothing for a minute. A replay gives
    each event its time, does not wait, and holds at each moment; a minute is enough for all."""
    events = [18 * n for n in range(28)]
    moments = [(18, "x" * 80), (18, "y" * 50), (486, "z" * 100)]
    pace = replay_pace(moments, events, 60_000)
    assert pace[0] == (0, 0, -1) and pace[-1][1:] == (60_000, 2)
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(pace))
    holds = [b[0] - a[0] for a, b in pairwise(pace) if a[1] == b[1] and a[2] == b[2]]
    assert holds == [4_400, 3_200, 5_200]
    motions = [b[0] - a[0] for a, b in pairwise(pace) if b[1] > a[1]]
    assert min(motions) >= 72 and max(motions) == 900 and pace[-1][0] < 60_000
    crowd = replay_pace([], range(0, 60_000, 10), 60_000)
    assert crowd[-1][0] == pytest.approx(15_000, abs=5)


@pytest.mark.parametrize("count", [1, 30])
def test_at_most_six_moments_are_chosen(count: int) -> None:
    """Story: a worker is killed again and again. The first of each kind is enough."""
    entries = [*JOURNAL]
    for n in range(count):
        entries.append((1_000 + n, FaultFired("t", Kill(0).name(n + 1), "numbers", 0, 0)))
        entries.append((1_000 + n, FaultFired("t", f"new-{n}@x", "numbers", 0, 0)))
    drawn = picture(seen(LOG, BOUNDS, entries, has_ended=True))
    says = [cue.says for cue in drawn.cues]
    assert len(says) == MOMENTS_MAX and says[-1].startswith("At the end read_uncommitted got 29")
    assert "The worker of p0 raises an error in its transaction 2 (error)." in says
    assert [cue.at for cue in drawn.cues] == sorted(cue.at for cue in drawn.cues)


def test_nothing_at_all_is_a_picture() -> None:
    empty: pd.DataFrame = seen([], BOUNDS, []).transactions
    found = picture(seen([], Bounds("squares", (PartitionBounds(0, 0, 0, 0),)), []))
    assert empty.empty and not found.boxes and not found.events and found.length > 0
