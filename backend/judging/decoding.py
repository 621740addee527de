"""Decodes the fields that a contract names, on Spark's workers.

This process asks the registry for each schema that the records name, once, and gives Spark the
schemas alone: no address, user or password reaches Spark or its event log. The evidence keeps the
schemas, so `topicproof verify` decodes the same records again without a registry.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from topicproof.backend.formats.fields import KnownSchemas, field_reader
from topicproof.backend.formats.formats import HEAD_BYTES, Formats, Part
from topicproof.backend.formats.limits import SCHEMAS_BYTES_MAX, SCHEMAS_MAX
from topicproof.backend.formats.registered import RegisteredSchema, RegistryFailure
from topicproof.backend.judging.capture_store import Capture, Readings
from topicproof.backend.storage import keep_in
from topicproof.validators.decoded import DECODED, KEY_FIELD, decoded_type, parse_field, path_of
from topicproof.validators.finding import Bounds
from topicproof.validators.folded.fold import Folded
from topicproof.validators.in_parallel import in_parallel
from topicproof.validators.merged_topics import split

FOLDER = "decoded"
"""In the evidence, while it is judged: the readings with their fields."""


@dataclass(frozen=True)
class _Wanted:
    """The fields of one side, and the topics that its partitions belong to."""

    fields: tuple[str, ...]
    bounds: Bounds

    @property
    def parts(self) -> dict[Part, list[str]]:
        """The fields of the key and of the value, if any."""
        found: dict[Part, list[str]] = {}
        for one in self.fields:
            found.setdefault("key" if one.startswith(f"{KEY_FIELD}:") else "value", []).append(one)
        return found

    @property
    def topics(self) -> tuple[tuple[int, str], ...]:
        """The first partition of each topic, and its name."""
        return tuple((first, own.topic) for own, first in split(self.bounds))


def fetch_schemas(
    capture: Capture, formats: Formats, source_formats: Formats | None = None
) -> KnownSchemas | None:
    """Ask for the schemas of all records whose fields are named. None if no fields are named.
    Failures are part of the answer. `source_formats`: those of the source, if they are not the
    sink's; an id of one registry says nothing about the other's. Raises PySparkException."""
    source, sink = _sides(capture)
    if not source.fields and not sink.fields:
        return None
    inputs = (capture.kept.inputs, capture.aborted, capture.pending)
    outputs = (capture.kept.uncommitted,)
    if source_formats is None:
        return _schemas([(source, inputs), (sink, outputs)], formats)
    theirs = _schemas([(source, inputs)], source_formats)
    return replace(_schemas([(sink, outputs)], formats), source=theirs)


def _schemas(
    sides: Sequence[tuple[_Wanted, Sequence[DataFrame | None]]], formats: Formats
) -> KnownSchemas:
    asked = [
        partial(_ids, frame, part)
        for side, frames in sides
        for part in side.parts
        for frame in frames
        if frame is not None
    ]
    counts: Counter[int] = Counter()
    for found_ids in in_parallel(*asked) if asked else ():
        counts.update(found_ids)
    ids = sorted(counts, key=lambda one: (-counts[one], one))
    found, failed = _ask(ids[:SCHEMAS_MAX], formats)
    topics = {name for side, _ in sides for _, name in side.topics}
    avro = {topic: schema.text for topic, schema in formats.avro.items() if topic in topics}
    return KnownSchemas(found, failed, avro)


def _ids(reading: DataFrame, part: Part) -> dict[int, int]:
    """Return how many records begin with each schema id."""
    framed = (F.octet_length(part) >= HEAD_BYTES) & (F.substring(part, 1, 1) == F.lit(b"\0"))
    named = reading.where(framed).groupBy(F.substring(part, 2, 4).alias("id")).count()
    rows = named.orderBy(F.desc("count")).limit(SCHEMAS_MAX).collect()
    counts = {int.from_bytes(row["id"], "big"): row["count"] for row in rows}
    counts.pop(0, None)
    return counts


def _ask(
    ids: Sequence[int], formats: Formats
) -> tuple[dict[int, RegisteredSchema], dict[int, str]]:
    """Return the schemas, and why others are not known."""
    found: dict[int, RegisteredSchema] = {}
    failed: dict[int, str] = {}
    size = 0
    for one in ids:
        if size > SCHEMAS_BYTES_MAX:
            failed[one] = (
                f"Schema {one} was not asked for: the schemas of the records take more than"
                f" {SCHEMAS_BYTES_MAX:,} bytes."
            )
            continue
        if formats.registry is None:
            failed[one] = (
                f"They begin like records with schema {one} of a registry, and no"
                " schema.registry.url is given."
            )
            continue
        try:
            found[one] = formats.registry.schema(one)
            size += found[one].size
        except RegistryFailure as failure:
            failed[one] = str(failure)
    return found, failed


def decode(capture: Capture, folder: Path) -> Capture:
    """Return the capture with the named fields beside its records; unchanged if there are none. The
    readings are kept in the folder. Lazy but for those. Raises PySparkException."""
    source, sink = _sides(capture)
    if isinstance(capture.readings, Folded) or not (source.fields or sink.fields):
        return capture
    schemas = capture.schemas or KnownSchemas()

    def kept(frame: DataFrame | None, side: _Wanted, name: str) -> DataFrame | None:
        if frame is None or not side.fields or DECODED in frame.columns:
            return frame
        own = schemas if side is sink else schemas.source or schemas
        return keep_in(with_fields(frame, side, own), folder / FOLDER / name, capture.offsets)

    readings = capture.readings
    inputs, uncommitted, aborted, pending = in_parallel(
        lambda: kept(readings.inputs, source, "inputs"),
        lambda: kept(readings.uncommitted, sink, "uncommitted"),
        lambda: kept(capture.aborted, source, "aborted"),
        lambda: kept(capture.pending, source, "pending"),
    )
    return replace(
        capture,
        readings=Readings(readings.committed, uncommitted, inputs),
        aborted=aborted,
        pending=pending,
    )


def decoded_sink(capture: Capture, reading: DataFrame) -> DataFrame:
    """Return a reading of the sink with the named fields; unchanged if there are none."""
    _, sink = _sides(capture)
    return with_fields(reading, sink, capture.schemas or KnownSchemas()) if sink.fields else reading


def _sides(capture: Capture) -> tuple[_Wanted, _Wanted]:
    agreed = capture.question.agreed
    return (
        _Wanted(agreed.source_fields, capture.question.source),
        _Wanted(agreed.sink_fields, capture.sink),
    )


def with_fields(reading: DataFrame, side: _Wanted, schemas: KnownSchemas) -> DataFrame:
    """Add the column `decoded` (validators/decoded.py). Lazy."""
    parts = side.parts
    decoder = _decoder(schemas.portable().to_json(), parts, side.fields, side.topics)
    # Its type hints determine the kind of UDF.
    udf = arrow_udf(decoder, decoded_type(side.fields))  # type: ignore[call-overload]
    return reading.withColumn(DECODED, udf("partition", *parts))


def _decoder(
    schemas: str,
    parts: Mapping[Part, Sequence[str]],
    fields: Sequence[str],
    topics: Sequence[tuple[int, str]],
) -> Callable[[Iterator[tuple[pa.Array, ...]]], Iterator[pa.Array]]:
    paths = {part: tuple(parse_field(path_of(one)) for one in own) for part, own in parts.items()}
    columns = decoded_type(fields).names

    def texts(partitions: pa.Array, *held: pa.Array) -> pa.Array:
        rows = len(partitions)
        found: dict[str, list[str | None]] = {}
        why: list[str | None] = [None] * rows
        names = _topics(partitions, topics)
        for (part, own), data in zip(parts.items(), held, strict=True):
            reader = field_reader(schemas, part, paths[part])
            read = [
                reader.read(one, name) for one, name in zip(data.to_pylist(), names, strict=True)
            ]
            for row, (reason, _) in enumerate(read):
                if reason is not None:
                    why[row] = f"The bytes of its {part} cannot be decoded. {reason}"
            for place, name in enumerate(own):
                found[name] = [one[place] for _, one in read]
        values = [pa.array(found.get(name, why), pa.string()) for name in columns]
        return pa.StructArray.from_arrays(values, columns)

    def decoded(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        for batch in batches:
            yield texts(*batch)

    return decoded


def _topics(partitions: pa.Array, topics: Sequence[tuple[int, str]]) -> list[str]:
    """Return the topic of each record."""
    if len(topics) == 1:
        return [topics[0][1]] * len(partitions)
    firsts = [first for first, _ in topics]
    return [topics[bisect_right(firsts, one) - 1][1] for one in partitions.to_pylist()]
