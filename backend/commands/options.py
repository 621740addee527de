"""The options that several commands share, each spelled once, and the settings they make."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topicproof.backend.errors import UsageError
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.faults.kinds import KINDS
from topicproof.backend.runs.scenarios import SCENARIOS
from topicproof.backend.settings import Settings, read_settings

Bootstrap = Annotated[
    str | None,
    typer.Option(
        help="host:port of a given Kafka; without it an embedded one is started.", metavar="B"
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(help="Client properties (TLS, SASL) of the given Kafka.", metavar="FILE"),
]
Brokers = Annotated[
    int | None, typer.Option(help="Brokers of the embedded Kafka: 1 or 3.", metavar="1|3")
]
Json = Annotated[
    str | None,
    typer.Option("--json", help="The result as JSON, to FILE or (no FILE) to the terminal."),
]
RunId = Annotated[
    str, typer.Argument(help="Name of the run, as `topicproof runs` lists it.", metavar="RUN")
]
Records = Annotated[
    int | None, typer.Option(help="How many integers to fill in, from 0 on.", metavar="N")
]
Partitions = Annotated[
    int | None, typer.Option(help="Partitions of the topics that are made.", metavar="P")
]
PerTransaction = Annotated[int | None, typer.Option(help="Records per transaction.", metavar="N")]
Lineage = Annotated[
    str | None,
    typer.Option(
        help=(
            "record: sink records name their input in a header; packed: one header for many; off:"
            " judged by key."
        ),
        metavar="HOW",
    ),
]
AbortProbability = Annotated[
    float | None, typer.Option(help="Abort a transaction on purpose: 0 to 1.", metavar="p")
]
AttemptsMax = Annotated[
    int | None, typer.Option(help="Tries per transaction before the run gives up.", metavar="N")
]
Fault = Annotated[
    list[str] | None,
    typer.Option(
        help="Go wrong on purpose, such as crash@transaction=3,step=begun. "
        + " ".join(f"{kind.name}: {kind.says}" for kind in KINDS),
        metavar="KIND@WHERE",
    ),
]
Seed = Annotated[
    int | None, typer.Option(help="Seed of every draw; the same seed repeats the run.", metavar="S")
]
Rate = Annotated[
    float | None, typer.Option(help="Fill at this rate, in records per second.", metavar="R")
]
Scenario = Annotated[
    str | None, typer.Option(help=f"What to run: {', '.join(SCENARIOS)}.", metavar="NAME")
]
PlanFile = Annotated[
    Path | None,
    typer.Argument(
        help="A plan in YAML, whose fields options win over; or the name of a scenario.",
        metavar="[PLAN.yaml|SCENARIO]",
    ),
]
UntilStopped = Annotated[
    bool, typer.Option("--until-stopped", help="Go on until `topicproof stop` or Ctrl-C.")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Folder for the report and its evidence.", metavar="DIR"),
]
PayloadsKept = Annotated[
    Payloads,
    typer.Option(
        "--payloads", help="Keys, values and headers in the evidence: as read, as digests, or not."
    ),
]
OffsetsForced = Annotated[
    bool,
    typer.Option(
        "--offsets-forced", help="Go on from the group's offsets although somebody moved them."
    ),
]
SourceOption = Annotated[
    list[str] | None,
    typer.Option(help="A further option of Spark's Kafka source.", metavar="NAME=VALUE"),
]


def settings_of(
    bootstrap: str | None = None, config: Path | None = None, brokers: int | None = None
) -> Settings:
    """The settings of a command. Raises UsageError for a number of brokers that there is none
    of."""
    if brokers not in (None, 1, 3):
        raise UsageError(f"--brokers is {brokers}; the embedded Kafka has 1 or 3.")
    return read_settings(bootstrap, config, brokers)
