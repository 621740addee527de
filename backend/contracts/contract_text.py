"""A contract as text: fields to YAML, and identities as short labels that a form can offer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from topicproof.backend.contracts.contract import LINEAGE, PLACEHOLDER, Contract
from topicproof.validators.columns import COLUMN
from topicproof.validators.decoded import KEY_FIELD, VALUE_FIELD
from topicproof.validators.lineage.identity import Identity, Match
from topicproof.validators.question import Question

LABELS = (LINEAGE, "key", "value")
"""Labels of identities without a name. The others are `header NAME`, `json $.path`, `field path`
and `key_field path`."""


def spell(fields: Mapping[str, Any]) -> str:
    """Spell fields as YAML, in the order of a contract. Unknown fields come last; empty ones are
    left out."""
    contract_fields = [name for name in Contract.model_fields if name in fields]
    names = [*contract_fields, *(name for name in fields if name not in contract_fields)]
    return "".join(
        yaml.safe_dump(
            {name: fields[name]},
            default_flow_style=None if isinstance(fields[name], Mapping) else False,
            sort_keys=False,
            allow_unicode=True,
            width=100_000,
        )
        for name in names
        if fields[name] not in (None, "", {}, [], ())
    )


def side_label(side: Any) -> str | None:
    """Return the label of an identity on one side: `key`, `header NAME`, `json $.path`,
    `field path`. None if it is not chosen yet, or no identity."""
    if isinstance(side, str):
        return None if side == PLACEHOLDER else side
    if isinstance(side, Mapping) and len(side) == 1:
        ((how, name_or_path),) = side.items()
        return f"{how} {name_or_path}"
    return None


def side_of(label: str) -> Any:
    """Return the identity that a label stands for. A path alone, such as `$.id`, is a JSON field.
    Any other single word is a header."""
    label = label.strip()
    how, _, name_or_path = label.partition(" ")
    if label in LABELS:
        return label
    if how in ("header", "json", COLUMN, VALUE_FIELD, KEY_FIELD) and name_or_path.strip():
        return {how: name_or_path.strip()}
    return {"json": label} if label.startswith("$") else {"header": label}


def labels_of(identity: Any) -> tuple[str | None, str | None]:
    """Return the labels of an identity on both sides, source first."""
    if isinstance(identity, Mapping) and identity.keys() & {"source", "sink"}:
        return side_label(identity.get("source")), side_label(identity.get("sink"))
    label = side_label(LINEAGE if identity is None else identity)
    return label, label


def identity_terms(question: Question) -> Any:
    """Return how a question matches records, as a contract spells it."""
    if question.identity is Identity.LINEAGE:
        return LINEAGE
    return match_terms(question.agreed.match)


def match_terms(match: Match) -> Any:
    """Return what serves as the key on both sides, as a contract spells it."""
    source, sink = (_side_terms(side) for side in (match.source, match.sink))
    return source if source == sink else {"source": source, "sink": sink}


def _side_terms(side: str) -> Any:
    """Return the identity on one side, which `Match` spells `header:NAME` or `key`."""
    how, _, name_or_path = side.partition(":")
    return {how: name_or_path} if name_or_path else how


def identity_words(identity: Any) -> str:
    """Return what matches records, in words: `json $.id = header order-id`."""
    return " = ".join(dict.fromkeys(label or "not chosen" for label in labels_of(identity)))


def identity_of(source: str | None, sink: str | None) -> Any:
    """Return the identity that two labels stand for, as a contract has it. Lineage is of both
    sides, so one side determines the other. A side without a label is left to be chosen."""
    if LINEAGE in (source, sink):
        return LINEAGE
    sides = [PLACEHOLDER if label is None else side_of(label) for label in (source, sink)]
    return sides[0] if sides[0] == sides[1] else {"source": sides[0], "sink": sides[1]}
