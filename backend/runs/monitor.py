"""The monitor of an active run. It renews the lease, publishes live figures in the history, and
reads stop requests there."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from topicproof.backend.errors import ClusterError, SinkError
from topicproof.backend.faults.by_hand import is_elsewhere
from topicproof.backend.history.run_state import Names, Progress, StageProgress
from topicproof.backend.history.store import State
from topicproof.backend.runs.context import Context
from topicproof.backend.runs.file_server import requests
from topicproof.backend.runs.query import committed_of
from topicproof.backend.sink.entries import (
    Declared,
    Entry,
    FaultFired,
    TransactionEnded,
    WorkerBegan,
)
from topicproof.backend.sink.journal import JournalReader

TICK_S = 0.5
RATE_WINDOW_S = 5.0
HOSTS_MAX = 10
"""Machines that the history names: whoever may write to the journal can invent any number."""


class Monitor(threading.Thread):
    """Renews the lease, publishes live figures and reads stop requests, every half second."""

    def __init__(self, context: Context) -> None:
        super().__init__(name="monitor", daemon=True)
        self.context = context
        self.ended = threading.Event()
        self.journal = JournalReader(context.cluster.address, context.names.journal)
        self.figures = Progress(stage=State.CREATED)
        self.window: deque[tuple[float, int]] = deque()
        self.error: Exception | None = None

    def run(self) -> None:
        while True:
            ended = self.ended.wait(TICK_S)
            try:
                try:
                    self.figures = self._look()
                except (ClusterError, SinkError) as error:
                    # A brief broker outage must not end the run. The page shows the error.
                    self.figures = replace(
                        self.figures, stage=self.context.stage, trouble=str(error)
                    )
                if self.context.history.renew(self.context.run.id, self.figures):
                    self.context.stop.set()
            except Exception as error:
                # Whatever it is: a run whose lease nobody renews would count as interrupted, and
                # could be resumed beside itself.
                self.error = error
                self.context.stop.set()
                return
            if ended:
                return

    def _look(self) -> Progress:
        context, stages = self.context, self.context.stages
        # Kept at once: what follows may fail, and the journal tells each entry once.
        self.figures = _counted(self.figures, self.journal.news())
        downloads = requests(context.requests_log) if context.run.facts.served else None
        stages_progress = [self._stage(names) for _, names in stages]
        processed, available = stages_progress[0].processed, stages_progress[0].there
        last = stages[-1][1]
        rate = self._rate(sum(stage.processed for stage in stages_progress))
        planned = (
            context.plan.records * len(stages[0][1].sources) if context.plan.fills else available
        )
        filled = max(planned, available) if context.plan.duplicates else planned
        total = None if context.plan.until_stopped else filled
        left = (total - processed) / rate if total is not None and rate > 0 else None
        return replace(
            self.figures,
            stage=context.stage,
            trouble=None,
            filled=max(context.filled, available),
            processed=processed,
            total=total,
            records_per_s=round(rate, 1),
            seconds_left=None if left is None else round(max(0.0, left), 1),
            sink=(() if last.database else context.cluster.bounds(last.sink).partitions),
            downloads=downloads.total() if downloads is not None else None,
            downloaded=len(downloads or ()),
            stages=tuple(stages_progress) if len(stages_progress) > 1 else (),
        )

    def _stage(self, names: Names) -> StageProgress:
        """Return a stage's progress in offsets, not records: in a transactional source both figures
        include markers."""
        processed = available = 0
        for source, began in self.context.run.facts.of_stage(names.stage).items():
            offsets = committed_of(self.context.cluster, names, source)
            processed += sum(offset - began.get(str(p), 0) for p, offset in offsets.items())
            bounds = self.context.cluster.bounds(source)
            available += sum(p.hw - began.get(str(p.partition), 0) for p in bounds.partitions)
        return StageProgress(names.stage, processed, available)

    def _rate(self, processed: int) -> float:
        now = time.monotonic()
        self.window.append((now, processed))
        while now - self.window[0][0] > RATE_WINDOW_S:
            self.window.popleft()
        began, before = self.window[0]
        return (processed - before) / (now - began) if now > began else 0.0


def _counted(figures: Progress, news: Iterable[Entry]) -> Progress:
    """Return the figures with these entries of the journal."""
    committed, aborted, fenced, faults = (
        figures.committed,
        figures.aborted,
        figures.fenced,
        figures.faults,
    )
    attempted, committed_inputs = figures.attempted, figures.kept
    elsewhere = set(figures.elsewhere)
    for entry in news:
        committed += _ended(entry, Declared.COMMITTED)
        aborted += _ended(entry, Declared.ABORTED)
        fenced += _ended(entry, Declared.FENCED)
        faults += isinstance(entry, FaultFired)
        if len(elsewhere) < HOSTS_MAX and isinstance(entry, WorkerBegan) and is_elsewhere(entry):
            elsewhere.add(entry.host)
        if isinstance(entry, TransactionEnded):
            attempted += entry.inputs
            committed_inputs += entry.inputs if entry.outcome is Declared.COMMITTED else 0
    return replace(
        figures,
        committed=committed,
        aborted=aborted,
        fenced=fenced,
        faults=faults,
        attempted=attempted,
        kept=committed_inputs,
        elsewhere=tuple(sorted(elsewhere)),
    )


def _ended(entry: Entry, outcome: Declared) -> bool:
    return isinstance(entry, TransactionEnded) and entry.outcome is outcome


@contextmanager
def watched(context: Context) -> Iterator[None]:
    """Run the monitor alongside the work. Raises its error."""
    monitor = Monitor(context)
    monitor.start()
    try:
        yield
    finally:
        monitor.ended.set()
        monitor.join()
        monitor.journal.close()
    if monitor.error is not None:
        raise monitor.error
