"""Sinks broken on purpose, importable by Spark's workers: what the validators must catch."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.types import StructType

from topicproof.backend.faults.injecting import InjectingSink
from topicproof.backend.sink import exactly_once as sink
from topicproof.backend.sink.exactly_once import (
    KafkaTransactionalWriter,
    PartitionWriter,
    Receipt,
)
from topicproof.backend.sink.options import SinkOptions


class ForgetfulPartitionWriter(PartitionWriter):
    """Takes every row it is handed for new, as a sink does that trusts Spark to remember."""

    def _committed(self) -> tuple[int, int]:
        super()._committed()
        return 0, 0


class ForgetfulWriter(KafkaTransactionalWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Receipt:
        sink.PartitionWriter = ForgetfulPartitionWriter  # type: ignore[misc]
        try:
            return super().write(iterator)
        finally:
            sink.PartitionWriter = PartitionWriter  # type: ignore[misc]


class ForgetfulSink(InjectingSink):
    """Our sink with the skip of already committed offsets switched off."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> ForgetfulWriter:  # noqa: ARG002
        return ForgetfulWriter(SinkOptions.parse(self.given()), self.hooks())
