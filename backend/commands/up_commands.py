"""Start Kafka, Spark, a demo and the dashboard; stop them on Ctrl-C."""

from __future__ import annotations

from typing import Annotated

import typer

from topicproof.backend.commands.run_commands import execute, stop_all
from topicproof.backend.commands.shared_options import EMBEDDED, Brokers, Json, Target, settings_of
from topicproof.backend.commands.terminal import Styled, emit, out, say, stopping
from topicproof.backend.errors import TopicproofError
from topicproof.backend.history.store import History
from topicproof.backend.runs.launch import start_watch
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.services.dashboard import dashboard, require_closed, require_port
from topicproof.backend.services.keeper import Services, services
from topicproof.backend.services.spark import without_token
from topicproof.backend.settings import DASHBOARD_PORT, Settings
from topicproof.backend.watch.cluster_look import cluster_id
from topicproof.backend.watch.state_file import is_watched
from topicproof.backend.watch.watch_list import read_list


def up(
    brokers: Brokers = None,
    port: Annotated[int, typer.Option(help="Port of the dashboard.")] = DASHBOARD_PORT,
    target: Target = EMBEDDED,
    demo: Annotated[
        bool, typer.Option("--demo/--no-demo", help="Run one small demo first.")
    ] = True,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Let a dashboard without a login listen beyond loopback, and serve everybody.",
        ),
    ] = False,
    json_: Json = None,
) -> None:
    """Start Kafka, Spark and the dashboard, unless they exist already, until Ctrl-C.

    Example: `topicproof up --brokers 3`
    """
    settings = settings_of(target, brokers)
    if insecure:
        settings = settings.model_copy(update={"insecure": True})
    require_closed(settings, settings.dashboard_address)
    require_port(port)
    with (
        stopping() as stop,
        services(settings, say=say) as running,
        dashboard(settings, port) as address,
    ):
        spark = without_token(running.spark_remote)
        say(f"Kafka {running.bootstrap}, Spark {spark}")
        if demo and not stop.is_set():
            plan = make_plan(
                {"abort_probability": 0.2, "faults": ["crash@transaction=2"], "seed": 1}
            )
            say(
                "one small demo: 10,000 numbers are squared, a fifth of the transactions abort, and"
                " every worker is killed once"
            )
            execute(settings, running, plan, stop)
        _resume_watch(settings, running)
        emit(json_, {"address": address, "bootstrap": running.bootstrap, "spark": spark})
        out.blank()
        out.line(Styled(f"The dashboard is at {address}", "bold"))
        out.line("Ctrl-C stops everything.")
        stop.wait()
        say("stopping")
        stop_all(settings)
        # Those of an embedded Kafka end with it.
        if settings.bootstrap is not None and any(
            is_watched(settings, each.cluster_id) for each in read_list(settings)
        ):
            say("contracts are watched on; the page Watch stops that")


def _resume_watch(settings: Settings, running: Services) -> None:
    """Start the watch of the contracts that the dashboard has listed for this cluster, if it ended.
    Without it, everything else works."""
    try:
        contracts = read_list(settings)
        cluster = cluster_id(running.address) if contracts else ""
        if any(each.cluster_id == cluster for each in contracts):
            start_watch(History(settings), cluster, say)
    except TopicproofError as error:
        say(f"The watch of this cluster did not begin again: {error}")
