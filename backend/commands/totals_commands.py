"""The current totals of a run of the scenario totals."""

from __future__ import annotations

from dataclasses import asdict

from topicproof.backend.commands.run_commands import where_it_ran
from topicproof.backend.commands.shared_options import EMBEDDED, Json, RunId, Target, kafka_settings
from topicproof.backend.commands.show import foreign_sentence
from topicproof.backend.commands.terminal import Table, emit, out, say
from topicproof.backend.errors import UsageError
from topicproof.backend.history.store import History
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.kafka.look import LookBudget
from topicproof.backend.runs.totals import END_LIMITS, current_totals
from topicproof.backend.services.keeper import services


def totals(
    run_id: RunId,
    target: Target = EMBEDDED,
    json_: Json = None,
) -> None:
    """Show every account's total in the run's sink beside the correct one.

    The correct total counts each payment once, by its id. The two differ if payments entered the
    source twice.

    Example: `topicproof totals totals-k3f9a2`
    """
    settings = kafka_settings(target)
    run = History(settings).get(run_id)
    if run.plan.get("scenario") != "totals":
        raise UsageError(f"{run_id} is not a run of the scenario totals, so it has no totals.")
    settings = where_it_ran(settings, run)
    with services(settings, spark=False, say=say) as running:
        budget = LookBudget(END_LIMITS)
        sink_totals = current_totals(Cluster(running.address), run.facts.sink, budget=budget)
    account_totals = sink_totals.balances
    emit(
        json_,
        [{**asdict(total), "difference_cents": total.difference_cents} for total in account_totals],
    )
    if sink_totals.note:
        say(sink_totals.note)
    if json_ is not None:
        return
    table = Table(("account", "total", "payments", "should be", "difference"))
    for total in account_totals:
        differs = f"{total.difference_cents / 100:+,.2f}" if total.difference_cents else ""
        table.add(
            total.account,
            f"{total.cents / 100:,.2f}",
            f"{total.payments:,}",
            f"{total.due_cents / 100:,.2f}",
            differs,
        )
    out.table(table)
    if sink_totals.foreign:
        out.line(foreign_sentence(sink_totals.foreign).removeprefix(". ") + ".")
