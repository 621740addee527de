"""A plan: everything needed to repeat a run, seed included. Written by a person as YAML, or by options and forms."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from backend.errors import TopicproofError, UsageError
from backend.faults.kinds import parse_fault
from backend.pipeline.scenarios import SCENARIOS, scenario
from backend.settings import TRANSACTION_TIMEOUT_MS

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")

REFUSED_SOURCE_OPTIONS = {
    "minpartitions": "it splits a source partition over several tasks",
    "maxrecordsperpartition": "it splits a source partition over several tasks",
    "startingoffsetsbytimestamp": "the start comes from the group's committed offsets",
    "startingoffsets": "the start comes from the group's committed offsets",
    "endingoffsets": "a run ends at the end of its source",
    "kafka.isolation.level": "say it as source.isolation",
    "kafka.group.id": "the run has a group of its own",
    "kafka.enable.auto.commit": "offsets are committed inside the transactions only",
    "subscribe": "say it as source.topic",
    "assign": "say it as source.topic",
    "subscribepattern": "say it as source.topic",
}
"""Options of Spark's Kafka source that a plan may not set, each with the reason. Two were seen to lose records
silently: 13,334 and 10,600 of 20,000 committed while the query succeeded."""


def _topic(name: str | None) -> str | None:
    if name is not None and (not _TOPIC.fullmatch(name) or name in {".", ".."}):
        raise ValueError("a topic's name has 1 to 249 letters, digits, dots, dashes and underscores")
    return name


def _scenario(name: str) -> str:
    _as_value_error(lambda: scenario(name))
    return name


def _fault(text: str) -> str:
    _as_value_error(lambda: parse_fault(text))
    return text.strip()


def _as_value_error(call: Any) -> None:
    try:
        call()
    except TopicproofError as error:
        raise ValueError(str(error)) from error


TopicName = Annotated[str | None, AfterValidator(_topic)]
_STRICT = ConfigDict(frozen=True, extra="forbid")


class SourcePlan(BaseModel):
    """Where the inputs come from."""

    model_config = _STRICT
    topic: TopicName = None
    """An existing topic; None: the run makes one and fills it."""
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    starting: Literal["earliest", "latest"] = "earliest"
    options: dict[str, str] = Field(default_factory=dict)
    """Further options of Spark's Kafka source."""

    @model_validator(mode="after")
    def _refuse(self) -> SourcePlan:
        for name, value in self.options.items():
            reason = REFUSED_SOURCE_OPTIONS.get(name.lower())
            if reason is not None:
                raise ValueError(f"source option {name} is refused: {reason}. Remove it.")
            if name.lower() == "failondataloss" and value.lower() != "true":
                raise ValueError("source option failOnDataLoss=false is refused: it loses records without a word.")
        return self


class SinkPlan(BaseModel):
    """Where the outputs go."""

    model_config = _STRICT
    topic: TopicName = None
    """None: the run makes one."""
    partitions: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Of a sink the run makes; None: as many as the source has."""


class RunPlan(BaseModel):
    """Everything needed to repeat a run."""

    model_config = _STRICT
    scenario: Annotated[str, AfterValidator(_scenario)] = next(iter(SCENARIOS))
    guarantee: Literal["exactly_once", "at_least_once", "at_most_once"] = "exactly_once"
    idempotence: bool = True
    """Whether at_least_once produces with an idempotent producer; exactly_once always does."""
    acks: Literal["all", "0"] = "all"
    """Whether at_most_once waits for the brokers at all."""
    records: Annotated[int, Field(ge=1)] = 10_000
    """How many integers to fill in; without meaning when the source is given or the run goes on until stopped."""
    partitions: Annotated[int, Field(ge=1, le=10_000)] = 3
    per_transaction: Annotated[int, Field(ge=1)] = 1000
    abort_probability: Annotated[float, Field(ge=0, le=1)] = 0.0
    attempts_max: Annotated[int, Field(ge=1, le=1000)] = 10
    faults: tuple[Annotated[str, AfterValidator(_fault)], ...] = ()
    seed: int = 0
    rate: Annotated[float, Field(gt=0)] | None = None
    """Records per second of the fill; None: as fast as it goes."""
    until_stopped: bool = False
    """Fill and process concurrently until somebody stops the run."""
    transaction_timeout_ms: Annotated[int, Field(ge=1000, le=900_000)] = TRANSACTION_TIMEOUT_MS
    judged: bool = True
    """Whether the run ends with a verdict."""
    source: SourcePlan = SourcePlan()
    sink: SinkPlan = SinkPlan()

    @model_validator(mode="after")
    def _agree(self) -> RunPlan:
        if self.source.topic is not None and self.source.topic == self.sink.topic:
            raise ValueError(f"source and sink are the same topic, {self.sink.topic}. Choose another sink.")
        if not self.idempotence and self.guarantee == "exactly_once":
            raise ValueError("exactly_once needs idempotence. Choose at_least_once to do without it.")
        if self.acks == "0" and self.guarantee != "at_most_once":
            raise ValueError(f"{self.guarantee} needs acks=all. Choose at_most_once to do without it.")
        return self

    @property
    def fills(self) -> bool:
        return self.source.topic is None


def make_plan(fields: dict[str, Any], where: str = "The plan") -> RunPlan:
    """A plan from plain fields. Raises UsageError naming the field and the remedy."""
    try:
        return RunPlan.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or "plan"
        message = first["msg"].removeprefix("Value error, ")
        raise UsageError(f"{where}: {name}: {message}") from error


def read_plan(path: Path) -> dict[str, Any]:
    """The fields of a plan file. Raises UsageError naming the line when it is not a YAML mapping."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"The plan {path} cannot be read: {error.strerror}.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise UsageError(f"{path}{line}: not YAML ({getattr(error, 'problem', 'it does not parse')}).") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path}: expected a mapping of plan fields, for example `scenario: squares`.")
    return found
