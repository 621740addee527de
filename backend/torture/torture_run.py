"""Runs schedules, judges each from its sink, and shrinks failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from topicproof.backend.errors import TopicproofError, UsageError
from topicproof.backend.faults.cluster_faults import how_many
from topicproof.backend.history.store import History
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.matrix.cells import Result, run_cell
from topicproof.backend.matrix.choice import Cell
from topicproof.backend.matrix.matrix_table import Trouble
from topicproof.backend.matrix.proofs import Trial
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.backend.sink.entries import FaultFired, FaultReport
from topicproof.backend.torture.schedule import MICRO_BATCH, Schedule, draw, smaller

AT_ONCE = 2
"""How many runs are active at a time: a run waits about as long as it works."""


@dataclass(frozen=True)
class TriedSchedule:
    """One schedule and the result of its run."""

    schedule: Schedule
    result: Result

    @property
    def surprises(self) -> tuple[str, ...]:
        """Differences from what theory allows, one sentence each."""
        return self.result.surprises


class Torture:
    """Tries schedules on a home's services, until `stop`. `give_up` ends this process if Kafka or
    Spark is gone for good (backend/runs/lifeline.py)."""

    def __init__(
        self,
        settings: Settings,
        services: Services,
        stop: threading.Event,
        give_up: Callable[[TopicproofError], None] | None = None,
    ) -> None:
        self.settings = settings
        self.services = services
        self.stop = stop
        self.give_up = give_up
        self.history = History(settings)
        self.cluster = Cluster(services.address)

    def require_brokers(self, brokers: int) -> None:
        """Raises UsageError for a cluster with fewer brokers."""
        count = how_many(self.cluster)
        if brokers > 1 and count < brokers:
            raise UsageError(
                f"The embedded Kafka runs with {count} of {brokers} brokers. Stop what uses it, or"
                " set TOPICPROOF_HOME to another folder."
            )

    def try_one(self, schedule: Schedule) -> TriedSchedule | None:
        """Run a schedule; None if it was stopped before its end."""
        result = run_cell(
            self.settings,
            self.services,
            self.history,
            self.cluster,
            cell=_cell(schedule),
            stop=self.stop,
            give_up=self.give_up,
        )
        return None if result is None else TriedSchedule(schedule, result)

    def try_all(
        self,
        schedules: Iterator[Schedule],
        on_result: Callable[[TriedSchedule], None],
        at_once: int = AT_ONCE,
    ) -> None:
        """Run schedules, `at_once` at a time. A schedule that strikes brokers runs alone."""
        running: set[Future[TriedSchedule | None]] = set()
        with ThreadPoolExecutor(at_once) as pool:
            for schedule in schedules:
                alone = schedule.brokers > 1
                running = _wait(running, 0 if alone else at_once - 1, on_result)
                running.add(pool.submit(self.try_one, schedule))
                running = _wait(running, 0 if alone else at_once, on_result)
                if self.stop.is_set():
                    break
            _wait(running, 0, on_result)

    def shrink(
        self, failed: TriedSchedule, tries: int, on_result: Callable[[TriedSchedule], None]
    ) -> TriedSchedule:
        """Return the smallest schedule found in `tries` runs that is still a surprise.

        A failure may depend on timing, so one run without a surprise proves nothing. The result is
        a surprise in any case.
        """
        smallest, left = failed, list(smaller(failed.schedule))
        while left and tries > 0 and not self.stop.is_set():
            tries -= 1
            tried = self.try_one(left.pop(0))
            if tried is None:
                break
            on_result(tried)
            if tried.surprises:
                smallest, left = tried, list(smaller(tried.schedule))
        return smallest


def drawn(
    seed: int,
    brokers: int,
    runs: int | None,
    minutes: float | None,
    stop: threading.Event,
    trigger: str = MICRO_BATCH,
) -> Iterator[Schedule]:
    """Yield the schedules of `seed`, `seed + 1` and so on, up to a number of runs or minutes."""
    ends = None if minutes is None else time.monotonic() + 60 * minutes
    number = 0
    while (runs is None or number < runs) and (ends is None or time.monotonic() < ends):
        if stop.is_set():
            return
        yield draw(seed + number, brokers, trigger)
        number += 1


def _cell(schedule: Schedule) -> Cell:
    """Turn a schedule into a cell that the matrix can run and judge."""
    struck = len(schedule.strikes)

    def proof(trial: Trial) -> str:
        entries = [entry for entry in trial.entries if isinstance(entry, FaultFired | FaultReport)]
        return f"{len(entries)} entries of {struck} faults"

    trouble = Trouble(
        name=str(schedule),
        title="several faults at once",
        plan={},
        proof=proof,
        expected=(),
        attempts=schedule.attempts,
        brokers=schedule.brokers,
        resumes=schedule.resumes,
    )
    return Cell(
        promise=schedule.promise,
        trouble=trouble,
        plan=schedule.plan(),
        must=frozenset(),
        may=schedule.may,
        refused=False,
        may_refuse=schedule.may_refuse,
    )


def _wait(
    running: set[Future[TriedSchedule | None]],
    most: int,
    on_result: Callable[[TriedSchedule], None],
) -> set[Future[TriedSchedule | None]]:
    """Wait until at most `most` are running. Raises any error that one of them raised."""
    while len(running) > most:
        done, running = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            tried = future.result()
            if tried is not None:
                on_result(tried)
    return running
