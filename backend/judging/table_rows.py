"""The rows of a database table, read once, as a reading of a sink (validators/columns.py).

PostgreSQL is asked by this process what columns there are, and Spark's JDBC source reads the rows
in one transaction that sees one moment. Every name in that query comes from the catalogue, and is
quoted here. Other tables are read in a format that Spark has; of Iceberg, at the snapshot that was
the newest one before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window, functions as F
from pyspark.sql.types import BinaryType, CharType, DataType, StringType, StructType, VarcharType

from topicproof.backend.characters import visible
from topicproof.backend.contracts.contract import mistake
from topicproof.backend.contracts.sink_table import Table, column_of
from topicproof.backend.errors import ContractError, RecordTooLarge, SinkError
from topicproof.backend.evidence.footers import PRIMITIVES
from topicproof.backend.evidence.read_limits import UNPACKED_BYTES_MAX
from topicproof.backend.judging.postgres_table import PostgresTable
from topicproof.backend.services.spark_session import failed
from topicproof.backend.yaml_fields import Place
from topicproof.validators.columns import COLUMN, TEXT, is_type
from topicproof.validators.expected import Expect
from topicproof.validators.lineage.headers import LINEAGE_HEADER
from topicproof.validators.question import Question
from topicproof.validators.readings import HEADERS_TYPE

ROW_BYTES_MAX = 8_000_000
"""A larger row is not read. Spark holds some of them in memory at once."""
TABLE_ROWS_MAX = 50_000_000
"""A table of more rows is not read: they are written as evidence, and in 2 kB of Parquet there is
room for billions."""
TABLE_BYTES_MAX = UNPACKED_BYTES_MAX
"""What the texts of all rows of files may take: evidence of more could not be verified."""
TOO_MANY = "topicproof rows"
"""Is the error of a task that reads more rows than a table may have."""
TOO_LARGE = "topicproof row"
"""Begins the error of a row that is too large, with its size. It quotes no value."""
_TOO_LARGE = re.compile(rf"{TOO_LARGE} ([0-9]+)")
LEGAL_TOPIC = r"^[A-Za-z0-9._-]{1,249}$"
PARTITIONS_MAX = 64
"""Spark reads the files of a table in so many tasks at most, each a partition of the reading."""
_MISSING_FORMAT = ("DATA_SOURCE_NOT_FOUND", "ClassNotFoundException", "No suitable driver")
_OTHER_SPARK = ("class was expected", "interface was expected", "can not implement", "NoSuchMethod")
"""What Java says of a package that was built for another version of Spark."""


@dataclass(frozen=True)
class TableSink:
    """The table that a contract names, and the contract's fields, for messages."""

    table: Table
    fields: Mapping[str, object]

    def refused(self, place: Place, why: str) -> ContractError:
        return ContractError(mistake(self.fields, place, why))


class TableReader(Protocol):
    """A table that can be read."""

    @property
    def types(self) -> Mapping[str, str]:
        """The type of each column, as validators/columns.py names them."""

    @property
    def note(self) -> str:
        """At which moment its rows are read, as a sentence."""

    def texts(self) -> tuple[DataFrame, Column]:
        """Return the rows, with a text for each column in the order of `types`, by number; and
        their size in bytes. Lazy: see `require_size`."""

    def require_size(self) -> None:
        """Measure the rows, where they are not all sent over a network: some bytes of a file may be
        gigabytes of rows. Raises SinkError for more than are read."""

    def has_changed(self, rows: int) -> bool:
        """Return whether the table has changed since its rows were read. `rows`: how many that
        were."""


def open_table(spark: SparkSession, sink: TableSink, question: Question) -> TableReader:
    """Look at the table, and check the columns that the contract names. No row is read. Raises
    ContractError, SinkError, SparkError."""
    address = sink.table.address
    reader: TableReader
    if address is not None:
        reader = PostgresTable.open(spark, address, sink.table.title, sink.refused)
    else:
        reader = SparkTable.open(spark, sink)
    _require_columns(sink, question, list(reader.types))
    return reader


def typed(question: Question, reader: TableReader) -> Question:
    """Return the question with the types of the columns that it compares."""
    table = question.agreed.table
    assert table is not None, "only asked of a table"
    names = [compared.removeprefix(f"{COLUMN}:") for compared in question.agreed.compared]
    types = {name: reader.types[name] for name in names}
    return replace(question, agreed=replace(question.agreed, table=replace(table, types=types)))


def reading_of(reader: TableReader, question: Question) -> DataFrame:
    """Return the rows with the columns of a reading. Lazy."""
    terms = question.agreed.table
    assert terms is not None, "only asked of a table"
    frame, size = reader.texts()
    names = list(reader.types)
    text = {name: F.col(f"c{number}") for number, name in enumerate(names)}
    key = F.lit(None).cast("string")
    if len(terms.key) == 1:
        key = text[terms.key[0]]
    elif terms.key:
        parts = [text[name] for name in terms.key]
        is_identity = question.by_key and question.agreed.match.sink == "key"
        # Rows of one input are told apart by what there is of their key. An identity is whole.
        need = F.forall if is_identity else F.exists
        has_key = need(F.array(*parts), lambda part: part.isNotNull())
        key = F.when(has_key, F.to_json(F.array(*parts)))
    error = F.format_string(f"{TOO_LARGE} %d", size)
    row = F.to_json(
        F.struct(*(text[name].alias(name) for name in names)), {"ignoreNullFields": "false"}
    )
    numbered = frame.withColumns({"partition": F.spark_partition_id(), "size": size})
    row_id = F.monotonically_increasing_id()
    # The upper bits are the number of the partition.
    numbered = numbered.withColumn("offset", row_id.bitwiseAND(F.lit((1 << 33) - 1)))
    is_beyond = F.col("offset") >= TABLE_ROWS_MAX
    reading = numbered.select(
        "partition",
        "offset",
        F.lit(None).cast("timestamp").alias("timestamp"),
        key.cast("binary").alias("key"),
        F.when(size > ROW_BYTES_MAX, F.raise_error(error))
        .when(is_beyond, F.raise_error(F.lit(TOO_MANY)))
        .otherwise(row)
        .cast("binary")
        .alias("value"),
        _place_of_input(question, text).alias("place"),
    )
    return _with_lineage(reading, question)


def _place_of_input(question: Question, text: Mapping[str, Column]) -> Column:
    """Return `topic/partition/offset` of a row's input; null if its columns name none."""
    origin = None if question.agreed.table is None else question.agreed.table.origin
    if origin is None:
        return F.lit(None).cast("string")
    topic = F.lit(question.source.topic) if origin[0] is None else text[origin[0]]
    partition, offset = text[origin[1]].try_cast("int"), text[origin[2]].try_cast("long")
    is_place = topic.rlike(LEGAL_TOPIC) & (partition >= 0) & (offset >= 0)
    return F.when(is_place, F.concat_ws("/", topic, partition, offset))


def _with_lineage(reading: DataFrame, question: Question) -> DataFrame:
    """Put what the origin columns name into the header of our own lineage. Rows of one input are
    numbered by their key, so rows with one key repeat one output."""
    number: Column = F.lit(0)
    if question.expected.kind is Expect.ONE_TO_MANY and not question.by_key:
        number = F.dense_rank().over(Window.partitionBy("place").orderBy("key")) - 1
    lineage = F.concat_ws("/", "place", number).cast("binary")
    header = F.struct(F.lit(LINEAGE_HEADER).alias("key"), lineage.alias("value"))
    headers = F.when(F.col("place").isNotNull(), F.array(header)).cast(HEADERS_TYPE)
    return reading.withColumn("headers", headers).drop("place")


def read_error(error: PySparkException, table: Table) -> Exception:
    """Return the sentence for Spark's failure to read a table. Nothing in it is a password: Spark
    quotes no option."""
    title = visible(table.title)
    if (row := _TOO_LARGE.search(str(error))) is not None:
        return RecordTooLarge(
            f"A row of {title} takes {int(row[1]):,} bytes, and {ROW_BYTES_MAX:,} are read at"
            " most. The verdict is UNKNOWN. Check a view without its large columns."
        )
    if TOO_MANY in str(error):
        return too_long(table)
    if any(sign in str(error) for sign in _MISSING_FORMAT):
        lacking, package = "the driver of PostgreSQL", "org.postgresql:postgresql:42.7.14"
        if table.format is not None:
            lacking, package = table.format, f"its package of {table.format}"
        return SinkError(
            f"This Spark cannot read {title}: it lacks {lacking}. Start it with --packages and"
            f" {package}."
        )
    if any(sign in str(error) for sign in _OTHER_SPARK):
        return SinkError(
            f"This Spark cannot read {title}: its package of {table.format} was built for another"
            " version of Spark."
        )
    return failed(f"Spark could not read the table {title}", error)


def too_long(table: Table) -> SinkError:
    """Return the sentence for a table of more rows than are read."""
    return SinkError(
        f"The table {visible(table.title)} has more than {TABLE_ROWS_MAX:,} rows, the most that are"
        " read. The verdict is UNKNOWN. Check a part of it, such as a view of the last days."
    )


@dataclass(frozen=True)
class SparkTable:
    """A table in a format that Spark reads."""

    table: Table
    frame: DataFrame
    fingerprint: Callable[[], object]
    """Returns what differs once the table has changed."""
    before: object
    """What that was before the rows were read."""
    note: str

    @staticmethod
    def open(spark: SparkSession, sink: TableSink) -> SparkTable:
        """Raises SinkError, SparkError."""
        table = sink.table
        try:
            frame, fingerprint, before, note = _opened(spark, table)
            frame.schema  # noqa: B018  Spark looks at the table.
        except PySparkException as error:
            if "PATH_NOT_FOUND" in str(error) or "TABLE_OR_VIEW_NOT_FOUND" in str(error):
                place: Place = ("sink", "table", "path" if table.path else "name")
                raise sink.refused(place, f"Spark finds no table {table.title}") from error
            raise read_error(error, table) from error
        return SparkTable(table, frame, fingerprint, before, note)

    @property
    def types(self) -> Mapping[str, str]:
        schema: StructType = self.frame.schema
        return {field.name: _type_of(field.dataType) for field in schema.fields}

    def texts(self) -> tuple[DataFrame, Column]:
        schema: StructType = self.frame.schema
        columns = [
            _text_of(_quoted(field.name), field.dataType).alias(f"c{number}")
            for number, field in enumerate(schema.fields)
        ]
        sizes = (
            F.coalesce(F.octet_length(f"c{number}").cast("long"), F.lit(0))
            for number in range(len(columns))
        )
        frame = self.frame.coalesce(PARTITIONS_MAX).select(*columns)
        return frame, sum(sizes, start=F.lit(0).cast("long"))

    def require_size(self) -> None:
        """Raises SinkError, SparkError."""
        frame, size = self.texts()
        try:
            (row,) = frame.agg(F.count("*").alias("rows"), F.sum(size).alias("size")).collect()
        except PySparkException as error:
            raise read_error(error, self.table) from error
        if row["rows"] > TABLE_ROWS_MAX:
            raise too_long(self.table)
        if (row["size"] or 0) > TABLE_BYTES_MAX:
            raise SinkError(
                f"The rows of the table {visible(self.table.title)} take {row['size']:,} bytes as"
                f" texts, and {TABLE_BYTES_MAX:,} are read at most. The verdict is UNKNOWN. Check a"
                " part of it, or write the files without its large columns."
            )

    def has_changed(self, rows: int) -> bool:  # noqa: ARG002  the files tell more
        return self.fingerprint() != self.before


def _opened(
    spark: SparkSession, table: Table
) -> tuple[DataFrame, Callable[[], object], object, str]:
    """Return the frame of a table, what tells whether it has changed, what that is now, and a
    note."""
    reader, title = spark.read.format(str(table.format)), visible(table.title)
    if table.format == "iceberg":
        snapshot = _snapshot(spark, table)
        if snapshot is not None:
            reader = reader.option("versionAsOf", str(snapshot))
        moment = "before its first snapshot" if snapshot is None else f"at snapshot {snapshot}"
        note = f"The table {title} was read at once, {moment} of Iceberg."
        return reader.load(_place_of(table)), lambda: _snapshot(spark, table), snapshot, note
    files = _files(spark, table)
    noun = "file" if len(files) == 1 else "files"
    note = f"The table {title} was read once, from {len(files):,} {noun} of {table.format}."
    frame = reader.schema(_plain_schema(table)).load(_place_of(table))
    return frame, lambda: _files(spark, table), files, note


def _files(spark: SparkSession, table: Table) -> frozenset[object]:
    """Return the files of a table, with size and time: a file may be written again."""
    files = spark.read.format("binaryFile").load(_place_of(table))
    # A time as a number does not depend on this machine's zone.
    time = F.unix_micros("modificationTime")
    return frozenset(map(tuple, files.select("path", "length", time).collect()))


def _plain_schema(table: Table) -> StructType:
    """Return the columns as the first file of Parquet has them. Spark would take its own schema
    from the footer, where columns may have SQL as their default and name classes and modules to
    load. Raises SinkError."""
    title, path = visible(table.title), Path(str(table.path))
    if not path.is_absolute():
        raise SinkError(
            f"The table {title} is not read: files of Parquet are read from a folder of this"
            " machine, whose columns are looked at before Spark sees them."
        )
    try:
        inside = path.rglob("*.parquet") if path.is_dir() else iter([path])
        files = sorted(file for file in inside if file.is_file() and _is_read(path, file))
        columns = list(pq.read_schema(files[0])) if files else []
        if _rows_of(files) > TABLE_ROWS_MAX:
            raise too_long(table)
    except (OSError, pa.ArrowException) as error:
        raise SinkError(
            f"The table {title} cannot be read: a footer of Parquet is damaged."
        ) from error
    if not columns:
        raise SinkError(f"The table {title} cannot be read: there is no file with columns.")
    schema = StructType()
    for column in columns:
        kind = _spark_name(column.type)
        if kind is None:
            raise SinkError(
                f"The table {title} has a column {visible(column.name)} of the type"
                f" {visible(str(column.type))}, which is not read. Write the files without it."
            )
        schema = schema.add(column.name, kind)
    return schema


def _is_read(folder: Path, file: Path) -> bool:
    """Return whether Spark reads a file of the folder: not one that is still being written."""
    parts = file.relative_to(folder).parts
    return not any(part.startswith((".", "_")) and "=" not in part for part in parts)


def _rows_of(files: Sequence[Path]) -> int:
    """Return the rows of files as their footers give them, by which Spark reads. Ends once there
    are too many. Raises ArrowException, OSError."""
    rows = 0
    for file in files:
        footer = pq.read_metadata(file)
        groups = (footer.row_group(number).num_rows for number in range(footer.num_row_groups))
        rows += sum(max(0, count) for count in groups)
        if rows > TABLE_ROWS_MAX:
            break
    return rows


def _spark_name(kind: pa.DataType) -> str | None:
    """Return Spark's name of a plain type of Parquet; None of a nested one, or of one that Spark
    does not have."""
    if pa.types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return PRIMITIVES.get(kind)


def _snapshot(spark: SparkSession, table: Table) -> int | None:
    """Return the newest snapshot of an Iceberg table's main branch; None before the first one."""
    place = _place_of(table)
    refs = f"{place}.refs" if table.name else f"{place}#refs"
    rows = spark.read.format("iceberg").load(refs).where(F.col("name") == "main").collect()
    return rows[0]["snapshot_id"] if rows else None


def _place_of(table: Table) -> str:
    if table.name is not None:
        return table.name
    path = str(table.path)
    # A path of this machine, whatever Spark's default storage is. Hadoop decodes no path.
    return f"file://{path}" if path.startswith("/") else path


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _type_of(kind: DataType) -> str:
    name = kind.simpleString()
    return name if is_type(name) else TEXT


def _text_of(name: str, kind: DataType) -> Column:
    """Return the text of a column: of bytes in hexadecimal, of what is nested as JSON."""
    column = F.col(name)
    if isinstance(kind, BinaryType):
        return F.lower(F.hex(column))
    if isinstance(kind, StringType | CharType | VarcharType) or is_type(kind.simpleString()):
        return column.cast("string")
    if kind.simpleString().startswith(("array", "struct", "map")):
        return F.to_json(column)
    return column.cast("string")


def _require_columns(sink: TableSink, question: Question, names: Sequence[str]) -> None:
    """Raises ContractError for a column that the table does not have."""
    mistakes = []
    for place, name in _named(sink, question):
        if name not in names:
            near = get_close_matches(name, names, n=1)
            like = f". The nearest name is {visible(near[0])}" if near else ""
            why = f"{visible(sink.table.title)} has no column {visible(name)}{like}"
            mistakes.append(mistake(sink.fields, place, why))
    if mistakes:
        raise ContractError(*mistakes)


def _named(sink: TableSink, question: Question) -> Iterator[tuple[Place, str]]:
    """Yield the columns that the contract names, with their places."""
    table = sink.table
    for number, name in enumerate(table.key):
        yield ("sink", "table", "key", number), name
    if table.origin is not None:
        for part, name in table.origin.model_dump(exclude_none=True).items():
            yield ("sink", "table", "origin", part), name
    how, _, name = question.agreed.match.sink.partition(":")
    if question.by_key and how == COLUMN:
        yield ("identity", "sink"), name
    value = sink.fields.get("value")
    for path in value if isinstance(value, Mapping) else ():
        yield ("value", str(path)), column_of(str(path))
