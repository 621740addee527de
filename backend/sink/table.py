"""A database table as the sink: `df.writeStream.format("database-transactional")`, through
SQLAlchemy.

The argument of backend/sink/exactly_once.py, with a database in Kafka's place: each transaction
holds the outputs of some inputs *and* the source offset that follows them. The offset lies in the
table `topicproof_offsets` of the same database, and is compared and set: where it is no longer what
this task read, somebody else has gone on, and nothing of this task's transaction stays. So a killed
worker, a repeated task or batch and a lost checkpoint leave each input's outputs there once. Rows
are checked for continuity as there, and faults and the journal are that sink's too. The generation
lies beside the offset and is compared with it, so that a worker of a query that was stopped or
started anew meanwhile commits nothing more.

`exactly_once` appends. `at_least_once` writes by lineage, a row that is there already anew, and
commits the offset afterwards: inputs are processed again, and their rows still are there once (an
idempotent upsert), as long as the transformation is deterministic.

Options: those of backend/sink/exactly_once.py (the brokers are asked about holes in the source, and
for the journal), and

- `url` (required): as SQLAlchemy writes it, such as `sqlite:////var/out.db` or
  `postgresql+psycopg://user@host/name`.
- `topic` (required): the table.
- `guarantee` (exactly_once): or at_least_once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    NullPool,
    String,
    Table,
    UniqueConstraint,
    create_engine,
    delete,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError

from topicproof.backend.errors import Fenced, NotDelivered, OffsetMissing, SinkError, UsageError
from topicproof.backend.sink.exactly_once import KafkaTransactionalWriter, PartitionWriter, Receipt
from topicproof.backend.sink.hooks import MakeHooks, NoHooks, Step
from topicproof.backend.sink.options import SinkOptions
from topicproof.backend.sink.outputs import require_columns
from topicproof.validators.finding import Guarantee

DATABASE_FORMAT = "database-transactional"
LOCK_TIMEOUT_S = 60
"""How long a writer waits for SQLite, which lets one write at a time."""
LINEAGE = ("source_topic", "source_partition", "source_offset", "output_index")

OFFSETS = Table(
    "topicproof_offsets",
    MetaData(),
    Column("group_id", String, primary_key=True),
    Column("topic", String, primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("next_offset", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("generation", BigInteger, nullable=False),
)


def rows_of(name: str) -> Table:
    """The table of outputs: one row each, in the order in which they were written."""
    return Table(
        name,
        MetaData(),
        Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
        Column("source_topic", String, nullable=False),
        Column("source_partition", Integer, nullable=False),
        Column("source_offset", BigInteger, nullable=False),
        Column("output_index", Integer, nullable=False),
        Column("key", LargeBinary),
        Column("value", LargeBinary),
    )


def connect_database(url: str) -> Engine:
    """Raises UsageError for what is no address of a database."""
    try:
        waits = {"timeout": LOCK_TIMEOUT_S} if url.startswith("sqlite") else {}
        return create_engine(url, poolclass=NullPool, connect_args=waits)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise UsageError(
            f"{DATABASE_FORMAT}: the option url is no address of a database that SQLAlchemy knows,"
            " such as sqlite:////var/out.db or postgresql+psycopg://user@host/name."
        ) from error


def make_tables(
    url: str,
    table: str,
    group: str,
    floor: Mapping[tuple[str, int], int],
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
) -> None:
    """Make the table of outputs, and say where the group begins: offset by source topic and
    partition.

    Said once, before the first start. Raises SinkError, and changes nothing, when the group has
    begun already, or when the database does not answer.
    """
    outputs = rows_of(table)
    if guarantee is not Guarantee.EXACTLY_ONCE:
        outputs.append_constraint(UniqueConstraint(*LINEAGE))
    engine = connect_database(url)
    try:
        OFFSETS.create(engine, checkfirst=True)
        outputs.create(engine, checkfirst=True)
    except DBAPIError as error:
        raise SinkError(f"{shown(engine)}: {said(error)}.") from error
    begin(url, group, floor)


def begin(url: str, group: str, floor: Mapping[tuple[str, int], int]) -> None:
    """Say where the group begins in these source partitions. Raises SinkError as `make_tables`
    does."""
    engine = connect_database(url)
    begun = [
        dict(zip(OFFSETS.columns.keys(), (group, topic, partition, offset, 0, 0), strict=True))
        for (topic, partition), offset in floor.items()
    ]
    try:
        with engine.begin() as connection:
            connection.execute(insert(OFFSETS), begun)
    except IntegrityError as error:
        raise SinkError(
            f"Group {group} has begun already in {shown(engine)}; where it begins is said once."
            " Nothing was changed."
        ) from error
    except DBAPIError as error:
        raise SinkError(f"{shown(engine)}: {said(error)}.") from error


def require_no_table(url: str, table: str) -> None:
    """Raises SinkError when the database does not answer, or has such a table: a verdict is about
    all of its rows."""
    engine = connect_database(url)
    try:
        there = inspect(engine).has_table(table)
    except DBAPIError as error:
        raise SinkError(f"{shown(engine)}: {said(error)}.") from error
    if there:
        raise SinkError(
            f"{shown(engine)} has a table {table} already. Choose another name, or drop it."
        )


def committed_offsets(url: str, group: str, topic: str) -> dict[int, int]:
    """The offset of the group's next input, by partition of a source topic. Raises SinkError."""
    asked = select(OFFSETS.c.partition, OFFSETS.c.next_offset).where(
        OFFSETS.c.group_id == group, OFFSETS.c.topic == topic
    )
    engine = connect_database(url)
    try:
        with engine.connect() as connection:
            return {row.partition: row.next_offset for row in connection.execute(asked)}
    except DBAPIError as error:
        raise SinkError(f"{shown(engine)}: {said(error)}.") from error


def set_generation(url: str, group: str, generation: int) -> None:
    """From now on no worker of an earlier generation commits anything. Raises SinkError."""
    engine = connect_database(url)
    try:
        with engine.begin() as connection:
            connection.execute(
                update(OFFSETS).where(OFFSETS.c.group_id == group).values(generation=generation)
            )
    except DBAPIError as error:
        raise SinkError(f"{shown(engine)}: {said(error)}.") from error


def drop_tables(url: str, table: str, group: str) -> None:
    """Remove a table of outputs, and what its group had committed. Raises SinkError."""
    drop_table(url, rows_of(table))
    engine = connect_database(url)
    try:
        with engine.begin() as connection:
            connection.execute(delete(OFFSETS).where(OFFSETS.c.group_id == group))
    except DBAPIError as error:
        raise SinkError(f"{shown(engine)}: {said(error)}.") from error


def drop_table(url: str, table: Table) -> None:
    """Raises SinkError."""
    engine = connect_database(url)
    try:
        table.drop(engine, checkfirst=True)
    except DBAPIError as error:
        raise SinkError(f"{shown(engine)}: {said(error)}.") from error


def shown_url(url: str) -> str:
    """A database's address, without a password."""
    return shown(connect_database(url))


def shown(engine: Engine) -> str:
    """The database's address, without a password."""
    return engine.url.render_as_string(hide_password=True)


class DatabaseSink(DataSource):
    """Registered with `spark.dataSource.register`; the module's docstring has the options."""

    @classmethod
    def name(cls) -> str:
        return DATABASE_FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> DatabaseWriter:  # noqa: ARG002
        require_columns(schema)
        given = {name.lower(): value for name, value in self.given().items()}
        url = given.pop("url", None)
        if url is None:
            raise UsageError(f"{DATABASE_FORMAT}: the option url is required.")
        connect_database(url)
        sink = SinkOptions.parse(given)
        sink.refuse_packed("a table has a column for it in every row")
        if sink.topic is None:
            raise UsageError(
                f"{DATABASE_FORMAT}: the option topic is required: it names the table."
            )
        if sink.guarantee is Guarantee.AT_MOST_ONCE:
            raise UsageError(f"{DATABASE_FORMAT}: guarantee is exactly_once or at_least_once.")
        return DatabaseWriter(sink, url, self.hooks())

    def given(self) -> Mapping[str, str]:
        """The options that are the sink's own."""
        return self.options

    def hooks(self) -> MakeHooks:
        return NoHooks


class DatabaseWriter(KafkaTransactionalWriter):
    def __init__(self, sink: SinkOptions, url: str, hooks: MakeHooks) -> None:
        super().__init__(sink, hooks)
        self.url = url

    def _writer(self, source: tuple[str, int]) -> PartitionWriter:
        return TableWriter(self.sink, self.hooks, self.url, *source)


class TableWriter(PartitionWriter):
    """One source partition within one Spark task."""

    def __init__(
        self,
        sink: SinkOptions,
        hooks: MakeHooks,
        url: str,
        source_topic: str,
        source_partition: int,
    ) -> None:
        # Nothing is produced to Kafka, so no transactional id is taken over there.
        super().__init__(
            replace(sink, guarantee=Guarantee.AT_LEAST_ONCE), hooks, source_topic, source_partition
        )
        self.appends = sink.guarantee is Guarantee.EXACTLY_ONCE
        self.engine = connect_database(url)
        self.table = rows_of(str(sink.topic))

    def finish(self) -> Receipt:
        receipt = super().finish()
        self.engine.dispose()
        return receipt

    def _committed(self) -> tuple[int, int]:
        asked = select(OFFSETS.c.next_offset, OFFSETS.c.sequence, OFFSETS.c.generation).where(
            *self._own()
        )
        try:
            with self.engine.connect() as connection:
                found = connection.execute(asked).one_or_none()
        except DBAPIError as error:
            raise SinkError(f"{shown(self.engine)}: {said(error)}.") from error
        if found is None:
            raise OffsetMissing(
                f"Group {self.sink.group} has no offset for {self.where} in {shown(self.engine)},"
                " so nobody knows what was processed. Say where it begins (make_tables) and start"
                " into an empty table."
            )
        if found.generation > self.sink.generation > 0:
            raise Fenced(
                f"{self.name} is a worker of a query that was stopped or started anew meanwhile."
            )
        return found.next_offset, found.sequence

    def _attempt(self, sequence: int, attempt: int) -> None:
        self._open_journal(sequence)
        try:
            with self.engine.begin() as connection:
                self._step(Step.BEGUN, sequence)
                self._write(connection, sequence)
                if self.appends:
                    self._written(sequence, attempt)
                    self._set_offset(connection, sequence)
                    self._step(Step.OFFSET_SENT, sequence)
            if not self.appends:
                self._written(sequence, attempt)
                with self.engine.begin() as connection:
                    self._set_offset(connection, sequence)
                self._step(Step.OFFSET_SENT, sequence)
        except DBAPIError as error:
            # Whether a commit was lost on its way or its answer was, the comparison of the next
            # attempt tells.
            raise NotDelivered(f"{shown(self.engine)}: {said(error)}.") from error
        self._step(Step.COMMITTED, sequence)

    def _written(self, sequence: int, attempt: int) -> None:
        """The rows are there; of upserts for everybody, and whoever dies now writes them again."""
        self._step(Step.PRODUCED, sequence)
        self._before_commit(sequence, attempt)

    def _write(self, connection: Connection, sequence: int) -> None:
        rows = [
            dict(zip(LINEAGE, (*self.source, offset, index), strict=True))
            | {
                "key": key,
                "value": value,
            }
            for offset, index, _topic, key, value, _headers in self.buffer
        ]
        half = len(rows) // 2
        self._insert(connection, rows[:half])
        self._step(Step.PRODUCING, sequence)
        self._insert(connection, rows[half:])

    def _insert(self, connection: Connection, rows: list[dict[str, Any]]) -> None:
        if not rows:
            return
        if self.appends:
            connection.execute(insert(self.table), rows)
            return
        dialect = postgresql if self.engine.dialect.name == "postgresql" else sqlite
        anew = dialect.insert(self.table)
        values = {name: anew.excluded[name] for name in ("key", "value")}
        connection.execute(anew.on_conflict_do_update(index_elements=LINEAGE, set_=values), rows)

    def _set_offset(self, connection: Connection, sequence: int) -> None:
        moved = (
            update(OFFSETS)
            .where(*self._own(), OFFSETS.c.next_offset == self.next_offset, *self._generation())
            .values(next_offset=self.following, sequence=sequence)
        )
        if connection.execute(moved).rowcount != 1:
            raise Fenced(
                f"{self.where}: another writer of group {self.sink.group} has gone on from"
                f" {self.next_offset}, or the query was stopped or started anew meanwhile."
            )

    def _own(self) -> tuple[Any, ...]:
        columns = OFFSETS.c
        topic, partition = self.source
        return (
            columns.group_id == self.sink.group,
            columns.topic == topic,
            columns.partition == partition,
        )

    def _generation(self) -> tuple[Any, ...]:
        return (OFFSETS.c.generation == self.sink.generation,) if self.sink.generation else ()


def said(error: DBAPIError) -> str:
    """The database's own words, without the statement and its values."""
    return str(error.orig).splitlines()[0].rstrip(".")
