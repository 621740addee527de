"""Samples of topics: their newest committed records, for a draft and a preview of a contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from topicproof.backend.address import Address, Sides
from topicproof.backend.errors import TopicError
from topicproof.backend.formats.decoded import Format
from topicproof.backend.formats.formats import Formats
from topicproof.backend.judging.candidates import Texts, candidates, document
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
        raise TopicError(f"Topic {topic} holds no committed record to look at. Fill it first.")
    whole = len(rows) < count and all(partition.start == 0 for partition in bounds.partitions)
    values = [formats.decode(row.value or b"", topic) for row in rows]
    keys = [formats.decode(row.key or b"", topic, "key").value for row in rows]
    fields = any(one.known and one.format is not Format.JSON for one in values)
    documents = [one.value for one in values] if fields else [document(row) for row in rows]
    return Sample(topic, rows, whole, documents, fields, keys)


def packs_of(outputs: Sample) -> list[tuple[Row, Pack | None]]:
    """Return headers that name the inputs of many outputs; None for one too long to be kept
    whole."""
    headers = [
        (row, value) for row in outputs.rows for name, value in row.headers if name == PACKED_HEADER
    ]
    return [(row, parse_pack(value)) for row, value in headers]


def outputs_of_lineage(
    outputs: Sample, source: str
) -> tuple[list[Row], list[tuple[int, int] | None]]:
    """Return outputs, and the partition and offset of the input that each names in its header. A
    header that names many counts as many outputs."""
    packed = packs_of(outputs)
    if not packed:
        return list(outputs.rows), [named_input(row, source) for row in outputs.rows]
    own = [(row, pack) for row, pack in packed if pack is not None and pack.topic == source]
    rows = [row for row, pack in own for _ in range(pack.offsets.size)]
    return rows, [(pack.partition, int(offset)) for _, pack in own for offset in pack.offsets]


def named_input(row: Row, source: str) -> tuple[int, int] | None:
    """Return the partition and offset of the input that an output names in its header."""
    found = parse_lineage(dict(row.headers).get(LINEAGE_HEADER))
    return (found.partition, found.offset) if found is not None and found.topic == source else None
