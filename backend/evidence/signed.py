"""Sign-offs in a copy of evidence: `signoffs.json`, and a section of the page.

A sign-off is bound to the hash of the original manifest, which a copy names as `of`. So only
copies hold sign-offs: in the original they would change what was signed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from topicproof.backend.errors import EvidenceError

SIGNOFFS = "signoffs.json"
HASH_SHOWN = 12

Entries = Sequence[Mapping[str, Any]]
"""Sign-offs with their fields as JSON, oldest first."""


def hashed_fields(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that an entry's hash and its signature cover."""
    return {name: value for name, value in entry.items() if name not in ("hash", "envelope")}


def entry_hash(entry: Mapping[str, Any]) -> str:
    """Return the correct `hash` of an entry: SHA-256 of its hashed fields."""
    text = json.dumps(hashed_fields(entry), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write_signoffs(folder: Path, entries: Entries) -> None:
    """Raises OSError."""
    text = json.dumps(list(entries), indent=1, ensure_ascii=False)
    (folder / SIGNOFFS).write_text(text + "\n", encoding="utf-8")


def read_signoffs(folder: Path) -> Entries:
    """Read the sign-offs of a copy; none if it holds none. Raises EvidenceError."""
    path = folder / SIGNOFFS
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
        if not all(isinstance(one, dict) for one in found):
            raise ValueError("it is not a list of sign-offs")
    except (OSError, ValueError, TypeError) as error:
        raise EvidenceError(f"The sign-offs {path} cannot be read: {error}") from error
    return list(found)


def signoff_contradictions(entries: Entries) -> list[str]:
    """Return a sentence for each entry that was changed after it was signed."""
    return [
        f"{SIGNOFFS}: entry {one.get('number')} is not what was signed."
        for one in entries
        if one.get("hash") != entry_hash(one)
    ]


def signoff_rows(entries: Entries) -> list[tuple[str, str, str, str, str]]:
    """Return the rows of the page: when, who, decision, comment, evidence. Entries without an
    identity are of earlier versions, and their page shows the name alone."""
    return [
        (
            f"{str(one.get('made_at', '')).replace('T', ' ')} UTC",
            _who(one),
            _decision(one),
            str(one.get("comment", "")),
            f"{str(one.get('evidence', ''))[:HASH_SHOWN]}…",
        )
        for one in entries
    ]


def _who(one: Mapping[str, Any]) -> str:
    name, by = str(one.get("name", "")), one.get("identity")
    if not isinstance(by, Mapping):
        return name
    at = f", {by['subject']} at {by['issuer']}" if {"subject", "issuer"} <= by.keys() else ""
    return f"{name} ({by.get('how')}{at})"


def _decision(one: Mapping[str, Any]) -> str:
    decision = str(one.get("decision", ""))
    if decision == "waive":
        return f"waived {one.get('kind')} until {one.get('until')} in {one.get('verdict')}"
    said = {"accept": "accepted", "reject": "rejected"}.get(decision, decision)
    return f"{said} {one.get('verdict')}"
