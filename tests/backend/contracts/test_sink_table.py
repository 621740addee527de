"""Contracts about tables: what they may say, and what somebody else's contract must not do."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from topicproof.backend.contracts.contract import Contract, make_contract, parse_fields
from topicproof.backend.contracts.sink_table import Table, parse_address, require_below
from topicproof.backend.errors import ContractError, SinkError, UsageError
from topicproof.backend.evidence.footers import SPARK_SCHEMA
from topicproof.backend.judging.table_rows import _plain_schema
from topicproof.backend.watch.watchable import watched_contracts
from topicproof.validators.lineage.identity import Match

SOURCE = "source: {topic: orders}\n"
TABLE = "sink: {table: {url: 'jdbc:postgresql://db/ledger', name: invoices, key: [order_id]}}\n"
BY_ID = "identity: {source: {json: $.id}, sink: {column: order_id}}\n"


def contract(*lines: str) -> Contract:
    return make_contract(parse_fields("".join([SOURCE, *lines])))


def refusal(*lines: str) -> str:
    with pytest.raises(ContractError) as refused:
        contract(*lines)
    return str(refused.value)


def test_a_table_needs_no_order_and_has_the_kinds_that_it_can_have() -> None:
    plain = contract(TABLE, BY_ID, "value: {amount: value, \"['Total amount']\": key}\n")
    assert plain.kinds == ("duplicate", "gap", "phantom", "wrong_value")
    terms = plain.terms(None)
    assert terms.match == Match("json:$.id", "column:order_id")
    assert terms.compared == ("column:amount", "column:Total amount")
    # Its offset is committed after the rows, in another system.
    of_group = contract(TABLE, BY_ID, "group: ledger-app\n")
    assert of_group.kinds == ("duplicate", "gap", "phantom", "offset_ahead")
    assert of_group.terms({0: 17}).kinds == ("offset_ahead",)
    at_least_once = contract(TABLE, BY_ID, "guarantee: at_least_once\n")
    assert at_least_once.kinds == ("gap", "phantom")
    origin = "sink: {table: {format: iceberg, name: a.b, origin: {partition: p, offset: o}}}\n"
    table = contract(origin).terms(None).table
    assert table is not None
    assert table.origin == (None, "p", "o")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((TABLE,), "identity: nothing in a row names its input"),
        ((TABLE, BY_ID, "order: per_key\n"), "order: a table has no order of its rows"),
        ((TABLE, BY_ID, "require: [torn]\n"), "torn cannot be judged: a table has no transactions"),
        (
            (TABLE, BY_ID, "group: a\nrequire: [offset_behind]\n"),
            "an offset that is behind its rows",
        ),
        ((TABLE, BY_ID, "range: retained\n"), "range: nothing tells which rows"),
        ((TABLE, BY_ID, "value: value\n"), "value: a row has columns"),
        ((TABLE, BY_ID, "value: {a.b: value}\n"), "a.b: expected the name of a column"),
        ((TABLE, BY_ID, "dead_letters: {topic: d, origin: connect}\n"), "cannot say dead_letters"),
        ((TABLE, "unique: key\n"), "cannot say unique"),
        ((TABLE, "identity: {json: $.id}\n"), "a row holds its identity in a column"),
        (("sink: {topic: b}\ntolerance: 0.1\nidentity: key\n",), "tolerance: only columns of a"),
        (("sink: {topic: b}\nidentity: {column: x}\n",), "only a table has columns"),
        (("sink: {table: {name: i}}\n",), "say where it is: url, or format"),
        (
            ("sink: {table: {format: parquet, path: /a}}\nidentity: key\n",),
            "name the columns that identify a row",
        ),
        (
            ("sink: {table: {format: parquet, path: /a, key: [k, k]}}\n",),
            "a column appears twice in key",
        ),
        (
            ("sink: {topic: b, table: {format: parquet, path: /a, key: [k]}}\nidentity: key\n",),
            "a table has no topic and no cluster",
        ),
        (("sink: {table: {format: csv, path: /a, key: [k]}}\n",), "'parquet' or 'iceberg'"),
    ],
)
def test_what_a_table_cannot_have_is_refused_with_its_place(
    lines: tuple[str, ...], said: str
) -> None:
    assert said in refusal(*lines)


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:postgresql://db/ledger?socketFactory=org.springframework.context.X&socketFactoryArg=a",
        "jdbc:postgresql://db/ledger?sslfactory=a.B",
        "jdbc:postgresql://db/ledger?user=a&loggerFile=/etc/cron.d/x&loggerLevel=TRACE",
        "jdbc:postgresql://db/ledger?user=a&user=b",
        "jdbc:postgresql://db/ledger?options=-c%20x",
        "jdbc:postgresql://db/ledger?sslmode=never",
        "jdbc:postgresql://db/ledger?user=a%26sslfactory=x",
        "jdbc:postgresql://a,b/ledger",
        "jdbc:postgresql://db/ledger;x=1",
        "jdbc:postgresql://db/ledger#x",
        "jdbc:postgresql://db:99999/ledger",
        "jdbc:postgresql:ledger",
        "jdbc:postgresql://%2Fvar%2Frun/ledger",
        "jdbc:postgresql://user:hush@db/ledger",
        "jdbc:h2:mem:test;INIT=RUNSCRIPT FROM 'http://x/y.sql'",
        "jdbc:mysql://db/ledger?autoDeserialize=true",
        "JDBC:POSTGRESQL://db/ledger?user=a\nsslfactory=x",
    ],
)
def test_an_address_gives_the_driver_nothing_but_a_place(url: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011  each has its own sentence
        parse_address(url)
    assert "hush" not in str(refused.value)


def test_a_password_is_refused_and_not_repeated() -> None:
    said = refusal(TABLE.replace("ledger", "ledger?user=a&password=hush"), BY_ID)
    assert "a contract holds no password" in said
    assert "hush" not in said
    address = parse_address("jdbc:postgresql://[::1]:6000/ledger?sslmode=verify-full&user=a")
    assert (address.url, address.user) == ("jdbc:postgresql://[::1]:6000/ledger", "a")


@pytest.mark.parametrize(
    "path",
    [
        "relative",
        "/",
        "/a/../b",
        "/a/*",
        "/a//b",
        "/a/{b,c}",
        "file:/a",
        "hdfs://x/a",
        "s3a://K:S@b/a",
    ],
)
def test_a_path_is_one_folder(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        Table.model_validate({"format": "parquet", "path": path, "key": ["k"]})


def test_only_places_of_the_setting_are_read_for_somebody_else(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    (tmp_path / "inside.old").mkdir()
    roots = (
        f"{inside}, jdbc:postgresql://other, jdbc:postgresql://db:5432/ledger, iceberg:prod.sales,"
        "jdbc:postgresql://db:5432/books?user=auditor"
    )

    def is_allowed(fields: dict[str, str], setting: str | None = roots) -> bool:
        try:
            require_below(Table.model_validate(fields), setting, is_restricted=True)
        except UsageError:
            return False
        return True

    assert is_allowed({"format": "parquet", "path": f"{inside}/a"})
    assert is_allowed({"url": "jdbc:postgresql://db/ledger", "name": "t"})
    assert is_allowed({"url": "jdbc:postgresql://db/books?user=auditor", "name": "t"})
    for address in ("ledger?user=postgres", "books?user=postgres", "books"):
        assert not is_allowed({"url": f"jdbc:postgresql://db/{address}", "name": "t"})
    assert is_allowed({"format": "iceberg", "name": "prod.sales.t"})
    assert not is_allowed({"format": "parquet", "path": f"{inside}/a"}, None)
    assert not is_allowed({"format": "parquet", "path": f"{inside}-other"})
    assert not is_allowed({"format": "parquet", "path": f"{inside}/link/a"})
    assert not is_allowed({"url": "jdbc:postgresql://db/ledger2", "name": "t"})
    assert not is_allowed({"format": "parquet", "path": f"{inside}.old/a"})
    assert not is_allowed({"url": "jdbc:postgresql://other.evil/ledger", "name": "t"})
    assert not is_allowed({"url": "jdbc:postgresql://db.evil/ledger", "name": "t"})
    assert not is_allowed({"format": "iceberg", "name": "prod.salesmen"})
    require_below(
        Table.model_validate({"format": "parquet", "path": "/a"}), None, is_restricted=False
    )


def test_of_a_footer_the_plain_columns_count_alone(tmp_path: Path) -> None:
    """Story: somebody writes files of Parquet whose footers say more than their columns are: SQL as
    a default and a class to load, which Spark would run. Its schema is ours."""
    hostile = {
        "type": "struct",
        "fields": [
            {
                "name": "order_id",
                "type": {"type": "udt", "class": "x.Y", "pyClass": "x.Y", "sqlType": "long"},
                "nullable": True,
                "metadata": {"EXISTS_DEFAULT": "reflect('java.lang.System', 'exit', 1)"},
            }
        ],
    }
    columns = {"order_id": pa.array([1]), "amount": pa.array([Decimal("1.50")])}
    table = pa.table(columns).replace_schema_metadata({SPARK_SCHEMA: json.dumps(hostile)})
    (tmp_path / "lines").mkdir()
    pq.write_table(table, tmp_path / "lines" / "part-0.parquet")
    fields = {"format": "parquet", "path": str(tmp_path / "lines"), "key": ["order_id"]}
    schema = _plain_schema(Table.model_validate(fields))
    assert schema.simpleString() == "struct<order_id:bigint,amount:decimal(3,2)>"
    assert all(field.metadata == {} for field in schema)
    pq.write_table(pa.table({"n": [[1]]}), tmp_path / "lines" / "a.parquet")
    with pytest.raises(SinkError, match="a column n of the type list"):
        _plain_schema(Table.model_validate(fields))
    with pytest.raises(SinkError, match="from a folder of this machine"):
        _plain_schema(Table.model_validate(fields | {"path": "s3a://bucket/lines"}))


def test_a_watch_says_that_it_reads_no_table() -> None:
    with pytest.raises(ContractError, match="a table has no offsets to go on from"):
        watched_contracts("ledger", contract(TABLE, BY_ID))
