"""A database sink's tables: one of outputs, and one of the groups' offsets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
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
    event,
    insert,
    inspect,
    make_url,
    select,
    update,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError

from topicproof.backend.errors import SinkError, UsageError
from topicproof.validators.finding import Guarantee

DATABASE_FORMAT = "database-transactional"
OF_LIBPQ = ("psycopg", "psycopg2")
NOT_IN_PLAIN_TEXT = "!password"
"""Any way to authenticate but that one, in words of libpq 16 and later."""
LOCK_TIMEOUT_S = 60
"""How long a writer waits for SQLite, which allows one write at a time."""
FILE_ENDINGS = (".db", ".sqlite", ".sqlite3")
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
    """Return the table of outputs: one row each, in the order of writing."""
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
    """Create an engine. Raises UsageError for a malformed or unknown address.

    A plan names the server, and libpq finds the password. So a PostgreSQL server gets no password
    in plain text, unless PGREQUIREAUTH allows it.
    """
    try:
        arguments: dict[str, Any] = {}
        if url.startswith("sqlite"):
            arguments["timeout"] = LOCK_TIMEOUT_S
        elif make_url(url).get_dialect().driver in OF_LIBPQ:
            arguments["require_auth"] = os.environ.get("PGREQUIREAUTH") or NOT_IN_PLAIN_TEXT
        engine = create_engine(url, poolclass=NullPool, connect_args=arguments)
        if engine.dialect.driver == "psycopg":
            event.listen(engine, "do_connect", _connect_within_limits)
        return engine
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise UsageError(
            f"{DATABASE_FORMAT}: the option url is not a database address that SQLAlchemy knows,"
            " such as sqlite:////var/out.db or postgresql+psycopg://user@host/name."
        ) from error


def _connect_within_limits(
    _dialect: object, _record: object, arguments: Sequence[Any], options: Mapping[str, Any]
) -> object:
    """Connect for SQLAlchemy, to a server whose answers have limits."""
    # Late: a plan without such a database needs no psycopg.
    from topicproof.backend.sink.bounded_postgres import BoundedConnection

    return BoundedConnection.connect(*arguments, **options)


def make_tables(
    url: str,
    table: str,
    group: str,
    initial_offsets: Mapping[tuple[str, int], int],
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
) -> None:
    """Make the table of outputs, and set the group's first offset by source topic and partition.

    Call this once, before the first start. Raises SinkError and changes nothing if the group has
    begun already or the database does not answer.
    """
    outputs = rows_of(table)
    if guarantee is not Guarantee.EXACTLY_ONCE:
        outputs.append_constraint(UniqueConstraint(*LINEAGE))
    engine = connect_database(url)
    with answering(engine):
        OFFSETS.create(engine, checkfirst=True)
        outputs.create(engine, checkfirst=True)
    begin(url, group, initial_offsets)


def begin(url: str, group: str, initial_offsets: Mapping[tuple[str, int], int]) -> None:
    """Set the group's first offset in these source partitions. Raises the same SinkError as
    `make_tables`."""
    engine = connect_database(url)
    begun = [
        dict(zip(OFFSETS.columns.keys(), (group, topic, partition, offset, 0, 0), strict=True))
        for (topic, partition), offset in initial_offsets.items()
    ]
    try:
        with engine.begin() as connection:
            connection.execute(insert(OFFSETS), begun)
    except IntegrityError as error:
        raise SinkError(
            f"Group {group} has already begun in {shown(engine)}; its start can be set only once."
            " Nothing was changed."
        ) from error
    except DBAPIError as error:
        raise SinkError(f"{shown(engine)}: {said(error)}.") from error


def require_no_table(url: str, table: str) -> None:
    """Raises SinkError if the database does not answer, or has such a table. A verdict covers all
    rows of a table."""
    engine = connect_database(url)
    require_own_file(engine, OFFSETS.name)
    with answering(engine):
        exists = inspect(engine).has_table(table)
    if exists:
        raise SinkError(
            f"{shown(engine)} has a table {table} already. Choose another name, or drop it."
        )


def require_own_file(engine: Engine, table: str) -> None:
    """Raises SinkError if a SQLite file has tables, but not this one: it is another program's, and
    the author of a plan may name any file."""
    if engine.dialect.name != "sqlite":
        return
    with answering(engine):
        tables = inspect(engine).get_table_names()
    if tables and table not in tables:
        raise SinkError(
            f"{shown(engine)} is the database of another program: it has no table {table}. Choose"
            " another file."
        )


def committed_offsets(url: str, group: str, topic: str) -> dict[int, int]:
    """Return the offset of the group's next input, by partition of a source topic. Raises
    SinkError."""
    query = select(OFFSETS.c.partition, OFFSETS.c.next_offset).where(
        OFFSETS.c.group_id == group, OFFSETS.c.topic == topic
    )
    engine = connect_database(url)
    with answering(engine), engine.connect() as connection:
        return {row.partition: row.next_offset for row in connection.execute(query)}


def set_generation(url: str, group: str, generation: int) -> None:
    """Keep workers of earlier generations from committing anything. Raises SinkError."""
    engine = connect_database(url)
    with answering(engine), engine.begin() as connection:
        connection.execute(
            update(OFFSETS).where(OFFSETS.c.group_id == group).values(generation=generation)
        )


def drop_tables(url: str, table: str, group: str) -> None:
    """Remove a table of outputs and its group's offsets. Raises SinkError."""
    drop_table(url, rows_of(table))
    engine = connect_database(url)
    with answering(engine), engine.begin() as connection:
        connection.execute(delete(OFFSETS).where(OFFSETS.c.group_id == group))


def drop_table(url: str, table: Table) -> None:
    """Raises SinkError."""
    engine = connect_database(url)
    with answering(engine):
        table.drop(engine, checkfirst=True)


def shown_url(url: str) -> str:
    """Return a database's address, without a password."""
    return shown(connect_database(url))


def shown(engine: Engine) -> str:
    """Return the database's address, without a password."""
    return engine.url.render_as_string(hide_password=True)


@contextmanager
def answering(engine: Engine) -> Iterator[None]:
    """Raise SinkError, in the database's own words, for a refusal inside the block."""
    try:
        yield
    except DBAPIError as error:
        raise SinkError(f"{shown(engine)}: {said(error)}.") from error


def said(error: DBAPIError) -> str:
    """Return the database's own words, without the statement and its values."""
    return str(error.orig).splitlines()[0].rstrip(".")
