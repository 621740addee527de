"""Topics: fill one, and set where a group begins."""

from __future__ import annotations

from typing import Annotated

import typer

from topicproof.backend.commands.shared_options import (
    EMBEDDED,
    Brokers,
    Json,
    Partitions,
    Rate,
    Records,
    Target,
    UntilStopped,
    kafka_settings,
)
from topicproof.backend.commands.terminal import emit, out, say, stopping
from topicproof.backend.errors import UsageError
from topicproof.backend.history.audit import allow
from topicproof.backend.history.store import History
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs.fill import fill as fill_topic
from topicproof.backend.runs.initial_offsets import commit_initial_offsets
from topicproof.backend.services.keeper import services
from topicproof.backend.trust.identity import Action


def fill(
    topic: Annotated[
        str, typer.Option(help="The topic. It is created if missing.", metavar="T")
    ] = "numbers",
    records: Records = 10_000,
    partitions: Partitions = 3,
    rate: Rate = None,
    until_stopped: UntilStopped = False,
    target: Target = EMBEDDED,
    brokers: Brokers = None,
    json_: Json = None,
) -> None:
    """Fill a topic with integers starting at 0, as keyed text, by an idempotent producer.

    Example: `topicproof fill --topic numbers --records 100000 --partitions 4`
    """
    settings = kafka_settings(target, brokers)
    with stopping() as stop, services(settings, spark=False, say=say) as running:
        allow(History(settings), Action.FILL, topic)
        kafka = Cluster(running.address)
        kafka.create_topic(topic, partitions or 3, exists_ok=True)
        bounds = kafka.bounds(topic)
        if bounds.offsets:
            raise UsageError(
                f"Topic {topic} holds {bounds.offsets:,} offsets already. Choose another with"
                " --topic."
            )
        count = fill_topic(kafka, topic, None if until_stopped else records, rate, stop.is_set)
    emit(json_, {"topic": topic, "records": count, "bootstrap": running.bootstrap})
    out.line(f"{topic} holds {count:,} integers.")


def floor(
    group: Annotated[
        str,
        typer.Option(
            help="The consumer group: the value of the sink's option `group`.", metavar="G"
        ),
    ],
    topic: Annotated[str, typer.Option(help="The source topic.", metavar="T")],
    latest: Annotated[
        bool, typer.Option("--latest", help="Begin at the end of the topic instead of its start.")
    ] = False,
    target: Target = EMBEDDED,
    brokers: Brokers = None,
    json_: Json = None,
) -> None:
    """Commit a group's initial offsets, once, before your own program first starts the sink.

    Example: `topicproof floor --group loud-run --topic quiet --bootstrap broker:9092`
    """
    settings = kafka_settings(target, brokers)
    with services(settings, spark=False, say=say) as running:
        allow(History(settings), Action.FLOOR, f"of {group} on {topic}")
        offsets = commit_initial_offsets(Cluster(running.address), group, topic, latest)
    emit(json_, {"group": group, "topic": topic, "offsets": offsets})
    begins = ", ".join(
        f"{topic}-{partition} at {offset:,}" for partition, offset in offsets.items()
    )
    out.line(f"Group {group} begins with {begins}.")
