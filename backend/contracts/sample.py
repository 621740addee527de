"""Samples of topics: their newest committed records, for a draft and a preview of a contract."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from topicproof.backend.address import Address, Sides
from topicproof.backend.contracts.identity_candidates import Texts, candidates, document
from topicproof.backend.errors import NothingToSample
from topicproof.backend.formats.decoded import DecodedValue, Format
from topicproof.backend.formats.fields import text_at
from topicproof.backend.formats.formats import Formats, Part
from topicproof.backend.formats.frames import schema_header
from topicproof.backend.kafka.browse.search import Row, committed_chunks, latest
from topicproof.backend.kafka.client_configs import READ_COMMITTED
from topicproof.backend.kafka.log import fates, rawlog
from topicproof.validators.decoded import KEY_FIELD, VALUE_FIELD, parse_field
from topicproof.validators.json_path import parse_path
from topicproof.validators.lineage.compact import lineage_of

INPUTS, OUTPUTS = 10_000, 1_000
"""Number of newest records read from each topic. An output's input may be much older than the
newest input."""
OLDER_OUTPUTS = 200_000
"""Number of newest outputs among which a missing one is looked up."""
CHUNK = 1_000
KEPT_BYTES = 20_000
"""Maximum size of one key, value or header."""
SECONDS_MAX = 30.0
VALUES_MAX = 500_000
"""Maximum number of values in all documents of a sample together: some 100 MB as Python objects,
and four seconds. A record of some kilobytes may hold ten thousand values."""


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
        """The parts by which records may be matched, with each record's text."""
        return candidates(self.rows, self.documents, self.fields, self.keys)


def samples(
    sides: Sides,
    source: str,
    sink: str,
    formats: Formats | None = None,
    source_formats: Formats | None = None,
) -> tuple[Sample, Sample]:
    """Read a sample of each topic. `formats` decodes what is not JSON; None: without a registry.
    `source_formats`: those of the source, if they are not the sink's. Raises ClusterError,
    TopicError."""
    formats = formats or Formats()
    return (
        newest(sides.source, source, INPUTS, source_formats or formats),
        newest(sides.sink, sink, OUTPUTS, formats),
    )


def newest(address: Address, topic: str, count: int, formats: Formats) -> Sample:
    """Read the newest committed records. Raises ClusterError, TopicError for a topic without
    any."""
    bounds = rawlog.fetch_bounds(address, topic)
    ranges = fates.fate_ranges(rawlog.scan(address, topic, bounds), bounds)
    rows = latest(address, bounds, ranges, READ_COMMITTED, count, KEPT_BYTES, SECONDS_MAX)
    if not rows:
        raise NothingToSample(topic, sum(partition.start for partition in bounds.partitions))
    whole = len(rows) < count and all(partition.start == 0 for partition in bounds.partitions)
    return _sample(topic, rows, formats, whole=whole)


def older_outputs(address: Address, sample: Sample, formats: Formats) -> Iterator[Sample]:
    """Yield the committed records of a topic that its sample lacks, some at a time. The last one is
    `whole` if nothing is left of all that was ever written. Raises ClusterError, TopicError."""
    places = {(row.partition, row.offset) for row in sample.rows}
    bounds = rawlog.fetch_bounds(address, sample.topic)
    ranges = fates.fate_ranges(rawlog.scan(address, sample.topic, bounds), bounds)
    is_kept = all(partition.start == 0 for partition in bounds.partitions)
    chunks = committed_chunks(
        address,
        bounds,
        ranges,
        count=OLDER_OUTPUTS,
        bytes_max=KEPT_BYTES,
        seconds=SECONDS_MAX,
        size=CHUNK,
    )
    is_complete = is_kept
    for chunk, is_all in chunks:
        rows = [row for row in chunk if (row.partition, row.offset) not in places]
        older = _sample(sample.topic, rows, formats, whole=True)
        is_complete = is_complete and older.whole
        yield replace(older, whole=is_all and is_complete)


def _sample(topic: str, rows: Sequence[Row], formats: Formats, *, whole: bool) -> Sample:
    """Make a sample of the first of these records, of as many as the budget allows."""
    values: list[DecodedValue] = []
    keys: list[Any] = []
    budget = VALUES_MAX
    for row in rows:
        # Before it is decoded: as Python objects, JSON takes fifty times its bytes.
        budget -= _spelled_values(row.value) + _spelled_values(row.key)
        if values and budget < 0:
            break
        parts = [_decoded(row, topic, formats, part) for part in ("key", "value")]
        keys.append(parts[0].value)
        values.append(parts[1])
        for decoded in parts:
            if decoded.format is not Format.JSON:
                budget -= _count_values(decoded.value, max(0, budget))
    is_whole = whole and len(values) == len(rows)
    rows = rows[: len(values)]
    fields = any(value.known and value.format is not Format.JSON for value in values)
    documents = [value.value for value in values] if fields else [document(row) for row in rows]
    return Sample(topic, rows, is_whole, documents, fields, keys)


def _decoded(row: Row, topic: str, formats: Formats, part: Part) -> DecodedValue:
    data = row.key if part == "key" else row.value
    if data is None:
        return DecodedValue()
    return formats.decode(data, topic, part, header=schema_header(row.headers, part))


def _spelled_values(data: bytes | None) -> int:
    """Return an upper bound of the values in a JSON text: each but the first follows a mark."""
    return 1 + sum((data or b"").count(mark) for mark in (b",", b"[", b"{"))


def _count_values(value: Any, most: int) -> int:
    """Return the number of values in a decoded document, or at least `most` if it has more."""
    waiting, count = [value], 0
    while waiting and count <= most:
        node = waiting.pop()
        count += 1
        if isinstance(node, dict):
            waiting += node.values()
        elif isinstance(node, list | tuple):
            waiting += node
    return count + len(waiting)


def part_of(spelled: str) -> str:
    """Return a candidate's part of a record in the spelling of `Match`: `{json: $.id}` becomes
    `json:$.id`."""
    part = yaml.safe_load(spelled)
    return ":".join(*part.items()) if isinstance(part, dict) else str(part)


def texts_at(sample: Sample, part: str) -> list[bytes | None]:
    """Return the text of each record at a part, in the spelling of `Match`: `key`, `header:NAME`,
    `json:$.path`, `field:path`."""
    how, _, name_or_path = part.partition(":")
    if how == "header":
        return [dict(row.headers).get(name_or_path) for row in sample.rows]
    if how in ("json", VALUE_FIELD, KEY_FIELD):
        path = parse_path(name_or_path) if how == "json" else parse_field(name_or_path)
        documents = sample.keys if how == KEY_FIELD else sample.documents
        texts = (text_at(content, path) for content in documents)
        return [None if text is None else text.encode(errors="replace") for text in texts]
    return [row.key if how == "key" else row.value for row in sample.rows]


def outputs_of_lineage(
    outputs: Sample, source: str
) -> tuple[list[Row], list[tuple[int, int] | None]]:
    """Return outputs, and the partition and offset of the input that each names in its header."""
    return list(outputs.rows), [named_input(row, source) for row in outputs.rows]


def named_input(row: Row, source: str) -> tuple[int, int] | None:
    """Return the partition and offset of the input that an output names in its header."""
    lineage = lineage_of(row.headers)
    return (
        (lineage.partition, lineage.offset)
        if lineage is not None and lineage.topic == source
        else None
    )
