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
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy.engine import make_url

from topicproof.backend.errors import EvidenceError
from topicproof.backend.evidence.attestation import (
    revoked_says,
    sign_statement,
    signer_fields,
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
ENVELOPES_REMEMBERED = 20_000
"""Envelopes whose signatures are verified once in a process. Each takes some 300 bytes."""


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


def signed_here(settings: Settings) -> list[tuple[int, str]]:
    """Return number and hash of each entry that this installation signed into this database. Read
    it before the chain: what is entered in between is then not missed. Raises EvidenceError for a
    damaged list."""
    path = trust_folder(settings) / SIGNED
    if not path.exists():
        return []
    database = _database(settings)
    try:
        entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [
            (int(entry["number"]), str(entry["hash"]))
            for entry in entries
            if entry["database"] == database
        ]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise EvidenceError(f"The list of signed sign-offs {path} cannot be read.") from error


def missing(signed: Sequence[tuple[int, str]], hashes: Sequence[str]) -> list[int]:
    """Return the numbers of the signed entries (number and hash) that a chain, given by its
    hashes, no longer has."""
    return [
        number for number, digest in signed if number > len(hashes) or hashes[number - 1] != digest
    ]


def anchored(number: int, digest: str, envelope: str | None, keyring: Keyring) -> Anchored:
    """Return who vouches for an entry with this hash."""
    if envelope is None:
        return Anchored(number, False, "Nobody vouches for it: it has no signature.")
    proof = _proof(envelope, keyring)
    if proof.damaged:
        return Anchored(number, False, "Its signature is damaged.")
    signers = [keyring[key_id] for key_id in proof.signers]
    signer = min(signers, key=lambda key: key.revoked is not None, default=None)
    if signer is None:
        return Anchored(number, False, "Its signature is by no key that is known here.")
    by = f"{signer.name} (key {signer.id[:16]})"
    if proof.digest != digest:
        return Anchored(number, False, f"{by} signed another entry.")
    if signer.revoked is not None:
        return Anchored(number, False, f"{by} signed it. {revoked_says(signer)}")
    return Anchored(number, True, f"{by} vouches for it.")


class _Proof(NamedTuple):
    """What an envelope proves, whatever is revoked."""

    damaged: bool
    digest: str | None = None
    """The hash of the entry that it is about; None if it is about something else."""
    signers: tuple[str, ...] = ()
    """The ids of the known keys that signed it."""


_proofs: dict[str, _Proof] = {}
_proofs_lock = threading.Lock()


def _proof(envelope: str, keyring: Keyring) -> _Proof:
    """Verify an envelope, once for each set of keys: a page that lists runs does it for all their
    sign-offs, each time it is drawn. What is revoked is for the caller to see."""
    text = "\0".join((*keyring, envelope))
    name = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    proof = _proofs.get(name)
    if proof is None:
        proof = _verified(envelope, keyring)
        with _proofs_lock:
            _proofs[name] = proof
            while len(_proofs) > ENVELOPES_REMEMBERED:
                del _proofs[next(iter(_proofs))]
    return proof


def _verified(envelope: str, keyring: Keyring) -> _Proof:
    try:
        parsed = parse_envelope(envelope.encode())
        fields = payload_fields(parsed)
        is_ours = parsed.payload_type == PAYLOAD_TYPE and fields["predicateType"] == PREDICATE
        digest = str(fields["subject"][0]["digest"]["sha256"])
    except (ValueError, KeyError, TypeError, IndexError):
        return _Proof(damaged=True)
    signers = tuple(key.id for key in keyring.values() if parsed.signed_by(key.public))
    return _Proof(damaged=False, digest=digest if is_ours else None, signers=signers)


def _database(settings: Settings) -> str:
    """Name a database without its password."""
    url = make_url(settings.database_url).render_as_string(hide_password=True)
    return hashlib.sha256(url.encode()).hexdigest()[:16]
