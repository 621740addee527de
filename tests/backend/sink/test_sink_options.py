"""The sink's own options: what is refused, and with which words."""

from __future__ import annotations

from typing import Any

import pytest

from topicproof.backend.errors import UsageError
from topicproof.backend.sink.delivery_options import OPTIONS
from topicproof.backend.sink.hooks import NoHooks
from topicproof.backend.sink.options import SinkOptions
from topicproof.backend.sink.task import SinkTask
from topicproof.backend.sink.writer import delivery_of
from topicproof.validators.finding import Guarantee

GIVEN = {
    "kafka.bootstrap.servers": "broker:9092",
    "group": "g",
    "transactionalIdPrefix": "run",
    "topic": "t",
}


def test_what_is_needed_is_enough() -> None:
    parsed = SinkOptions.parse(GIVEN)
    assert (parsed.bootstrap, parsed.prefix, parsed.guarantee) == (
        "broker:9092",
        "run",
        "exactly_once",
    )


@pytest.mark.parametrize("guarantee", list(Guarantee))
@pytest.mark.parametrize("name", [n for n, option in OPTIONS.items() if option.is_client_setting])
def test_a_setting_of_the_producer_reaches_it_under_every_guarantee(
    name: str, guarantee: Guarantee
) -> None:
    """Story: a plan sets an option of Kafka's producer. The producer of each guarantee has it, and
    has another value without it."""
    option = OPTIONS[name]
    value = str(option.least) if option.type is int else option.choices[-1]
    configs = []
    for options in ({}, {option.sink_name: value}):
        sink = SinkOptions.parse({**GIVEN, "guarantee": guarantee, **options})
        nothing: Any = None  # What reads the group's offset and the inputs is not needed yet.
        delivery: Any = delivery_of(SinkTask(sink, NoHooks, "source", 0), nothing, nothing)
        configs.append(delivery.producer.config)
    setting = name.replace("_", ".")
    assert str(configs[1][setting]) == value != str(configs[0].get(setting))


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("transactionalIdPrefix", "team/run", "transactionalIdPrefix holds a slash"),
        (
            "guarantee",
            "twice",
            "guarantee is 'twice'; it must be one of at_most_once, at_least_once, exactly_once.",
        ),
        ("lineage", "none", "lineage is 'none'; it must be one of record, off."),
        (
            "lineage",
            "packed",
            "lineage: packed was removed. Write record, which names the input in headers of each"
            " record, or off.",
        ),
        (
            "recordsPerTransaction",
            "0",
            "recordsPerTransaction is '0'; it must be a whole number from 1.",
        ),
        ("colour", "red", "unknown option colour"),
    ],
)
def test_a_bad_option_is_named(option: str, value: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        SinkOptions.parse({**GIVEN, option: value})
    assert says in str(refused.value)
