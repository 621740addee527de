"""The current totals of a run of the scenario totals."""

from __future__ import annotations

from dataclasses import asdict

from topicproof.backend.commands.options import (
    Bootstrap,
    ClusterName,
    Config,
    Json,
    RunId,
    kafka_settings,
)
from topicproof.backend.commands.runs import where_it_ran
from topicproof.backend.commands.terminal import Table, emit, out, say
from topicproof.backend.errors import UsageError
from topicproof.backend.history.store import History
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs.totals import current_totals
from topicproof.backend.services.keeper import services


def totals(
    run_id: RunId,
    bootstrap: Bootstrap = None,
    config: Config = None,
    cluster: ClusterName = None,
    json_: Json = None,
) -> None:
    """Show every account's total in the run's sink beside the correct one.

    The correct total counts each payment once, by its id. The two differ if payments entered the
    source twice.

    Example: `topicproof totals totals-k3f9a2`
    """
    settings = kafka_settings(bootstrap, config, cluster=cluster)
    found = History(settings).get(run_id)
    if found.plan.get("scenario") != "totals":
        raise UsageError(f"{run_id} is not a run of the scenario totals, so it has no totals.")
    settings = where_it_ran(settings, found)
    with services(settings, spark=False, say=say) as running:
        known = current_totals(Cluster(running.address), found.facts.sink)
    emit(json_, [{**asdict(one), "difference_cents": one.difference_cents} for one in known])
    if json_ is not None:
        return
    table = Table(("account", "total", "payments", "should be", "difference"))
    for one in known:
        differs = f"{one.difference_cents / 100:+,.2f}" if one.difference_cents else ""
        table.add(
            one.account,
            f"{one.cents / 100:,.2f}",
            f"{one.payments:,}",
            f"{one.due_cents / 100:,.2f}",
            differs,
        )
    out.table(table)
