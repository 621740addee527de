"""Look into a cluster: what is wrong, a topic, its transactions. None of them needs Spark or the
history, which take longer to load than Kafka takes to answer."""

from __future__ import annotations

from typing import Annotated

import typer

from topicproof.backend.commands.shared_options import (
    EMBEDDED,
    Brokers,
    Json,
    Target,
    kafka_settings,
)
from topicproof.backend.commands.show_topic import print_causes, print_topic, print_transactions
from topicproof.backend.commands.terminal import emit, out, say
from topicproof.backend.kafka.browse.causes import causes, exit_code, status_json
from topicproof.backend.kafka.browse.inspect import inspect_topic
from topicproof.backend.kafka.browse.overview import overview
from topicproof.backend.kafka.coordination.transactions import cluster_transactions
from topicproof.backend.services.keeper import require_topics, services


def inspect(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    check_crc: Annotated[
        bool,
        typer.Option("--check-crc", help="Also verify the checksum of every record batch."),
    ] = False,
    target: Target = EMBEDDED,
    brokers: Brokers = None,
    json_: Json = None,
) -> None:
    """Show a topic's fates, LSO and HW, transactions, producers, and groups with their lag.

    Example: `topicproof inspect squares --bootstrap localhost:9092`
    """
    settings = kafka_settings(target, brokers)
    require_topics(settings)
    with services(settings, spark=False, say=say) as running:
        view = inspect_topic(running.address, topic, check_crc)
    emit(json_, view.to_json())
    if json_ is None:
        print_topic(out, view, settings.cluster_options)


def status(
    target: Target = EMBEDDED,
    brokers: Brokers = None,
    json_: Json = None,
) -> None:
    """List what is wrong with the cluster now, worst first: who holds records back, since when,
    from whom, and what to do.

    It changes nothing. Exit code: 0 nothing, 1 something is wrong, 2 something deserves attention,
    3 a question was not answered.

    Example: `topicproof status --bootstrap broker:9092`
    """
    settings = kafka_settings(target, brokers)
    require_topics(settings)
    with services(settings, spark=False, say=say) as running:
        cluster = overview(running.address)
    listed = causes(cluster, settings.cluster_options)
    code = exit_code(listed, cluster.not_heard)
    emit(json_, status_json(cluster, listed))
    if json_ is None:
        print_causes(out, cluster, listed)
    raise typer.Exit(code)


def transactions(
    target: Target = EMBEDDED,
    brokers: Brokers = None,
    json_: Json = None,
) -> None:
    """List open and hanging transactions on all topics, and every transactional id that the
    coordinators know.

    Example: `topicproof transactions --bootstrap broker:9092`
    """
    settings = kafka_settings(target, brokers)
    require_topics(settings)
    with services(settings, spark=False, say=say) as running:
        view = cluster_transactions(running.address)
    emit(json_, view.to_json())
    if json_ is None:
        print_transactions(out, view, settings.cluster_options)
