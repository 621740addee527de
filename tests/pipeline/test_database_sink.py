"""Tables as sinks: exact under killed workers in SQLite and PostgreSQL, and judged like a topic."""

from __future__ import annotations

import shutil
import sqlite3
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from sqlalchemy import select, update

from backend.errors import SinkError, UsageError
from backend.faults.fault import Step
from backend.judge_table import judge_table
from backend.kafka.cluster import Cluster
from backend.pipeline.database_sink import (
    DATABASE_FORMAT,
    OFFSETS,
    DatabaseSink,
    connect_database,
    make_tables,
    rows_of,
)
from backend.pipeline.journal import FaultFired, read_journal
from backend.pipeline.process import explained
from backend.settings import idempotent_producer_config, spark_source_options
from tests.postgresql import new_database, server
from validators.finding import Guarantee, Outcome
from validators.report import Report

PARTITIONS, RECORDS, PER_TRANSACTION = 2, 600, 50
TABLE = "squares"


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    with server() as url:
        yield url


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of the kind that the test asks for."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'out.db'}"
    return new_database(request.getfixturevalue("postgresql"), f"squares-{uuid.uuid4().hex[:6]}")


@dataclass
class Squares:
    """A program that squares numbers into a table."""

    bootstrap: str
    url: str
    folder: Path
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    name: str = field(default_factory=lambda: f"squares-{uuid.uuid4().hex[:6]}")
    filled: int = 0

    def __post_init__(self) -> None:
        self.cluster = Cluster(self.bootstrap)
        self.cluster.create_topic(self.name, PARTITIONS)
        self.cluster.create_topic(f"{self.name}-journal", 1)
        floor = {(self.name, partition): 0 for partition in range(PARTITIONS)}
        make_tables(self.url, TABLE, self.name, floor, self.guarantee)

    def fill(self, count: int) -> None:
        producer = Producer(idempotent_producer_config(self.bootstrap, {}))
        for number in range(self.filled, self.filled + count):
            producer.produce(self.name, str(number), str(number))
        assert producer.flush(20) == 0
        self.filled += count

    def run(self, spark: SparkSession, **options: str) -> None:
        spark.dataSource.register(DatabaseSink)
        source = spark_source_options(self.bootstrap, {}, "read_committed")
        rows = spark.readStream.format("kafka").options(**source, subscribe=self.name, startingOffsets="earliest")
        square = "cast(cast(pow(cast(cast(value as string) as bigint), 2) as bigint) as string)"
        squares = rows.load().selectExpr("topic", "partition", "offset", "key", f"cast({square} as binary) as value")
        sink = {
            "kafka.bootstrap.servers": self.bootstrap,
            "url": self.url,
            "topic": TABLE,
            "group": self.name,
            "transactionalIdPrefix": self.name,
            "guarantee": self.guarantee,
            "recordsPerTransaction": str(PER_TRANSACTION),
            "journal": f"{self.name}-journal",
            "checkpointLocation": self.checkpoint.as_uri(),
        }
        writer = squares.writeStream.format(DATABASE_FORMAT).options(**sink, **options)
        writer.trigger(availableNow=True).start().awaitTermination()

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def numbers(self) -> Counter[tuple[bytes, bytes]]:
        """Key and value of every row, as any program would read them."""
        rows = rows_of(TABLE)
        with connect_database(self.url).connect() as connection:
            return Counter((row.key, row.value) for row in connection.execute(select(rows.c.key, rows.c.value)))

    def is_exact(self) -> bool:
        return self.numbers() == Counter((b"%d" % n, b"%d" % (n * n)) for n in range(self.filled))

    def verdict(self, spark: SparkSession) -> Report:
        place = self.folder / uuid.uuid4().hex[:6]
        return judge_table(spark, self.cluster, self.url, TABLE, self.cluster.bounds(self.name), place, self.guarantee)

    def found(self, spark: SparkSession) -> dict[str, int]:
        return {one.kind: one.primary for one in self.verdict(spark).findings if one.primary}


@pytest.mark.parametrize(
    ("url", "guarantee"),
    [
        ("sqlite", Guarantee.EXACTLY_ONCE),
        ("postgresql", Guarantee.EXACTLY_ONCE),
        ("postgresql", Guarantee.AT_LEAST_ONCE),
    ],
    indirect=["url"],
)
def test_a_table_is_exact_wherever_its_worker_dies(
    bootstrap: str, spark: SparkSession, url: str, guarantee: Guarantee, tmp_path: Path
) -> None:
    """Story: each of two workers is killed at every step of a transaction, and transactions abort by a draw. Then the
    checkpoint is lost as well, and more numbers come. Every square is in the table once; where an input is processed
    again, an upsert leaves one row of it."""
    squares = Squares(bootstrap, url, tmp_path, guarantee)
    squares.fill(RECORDS)
    faults = [f"crash@transaction={number},step={step}" for number, step in enumerate(STEPS, start=1)]
    squares.run(spark, faults=" ".join(faults), abortProbability="0.2", seed="3")
    assert squares.is_exact()
    shutil.rmtree(squares.checkpoint)
    squares.fill(PER_TRANSACTION)
    squares.run(spark)
    assert squares.is_exact()
    report = squares.verdict(spark)
    assert report.verdict is Outcome.HOLDS, report.why
    entries = read_journal(bootstrap, {}, f"{squares.name}-journal")
    assert sum(isinstance(entry, FaultFired) for entry in entries) == len(faults) * PARTITIONS


STEPS = (Step.BEGUN, Step.PRODUCING, Step.PRODUCED, Step.OFFSET_SENT, Step.COMMITTED)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_table_that_was_changed_behind_its_back_is_found_out(
    bootstrap: str, spark: SparkSession, url: str, tmp_path: Path
) -> None:
    """Story: somebody copies two rows, deletes one, and exchanges the inputs of two others. The verdict counts each.
    Then the offset of a partition is set back, so that its next transaction is not where the journal says: refused. A
    group without an offset is refused as well."""
    squares = Squares(bootstrap, url, tmp_path)
    squares.fill(RECORDS)
    squares.run(spark)
    assert squares.found(spark) == {}
    with sqlite3.connect(tmp_path / "out.db") as connection:
        columns = "source_topic, source_partition, source_offset, output_index, key, value"
        own = f"from {TABLE} where source_partition = 0 and source_offset"
        connection.execute(f"insert into {TABLE} ({columns}) select {columns} {own} in (5, 6)")
        connection.execute(f"delete {own} = 10")
        connection.execute(
            f"update {TABLE} set source_offset = 41 - source_offset where source_partition = 0 and source_offset in "
            "(20, 21)"
        )
    connection.close()
    assert squares.found(spark) == {"duplicate": 2, "gap": 1, "order": 1}
    squares.fill(PER_TRANSACTION)
    with connect_database(url).begin() as changed:
        changed.execute(update(OFFSETS).where(OFFSETS.c.partition == 0).values(next_offset=50))
    assert "journal says" in refusal(squares, spark)
    with connect_database(url).begin() as changed:
        changed.execute(OFFSETS.delete())
    assert refusal(squares, spark).startswith(f"Group {squares.name} has no offset for {squares.name}-")


def refusal(squares: Squares, spark: SparkSession) -> str:
    with pytest.raises(PySparkException) as refused:
        squares.run(spark)
    error = explained(refused.value)
    assert isinstance(error, SinkError)
    return str(error)


def test_where_a_group_begins_is_said_once_and_a_bad_address_is_refused(tmp_path: Path) -> None:
    """Story: the tables are made twice for one group, the second time with another floor. The second time is refused
    and changes nothing. What is no address of a database is refused without repeating it: it may hold a password."""
    url = f"sqlite:///{tmp_path / 'out.db'}"
    make_tables(url, TABLE, "run", {("numbers", 0): 7})
    with pytest.raises(SinkError, match="Group run has begun already in sqlite"):
        make_tables(url, TABLE, "run", {("numbers", 0): 0})
    with connect_database(url).connect() as connection:
        assert connection.execute(select(OFFSETS.c.next_offset)).scalars().all() == [7]
    for wrong in ("no address", "kassandra://user:secret@host/name"):
        with pytest.raises(UsageError) as refused:
            connect_database(wrong)
        assert "secret" not in str(refused.value)
