"""The sinks' checked options. backend/sink/exactly_once.py lists them; those of the delivery are
declared in backend/sink/delivery_options.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from topicproof.backend.address import Address
from topicproof.backend.errors import UsageError
from topicproof.backend.kafka.client_configs import READ_COMMITTED
from topicproof.backend.properties.names import others as require_names
from topicproof.backend.sink.delivery_options import OPTIONS, DeliveryOptions, Option
from topicproof.validators.finding import Guarantee

FORMAT = "kafka-transactional"
REAL_TIME_LINGER_MS = 1
"""In real time, requests with records leave while the offset is being sent, not after it. At 1,000
records/s latency is a sixth shorter, and at 20,000 records/s it is the same."""
BATCH_S, BATCH_LEAST_S = 60, 5
"""Seconds of a real-time batch by default, and the least that Spark allows."""
Isolation = Literal["read_committed", "read_uncommitted"]
PACKED = "packed"
PACKED_REMOVED = (
    "packed was removed. Write record, which names the input in headers of each record, or off"
)
"""What plans and sinks answer to an option of earlier versions."""


_BYTES = Option("bytes_per_transaction", int, 64_000_000, "As records_per_transaction, in bytes.")
_GENERATION = Option("generation", int, 0, "The number of this start of the query.", least=0)
"""Options of the sink that no plan sets."""


@dataclass(frozen=True)
class SinkOptions:
    """The sink's checked options. Raises UsageError naming the wrong one."""

    bootstrap: str
    client: Mapping[str, str]
    topic: str | None
    group: str
    prefix: str
    source_isolation: str
    guarantee: Guarantee
    delivery: DeliveryOptions
    bytes_per_transaction: int
    journal: str | None
    generation: int
    """0 if generations are not counted."""
    dead_letters: str | None
    client_defaults: Mapping[str, int | str] = field(default_factory=dict)
    """Settings of Kafka's producer, with underscores for dots, that an option replaces."""

    @property
    def address(self) -> Address:
        return Address(self.bootstrap, self.client)

    @property
    def client_settings(self) -> dict[str, int | str]:
        """Settings of Kafka's producer, with underscores for dots, under any guarantee."""
        return {**self.client_defaults, **self.delivery.client_settings}

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        by_name = {name.lower(): value for name, value in options.items()}
        names = {name.lower() for name in _OPTIONS}
        unknown = [n for n in by_name if n not in names and not n.startswith("kafka.")]
        if unknown:
            raise UsageError(
                f"{FORMAT}: unknown option {unknown[0]}. Known: {', '.join(_OPTIONS)}, kafka.*"
            )
        if "generation" in by_name and "journal" not in by_name:
            raise UsageError(
                f"{FORMAT}: generation needs the option journal: the group keeps it as an offset of"
                " the journal topic."
            )
        client = {
            n[6:]: v
            for n, v in by_name.items()
            if n.startswith("kafka.") and n != "kafka.bootstrap.servers"
        }
        require_names(client)
        guarantee = Guarantee(
            _one_of(by_name, "guarantee", list(Guarantee), Guarantee.EXACTLY_ONCE)
        )
        if by_name.get("lineage") == PACKED:
            raise UsageError(f"{FORMAT}: lineage: {PACKED_REMOVED}.")
        if "/" in by_name.get("transactionalidprefix", ""):
            raise UsageError(
                f"{FORMAT}: transactionalIdPrefix holds a slash, which separates the parts of a"
                " header."
            )
        return cls(
            bootstrap=_required(by_name, "kafka.bootstrap.servers"),
            client=client,
            topic=by_name.get("topic"),
            group=_required(by_name, "group"),
            prefix=_required(by_name, "transactionalIdPrefix"),
            source_isolation=_one_of(
                by_name, "sourceIsolation", get_args(Isolation), READ_COMMITTED
            ),
            guarantee=guarantee,
            delivery=DeliveryOptions(
                **{name: _value(by_name, option) for name, option in OPTIONS.items()}
            ),
            bytes_per_transaction=_value(by_name, _BYTES),
            journal=by_name.get("journal"),
            generation=_value(by_name, _GENERATION),
            dead_letters=by_name.get("deadletters"),
        )


_OPTIONS = (
    "topic",
    "group",
    "transactionalIdPrefix",
    "sourceIsolation",
    "guarantee",
    *(option.sink_name for option in (*OPTIONS.values(), _BYTES, _GENERATION)),
    "journal",
    "deadLetters",
    # What Spark gives by itself; the name of the query comes from a Declarative Pipeline.
    "checkpointLocation",
    "path",
    "queryName",
)


def _required(by_name: Mapping[str, str], name: str) -> str:
    value = by_name.get(name.lower())
    if not value:
        raise UsageError(f"{FORMAT}: the option {name} is required.")
    return value


def _one_of(by_name: Mapping[str, str], name: str, choices: Sequence[str], default: str) -> str:
    text = by_name.get(name.lower(), default)
    if text not in choices:
        raise UsageError(f"{FORMAT}: {name} is {text!r}; it must be one of {', '.join(choices)}.")
    return text


def _value(by_name: Mapping[str, str], option: Option) -> Any:
    """Return an option's value, of its type. Raises UsageError."""
    name = option.sink_name
    text = by_name.get(name.lower())
    if text is None:
        return option.default
    if option.choices:
        choice = _one_of(by_name, name, option.choices, "")
        return choice == "true" if option.type is bool else choice
    if not text.isdigit() or int(text) < option.least:
        raise UsageError(
            f"{FORMAT}: {name} is {text!r}; it must be a whole number from {option.least}."
        )
    return int(text)
