"""Options shared by several commands, and the settings from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topicproof.backend.errors import UsageError
from topicproof.backend.kafka.log.client import require_reachable
from topicproof.backend.settings import Settings, read_settings

Bootstrap = Annotated[
    str | None,
    typer.Option(
        help="host:port of an existing Kafka. Default: an embedded one is started.", metavar="B"
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(help="Client properties (TLS, SASL) for that Kafka.", metavar="FILE"),
]
ClusterName = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="A cluster of TOPICPROOF_CLUSTERS, instead of --bootstrap and --config.",
        metavar="NAME",
    ),
]
SourceBootstrap = Annotated[
    str | None,
    typer.Option(help="host:port of the source's Kafka, if it is another one.", metavar="B"),
]
SourceConfig = Annotated[
    Path | None, typer.Option(help="Client properties for the source's Kafka.", metavar="FILE")
]
SourceCluster = Annotated[
    str | None,
    typer.Option(help="The source's cluster, by name, if it is another one.", metavar="NAME"),
]
Brokers = Annotated[
    int | None, typer.Option(help="Brokers of the embedded Kafka: 1 or 3.", metavar="1|3")
]
Json = Annotated[
    str | None,
    typer.Option(
        "--json",
        help="Write the result as JSON to FILE. Without FILE, put it last: to the terminal.",
    ),
]
AllKinds = Annotated[
    bool,
    typer.Option(
        "--all", help="Also list each kind that holds, and why others were not looked for."
    ),
]
RunId = Annotated[
    str, typer.Argument(help="Name of the run, as `topicproof runs` lists it.", metavar="RUN")
]
Records = Annotated[
    int | None, typer.Option(help="How many integers to write, starting at 0.", metavar="N")
]
Partitions = Annotated[int | None, typer.Option(help="Partitions of new topics.", metavar="P")]
Rate = Annotated[
    float | None, typer.Option(help="Write at this rate, in records per second.", metavar="R")
]
UntilStopped = Annotated[
    bool, typer.Option("--until-stopped", help="Continue until `topicproof stop` or Ctrl-C.")
]


def kafka_settings(
    bootstrap: str | None = None,
    config: Path | None = None,
    brokers: int | None = None,
    cluster: str | None = None,
) -> Settings:
    """Return the settings of a command that needs Kafka. Raises ClusterError before anything is
    started if a given Kafka cannot be reached, and what `settings_of` raises."""
    settings = settings_of(bootstrap, config, brokers, cluster)
    if settings.bootstrap is not None:
        require_reachable(settings.address)
    return settings


def settings_of(
    bootstrap: str | None = None,
    config: Path | None = None,
    brokers: int | None = None,
    cluster: str | None = None,
    make_home: bool = True,
) -> Settings:
    """Return the settings of a command. Raises UsageError for an unsupported number of brokers."""
    if brokers not in (None, 1, 3):
        raise UsageError(f"--brokers is {brokers}; the embedded Kafka has 1 or 3.")
    return read_settings(bootstrap, config, brokers, cluster=cluster, make_home=make_home)


def source_settings(
    bootstrap: str | None, config: Path | None, cluster: str | None
) -> Settings | None:
    """Return what a command says of the source's cluster alone; None if it says nothing. Raises as
    `kafka_settings` does."""
    if not (bootstrap or config or cluster):
        return None
    return kafka_settings(bootstrap, config, cluster=cluster)
