"""A first contract, drafted from the data of two topics. A person must review it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from topicproof.backend.address import Address
from topicproof.backend.errors import TopicError
from topicproof.backend.formats.decoded import Format
from topicproof.backend.formats.formats import Formats
from topicproof.backend.judging.candidates import (
    SCORE_MIN,
    Fit,
    Texts,
    candidates,
    document,
    fits,
)
from topicproof.backend.judging.expectation_seen import Seen, see
from topicproof.backend.kafka.browse.search import Row, latest
from topicproof.backend.kafka.client_configs import READ_COMMITTED
from topicproof.backend.kafka.log import fates, rawlog
from topicproof.validators.lineage.headers import LINEAGE_HEADER, parse_lineage
from topicproof.validators.lineage.packs import PACKED_HEADER, Pack, parse_pack

INPUTS, OUTPUTS = 10_000, 1_000
"""Number of newest records read from each topic. An output's input may be much older than the
newest input."""
KEPT_BYTES = 20_000
"""Maximum size of one key, value or header."""
SECONDS_MAX = 30.0
TRIED_SHOWN = 5


@dataclass(frozen=True)
class Sample:
    """The newest committed records of a topic, newest first."""

    topic: str
    rows: Sequence[Row]
    whole: bool
    """Whether these are all records of the topic, with none deleted."""
    documents: Sequence[Any]
    """Each value as JSON; None if it is not JSON and cannot be decoded."""
    fields: bool = False
    """Whether some values were decoded from another format than JSON."""
    keys: Sequence[Any] = ()
    """Each key decoded; None if it cannot be decoded."""

    @property
    def candidates(self) -> dict[str, Texts]:
        return candidates(self.rows, self.documents, self.fields, self.keys)


@dataclass(frozen=True)
class Draft:
    """A proposal of `contract init`."""

    text: str
    """The contract as YAML; only comments if no identity was found."""
    why: str
    """One sentence: the reason for its identity, or what to do if none was found."""
    found: bool


def draft(address: Address, source: str, sink: str, formats: Formats | None = None) -> Draft:
    """Draft a contract. `formats` decodes what is not JSON; None: without a registry. Raises
    ClusterError, TopicError."""
    formats = formats or Formats()
    inputs = _newest(address, source, INPUTS, formats)
    outputs = _newest(address, sink, OUTPUTS, formats)
    there, here = inputs.candidates, outputs.candidates
    tried = fits(there, here)
    lineage = _lineage(inputs, outputs)
    best = (
        lineage
        if lineage is not None and lineage.score >= SCORE_MIN
        else tried[0]
        if tried
        else None
    )
    if best is None or best.score < SCORE_MIN:
        return _nothing(source, sink, tried if lineage is None else [lineage, *tried])
    if best is lineage:
        places = [(row.partition, row.offset) for row in inputs.rows]
        rows, named = _outputs_of_lineage(outputs, source)
        seen = see(inputs.rows, inputs.documents, rows, outputs.whole, places, named, inputs.fields)
    else:
        texts = there[best.source], here[best.sink]
        seen = see(
            inputs.rows, inputs.documents, outputs.rows, outputs.whole, *texts, inputs.fields
        )
    return _contract(source, sink, best, seen)


def _newest(address: Address, topic: str, count: int, formats: Formats) -> Sample:
    bounds = rawlog.fetch_bounds(address, topic)
    ranges = fates.fate_ranges(rawlog.scan(address, topic, bounds), bounds)
    rows = latest(address, bounds, ranges, READ_COMMITTED, count, KEPT_BYTES, SECONDS_MAX)
    if not rows:
        raise TopicError(f"Topic {topic} holds no committed record to look at. Fill it first.")
    whole = len(rows) < count and all(partition.start == 0 for partition in bounds.partitions)
    values = [formats.decode(row.value or b"", topic) for row in rows]
    keys = [formats.decode(row.key or b"", topic, "key").value for row in rows]
    fields = any(one.known and one.format is not Format.JSON for one in values)
    documents = [one.value for one in values] if fields else [document(row) for row in rows]
    return Sample(topic, rows, whole, documents, fields, keys)


def _lineage(inputs: Sample, outputs: Sample) -> Fit | None:
    """Return how well our sink's headers identify inputs; None if no output has one."""
    packed = _packs(outputs)
    if packed:
        own = sum(pack is None or pack.topic == inputs.topic for _, pack in packed) / len(packed)
        named = sum(pack.offsets.size for _, pack in packed if pack is not None)
        return Fit("lineage", "lineage", len(inputs.rows), named, 1.0, 1.0, 1.0, own, named)
    headers = [dict(row.headers).get(LINEAGE_HEADER) for row in outputs.rows]
    has = [value for value in headers if value is not None]
    if not has:
        return None
    places = [
        place for place in (_named(row, inputs.topic) for row in outputs.rows) if place is not None
    ]
    return Fit(
        "lineage",
        "lineage",
        len(inputs.rows),
        len(outputs.rows),
        in_inputs=1.0,
        in_outputs=len(has) / len(outputs.rows),
        unique=1.0,
        overlap=len(places) / len(has),
        shared=len(set(places)),
    )


def _packs(outputs: Sample) -> list[tuple[Row, Pack | None]]:
    """Return headers that name the inputs of many outputs; None for one too long to be kept
    whole."""
    headers = [
        (row, value) for row in outputs.rows for name, value in row.headers if name == PACKED_HEADER
    ]
    return [(row, parse_pack(value)) for row, value in headers]


def _outputs_of_lineage(
    outputs: Sample, source: str
) -> tuple[list[Row], list[tuple[int, int] | None]]:
    """Return the outputs and the input that each names. A header that names many counts as many
    outputs."""
    packed = _packs(outputs)
    if not packed:
        return list(outputs.rows), [_named(row, source) for row in outputs.rows]
    own = [(row, pack) for row, pack in packed if pack is not None and pack.topic == source]
    rows = [row for row, pack in own for _ in range(pack.offsets.size)]
    return rows, [(pack.partition, int(offset)) for _, pack in own for offset in pack.offsets]


def _named(row: Row, source: str) -> tuple[int, int] | None:
    """Return the input that an output names in its header."""
    found = parse_lineage(dict(row.headers).get(LINEAGE_HEADER))
    return (found.partition, found.offset) if found is not None and found.topic == source else None


def _contract(source: str, sink: str, best: Fit, seen: Seen) -> Draft:
    why = f"{best}: {best.certainty}"
    comments = [
        (
            f"# A first contract, from the newest {best.inputs:,} inputs and {best.outputs:,}"
            " outputs. Review it before you rely on it."
        ),
        f"# Identity: {why}.",
        f"# Outputs: {seen.outputs}.",
        f"# Order: {seen.ordered}.",
    ]
    fields = [
        "guarantee: exactly_once",
        f"source: {_topic(source)}",
        f"sink: {_topic(sink)}",
        f"identity: {best.spelled}",
        (
            f"expect: {seen.expect} # one_to_one, zero_or_one, or one_to_many with a count in Spark"
            " SQL over the input"
        ),
        *(
            []
            if seen.count is None
            else [f"count: {seen.count if seen.count.isdigit() else _text(seen.count)}"]
        ),
        *(
            []
            if seen.expect == "one_to_many"
            else [
                "# value: upper(value) # what an output's value must be, in Spark SQL over the"
                " input"
            ]
        ),
        f"order: {seen.order} # per_source_partition, per_key or none",
        "# group: my-app # a consumer group whose committed offsets must agree with the output",
        "warn: {pending: 0}",
    ]
    return Draft("\n".join([*comments, *fields]) + "\n", why, found=True)


def _nothing(source: str, sink: str, tried: Sequence[Fit]) -> Draft:
    lines = [
        f"# {source} and {sink} share nothing that shows which input an output belongs to. The best"
        " candidates:"
    ]
    lines += [f"#   identity: {fit.spelled} # {fit}" for fit in tried[:TRIED_SHOWN]]
    if not tried:
        lines.append("#   none: no field is in half of the records on both sides")
    why = (
        f"No identity was found between {source} and {sink}, so no contract was written. Let the"
        " program copy a unique id of each input to its outputs, as key, header or JSON field."
    )
    return Draft("\n".join(lines) + "\n", why, found=False)


def _topic(name: str) -> str:
    return yaml.safe_dump({"topic": name}, default_flow_style=True, width=10_000).strip()


def _text(expression: str) -> str:
    """Spell an expression as a plain or quoted YAML scalar on one line."""
    return yaml.safe_dump(expression, width=100_000).splitlines()[0]
