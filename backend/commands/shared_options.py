"""Options shared by several commands, and the settings from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from topicproof.backend.errors import UsageError
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


@dataclass(frozen=True)
class Target:
    """Options that name the cluster of a command, all None for the embedded Kafka."""

    bootstrap: Bootstrap = None
    config: Config = None
    cluster: ClusterName = None

    @property
    def is_named(self) -> bool:
        """Whether a cluster was named. Properties alone name none."""
        return bool(self.bootstrap or self.cluster)

    @property
    def first_option(self) -> str | None:
        """The first of these options that was given; None without any."""
        options = (f"--{name}" for name, value in asdict(self).items() if value is not None)
        return next(options, None)


@dataclass(frozen=True)
class SourceTarget:
    """Options that name the source's cluster, all None if it is the sink's."""

    source_bootstrap: SourceBootstrap = None
    source_config: SourceConfig = None
    source_cluster: SourceCluster = None

    @property
    def target(self) -> Target:
        return Target(self.source_bootstrap, self.source_config, self.source_cluster)


EMBEDDED, SAME_CLUSTER = Target(), SourceTarget()


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with an option for each field of its parameters that are dataclasses, in
    their place. Typer knows no groups of options (github.com/fastapi/typer/issues/154), but reads
    the signature of a function."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    parameters: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        group = hints[parameter.name]
        if not is_dataclass(group):
            parameters.append(parameter.replace(annotation=group, kind=Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = group
        types = get_type_hints(group, include_extras=True)
        parameters += [
            Parameter(
                option.name,
                Parameter.KEYWORD_ONLY,
                default=option.default,
                annotation=types[option.name],
            )
            for option in fields(group)
        ]

    @wraps(command)
    def of_options(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(
                **{option.name: values.pop(option.name) for option in fields(group)}
            )
        command(**values)

    of_options.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    of_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return of_options


def kafka_settings(target: Target, brokers: int | None = None) -> Settings:
    """Return the settings of a command that needs Kafka. Raises ClusterError before anything is
    started if a given Kafka cannot be reached, and what `settings_of` raises."""
    settings = settings_of(target, brokers)
    if settings.bootstrap is not None:
        # late: most commands need no Kafka
        from topicproof.backend.kafka.log.client import require_reachable

        require_reachable(settings.address)
    return settings


def settings_of(
    target: Target = EMBEDDED, brokers: int | None = None, make_home: bool = True
) -> Settings:
    """Return the settings of a command. Raises UsageError for an unsupported number of brokers."""
    if brokers not in (None, 1, 3):
        raise UsageError(f"--brokers is {brokers}; the embedded Kafka has 1 or 3.")
    return read_settings(
        target.bootstrap, target.config, brokers, cluster=target.cluster, make_home=make_home
    )


def source_settings(source: SourceTarget) -> Settings | None:
    """Return what a command says of the source's cluster alone; None if it says nothing. Raises as
    `kafka_settings` does."""
    return None if source == SAME_CLUSTER else kafka_settings(source.target)
