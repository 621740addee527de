"""A contract: what a user says must be true between a source and a sink topic, as YAML."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    PrivateAttr,
    StrictBool,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from topicproof.backend.contracts.aggregates import aggregate_texts, check_values, parse_values
from topicproof.backend.contracts.expression_fields import FUNCTIONS, each_in_sql, fields_of, in_sql
from topicproof.backend.contracts.expressions import check_expression, require_little_together
from topicproof.backend.contracts.sink_table import (
    OF_TABLE,
    Table,
    column_of,
    disagreements,
    is_table,
    without_table,
)
from topicproof.backend.errors import ContractError, Mistake, UsageError
from topicproof.backend.yaml_fields import (
    Place,
    RequiredTopicName,
    Subject,
    TopicName,
    YamlFields,
    parse_yaml,
    read_text,
    read_yaml,
    why_refused,
)
from topicproof.validators.aggregate import AggregateTerms, Encoding
from topicproof.validators.columns import COLUMN
from topicproof.validators.contract_terms import ContractTerms
from topicproof.validators.decoded import VALUE_FIELD, parse_field
from topicproof.validators.expectation import (
    BY_CONTRACT,
    OF_AGGREGATE,
    OF_ALL_UPDATES,
    REQUIRED,
    required_by_terms,
    required_of_table,
)
from topicproof.validators.expected import Expect, Expected
from topicproof.validators.finding import Guarantee, Order
from topicproof.validators.json_path import parse_path
from topicproof.validators.lineage.dead_letters import ORIGINS, DeadLetters
from topicproof.validators.lineage.identity import KEY, Identity, Match
from topicproof.validators.thresholds import NO_THRESHOLDS, Thresholds

LINEAGE = "lineage"
DUPLICATE = "duplicate"
PLACEHOLDER = "FILL_IN"
"""Written by `contract init` for values that only a person knows. Invalid in a contract."""
CONTRACT_FIELDS = Subject("contract", "fields, for example `source: {topic: orders}`")
EXPRESSIONS_LENGTH_MAX = 100_000
"""Maximum characters of all expressions together. Checking them takes some seconds at most."""
DURATION_MS_MAX = 30 * 86_400_000
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,10})(ms|s|m|h|d)")
_STRICT = ConfigDict(frozen=True, extra="forbid")
OF_SINK_ALONE = ("unique", "sink", "sinks", "warn", "range")
"""What a contract without a source may say."""
OF_AGGREGATES = ("aggregate", "source", "sink", "group", "warn")
"""What a contract about aggregates may say."""
_NO_SUCH_FIELD = ("extra_forbidden", "unexpected_keyword_argument")
"""What pydantic calls an unknown field of a model, and of a dataclass."""


def _side(side: Any) -> str:
    """Return the location of the identity on one side, in the spelling of `Match`."""
    if side in (KEY, "value"):
        return str(side)
    if side == PLACEHOLDER:
        raise ValueError("choose what identifies an input: key, value, a header or a JSON field")
    if isinstance(side, dict) and len(side) == 1:
        ((how, name_or_path),) = side.items()
        if how in ("header", COLUMN) and isinstance(name_or_path, str) and name_or_path:
            return f"{how}:{name_or_path}"
        if how == "json" and isinstance(name_or_path, str):
            parse_path(name_or_path)
            return f"json:{name_or_path}"
        if how in FUNCTIONS and isinstance(name_or_path, str):
            parse_field(name_or_path)
            return f"{how}:{name_or_path}"
    raise ValueError(
        "expected key, value, {header: NAME}, {json: $.path}, {field: path} or {key_field: path}"
    )


def _origin(origin: Any) -> str:
    """Return what names the input of a dead letter."""
    if isinstance(origin, str) and origin in ORIGINS:
        return origin
    if isinstance(origin, dict):
        return _side(origin)
    raise ValueError(
        f"expected {', '.join(ORIGINS)}, {{header: NAME}}, {{json: $.path}}, {{field: path}} or"
        " {key_field: path}"
    )


def _no_fields() -> Mapping[str, Any]:
    return {}


def _kind(name: str) -> str:
    # Late: few contracts name kinds, and all that judges would be loaded for those that do not.
    from topicproof.validators.kinds.catalogue import VALIDATORS

    kinds = [validator.NAME for validator in VALIDATORS]
    if name not in kinds:
        raise ValueError(f"there is no kind {name!r}. Known: {', '.join(kinds)}")
    return name


def _number(count: Any) -> Any:
    """Accept `count: 2` as an expression too."""
    return str(count) if type(count) is int else count


def _value(value: Any) -> str | dict[str, str]:
    """Check an expression for the whole output, or one for each of its fields by path."""
    if not isinstance(value, Mapping):
        return _checked(value)
    if not value:
        raise ValueError("name at least one field of the output")
    checked = {}
    for path, text in value.items():
        parse_field(str(path))
        try:
            checked[str(path)] = _checked(text)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    require_little_together(checked.values())
    return checked


def _checked(expression: Any) -> str:
    text = _number(expression)
    if not isinstance(text, str):
        raise ValueError("expected an expression, or a mapping of fields to expressions")
    return check_expression(text)


def _filled_in(text: Any) -> Any:
    if text == PLACEHOLDER:
        raise ValueError(
            "fill in how many outputs an input has, in Spark SQL over its record, such as 2"
        )
    return text


def _grouped(text: Any) -> Any:
    if text == PLACEHOLDER:
        raise ValueError("say what inputs of one group have in common, such as key")
    return text


def _duration(text: Any) -> int:
    """Read a duration such as 500ms, 60s, 5m, 24h or 7d. Returns ms."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text  # Of a contract that was read.
    parts = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if parts is None:
        raise ValueError("expected a duration with its unit, such as 500ms, 60s, 5m, 24h or 7d")
    duration = int(parts[1]) * _UNITS_MS[parts[2]]
    if not 1 <= duration <= DURATION_MS_MAX:
        raise ValueError("expected a duration from 1ms to 30d")
    return duration


Duration = Annotated[int, BeforeValidator(_duration)]
"""In ms."""
Expression = Annotated[str, BeforeValidator(_number), AfterValidator(check_expression)]
Value = Annotated[str | dict[str, str], PlainValidator(_value)]
Values = Annotated[str | dict[str, str], PlainValidator(check_values)]
Side = Annotated[str, BeforeValidator(_side)]
ClusterName = Annotated[str, Field(min_length=1)] | None


class Topic(BaseModel):
    """The source or the sink: a topic, several that are judged as one, or a table as the sink."""

    model_config = _STRICT
    topic: TopicName = None
    topics: Annotated[tuple[TopicName, ...], Field(min_length=2)] | None = None
    cluster: ClusterName = None
    """A cluster of the settings; None: that of the command."""
    isolation: Literal["read_committed"] = "read_committed"
    """How the source was read; the sink is judged at both levels."""
    table: Table | None = None
    """A sink that is a database table, and no topic."""

    @property
    def names(self) -> tuple[str, ...]:
        """The topics, in the order of their consecutive partition numbers
        (validators/merged_topics.py); a table has its own name."""
        if self.table is not None:
            return (self.table.title,)
        return tuple(name for name in self.topics or (self.topic,) if name is not None)


class Sides(BaseModel):
    """An identity in different places on the two sides."""

    model_config = _STRICT
    source: Side
    sink: Side


class DeadLetterTopic(BaseModel):
    """Where inputs are that the pipeline could not process."""

    model_config = _STRICT
    topic: RequiredTopicName
    origin: Annotated[str, BeforeValidator(_origin)]
    """What names the input of a dead letter: the headers of a program
    (validators/lineage/dead_letters.py), or what holds its identity, in the spelling of `Match`."""


class Aggregate(BaseModel):
    """What outputs are of, if they are aggregates of many inputs."""

    model_config = _STRICT
    group_by: Annotated[Expression, BeforeValidator(_grouped)]
    """Spark SQL over the source record."""
    value: Values
    """`count(*)`, `sum(EXPRESSION)` and so on; or one for each field of the output, by path."""
    key: Side = KEY
    """Where an output names its group."""
    running: StrictBool = False
    """Whether each output is judged, and not only the last one of its group."""
    tolerance: float = 0
    """By how much of the larger number two numbers may differ."""
    encoding: Encoding = Encoding.TEXT
    """How a whole value holds its number."""

    @model_validator(mode="after")
    def _can_be_judged(self) -> Aggregate:
        require_little_together(self.expressions)
        assert self.terms.values
        return self

    @property
    def expressions(self) -> tuple[str, ...]:
        parts = (parsed.of for parsed in parse_values(self.value).values())
        return (self.group_by, *(part for part in parts if part is not None))

    @property
    def terms(self) -> AggregateTerms:
        """What is judged. Raises ValueError if it cannot be."""
        return AggregateTerms(
            in_sql(self.group_by),
            tuple(parsed.value(path) for path, parsed in parse_values(self.value).items()),
            self.key,
            running=self.running,
            tolerance=self.tolerance,
            encoding=self.encoding,
        )


class OwnTerms(BaseModel):
    """One of several sinks, each judged by itself. The contract's own fields are its defaults."""

    model_config = _STRICT
    topic: TopicName
    cluster: ClusterName = None
    identity: Literal["lineage"] | Side | Sides | None = None
    expect: Expect | None = None
    count: Expression | None = None
    value: Value | None = None
    filtered: Literal["unchecked"] | None = None
    order: Order | None = None


class Contract(BaseModel):
    """What must be true. Every field but the topics has a default."""

    model_config = _STRICT
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    source: Topic
    sink: Topic | None = None
    """A topic, or several that are judged as one."""
    sinks: Annotated[tuple[OwnTerms, ...], Field(min_length=1)] | None = None
    """Several topics, each judged by itself with its own terms."""
    unique: Side | None = None
    """What must occur at most once in the sink. Such a contract has no source."""
    aggregate: Aggregate | None = None
    """What each output is of, if it is an aggregate of many inputs."""
    identity: Literal["lineage"] | Sides = "lineage"
    expect: Expect = Expect.ONE_TO_ONE
    count: Annotated[Expression | None, BeforeValidator(_filled_in)] = None
    """Number of outputs per input: Spark SQL over the source record."""
    value: Value | None = None
    """The expected output value: Spark SQL over the source record. Or one expression for each field
    of the decoded output, by path."""
    filtered: Literal["unchecked"] | None = None
    """`unchecked`: `zero_or_one` without a count takes every input without an output for a filtered
    one, without a warning that it may be lost."""
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0
    """By how much of the larger number two numbers in a floating column of a table may differ."""
    order: Order = Order.PER_SOURCE_PARTITION
    group: str | None = None
    """The consumer group whose offsets must agree with the output."""
    dead_letters: DeadLetterTopic | None = None
    """Each input is due in the sink or here, and not in both."""
    require: (
        Annotated[tuple[Annotated[str, AfterValidator(_kind)], ...], Field(min_length=1)] | None
    ) = None
    warn: Thresholds = NO_THRESHOLDS
    range: Literal["whole", "retained"] = "whole"
    """`whole`: if Kafka has removed records, the verdict stays open. `retained`: removed records
    are not judged."""
    within: Duration = 60_000
    """A watch expects the output of an input in so many ms. A check waits for none."""
    remember: Duration = 86_400_000
    """A watch knows the identity of an input that has its output for so many ms after the input. By
    lineage it forgets none."""
    _fields = PrivateAttr(default_factory=_no_fields)

    @model_validator(mode="before")
    @classmethod
    def _same_on_both_sides(cls, fields: Any) -> Any:
        """Apply `identity: key` to both sides. Without a source, read the sink as its own."""
        if isinstance(fields, Mapping) and fields.get("unique") is not None:
            fields = {**_of_sink_alone(fields), **fields}
        elif isinstance(fields, Mapping) and fields.get("aggregate") is not None:
            fields = {**_of_aggregates(fields["aggregate"]), **fields}
        elif is_table(fields):
            fields = {**OF_TABLE, **fields}
        identity = fields.get("identity", LINEAGE) if isinstance(fields, Mapping) else LINEAGE
        if identity == LINEAGE or (
            isinstance(identity, dict) and identity.keys() & {"source", "sink"}
        ):
            return fields
        return {**fields, "identity": {"source": identity, "sink": identity}}

    @model_validator(mode="after")
    def _agree(self, info: ValidationInfo) -> Contract:
        wrong = list(_disagreements(self, across=bool(info.context)))
        if wrong:
            raise PydanticCustomError("contract", "fields disagree", {"wrong": wrong})
        return self

    @property
    def yaml_fields(self) -> Mapping[str, Any]:
        """The fields that it was made from: with their lines, if they are a file's."""
        return self._fields

    def each(self) -> tuple[Contract, ...]:
        """Return a contract for each sink."""
        if self.sinks is None:
            return (self,)
        return tuple(
            self.model_copy(
                update={
                    **_said(sink),
                    "sink": Topic(topic=sink.topic, cluster=sink.cluster),
                    "sinks": None,
                }
            )
            for sink in self.sinks
        )

    def across(self, has_source_cluster: bool = False) -> bool:
        """Whether source and sink are on different clusters. `has_source_cluster`: the command
        names the source's."""
        if self.table is not None:
            return has_source_cluster
        sink = None if self.sink is None else self.sink.cluster
        return has_source_cluster or self.source.cluster != sink

    @property
    def table(self) -> Table | None:
        """The table that is the sink; None for topics."""
        return None if self.sink is None else self.sink.table

    @property
    def of(self) -> Topic:
        """The sink of a contract for one sink."""
        assert self.sink is not None, "a contract with several sinks is one for each"
        return self.sink

    @property
    def sink_cluster(self) -> str | None:
        """The cluster that judges the sink; of a table, that of its source."""
        return self.of.cluster if self.table is None else self.source.cluster

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The topics that hold the outcomes of the inputs: of one sink, with its dead letters."""
        letters = () if self.dead_letters is None else (self.dead_letters.topic,)
        return (*self.of.names, *letters)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that decide the verdict."""
        if self.require is not None:
            return self.require
        ordered = self.order is not Order.NONE
        of_table = self.table is not None
        required = required_of_table(self.guarantee) if of_table else REQUIRED[self.guarantee]
        return (
            *(kind for kind in required if kind != "order" or ordered),
            *self.required_by_terms,
        )

    @property
    def required_by_terms(self) -> tuple[str, ...]:
        """The kinds that the contract's own terms require, such as its value or group."""
        terms = [term for term in BY_CONTRACT.values() if getattr(self, term.name) is not None]
        return required_by_terms(terms, of_table=self.table is not None)

    @property
    def by(self) -> Identity:
        return Identity.LINEAGE if self.identity == LINEAGE else Identity.KEY

    def terms(self, offsets: Mapping[int, int] | None) -> ContractTerms:
        """Return the further terms. `offsets`: those of the group, if any."""
        match = (
            Match(self.identity.source, self.identity.sink)
            if isinstance(self.identity, Sides)
            else Match()
        )
        letters = (
            None
            if self.dead_letters is None
            else DeadLetters(self.dead_letters.topic, self.dead_letters.origin)
        )
        aggregate = self.aggregate
        of_source, of_sink = ((), ()) if aggregate is None else _named_in(aggregate)
        return ContractTerms(
            match,
            self._value_in_sql,
            offsets,
            self.require,
            self.warn,
            group=self.group,
            retained=self.range == "retained",
            unique=self.unique is not None,
            filter_unchecked=self.filtered is not None,
            compared=self._compared,
            # The sink alone is decoded once, as the sink.
            source_fields=(
                ()
                if self.unique is not None
                else _fields(match.source, *fields_of(self.count, *self._expressions, *of_source))
            ),
            sink_fields=_fields(
                match.sink,
                *(() if self.table is not None else self._compared),
                *(() if letters is None else (letters.origin,)),
                *of_sink,
            ),
            letters=letters,
            aggregate=None if aggregate is None else aggregate.terms,
            table=None if self.table is None else self.table.terms(self.tolerance),
        )

    @property
    def expected(self) -> Expected:
        return Expected(self.expect, None if self.count is None else in_sql(self.count))

    @property
    def _expressions(self) -> tuple[str, ...]:
        """What `value` computes."""
        if isinstance(self.value, str):
            return (self.value,)
        return tuple((self.value or {}).values())

    @property
    def _compared(self) -> tuple[str, ...]:
        where = VALUE_FIELD if self.table is None else COLUMN
        return tuple(f"{where}:{name}" for name in self._value_by_name)

    @property
    def _value_by_name(self) -> Mapping[str, str]:
        """The expressions of `value` by field of the output, or by column of the row."""
        if not isinstance(self.value, dict):
            return {}
        if self.table is None:
            return self.value
        return {column_of(path): text for path, text in self.value.items()}

    @property
    def _value_in_sql(self) -> str | None:
        return (
            each_in_sql(self._value_by_name)
            if isinstance(self.value, dict)
            else (None if self.value is None else in_sql(self.value))
        )


def _of_sink_alone(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that follow from `unique`."""
    implied: dict[str, Any] = {"order": Order.NONE, "require": [DUPLICATE]}
    try:
        Topic.model_validate(fields.get("sink"))
        implied["source"] = fields["sink"]
    except ValidationError:
        # The mistake is one of the sink.
        implied["source"] = {"topic": "the-sink"}
    try:
        _side(fields["unique"])
        implied["identity"] = {"source": fields["unique"], "sink": fields["unique"]}
    except ValueError:
        pass  # The mistake is one of `unique`.
    return implied


def _of_aggregates(aggregate: Any) -> dict[str, Any]:
    """Return the fields that follow from `aggregate`."""
    is_running = isinstance(aggregate, Mapping) and aggregate.get("running") is True
    kinds = [kind for kind in OF_AGGREGATE if is_running or kind != OF_ALL_UPDATES]
    return {"order": Order.NONE, "require": kinds}


def _named_in(aggregate: Aggregate) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the expressions over the source, and the parts of an output."""
    return aggregate.expressions, (aggregate.key, *aggregate.terms.fields)


def _fields(*named: str) -> tuple[str, ...]:
    """Return the fields among these parts of a record, each once."""
    return tuple(dict.fromkeys(part for part in named if part.partition(":")[0] in FUNCTIONS))


def _said(sink: OwnTerms) -> dict[str, Any]:
    """Return the sink's own terms. Its own expectation also sets its count, even to none."""
    terms = {
        name: value for name in OwnTerms.model_fields if (value := getattr(sink, name)) is not None
    }
    if "expect" in terms:
        terms.setdefault("count", None)
        terms.setdefault("filtered", None)
    if isinstance(terms.get("identity"), str) and terms["identity"] != LINEAGE:
        terms["identity"] = Sides.model_construct(source=terms["identity"], sink=terms["identity"])
    return {name: value for name, value in terms.items() if name not in ("topic", "cluster")}


Content = TypeVar("Content")


def read_contract(path: Path, across: bool = False) -> Contract:
    """Read a contract. `across`: source and sink are on different clusters, whatever the contract
    says. Raises ContractError naming each line and field."""
    return make_contract(read_fields(path), across)


def read_fields(path: Path) -> YamlFields:
    """Read a contract's fields unchecked. Raises ContractError if the file is not a YAML
    mapping."""
    return _translated(lambda: read_yaml(path, CONTRACT_FIELDS))


def read_text_of(path: Path) -> str:
    """Read the text of a contract. Raises ContractError."""
    return _translated(lambda: read_text(path, CONTRACT_FIELDS))


def parse_fields(text: str, name: str = "contract.yaml") -> YamlFields:
    """Parse a contract's fields unchecked. `name` stands for the file in messages. Raises
    ContractError if the text is not a YAML mapping."""
    return _translated(lambda: parse_yaml(text, Path(name), CONTRACT_FIELDS))


def _translated(read: Callable[[], Content]) -> Content:
    try:
        return read()
    except UsageError as error:
        why = str(error).rstrip(".")
        raise ContractError(Mistake("", error.line, "", why)) from error


def make_contract(fields: Mapping[str, Any], across: bool = False) -> Contract:
    """Make a contract from plain fields or a file's, `across` as in `read_contract`. Raises
    ContractError naming each line and field."""
    _require_few_characters(fields)
    try:
        contract = Contract.model_validate(dict(fields), context=across)
    except ValidationError as error:
        raise ContractError(*in_order(_mistakes(fields, error, across))) from error
    contract._fields = fields
    return contract


def _require_few_characters(fields: Mapping[str, Any]) -> None:
    """Raises ContractError at the expression with which all together are too long."""
    length = 0
    for place, text in _texts(fields):
        length += len(text)
        if length > EXPRESSIONS_LENGTH_MAX:
            why = (
                f"all expressions of a contract together have more than {EXPRESSIONS_LENGTH_MAX:,}"
                " characters. Divide it into several contracts"
            )
            raise ContractError(mistake(fields, place, why))


def _texts(fields: Mapping[str, Any], at: Place = ()) -> Iterator[tuple[Place, str]]:
    """Yield each unchecked expression with its place."""
    for name in ("count", "value"):
        term = fields.get(name)
        texts = term if isinstance(term, Mapping) else {None: term}
        for path, text in texts.items():
            if isinstance(text, str):
                yield (*at, name) if path is None else (*at, name, str(path)), text
    if not at:
        yield from aggregate_texts(fields)
    sinks = fields.get("sinks") if not at else None
    for number, sink in enumerate(sinks if isinstance(sinks, list | tuple) else ()):
        if isinstance(sink, Mapping):
            yield from _texts(sink, ("sinks", number))


def in_order(mistakes: Iterable[Mistake]) -> list[Mistake]:
    """Sort by line; mistakes without a line come last."""
    return sorted(mistakes, key=lambda entry: (entry.line is None, entry.line or 0))


def _mistakes(fields: Mapping[str, Any], error: ValidationError, across: bool) -> Iterator[Mistake]:
    """Yield the mistakes of each field, then contradictions between valid fields."""
    errors = error.errors()
    if errors[0]["type"] == "contract":
        disagreements = errors[0]["ctx"]["wrong"]
        yield from (mistake(fields, wrong.place, wrong.why) for wrong in disagreements)
        return
    deepest: dict[str | int, int] = {}
    for problem in errors:
        deepest[problem["loc"][0]] = max(len(problem["loc"]), deepest.get(problem["loc"][0], 0))
    bad = set(deepest)
    unknown = {problem["loc"] for problem in errors if problem["type"] in _NO_SUCH_FIELD}
    outer = {problem["loc"][:level] for problem in errors for level in range(len(problem["loc"]))}
    """The places that have a mistake inside."""
    for problem in errors:
        # Of several possible forms, the deepest error belongs to the intended form.
        other_form = problem["loc"][0] == "identity" and len(problem["loc"]) < deepest["identity"]
        misspelt = problem["type"] == "missing" and any(
            _like(problem["loc"], other) for other in unknown
        )
        # A list with rejected items also seems too short.
        whole = problem["loc"] in outer
        if not other_form and not misspelt and not whole:
            why = (
                "there is no such field"
                if problem["type"] in _NO_SUCH_FIELD
                else why_refused(problem)
            )
            yield mistake(fields, _named(problem["loc"]), why)
    if not {"sink", "sinks"} & fields.keys() and not any(
        _like(("sink",), other) for other in unknown
    ):
        yield mistake(fields, ("sink",), "give either sink or sinks")
    rest = {name: value for name, value in fields.items() if name not in bad}
    for side in ("source", "sink"):
        if side not in rest and not (side == "sink" and "sinks" in rest):
            rest[side] = {"topic": f"the-{side}"}
            bad.add(side)
    try:
        Contract.model_validate(rest, context=across)
    except ValidationError as more:
        for problem in more.errors():
            for wrong in (problem.get("ctx") or {}).get("wrong", ()):
                if not bad.intersection(wrong.of):
                    yield mistake(fields, wrong.place, wrong.why)


def _like(missing: Place, unknown: Place) -> bool:
    """Return whether an unknown field is a misspelling of a missing one."""
    beside = missing[:-1] == unknown[:-1]
    return beside and bool(get_close_matches(str(missing[-1]), [str(unknown[-1])], n=1))


@dataclass(frozen=True)
class _Disagreement:
    """Valid fields that contradict each other."""

    why: str
    place: Place
    """The field to change."""
    of: tuple[str, ...]
    """All fields involved."""


def _disagreements(contract: Contract, across: bool) -> Iterator[_Disagreement]:
    if contract.unique is not None and contract.table is None:
        yield from _beside_unique(contract, across)
        if contract.sink is not None:
            yield from _of_topics(contract.sink, "sink")
        return
    if contract.aggregate is not None and contract.table is None:
        yield from _beside_aggregate(contract, contract.aggregate, across)
        return
    if contract.table is not None:
        for why, place, of in disagreements(dict(contract), contract.table, across):
            yield _Disagreement(why, place, of)
        yield from _of_topics(contract.source, "source")
        yield from _of_one(contract, (), False)
        return
    for why, place, of in without_table(dict(contract)):
        yield _Disagreement(why, place, of)
    if (contract.sink is None) == (contract.sinks is None):
        yield _Disagreement("give either sink or sinks", ("sink",), ("sink", "sinks"))
        return
    places = [(sink.cluster, sink.topic) for sink in contract.sinks or ()]
    if len(set(places)) < len(places):
        yield _Disagreement("a topic appears twice", ("sinks",), ("sinks",))
    if len({cluster is None for cluster, _ in places}) > 1:
        why = "some sinks name a cluster and others do not. Name it for each of them, or for none"
        yield _Disagreement(why, ("sinks",), ("sinks",))
    yield from _of_topics(contract.source, "source")
    if contract.sink is not None:
        yield from _of_topics(contract.sink, "sink")
    yield from _of_dead_letters(contract, across)
    for number, sink_contract in enumerate(contract.each()):
        yield from _of_one(
            sink_contract, () if contract.sinks is None else ("sinks", number), across
        )


def _beside_unique(contract: Contract, across: bool) -> Iterator[_Disagreement]:
    """Yield the fields that say something of a source, or of what it becomes."""
    if contract.sink is None or contract.sinks is not None:
        why = "a contract with unique is about one sink. Name it as `sink: {topic: ...}`"
        yield _Disagreement(why, ("sink",), ("unique", "sink", "sinks"))
        return
    if across:
        yield _Disagreement(
            "a contract with unique has no source. Remove the options of its cluster",
            ("unique",),
            ("unique",),
        )
    implied = {
        "source": contract.sink,
        "identity": Sides.model_construct(source=contract.unique, sink=contract.unique),
        "order": Order.NONE,
        "require": (DUPLICATE,),
    }
    for name, field in Contract.model_fields.items():
        if name not in OF_SINK_ALONE and getattr(contract, name) != implied.get(
            name, field.default
        ):
            why = f"a contract with unique is about the sink alone. Remove {name}"
            yield _Disagreement(why, (name,), (name, "unique", "sink"))


def _beside_aggregate(
    contract: Contract, aggregate: Aggregate, across: bool
) -> Iterator[_Disagreement]:
    """Yield the fields that promise something of single outputs."""
    if contract.sink is None or contract.sinks is not None:
        why = "a contract with aggregate is about one sink. Name it as `sink: {topic: ...}`"
        yield _Disagreement(why, ("sink",), ("aggregate", "sink", "sinks"))
        return
    if contract.across(across):
        why = "aggregates of another cluster's records are not judged yet. Check one cluster"
        yield _Disagreement(why, ("aggregate",), ("aggregate", "source", "sink"))
    for name, side in (("source", contract.source), ("sink", contract.sink)):
        yield from _of_topics(side, name)
    if set(contract.source.names) & set(contract.sink.names):
        why = "source and sink are the same topic"
        yield _Disagreement(why, ("sink", "topic"), ("source", "sink"))
    implied = _of_aggregates({"running": aggregate.running})
    for name, field in Contract.model_fields.items():
        default = implied.get(name, field.default)
        default = tuple(default) if isinstance(default, list) else default
        if name not in OF_AGGREGATES and getattr(contract, name) != default:
            reason = _BESIDE_AGGREGATE.get(name, "it is about single outputs")
            why = f"a contract with aggregate cannot say {name}: {reason}. Remove it"
            yield _Disagreement(why, (name,), (name, "aggregate"))


_BESIDE_AGGREGATE = {
    "range": "an aggregate is of all inputs, also of those that Kafka has removed",
    "require": "its kinds are required",
    "guarantee": "an output counts each input exactly once",
}
"""Why some fields have no place beside `aggregate:`, as clauses."""


def _of_topics(side: Topic, place: str) -> Iterator[_Disagreement]:
    if not side.names:
        yield _Disagreement("name the topic", (place, "topic"), (place,))
    if side.topic is not None and side.topics is not None:
        yield _Disagreement("give either topic or topics, not both", (place, "topics"), (place,))
    if len(set(side.names)) < len(side.names):
        yield _Disagreement("a topic appears twice", (place, "topics"), (place,))


def _of_dead_letters(contract: Contract, has_source_cluster: bool) -> Iterator[_Disagreement]:
    letters = contract.dead_letters
    if letters is None:
        if contract.warn.dead_letter_share is not None:
            why = "no dead letters are named to warn of. Give `dead_letters:` too, or remove it"
            yield _Disagreement(why, ("warn", "dead_letter_share"), ("warn", "dead_letters"))
        return
    if contract.sink is None:
        why = "dead letters belong to one sink. Write a contract for each sink"
        yield _Disagreement(why, ("dead_letters",), ("dead_letters", "sink", "sinks"))
        return
    if contract.across(has_source_cluster):
        why = "dead letters of two clusters are not judged yet. Remove it, or check one cluster"
        yield _Disagreement(why, ("dead_letters",), ("dead_letters", "source", "sink"))
    if letters.topic in (*contract.source.names, *contract.sink.names):
        why = "the dead letters are in the source or the sink itself"
        of = ("dead_letters", "source", "sink")
        yield _Disagreement(why, ("dead_letters", "topic"), of)
    if letters.origin not in ORIGINS and contract.identity == LINEAGE:
        why = (
            "a dead letter that holds an identity needs an identity of the inputs to compare it"
            " with. Give `identity:` too"
        )
        yield _Disagreement(why, ("dead_letters", "origin"), ("dead_letters", "identity"))


def _of_one(contract: Contract, at: Place, has_source_cluster: bool) -> Iterator[_Disagreement]:
    """Yield the disagreements of a contract for one sink. `at`: its place among several sinks.
    `has_source_cluster`: the command names another cluster for its source."""
    across = contract.across(has_source_cluster)
    if across and contract.identity == LINEAGE:
        why = (
            "records of two clusters are matched by identity, because offsets of one say nothing"
            " about the other. Name key, value, {header: NAME} or {json: $.path}"
        )
        yield _Disagreement(why, (*at, "identity"), ("identity", "source", "sink"))
    if not across and set(contract.source.names) & set(contract.of.names):
        where = "topic" if contract.of.topics is None else "topics"
        yield _Disagreement(
            "source and sink are the same topic", (*(at or ("sink",)), where), ("source", "sink")
        )
    try:
        Expected(contract.expect, contract.count)
    except ValueError as error:
        yield _Disagreement(str(error), (*at, "expect"), ("expect", "count"))
    if contract.filtered is not None and (
        contract.expect is not Expect.ZERO_OR_ONE or contract.count is not None
    ):
        why = "only zero_or_one without a count leaves open what was filtered. Remove it"
        yield _Disagreement(why, (*at, "filtered"), ("filtered", "expect", "count"))
    if contract.value is not None and contract.expect is Expect.ONE_TO_MANY:
        why = "one expression cannot give the values of many outputs. Remove it"
        yield _Disagreement(why, (*at, "value"), ("value", "expect"))
    for number, kind in enumerate(contract.require or ()):
        if kind == "order" and contract.order is Order.NONE:
            yield _Disagreement(
                "order is required, but none is promised", ("order",), ("order", "require")
            )
        if kind in BY_CONTRACT and getattr(contract, BY_CONTRACT[kind].name) is None:
            needed = BY_CONTRACT[kind].name
            why = f"{kind} needs a {needed} to compare with"
            yield _Disagreement(why, ("require", number), ("require", needed))


def mistake(fields: Mapping[str, Any], place: Place, why: str) -> Mistake:
    """Return a mistake of the field at `place`."""
    where, line = (
        (fields.where(place), fields.line(place))
        if isinstance(fields, YamlFields)
        else ("The check", None)
    )
    return Mistake(where, line, ".".join(map(str, place)) or "contract", why.rstrip("."))


def _named(loc: Place) -> Place:
    """Return the place in the file, without the forms that pydantic tried."""
    return tuple(part for part in loc if part not in ("Sides", "literal['lineage']"))
