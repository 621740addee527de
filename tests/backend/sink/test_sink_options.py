"""The sink's own options: what is refused, and with which words."""

from __future__ import annotations

import pytest

from topicproof.backend.errors import UsageError
from topicproof.backend.sink.options import SinkOptions

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
