"""The contract by which a run or check was judged, and how the terms of two of them differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from topicproof.backend.contracts.contract import parse_fields, read_text_of
from topicproof.backend.errors import TopicproofError
from topicproof.backend.evidence.folder import CONTRACT, EVIDENCE
from topicproof.backend.evidence.manifest import require_unchanged_file
from topicproof.backend.history.kept_contracts import find
from topicproof.backend.history.run_reports import run_evidence
from topicproof.backend.history.store import History, Kind, Run
from topicproof.backend.history.trend import contract_label


@dataclass(frozen=True)
class Origin:
    """Where the fields of a contract come from, before somebody changes them."""

    fields: Mapping[str, Any]
    name: str | None = None
    version: int | None = None
    text: str | None = None
    """The text as kept, with its comments."""


@dataclass(frozen=True)
class TermChange:
    """One term of a contract, or one field of a plan, that is not what it was."""

    name: str
    """`identity`, or `sink.topic`."""
    before: str
    """Empty if it was not there."""
    after: str


def kept_origin(history: History, label: str) -> Origin:
    """Return a kept contract. Raises UsageError, ContractError."""
    contract = find(history, label)
    return Origin(parse_fields(contract.text), contract.name, contract.version, contract.text)


def contract_of_run(history: History, run: Run) -> Origin:
    """Return the contract of a check: as kept, from its evidence, or from its options. Raises
    ContractError, EvidenceError."""
    name, version = run.plan.get("contract"), run.plan.get("contract_version")
    if name and version:
        try:
            return kept_origin(history, f"{name}@{version}")
        except TopicproofError:
            pass  # Checked on another machine, whose history kept it. The evidence has a copy.
    # Without a verdict, it was not kept.
    path = run.folder(history.settings) / CONTRACT
    if run.verdict is None and path.is_file():
        # One line break was written behind it.
        text = read_text_of(path).removesuffix("\n")
        return Origin(parse_fields(text), name, text=text)
    path = run.folder(history.settings) / EVIDENCE / CONTRACT
    if path.is_file():
        run_evidence(history.settings, run)
        require_unchanged_file(path.parent, CONTRACT)
        return Origin(parse_fields(path.read_text(encoding="utf-8")), name)
    fields: dict[str, Any] = {side: {"topic": run.plan.get(side)} for side in ("source", "sink")}
    terms: dict[str, Any] = {
        option: run.plan[option] for option in ("guarantee", "identity") if option in run.plan
    }
    return Origin(fields | terms, name)


def changed_terms(history: History, before: Run, after: Run) -> tuple[TermChange, ...] | None:
    """Return the terms that changed between two checks, or the fields of the plans of two runs.
    None if a contract cannot be read any more."""
    if not before.kind == after.kind == Kind.CHECK:
        return differences(before.plan, after.plan)
    if _version(before) is not None and _version(before) == _version(after):
        return ()  # A version never changes.
    try:
        return differences(*(contract_of_run(history, run).fields for run in (before, after)))
    except TopicproofError:
        return None


def _version(run: Run) -> str | None:
    return contract_label(run) if run.plan.get("contract_version") else None


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[TermChange, ...]:
    """Return the fields that differ; those of a side, such as `sink.topic`, one by one."""
    old, new = _by_name(before), _by_name(after)
    return tuple(
        TermChange(name, old.get(name, ""), new.get(name, ""))
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    )


def _by_name(fields: Mapping[str, Any]) -> dict[str, str]:
    names: dict[str, str] = {}
    for name, value in fields.items():
        # An identity of two sides is one term: half of it means nothing.
        if isinstance(value, Mapping) and name != "identity":
            names |= {f"{name}.{inner}": _text(each) for inner, each in value.items()}
        else:
            names[str(name)] = _text(value)
    return names


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
