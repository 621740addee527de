"""Options of runs, checks and evidence. They list scenarios and faults, so they import all of them:
other commands start faster without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from topicproof.backend.errors import UsageError
from topicproof.backend.evidence.copy import is_copy
from topicproof.backend.evidence.delivery import require_room
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.faults.kinds import KINDS
from topicproof.backend.kafka.log.client import require_reachable
from topicproof.backend.runs.scenarios import SCENARIOS
from topicproof.backend.runs.sides import SideSettings
from topicproof.backend.services.keeper import require_topics
from topicproof.backend.sink.delivery_options import OPTIONS
from topicproof.backend.storage import is_url, uploading

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
ByHand = Annotated[
    bool,
    typer.Option(
        "--by-hand",
        help="Allow `topicproof strike` and the dashboard's buttons to kill workers and to freeze"
        " the network while it runs.",
    ),
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
OffsetsForced = Annotated[
    bool,
    typer.Option(
        "--offsets-forced", help="Continue from the group's offsets even if they were moved."
    ),
]
NamesFromHistory = Annotated[
    bool,
    typer.Option(
        "--names-from-history",
        help="Also use names of topics and transactional ids that the history alone has for the"
        " run: nothing else shows that they are its own.",
    ),
]
SourceOption = Annotated[
    list[str] | None,
    typer.Option(help="A further option for Spark's Kafka source.", metavar="NAME=VALUE"),
]
PlanOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A further option of delivery, under its name in a plan: "
        + ", ".join(option.plan_name for option in OPTIONS.values())
        + ".",
        metavar="NAME=VALUE",
    ),
]
Out = Annotated[
    str | None,
    typer.Option(
        "--out",
        help="Folder for the report and its evidence; also a URL, such as s3a://bucket/proof.",
        metavar="DIR|URL",
    ),
]
PayloadsKept = Annotated[
    Payloads,
    typer.Option(
        "--payloads",
        help="Keys, values and headers in the evidence: all as read, masked as digests, or none.",
    ),
]


@dataclass(frozen=True)
class TransactionOptions:
    """Options of runs with the names of the plan's fields."""

    per_transaction: Annotated[
        int | None, typer.Option(help="Records per transaction.", metavar="N")
    ] = None
    lineage: Annotated[
        str | None,
        typer.Option(
            help="record: each sink record names its input in a header. off: judged by key.",
            metavar="HOW",
        ),
    ] = None
    abort_probability: Annotated[
        float | None,
        typer.Option(
            help="Probability that a transaction is aborted on purpose, from 0 to 1.", metavar="p"
        ),
    ] = None
    attempts_max: Annotated[
        int | None, typer.Option(help="Attempts per transaction before the run fails.", metavar="N")
    ] = None
    faults: Annotated[
        list[str] | None,
        typer.Option(
            "--fault",
            help="Inject a fault, such as crash@transaction=3,step=begun. "
            + " ".join(f"{kind.name}: {kind.says}" for kind in KINDS),
            metavar="KIND@WHERE",
        ),
    ] = None
    seed: Annotated[
        int | None, typer.Option(help="Random seed. The same seed repeats the run.", metavar="S")
    ] = None

    @property
    def fields(self) -> dict[str, Any]:
        """The plan's fields that were given."""
        return {name: value for name, value in asdict(self).items() if value not in (None, [])}


def pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    """Return what `option`, such as --set, was given as NAME=VALUE. Raises UsageError."""
    values = {}
    for text in texts or []:
        name, separator, value = text.partition("=")
        if not separator:
            raise UsageError(f"{option} {text}: expected NAME=VALUE.")
        values[name] = value
    return values


def plan_options(texts: list[str] | None) -> dict[str, str]:
    """Return the plan's fields of `--set`. Raises UsageError."""
    values = pairs("--set", texts)
    names = [option.plan_name for option in OPTIONS.values()]
    for name in values:
        if name not in names:
            raise UsageError(f"--set {name}: unknown option. Known: {', '.join(names)}.")
    return values


PLANNED = TransactionOptions()
"""Nothing overrides the plan."""


def require_sides(sides: SideSettings) -> SideSettings:
    """Return the same. Raises ClusterError if a given Kafka of them cannot be reached, UsageError
    if none is given and the embedded one is empty."""
    for side in (sides.sink, sides.source):
        if side is None:
            continue
        require_topics(side)
        if side.bootstrap is not None:
            require_reachable(side.address)
    return sides


@contextmanager
def out_folder(place: str) -> Iterator[Path]:
    """Give the folder of the option `--out`. What the block wrote into that of a URL is copied
    there. Raises UsageError before the block if other files are there; EvidenceError."""
    if is_url(place):
        with uploading(place, is_copy) as folder:
            yield folder
        return
    require_room(Path(place))
    yield Path(place)
