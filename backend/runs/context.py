"""State shared by the parts of an active run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from topicproof.backend.errors import TopicproofError, UsageError
from topicproof.backend.faults.kinds import RELEASE
from topicproof.backend.history.audit import allow
from topicproof.backend.history.run_state import Names
from topicproof.backend.history.store import History, Run, State
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs.plan import RunPlan, make_plan
from topicproof.backend.runs.scenarios import Stage, Work, scenario
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.backend.trust.identity import Action

RELEASED = "released"
"""A file in a run's folder: what its faults hold open is to end."""
FINISHING = "finishing"
"""A file in a run's folder: its fill is to end, and then the run."""


def holds_open(run: Run) -> bool:
    """Return whether a fault of this run holds something open until it is released."""
    planned = any(f"end={RELEASE}" in fault for fault in run.plan.get("faults", ()))
    return planned and run.alive and run.state is State.PROCESSING


def release(history: History, run: Run) -> None:
    """End what a run's faults hold open until somebody releases it (`open@...,end=release`). Raises
    UsageError if the run holds nothing open, NotPermitted."""
    if not holds_open(run):
        raise UsageError(f"Run {run.id} holds nothing open that could be released.")
    allow(history, Action.RELEASE, run.id)
    (history.settings.runs / run.id / RELEASED).touch()


def stop(history: History, run_id: str) -> None:
    """Ask a run or a check to stop, for a person. Raises NotPermitted."""
    allow(history, Action.STOP, run_id)
    history.request_stop(run_id)


def why_no_finish(settings: Settings, run: Run) -> str | None:
    """Return why a run cannot be asked to finish, as a sentence; None if it can."""
    if not run.alive:
        return f"{run.id} has ended."
    if not run.plan.get("until_stopped") or not scenario(run.plan["scenario"]).is_simple:
        return f"{run.id} ends by itself, or can only be stopped."
    if run.stop_requested or (settings.runs / run.id / FINISHING).exists():
        return f"{run.id} is about to end."
    return None


def finish(history: History, run: Run) -> None:
    """Ask a run that goes on until it is stopped to process what is in its source, and to end then.
    Raises UsageError if it cannot, NotPermitted."""
    if why := why_no_finish(history.settings, run):
        raise UsageError(why)
    allow(history, Action.STOP, run.id)
    (history.settings.runs / run.id / FINISHING).touch()


@dataclass
class Context:
    """Everything a stage of one run needs."""

    settings: Settings
    services: Services
    history: History
    cluster: Cluster
    run: Run
    plan: RunPlan
    stop: threading.Event = field(default_factory=threading.Event)
    stage: State = State.CREATED
    filled: int = 0
    finished: bool = False
    """Whether it was asked to finish, and has processed everything."""
    give_up: Callable[[TopicproofError], None] | None = None
    """Prints an error and ends this process at once, if Kafka or Spark is gone for good. None: the
    process has other work."""

    @property
    def stages(self) -> list[tuple[Stage, Names]]:
        """The scenario's stages with their names in this run, in data-flow order."""
        return list(zip(scenario(self.plan.scenario).stages, self.run.facts.stages, strict=True))

    @property
    def work(self) -> Work:
        plan, facts = self.plan, self.run.facts
        return Work(
            plan.key,
            plan.value,
            plan.deduplicate_s,
            plan.files.limits,
            facts.topics,
            facts.served,
        )

    @property
    def requests_log(self) -> Path:
        """Log of the requests for the files that the run serves."""
        return self.folder / "requests.log"

    @property
    def names(self) -> Names:
        """Names of the first stage."""
        return self.stages[0][1]

    @property
    def folder(self) -> Path:
        return self.settings.runs / self.run.id

    @property
    def released(self) -> bool:
        """Whether somebody ended what a fault holds open until then, or stopped the run."""
        return self.stop.is_set() or (self.folder / RELEASED).exists()

    @property
    def fill_over(self) -> bool:
        """Whether nothing more is to be filled."""
        return self.stop.is_set() or (self.folder / FINISHING).exists()

    def enter(self, state: State) -> None:
        self.stage = state
        self.history.enter(self.run.id, state)

    def remember(self, **facts: Any) -> None:
        self.history.remember(self.run.id, replace(self.run.facts, **facts))
        self.run = self.history.get(self.run.id)


def make_context(
    settings: Settings,
    services: Services,
    history: History,
    run: Run,
    stop: threading.Event | None = None,
    give_up: Callable[[TopicproofError], None] | None = None,
) -> Context:
    cluster = Cluster(services.address)
    plan = make_plan(run.plan)
    return Context(
        settings=settings,
        services=services,
        history=history,
        cluster=cluster,
        run=run,
        plan=plan,
        stop=stop or threading.Event(),
        give_up=give_up,
    )
