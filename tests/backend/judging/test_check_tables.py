"""Contracts about tables: what a pipeline writes into a database, or into files of Spark."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tests import postgresql
from tests.backend.judging.test_check_letters import require_proven
from tests.conftest import wait_until
from topicproof.backend.address import Address, Sides
from topicproof.backend.contracts.contract import make_contract, parse_fields
from topicproof.backend.contracts.contract_question import question_of
from topicproof.backend.errors import ContractError, RecordTooLarge, SinkError
from topicproof.backend.evidence.folder import CONTRACT, EVIDENCE
from topicproof.backend.judging import table_rows
from topicproof.backend.judging.judge import JudgeOptions, judge_topics
from topicproof.backend.judging.presence import question_of_nothing
from topicproof.backend.judging.table_capture import rows_without_key
from topicproof.backend.judging.table_rows import SparkTable, TableReader, TableSink, open_table
from topicproof.backend.kafka.client_configs import transactional_producer_config
from topicproof.backend.kafka.cluster import Cluster
from topicproof.validators.columns import TEXT, is_type
from topicproof.validators.finding import Bounds, Finding, Outcome
from topicproof.validators.lineage.headers import LINEAGE_HEADER
from topicproof.validators.question import Question
from topicproof.validators.readings import HEADERS_TYPE
from topicproof.validators.report import Report

ORDERS = 20
NUMBERS = range(ORDERS)
ABORTED = 99
"""The id of an order whose transaction was aborted."""
BY_ID = """
identity: {source: {json: $.id}, sink: {column: order_id}}
value:
  amount: cast(field('amount') as decimal(12,2)) * 2
  rate: cast(field('amount') as double) / 3
  note: field('note')
tolerance: 0.000001
"""


@dataclass(frozen=True)
class Pipeline:
    """A topic, and a server whose databases hold what became of it."""

    bootstrap: str
    source: str
    url: str

    def contract(self, table: str, terms: str, database: str = "postgres") -> str:
        address = self.url.partition("@")[2].rpartition("/")[0]
        url = f"jdbc:postgresql://{address}/{database}?user=tests"
        return (
            f"source: {{topic: {self.source}}}\n"
            f"sink: {{table: {{url: '{url}', name: {table}, {terms}"
        )

    def judge(self, spark: SparkSession, folder: Path, text: str, **changes: Any) -> Report:
        """Judge as `topicproof check` does, which keeps the contract in the evidence."""
        contract = make_contract(parse_fields(text))
        assert contract.table is not None
        question = replace(question_of(contract, Cluster(Address(self.bootstrap))), **changes)
        options = JudgeOptions(
            attachments={CONTRACT: text}, table=TableSink(contract.table, contract.yaml_fields)
        )
        return judge_topics(spark, Sides(Address(self.bootstrap)), question, folder, options)


def order(number: int) -> dict[str, Any]:
    return {"id": number, "amount": f"{number}.50", "note": f"order {number}"}


def row(number: int) -> tuple[Any, ...]:
    """The row of an order: id, amount, rate, note, and the place of its input."""
    return (
        number,
        f"{2 * number + 1}",
        (number + 0.5) / 3,
        f"order {number}",
        number % 2,
        number // 2,
    )


@pytest.fixture(scope="module")
def pipeline(bootstrap: str) -> Iterator[Pipeline]:
    source = f"orders-{uuid.uuid4().hex[:6]}"
    cluster = Cluster(Address(bootstrap))
    cluster.create_topic(source, 2, exists_ok=False)
    producer = Producer(transactional_producer_config(Address(bootstrap), source))
    producer.init_transactions(30)

    def write(*numbers: int) -> None:
        for number in numbers:
            data = json.dumps(order(number)).encode()
            producer.produce(source, data, str(number).encode(), partition=number % 2)

    producer.begin_transaction()
    write(*NUMBERS)
    producer.commit_transaction(30)
    producer.begin_transaction()
    write(ABORTED)
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    settled = lambda: all(p.lso == p.hw for p in cluster.bounds(source).partitions)  # noqa: E731
    wait_until(settled, 30, "the markers")
    with postgresql.server() as url:
        yield Pipeline(bootstrap, source, url)


@pytest.fixture
def database(pipeline: Pipeline) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(pipeline.url.replace("+psycopg", ""), autocommit=True) as connection:
        yield connection


def fill(database: psycopg.Connection[Any], table: str, rows: list[tuple[Any, ...]]) -> None:
    database.execute(
        f"create table {table} (order_id bigint, amount numeric(12,2), rate double precision,"
        " note text, t_partition int, t_offset bigint)"
    )
    with database.cursor() as cursor:
        cursor.executemany(f"insert into {table} values (%s, %s, %s, %s, %s, %s)", rows)


def opened(pipeline: Pipeline, spark: SparkSession, text: str) -> TableReader:
    contract = make_contract(parse_fields(text))
    assert contract.table is not None
    question = question_of(contract, Cluster(Address(pipeline.bootstrap)))
    return open_table(spark, TableSink(contract.table, contract.yaml_fields), question)


def counts(report: Report) -> dict[str, int]:
    return {each.kind: each.count for each in report.findings if each.count}


def finding(report: Report, kind: str) -> Finding:
    return next(each for each in report.findings if each.kind == kind)


def test_every_fault_of_a_table_is_found(
    pipeline: Pipeline,
    database: psycopg.Connection[Any],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Story: a program writes a row for each order. It loses one, writes two twice, and writes one
    of an aborted order and one of nobody. It forgets one amount, mistakes another one and the note
    beside it, and computes a rate that is not within the tolerance. Another rate is. All are
    counted, each with its key and the place of its input, and the evidence proves it without the
    database."""
    by_id = {number: row(number) for number in NUMBERS if number != 3}
    by_id[1] = (*by_id[1][:2], by_id[1][2] * (1 + 1e-9), *by_id[1][3:])
    by_id[7] = (7, None, *by_id[7][2:])
    by_id[8] = (8, "0.01", by_id[8][2], "order 9", *by_id[8][4:])
    by_id[9] = (*by_id[9][:2], by_id[9][2] * 1.001, *by_id[9][3:])
    strangers = [(500, "1", 1.0, "nobody", 0, 500), (ABORTED, "199", 33.1, "x", 1, 10)]
    fill(database, "invoices", [*by_id.values(), row(5), row(6), *strangers])
    text = pipeline.contract("invoices", "key: [order_id]}}\n") + BY_ID
    report = pipeline.judge(spark, tmp_path / "broken", text)

    assert report.verdict is Outcome.VIOLATED, report.why
    assert counts(report) == {
        "gap": 1,
        "duplicate": 2,
        "phantom": 2,
        "wrong_value": 3,
        "aborted_input": 1,
    }
    assert f"1 of 20 expected rows is missing (of input {pipeline.source}-1@1)" in report.why
    assert finding(report, "phantom").why == (
        "1 of 23 rows is no expected row of any judged input. 1 more is a consequence of"
        " aborted_input."
    )
    assert "2 of 21 rows repeat a row" in finding(report, "duplicate").why
    assert sorted(filter(None, (e.identity for e in finding(report, "duplicate").examples))) == [
        '"5"',
        '"6"',
    ]
    wrong = finding(report, "wrong_value")
    assert wrong.story == "By column: amount in 2 rows, note in 1 row, rate in 1 row."
    whys = {example.identity: example.why for example in wrong.examples}
    assert 'amount is NULL, and "15" is expected.' in whys['"7"']
    assert 'amount is "0.01", and "17" is expected; note is "order 9"' in whys['"8"']
    assert {example.lineage for example in wrong.examples} == {
        f"{pipeline.source}/1/3/0",
        f"{pipeline.source}/0/4/0",
        f"{pipeline.source}/1/4/0",
    }
    reasons = {check.kind: check.why for check in report.not_checked}
    assert reasons["order"] == "Not judged: a table has no order of its rows."
    assert {"aborted_read", "torn", "zombie_write"} <= reasons.keys()
    assert report.notes == (
        "The table public.invoices was read at once, in one repeatable read of PostgreSQL.",
    )
    database.execute("drop table invoices")
    require_proven(spark, tmp_path / "broken" / EVIDENCE, 1)


def test_rows_that_name_their_inputs_hold_and_may_run_ahead(
    pipeline: Pipeline,
    database: psycopg.Connection[Any],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Story: each row of a view has the partition and the offset of its order. The last orders are
    not due yet, although some have their row. The verdict holds; once a row repeats its input, it
    does not. A key that several inputs share is no key."""
    rows = [row(number) for number in NUMBERS]
    fill(database, "ledger", rows)
    database.execute('create schema sales; create view sales."Le dger" as select * from ledger')
    text = pipeline.contract(
        "'sales.Le dger'", "origin: {partition: t_partition, offset: t_offset}}}\n"
    )
    text += "value: {amount: \"cast(field('amount') as decimal(12,2)) * 2\"}\n"
    due = {0: 8, 1: 8}
    report = pipeline.judge(spark, tmp_path / "healthy", text, due=due)
    assert report.verdict is Outcome.HOLDS, report.why
    assert report.source_records == 16
    assert finding(report, "phantom").explained_by == "range"

    database.execute("update ledger set note = 'one' where order_id < 3")
    text = text.replace("origin: {", "key: [note], origin: {")
    report = pipeline.judge(spark, tmp_path / "keyless", text)
    assert report.verdict is Outcome.UNKNOWN
    assert report.why == (
        "Could not be judged: the contract's `key` (note) does not identify a row: 1 value of it is"
        " in rows of different inputs. Name the columns that do."
    )


def test_what_is_wrong_is_said_before_anything_is_read(
    pipeline: Pipeline, database: psycopg.Connection[Any], spark: SparkSession
) -> None:
    """Story: somebody writes a contract with mistakes, or names a database that is away, or one
    that says no or would hide rows. Each is a sentence, with the nearest name if there is one."""
    fill(database, "payments", [row(1)])
    database.execute("create role guest login; revoke all on payments from public")

    def said(text: str) -> str:
        with pytest.raises((ContractError, SinkError)) as refused:
            opened(pipeline, spark, text)
        return str(refused.value)

    text = pipeline.contract("payments", "key: [order_idd]}}\n")
    text += "identity: {source: {json: $.id}, sink: {column: orderid}}\nvalue: {amont: key}\n"
    assert said(text).splitlines() == [
        "contract.yaml, line 2: sink.table.key.0: payments has no column order_idd. The nearest"
        " name is order_id.",
        "contract.yaml, line 3: identity.sink: payments has no column orderid. The nearest"
        " name is order_id.",
        "contract.yaml, line 4: value.amont: payments has no column amont. The nearest name is"
        " amount.",
    ]
    by_key = "key: [order_id]}}\nidentity: {source: {json: $.id}, sink: key}\n"
    assert "has no table paymets. The nearest name is payments." in said(
        pipeline.contract("paymets", by_key)
    )
    text = pipeline.contract("payments", by_key)
    assert "permission denied" in said(text.replace("user=tests", "user=guest")) or (
        "may not read the column" in said(text.replace("user=tests", "user=guest"))
    )
    database.execute(
        "grant select on payments to guest; alter table payments enable row level security;"
        " create policy hidden on payments for select to guest using (order_id <> 1)"
    )
    assert "affected by row-level security" in said(text.replace("user=tests", "user=guest"))
    assert 'database "other" does not exist' in said(text.replace("/postgres?", "/other?"))
    closed = text.replace(pipeline.url.rpartition(":")[2].partition("/")[0], "1")
    assert "The database 127.0.0.1:1/postgres cannot be read: connection" in said(closed)
    for kind, why in (("iceberg", "This Spark cannot read /nowhere: it lacks iceberg."),):
        text = f"source: {{topic: {pipeline.source}}}\nsink: {{table: {{format: {kind},"
        text += " path: /nowhere, key: [order_id]}}\nidentity: {source: key, sink: key}\n"
        assert why in said(text)


def test_a_row_that_is_too_large_is_a_sentence(
    pipeline: Pipeline, database: psycopg.Connection[Any], spark: SparkSession, tmp_path: Path
) -> None:
    """Story: somebody stores a document of 9 MB in a row. PostgreSQL does not send it."""
    fill(database, "documents", [row(1)])
    database.execute("update documents set note = repeat('x', 9000000)")
    by_key = "key: [order_id]}}\nidentity: {source: {json: $.id}, sink: key}\n"
    with pytest.raises(RecordTooLarge, match=r"A row of documents takes 9,000,\d+ bytes"):
        pipeline.judge(spark, tmp_path / "large", pipeline.contract("documents", by_key))


def test_a_password_is_that_of_libpq_and_stays_there(
    pipeline: Pipeline, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Story: the server asks for a password. It is in a file, as psql takes it, and in no plan of
    Spark. A wrong one is a sentence."""
    secret = tmp_path / "secret"
    secret.write_text("hush-hush\n")
    secret.chmod(0o644)
    passwords = tmp_path / "pgpass"
    passwords.write_text("*:*:*:tests:hush-hush\n")
    passwords.chmod(0o600)
    with postgresql.server(password=secret) as url:
        monkeypatch.setenv("PGPASSFILE", str(passwords))
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
            fill(connection, "invoices", [row(1)])
        text = replace(pipeline, url=url).contract("invoices", "key: [order_id]}}\n") + BY_ID
        reader = opened(pipeline, spark, text)
        frame = reader.texts()[0]
        assert frame.count() == 1
        assert "hush" not in frame._explain_string(extended=True)  # type: ignore[operator]
        passwords.write_text("*:*:*:tests:guessed\n")
        with pytest.raises(SinkError, match="password authentication failed") as refused:
            opened(pipeline, spark, text)
        assert "guessed" not in str(refused.value)


def test_files_of_parquet_are_judged_as_rows(
    pipeline: Pipeline, spark: SparkSession, tmp_path: Path
) -> None:
    """Story: a job writes two lines of each order into files, with the place of its input. One
    line is there twice, one is missing, and one names a place that the topic does not have. Part of
    a key is NULL, and the other part tells two lines apart. A file that is written again under its
    own name is a change of the table."""
    lines: list[tuple[Any, ...]] = [
        (
            pipeline.source,
            n % 2,
            n // 2,
            None if n == 6 else n,
            line,
            bytes([n]),
            datetime(2026, 1, 1, n, tzinfo=UTC),
        )
        for n in NUMBERS
        for line in (1, 2)
        if (n, line) != (4, 2)
    ]
    lines += [lines[2], (pipeline.source, 1, 900, 7, 1, b"", None)]
    columns = "t string, p int, o bigint, order_id int, line int, raw binary, at timestamp"
    spark.createDataFrame(lines, columns).repartition(3).write.parquet(
        f"file://{tmp_path}/the lines"
    )
    text = (
        f"source: {{topic: {pipeline.source}}}\nsink: {{table: {{format: parquet,"
        f" path: '{tmp_path}/the lines', key: [order_id, line],"
        " origin: {topic: t, partition: p, offset: o}}}\n"
        "expect: one_to_many\ncount: 2\n"
    )
    report = pipeline.judge(spark, tmp_path / "report", text)
    assert counts(report) == {"gap": 1, "duplicate": 1, "phantom": 1}
    (repeated,) = finding(report, "duplicate").examples
    assert (repeated.identity, repeated.lineage) == ('"["1","1"]"', f"{pipeline.source}/1/0/0")
    assert report.notes[0].endswith("was read once, from 3 files of parquet.")

    reader = opened(pipeline, spark, text)
    assert not reader.has_changed(len(lines))
    os.utime(next((tmp_path / "the lines").glob("*.parquet")), (1, 1))
    assert reader.has_changed(len(lines))

    terms = make_contract(parse_fields(text))
    question = question_of(terms, Cluster(Address(pipeline.bootstrap)))
    inputs = [(key, [(LINEAGE_HEADER, b"a")]) for key in (None, None, b"1", b"1")]
    rows = spark.createDataFrame(inputs, f"key binary, headers {HEADERS_TYPE}")
    (doubt,) = rows_without_key(question, rows)
    assert "1 input has several rows without it" in doubt


@pytest.mark.parametrize("place", ["parquet", "url"])
def test_a_table_of_too_many_rows_is_a_sentence(
    pipeline: Pipeline,
    database: psycopg.Connection[Any],
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    """Story: 2 kB of Parquet are millions of rows. A table has a limit of rows, which footers show
    before Spark reads, and a limit of what these take. A footer that lies helps nobody, and a
    database cannot send more."""
    rows = [row(number) for number in NUMBERS]
    if place == "url":
        fill(database, "many", rows)
        text = pipeline.contract("many", "key: [order_id]}}\n") + BY_ID
    else:
        columns = "order_id bigint, amount string, rate double, note string, t int, o bigint"
        folder = tmp_path / "many"
        spark.createDataFrame(rows, columns).coalesce(1).write.parquet(f"file://{folder}")
        (folder / "_temporary").mkdir()
        (folder / "_temporary" / "part-1.parquet").write_bytes(b"PAR1 not yet")
        text = f"source: {{topic: {pipeline.source}}}\nsink: {{table: {{format: parquet,"
        text += f" path: {folder}, key: [order_id]}}}}\nidentity: {{source: {{json: $.id}},"
        text += " sink: {column: order_id}}\n"
    sentence = "has more than 19 rows, the most that are read. The verdict is UNKNOWN."
    with monkeypatch.context() as patch:
        patch.setattr(table_rows, "TABLE_ROWS_MAX", ORDERS)
        assert not counts(pipeline.judge(spark, tmp_path / "all", text))
        patch.setattr(table_rows, "TABLE_ROWS_MAX", ORDERS - 1)
        if place == "parquet":
            with pytest.raises(SinkError, match=sentence):
                opened(pipeline, spark, text)
            patch.setattr(table_rows, "_rows_of", lambda _files: 0)
        with pytest.raises(SinkError, match=sentence):
            pipeline.judge(spark, tmp_path / "measured", text)
        patch.setattr(SparkTable, "require_size", lambda _table: None)
        with pytest.raises(SinkError, match=sentence):
            pipeline.judge(spark, tmp_path / "stopped", text)
    if place == "parquet":
        monkeypatch.setattr(table_rows, "TABLE_BYTES_MAX", 100)
        with pytest.raises(SinkError, match=r"take [0-9]+ bytes as texts, and 100 are read"):
            pipeline.judge(spark, tmp_path / "large", text)


def test_a_topic_that_moves_leaves_open_what_may_be_late(
    pipeline: Pipeline,
    database: psycopg.Connection[Any],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Story: while a check begins, two more orders come, and one of them has its row at once. Its
    input is beyond the first look, and still no phantom. An earlier order without a row may be late
    as well, so nothing is violated, and nothing holds."""
    rows = [row(number) for number in (*NUMBERS, ORDERS + 1) if number != 4]
    fill(database, "moving", rows)
    text = pipeline.contract("moving", "key: [order_id]}}\n") + BY_ID
    contract = make_contract(parse_fields(text))
    first_look = question_of(contract, Cluster(Address(pipeline.bootstrap))).source
    producer = Producer({"bootstrap.servers": pipeline.bootstrap})
    for number in (ORDERS, ORDERS + 1):
        producer.produce(pipeline.source, json.dumps(order(number)).encode(), partition=number % 2)
    assert producer.flush(30) == 0
    report = pipeline.judge(spark, tmp_path / "report", text, source=first_look)
    assert report.verdict is Outcome.UNKNOWN, report.why
    assert counts(report) == {"gap": 1, "movement": 2}
    assert finding(report, "gap").explained_by == "movement"


def test_types_of_postgresql_keep_their_digits(
    pipeline: Pipeline, database: psycopg.Connection[Any], spark: SparkSession
) -> None:
    """Story: a column rounds what is written into it, to more digits than Spark's decimals have, or
    to thousandths of a second. A domain is of another domain."""
    database.execute("create domain cents as numeric(12,2); create domain price as cents")
    types = {
        "price": "decimal(12,2)",
        "numeric(40,2)": "numeric(40,2)",
        "numeric(3,5)": "numeric(3,5)",
        "numeric(3,-2)": "numeric",
        "numeric": "numeric",
        "timestamp(0)": "timestamp_ntz(0)",
        "timestamptz(3)": "timestamp(3)",
        "timestamptz": "timestamp",
        "varchar(20)": "string",
        "int": "int",
    }
    columns = ", ".join(f"c{number} {name}" for number, name in enumerate(types))
    database.execute(f"create table typed ({columns})")
    text = pipeline.contract("typed", "key: [c0]}}\nidentity: {source: key, sink: key}\n")
    assert [*opened(pipeline, spark, text).types.values()] == [*types.values()]
    assert all(map(is_type, types.values()))


def test_evidence_of_a_source_that_vanished_has_types_of_columns() -> None:
    """Story: the topic is deleted before anybody looks at the table. The evidence of that is
    evidence, too."""
    text = "source: {topic: orders}\nsink: {table: {format: parquet, path: /a, key: [order_id]}}\n"
    terms = make_contract(parse_fields(text + BY_ID)).terms(None)
    question = Question(Bounds("orders", ()), "a", agreed=terms)
    table = question_of_nothing(question, Bounds("a", ())).agreed.table
    assert table is not None
    assert table.types == dict.fromkeys(("amount", "rate", "note"), TEXT)
