"""Tables as sinks: exact under killed workers in SQLite and PostgreSQL, judged like topics; whole
runs into them."""

from __future__ import annotations

import shutil
import socket
import sqlite3
import struct
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from sqlalchemy import inspect, select, text, update

from tests.conftest import wait_until
from tests.postgresql import new_database
from tests.runs import run_to_end
from topicproof.backend.address import Address
from topicproof.backend.errors import SinkError, UsageError
from topicproof.backend.evidence.folder import evidence_in
from topicproof.backend.faults.injecting_table import InjectingDatabaseSink
from topicproof.backend.history.store import History, State
from topicproof.backend.judging.table_check import judge_table
from topicproof.backend.kafka.client_configs import idempotent_producer_config, spark_source_options
from topicproof.backend.kafka.cluster import Cluster
from topicproof.backend.runs.clean import clean
from topicproof.backend.runs.context import make_context
from topicproof.backend.runs.create import create
from topicproof.backend.runs.execute import execute
from topicproof.backend.runs.plan import make_plan
from topicproof.backend.runs.query import explained
from topicproof.backend.runs.resume import resume
from topicproof.backend.services.keeper import Services
from topicproof.backend.services.spark_session import spark_session
from topicproof.backend.settings import Settings
from topicproof.backend.sink.entries import FaultFired
from topicproof.backend.sink.hooks import Step
from topicproof.backend.sink.journal import read_journal
from topicproof.backend.sink.table import (
    DATABASE_FORMAT,
    OFFSETS,
    connect_database,
    make_tables,
    require_no_table,
    rows_of,
)
from topicproof.backend.verifying.verify import verify
from topicproof.validators.finding import Guarantee, Outcome
from topicproof.validators.question import Question
from topicproof.validators.report import Report

PARTITIONS, RECORDS, PER_TRANSACTION = 2, 600, 50
TABLE = "squares"
STARTUP, PLAIN_TEXT = 3 << 16, 3
"""PostgreSQL's protocol: the code of a startup message, and of an authentication."""


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
        self.cluster = Cluster(Address(self.bootstrap))
        self.cluster.create_topic(self.name, PARTITIONS)
        self.cluster.create_topic(f"{self.name}-journal", 1)
        initial = {(self.name, partition): 0 for partition in range(PARTITIONS)}
        make_tables(self.url, TABLE, self.name, initial, self.guarantee)

    def fill(self, count: int) -> None:
        producer = Producer(idempotent_producer_config(Address(self.bootstrap)))
        for number in range(self.filled, self.filled + count):
            producer.produce(self.name, str(number), str(number))
        assert producer.flush(20) == 0
        self.filled += count

    def run(self, spark: SparkSession, **options: str) -> None:
        spark.dataSource.register(InjectingDatabaseSink)
        source = spark_source_options(Address(self.bootstrap), "read_committed")
        rows = spark.readStream.format("kafka").options(
            **source, subscribe=self.name, startingOffsets="earliest"
        )
        square = "cast(cast(pow(cast(cast(value as string) as bigint), 2) as bigint) as string)"
        squares = rows.load().selectExpr(
            "topic", "partition", "offset", "key", f"cast({square} as binary) as value"
        )
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

    def is_exact(self) -> bool:
        return numbers_in(self.url, TABLE) == squares_to(self.filled)

    def verdict(self, spark: SparkSession) -> Report:
        place = self.folder / uuid.uuid4().hex[:6]
        question = Question(self.cluster.bounds(self.name), TABLE, guarantee=self.guarantee)
        return judge_table(spark, self.cluster, self.url, question, place)

    def found(self, spark: SparkSession) -> dict[str, int]:
        return {one.kind: one.primary for one in self.verdict(spark).findings if one.primary}


def numbers_in(url: str, table: str) -> Counter[tuple[bytes, bytes]]:
    """Key and value of every row, as any program would read them."""
    rows = rows_of(table)
    with connect_database(url).connect() as connection:
        return Counter(
            (row.key, row.value) for row in connection.execute(select(rows.c.key, rows.c.value))
        )


def squares_to(count: int) -> Counter[tuple[bytes, bytes]]:
    return Counter((b"%d" % number, b"%d" % (number * number)) for number in range(count))


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
    """Story: each of two workers is killed at every step of a transaction, and transactions abort
    by a draw. Then the checkpoint is lost as well, and more numbers come. Every square is in the
    table once; where an input is processed again, an upsert leaves one row of it."""
    squares = Squares(bootstrap, url, tmp_path, guarantee)
    squares.fill(RECORDS)
    faults = [
        f"crash@transaction={number},step={step}" for number, step in enumerate(STEPS, start=1)
    ]
    squares.run(spark, faults=" ".join(faults), abortProbability="0.2", seed="3")
    assert squares.is_exact()
    shutil.rmtree(squares.checkpoint)
    squares.fill(PER_TRANSACTION)
    squares.run(spark)
    assert squares.is_exact()
    report = squares.verdict(spark)
    assert report.verdict is Outcome.HOLDS, report.why
    entries = read_journal(Address(bootstrap), f"{squares.name}-journal")
    assert sum(isinstance(entry, FaultFired) for entry in entries) == len(faults) * PARTITIONS


STEPS = (Step.BEGUN, Step.PRODUCING, Step.PRODUCED, Step.OFFSET_SENT, Step.COMMITTED)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_table_that_was_changed_behind_its_back_is_found_out(
    bootstrap: str, spark: SparkSession, url: str, tmp_path: Path
) -> None:
    """Story: somebody copies two rows, deletes one, and exchanges the inputs of two others. The
    verdict counts each. Then the offset of a partition is set back, so that its next transaction is
    not where the journal says: refused. A group without an offset is refused as well."""
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
            f"update {TABLE} set source_offset = 41 - source_offset where source_partition = 0 and"
            " source_offset in (20, 21)"
        )
    connection.close()
    assert squares.found(spark) == {"duplicate": 2, "gap": 1, "order": 1}
    squares.fill(PER_TRANSACTION)
    with connect_database(url).begin() as changed:
        changed.execute(update(OFFSETS).where(OFFSETS.c.partition == 0).values(next_offset=50))
    assert "journal says" in refusal(squares, spark)
    with connect_database(url).begin() as changed:
        changed.execute(OFFSETS.delete())
    assert refusal(squares, spark).startswith(
        f"Group {squares.name} has no offset for {squares.name}-"
    )


def refusal(squares: Squares, spark: SparkSession) -> str:
    with pytest.raises(PySparkException) as refused:
        squares.run(spark)
    error = explained(refused.value)
    assert isinstance(error, SinkError)
    return str(error)


def test_where_a_group_begins_is_said_once_and_a_bad_address_is_refused(tmp_path: Path) -> None:
    """Story: the tables are made twice for one group, the second time with other initial
    offsets. The second time is refused and changes nothing. An invalid database address is refused
    without repeating it: it may hold a password."""
    url = f"sqlite:///{tmp_path / 'out.db'}"
    make_tables(url, TABLE, "run", {("numbers", 0): 7})
    with pytest.raises(SinkError, match="Group run has already begun in sqlite"):
        make_tables(url, TABLE, "run", {("numbers", 0): 0})
    with connect_database(url).connect() as connection:
        assert connection.execute(select(OFFSETS.c.next_offset)).scalars().all() == [7]
    for wrong in ("no address", "kassandra://user:secret@host/name"):
        with pytest.raises(UsageError) as refused:
            connect_database(wrong)
        assert "secret" not in str(refused.value)


def test_the_file_of_another_program_gets_no_table(tmp_path: Path) -> None:
    """Story: the author of a plan names the history of this installation as the file of the sink.
    An empty file and one of an earlier sink are accepted."""
    url = f"sqlite:///{tmp_path / 'history.db'}"
    require_no_table(url, TABLE)
    make_tables(url, TABLE, "run", {("numbers", 0): 0})
    require_no_table(url, "another")
    others = f"sqlite:///{tmp_path / 'others.db'}"
    with connect_database(others).begin() as connection:
        connection.execute(text("create table runs (id integer)"))
    with pytest.raises(SinkError, match="is the database of another program"):
        require_no_table(others, TABLE)


RUN = {
    "scenario": "table",
    "records": 600,
    "partitions": 2,
    "per_transaction": 40,
    "abort_probability": 0.2,
}


def test_a_run_into_a_table_is_stopped_resumed_verified_and_cleaned(
    settings: Settings, cluster: Services
) -> None:
    """Story: a run writes a table of SQLite in its own folder. Its workers are killed, and each
    becomes a zombie later, with the table's lock in its hand. It is stopped half-way, where the
    verdict on its rows holds, and resumed. In the end every square is in the table once, its
    evidence gives the same verdict again, and nothing is left of it when it is cleaned."""
    history = History(settings)
    faults = ["crash@transaction=2", "zombie@transaction=4"]
    run = create(settings, cluster, history, make_plan({**RUN, "faults": faults, "seed": 5}))
    stop = threading.Event()
    context = make_context(settings, cluster, history, run, stop)
    with ThreadPoolExecutor(1) as pool:
        executing = pool.submit(execute, context)
        wait_until(
            lambda: history.get(run.id).progress.processed > 0 or executing.done(),
            180,
            "a row",
        )
        stop.set()
        report = executing.result()
    assert report is not None and report.verdict is Outcome.HOLDS, (
        history.get(run.id).error,
        report and report.why,
    )
    assert history.get(run.id).state is State.STOPPED
    report = resume(settings, cluster, history, run.id)
    assert report is not None and report.verdict is Outcome.HOLDS, report and report.why
    url, table = run.facts.database, run.facts.sink
    assert url is not None and numbers_in(url, table) == squares_to(600)
    assert (report.not_processed, report.fates["committed"]) == (0, 600)
    journal = read_journal(Address(cluster.bootstrap), run.facts.journal)
    assert {entry.fault for entry in journal if isinstance(entry, FaultFired)} == set(faults)
    (evidence,) = evidence_in(settings.runs / run.id)
    with spark_session(cluster.spark_remote) as spark:
        assert verify(spark, evidence).exit_code == 0
    assert table in clean(settings, cluster, history, run.id)
    assert not (settings.runs / run.id).exists()


def test_a_run_of_upserts_into_postgresql(
    settings: Settings, cluster: Services, postgresql: str
) -> None:
    """Story: an at-least-once run upserts into a table of PostgreSQL that the plan names, under a
    crash between rows and offset. Every square is there once. A second run into that table is
    refused before anything is made; cleaned, the table is gone."""
    url = new_database(postgresql, f"run-{uuid.uuid4().hex[:6]}")
    sink = {"url": url, "topic": "squares"}
    faults = ["crash@transaction=2,step=produced", "crash@transaction=3,step=offset_sent"]
    finished = run_to_end(
        settings, cluster, **{**RUN, "guarantee": "at_least_once", "sink": sink, "faults": faults}
    )
    assert finished.report.verdict is Outcome.HOLDS, finished.report.why
    assert numbers_in(url, "squares") == squares_to(600)
    history = History(settings)
    before = Cluster(Address(cluster.bootstrap)).topics(), len(history.list())
    with pytest.raises(SinkError, match="has a table squares already"):
        create(settings, cluster, history, make_plan({**RUN, "sink": sink}))
    assert (Cluster(Address(cluster.bootstrap)).topics(), len(history.list())) == before
    clean(settings, cluster, history, finished.run.id)
    assert not inspect(connect_database(url)).has_table("squares")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"guarantee": "at_most_once"},
            "guarantee: a table is written exactly_once or at_least_once",
        ),
        (
            {"faults": ["crash@transaction=1", "hijack@transaction=2"]},
            "faults.1: hijack@transaction=2 strikes",
        ),
        ({"faults": ["crash@transaction=1,step=committing"]}, "at any step but committing"),
        ({"sink": {"dead_letters": True}}, "sink.dead_letters: a table has no dead letters"),
        (
            {"sink": {"url": "sqlite:///here.db"}},
            "sink.url: give the absolute path of a SQLite file",
        ),
        (
            {"sink": {"url": "sqlite:////root/.ssh/authorized_keys"}},
            "sink.url: the name of a SQLite file ends with .db, .sqlite",
        ),
        (
            {"sink": {"url": "sqlite:////root/.vimrc%00.db"}},
            "sink.url: the name of a SQLite file ends with .db, .sqlite",
        ),
        (
            {"sink": {"url": "sqlite:////out.db/../.vimrc"}},
            "sink.url: the name of a SQLite file ends with .db, .sqlite",
        ),
        (
            {"sink": {"url": "postgresql+psycopg://me:secret@host/name"}},
            "so it must not hold a password",
        ),
        (
            {"sink": {"url": "postgresql+psycopg://me@host/name?password=secret"}},
            "sink.url: the address may not set password, only application_name",
        ),
        (
            {"sink": {"url": "postgresql+psycopg://me@host/name?sslmode=require&service=secret"}},
            "sink.url: the address may not set service",
        ),
        (
            {"scenario": "squares", "sink": {"url": "sqlite:////here.db"}},
            "sink.url: squares writes topics",
        ),
    ],
)
def test_what_a_table_cannot_do_is_refused(fields: dict[str, object], says: str) -> None:
    """Story: a plan asks a table for what only topics have. It is refused with its field, and no
    secret is repeated."""
    with pytest.raises(UsageError) as refused:
        make_plan({"scenario": "table", **fields})
    assert says in str(refused.value) and "secret" not in str(refused.value)


def _password_wanted(server: socket.socket) -> bytes:
    """Ask the next client for its password in plain text, as PostgreSQL does. Returns what comes
    then."""
    client, _ = server.accept()
    with client, client.makefile("rb") as stream:
        while True:
            length, code = struct.unpack(">ii", stream.read(8))
            stream.read(length - 8)
            if code == STARTUP:
                break
            client.sendall(b"N")  # No TLS, and no Kerberos.
        client.sendall(b"R" + struct.pack(">ii", 8, PLAIN_TEXT))
        return stream.read()


def test_a_server_that_a_plan_names_gets_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: the author of a plan names a server of theirs, which asks for a password in plain
    text. libpq has one for another server in its environment."""
    monkeypatch.setenv("PGPASSWORD", "of-another-server")
    monkeypatch.delenv("PGREQUIREAUTH", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        url = f"postgresql+psycopg://app@{address}/x?sslmode=disable"
        plan = make_plan({"scenario": "table", "sink": {"url": url}})
        assert plan.sink.url is not None
        answer = pool.submit(_password_wanted, server)
        with pytest.raises(SinkError, match="authentication method requirement"):
            require_no_table(plan.sink.url, "squares")
        assert answer.result() == b""
