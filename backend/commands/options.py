"""Options shared by several commands, and the settings from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topicproof.backend.errors import UsageError
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.faults.kinds import KINDS
from topicproof.backend.kafka.log.client import require_reachable
from topicproof.backend.runs.scenarios import SCENARIOS
from topicproof.backend.runs.sides import Chosen
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
        "--json", help="Write the result as JSON to FILE, or without FILE to the terminal."
    ),
]
RunId = Annotated[
    str, typer.Argument(help="Name of the run, as `topicproof runs` lists it.", metavar="RUN")
]
Records = Annotated[
    int | None, typer.Option(help="How many integers to write, starting at 0.", metavar="N")
]
Partitions = Annotated[int | None, typer.Option(help="Partitions of new topics.", metavar="P")]
PerTransaction = Annotated[int | None, typer.Option(help="Records per transaction.", metavar="N")]
Lineage = Annotated[
    str | None,
    typer.Option(
        help=(
            "record: each sink record names its input in a header. packed: one header for many"
            " records. off: judged by key."
        ),
        metavar="HOW",
    ),
]
AbortProbability = Annotated[
    float | None,
    typer.Option(
        help="Probability that a transaction is aborted on purpose, from 0 to 1.", metavar="p"
    ),
]
AttemptsMax = Annotated[
    int | None, typer.Option(help="Attempts per transaction before the run fails.", metavar="N")
]
Fault = Annotated[
    list[str] | None,
    typer.Option(
        help="Inject a fault, such as crash@transaction=3,step=begun. "
        + " ".join(f"{kind.name}: {kind.says}" for kind in KINDS),
        metavar="KIND@WHERE",
    ),
]
Seed = Annotated[
    int | None, typer.Option(help="Random seed. The same seed repeats the run.", metavar="S")
]
Rate = Annotated[
    float | None, typer.Option(help="Write at this rate, in records per second.", metavar="R")
]
Scenario = Annotated[
    str | None, typer.Option(help=f"What to run: {', '.join(SCENARIOS)}.", metavar="NAME")
]
PlanFile = Annotated[
    Path | None,
    typer.Argument(
        help="A plan in YAML, or the name of a scenario. Options override the plan.",
        metavar="[PLAN.yaml|SCENARIO]",
    ),
]
UntilStopped = Annotated[
    bool, typer.Option("--until-stopped", help="Continue until `topicproof stop` or Ctrl-C.")
]
RealTime = Annotated[
    bool,
    typer.Option(
        "--real-time",
        help="Hand each record over as it comes, instead of batch by batch (Real-Time Mode).",
    ),
]
CommitInterval = Annotated[
    int | None,
    typer.Option(
        "--commit-interval-ms",
        help="In real time: a transaction ends this long after its first input. Default: 20.",
        metavar="MS",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Folder for the report and its evidence.", metavar="DIR"),
]
PayloadsKept = Annotated[
    Payloads,
    typer.Option(
        "--payloads",
        help="Keys, values and headers in the evidence: all as read, masked as digests, or none.",
    ),
]
OffsetsForced = Annotated[
    bool,
    typer.Option(
        "--offsets-forced", help="Continue from the group's offsets even if they were moved."
    ),
]
SourceOption = Annotated[
    list[str] | None,
    typer.Option(help="A further option for Spark's Kafka source.", metavar="NAME=VALUE"),
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
) -> Settings:
    """Return the settings of a command. Raises UsageError for an unsupported number of brokers."""
    if brokers not in (None, 1, 3):
        raise UsageError(f"--brokers is {brokers}; the embedded Kafka has 1 or 3.")
    return read_settings(bootstrap, config, brokers, cluster=cluster)


def source_settings(
    bootstrap: str | None, config: Path | None, cluster: str | None
) -> Settings | None:
    """Return what a command says of the source's cluster alone; None if it says nothing. Raises as
    `kafka_settings` does."""
    if not (bootstrap or config or cluster):
        return None
    return kafka_settings(bootstrap, config, cluster=cluster)


def require_sides(sides: Chosen) -> Chosen:
    """Return the same. Raises ClusterError if a given Kafka of them cannot be reached."""
    for side in (sides.sink, sides.source):
        if side is not None and side.bootstrap is not None:
            require_reachable(side.address)
    return sides
