"""Sinks broken on purpose, importable by Spark's workers: what the validators must catch."""

from __future__ import annotations

from pyspark.sql.types import StructType

from topicproof.backend.faults.injecting import InjectingSink
from topicproof.backend.sink.exactly_once import KafkaTransactionalWriter
from topicproof.backend.sink.group import GroupPosition
from topicproof.backend.sink.lineage import offset_in
from topicproof.backend.sink.options import SinkOptions
from topicproof.backend.sink.position import Position
from topicproof.backend.sink.task import SinkTask
from topicproof.backend.sink.writer import PartitionWriter, delivery_of


class ForgetfulPosition(GroupPosition):
    """Takes every row for new, as a sink does that trusts Spark to remember."""

    def read(self) -> Position:
        super().read()
        return Position(0, 0)


class ForgetfulWriter(KafkaTransactionalWriter):
    def _writer(self, source: tuple[str, int]) -> PartitionWriter:
        task = SinkTask(self.sink, self.hooks, *source)
        position = ForgetfulPosition(task)
        return PartitionWriter(task, position, delivery_of(task, position, offset_in(source)))


class ForgetfulSink(InjectingSink):
    """Our sink with the skip of already committed offsets switched off."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> ForgetfulWriter:  # noqa: ARG002
        return ForgetfulWriter(SinkOptions.parse(self.given()), self.hooks())
