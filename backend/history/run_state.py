"""What the history knows of a run besides its plan: what was decided at its creation, and its live
figures.

Both are kept as JSON. A field at its default is left out, and an unknown one is passed over, so
that histories of other versions can be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from topicproof.validators.finding import Outcome, PartitionBounds

DEAD_LETTERS = ".dead-letters"
"""How the name of a topic for dead letters ends."""

Offsets = Mapping[str, int]
"""By partition, which is text in JSON."""


@dataclass(frozen=True)
class Names:
    """The Kafka names of one stage of a run."""

    stage: str
    sources: tuple[str, ...]
    sinks: tuple[str, ...]
    """The first one takes the outputs that name no topic."""
    journal: str
    group: str
    prefix: str
    """`<prefix>-<source topic>-<partition>` are the transactional ids."""
    database: str | None = None
    """Where the sink is a table, the address of its database. It keeps the committed offsets as
    well."""

    @property
    def source(self) -> str:
        return self.sources[0]

    @property
    def sink(self) -> str:
        return self.sinks[0]

    @property
    def dead_letters(self) -> str | None:
        return next((topic for topic in self.sinks if topic.endswith(DEAD_LETTERS)), None)


@dataclass(frozen=True)
class RanOn:
    """The cluster of a run."""

    bootstrap: str | None = None
    """None: the embedded Kafka."""
    brokers: int | None = None


@dataclass(frozen=True)
class StageVerdict:
    """What one stage, or the values of one sink, came to."""

    verdict: Outcome
    why: str


@dataclass(frozen=True)
class Facts:
    """What was decided when a run was created, and what was found at its end. A check has a source
    and a sink alone."""

    folder: str | None = None
    """Where the report is, if not in the run's own folder."""
    source: str = ""
    sink: str = ""
    journal: str = ""
    group: str = ""
    topics: Mapping[str, str] = field(default_factory=dict)
    """What the scenario's topics are called in Kafka."""
    stages: tuple[Names, ...] = ()
    made: tuple[str, ...] = ()
    """The topics that the run made."""
    cluster: RanOn = RanOn()
    initial_offsets: Annotated[Mapping[str, Mapping[str, Offsets]] | None, Field(alias="floor")] = (
        None
    )
    """Where each stage begins: offsets by stage and source topic. None: the run ended before its
    topics were made."""
    sink_from: Mapping[str, Offsets] = field(default_factory=dict)
    """Where each sink ended before the run, by topic."""
    database: str | None = None
    """Where the sink is a table, the address of its database, without a password."""
    filled: bool = False
    served: str = ""
    """The URL of the files that the run serves; empty: it serves none."""
    session: str | None = None
    """Id of the Spark session, while the run is active."""
    verdicts: Mapping[str, StageVerdict] = field(default_factory=dict)
    """The verdicts of several stages."""
    values: Mapping[str, StageVerdict] = field(default_factory=dict)
    """Whether totals or counts are right, by sink."""
    accounts: int | None = None
    """In the scenario totals, the number of accounts."""
    wrong_by: Mapping[str, int] | None = None
    """In the scenario totals, cents of error per wrong account."""

    def of_stage(self, stage: str) -> Mapping[str, Offsets]:
        """Where a stage begins: offsets by source topic."""
        return (self.initial_offsets or {})[stage]


@dataclass(frozen=True)
class StageProgress:
    """One of a run's stages. In offsets."""

    name: str
    processed: int
    there: int
    """What its sources hold by now."""


@dataclass(frozen=True)
class Progress:
    """The live figures of a run, as the page and the command line show them."""

    stage: str = ""
    """Empty before the first look."""
    filled: int = 0
    processed: int = 0
    """Inputs of the first stage whose outputs are committed."""
    total: int | None = None
    """The final number of inputs; None while unknown."""
    committed: int = 0
    """Transactions, as the journal declares them."""
    aborted: int = 0
    fenced: int = 0
    """Transactions that another producer took over."""
    faults: int = 0
    records_per_s: float = 0.0
    seconds_left: float | None = None
    sink: tuple[PartitionBounds, ...] = ()
    """The partitions of the last stage's sink. A table has none."""
    kept: int = 0
    """Inputs in the transactions that the journal declares committed, over all stages."""
    attempted: int = 0
    """Inputs in all transactions that the journal declares, whatever became of them; a killed
    worker declares none."""
    downloads: int | None = None
    """Of the files that the run serves, each as often as it was asked for; None: it serves none."""
    downloaded: int = 0
    """How many of them were asked for at all."""
    stages: tuple[StageProgress, ...] = ()
    """Where there are several."""
    trouble: str | None = None
    """What the last look could not see, in one sentence."""


_FACTS = TypeAdapter(Facts)
_PROGRESS = TypeAdapter(Progress)


def read_facts(text: str) -> Facts:
    return _FACTS.validate_json(text)


def facts_json(facts: Facts) -> str:
    return _FACTS.dump_json(facts, by_alias=True, exclude_defaults=True).decode()


def read_progress(text: str) -> Progress:
    return _PROGRESS.validate_json(text)


def progress_json(progress: Progress) -> str:
    return _PROGRESS.dump_json(progress).decode()


def progress_fields(progress: Progress) -> dict[str, Any]:
    """For `--json`; empty before the first look."""
    fields: dict[str, Any] = _PROGRESS.dump_python(progress, mode="json")
    return fields if progress.stage else {}
