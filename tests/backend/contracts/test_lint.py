"""`topicproof contract lint`: every mistake of a file at once, those that only Spark knows
included."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession, functions as F
from pyspark.sql.types import NumericType

from tests.test_cli import call
from topicproof.backend.contracts.contract import read_fields
from topicproof.backend.contracts.expression_fields import in_sql
from topicproof.backend.contracts.lint import lint
from topicproof.backend.contracts.plan_lock import planned_frame
from topicproof.backend.history.store import History
from topicproof.backend.services.keeper import Services
from topicproof.backend.settings import ROOT, Settings
from topicproof.validators.json_path import exact_text, parse_path

TOPICS = "source: {topic: a}\nsink: {topic: b}\n"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("value: headers + 1", "value: Spark refuses 'headers + 1': "),
        ("value: upper(headers)", "value: Spark refuses 'upper(headers)': Cannot resolve"),
        (
            r"value: regexp_extract(value, '\\x{FFFFFF}', 0)",
            "value: Spark refuses the regular expression",
        ),
        (
            "count: upper(value)",
            "count: 'upper(value)' is of type string, and a count is a number. Cast it,",
        ),
        ("count: offset > 1", "count: 'offset > 1' is of type boolean, and a count is a number."),
        ('count: "null"', "count: 'null' is of type null, and a count is a number. Name a number."),
    ],
)
def test_what_only_spark_knows_is_told_with_its_line(
    spark: SparkSession, tmp_path: Path, line: str, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Story: an expression that parses and cannot be computed, and counts that are not numbers. The
    message is one sentence, without the server's stack."""
    path = tmp_path / "contract.yaml"
    path.write_text(TOPICS + "expect: zero_or_one\n" + line + "\n")
    (found,) = lint(read_fields(path), lambda: nullcontext(spark))
    assert found.line == 4 and str(found).startswith(f"{path}, line 4: {says}")
    assert "JVM" not in found.why and "SQLSTATE" not in found.why
    assert "SQLQueryContextLogger" not in capfd.readouterr().err
    # Afterwards PySpark tells of its own errors as before.
    with pytest.raises(AnalysisException):
        spark.sql("select nothing").collect()


def test_all_mistakes_come_in_one_answer(spark: SparkSession, tmp_path: Path) -> None:
    """Story: a mistake of the text, one of Spark, and another of the text. All three are listed, by
    line."""
    path = tmp_path / "contract.yaml"
    path.write_text(
        TOPICS + "guarantee: twice\nvalue: substring(value)\nexpect: zero_or_one\ncount: kay\n"
    )
    found = lint(read_fields(path), lambda: nullcontext(spark))
    assert [(one.line, one.field) for one in found] == [
        (3, "guarantee"),
        (4, "value"),
        (6, "count"),
    ]


@pytest.mark.parametrize(
    "path",
    sorted(one.name for one in (ROOT / "contracts").glob("*.yaml") if one.name != "yours.yaml"),
)
def test_the_examples_have_no_mistake(spark: SparkSession, path: str) -> None:
    """Story: somebody lints an example. Spark can compute all of it."""
    assert lint(read_fields(ROOT / "contracts" / path), lambda: nullcontext(spark)) == ()


PLAIN_PATHS = ("$.id", "$.order.id", "$['order-id']", "$[0]", "$.lines[2147483647].No_7", "$.7")


@pytest.mark.parametrize(
    "terms",
    [
        "",
        "value: value\n",
        "value: {a: key, count: topic}\n",
        "expect: one_to_many\ncount: 3\n",
        *(f'identity: {{json: "{path}"}}\n' for path in PLAIN_PATHS),
    ],
)
def test_nothing_that_spark_could_refuse_needs_no_spark(tmp_path: Path, terms: str) -> None:
    """Story: a contract without expressions and paths, or with the simplest ones. It is linted
    without a session."""

    def none() -> AbstractContextManager[SparkSession]:
        raise AssertionError

    path = tmp_path / "contract.yaml"
    path.write_text(TOPICS + terms)
    assert lint(read_fields(path), none) == ()


def test_spark_refuses_nothing_that_is_not_tried(spark: SparkSession) -> None:
    """Story: lint takes these for granted. Spark computes each of them."""
    inputs = planned_frame(spark, ())
    numbers = ["0", "007", "999999999"]
    kinds = inputs.select(*map(F.expr, map(in_sql, numbers))).schema
    assert all(isinstance(column.dataType, NumericType) for column in kinds)
    texts = [F.expr(in_sql(name)).cast("string") for name in ("key", "value", "topic")]
    paths = [exact_text(F.col("value"), parse_path(path)) for path in PLAIN_PATHS]
    assert inputs.select(*texts, *paths).collect() == []


@pytest.mark.parametrize(
    "terms",
    [
        """identity: {json: "$['id?']"}\n""",
        "value: upper(value)\n",
        "expect: one_to_many\ncount: value\n",
        "expect: one_to_many\ncount: 12345678901\n",
    ],
)
def test_whatever_spark_could_refuse_is_tried(tmp_path: Path, terms: str) -> None:
    """Story: a path with a character that readers of paths treat differently, an expression, and
    counts that may be no numbers to Spark. A session is asked for."""

    def asked() -> AbstractContextManager[SparkSession]:
        raise InterruptedError

    path = tmp_path / "contract.yaml"
    path.write_text(TOPICS + terms)
    with pytest.raises(InterruptedError):
        lint(read_fields(path), asked)


def test_lint_ends_with_64_and_lists_the_mistakes(
    cluster: Services,  # noqa: ARG001
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Story: a build lints its contracts. Mistakes end it with 64 and come as JSON; a contract
    without any is 0."""
    monkeypatch.setenv("TOPICPROOF_HOME", str(settings.home))
    path = tmp_path / "contract.yaml"
    path.write_text(TOPICS + "value: substring(value)\nguarantee: twice\n")
    assert call("contract", "lint", str(path), "--json") == 64
    told = capsys.readouterr()
    errors = json.loads(told.out)["errors"]
    assert [(one["line"], one["field"]) for one in errors] == [(3, "value"), (4, "guarantee")]
    assert f"{path}, line 4: guarantee: {errors[1]['why']}." in told.err
    path.write_text(TOPICS + "value: upper(value)\nidentity: {json: $.id}\n")
    assert call("contract", "lint", str(path)) == 0
    assert "is a contract. It requires duplicate" in capsys.readouterr().out.replace("\n", " ")


def test_a_check_looks_at_expressions_before_it_reads(
    cluster: Services,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Story: a count gives a list instead of a number. Only Spark knows that, and it says so before
    the check looks for the topics, which do not exist."""
    monkeypatch.setenv("TOPICPROOF_HOME", str(settings.home))
    path = tmp_path / "contract.yaml"
    path.write_text(TOPICS + "expect: one_to_many\ncount: split(value, ',')\nidentity: key\n")
    before = History(settings).list()
    assert call("check", "--contract", str(path), "--bootstrap", cluster.bootstrap) == 3
    told = " ".join(capsys.readouterr().err.split())
    assert "line 4: count: \"split(value, ',')\" is of type array<string>, and a count is" in told
    assert History(settings).list() == before
