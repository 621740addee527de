"""The fields of a plan, and what each may be."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    create_model,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from topicproof.backend.address import require_no_secret
from topicproof.backend.errors import TopicproofError
from topicproof.backend.faults.kinds import parse_fault
from topicproof.backend.runs.download_limits import Limits
from topicproof.backend.runs.duplicates import Cause
from topicproof.backend.runs.scenarios import SCENARIOS, scenario
from topicproof.backend.sink.delivery_options import OPTIONS, DeliveryOptions, Option
from topicproof.backend.sink.options import (
    BATCH_LEAST_S,
    BATCH_S,
    PACKED,
    PACKED_REMOVED,
    Isolation,
)
from topicproof.backend.yaml_fields import TopicName

SOURCE_OPTIONS = frozenset(
    name.lower()
    for name in (
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "kafkaConsumer.pollTimeoutMs",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "kafka.fetch.min.bytes",
        "kafka.fetch.max.bytes",
        "kafka.fetch.max.wait.ms",
        "kafka.max.partition.fetch.bytes",
        "kafka.max.poll.records",
        "kafka.max.poll.interval.ms",
        "kafka.receive.buffer.bytes",
        "kafka.request.timeout.ms",
        "kafka.default.api.timeout.ms",
    )
)
"""Options of Spark's Kafka source that a plan may set, in lower case: figures of how much is read
at once. A plan may come from somebody else, and many of Kafka's properties name a class, a file or
a program for Spark's process (`sasl.kerberos.kinit.cmd`, `metric.reporters`)."""

REFUSED_SOURCE_OPTIONS = {
    "minpartitions": "it splits a source partition over several tasks",
    "maxrecordsperpartition": "it splits a source partition over several tasks",
    "startingoffsetsbytimestamp": "the start comes from the group's committed offsets",
    "startingoffsets": "the start comes from the group's committed offsets",
    "endingoffsets": "a run ends at the end of its source",
    "failondataloss": "false loses records silently, and true is the default",
    "kafka.isolation.level": "set source.isolation instead",
    "kafka.group.id": "the run has a group of its own",
    "kafka.enable.auto.commit": "offsets are committed inside the transactions only",
    "subscribe": "set source.topic instead",
    "assign": "set source.topic instead",
    "subscribepattern": "set source.topic instead",
}
"""Why some options are refused. The first two were observed to lose records silently: 13,334 and
10,600 of 20,000 committed while the query succeeded."""

NOT_A_FIGURE = (
    "a plan sets only how much Spark reads at once. What says how a cluster is reached belongs to"
    " the cluster's properties (--config)"
)
OPTION_VALUE = re.compile(r"[0-9]{1,19}", re.ASCII)

CHECKPOINTS = re.compile(
    r"(?!file://[^/])(?=[^:]+:/)[a-z][a-z0-9+.-]*:(//([A-Za-z0-9][A-Za-z0-9@._:-]*)?)?"
    r"(/(?!\.\.?(/|$))[\w.=+@~-]+)*/?"
)
"""A URL that Hadoop, Python and pyarrow read alike. Hadoop knows no queries and no fragments,
decodes nothing, and resolves `..`; for each of these, another reader sees another place."""


DATABASE_PARAMETERS = frozenset(
    ("application_name", "connect_timeout", "host", "port", "sslmode", "target_session_attrs")
)
"""Parameters of a database's address that a plan may set."""


def _scenario(name: str) -> str:
    _as_value_error(lambda: scenario(name))
    return name


def _url(text: str) -> str:
    if not CHECKPOINTS.fullmatch(text):
        raise ValueError(
            "expected a URL that Spark can write, such as file:///var/checkpoints or"
            " s3a://bucket/folder. Its folders have names of letters, digits and . = + @ ~ _ -"
        )
    return require_no_secret(text).rstrip("/")


def _database(url: str | None) -> str | None:
    if url is None:
        return None
    # Imported late: SQLAlchemy is slow to import, and most plans name no database.
    from sqlalchemy import make_url

    from topicproof.backend.sink.table import FILE_ENDINGS, connect_database

    _as_value_error(lambda: connect_database(url))
    address = make_url(url)
    if address.password is not None:
        raise ValueError(
            "a plan is kept with its run, so it must not hold a password. Leave it out of the"
            " address, and put it where the database's client looks for it on the workers'"
            " machines, such as ~/.pgpass"
        )
    more = sorted(address.query.keys() - DATABASE_PARAMETERS)
    if more:
        # libpq takes passwords, key files and files of services here, too.
        raise ValueError(
            f"the address may not set {more[0]}, only {', '.join(sorted(DATABASE_PARAMETERS))}"
        )
    file = Path(address.database or "")
    if address.get_backend_name() == "sqlite" and not file.is_absolute():
        raise ValueError("give the absolute path of a SQLite file, such as sqlite:////var/out.db")
    # A database holds keys and values as they are, and other programs read a file of any format
    # line by line: ~/.ssh/authorized_keys, ~/.vimrc.
    if address.get_backend_name() == "sqlite" and not (
        str(file).isprintable() and file.name.endswith(FILE_ENDINGS)
    ):
        raise ValueError(f"the name of a SQLite file ends with {', '.join(FILE_ENDINGS)}")
    return url


def _fault(text: str) -> str:
    _as_value_error(lambda: parse_fault(text))
    return text.strip()


def _expression(text: str | None) -> str | None:
    # Imported late: the parser is slow to import, and most plans have no expression.
    from topicproof.backend.contracts.expressions import check_expression

    return None if text is None else check_expression(text)


def _field_of(option: Option) -> tuple[Any, Any]:
    """Return the type and the field of a plan's option of delivery."""
    type_ = option.type | None if option.default is None else option.type
    least, most = (option.least, option.most_in_plan) if option.type is int else (None, None)
    return type_, Field(default=option.default, alias=option.alias, ge=least, le=most)


def _as_value_error(call: Any) -> None:
    try:
        call()
    except TopicproofError as error:
        raise ValueError(str(error)) from error


_STRICT = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class SourcePlan(BaseModel):
    """Source of the inputs."""

    model_config = _STRICT
    topic: TopicName = None
    """An existing topic; None: the run creates and fills one."""
    isolation: Isolation = "read_committed"
    starting: Literal["earliest", "latest"] = "earliest"
    url: Annotated[str | None, AfterValidator(_database)] = None
    """SQLAlchemy URL of the database whose table is copied into the source, with `duplicates:
    transfer`. None: a SQLite file in the run's folder."""
    options: dict[str, str] = Field(default_factory=dict)
    """More options of Spark's Kafka source, of `SOURCE_OPTIONS`."""

    @model_validator(mode="after")
    def _refuse(self) -> SourcePlan:
        for name, value in self.options.items():
            if name.lower() not in SOURCE_OPTIONS:
                reason = REFUSED_SOURCE_OPTIONS.get(name.lower(), NOT_A_FIGURE)
                raise ValueError(f"source option {name} is refused: {reason}. Remove it.")
            if not OPTION_VALUE.fullmatch(value):
                raise ValueError(f"source option {name} needs a whole number, such as 50000.")
        return self


class SinkPlan(BaseModel):
    """Destination of the outputs."""

    model_config = _STRICT
    topic: TopicName = None
    """None: the run creates one. In the scenario table, the table's name."""
    url: Annotated[str | None, AfterValidator(_database)] = None
    """SQLAlchemy URL of the database, in the scenario table. None: a SQLite file in the run's
    folder."""
    partitions: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Partitions of a sink that the run creates; None: as many as the source has."""
    dead_letters: bool = False
    """Whether an input goes to `<sink>.dead-letters` if the brokers refuse one of its outputs.
    Otherwise the run stops."""


class FilesPlan(BaseModel):
    """Limits of downloads in the scenario files."""

    model_config = _STRICT
    hosts: tuple[str, ...] = Limits.hosts
    timeout_s: Annotated[float, Field(gt=0, le=3600)] = Limits.timeout_s
    attempts: Annotated[int, Field(ge=1, le=100)] = Limits.attempts
    bytes_max: Annotated[int, Field(ge=1, le=1_000_000_000)] = Limits.bytes_max

    @property
    def limits(self) -> Limits:
        return Limits(self.hosts, self.timeout_s, self.attempts, self.bytes_max)


if TYPE_CHECKING:

    class _DeliveryFields(BaseModel, DeliveryOptions): ...

else:
    _DeliveryFields = create_model(
        "_DeliveryFields",
        __config__=_STRICT,
        **{name: _field_of(option) for name, option in OPTIONS.items()},
    )


class DeliveryPlan(_DeliveryFields):
    """How transactions reach the sink. Each field is an option of the sink; those beside the
    guarantee are declared in backend/sink/delivery_options.py."""

    guarantee: Literal["exactly_once", "at_least_once", "at_most_once"] = "exactly_once"

    @field_validator("lineage", mode="before")
    @classmethod
    def _refuse_packed(cls, how: Any) -> Any:
        if how == PACKED:
            raise ValueError(PACKED_REMOVED)
        return how


class FaultsPlan(BaseModel):
    """What goes wrong on purpose. Each field is an option of a sink with faults
    (backend/faults/injecting.py)."""

    model_config = _STRICT
    abort_probability: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: int = 0
    faults: tuple[Annotated[str, AfterValidator(_fault)], ...] = ()
    by_hand: bool = False
    """Whether somebody may kill its workers and freeze their network while it runs
    (backend/faults/by_hand.py)."""
    slow_motion_ms: Annotated[int, Field(ge=0, le=10_000)] = 0
    """How long each transaction stays open once all of its records are in the log, for people who
    watch."""


class FillPlan(BaseModel):
    """What the run fills its source with."""

    model_config = _STRICT
    records: Annotated[int, Field(ge=1)] = 10_000
    """Number of integers to fill. Ignored if the source is given or the run continues until
    stopped."""
    partitions: Annotated[int, Field(ge=1, le=10_000)] = 3
    rate: Annotated[float, Field(gt=0)] | None = None
    """Fill rate in records per second; None: as fast as possible."""
    until_stopped: bool = False
    """Fill and process concurrently until stopped."""
    duplicates: Cause | None = None
    """Cause of duplicate payments, in the scenario totals; None: no duplicates."""


class PlanFields(DeliveryPlan, FaultsPlan, FillPlan):
    """The fields of a plan, each valid on its own. A file has all of them on one level."""

    scenario: Annotated[str, AfterValidator(_scenario)] = next(iter(SCENARIOS))
    trigger: Literal["micro_batch", "real_time"] = "micro_batch"
    """real_time: Spark hands each record over as it comes (docs/REAL-TIME.md)."""
    real_time_batch_s: Annotated[int, Field(ge=5, le=86_400)] | None = None
    """In real time: seconds until Spark ends a batch and starts the next, with a pause. None: 60 if
    the run continues until stopped, else 5."""
    judged: bool = True
    """Whether the run ends with a verdict."""
    reader: bool = False
    """Whether a read_committed reader polls the sinks while they are written, as an additional
    witness."""
    source: SourcePlan = SourcePlan()
    sink: SinkPlan = SinkPlan()

    checkpoints: Annotated[str, AfterValidator(_url)] | None = None
    """URL of a folder for the checkpoints, which hold the state of a stateful stage. None: with the
    run, in the home."""
    deduplicate_s: Annotated[int, Field(ge=0, le=10_000_000)] | None = None
    """Seconds of deduplication in the scenario totals: drop a payment if its id occurred at most
    this long before, by the payments' own time."""
    files: FilesPlan = FilesPlan()
    key: Annotated[str | None, AfterValidator(_expression)] = None
    """Spark SQL for the sink record's key, in the scenario yours. None: the source record's key."""
    value: Annotated[str | None, AfterValidator(_expression)] = None
    """Spark SQL for the sink record's value, in the scenario yours. Its columns are key, value,
    topic, partition, offset, timestamp and headers; key and value are text."""

    @property
    def sink_options(self) -> dict[str, str]:
        """The sink's options that a plan sets, under their own names: `attemptsMax` is
        `attempts_max`. None leaves an option to the sink."""
        names = (*DeliveryPlan.model_fields, *FaultsPlan.model_fields)
        values = {name: getattr(self, name) for name in names}
        return {
            to_camel(name): _option(value) for name, value in values.items() if value is not None
        }

    @property
    def batch_s(self) -> int:
        """Seconds of a real-time batch. A bounded run has few rows after a failure to show it."""
        return self.real_time_batch_s or (BATCH_S if self.until_stopped else BATCH_LEAST_S)

    @property
    def fills(self) -> bool:
        """Whether the run fills its sources."""
        return self.source.topic is None


def _option(value: Any) -> str:
    """Return a field's value as Spark takes options."""
    if isinstance(value, tuple):
        return " ".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
