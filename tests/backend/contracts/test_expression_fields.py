"""Fields in contracts: how they are spelled, what is refused, and what Spark gets."""

from __future__ import annotations

from typing import Any

import pytest

from topicproof.backend.contracts.contract import Contract, make_contract
from topicproof.backend.contracts.expression_fields import in_sql
from topicproof.backend.contracts.expressions import check_expression
from topicproof.backend.errors import ContractError
from topicproof.validators.decoded import parse_field, spell_field
from topicproof.validators.lineage.identity import Identity, Match

TOPICS: dict[str, Any] = {"source": {"topic": "a"}, "sink": {"topic": "b"}}


def contract(**more: Any) -> Contract:
    return make_contract({**TOPICS, **more})


def test_fields_of_either_side() -> None:
    """Story: the key of the sink is decoded, the source's value too, and a total is compared."""
    made = contract(
        identity={"source": {"field": "order.id"}, "sink": {"key_field": "id"}},
        value={"sum.total": "field('price') * 2", "['odd name']": "KEY_FIELD ( 'id' )"},
    )
    terms = made.terms(None)
    assert (made.by, terms.match) == (Identity.KEY, Match("field:order.id", "key_field:id"))
    assert terms.compared == ("field:sum.total", "field:['odd name']")
    assert terms.source_fields == ("field:order.id", "field:price", "key_field:id")
    assert terms.sink_fields == ("key_field:id", *terms.compared)
    assert terms.value == (
        "to_json(named_struct('sum.total', cast((`decoded`.`field:price` * 2) as string),"
        " '[\\'odd name\\']', cast(`decoded`.`key_field:id` as string)),"
        " map('ignoreNullFields', 'false'))"
    )
    assert "wrong_value" in made.kinds
    counted = contract(
        identity={"field": "id"},
        expect="one_to_many",
        count="json_array_length(field('items'))",
    )
    assert counted.expected.count == "json_array_length(`decoded`.`field:items`)"
    assert counted.terms(None).sink_fields == ("field:id",)
    assert contract(value="upper(value)").terms(None).source_fields == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("field(value)", "field takes one literal path"),
        ("field('a', 'b')", "field takes one literal path"),
        ("key_field(concat('a', 'b'))", "key_field takes one literal path"),
        ("field('$.a')", "does not name a field"),
        ("field('a..b')", "cannot search all levels"),
        ("`field`('a')", "field takes one literal path"),
        ("field('a') || reflect('a', 'b')", "the function reflect is not allowed"),
        ("decoded.reason", "names decoded"),
    ],
)
def test_what_names_no_field_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("$", r"\$")):
        check_expression(text)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"identity": {"field": "$.id"}}, "identity.source: '$.id' does not name a field"),
        ({"identity": {"field": ""}}, "does not name a field"),
        ({"value": {}}, "value: name at least one field of the output"),
        ({"value": {"total": "reflect('a')"}}, "value: total: the function reflect is not"),
        ({"value": {"a[*]": "1"}}, "value: a path cannot hold a wildcard"),
        ({"value": ["field('a')"]}, "value: expected an expression, or a mapping of fields"),
    ],
)
def test_mistakes_name_the_field(more: dict[str, Any], says: str) -> None:
    with pytest.raises(ContractError) as told:
        contract(**more)
    assert says in str(told.value)


def test_paths_are_spelled_as_they_are_read() -> None:
    for path in ("order.id", "items[0].sku", "['odd name'].x", "[3]"):
        assert spell_field(parse_field(path)) == path
    text = "concat('field(\\'a\\')', field('a`b'), value)"
    assert in_sql(text) == "concat('field(\\'a\\')', `decoded`.`field:a``b`, `value`)"
