"""A first contract, from what two topics hold: somebody must read it before it is believed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backend.errors import TopicError
from backend.kafka import fates, rawlog
from backend.kafka.browse import Row, latest
from backend.settings import READ_COMMITTED
from validators.headers import LINEAGE_HEADER, parse_lineage
from validators.packs import PACKED_HEADER, parse_pack

SAMPLE = 1_000
"""The newest records of each topic that are looked at."""


def draft(bootstrap: str, client: Mapping[str, str], source: str, sink: str) -> tuple[str, str]:
    """The contract as YAML, and in one sentence what its identity rests on. Raises ClusterError, TopicError."""
    inputs, outputs = (_newest(bootstrap, client, topic) for topic in (source, sink))
    identity, why = _identity(inputs, outputs, source)
    ordered = "per_source_partition" if identity == "lineage" else "none"
    lines = [
        f"# A first contract, from the newest {SAMPLE:,} records of both topics. Read it before you believe it.",
        f"# Identity: {why}",
        "guarantee: exactly_once",
        f"source: {{topic: {source}}}",
        f"sink: {{topic: {sink}}}",
        f"identity: {identity}",
        "expect: one_to_one # zero_or_one, or one_to_many with `count:` in Spark SQL over the source record",
        "# value: upper(value) # what an output's value must be, in Spark SQL over the source record",
        f"order: {ordered} # per_source_partition, per_key or none",
        "# group: my-app # a consumer group whose committed offsets must agree with the output",
        "warn: {pending: 0}",
    ]
    return "\n".join(lines) + "\n", why


def _newest(bootstrap: str, client: Mapping[str, str], topic: str) -> Sequence[Row]:
    bounds = rawlog.fetch_bounds(bootstrap, client, topic)
    ranges = fates.fate_ranges(rawlog.scan(bootstrap, client, topic, bounds), bounds)
    rows = latest(bootstrap, client, bounds, ranges, READ_COMMITTED, SAMPLE)
    if not rows:
        raise TopicError(f"Topic {topic} holds no committed record to look at. Fill it first.")
    return rows


def _identity(inputs: Sequence[Row], outputs: Sequence[Row], source: str) -> tuple[str, str]:
    """The first of these that differs from input to input and that outputs share: lineage, key, a field of the JSON
    value, the value itself."""
    named = [parse_lineage(value) for row in outputs for name, value in row.headers if name == LINEAGE_HEADER]
    if len(named) == len(outputs) and all(one is not None and one.topic == source for one in named):
        return "lineage", "every output names its input in a header."
    packs = [parse_pack(value) for row in outputs for name, value in row.headers if name == PACKED_HEADER]
    if packs and all(one is not None and one.topic == source for one in packs):
        return "lineage", "outputs name their inputs in headers, each for many of them."
    fields = sorted({name for row in inputs for name in _json(row)})
    candidates: list[tuple[str, str, Callable[[Row], object]]] = [
        ("key", "the key", lambda row: row.key),
        *((f"{{json: $.{name}}}", f"the field {name} of the value", _field(name)) for name in fields),
        ("value", "the value", lambda row: row.value),
    ]
    for spelled, said, of in candidates:
        there, here = [of(row) for row in inputs], {of(row) for row in outputs}
        distinct = len(set(there)) == len(there) and None not in there
        shared = len(here & set(there))
        if distinct and shared * 2 > min(len(here), len(there)):
            return spelled, f"{said} differs from input to input, and outputs share {shared:,} of them."
    return "key", "nothing was found that both sides share; say what they do."


def _json(row: Row) -> dict[str, Any]:
    try:
        found = json.loads(row.value or b"")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _field(name: str) -> Callable[[Row], object]:
    def of(row: Row) -> object:
        found = _json(row).get(name)
        return None if found is None else str(found)

    return of
