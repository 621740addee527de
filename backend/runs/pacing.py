"""How a run in real time keeps up: row by row, or in larger messages.

A message from Spark to a Python worker costs much more than a row in it, and Spark has no time
limit for messages. So the run looks once a second at what its sources hold:

- While little comes, each row is followed by empty ones: none waits (backend/sink/real_time.py).
- While much comes or waits, messages are as large as fills them within `MESSAGE_S`.

Each change starts the query again, at the group's offsets, so it needs a rate that lasts. A change
to smaller messages comes sooner: the last rows before a pause wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from topicproof.backend.history.run_state import Names
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.sink.real_time import FOLLOWED, Pace

BUSY, CALM = 4_000, 2_500
"""Records per second of all sources at which messages become larger, and at which they become
small again. Two busy cores carry some 10,000 row by row."""
MESSAGE_S, SLOWEST_MESSAGE_S, SLOWED_MESSAGE_S = 0.01, 0.1, 1.0
"""How long the messages of the fastest source partition take to fill, how long those of the slowest
of the fast ones may take, and how long those of one that has slowed down."""
MESSAGE_ROWS_MAX = 1_000
BACKLOG_S = 10
"""How fast a backlog should be processed. Faster would need larger messages, which delay the rows
that come afterwards."""
FAST_SHARE = 0.02
"""A source partition is fast if its rate is at least this share of the fastest one's."""
GROWN = 4
"""Messages become larger again when they would have so many times more rows."""
FASTER_LOOKS, SLOWER_LOOKS = 3, 2
"""Looks in a row that must ask for larger and for smaller messages."""
BEHIND = 30_000
"""So many records that wait are not processed row by row in a few seconds: larger messages are due
at once."""
LOOK_S = 1.0

Place = tuple[str, int]
"""A source partition: its topic and its number."""


@dataclass(frozen=True)
class Load:
    """What the sources hold at a moment."""

    ends: Mapping[Place, int]
    """The last stable offset of each source partition."""
    waiting: Mapping[Place, int]
    """How many of its offsets are not processed."""


def load(cluster: Cluster, stages: Iterable[Names]) -> Load:
    """Look at the sources of these stages. Raises ClusterError."""
    ends: dict[Place, int] = {}
    waiting: dict[Place, int] = {}
    for names in stages:
        for source in names.sources:
            committed = cluster.committed(names.group, source)
            for p in cluster.bounds(source).partitions:
                place = (source, p.partition)
                ends[place] = p.lso
                waiting[place] = max(0, p.lso - committed.get(p.partition, 0))
    return Load(ends, waiting)


class Pacing:
    """Chooses the pace of a query; asked while it works."""

    def __init__(
        self, look: Callable[[], Load], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.look, self.clock = look, clock
        self.before, self.looked_at = look(), clock()
        self.pace = pace_for(rates_of(self.before, self.before, LOOK_S), BUSY)
        self.faster = self.slower = 0
        """Looks in a row that asked for another pace."""

    def changes(self) -> bool:
        """Look again, once a second. Returns whether another pace is due. Raises ClusterError."""
        if self.clock() - self.looked_at < LOOK_S:
            return False
        current_load = self.look()
        # After the look: on a busy machine it takes long.
        now = self.clock()
        rates = rates_of(self.before, current_load, now - self.looked_at)
        self.before, self.looked_at = current_load, now
        next_pace = pace_for(rates, CALM if self.pace.fast else BUSY)
        faster, slower = is_faster(next_pace, self.pace), is_slower(rates, next_pace, self.pace)
        self.faster = self.faster + 1 if faster else 0
        self.slower = self.slower + 1 if slower else 0
        behind = faster and not self.pace.fast and sum(current_load.waiting.values()) >= BEHIND
        if not behind and self.faster < FASTER_LOOKS and self.slower < SLOWER_LOOKS:
            return False
        self.pace, self.faster, self.slower = next_pace, 0, 0
        return True


def rates_of(before: Load, now: Load, seconds: float) -> dict[Place, float]:
    """Return the records per second that each source partition needs: what came between two looks,
    and within `BACKLOG_S` what waits."""
    return {
        place: max(0, end - before.ends.get(place, end)) / seconds + now.waiting[place] / BACKLOG_S
        for place, end in now.ends.items()
    }


def pace_for(rates: Mapping[Place, float], busy: float) -> Pace:
    """Return the pace for these rates: larger messages from so many records per second on."""
    if sum(rates.values()) < busy:
        return FOLLOWED
    most = max(rates.values())
    fast = {place: rate for place, rate in rates.items() if rate >= FAST_SHARE * most}
    rows = int(min(most * MESSAGE_S, min(fast.values()) * SLOWEST_MESSAGE_S, MESSAGE_ROWS_MAX))
    return Pace(max(1, rows), frozenset(fast))


def is_faster(next_pace: Pace, pace: Pace) -> bool:
    """Return whether the next pace saves much beside this one."""
    grown = bool(pace.fast) and next_pace.message_rows >= GROWN * pace.message_rows
    return grown or bool(next_pace.fast - pace.fast)


def is_slower(rates: Mapping[Place, float], next_pace: Pace, pace: Pace) -> bool:
    """Return whether rows of fast partitions wait too long in this pace."""
    if not pace.fast:
        return False
    filled = pace.message_rows / SLOWED_MESSAGE_S
    return not next_pace.fast or any(rates.get(place, 0) < filled for place in pace.fast)
