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
from topicproof.backend.evidence.read_limits import read_json
from topicproof.backend.trust.dsse import (
    PAYLOAD_TYPE,
    STATEMENT,
    Envelope,
    parse_envelope,
    payload_fields,
)

SIGNOFFS = "signoffs.json"
SIGNOFFS_MAX = 10_000
"""Sign-offs in one copy. Each is hashed, and its signature is checked with each known key."""
ORIGINAL = "original-manifest.json"
"""In a copy with sign-offs and all payloads: the manifest that they speak of. Of a masked copy it
would tell hashes of what is masked."""
HASH_SHOWN = 12
PREDICATE = "urn:topicproof:sign-off:v1"
SIGNER_FIELDS = ("signer", "signedAt")
"""What a statement says beside the fields of its entry."""

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
    """Raises OSError, EvidenceError for more than are read again."""
    if len(entries) > SIGNOFFS_MAX:
        raise EvidenceError(
            f"The run has {len(entries):,} sign-offs; a copy of its evidence holds"
            f" {SIGNOFFS_MAX:,} at most."
        )
    text = json.dumps(list(entries), indent=1, ensure_ascii=False)
    (folder / SIGNOFFS).write_text(text + "\n", encoding="utf-8")


def read_signoffs(folder: Path) -> Entries:
    """Read the sign-offs of a copy; none if it holds none. Raises EvidenceError."""
    path = folder / SIGNOFFS
    try:
        entries = read_json(path) if path.is_file() else []
        if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
            raise ValueError("it is not a list of sign-offs")
        if len(entries) > SIGNOFFS_MAX:
            raise ValueError(f"it holds {len(entries):,} sign-offs; {SIGNOFFS_MAX:,} are allowed")
    except (OSError, ValueError, TypeError) as error:
        raise EvidenceError(f"The sign-offs {path} cannot be read: {error}") from error
    return entries


def signoff_contradictions(entries: Entries) -> list[str]:
    """Return a sentence for each entry that was changed after it was signed. It needs no key."""
    problems = [
        entry_contradiction(entry, in_order)
        for entry, in_order in zip(entries, orders(entries), strict=True)
    ]
    return [
        sentence_on(entry, problem)
        for entry, problem in zip(entries, problems, strict=True)
        if problem is not None
    ]


def sentence_on(entry: Mapping[str, Any], problem: str) -> str:
    return f"{SIGNOFFS}: entry {entry_number(entry) or 'without a number'} {problem}"


def entry_contradiction(entry: Mapping[str, Any], in_order: bool) -> str | None:
    """Return why an entry is not what was signed, as the end of a sentence; None if it may be."""
    if entry_number(entry) is None or not in_order:
        return "is not where it belongs: the numbers of entries only grow."
    if entry.get("hash") != entry_hash(entry):
        return "is not what was signed."
    if entry.get("envelope") is None:
        return None
    try:
        envelope = parse_entry_envelope(entry)
        fits = _fits(entry, envelope)
    except (ValueError, LookupError, TypeError):
        return "has a damaged signature."
    return None if fits else "is not what was signed."


def _fits(entry: Mapping[str, Any], envelope: Envelope) -> bool:
    """Return whether the envelope states this entry, each field of it, and nothing else. Raises
    ValueError, LookupError, TypeError for one of another form."""
    statement = payload_fields(envelope)
    subjects = [
        {"name": f"signoff-{entry['number']}", "digest": {"sha256": entry["hash"]}},
        {"name": "evidence", "digest": {"sha256": entry["evidence"]}},
    ]
    return (
        envelope.payload_type == PAYLOAD_TYPE
        and statement["_type"] == STATEMENT
        and statement["predicateType"] == PREDICATE
        and statement["subject"] == subjects
        and _text(statement_fields(entry)) == _text(hashed_fields(entry))
    )


def _text(fields: Any) -> str:
    """Return JSON as a text: `1`, `1.0` and `true` are equal in Python, and not here."""
    return json.dumps(fields, sort_keys=True, ensure_ascii=False)


def orders(entries: Entries) -> list[bool]:
    """Return for each entry whether its number is above the one before."""
    numbers = [entry.get("number") for entry in entries]
    return [_is_rising(numbers[max(0, at - 1) : at + 1]) for at in range(len(numbers))]


def _is_rising(numbers: Sequence[Any]) -> bool:
    return all(type(number) is int for number in numbers) and numbers == sorted(set(numbers))


def entry_number(entry: Mapping[str, Any]) -> int | None:
    number = entry.get("number")
    return number if type(number) is int and 0 < number < 1 << 63 else None


def parse_entry_envelope(entry: Mapping[str, Any]) -> Envelope:
    """Parse the envelope of an entry. Raises ValueError with the reason as a clause."""
    text = entry.get("envelope")
    if not isinstance(text, str):
        raise ValueError("it is no text")
    return parse_envelope(text.encode())


def statement_fields(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields of an entry as its envelope states them; None without a readable one."""
    try:
        stated = payload_fields(parse_entry_envelope(entry))["predicate"]
        return {name: value for name, value in stated.items() if name not in SIGNER_FIELDS}
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


Row = tuple[str, ...]


def signoff_rows(entries: Entries, signatures: bool = True) -> list[Row]:
    """Return the rows of the page: when, who, decision, comment, evidence, signature. A row shows
    what was signed, if anything was. A page cannot check a signature, so it names the key alone.

    Entries without an identity are of earlier versions, and their page shows the name alone. Pages
    of earlier versions have no column with `signatures`.
    """
    rows = [(statement_fields(entry) or entry, entry) for entry in entries]
    return [
        (
            _when(fields),
            _who(fields),
            _decision(fields),
            str(fields.get("comment", "")),
            f"{str(fields.get('evidence', ''))[:HASH_SHOWN]}…",
            *((_signature(entry),) if signatures else ()),
        )
        for fields, entry in rows
    ]


def signoff_text(entry: Mapping[str, Any]) -> str:
    """Return an entry in one line, with the words that were signed if anything was."""
    fields = statement_fields(entry) or entry
    comment = f": {fields['comment']}" if fields.get("comment") else ""
    return f"{_when(fields)} {_who(fields)} {_decision(fields)}{comment}"


def _signature(entry: Mapping[str, Any]) -> str:
    if entry.get("envelope") is None:
        return "not signed"
    try:
        key_id = parse_entry_envelope(entry).signatures[0].key_id
    except ValueError:
        return "damaged"
    named = "".join(letter for letter in key_id[:HASH_SHOWN] if letter.isalnum())
    return f"names key {named}…; `topicproof verify` checks it"


def _when(fields: Mapping[str, Any]) -> str:
    return f"{str(fields.get('made_at', '')).replace('T', ' ')} UTC"


def _who(fields: Mapping[str, Any]) -> str:
    name, by = str(fields.get("name", "")), fields.get("identity")
    if not isinstance(by, Mapping):
        return name
    at = f", {by['subject']} at {by['issuer']}" if {"subject", "issuer"} <= by.keys() else ""
    return f"{name} ({by.get('how')}{at})"


def _decision(fields: Mapping[str, Any]) -> str:
    decision = str(fields.get("decision", ""))
    if decision == "waive":
        return f"waived {fields.get('kind')} until {fields.get('until')} in {fields.get('verdict')}"
    verb = {"accept": "accepted", "reject": "rejected"}.get(decision, decision)
    return f"{verb} {fields.get('verdict')}"
