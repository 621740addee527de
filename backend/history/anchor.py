"""Signatures that anchor the chain of sign-offs.

A chain of hashes alone can be computed again by anybody who can write to the database. So each
entry is signed as evidence is: an in-toto statement about the entry's hash and the evidence, in a
DSSE envelope. Since an entry has the hash of the previous one, its signature covers all earlier
ones. The home also keeps a list of the entries that this installation signed, so that it notices
the removal of the newest ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import make_url

from topicproof.backend.errors import EvidenceError
from topicproof.backend.evidence.attestation import (
    revoked_says,
    sign_statement,
    signer_fields,
    signers_of,
    usable_key,
)
from topicproof.backend.evidence.signed import PREDICATE
from topicproof.backend.settings import Settings
from topicproof.backend.trust.dsse import (
    PAYLOAD_TYPE,
    STATEMENT,
    format_envelope,
    parse_envelope,
    payload_fields,
)
from topicproof.backend.trust.keyring import Keyring
from topicproof.backend.trust.keys import trust_folder

SIGNED = "signoffs.jsonl"
"""In the home's folder `trust`: the entries that this installation signed, one a line."""


@dataclass(frozen=True)
class Anchored:
    """What the signatures say of one entry of the chain."""

    number: int
    trusted: bool
    says: str
    """One sentence."""


def sign_entry(settings: Settings, fields: Mapping[str, Any], digest: str, evidence: str) -> str:
    """Return an envelope for an entry with these fields and this hash. Raises UsageError for an
    unusable key, EvidenceError."""
    statement = {
        "_type": STATEMENT,
        "subject": [
            {"name": f"signoff-{fields['number']}", "digest": {"sha256": digest}},
            {"name": "evidence", "digest": {"sha256": evidence}},
        ],
        "predicateType": PREDICATE,
        "predicate": {**fields, **signer_fields(settings)},
    }
    return format_envelope(sign_statement(usable_key(settings), statement))


def remember(settings: Settings, number: int, digest: str) -> None:
    """Note in the home that this installation signed an entry. Raises EvidenceError."""
    path = trust_folder(settings) / SIGNED
    line = json.dumps({"database": _database(settings), "number": number, "hash": digest})
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        raise EvidenceError(
            f"Entry {number} was signed, but {path} cannot be written: {error.strerror}."
        ) from error


def missing(settings: Settings, hashes: Sequence[str]) -> list[int]:
    """Return the numbers of the entries that this installation signed and that the chain, given by
    its hashes, no longer has. Raises EvidenceError for a damaged list."""
    path = trust_folder(settings) / SIGNED
    if not path.exists():
        return []
    database = _database(settings)
    try:
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [
            entry["number"]
            for entry in entries
            if entry["database"] == database
            and (entry["number"] > len(hashes) or hashes[entry["number"] - 1] != entry["hash"])
        ]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise EvidenceError(f"The list of signed sign-offs {path} cannot be read.") from error


def anchored(number: int, digest: str, envelope: str | None, keyring: Keyring) -> Anchored:
    """Return who vouches for an entry with this hash."""
    if envelope is None:
        return Anchored(number, False, "Nobody vouches for it: it has no signature.")
    try:
        parsed = parse_envelope(envelope.encode())
        fields = payload_fields(parsed)
        fits = (
            parsed.payload_type == PAYLOAD_TYPE
            and fields["predicateType"] == PREDICATE
            and fields["subject"][0]["digest"]["sha256"] == digest
        )
    except (ValueError, KeyError, TypeError, IndexError):
        return Anchored(number, False, "Its signature is damaged.")
    signer, _ = signers_of(parsed, keyring)
    if signer is None:
        return Anchored(number, False, "Its signature is by no key that is known here.")
    by = f"{signer.name} (key {signer.id[:16]})"
    if not fits:
        return Anchored(number, False, f"{by} signed another entry.")
    if signer.revoked is not None:
        return Anchored(number, False, f"{by} signed it. {revoked_says(signer)}")
    return Anchored(number, True, f"{by} vouches for it.")


def _database(settings: Settings) -> str:
    """Name a database without its password."""
    url = make_url(settings.database_url).render_as_string(hide_password=True)
    return hashlib.sha256(url.encode()).hexdigest()[:16]
