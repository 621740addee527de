"""The fill of a run: every source of its scenario, before or alongside the pipeline."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from topicproof.backend.history.store import State
from topicproof.backend.runs.context import Context
from topicproof.backend.runs.duplicates import Cause, Twice, fill_twice
from topicproof.backend.runs.fill import fill, numbers_in
from topicproof.backend.runs.scenarios import scenario

PAYMENTS = "payments.db"
"""File in a run's folder: the SQLite database with the table that a transfer copies."""


def start_fill(context: Context, pool: ThreadPoolExecutor) -> Future[None] | None:
    """Fill first, or alongside the pipeline if the run continues until stopped. Returns only a
    concurrent fill."""
    if context.run.facts.filled:
        return None
    if context.plan.until_stopped:
        return pool.submit(_fill, context)
    context.enter(State.FILLING)
    _fill(context)
    return None


def raise_failure(filling: Future[None] | None) -> None:
    """Raise the error of a concurrent fill that failed."""
    if filling is not None and filling.done():
        filling.result()


def _fill(context: Context) -> None:
    """Fill every source of the scenario with the same number of records."""
    plan, chosen = context.plan, scenario(context.plan.scenario)
    value = chosen.value
    if value is None:
        return
    work = context.work
    if plan.duplicates is not None:
        _fill_twice(context, plan.duplicates)
        return
    counts = dict.fromkeys(chosen.sources, 0)

    def fill_one(role: str) -> None:
        topic = work.topics[role]

        def on_filled(count: int) -> None:
            counts[role] = count
            context.filled = sum(counts.values())

        fill(
            context.cluster,
            topic,
            None if plan.until_stopped else plan.records,
            plan.rate,
            lambda: context.fill_over,
            on_filled,
            numbers_in(context.cluster, topic, chosen.number),
            value=lambda number: value(number, work),
            key=chosen.key,
        )

    with ThreadPoolExecutor(len(counts)) as pool:
        list(pool.map(fill_one, counts))
    if not context.stop.is_set():
        context.remember(filled=True)


def _fill_twice(context: Context, cause: Cause) -> None:
    """Fill the scenario's only source with payments, some of them twice."""
    chosen = scenario(context.plan.scenario)
    topic = context.work.topics[chosen.sources[0]]

    def on_filled(count: int) -> None:
        # A filler that restarts counts from zero again.
        context.filled = max(context.filled, count)

    context.folder.mkdir(parents=True, exist_ok=True)
    twice = Twice(
        context.cluster,
        topic,
        context.plan.records,
        database=context.plan.source.url or f"sqlite:///{context.folder / PAYMENTS}",
        stopped=context.stop.is_set,
        on_filled=on_filled,
        present=numbers_in(context.cluster, topic, chosen.number),
    )
    fill_twice(cause, twice)
    if not context.stop.is_set():
        context.remember(filled=True)
