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
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, functions as F
from pyspark.sql.pandas.functions import arrow_udf

from topicproof.backend.formats.fields import KnownSchemas, field_reader
from topicproof.backend.formats.formats import HEAD_BYTES, Formats, Part, SideFormats
from topicproof.backend.formats.limits import SCHEMAS_BYTES_MAX, SCHEMAS_MAX
from topicproof.backend.formats.registered import RegisteredSchema, RegistryFailure
from topicproof.backend.judging.capture_store import Capture
from topicproof.backend.services.spark_session import failed
from topicproof.backend.storage import FrameFolder
from topicproof.validators.decoded import DECODED, KEY_FIELD, decoded_type, parse_field, path_of
from topicproof.validators.finding import Bounds
from topicproof.validators.folded.fold import Folded
from topicproof.validators.merged_topics import split
from topicproof.validators.readings import Readings, in_parallel

FOLDER = "decoded"
"""In the evidence, while it is judged: the readings with their fields."""


@dataclass(frozen=True)
class _NamedFields:
    """The fields of one side, and the topics that its partitions belong to."""

    fields: tuple[str, ...]
    bounds: Bounds

    @property
    def parts(self) -> dict[Part, list[str]]:
        """The fields of the key and of the value, if any."""
        by_part: dict[Part, list[str]] = {}
        for field in self.fields:
            by_part.setdefault("key" if field.startswith(f"{KEY_FIELD}:") else "value", []).append(
                field
            )
        return by_part

    @property
    def topics(self) -> tuple[tuple[int, str], ...]:
        """The first partition of each topic, and its name."""
        return tuple((first, topic_bounds.topic) for topic_bounds, first in split(self.bounds))


def with_schemas(capture: Capture, formats: SideFormats) -> Capture:
    """Return the capture with the schemas of all records whose fields are named; unchanged if no
    fields are named. Failures are part of the answer. Raises SparkError."""
    source, sink = _sides(capture)
    if not source.fields and not sink.fields:
        return capture
    inputs = (capture.inputs, capture.aborted, capture.pending)
    outputs = (capture.uncommitted,)
    try:
        if formats.source is None:
            schemas = _schemas([(source, inputs), (sink, outputs)], formats.sink)
        else:
            # An id of one registry says nothing about the other's.
            theirs = _schemas([(source, inputs)], formats.source)
            schemas = replace(_schemas([(sink, outputs)], formats.sink), source=theirs)
    except PySparkException as error:
        raise failed(f"Spark could not read {capture.question.sink}", error) from error
    return replace(capture, schemas=schemas)


def _schemas(
    sides: Sequence[tuple[_NamedFields, Sequence[DataFrame | None]]], formats: Formats
) -> KnownSchemas:
    lookups = [
        partial(_ids, frame, part)
        for side, frames in sides
        for part in side.parts
        for frame in frames
        if frame is not None
    ]
    counts: Counter[int] = Counter()
    for found_ids in in_parallel(*lookups) if lookups else ():
        counts.update(found_ids)
    ids = sorted(counts, key=lambda schema_id: (-counts[schema_id], schema_id))
    schemas, failures = _ask(ids[:SCHEMAS_MAX], formats)
    topics = {name for side, _ in sides for _, name in side.topics}
    avro = {topic: schema.text for topic, schema in formats.avro.items() if topic in topics}
    return KnownSchemas(schemas, failures, avro)


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
    schemas: dict[int, RegisteredSchema] = {}
    failures: dict[int, str] = {}
    size = 0
    for schema_id in ids:
        if size > SCHEMAS_BYTES_MAX:
            failures[schema_id] = (
                f"Schema {schema_id} was not asked for: the schemas of the records take more than"
                f" {SCHEMAS_BYTES_MAX:,} bytes."
            )
            continue
        if formats.registry is None:
            failures[schema_id] = (
                f"They begin like records with schema {schema_id} of a registry, and no"
                " schema.registry.url is given."
            )
            continue
        try:
            schemas[schema_id] = formats.registry.schema(schema_id)
            size += schemas[schema_id].size
        except RegistryFailure as failure:
            failures[schema_id] = str(failure)
    return schemas, failures


def decode(capture: Capture, folder: Path) -> Capture:
    """Return the capture with the named fields beside its records; unchanged if there are none. The
    readings are kept in the folder. Lazy but for those. Raises PySparkException."""
    source, sink = _sides(capture)
    if isinstance(capture.readings, Folded) or not (source.fields or sink.fields):
        return capture
    schemas = capture.schemas or KnownSchemas()
    decoded_frames = FrameFolder(folder / FOLDER, capture.offsets)

    def keep_decoded(frame: DataFrame | None, side: _NamedFields, name: str) -> DataFrame | None:
        if frame is None or not side.fields or DECODED in frame.columns:
            return frame
        side_schemas = schemas if side is sink else schemas.source or schemas
        return decoded_frames.keep(with_fields(frame, side, side_schemas), name)

    readings = capture.readings
    inputs, uncommitted, aborted, pending = in_parallel(
        lambda: keep_decoded(readings.inputs, source, "inputs"),
        lambda: keep_decoded(readings.uncommitted, sink, "uncommitted"),
        lambda: keep_decoded(capture.aborted, source, "aborted"),
        lambda: keep_decoded(capture.pending, source, "pending"),
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


def _sides(capture: Capture) -> tuple[_NamedFields, _NamedFields]:
    agreed = capture.question.agreed
    return (
        _NamedFields(agreed.source_fields, capture.question.source),
        _NamedFields(agreed.sink_fields, capture.sink),
    )


def with_fields(reading: DataFrame, side: _NamedFields, schemas: KnownSchemas) -> DataFrame:
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
    paths = {
        part: tuple(parse_field(path_of(field)) for field in part_fields)
        for part, part_fields in parts.items()
    }
    columns = decoded_type(fields).names

    def texts(partitions: pa.Array, *payloads: pa.Array) -> pa.Array:
        rows = len(partitions)
        by_field: dict[str, list[str | None]] = {}
        why: list[str | None] = [None] * rows
        names = _topics(partitions, topics)
        for (part, part_fields), data in zip(parts.items(), payloads, strict=True):
            reader = field_reader(schemas, part, paths[part])
            read = [
                reader.read(payload, name)
                for payload, name in zip(data.to_pylist(), names, strict=True)
            ]
            for row, (reason, _) in enumerate(read):
                if reason is not None:
                    why[row] = f"The bytes of its {part} cannot be decoded. {reason}"
            for place, name in enumerate(part_fields):
                by_field[name] = [row_texts[place] for _, row_texts in read]
        values = [pa.array(by_field.get(name, why), pa.string()) for name in columns]
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
    return [topics[bisect_right(firsts, partition) - 1][1] for partition in partitions.to_pylist()]
