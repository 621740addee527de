"""URL state of the Check page: two topics, the contract that they are checked by, and a check.

A contract comes from the draft, from a kept version (`contract=orders@3`) or from an earlier check
(`run=ID`). Terms that somebody has changed since are in the URL too (`terms`), so a reload keeps
them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from topicproof.app.wording import plain
from topicproof.backend.errors import Mistake

TERMS_CHARACTERS = 20_000
TERMS_LEVELS = 20
"""A contract has five. Whatever reads deeper ones calls itself for each level."""
MISTAKES_SHOWN = 20
NAME_CHARACTERS = 249
_NAMED = ("source", "sink", "source_cluster", "contract", "run", "name")


@dataclass(frozen=True)
class CheckState:
    """What the Check page shows."""

    source: str | None = None
    sink: str | None = None
    source_cluster: str | None = None
    """The source's cluster by name; None: the sink's."""
    contract: str | None = None
    """A kept contract, such as `orders@3`."""
    run: str | None = None
    """A check in the history."""
    name: str | None = None
    """The name to keep the contract by; None: the one that it has, or the sink's."""
    terms: Mapping[str, Any] | None = field(default=None)
    """The contract's fields as somebody has changed them; None: as they come."""

    def with_fields(self, fields: Mapping[str, Any]) -> CheckState:
        """Return the state with changed fields."""
        return replace(self, terms=dict(fields))


def read_check(params: Mapping[str, str]) -> tuple[CheckState, list[str]]:
    """Read the URL; also return a notice for an invalid value."""
    notices: list[str] = []
    terms = None
    if "terms" in params:
        try:
            terms = json.loads(params["terms"][:TERMS_CHARACTERS])
            # Half of a surrogate pair cannot be written into an address again.
            _spell(terms).encode()
        except (ValueError, RecursionError):
            terms = None
        if not isinstance(terms, dict) or _levels(terms, TERMS_LEVELS) > TERMS_LEVELS:
            notices.append(
                "The terms in this address are damaged. Showing the contract without them."
            )
            terms = None
    names = {name: params[name][:NAME_CHARACTERS] or None for name in _NAMED if name in params}
    return CheckState(**names, terms=terms), notices


def write_check(state: CheckState) -> dict[str, str]:
    """Write the URL parameters that read back as this state."""
    named = {name: getattr(state, name) for name in _NAMED}
    params = {name: value for name, value in named.items() if value}
    if state.terms is not None:
        params["terms"] = _spell(state.terms)
    return params


def _spell(terms: Any) -> str:
    """Raises ValueError for numbers that JSON does not have."""
    return json.dumps(terms, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _levels(terms: Any, at_most: int) -> int:
    """Return how many levels the terms have, counted to one more than `at_most`."""
    levels, layer = 0, [terms]
    while layer and levels <= at_most:
        levels += 1
        inner = (
            each.values() if isinstance(each, dict) else each
            for each in layer
            if isinstance(each, dict | list)
        )
        layer = [item for items in inner for item in items]
    return levels


def topic_of(fields: Mapping[str, Any], side: str) -> str | None:
    """Return the one topic of a side; None if the contract names several, or none."""
    side_fields = fields.get(side)
    topic = side_fields.get("topic") if isinstance(side_fields, Mapping) else None
    return topic if isinstance(topic, str) else None


def cluster_of(fields: Mapping[str, Any], side: str) -> str | None:
    """Return the cluster that a side names; None if it names none."""
    side_fields = fields.get(side)
    cluster = side_fields.get("cluster") if isinstance(side_fields, Mapping) else None
    return cluster if isinstance(cluster, str) else None


def at_cluster(fields: Mapping[str, Any], source_cluster: str | None) -> dict[str, Any]:
    """Return a contract's fields whose source names this cluster; None changes nothing."""
    source = fields.get("source")
    if source_cluster is None or not isinstance(source, Mapping):
        return dict(fields)
    return {**fields, "source": {**source, "cluster": source_cluster}}


def mistake_line(field_name: str, why: str) -> str:
    """Return a mistake of a contract in the words of the form."""
    return f"**{plain(field_name)}**: {plain(why)}" if field_name else plain(why)


def mistakes_text(mistakes: Sequence[Mistake]) -> str:
    """Formats the first mistakes of a contract, one a line, and how many more there are."""
    lines = [mistake_line(each.field, each.why) + "\\." for each in mistakes[:MISTAKES_SHOWN]]
    further = len(mistakes) - MISTAKES_SHOWN
    if further > 0:
        lines.append(f"{further:,} more.")
    return "  \n".join(lines)
