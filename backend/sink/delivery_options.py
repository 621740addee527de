"""How the sink delivers. Each option is declared here, once: type, default, bounds and help.

From here it reaches the sink (`attemptsMax`), a plan's YAML and `run --set` (`attempts_max`), the
page Run, and, if it is a setting of Kafka's producer, the producers of all guarantees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args, get_type_hints

from topicproof.backend.kafka.client_configs import TRANSACTION_TIMEOUT_MS
from topicproof.validators.finding import Guarantee

OFF = "off"
Lineage = Literal["record", "off"]
Acks = Literal["all", "0"]


@dataclass(frozen=True)
class Option:
    """An option, as it is declared."""

    name: str
    type: Any
    """bool, int, or a Literal of texts."""
    default: Any
    """None: the option is not sent, and the sink or Kafka's client has a default of its own."""
    help: str
    """One or two sentences for the command line and the page."""
    label: str | None = None
    """Its name on the page Run. None: the page does not offer it, or has a widget of its own."""
    least: int = 1
    most_in_plan: int | None = None
    """Bounds of a whole number. The upper one is for plans, which may come from somebody else. Who
    sets a sink's options by hand may have brokers that allow more."""
    alias: str | None = None
    """An earlier name in plans, which they are written with."""
    guarantees: tuple[Guarantee, ...] = tuple(Guarantee)
    """The guarantees that allow another value than the default."""
    is_client_setting: bool = False
    """Whether it is a setting of Kafka's producer, with underscores for dots."""

    @property
    def sink_name(self) -> str:
        """The name among the sink's options: `attempts_max` is `attemptsMax`."""
        first, *others = self.name.split("_")
        return first + "".join(map(str.capitalize, others))

    @property
    def plan_name(self) -> str:
        return self.alias or self.name

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts that it may be; empty for a whole number."""
        return ("true", "false") if self.type is bool else get_args(self.type)


@dataclass
class DeliveryOptions:
    """The options' values for one query. The metadata of a field is the rest of its `Option`.

    It is not frozen, because a plan's model inherits it, and type checkers do not mix the two."""

    idempotence: bool = field(
        default=True,
        metadata={
            "help": "Whether at_least_once uses an idempotent producer; exactly_once always does.",
            "guarantees": (Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE),
        },
    )
    acks: Acks = field(
        default="all",
        metadata={
            "help": "Of at_most_once: 0 for a producer that waits for no answer of the brokers.",
            "label": "Acknowledgements",
            "guarantees": (Guarantee.AT_MOST_ONCE,),
        },
    )
    records_per_transaction: int = field(
        default=1000,
        metadata={
            "help": "A transaction ends at the input that reaches this number.",
            "alias": "per_transaction",
        },
    )
    lineage: Lineage = field(
        default="record",
        metadata={
            "help": "record: headers on each record name its input and transaction. off: no"
            " headers, which is faster, but the run is judged by key."
        },
    )
    attempts_max: int = field(
        default=10,
        metadata={
            "help": "How often a transaction is tried before the task gives up.",
            "label": "Attempts per transaction",
            "most_in_plan": 1000,
        },
    )
    commit_interval_ms: int = field(
        default=20,
        metadata={
            "help": "In real time: a transaction ends this long after its first input, or when it"
            " is full.",
            "most_in_plan": 60_000,
        },
    )
    transaction_timeout_ms: int = field(
        default=TRANSACTION_TIMEOUT_MS,
        metadata={
            "help": "After this the coordinator aborts an abandoned transaction.",
            "label": "Transaction time-out (ms)",
            # librdkafka allows no less, and brokers by default no more.
            "least": 1000,
            "most_in_plan": 900_000,
        },
    )
    linger_ms: int | None = field(
        default=None,
        metadata={
            "help": "How long the producer waits for more records before it sends a request. By"
            " default 50, in real time 1.",
            "label": "Linger (ms)",
            "least": 0,
            # librdkafka wants less than the time-out of a transaction, which is 1000 at least.
            "most_in_plan": 999,
            "is_client_setting": True,
        },
    )
    offsets_forced: bool = field(
        default=False,
        metadata={
            "help": "Continue at the group's offset, even if the journal shows that it was moved."
        },
    )

    @property
    def client_settings(self) -> dict[str, int | str]:
        """Settings of Kafka's producer, with underscores for dots. Those left to it are absent."""
        values = {name: getattr(self, name) for name in OPTIONS if OPTIONS[name].is_client_setting}
        return {name: value for name, value in values.items() if value is not None}


def _declared() -> dict[str, Option]:
    types = get_type_hints(DeliveryOptions)
    return {
        option.name: Option(
            option.name, _without_none(types[option.name]), option.default, **option.metadata
        )
        for option in fields(DeliveryOptions)
    }


def _without_none(type_: Any) -> Any:
    """Return `int` for `int | None`."""
    parts = get_args(type_)
    return parts[0] if type(None) in parts else type_


OPTIONS: Mapping[str, Option] = _declared()
