"""Checks of many pipelines, one after the other, in a thread of the dashboard. They go on when the
page is closed. If the dashboard ends, the check that runs comes to its verdict, and the others stay
as they were."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import streamlit as st

from topicproof.app.session.access import open_history
from topicproof.backend.contracts.contract import parse_fields
from topicproof.backend.contracts.contract_text import spell
from topicproof.backend.errors import TopicproofError, UsageError
from topicproof.backend.history.contract_of_run import contract_of_run, kept_origin
from topicproof.backend.history.kept_contracts import find
from topicproof.backend.history.pipelines import Pipeline, pipeline_of
from topicproof.backend.history.store import UNKNOWN_TIME, History, Run
from topicproof.backend.runs.context import stop
from topicproof.backend.runs.launch import start_check, start_kept_check
from topicproof.backend.settings import Settings, read_settings

POLL_S = 0.5
IDLE_POLLS = 20
"""Looks at a process that owns no check any more, before it is left to itself."""
UNFORESEEN = "It ended by an error that nobody foresaw. The dashboard's log has it."
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """A pipeline to check again."""

    pipelines: tuple[Pipeline, ...]
    """Several, if one contract has several sinks."""
    history: History
    """Of the person who asked for it."""
    start: Callable[[], str]
    """Starts the check in its own process. Returns its id. Raises TopicproofError."""


@dataclass(frozen=True)
class JobsProgress:
    """How far they are."""

    total: int = 0
    done: int = 0
    """Jobs that have ended, whatever their end."""
    current: Pipeline | None = None
    """None: nothing is being checked."""
    stopping: bool = False
    errors: Mapping[Pipeline, str] = field(default_factory=dict)
    """Why a check did not start, or what stands in its way, in sentences."""
    begun_at: datetime = UNKNOWN_TIME
    """UTC without a zone, as the history has it."""
    not_begun: int = 0
    """Jobs that were not begun because somebody stopped them all."""

    @property
    def is_active(self) -> bool:
        return self.current is not None


class CheckQueue:
    """The jobs of one home. At most one series of them runs at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress = JobsProgress()
        self._stopper: History | None = None
        self._wake = threading.Event()

    @property
    def progress(self) -> JobsProgress:
        with self._lock:
            return self._progress

    def begin(self, jobs: Sequence[Job]) -> bool:
        """Begin a series. Returns False if there is nothing to do, or one is going on."""
        with self._lock:
            if not jobs or self._progress.is_active:
                return False
            self._progress = JobsProgress(
                len(jobs),
                current=jobs[0].pipelines[0],
                begun_at=datetime.now(UTC).replace(tzinfo=None),
            )
            self._stopper = None
            self._wake.clear()
        threading.Thread(target=self._work, args=(jobs,), name="checks", daemon=True).start()
        return True

    def stop(self, history: History) -> None:
        """Stop the check that runs, for this person, and begin no further one."""
        with self._lock:
            self._stopper = history
            self._progress = replace(self._progress, stopping=True)
        self._wake.set()

    def _work(self, jobs: Sequence[Job]) -> None:
        for number, job in enumerate(jobs):
            if self._wake.is_set():
                self._change(not_begun=len(jobs) - number)
                break
            self._change(done=number, current=job.pipelines[0])
            try:
                self._follow(job.history, job.start())
            except TopicproofError as error:
                self._note(job, str(error))
            except Exception:
                log.exception("A check of many ended")
                self._note(job, UNFORESEEN)
        else:
            self._change(done=len(jobs))
        self._change(current=None, stopping=False)

    def _follow(self, history: History, run_id: str) -> None:
        """Wait until the process of a check has ended, which may judge several sinks."""
        first = history.get(run_id)
        stopped: set[str] = set()
        idle = 0
        # A verdict ends the entry's lease; the process may go on with the contract's next sink.
        while first.owner is not None and first.alive and idle < IDLE_POLLS:
            entries = set(history.owned_by(first.owner))
            idle = 0 if entries else idle + 1
            if self._stopper is None:
                self._wake.wait(POLL_S)
                continue
            for entry in entries - stopped:
                stop(self._stopper, entry)
                stopped.add(entry)
            time.sleep(POLL_S)

    def _note(self, job: Job, error: str) -> None:
        with self._lock:
            errors = {**self._progress.errors, **dict.fromkeys(job.pipelines, error)}
            self._progress = replace(self._progress, errors=errors)

    def _change(self, **fields: object) -> None:
        with self._lock:
            self._progress = replace(self._progress, **fields)  # type: ignore[arg-type]


@st.cache_resource(max_entries=4, show_spinner=False)
def check_queue(home: str) -> CheckQueue:  # noqa: ARG001 - the key
    """Returns the queue that all pages of this home share."""
    return CheckQueue()


def jobs_of(settings: Settings, runs: Sequence[Run]) -> list[Job]:
    """Returns what checks the pipelines of these checks again; those of one version of a contract
    together."""
    groups: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        name, version = run.plan.get("contract"), run.plan.get("contract_version")
        # Without a version, pairs of one name are not of one contract.
        is_alone = not (name and version)
        key = (run.id,) if is_alone else (name, version, pipeline_of(run).cluster)
        groups.setdefault(key, []).append(run)
    return [_job(settings, group) for group in groups.values()]


def _job(settings: Settings, runs: Sequence[Run]) -> Job:
    try:
        history = open_history(_where(settings, runs[0]))
    except UsageError as error:
        message = str(error)

        def refuse() -> str:
            raise UsageError(message)

        return Job(tuple(map(pipeline_of, runs)), open_history(settings), refuse)
    return Job(tuple(map(pipeline_of, runs)), history, lambda: start_again(history, runs[0]))


def _where(settings: Settings, run: Run) -> Settings:
    """Returns the settings of the cluster that a check was on. Raises UsageError if this page does
    not know it."""
    cluster = run.facts.cluster
    if cluster.name is not None:
        if cluster.name not in settings.named_clusters:
            raise UsageError(f"It was checked on the cluster {cluster.name}, which has no address.")
        return read_settings(cluster=cluster.name)
    if settings.cluster is not None:
        raise UsageError(f"It was not checked on {settings.cluster}. Choose its cluster above.")
    if cluster.bootstrap != settings.bootstrap:
        where = cluster.bootstrap or "the embedded Kafka"
        raise UsageError(f"It was checked on {where}, which is another cluster than this one.")
    return settings


def start_again(history: History, run: Run) -> str:
    """Start the check of a pipeline again: by the newest version of its contract that is about the
    same topics, or by its own terms. Returns its id. Raises as `start_check`; UsageError if
    another contract has its name."""
    name, version = run.plan.get("contract"), run.plan.get("contract_version")
    if name and version:
        newest, before = find(history, name), kept_origin(history, f"{name}@{version}")
        is_same_pair = _sides(parse_fields(newest.text)) == _sides(before.fields)
        contract = newest if is_same_pair else find(history, f"{name}@{version}")
        return start_kept_check(history, contract)
    if "clusters" in run.plan and not name:
        raise UsageError("Its clusters were named on the command line. Check it there again.")
    origin, keep_as = contract_of_run(history, run), pipeline_of(run).name
    text = origin.text or spell(origin.fields)
    try:
        stored = find(history, keep_as)
    except UsageError:
        return start_check(history, keep_as, text)
    if parse_fields(stored.text) != parse_fields(text):
        raise UsageError(
            f"It has no kept contract, and {stored.label} has other terms. Open it, give its"
            " contract another name, and check it there."
        )
    return start_kept_check(history, stored)


def _sides(fields: Mapping[str, object]) -> list[object]:
    """Returns what a contract says of its sides: their topics, and on which clusters."""
    sides = (fields.get(side) for side in ("source", "sink", "sinks"))
    return [{"topic": side} if isinstance(side, str) else side for side in sides]
