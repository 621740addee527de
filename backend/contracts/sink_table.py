"""A database table as the sink of a contract: where it is, which columns identify a row, and which
ones name its input.

A contract may come from a stranger. An address is taken apart and put together again, so that the
driver gets no option that this module does not know: some of them load classes and write files. A
password has no place in a contract. Names of tables and columns are names, and never SQL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from topicproof.backend.characters import visible
from topicproof.backend.errors import UsageError
from topicproof.backend.yaml_fields import Place
from topicproof.validators.columns import COLUMN, TableTerms
from topicproof.validators.decoded import parse_field
from topicproof.validators.expectation import MEANINGLESS_OF_TABLE
from topicproof.validators.expected import Expect
from topicproof.validators.finding import Order

TITLE_MAX = 249
"""Characters of a table's name in a verdict: as many as Kafka gives a topic."""
COLUMN_MAX = 200
COLUMNS_MAX = 32
PORT = 5432
SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
PARAMETERS = ("user", "sslmode")
"""What an address may say besides its place."""
CHECKED_WORDS = "`jdbc:postgresql://host:5432/database`"
_ADDRESS = re.compile(
    r"jdbc:postgresql://(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:]{2,39}\])"
    r"(?::(?P<port>[0-9]{1,5}))?/(?P<database>[A-Za-z0-9_][A-Za-z0-9_.-]{0,62})(?:\?(?P<rest>.*))?"
)
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,62}")
_CATALOGUE_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}(?:\.[A-Za-z0-9_-]{1,100}){0,4}")
_NO_PATH = re.compile(r"[*?\[\]{}\\#%,]|/\.\.(?:/|$)|/\./|//")
"""What would make one path stand for several, or for another one."""
_SECRET = re.compile(r"passw|secret|token", re.IGNORECASE)
_PLACE = ("url", "format", "path", "name")
"""The fields of a table that say where it is."""
_STRICT = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class PostgresAddress:
    """Where a PostgreSQL database is, taken apart."""

    host: str
    port: int
    database: str
    user: str | None = None
    """None: what libpq takes, PGUSER or the user of this process."""
    sslmode: str | None = None

    @property
    def url(self) -> str:
        """The address for the driver, without any parameter."""
        return f"jdbc:postgresql://{self.host}:{self.port}/{self.database}"

    @property
    def words(self) -> str:
        return f"{self.host}:{self.port}/{self.database}"


def parse_address(url: str) -> PostgresAddress:
    """Parse the address of a database. Raises ValueError with a clause that says what is wrong; it
    quotes no parameter, which may be a password."""
    match = _ADDRESS.fullmatch(url)
    if match is None:
        where = "a user and a password have no place in it" if "@" in url else "it names one host"
        raise ValueError(f"expected {CHECKED_WORDS}: {where}, and only PostgreSQL is known")
    port = int(match["port"] or PORT)
    if not 0 < port < 1 << 16:
        raise ValueError(f"expected a port from 1 to {(1 << 16) - 1:,}")
    parameters: dict[str, str] = {}
    for part in filter(None, (match["rest"] or "").split("&")):
        name, _, value = part.partition("=")
        if _SECRET.search(name):
            raise ValueError(
                "a contract holds no password. Leave it out, and set PGPASSWORD, or PGPASSFILE with"
                " a file as libpq reads it (~/.pgpass)"
            )
        if name not in PARAMETERS or name in parameters:
            allowed = " and ".join(PARAMETERS)
            raise ValueError(
                f"an address may say {allowed}, each once. Remove the parameter"
                f" {visible(name[:40])!r}: others can make the driver load code or write files"
            )
        parameters[name] = value
    user, sslmode = (parameters.get(name) for name in PARAMETERS)
    if user is not None and not _USER.fullmatch(user):
        raise ValueError("the user in it may have letters, digits and the characters _ . @ -")
    if sslmode is not None and sslmode not in SSL_MODES:
        raise ValueError(f"sslmode is one of {', '.join(SSL_MODES)}")
    return PostgresAddress(match["host"], port, match["database"], user, sslmode)


def names_password(url: str) -> bool:
    """Return whether an address may hold a password. It is then better not stored anywhere."""
    where, _, rest = url.partition("?")
    names = (parameter.partition("=")[0] for parameter in rest.split("&"))
    return "@" in where or any(_SECRET.search(name) for name in names)


def _address(url: str) -> str:
    parse_address(url)
    return url


def _path(path: str) -> str:
    """Check the place of a table's files: an absolute path, or a URL of S3."""
    if len(path) > TITLE_MAX or visible(path) != path:
        raise ValueError(f"expected a path of at most {TITLE_MAX} visible characters")
    bucket = urlsplit(path).netloc if path.startswith("s3a://") else None
    if bucket is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,62}", bucket):
        raise ValueError("the name of its bucket is no name of S3; a key has no place in it")
    inside = path.removeprefix("s3a://") if bucket else path
    if bucket is None and not path.startswith("/"):
        raise ValueError("expected an absolute path, such as /data/invoices, or s3a://bucket/path")
    if _NO_PATH.search(inside.rstrip("/")) or not inside.strip("/"):
        raise ValueError("expected the path of one folder, without .., // or wildcards")
    return path.rstrip("/")


def _column(name: str) -> str:
    if not name or len(name) > COLUMN_MAX or visible(name) != name:
        raise ValueError(f"expected the name of a column: 1 to {COLUMN_MAX} visible characters")
    return name


def _name(name: str) -> str:
    if not name or len(name) > TITLE_MAX or visible(name) != name or name.count(".") > 4:
        raise ValueError("expected the name of a table or view, such as invoices or sales.invoices")
    return name


ColumnName = Annotated[str, AfterValidator(_column)]


class OriginColumns(BaseModel):
    """The columns that name the input of a row."""

    model_config = _STRICT
    topic: ColumnName | None = None
    """None: the topic is the source."""
    partition: ColumnName
    offset: ColumnName


class Table(BaseModel):
    """A table of PostgreSQL, or one in a format that Spark reads."""

    model_config = _STRICT
    url: Annotated[str, AfterValidator(_address)] | None = None
    format: Literal["parquet", "iceberg"] | None = None
    path: Annotated[str, AfterValidator(_path)] | None = None
    name: Annotated[str, AfterValidator(_name)] | None = None
    key: Annotated[tuple[ColumnName, ...], Field(max_length=COLUMNS_MAX)] = ()
    """The columns that identify a row."""
    origin: OriginColumns | None = None

    @model_validator(mode="after")
    def _is_one_place(self) -> Table:
        if (self.url is None) == (self.format is None):
            raise ValueError("say where it is: url, or format with path or name")
        if self.url is not None and (self.path is not None or self.name is None):
            raise ValueError("a table of a database has a url and a name, and no path")
        if self.format is not None and (self.path is None) == (self.name is None):
            raise ValueError(f"a table in the format {self.format} has either a path or a name")
        if self.format == "parquet" and self.path is None:
            raise ValueError("a table in the format parquet has a path")
        if self.url is not None and self.name is not None and self.name.count(".") > 1:
            raise ValueError("the name is that of a table, or schema.table")
        if self.format is not None and self.name and not _CATALOGUE_NAME.fullmatch(self.name):
            raise ValueError("the name is catalog.schema.table of letters, digits, _ and -")
        if len(set(self.key)) < len(self.key):
            raise ValueError("a column appears twice in key")
        return self

    @property
    def title(self) -> str:
        """What people call it."""
        return self.name or self.path or ""

    @property
    def location(self) -> str:
        """Where it is, as the setting TOPICPROOF_TABLES names places."""
        if self.url is not None:
            address = parse_address(self.url)
            return address.url + ("" if address.user is None else f"?user={address.user}")
        return self.path if self.path is not None else f"{self.format}:{self.name}"

    @property
    def address(self) -> PostgresAddress | None:
        return None if self.url is None else parse_address(self.url)

    def terms(self, tolerance: float) -> TableTerms:
        origin = self.origin
        return TableTerms(
            key=self.key,
            origin=None if origin is None else (origin.topic, origin.partition, origin.offset),
            tolerance=tolerance,
        )


def listed_places(roots: str | None) -> tuple[str, ...]:
    """Return the places that the setting TOPICPROOF_TABLES lists."""
    return tuple(place.strip() for place in (roots or "").split(",") if place.strip())


def require_below(table: Table, roots: str | None, *, is_restricted: bool) -> None:
    """Raises UsageError for a table that lies below none of the places in the setting
    TOPICPROOF_TABLES. `is_restricted`: somebody else than the user of this machine may have named
    it, so none is allowed without the setting."""
    if roots is None and not is_restricted:
        return
    places = listed_places(roots)
    where = table.location
    if table.path is not None and where.startswith("/"):
        where = os.path.realpath(where)
    if not any(_is_below(where, place) for place in places):
        raise UsageError(
            f"The table {visible(table.title)} lies below no place of the setting"
            " TOPICPROOF_TABLES, so it is not read. Whoever runs Topicproof can add its place"
            f" there: {visible(table.location)}."
        )


def _is_below(where: str, place: str) -> bool:
    if place.startswith("/"):
        place = os.path.realpath(place)
    if where.startswith("jdbc:"):
        # Another user sees other tables: whoever lists the place says which one is meant.
        (where, _, user), (place, _, listed_user) = where.partition("?"), place.partition("?")
        if user != listed_user:
            return False
    place = place.rstrip("/")
    # Names of a catalogue have dots between them. In a path or a host, a dot belongs to the name.
    separator = "." if place.startswith("iceberg:") else "/"
    return where == place or where.startswith(f"{place}{separator}")


def column_of(path: str) -> str:
    """Return the column that a key of `value:` names, such as amount or ['Total amount']. Raises
    ValueError."""
    steps = parse_field(path)
    if len(steps) != 1 or not isinstance(steps[0], str):
        raise ValueError(f"{path}: expected the name of a column")
    return _column(steps[0])


def is_table(fields: Any) -> bool:
    """Return whether unchecked fields of a contract name a table as the sink."""
    sink = fields.get("sink") if isinstance(fields, Mapping) else None
    return isinstance(sink, Mapping) and sink.get("table") is not None


def place_of(fields: Mapping[str, Any]) -> Table | None:
    """Return the table that unchecked fields of a contract name, with its place alone. None if the
    place is incomplete or wrong."""
    table = fields["sink"]["table"] if is_table(fields) else None
    if not isinstance(table, Mapping):
        return None
    try:
        return Table.model_validate({name: table[name] for name in _PLACE if name in table})
    except ValidationError:
        return None


OF_TABLE: Mapping[str, Any] = {"order": Order.NONE}
"""The fields that follow from a table as the sink."""
_NO_PLACE = {
    "sinks": "a table is one sink",
    "dead_letters": "dead letters lie in a topic beside a topic",
    "aggregate": "aggregates in a table are not judged yet",
    "unique": "a contract about the sink alone is about a topic",
}
"""Fields that a contract about a table cannot have, with the reason."""


Disagreement = tuple[str, Place, tuple[str, ...]]
"""Why, the place of the field to change, and all fields involved."""


def disagreements(terms: Mapping[str, Any], table: Table, across: bool) -> Iterator[Disagreement]:
    """Yield what contradicts a table as the sink. `terms`: the fields of the contract."""
    sink = terms["sink"]
    if sink.topic is not None or sink.topics is not None or sink.cluster is not None:
        yield "a table has no topic and no cluster. Give only the table", ("sink",), ("sink",)
    if across:
        why = "a table is in no cluster. Name that of the source by its own options"
        yield why, ("sink", "table"), ("sink",)
    for name, reason in _NO_PLACE.items():
        if terms[name] is not None:
            yield f"a contract about a table cannot say {name}: {reason}", (name,), (name, "sink")
    if terms["range"] == "retained":
        why = "nothing tells which rows of a table are of removed inputs. Remove it"
        yield why, ("range",), ("range", "sink")
    if terms["order"] is not Order.NONE:
        yield "a table has no order of its rows. Remove it", ("order",), ("order", "sink")
    for number, kind in enumerate(terms["require"] or ()):
        if kind in MEANINGLESS_OF_TABLE:
            reason = MEANINGLESS_OF_TABLE[kind].removeprefix("Not judged: ").rstrip(".")
            yield f"{kind} cannot be judged: {reason}", ("require", number), ("require", "sink")
    yield from _of_identity(terms, table)
    yield from _of_value(terms["value"])


def _of_identity(terms: Mapping[str, Any], table: Table) -> Iterator[Disagreement]:
    identity = terms["identity"]
    if not table.key and table.origin is None:
        why = "name the columns that identify a row (key), or those that name its input (origin)"
        yield why, ("sink", "table"), ("sink",)
        return
    if isinstance(identity, str):
        if table.origin is None:
            why = (
                "nothing in a row names its input. Name what identifies an input on both sides, as"
                " in `identity: {source: {json: $.id}, sink: {column: order_id}}`, or origin"
            )
            yield why, ("identity",), ("identity", "sink")
        elif table.origin.topic is None and len(terms["source"].names) > 1:
            why = "of several topics, one is an input's. Name the column of the topic too"
            yield why, ("sink", "table", "origin"), ("sink", "source")
        if terms["expect"] is Expect.ONE_TO_MANY and not table.key:
            why = "rows of one input are told apart by their key. Name it"
            yield why, ("sink", "table", "key"), ("sink", "expect")
        return
    how = identity.sink.partition(":")[0]
    if how not in (COLUMN, "key"):
        why = "a row holds its identity in a column, as {column: order_id}, or in its key"
        yield why, ("identity", "sink"), ("identity", "sink")
    if how == "key" and not table.key:
        yield "the table has no key. Name its columns", ("sink", "table"), ("identity", "sink")
    if identity.source.partition(":")[0] == COLUMN:
        why = "a record of a topic has no columns. Name key, value, {header: NAME} or {json: $.id}"
        yield why, ("identity", "source"), ("identity", "sink")


def _of_value(value: str | Mapping[str, str] | None) -> Iterator[Disagreement]:
    if isinstance(value, str):
        why = "a row has columns. Give an expression for each, as in `value: {amount: ...}`"
        yield why, ("value",), ("value", "sink")
    for path in value if isinstance(value, Mapping) else ():
        try:
            column_of(path)
        except ValueError as error:
            yield str(error), ("value", path), ("value", "sink")


def without_table(terms: Mapping[str, Any]) -> Iterator[Disagreement]:
    """Yield what only a contract about a table can say. `terms`: the fields of the contract."""
    if terms["source"].table is not None:
        yield "a table can only be the sink", ("source", "table"), ("source",)
    if terms["tolerance"]:
        why = "only columns of a table have a tolerance. Remove it"
        yield why, ("tolerance",), ("tolerance", "sink")
    identity = terms["identity"]
    for name in () if isinstance(identity, str) else ("source", "sink"):
        if getattr(identity, name).partition(":")[0] == COLUMN:
            why = "only a table has columns. Name key, value, {header: NAME} or {json: $.id}"
            yield why, ("identity", name), ("identity", "sink")
