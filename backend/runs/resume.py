"""Resuming a run whose process was stopped or killed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from topicproof.backend.errors import TopicproofError, UsageError
from topicproof.backend.history.audit import allow
from topicproof.backend.history.store import History, State
from topicproof.backend.kafka.origin import fetch_replaced
from topicproof.backend.runs.clean import stop_orphan
from topicproof.backend.runs.context import Context, make_context
from topicproof.backend.runs.execute import execute
from topicproof.backend.runs.initial_offsets import extend
from topicproof.backend.runs.own_names import require_own_names
from topicproof.backend.runs.query import begin_generation, transactional_ids
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import Settings
from topicproof.backend.trust.identity import Action
from topicproof.validators.finding import Guarantee
from topicproof.validators.report import Report
from topicproof.validators.shell_words import shell_word


def resume(
    settings: Settings,
    services: Services,
    history: History,
    run_id: str,
    stop: threading.Event | None = None,
    offsets_forced: bool = False,
    names_from_history: bool = False,
    give_up: Callable[[TopicproofError], None] | None = None,
) -> Report | None:
    """Continue a run whose process was stopped or killed. Raises UsageError if there is nothing to
    continue, NotPermitted.

    `offsets_forced`: continue from the group's offsets, even if the journal shows that they were
    moved. `names_from_history`: also use names of topics and transactional ids that the history
    alone has for the run (own_names.py). `give_up` ends this process if Kafka or Spark is gone for
    good (lifeline.py).
    """
    entry = history.get(run_id)
    if entry.kind != "run":
        raise UsageError(f"{run_id} is a check, and a check cannot be resumed. Check again.")
    if entry.state is State.DONE and not entry.alive:
        raise UsageError(
            f"Run {run_id} is finished; there is nothing to resume. `topicproof show"
            f" {shell_word(run_id)}` shows it."
        )
    if entry.facts.initial_offsets is None:
        raise UsageError(
            f"Run {run_id} ended before its topics were made. Delete it, and start a"
            f" new run: topicproof clean {shell_word(run_id)}"
        )
    allow(history, Action.RESUME, run_id)
    if not names_from_history:
        require_own_names(services.address, entry, settings.runs / entry.id)
    if replaced := fetch_replaced(services.address, entry.facts.topic_ids, "since the run began"):
        raise UsageError(
            f"Run {run_id} cannot continue: {replaced[0]}. Start a new run, with a sink of its own."
        )
    run = history.take(run_id)
    if history.by not in run.facts.launched_by:
        by = (*run.facts.launched_by, history.by)
        history.remember(run_id, replace(run.facts, launched_by=by))
        run = history.get(run_id)
    stop_orphan(services, run)
    context = make_context(settings, services, history, run, stop, give_up)
    if offsets_forced:
        context.plan = context.plan.model_copy(update={"offsets_forced": True})
    extend(context)
    abort_left_open(context)
    return execute(context)


def abort_left_open(context: Context) -> None:
    """Fence the producers of the process that was killed, and abort what they left open.

    Until then the brokers show nobody the group's offsets, for as long as the transaction timeout
    (KIP-447). A broker that was killed with the process has had no chance to end anything.
    """
    if Guarantee(context.plan.guarantee) is not Guarantee.EXACTLY_ONCE:
        return
    cluster = context.cluster
    for stage, names in context.stages:
        bounds = [cluster.bounds(topic) for topic in names.sinks if names.database is None]
        if any(
            partition.lso < partition.hw
            for topic_bounds in bounds
            for partition in topic_bounds.partitions
        ):
            # First the generation, as after any start that has failed: a late worker must find it.
            begin_generation(cluster, names)
            cluster.fence_and_abort(transactional_ids(cluster, stage, names))
