"""`verify` compares every term of a contract with the question of the evidence."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from topicproof.app.check.contract_form import THRESHOLDS
from topicproof.backend.contracts.contract import Contract
from topicproof.backend.contracts.contract_text import identity_terms, identity_words
from topicproof.backend.verifying.derived import PLAN, asked_contradictions, compared_terms
from topicproof.validators.aggregate import AggregatedValue, AggregateTerms, Function
from topicproof.validators.columns import TableTerms
from topicproof.validators.contract_terms import NOTHING_MORE, ContractTerms
from topicproof.validators.expectation import BY_CONTRACT
from topicproof.validators.expected import Expected
from topicproof.validators.finding import Bounds, Guarantee, Order
from topicproof.validators.lineage.dead_letters import DeadLetters
from topicproof.validators.lineage.identity import Identity, Match
from topicproof.validators.question import Question
from topicproof.validators.thresholds import WARNINGS, Thresholds

CHANGED: dict[str, Any] = {
    "match": Match("key", "value"),
    "value": "value",
    "offsets": {0: 1},
    "require": ("gap",),
    "retained": True,
    "filter_unchecked": True,
    "unique": True,
    "letters": DeadLetters("dead-letters", "connect"),
    "aggregate": AggregateTerms(
        "key", (AggregatedValue(Function.COUNT, of=None, field=None),), "key"
    ),
    "table": TableTerms(key=("id",)),
    "source_fields": ("id",),
    "sink_fields": ("id",),
}
"""Another value of each term."""
FOLLOWS = {
    "repeats": "the guarantee",
    "losses": "the guarantee",
    "compared": "the fields of `value`, whose text is compared",
    "group": "a name for people; its offsets are kept",
}
"""Terms that follow from others."""


def compared(terms: ContractTerms) -> dict[str, Any]:
    return compared_terms(
        Guarantee.EXACTLY_ONCE, Identity.KEY, Expected(), Order.PER_SOURCE_PARTITION, terms
    )


def test_each_term_is_compared() -> None:
    """Story: a term is added, and forgotten where evidence is compared with its contract. Then a
    forger may change it in one of the two."""
    names = {field.name for field in fields(ContractTerms)}
    assert names == CHANGED.keys() | FOLLOWS.keys() | {"warn"}


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_term_differs(name: str) -> None:
    assert compared(replace(NOTHING_MORE, **{name: CHANGED[name]})) != compared(NOTHING_MORE)


@pytest.mark.parametrize("limit", [field.name for field in fields(Thresholds)])
def test_a_changed_threshold_differs(limit: str) -> None:
    changed = replace(NOTHING_MORE, warn=Thresholds(**{limit: 1}))
    assert compared(changed) != compared(NOTHING_MORE)


@pytest.mark.parametrize(
    ("match", "spelled", "words"),
    [
        (Match(), "key", "key"),
        (Match("value", "value"), "value", "value"),
        (
            Match("json:$.id", "json:$.order.id"),
            {"source": {"json": "$.id"}, "sink": {"json": "$.order.id"}},
            "json $.id = json $.order.id",
        ),
        (Match("header: a:b", "header: a:b"), {"header": " a:b"}, "header  a:b"),
        (
            Match("key", "header:column-id"),
            {"source": "key", "sink": {"header": "column-id"}},
            "key = header column-id",
        ),
    ],
)
def test_a_plan_says_what_records_are_matched_by(
    tmp_path: Path, match: Match, spelled: Any, words: str
) -> None:
    """Story: orders are matched by their ids. The plan in the evidence names the id, not the key,
    and a plan that names something else is contradicted. Plans of earlier versions have `key` for
    all of them."""
    question = Question(
        Bounds("orders", ()),
        "invoices",
        identity=Identity.KEY,
        agreed=replace(NOTHING_MORE, match=match),
    )
    assert identity_terms(question) == spelled and identity_words(spelled) == words
    assert question.matched_by == words
    for identity, contradictions in ((spelled, 0), ("key", 0), ({"json": "$.other"}, 2)):
        plan = {"source": "orders", "sink": "invoices", "identity": identity}
        (tmp_path / PLAN).write_text(json.dumps(plan))
        sentences = asked_contradictions(tmp_path, question)
        assert len(sentences) == contradictions, sentences


def test_lineage_is_said_as_such() -> None:
    question = Question(Bounds("orders", ()), "invoices")
    assert identity_terms(question) == question.matched_by == "lineage"
    assert replace(question, agreed=replace(NOTHING_MORE, unique=True)).matched_by is None
    assert len(Match("key", f"json:$.{'a' * 100_000}").words) < 1_000


def test_a_term_that_requires_kinds_is_of_the_contract_and_of_its_terms() -> None:
    """Story: a term is renamed in one of the two, and no contract asks for its kinds any more."""
    for term in BY_CONTRACT.values():
        assert term.name in Contract.model_fields
        assert getattr(NOTHING_MORE, term.field) is None


def test_each_threshold_warns_and_is_asked_for_in_the_form() -> None:
    """Story: a threshold is added, and its sentence or its widget is forgotten."""
    names = [field.name for field in fields(Thresholds)]
    assert [*WARNINGS] == names and [*THRESHOLDS] == names
