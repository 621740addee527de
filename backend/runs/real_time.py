"""Runs in Spark's Real-Time Mode: when they have reached the end of their sources, and when a
failed query is started again.

A real-time query has no end of its own, so a run stops it when everything is processed. Spark does
not start a failed query again, so the run does. Each query continues at the group's offsets.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress

from topicproof.backend.errors import (
    AttemptsExhausted,
    CheckpointMismatch,
    ClusterError,
    NotAllowed,
    OffsetMissing,
    OffsetsMoved,
    RecordRefused,
    ShuffledInput,
    SourceGap,
    SparkError,
    TopicproofError,
    UsageError,
)
from topicproof.backend.history.run_state import Names
from topicproof.backend.kafka.client_configs import READ_COMMITTED, FetchLimits
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.reading import measure, open_consumer, receive
from topicproof.backend.sink.entries import Entry
from topicproof.backend.sink.journal import JournalReader
from topicproof.backend.sink.position import journalled

TRIES = 8
"""Starts of a query without progress, before the run fails: as many as the embedded Spark gives a
task of a micro-batch."""
DECLARED_WITHIN_S = 2.0
"""How long to wait for the journal when the group's offsets are at the end. A worker that was
killed right after a commit never declares it."""

REFUSALS = (
    AttemptsExhausted,
    CheckpointMismatch,
    NotAllowed,
    OffsetMissing,
    OffsetsMoved,
    RecordRefused,
    ShuffledInput,
    SourceGap,
    UsageError,
)
"""Errors that another start would meet again."""


def start_again(
    work: Callable[[], None], reached: Callable[[], object], stopped: Callable[[], bool]
) -> None:
    """Call `work` until it succeeds. `reached` tells how far it came: a failure without progress
    counts against `TRIES`.

    Raises the error of `work` when that is a refusal, when it was tried too often, or when stopped.
    """
    tries, last = 0, reached()
    while True:
        try:
            work()
            return
        except TopicproofError as error:
            now = reached()
            tries = tries + 1 if now == last else 1
            last = now
            if isinstance(error, REFUSALS) or tries >= TRIES or stopped():
                raise


def look_at_brokers(look: Callable[[], bool]) -> bool:
    """Return what a look at the brokers shows, and False while they do not answer: that is no
    reason to end a query, whose workers are more patient."""
    with suppress(ClusterError):
        return look()
    return False


def require_slots(master: str, tasks: int) -> None:
    """Raises SparkError if a local Spark cannot run so many tasks at once. Each source partition
    has one during a whole batch, so the others would wait that long. A cluster's number is not
    known."""
    slots = re.match(r"local\[(\d+)", master)
    if slots is not None and int(slots[1]) < tasks:
        raise SparkError(
            f"Real time needs {tasks} task slots, one for each source partition of the stages that"
            f" run at once, but Spark has {slots[1]} ({master}). Use fewer partitions, or a Spark"
            f" server with local[{tasks}] or a cluster (SPARK_REMOTE)."
        )


class SourceEnds:
    """The ends of a stage's sources when it began."""

    def __init__(self, cluster: Cluster, names: Names, isolation: str) -> None:
        self.cluster, self.names, self.isolation = cluster, names, isolation
        self.ends = {
            (source, p.partition): p.lso if isolation == READ_COMMITTED else p.hw
            for source in names.sources
            for p in cluster.bounds(source).partitions
        }
        self.journal = JournalReader(cluster.address, names.journal)
        self.entries: list[Entry] = []
        self.last: dict[tuple[str, int], int] = {}
        self.limits: dict[tuple[str, int], FetchLimits] = {}
        """What lies before the ends is measured once: offsets of a group only rise."""
        self.committed_at: float | None = None
        """When the group's offsets were first seen at the end."""

    def reached(self) -> bool:
        """Return whether the sink has committed everything below the ends, and declared it. Raises
        ClusterError."""
        if self.committed_at is None:
            if not self._committed():
                return False
            self.committed_at = time.monotonic()
        self.entries += self.journal.news()
        return self._declared() or time.monotonic() - self.committed_at > DECLARED_WITHIN_S

    def close(self) -> None:
        self.journal.close()

    def _committed(self) -> bool:
        now = {
            (source, p): offset
            for source in self.names.sources
            for p, offset in self.cluster.committed(self.names.group, source).items()
        }
        moves, self.last = now != self.last, now
        left = {place: end for place, end in self.ends.items() if now.get(place, 0) < end}
        # What is left may be markers only. Looking is dear, so only at rest.
        return not left or (not moves and not any(self._holds_record(*place) for place in left))

    def _holds_record(self, source: str, partition: int) -> bool:
        place = (source, partition)
        address, span = (
            self.cluster.address,
            {partition: (self.last.get(place, 0), self.ends[place])},
        )
        if place not in self.limits:
            self.limits[place] = measure(address, source, span)
        with open_consumer(address, source, self.isolation, self.limits[place]) as consumer:
            return any(True for _ in receive(consumer, source, span))

    def _declared(self) -> bool:
        for (source, partition), offset in self.last.items():
            recorded = journalled(self.entries, f"{self.names.prefix}-{source}-{partition}")
            if recorded is not None and recorded.offset < offset:
                return False
        return True
