"""A contract: what a user says must be true between a source and a sink topic. Written by a person as YAML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from backend.errors import ContractError, TopicError, UsageError
from backend.expressions import check_expression
from backend.kafka.cluster import Cluster
from backend.pipeline.plan import Place, PlanFields, TopicName, read_plan
from backend.pipeline.run import require_records
from backend.taken import Question
from validators.agreed import Agreed, Thresholds
from validators.catalogue import VALIDATORS
from validators.expectation import REQUIRED
from validators.expected import Expect, Expected
from validators.finding import Bounds, Guarantee, Order
from validators.identity import KEY, Identity, Match
from validators.joined import join, split
from validators.json_path import parse_path

LINEAGE = "lineage"
KINDS = tuple(validator.NAME for validator in VALIDATORS)
_STRICT = ConfigDict(frozen=True, extra="forbid")


def _side(said: Any) -> str:
    """How one side holds the identity, in the spelling of `Match`."""
    if said in (KEY, "value"):
        return str(said)
    if isinstance(said, dict) and len(said) == 1:
        ((how, what),) = said.items()
        if how == "header" and isinstance(what, str) and what:
            return f"header:{what}"
        if how == "json" and isinstance(what, str):
            parse_path(what)
            return f"json:{what}"
    raise ValueError("expected key, value, {header: NAME} or {json: $.path}")


def _kind(name: str) -> str:
    if name not in KINDS:
        raise ValueError(f"there is no kind {name!r}. Known: {', '.join(KINDS)}")
    return name


def _wrong(why: str, *place: str) -> PydanticCustomError:
    """Fields that are right each and wrong together: the one at `place` is to be changed."""
    return PydanticCustomError("contract", "{why}", {"why": why, "place": place})


def _number(said: Any) -> Any:
    """`count: 2` is an expression too."""
    return str(said) if type(said) is int else said


Expression = Annotated[str, BeforeValidator(_number), AfterValidator(check_expression)]
Side = Annotated[str, BeforeValidator(_side)]


class Topic(BaseModel):
    """One of the two sides: a topic, or several that are judged as one."""

    model_config = _STRICT
    topic: TopicName = None
    topics: Annotated[tuple[TopicName, ...], Field(min_length=2)] | None = None
    isolation: Literal["read_committed"] = "read_committed"
    """How the source was read; the sink is judged at both levels."""

    @property
    def names(self) -> tuple[str, ...]:
        """The topics, in the order in which their partitions are numbered through (validators/joined.py)."""
        return tuple(name for name in self.topics or (self.topic,) if name is not None)


class Sides(BaseModel):
    """An identity that is held in another place on either side."""

    model_config = _STRICT
    source: Side
    sink: Side


class Warn(BaseModel):
    """Thresholds: more than this is a warning, and exit code 2 where nothing is worse."""

    model_config = _STRICT
    pending: Annotated[int, Field(ge=0)] | None = None
    """Offsets at and above the last stable offset."""
    aborted_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Of the records below the last stable offset."""


class Contract(BaseModel):
    """What must be true. Every field but the topics has a default."""

    model_config = _STRICT
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    source: Topic
    sink: Topic
    identity: Literal["lineage"] | Sides = "lineage"
    expect: Expect = Expect.ONE_TO_ONE
    count: Expression | None = None
    """How many outputs an input has: Spark SQL over its record."""
    value: Expression | None = None
    """What the value of the output must be: Spark SQL over the source record."""
    order: Order = Order.PER_SOURCE_PARTITION
    group: str | None = None
    """The consumer group whose offsets must agree with the output."""
    require: Annotated[tuple[Annotated[str, AfterValidator(_kind)], ...], Field(min_length=1)] | None = None
    warn: Warn = Warn()

    @model_validator(mode="before")
    @classmethod
    def _same_on_both_sides(cls, fields: Any) -> Any:
        """`identity: key` is short for the same on both sides."""
        said = fields.get("identity", LINEAGE) if isinstance(fields, Mapping) else LINEAGE
        if said == LINEAGE or (isinstance(said, dict) and said.keys() & {"source", "sink"}):
            return fields
        return {**fields, "identity": {"source": said, "sink": said}}

    @model_validator(mode="after")
    def _agree(self) -> Contract:
        for place, side in (("source", self.source), ("sink", self.sink)):
            if not side.names:
                raise _wrong("name the topic", place, "topic")
            if side.topic is not None and side.topics is not None:
                raise _wrong("say topic or topics, not both", place, "topics")
            if len(set(side.names)) < len(side.names):
                raise _wrong("a topic is there twice", place, "topics")
        if set(self.source.names) & set(self.sink.names):
            where = "topic" if self.sink.topics is None else "topics"
            raise _wrong("source and sink are the same topic", "sink", where)
        try:
            Expected(self.expect, self.count)
        except ValueError as error:
            raise _wrong(str(error), "expect") from error
        if self.value is not None and self.expect is Expect.ONE_TO_MANY:
            raise _wrong("one expression cannot give the values of many outputs. Remove it", "value")
        for kind in self.require or ():
            if kind == "order" and self.order is Order.NONE:
                raise _wrong("order is required, and none is promised", "order")
            if kind in Agreed(value="", offsets={}).kinds and kind not in self._asked:
                raise _wrong(
                    f"{kind} needs a {'value' if kind == 'wrong_value' else 'group'} to compare with", "require"
                )
        return self

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that make the verdict."""
        if self.require is not None:
            return self.require
        ordered = self.order is not Order.NONE
        return (*(kind for kind in REQUIRED[self.guarantee] if kind != "order" or ordered), *self._asked)

    @property
    def _asked(self) -> tuple[str, ...]:
        return Agreed(value=self.value, offsets=None if self.group is None else {}).kinds

    @property
    def by(self) -> Identity:
        return Identity.LINEAGE if self.identity == LINEAGE else Identity.KEY

    def agreed(self, offsets: Mapping[int, int] | None) -> Agreed:
        """`offsets`: of the group, when there is one."""
        match = Match(self.identity.source, self.identity.sink) if isinstance(self.identity, Sides) else Match()
        warn = Thresholds(self.warn.pending, self.warn.aborted_share)
        return Agreed(match, self.value, offsets, self.require, warn)

    @property
    def expected(self) -> Expected:
        return Expected(self.expect, self.count)


def read_contract(path: Path) -> tuple[Contract, PlanFields]:
    """The contract in a file, and where its fields stand. Raises ContractError naming the line and the field."""
    try:
        fields = read_plan(path)
    except UsageError as error:
        raise ContractError(str(error).replace("The plan", "The contract").replace("plan fields", "fields")) from error
    return make_contract(fields), fields


def make_contract(fields: dict[str, Any]) -> Contract:
    """A contract from plain fields, or from a file's. Raises ContractError naming the line and the field."""
    try:
        return Contract.model_validate(dict(fields))
    except ValidationError as error:
        # A misspelt field explains one that is missing. Of a choice between several forms, the deepest complaint is
        # about the form that was meant.
        first = max(error.errors(), key=lambda one: (one["type"] == "extra_forbidden", len(one["loc"])))
        place: Place = tuple((first.get("ctx") or {}).get("place") or _named(first["loc"]))
        why = "there is no such field" if first["type"] == "extra_forbidden" else first["msg"]
        raise _refused(fields, place, why.removeprefix("Value error, ")) from error


def question_of(contract: Contract, fields: dict[str, Any], cluster: Cluster) -> Question:
    """What the contract asks of a cluster's topics. Raises ContractError naming the line where one is missing, or a
    group that has committed nothing; ClusterError."""
    source, sinks = (
        [_bounds(fields, cluster, name, (place, "topic" if side.topics is None else "topics")) for name in side.names]
        for place, side in (("source", contract.source), ("sink", contract.sink))
    )
    for own in source:
        require_records(own)
    offsets = None if contract.group is None else _offsets(contract.group, fields, cluster, join(source))
    return Question(
        source=join(source),
        sink=sinks[0].topic,
        also=tuple(own.topic for own in sinks[1:]),
        guarantee=contract.guarantee,
        identity=contract.by,
        expected=contract.expected,
        order=contract.order,
        agreed=contract.agreed(offsets),
    )


def _bounds(fields: dict[str, Any], cluster: Cluster, topic: str, place: Place) -> Bounds:
    try:
        return cluster.bounds(topic)
    except TopicError as error:
        raise _refused(fields, place, str(error)) from error


def _offsets(group: str, fields: dict[str, Any], cluster: Cluster, source: Bounds) -> dict[int, int]:
    """The group's committed offsets of the source, its partitions numbered through."""
    offsets = {
        first + partition: at
        for own, first in split(source)
        for partition, at in cluster.committed(group, own.topic).items()
        if at >= 0
    }
    if not offsets:
        raise _refused(fields, ("group",), f"group {group} has committed no offset of {source.topic}")
    return offsets


def _refused(fields: dict[str, Any], place: Place, why: str) -> ContractError:
    where = fields.where(place) if isinstance(fields, PlanFields) else "The check"
    return ContractError(f"{where}: {'.'.join(map(str, place)) or 'contract'}: {why.rstrip('.')}.")


def _named(loc: Place) -> Place:
    """The place as the file spells it: pydantic also names the form that it tried."""
    return tuple(part for part in loc if part not in ("Sides", "literal['lineage']"))
