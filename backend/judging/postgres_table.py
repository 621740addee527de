"""A table or view of PostgreSQL: its columns from the catalogue, and its rows by Spark's JDBC.

The server is asked by libpq first, which finds the password as psql does. Spark gets it as an
option of its own, and it is in no plan, log or evidence. The rows are read in one transaction that
is read only and sees one moment. PostgreSQL itself makes a text of each column, so no digit and no
date is changed on the way, and cuts off what is too large before it is sent.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from topicproof.backend.characters import visible
from topicproof.backend.contracts.sink_table import PostgresAddress
from topicproof.backend.errors import ContractError, SinkError
from topicproof.backend.sink.table import NOT_IN_PLAIN_TEXT
from topicproof.backend.yaml_fields import Place
from topicproof.validators.columns import NUMBER, TEXT, is_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

CONNECT_TIMEOUT_S = 10
SENT_BYTES_MAX = 8_000_000
"""The server sends no text of a row that has more bytes in all."""
FETCHED_ROWS = 100
"""Rows of the first fetch; the driver then asks for as many as `BUFFER` holds."""
FETCHED_ROWS_MAX = 5_000
BUFFER = "256M"
"""Memory for one fetch, in the driver's words. More is an error, and not the end of Spark."""
SESSION = (
    "set transaction isolation level repeatable read, read only;"
    " set local datestyle to 'ISO, YMD'; set local timezone to 'UTC'"
)
"""What the transaction begins with: it sees one moment, writes nothing, and gives texts that do not
depend on the server's settings."""
WHOLE_AND_READ_ONLY = "-c default_transaction_read_only=on -c row_security=off"
"""What each connection begins with. If a policy hides rows from the user, PostgreSQL refuses to
read the table instead of leaving them out: a verdict is on all rows."""
STARTUP = (
    f"{WHOLE_AND_READ_ONLY} -c search_path=pg_catalog -c intervalstyle=postgres -c bytea_output=hex"
)
"""What Spark's connections begin with. No operator or function of another schema can be called by
a name of PostgreSQL's own."""
OWN_SCHEMAS = ("pg_catalog", "information_schema", "pg_toast")
ANSWER_TIMEOUT_S = 300
"""A server that sends nothing for so long is given up: a task of a shared Spark waits for it."""
CATALOGUE_BYTES_MAX = 16_000_000
"""What this process reads of one answer: names and types of a table's columns, or a count."""
_TYPES = {
    "int2": "smallint",
    "int4": "int",
    "int8": "bigint",
    "float4": "float",
    "float8": "double",
    "bool": "boolean",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    NUMBER: NUMBER,
}
_OF_TIME = ("timestamp", "timestamptz")
_TABLE = """
select n.nspname, c.relname, c.oid from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relname = %(name)s and c.relkind in ('r', 'v', 'm', 'p', 'f')
and case when %(schema)s::text is null then pg_catalog.pg_table_is_visible(c.oid)
    else n.nspname = %(schema)s end
"""
_TABLES = """
select case when pg_catalog.pg_table_is_visible(c.oid) then c.relname
    else n.nspname || '.' || c.relname end
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'v', 'm', 'p', 'f')
and n.nspname not in ('pg_catalog', 'information_schema', 'pg_toast')
limit 1000
"""
_COLUMNS = """
with recursive columns as (
    select a.attnum, a.attname, a.atttypid as type, a.atttypmod as modifier
    from pg_catalog.pg_attribute a
    where a.attrelid = %(table)s and a.attnum > 0 and not a.attisdropped
    union all
    select c.attnum, c.attname, d.typbasetype, d.typtypmod
    from columns c join pg_catalog.pg_type d on d.oid = c.type and d.typtype = 'd'
)
select c.attname, t.typname, c.modifier,
    pg_catalog.has_column_privilege(%(table)s::oid, c.attnum, 'select')
from columns c join pg_catalog.pg_type t on t.oid = c.type
where t.typtype <> 'd'
order by c.attnum
"""
"""The columns with their types; a domain may be of another domain."""

Refused = Callable[[Place, str], ContractError]


@dataclass(frozen=True)
class PostgresTable:
    """A table that was looked up in the catalogue."""

    spark: SparkSession
    address: PostgresAddress
    schema: str
    name: str
    columns: Mapping[str, str]
    """The types by name."""

    @staticmethod
    def open(
        spark: SparkSession, address: PostgresAddress, title: str, refused: Refused
    ) -> PostgresTable:
        """Look the table up. Raises as `look_up`."""
        return PostgresTable(spark, address, *look_up(address, title, refused))

    @property
    def types(self) -> Mapping[str, str]:
        return self.columns

    @property
    def note(self) -> str:
        name = visible(f"{self.schema}.{self.name}")
        return f"The table {name} was read at once, in one repeatable read of PostgreSQL."

    def texts(self) -> tuple[DataFrame, Column]:
        with _connected(self.address) as connection:
            info = connection.info
            secret = {"password": info.password} if info.password else {}
            user = info.user
        options = {
            "url": self.address.url,
            "driver": "org.postgresql.Driver",
            "dbtable": self._query(),
            "user": user,
            **secret,
            **({"sslmode": self.address.sslmode} if self.address.sslmode else {}),
            # A server that a contract names must prove that it knows the password, too.
            "requireAuth": _required_auth(),
            "options": STARTUP,
            "sessionInitStatement": SESSION,
            "fetchsize": str(FETCHED_ROWS),
            "adaptiveFetch": "true",
            "adaptiveFetchMaximum": str(FETCHED_ROWS_MAX),
            "maxResultBuffer": BUFFER,
            "connectTimeout": str(CONNECT_TIMEOUT_S),
            "socketTimeout": str(ANSWER_TIMEOUT_S),
            "tcpKeepAlive": "true",
            "ApplicationName": "topicproof",
        }
        frame = self.spark.read.format("jdbc").options(**options).load()
        return frame, F.col("size")

    def require_size(self) -> None:
        """Nothing to measure: a row takes at least its bytes of the network, and the reading stops
        at the first that is too many."""

    def has_changed(self, rows: int) -> bool:
        """Return whether it has another number of rows now. Raises SinkError."""
        with _connected(self.address) as connection:
            whole = _quoted(self.schema, self.name)
            row = connection.execute(f"select count(*) from {whole}").fetchone()
        assert row is not None, "a count is one row"
        return int(row[0]) != rows

    def _query(self) -> str:
        """Return the query with a text for each column, and the size of all. `offset 0` keeps the
        server from making each text twice."""
        texts = ", ".join(
            f"{_identifier(name)}::text as c{number}" for number, name in enumerate(self.columns)
        )
        names = [f"c{number}" for number in range(len(self.columns))]
        size = " + ".join(f"coalesce(octet_length({name}), 0)::bigint" for name in names)
        cut = ", ".join(
            f"case when size <= {SENT_BYTES_MAX} then {name} else left({name}, 100) end as {name}"
            for name in names
        )
        whole = _quoted(self.schema, self.name)
        return (
            f"(select {cut}, size from (select *, {size} as size from (select {texts}"
            f" from {whole} offset 0) as texts offset 0) as sized) as rows_of_table"
        )


def look_up(
    address: PostgresAddress, title: str, refused: Refused
) -> tuple[str, str, dict[str, str]]:
    """Return schema and name of a table, and the types of its columns by name. No row is read.
    Raises ContractError if it is not there, SinkError if the database does not answer or
    refuses."""
    schema, _, name = title.rpartition(".")
    place: Place = ("sink", "table", "name")
    with _connected(address) as connection:
        tables = connection.execute(_TABLE, {"name": name, "schema": schema or None}).fetchall()
        if not tables:
            names = [row[0] for row in connection.execute(_TABLES)]
            near = get_close_matches(title, names, n=1)
            like = f". The nearest name is {visible(near[0])}" if near else ""
            why = f"{address.words} has no table {visible(title)}{like}"
            raise refused(place, why)
        if tables[0][0] in OWN_SCHEMAS:
            why = f"{visible(title)} is of the database's own catalogue, which is no sink"
            raise refused(place, why)
        rows = connection.execute(_COLUMNS, {"table": tables[0][2]}).fetchall()
        hidden = [row[0] for row in rows if not row[3]]
        if hidden:
            raise SinkError(
                f"{address.words}: the user may not read the column {visible(hidden[0])} of"
                f" {visible(title)}. Grant it (GRANT SELECT), or name a view without it."
            )
        # PostgreSQL plans it, and refuses what the user may not read in whole.
        connection.execute(f"select from {_quoted(*tables[0][:2])} limit 0")
    columns = {row[0]: _type_of(row[1], row[2]) for row in rows}
    if not columns:
        raise refused(place, f"{visible(title)} has no columns")
    if len({column.lower() for column in columns}) < len(columns):
        raise refused(
            place, "two of its columns differ in capital letters alone. Name a view with others"
        )
    return tables[0][0], tables[0][1], columns


def _quoted(schema: str, name: str) -> str:
    return f"{_identifier(schema)}.{_identifier(name)}"


def _identifier(name: str) -> str:
    """Quote a name of the catalogue."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _type_of(name: str, modifier: int) -> str:
    """Return the type of a column as validators/columns.py names it. `modifier`: what PostgreSQL
    keeps in brackets of a type, as `atttypmod`; -1: nothing."""
    if modifier < 0:
        return _TYPES.get(name, TEXT)
    if name in _OF_TIME:
        return f"{_TYPES[name]}({modifier})"
    if name == NUMBER:
        digits, scale = ((modifier - 4) >> 16) & 0xFFFF, (modifier - 4) & 0x7FF
        kinds = (f"decimal({digits},{scale})", f"{NUMBER}({digits},{scale})", NUMBER)
        # A negative scale, which rounds to tens, is none of the first two.
        return next(filter(is_type, kinds))
    return _TYPES.get(name, TEXT)


def _required_auth() -> str:
    return os.environ.get("PGREQUIREAUTH") or NOT_IN_PLAIN_TEXT


@contextmanager
def _connected(address: PostgresAddress) -> Iterator[Connection[Any]]:
    """Connect as libpq does, to read only. Raises SinkError, in the database's own words."""
    import psycopg  # late: few contracts name a database

    from topicproof.backend.sink.bounded_postgres import BoundedConnection

    arguments: dict[str, Any] = {
        "host": address.host.strip("[]"),
        "port": address.port,
        "dbname": address.database,
        "connect_timeout": CONNECT_TIMEOUT_S,
        "require_auth": _required_auth(),
        "application_name": "topicproof",
        "options": f"{WHOLE_AND_READ_ONLY} -c statement_timeout={ANSWER_TIMEOUT_S}s",
    }
    for name in ("user", "sslmode"):
        if (value := getattr(address, name)) is not None:
            arguments[name] = value
    try:
        with BoundedConnection.connect(**arguments, autocommit=True) as connection:
            connection.bytes_max, connection.seconds_max = CATALOGUE_BYTES_MAX, ANSWER_TIMEOUT_S
            yield connection
    except psycopg.Error as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise SinkError(
            f"The database {address.words} cannot be read: {visible(reason)}. Check the address,"
            " the user and its rights, and that PGPASSWORD or PGPASSFILE has its password."
        ) from error
