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
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.pandas.functions import arrow_udf

from topicproof.backend.formats.fields import KnownSchemas, field_reader
from topicproof.backend.formats.formats import Formats, Part, SideFormats
from topicproof.backend.formats.frames import (
    GUID_HEAD_BYTES,
    GUID_MAGIC,
    HEAD_BYTES,
    MAGIC,
    SCHEMA_HEADER_BYTES_MAX,
    SCHEMA_HEADERS,
    schema_id_of,
)
from topicproof.backend.formats.limits import SCHEMAS_BYTES_MAX, SCHEMAS_MAX
from topicproof.backend.formats.registered import RegisteredSchema, RegistryFailure, SchemaId
from topicproof.backend.judging.capture_store import Capture
from topicproof.backend.services.spark_session import failed
from topicproof.backend.storage import FrameFolder
from topicproof.validators.decoded import DECODED, KEY_FIELD, decoded_type, parse_field, path_of
from topicproof.validators.finding import Bounds
from topicproof.validators.folded.fold import Folded
from topicproof.validators.lineage.header_columns import last_header
from topicproof.validators.merged_topics import split
from topicproof.validators.readings import Readings, in_parallel

if TYPE_CHECKING:
    from topicproof.backend.formats.registry import Registry

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
    counts: Counter[SchemaId] = Counter()
    for found_ids in in_parallel(*lookups) if lookups else ():
        counts.update(found_ids)
    ids = sorted(counts, key=lambda schema_id: (-counts[schema_id], str(schema_id)))
    schemas, failures = _ask(ids[:SCHEMAS_MAX], formats.registry)
    topics = {name for side, _ in sides for _, name in side.topics}
    avro = {topic: schema.text for topic, schema in formats.avro.items() if topic in topics}
    has_registry = formats.registry is not None
    return KnownSchemas(schemas, failures, avro, has_registry=has_registry, has_headers=True)


def _ids(reading: DataFrame, part: Part) -> dict[SchemaId, int]:
    """Return how many records name each schema, in a header or in front of their payload."""
    header, payload = _schema_header(part), F.col(part)
    head = F.when(header.isNull(), _id_head(payload)).otherwise(
        F.coalesce(_guid_head(header), _id_head(header))
    )
    named = reading.where(payload.isNotNull()).select(head.alias("head"))
    counted = named.where(F.col("head").isNotNull()).groupBy("head").count()
    rows = counted.orderBy(F.desc("count")).limit(SCHEMAS_MAX).collect()
    counts = {schema_id_of(bytes(row["head"])): row["count"] for row in rows}
    return {schema_id: count for schema_id, count in counts.items() if schema_id is not None}


def _schema_header(part: Part) -> Column:
    """Return the header that names a record's schema, cut where it is too long to be one."""
    return F.substring(last_header(SCHEMA_HEADERS[part]), 1, SCHEMA_HEADER_BYTES_MAX + 1)


def _id_head(data: Column) -> Column:
    """Return the magic byte and the id that bytes begin with; null if they do not."""
    return _head(data, MAGIC, HEAD_BYTES)


def _guid_head(data: Column) -> Column:
    return _head(data, GUID_MAGIC, GUID_HEAD_BYTES)


def _head(data: Column, magic: bytes, size: int) -> Column:
    is_head = (F.octet_length(data) >= size) & (F.substring(data, 1, 1) == F.lit(magic))
    return F.when(is_head, F.substring(data, 1, size))


def _ask(
    ids: Sequence[SchemaId], registry: Registry | None
) -> tuple[dict[SchemaId, RegisteredSchema], dict[SchemaId, str]]:
    """Return the schemas, and why others are not known; neither without a registry."""
    schemas: dict[SchemaId, RegisteredSchema] = {}
    failures: dict[SchemaId, str] = {}
    if registry is None:
        return schemas, failures
    size = 0
    for schema_id in ids:
        if size > SCHEMAS_BYTES_MAX:
            failures[schema_id] = (
                f"Schema {schema_id} was not asked for: the schemas of the records take more than"
                f" {SCHEMAS_BYTES_MAX:,} bytes."
            )
            continue
        try:
            schemas[schema_id] = registry.schema(schema_id)
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
    headers = [
        _schema_header(part) if schemas.has_headers else F.lit(None).cast("binary")
        for part in parts
    ]
    return reading.withColumn(DECODED, udf("partition", *parts, *headers))


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

    def texts(partitions: pa.Array, *payloads_and_headers: pa.Array) -> pa.Array:
        payloads, headers = payloads_and_headers[: len(parts)], payloads_and_headers[len(parts) :]
        rows = len(partitions)
        by_field: dict[str, list[str | None]] = {}
        why: list[str | None] = [None] * rows
        names = _topics(partitions, topics)
        for (part, part_fields), data, header in zip(parts.items(), payloads, headers, strict=True):
            reader = field_reader(schemas, part, paths[part])
            records = zip(data.to_pylist(), names, header.to_pylist(), strict=True)
            read = [reader.read(*record) for record in records]
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
