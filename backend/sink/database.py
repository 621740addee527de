"""A database table as the sink: `df.writeStream.format("database-transactional")`, through
SQLAlchemy.

The argument is that of backend/sink/exactly_once.py, with a database in Kafka's place. Each
transaction holds the outputs of some inputs *and* the source offset that follows them. The offset
is in the table `topicproof_offsets` of the same database, and is compared and set. If it is no
longer the offset that this task read, another writer has continued, and this task's transaction is
rolled back. So each input's outputs are there once, even after a killed worker, a repeated task or
batch, or a lost checkpoint. Continuity, faults and the journal work as in that sink. The generation
is stored beside the offset and is compared too, so a worker of a stopped or restarted query commits
nothing more.

`exactly_once` appends. `at_least_once` upserts by lineage, and commits the offset afterwards.
Inputs may be processed again, but with a deterministic transformation their rows are there once.

Options: those of backend/sink/exactly_once.py (the brokers serve the journal and questions about
holes in the source), and

- `url` (required): in SQLAlchemy's form, such as `sqlite:////var/out.db` or
  `postgresql+psycopg://user@host/name`.
- `topic` (required): the table.
- `guarantee` (exactly_once): or at_least_once.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from topicproof.backend.errors import UsageError
from topicproof.backend.sink.delivery.into_database import DatabaseDelivery, DatabasePosition
from topicproof.backend.sink.exactly_once import KafkaTransactionalWriter
from topicproof.backend.sink.hooks import MakeHooks, NoHooks
from topicproof.backend.sink.options import SinkOptions
from topicproof.backend.sink.outputs import require_columns
from topicproof.backend.sink.table import DATABASE_FORMAT, connect_database
from topicproof.backend.sink.task import SinkTask
from topicproof.backend.sink.writer import PartitionWriter
from topicproof.validators.finding import Guarantee


class DatabaseSink(DataSource):
    """Registered with `spark.dataSource.register`; the module's docstring lists the options."""

    @classmethod
    def name(cls) -> str:
        return DATABASE_FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> DatabaseWriter:  # noqa: ARG002
        require_columns(schema)
        options = {name.lower(): value for name, value in self.sink_options().items()}
        url = options.pop("url", None)
        if url is None:
            raise UsageError(f"{DATABASE_FORMAT}: the option url is required.")
        connect_database(url)
        sink = SinkOptions.parse(options)
        if sink.topic is None:
            raise UsageError(
                f"{DATABASE_FORMAT}: the option topic is required: it names the table."
            )
        if sink.guarantee is Guarantee.AT_MOST_ONCE:
            raise UsageError(f"{DATABASE_FORMAT}: guarantee is exactly_once or at_least_once.")
        return DatabaseWriter(sink, url, self.hooks())

    def sink_options(self) -> Mapping[str, str]:
        """Return the sink's own options."""
        return self.options

    def hooks(self) -> MakeHooks:
        return NoHooks


class DatabaseWriter(KafkaTransactionalWriter):
    def __init__(self, sink: SinkOptions, url: str, hooks: MakeHooks) -> None:
        super().__init__(sink, hooks)
        self.url = url

    def _writer(self, source: tuple[str, int]) -> PartitionWriter:
        task = SinkTask(self.sink, self.hooks, *source)
        engine = connect_database(self.url)
        return PartitionWriter(task, DatabasePosition(task, engine), DatabaseDelivery(task, engine))
