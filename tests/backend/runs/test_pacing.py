"""The pace of runs in real time: few records come one by one, many come in larger messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.backend.runs.test_real_time import LONG_S, PLAN
from tests.runs import read_all, run_to_end
from topicproof.backend.runs.pacing import (
    BEHIND,
    BUSY,
    CALM,
    MESSAGE_ROWS_MAX,
    Load,
    Pacing,
    is_faster,
    is_slower,
    pace_for,
)
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.backend.sink.real_time import FOLLOWED, Pace
from topicproof.validators.finding import Outcome

A, B, C = (("in", number) for number in range(3))


def test_messages_are_as_large_as_they_fill_in_time() -> None:
    """Story: little comes; then 20,000 records/s on two partitions; then far more than a message
    should ever have."""
    assert pace_for({A: BUSY / 2, B: BUSY / 3}, BUSY) == FOLLOWED
    found = pace_for({A: 10_000, B: 10_000}, BUSY)
    assert found == Pace(100, frozenset({A, B}))
    assert pace_for({A: 1e6, B: 1e6}, BUSY).message_rows == MESSAGE_ROWS_MAX


def test_rows_of_slow_partitions_never_wait_for_fast_ones() -> None:
    """Story: one partition gets 10,000 records/s, one 500, one a record a minute. The second one's
    messages fill within a tenth of a second. The third one's rows are followed by empty ones."""
    found = pace_for({A: 10_000, B: 500, C: 1 / 60}, BUSY)
    assert found == Pace(50, frozenset({A, B}))


def test_a_pace_stays_while_it_fits() -> None:
    """Story: the rate varies by half; it grows fourfold; another partition becomes fast; one that
    was fast falls silent."""
    pace = pace_for({A: 10_000, B: 10_000}, BUSY)
    near = {A: 15_000.0, B: 6_000.0}
    assert not is_faster(pace_for(near, CALM), pace)
    assert not is_slower(near, pace_for(near, CALM), pace)
    assert is_faster(pace_for({A: 40_000, B: 40_000}, CALM), pace)
    assert is_faster(pace_for({A: 10_000, B: 10_000, C: 9_000}, CALM), pace)
    silent = {A: 10_000.0, B: 0.0}
    assert is_slower(silent, pace_for(silent, CALM), pace)
    assert is_slower({A: 10.0, B: 10.0}, FOLLOWED, pace)
    assert not is_slower({}, FOLLOWED, FOLLOWED)


def loads(*each: tuple[Mapping[tuple[str, int], int], int]) -> Iterator[Load]:
    """Looks at ends, with as many records waiting in the first partition."""
    for ends, waiting in each:
        yield Load(ends, {place: waiting if place == A else 0 for place in ends})


def paced(found: Iterator[Load]) -> Pacing:
    """A pacing whose looks are a second apart."""
    now = iter(range(1_000))
    return Pacing(lambda: next(found), lambda: next(now))


def test_a_burst_changes_nothing_and_a_lasting_rate_does() -> None:
    """Story: two seconds of many records, a pause, then a rate that lasts; then nothing comes. Each
    change costs a new start, so only what lasts is one."""
    # Each look reads the clock twice, so that two seconds lie between two looks.
    ends = [0, 20_000, 40_000, 40_000, 60_000, 80_000, 100_000, 120_000, 120_000, 120_000, 120_000]
    found = paced(loads(*(({A: end}, 0) for end in ends)))
    changed = [found.changes() for _ in ends[1:]]
    assert changed == [False] * 5 + [True, False, False, True, False]
    assert found.pace == FOLLOWED


def test_a_backlog_is_not_waited_for() -> None:
    """Story: a run starts far behind, and at once has large messages. Another falls behind while
    it works row by row: the first look that shows it is enough."""
    start = paced(loads(({A: 400_000}, 400_000)))
    assert start.pace.message_rows == 400 and start.pace.fast == {A}
    later = paced(loads(({A: 0}, 0), ({A: 2 * BEHIND}, BEHIND)))
    assert later.pace == FOLLOWED
    assert later.changes() and later.pace.fast == {A}


def test_the_last_rows_of_a_backlog_are_processed(settings: Settings, cluster: Services) -> None:
    """Story: a run starts 50,000 records behind, in batches of an hour. The last message of each
    partition never fills; the run sees that nothing more comes, and the query starts again."""
    records = 50_001
    plan: dict[str, Any] = {**PLAN, "records": records, "per_transaction": 1_000}
    done = run_to_end(settings, cluster, **plan, real_time_batch_s=LONG_S)
    assert done.report.verdict is Outcome.HOLDS, done.report.why
    got = sorted(int(message.value or b"") for message in read_all(cluster.bootstrap, done.sink))
    assert got == [n * n for n in range(records)]
