"""A run's state in the history besides its plan: decisions at its creation, and live figures.

Both are kept as JSON. Fields at their default are omitted, and unknown ones are ignored, so
histories of other versions can be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter

from topicproof.backend.trust.identity import Identity
from topicproof.validators.finding import Outcome, PartitionBounds

DEAD_LETTERS = ".dead-letters"
"""Suffix of the name of a dead-letter topic."""

Offsets = Mapping[str, int]
"""Offsets by partition, which is text in JSON."""


@dataclass(frozen=True)
class Names:
    """The Kafka names of one stage of a run."""

    stage: str
    sources: tuple[str, ...]
    sinks: tuple[str, ...]
    """The first one takes the outputs without a topic name."""
    journal: str
    group: str
    prefix: str
    """The transactional ids are `<prefix>-<source topic>-<partition>`."""
    database: str | None = None
    """URL of the sink's database, if the sink is a table. The database also keeps the committed
    offsets."""

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
    """A run's cluster."""

    bootstrap: str | None = None
    """None: the embedded Kafka."""
    brokers: int | None = None
    name: str | None = None
    """The cluster's name in the settings; None: it was given by address."""


@dataclass(frozen=True)
class StageVerdict:
    """The verdict on one stage, or on the values of one sink."""

    verdict: Outcome
    why: str


@dataclass(frozen=True)
class RunResults:
    """What a run found beside its report. In JSON these are fields of `Facts`."""

    verdicts: Mapping[str, StageVerdict] = field(default_factory=dict)
    """Verdicts by stage, if there are several."""
    values: Mapping[str, StageVerdict] = field(default_factory=dict)
    """Verdicts on totals or counts, by sink."""
    accounts: int | None = None
    """Number of accounts, in the scenario totals."""
    wrong_by: Mapping[str, int] | None = None
    """Cents of error of the most wrong accounts, in the scenario totals."""
    wrong_accounts: int | None = None
    """How many accounts are wrong. None: `wrong_by` has all of them."""
    wrong_cents: int | None = None
    """Their cents of error in all. None: the sum of `wrong_by`."""
    foreign_totals: int = 0
    """Records of the sink that are not totals."""


NO_RESULTS = RunResults()


@dataclass(frozen=True)
class Facts:
    """Decisions at a run's creation, and results at its end. A check has only a source and a
    sink."""

    folder: str | None = None
    """Folder of the report, if not the run's own."""
    source: str = ""
    sink: str = ""
    also: tuple[str, ...] = ()
    """Further sinks that a check judges together with the first one."""
    journal: str = ""
    group: str = ""
    topics: Mapping[str, str] = field(default_factory=dict)
    """Kafka's names of the scenario's topics."""
    stages: tuple[Names, ...] = ()
    made: tuple[str, ...] = ()
    """The topics that the run created."""
    topic_ids: Mapping[str, str | None] = field(default_factory=dict)
    """Kafka's ids of all its topics at the run's creation, the journal's too. Empty in histories of
    earlier versions."""
    cluster: RanOn = RanOn()
    initial_offsets: Annotated[Mapping[str, Mapping[str, Offsets]] | None, Field(alias="floor")] = (
        None
    )
    """Start offsets of each stage, by stage and source topic. None: the run ended before its topics
    were created."""
    sink_from: Mapping[str, Offsets] = field(default_factory=dict)
    """End offsets of each sink before the run, by topic."""
    database: str | None = None
    """URL of the sink's database without a password, if the sink is a table."""
    filled: bool = False
    served: str = ""
    """URL of the files that the run serves; empty if it serves none."""
    session: str | None = None
    """Id of the Spark session while the run is active."""
    results: RunResults = NO_RESULTS
    launched_by: tuple[Identity, ...] = ()
    """Who launched it, and who resumed it. Empty in histories of earlier versions."""

    @property
    def every_topic(self) -> tuple[str, ...]:
        """All topics, those of each stage included. Several sources of a check have a joined
        name."""
        of_stages = (name for stage in self.stages for name in (*stage.sources, *stage.sinks))
        names = (self.source, self.sink, *self.also, *self.topics.values(), *of_stages)
        return tuple(dict.fromkeys(filter(None, names)))

    def of_stage(self, stage: str) -> Mapping[str, Offsets]:
        """Return a stage's start offsets, by source topic."""
        return (self.initial_offsets or {})[stage]


@dataclass(frozen=True)
class StageProgress:
    """One of a run's stages. Counts are offsets."""

    name: str
    processed: int
    there: int
    """Offsets in its sources so far."""


@dataclass(frozen=True)
class Progress:
    """The live figures of a run, for the page and the command line."""

    stage: str = ""
    """Empty before the first look."""
    filled: int = 0
    processed: int = 0
    """Inputs of the first stage whose outputs are committed."""
    total: int | None = None
    """The final number of inputs; None while unknown."""
    committed: int = 0
    """Number of transactions that the journal declares committed."""
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
    """Inputs in all transactions in the journal, whatever their outcome. A killed worker declares
    none."""
    downloads: int | None = None
    """Download requests for the files that the run serves, repeats included; None if it serves
    none."""
    downloaded: int = 0
    """Number of distinct files requested."""
    stages: tuple[StageProgress, ...] = ()
    """Progress of each stage, if there are several."""
    tasks: int = 0
    """Spark tasks that a check has finished."""
    elsewhere: tuple[str, ...] = ()
    """Machines of workers that cannot be killed by hand from the run's own machine; the first of
    them, if there are many."""
    trouble: str | None = None
    """One sentence on what the last look failed to see."""


class PlanFields(BaseModel, extra="allow"):
    """The fields of plans that pages and lists read, of a run or of a check."""

    scenario: str | None = None
    guarantee: str | None = None
    faults: list[str] = []
    lineage: str | None = None
    records: int | None = None
    partitions: int | None = None
    per_transaction: int | None = None
    abort_probability: float | None = None
    seed: int | None = None
    by_hand: bool = False
    until_stopped: bool = False
    source: str | dict[str, Any] | None = None
    sink: str | dict[str, Any] | None = None
    contract: str | None = None
    contract_version: int | None = None
    clusters: dict[str, str | None] | None = None
    identity: str | dict[str, Any] | None = None


_FACTS = TypeAdapter(Facts)
_RESULTS = TypeAdapter(RunResults)
_PROGRESS = TypeAdapter(Progress)


def require_plan_fields(plan: Mapping[str, Any]) -> None:
    """Raises pydantic's ValidationError for a field of another type than that of any plan."""
    PlanFields.model_validate(plan)


def read_facts(text: str) -> Facts:
    """Parse facts. Raises pydantic's ValidationError for anything else."""
    return replace(_FACTS.validate_json(text), results=_RESULTS.validate_json(text))


def facts_json(facts: Facts) -> str:
    """Return the facts as JSON, the results among the other fields."""
    facts_before = replace(facts, results=NO_RESULTS, launched_by=())
    facts_after = Facts(launched_by=facts.launched_by)
    documents = (
        _FACTS.dump_json(facts_before, by_alias=True, exclude_defaults=True),
        _RESULTS.dump_json(facts.results, exclude_defaults=True),
        _FACTS.dump_json(facts_after, by_alias=True, exclude_defaults=True),
    )
    return f"{{{','.join(filter(None, (text.decode()[1:-1] for text in documents)))}}}"


def read_progress(text: str) -> Progress:
    return _PROGRESS.validate_json(text)


def progress_json(progress: Progress) -> str:
    return _PROGRESS.dump_json(progress).decode()


def progress_fields(progress: Progress) -> dict[str, Any]:
    """Return the figures for `--json`; empty before the first look."""
    fields: dict[str, Any] = _PROGRESS.dump_python(progress, mode="json")
    return fields if progress.stage else {}
