"""Topics: fill one, and look at one."""

from __future__ import annotations

from typing import Annotated

import typer

from backend.commands.options import (
    Bootstrap,
    Brokers,
    Config,
    Json,
    Partitions,
    Rate,
    Records,
    UntilStopped,
    settings_of,
)
from backend.commands.terminal import emit, out, say, stopping
from backend.errors import UsageError
from backend.kafka.cluster import Cluster
from backend.kafka.inspect import inspect_topic
from backend.pipeline.fill import fill as fill_topic
from backend.services import services
from backend.show import print_topic


def fill(
    topic: Annotated[str, typer.Option(help="Where to; made when it is missing.", metavar="T")] = "numbers",
    records: Records = 10_000,
    partitions: Partitions = 3,
    rate: Rate = None,
    until_stopped: UntilStopped = False,
    bootstrap: Bootstrap = None,
    config: Config = None,
    brokers: Brokers = None,
    json_: Json = None,
) -> None:
    """Fill a topic with the integers from 0 on, as text, keyed, by an idempotent producer.

    Example: `topicproof fill --topic numbers --records 100000 --partitions 4`
    """
    settings = settings_of(bootstrap, config, brokers)
    with stopping() as stop, services(settings, spark=False, say=say) as found:
        cluster = Cluster(found.bootstrap, settings.client)
        cluster.create_topic(topic, partitions or 3, exists_ok=True)
        held = cluster.bounds(topic)
        if held.offsets:
            raise UsageError(f"Topic {topic} holds {held.offsets:,} offsets already. Choose another with --topic.")
        count = fill_topic(cluster, topic, None if until_stopped else records, rate, stop.is_set)
    emit(json_, {"topic": topic, "records": count, "bootstrap": found.bootstrap})
    out.print(f"{topic} holds {count:,} integers.")


def inspect(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    bootstrap: Bootstrap = None,
    config: Config = None,
    brokers: Brokers = None,
    json_: Json = None,
) -> None:
    """Fates, LSO and HW, transactions, open ones, producers, true lag of every group.

    Example: `topicproof inspect squares --bootstrap localhost:9092`
    """
    settings = settings_of(bootstrap, config, brokers)
    with services(settings, spark=False, say=say) as found:
        view = inspect_topic(found.bootstrap, settings.client, topic)
    emit(json_, view.to_json())
    if json_ is None:
        print_topic(out, view)
