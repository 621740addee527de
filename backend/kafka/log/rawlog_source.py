"""The raw log as a batch data source for Spark, for topics too large for one process.

    spark.dataSource.register(KafkaRawLog)
    batches = spark.read.format("kafka-raw-log").options(**options).load()

Its rows are those of `rawlog.scan`, unsorted, with the columns `COLUMNS`. A task reads a range of
one partition's offsets. A batch belongs to the range that it begins in, so it arrives whole and
once, however the topic is split.

Options:

- the address and any other client property, in librdkafka's names with the prefix `kafka.`
- `topic`
- `bounds`: offsets as JSON, `{"0": [start, end]}` with the end exclusive. Default: all that the
  topic holds when Spark plans the query, so two queries over one frame may differ on a growing
  topic.
- `offsetsPerTask` (1000000): offsets per task. Its rows stay in memory until it ends.
- `checkCrc` (false): verify every batch's checksum (`batches.require_crc`)
- `readable` (false): refuse batches that would exhaust a reader's memory (inflation.py)

Spark's Python workers import this module by name: on a cluster this project must be on their
PYTHONPATH.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from topicproof.backend.address import Address
from topicproof.backend.errors import UsageError
from topicproof.backend.kafka.client_configs import address_of_spark_options
from topicproof.backend.kafka.log.rawlog import connect, fetch_bounds
from topicproof.validators.facts.log_facts import BATCH_COLUMNS
from topicproof.validators.finding import Bounds, PartitionBounds

FORMAT = "kafka-raw-log"
OFFSETS_PER_TASK = 1_000_000
COLUMNS = f"{BATCH_COLUMNS}, inflated long"


@dataclass(frozen=True)
class SourceOptions:
    """The source's checked options. Raises UsageError naming the wrong one."""

    address: Address
    topic: str
    bounds: Bounds | None
    offsets_per_task: int
    check_crc: bool
    readable: bool

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        values = {name.lower(): value for name, value in options.items()}
        names = {name.lower() for name in _OPTIONS}
        unknown = [name for name in values if name not in names and not name.startswith("kafka.")]
        if unknown:
            raise UsageError(
                f"{FORMAT}: unknown option {unknown[0]}. Known: {', '.join(_OPTIONS)}, kafka.*"
            )
        if not values.get("topic"):
            raise UsageError(f"{FORMAT}: the option topic is missing.")
        address = address_of_spark_options(values)
        per_task = values.get("offsetspertask", str(OFFSETS_PER_TASK))
        if not per_task.isdecimal() or int(per_task) < 1:
            raise UsageError(
                f"{FORMAT}: offsetsPerTask is {per_task}; it must be a number of at least 1."
            )
        flags = {name: values.get(name.lower(), "false").lower() for name in _FLAGS}
        for name, flag in flags.items():
            if flag not in ("true", "false"):
                raise UsageError(f"{FORMAT}: {name} is {flag}; it must be true or false.")
        bounds = _parse_bounds(values["topic"], values["bounds"]) if "bounds" in values else None
        check_crc, readable = (flags[name] == "true" for name in _FLAGS)
        return cls(address, values["topic"], bounds, int(per_task), check_crc, readable)


_FLAGS = ("checkCrc", "readable")
_OPTIONS = ("topic", "bounds", "offsetsPerTask", *_FLAGS)


@dataclass(frozen=True)
class Slice(InputPartition):
    """The input of one task: the batches of a partition that begin at the offsets [first, end)."""

    partition: PartitionBounds
    first: int
    end: int


class KafkaRawLog(DataSource):
    """Registered with `spark.dataSource.register`; the module's docstring has the options and an
    example."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: StructType) -> RawLogReader:  # noqa: ARG002
        return RawLogReader(SourceOptions.parse(self.options))


class RawLogReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self.source = options

    def partitions(self) -> list[InputPartition]:
        source = self.source
        bounds = source.bounds or fetch_bounds(source.address, source.topic)
        return [
            Slice(p, first, min(first + source.offsets_per_task, p.hw))
            for p in bounds.partitions
            for first in range(p.start, p.hw, source.offsets_per_task)
        ]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        # An empty topic has no slice, but Spark still asks for one partition.
        if not isinstance(partition, Slice):
            return
        source, whole = self.source, partition.partition
        part = PartitionBounds(
            whole.partition, partition.first, min(whole.lso, partition.end), partition.end
        )
        with connect(source.address) as kafka:
            rows = kafka.scan(
                source.topic,
                Bounds(source.topic, (part,)),
                check_crc=source.check_crc,
                part_of=Bounds(source.topic, (whole,)),
                readable=source.readable,
            )
        yield from rows.to_batches()


def _parse_bounds(topic: str, text: str) -> Bounds:
    try:
        spans = {
            int(partition): (int(start), int(end))
            for partition, (start, end) in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f'{FORMAT}: bounds is {text}; it must be JSON such as {{"0": [0, 1000]}}.'
        ) from error
    return Bounds(
        topic,
        tuple(PartitionBounds(p, start, end, end) for p, (start, end) in sorted(spans.items())),
    )
