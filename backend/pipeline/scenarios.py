"""Scenarios: a source and a transformation. Adding one is adding one definition to SCENARIOS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from backend.errors import UsageError


@dataclass(frozen=True)
class Scenario:
    """What a run reads, what it makes of each record, and how both topics are called."""

    name: str
    title: str
    """One line for the pages."""
    source: str
    """Name of its source topic, without the run."""
    sink: str
    stage: str
    """Name of its one stage; part of the group and of the transactional ids."""
    key: Callable[[Column, Column], Column]
    """(key, value) of the source record, both binary -> the sink record's key."""
    value: Callable[[Column, Column], Column]


def _number(value: Column) -> Column:
    # decimal: the square of a 19-digit number still fits, where bigint would overflow beyond 3,037,000,499.
    return value.cast("string").cast("decimal(19,0)")


SQUARES = Scenario(
    name="squares",
    title="Square every number: one output per input, ordered within a partition",
    source="numbers",
    sink="squares",
    stage="square",
    key=lambda key, _value: key,
    value=lambda _key, value: (_number(value) * _number(value)).cast("string").cast("binary"),
)

SCENARIOS = {scenario.name: scenario for scenario in (SQUARES,)}


def scenario(name: str) -> Scenario:
    """Raises UsageError naming the known ones."""
    found = SCENARIOS.get(name)
    if found is None:
        raise UsageError(f"Unknown scenario {name!r}. Known: {', '.join(SCENARIOS)}.")
    return found


def outputs(key: Column, value: Column) -> Column:
    """A one-to-one `outputs` column."""
    return F.array(F.struct(key.alias("key"), value.alias("value")))
