"""`aggregate:` in contracts: its grammar, and what may stand beside it."""

from __future__ import annotations

import string
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st
from pyspark.sql import SparkSession

from tests.test_cli import call
from topicproof.backend.commands.contract_topics import show_preview
from topicproof.backend.contracts.aggregates import aggregate_texts, parse_aggregate
from topicproof.backend.contracts.contract import Contract, make_contract, parse_fields, read_fields
from topicproof.backend.contracts.expressions import check_expression
from topicproof.backend.contracts.lint import lint
from topicproof.backend.errors import ContractError, UsageError
from topicproof.backend.settings import read_settings
from topicproof.backend.verifying.derived import compared_terms
from topicproof.validators.aggregate import Function

TOPICS = "source: {topic: a}\nsink: {topic: b}\n"


def contract_of(terms: str) -> Contract:
    return make_contract(parse_fields(TOPICS + terms))


def test_a_contract_names_groups_and_what_they_come_to() -> None:
    """Story: totals by customer, as fields of JSON, with the customer as the key. Their fields are
    decoded on both sides, and a single output has no order, no duplicate and no gap."""
    contract = contract_of(
        "aggregate:\n"
        "  group_by: field('customer')\n"
        "  value: {total: SUM( field('amount') ), n: count( * )}\n"
        "  running: true\n"
    )
    terms = contract.terms(None)
    assert terms.source_fields == ("field:customer", "field:amount")
    assert terms.sink_fields == ("field:total", "field:n")
    assert terms.aggregate is not None
    assert [(value.function, value.of) for value in terms.aggregate.values] == [
        (Function.SUM, "`decoded`.`field:amount`"),
        (Function.COUNT, None),
    ]
    assert contract.kinds == ("group_missing", "group_unknown", "wrong_aggregate", "wrong_update")
    assert "wrong_update" not in contract_of("aggregate: {group_by: key, value: count(*)}").kinds
    again = make_contract(contract.model_dump())
    assert again.terms(None) == terms
    assert compared_terms(
        contract.guarantee, contract.by, contract.expected, contract.order, terms
    )["aggregate"] == (terms.aggregate)


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ("value: sum(value) + 1", "aggregate.value: expected count(*), count(EXPRESSION), sum("),
        ("value: avg(value)", "aggregate.value: expected count(*), count(EXPRESSION), sum("),
        ("value: sum(*)", "aggregate.value: sum takes an expression; only count takes *."),
        ("value: sum(count(*))", "aggregate.value: in the brackets of sum: "),
        ("value: sum(a) + sum(value)", "aggregate.value: in the brackets of sum: "),
        ("value: count(distinct value)", "aggregate.value: in the brackets of count: "),
        ("value: \"sum(reflect('a', 'b'))\"", "aggregate.value: in the brackets of sum: the func"),
        ("value: {n: rank()}", "aggregate.value: n: expected count(*), "),
        ("value: {}", "aggregate.value: name at least one field of the output."),
        ("value: 3", "aggregate.value: expected count(*), count(EXPRESSION), sum(EXPRESSION), min"),
        ("value: count(*), running: 1", "aggregate.running: Input should be a valid boolean."),
        ("value: count(*), tolerance: .nan", "aggregate: a tolerance is a number from 0 to 0.5."),
        ("value: count(*), tolerance: 2", "aggregate: a tolerance is a number from 0 to 0.5."),
        ("value: {n: count(*)}, encoding: long", "aggregate: only a whole value has an encoding."),
        (
            "value: sum(value), running: true, tolerance: 1e-9",
            "aggregate: with `running` and a tolerance, nothing tells which inputs an output is of",
        ),
        ("value: count(*), key: {jsn: $.a}", "aggregate.key: expected key, value, {header: NAME},"),
    ],
)
def test_an_aggregate_that_nobody_can_judge_is_refused(terms: str, says: str) -> None:
    """Story: another function, a sum of two sums, a running total within a tolerance. Each is
    refused with its line."""
    with pytest.raises(ContractError) as refused:
        contract_of(f"aggregate: {{group_by: key, {terms}}}")
    assert f"contract.yaml, line 3: {says}" in str(refused.value)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "identity: key",
            "identity: a contract with aggregate cannot say identity: it is about si",
        ),
        ("value: key", "value: a contract with aggregate cannot say value: it is about single"),
        (
            "range: retained",
            "range: a contract with aggregate cannot say range: an aggregate is of",
        ),
        ("require: [gap]", "require: a contract with aggregate cannot say require: its kinds are"),
        ("order: per_key", "order: a contract with aggregate cannot say order: it is about single"),
        ("guarantee: at_least_once", "guarantee: a contract with aggregate cannot say guarantee"),
        ("unique: key", "source: a contract with unique is about the sink alone. Remove source."),
    ],
)
def test_what_is_about_single_outputs_does_not_stand_beside_it(line: str, says: str) -> None:
    """Story: somebody adds an aggregate to a contract on single outputs."""
    with pytest.raises(ContractError, match="line") as refused:
        contract_of(f"aggregate: {{group_by: key, value: count(*)}}\n{line}")
    assert says in str(refused.value)


def test_two_clusters_and_several_sinks_are_refused() -> None:
    with pytest.raises(ContractError, match="aggregates of another cluster's records"):
        make_contract(
            parse_fields(TOPICS + "aggregate: {group_by: key, value: count(*)}"), across=True
        )
    with pytest.raises(ContractError, match="a contract with aggregate is about one sink"):
        make_contract(
            {
                "source": {"topic": "a"},
                "sinks": [{"topic": "b"}],
                "aggregate": {"group_by": "key", "value": "count(*)"},
            }
        )


@given(
    st.text(st.sampled_from([*"()*'\"`,;- \n\u017f/", *string.ascii_lowercase]), max_size=20),
    st.sampled_from(["count", "sum", "MIN", "max", "\u017fum", "first", ""]),
    st.lists(st.sampled_from([*"() \n;-", "sum(value)", " over ()"]), max_size=4).map("".join),
)
@example("value) over (partition by key", "sum", "")
@example("value)/**/union select(1", "count", "")
@example("1) from (select 1", "max", "")
def test_only_checked_expressions_pass(inside: str, function: str, after: str) -> None:
    """Story: whoever writes a contract tries to bring more than an aggregate through its brackets.
    What passes is a function of the list, and an expression that passes alone."""
    try:
        parsed = parse_aggregate(f"{function}({inside}){after}")
    except ValueError:
        return
    assert parsed.function in Function
    if parsed.of is not None:
        check_expression(parsed.of)


def test_lint_tells_what_spark_refuses_within_brackets(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Story: two expressions parse, and Spark computes neither. Both are named with their lines. A
    contract without mistakes says which kinds it requires."""
    path = tmp_path / "contract.yaml"
    path.write_text(
        f"{TOPICS}aggregate:\n  group_by: upper(headers)\n  value:\n    total: sum(headers + 1)\n"
        "    n: count(*)\n"
    )
    mistakes = lint(read_fields(path), lambda: nullcontext(spark))
    assert [(mistake.line, mistake.field) for mistake in mistakes] == [
        (4, "aggregate.group_by"),
        (6, "aggregate.value.total"),
    ]
    assert mistakes[1].why.startswith("Spark refuses 'headers + 1': ")
    path.write_text(f"{TOPICS}aggregate: {{group_by: key, value: count(*)}}\n")
    assert call("contract", "lint", str(path)) == 0
    assert "It requires group_missing, group_unknown, wrong_aggregate." in capsys.readouterr().out
    with pytest.raises(UsageError, match="this contract is about aggregates"):
        show_preview(path, read_settings(home=tmp_path), None, None)


def test_the_texts_of_a_broken_aggregate_are_counted() -> None:
    """Story: much text stands where an aggregate is expected. It is refused before it is
    parsed."""
    assert list(aggregate_texts({"aggregate": 3})) == []
    with pytest.raises(ContractError, match="all expressions of a contract together have more"):
        contract_of(
            f"aggregate: {{group_by: key, value: [sum({'x' * 150_000})]}}".replace("[", "").replace(
                "]", ""
            )
        )
