"""Makes docs/KINDS.md, and the kinds of docs/report.schema.json, from the catalogue and its tests:
`make docs`."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from tests.validators.test_kinds import STORIES
from topicproof.backend.settings import ROOT
from topicproof.validators.expectation import (
    BY_CONTRACT,
    CONTRADICTIONS,
    NORMAL,
    PREMISES,
    REQUIRED,
)
from topicproof.validators.finding import Guarantee, Witness
from topicproof.validators.kinds.anomalies import ANOMALIES, Anomaly
from topicproof.validators.kinds.catalogue import VALIDATORS, Validator

PATH = ROOT / "docs" / "KINDS.md"
SCHEMA = ROOT / "docs" / "report.schema.json"
STORIES_MAX = 2
"""As many stories are named for a kind; there may be more."""

HEAD = """# What is detected, and who else does

Made from the catalogue (`validators/`) and its tests by `make docs`; a test fails when it is out of
date.

## Anomalies

One row for each anomaly of the catalogue. The last three columns say who else looks for it:
Jepsen's Kafka workload, Apache Kafka's own tests and tools, web interfaces for Kafka.

"""

NEEDS = {
    Witness.JOURNAL: "the journal of a run",
    Witness.READER: "a run with `reader: true`",
    Witness.COORDINATOR: "the right to describe transactions",
}


def table() -> str:
    """The whole document."""
    kinds = {one.NAME: one for one in VALIDATORS}
    rows = [
        [
            "",
            "anomaly",
            "detected here",
            "by the kind",
            "witnesses",
            "needs",
            "Jepsen",
            "Apache",
            "UIs",
        ],
        *(_anomaly(one, kinds) for one in ANOMALIES),
    ]
    reasons = [
        f"- **{one.number} {one.name}**: {one.otherwise}" for one in ANOMALIES if one.otherwise
    ]
    told = [
        ["kind", "asks", "in a verdict on exactly-once", "shown by"],
        *(_kind(one) for one in VALIDATORS),
    ]
    return "\n".join(
        [
            HEAD + _markdown(rows),
            "",
            "What no kind answers, or not alone:",
            "",
            *reasons,
            "",
            "## Kinds",
            "",
            (
                "Each kind is shown by logs that have it and logs that have not; the stories are"
                " those of"
            ),
            (
                "`tests/validators/test_kinds.py`, where every kind must be silent on all the"
                " others, or files beside it."
            ),
            "",
            _markdown(told),
            "",
        ]
    )


def _anomaly(one: Anomaly, kinds: dict[str, Validator]) -> list[str]:
    found = [kinds[name] for name in one.kinds]
    needs = [*(NEEDS[w] for kind in found for w in _only(kind) if w in NEEDS)]
    needs += [one.needs] if one.needs else []
    needs += ["a contract that says it" for name in one.kinds if name in BY_CONTRACT]
    return [
        one.number,
        f"{one.name}: {one.definition}",
        "yes" if found else "made" if one.number.startswith("F") else "otherwise",
        ", ".join(f"`{name}`" for name in one.kinds),
        "; ".join(_witnesses(kind) for kind in found),
        ", ".join(needs),
        *(said or "no" for said in (one.jepsen, one.apache, one.uis)),
    ]


def _only(kind: Validator) -> list[Witness]:
    """The witnesses that nobody can stand in for."""
    return [group[0] for group in kind.WITNESSES if len(group) == 1]


def _witnesses(kind: Validator) -> str:
    return ", ".join(" or ".join(one.value for one in group) for group in kind.WITNESSES)


def _kind(one: Validator) -> list[str]:
    return [f"`{one.NAME}`", one.QUESTION, _standing(one.NAME), shown_by(one.NAME)]


def _standing(kind: str) -> str:
    if kind in REQUIRED[Guarantee.EXACTLY_ONCE]:
        return "required"
    if kind in CONTRADICTIONS[Guarantee.EXACTLY_ONCE]:
        return "breaks it where found"
    if kind in BY_CONTRACT:
        return "required where a contract asks"
    if kind in PREMISES:
        return "a premise: unknown where it is broken"
    return "information" if kind in NORMAL else "shown, not counted"


def shown_by(kind: str) -> str:
    """Where it is shown: stories in which it is found and primary, else the tests that name it.
    Empty: nowhere."""
    names = [
        name
        for name, one in STORIES.items()
        if any(row[-1] is None for row in one.found.get(kind, []))
    ]
    if names:
        more = f" and {len(names) - STORIES_MAX} more" if len(names) > STORIES_MAX else ""
        return ", ".join(f'"{name}"' for name in names[:STORIES_MAX]) + more
    folder = Path(__file__).parent
    files = [
        file.name
        for file in sorted(folder.glob("test_*.py"))
        if re.search(rf"\b{kind}\b", file.read_text(encoding="utf-8")) and file.name not in GENERAL
    ]
    return ", ".join(f"`{name}`" for name in files)


GENERAL = {
    "test_expectation.py",
    "test_report.py",
    "test_kinds.py",
    "test_kinds_table.py",
    "test_hostile_pairs.py",
}
"""Tests that name kinds without showing them."""


def _markdown(rows: list[list[str]]) -> str:
    head, *rest = ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows]
    return "\n".join([head, "|" + " --- |" * len(rows[0]), *rest])


def schema() -> str:
    """The schema of reports, with the kinds of the catalogue."""
    given = SCHEMA.read_text(encoding="utf-8")
    kinds = ", ".join(f'"{one.NAME}"' for one in VALIDATORS)
    lines = textwrap.wrap(kinds, 98, initial_indent=" " * 8, subsequent_indent=" " * 8)
    text, found = re.subn(
        r'("kind": \{\s*"description": "[^"]*",\s*"enum": \[)[^]]*?(\s*\])',
        lambda match: "\n".join([match[1], *lines]) + match[2],
        given,
    )
    assert found == 1
    return text


if __name__ == "__main__":
    PATH.write_text(table(), encoding="utf-8")
    SCHEMA.write_text(schema(), encoding="utf-8")
