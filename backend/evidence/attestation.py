"""`attestation.intoto.json`: who vouches for an evidence folder.

An in-toto statement about the manifest, with the predicate test-result, in a DSSE envelope. The
manifest has the hash of every file, so the signature covers them all. The statement also names the
verdict, who launched the run, who signed and when. All of it is the signer's word: the signature
proves the key alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from topicproof.backend.errors import EvidenceError, UsageError
from topicproof.backend.evidence.folder import evidence_in, read_report
from topicproof.backend.evidence.manifest import ATTESTATION, MANIFEST, manifest_hash, read_manifest
from topicproof.backend.settings import Settings
from topicproof.backend.trust.acting import machine_user
from topicproof.backend.trust.dsse import (
    ENVELOPE_BYTES_MAX,
    PAYLOAD_TYPE,
    STATEMENT,
    Envelope,
    Signature,
    encoded,
    format_envelope,
    parse_envelope,
    payload_fields,
)
from topicproof.backend.trust.identity import read_identity
from topicproof.backend.trust.keyring import Keyring, KnownKey, read_keyring, signing_key
from topicproof.backend.trust.keys import SigningKey
from topicproof.validators.finding import Outcome
from topicproof.validators.report import Report

PREDICATE = "https://in-toto.io/attestation/test-result/v0.1"
ASKED = ("contract.yaml", "plan.json", "taken.json")
"""The files with the question: the configuration of the test."""
SIGNER_LENGTH_MAX = 200


class Trust(StrEnum):
    """Whether somebody vouches for a folder."""

    VOUCHED = "vouched"
    UNSIGNED = "unsigned"
    STRANGER = "unknown key"
    """Signed, but by no key that is trusted here."""
    REVOKED = "revoked key"
    BROKEN = "broken signature"
    """The signature belongs to something else, or is none."""

    @property
    def refused(self) -> bool:
        """Whether the folder is refused in any case."""
        return self in (Trust.REVOKED, Trust.BROKEN)


@dataclass(frozen=True)
class Vouching:
    """Who vouches for a folder, or why nobody does."""

    trust: Trust
    says: str
    """One sentence."""
    key: str | None = None
    """The id of the key that signed, as far as it is known."""
    name: str | None = None
    """Who holds the key, in the words of this installation."""
    signer: str | None = None
    """Who signed, in the signer's own words."""
    signed_at: str | None = None
    """UTC, by the signer's clock."""


def attest(
    settings: Settings, evidence: Path, launched_by: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Sign the evidence in a folder as it is now. `launched_by`: the identities of those who
    launched what it judges, as JSON. Raises EvidenceError; UsageError for an unusable or revoked
    key."""
    key = usable_key(settings)
    statement = statement_of(settings, evidence, launched_by)
    write_attestation(evidence, sign_statement(key, statement))


def attest_all(settings: Settings, folder: Path, launched_by: Sequence[Mapping[str, Any]]) -> None:
    """Sign all evidence in the folder of a run. Raises as `attest`."""
    for evidence in evidence_in(folder):
        attest(settings, evidence, launched_by)


def attest_copy(settings: Settings, original: Path, copy: Path, copied: str) -> None:
    """Sign a copy of evidence that differs from its original, such as a masked one. Only a copy of
    what a trusted key vouches for is signed, and only with the manifest of the hash `copied`, which
    `copy_evidence` returned. Raises as `attest`."""
    if manifest_hash(original) == copied:
        return
    if vouching(original, read_keyring(settings)).trust is not Trust.VOUCHED:
        return
    fields = payload_fields(parse_envelope(_read(original / ATTESTATION)))
    key = usable_key(settings)
    statement = statement_of(settings, copy, fields["predicate"].get("launchedBy", ()))
    if statement["subject"][0]["digest"]["sha256"] != copied:
        raise EvidenceError(f"The copy in {copy} was changed before it was signed.")
    write_attestation(copy, sign_statement(key, statement))


def usable_key(settings: Settings) -> SigningKey:
    """Return the key to sign with. Raises UsageError if it is unusable or was revoked."""
    key = signing_key(settings)
    entry = read_keyring(settings).get(key.id)
    if entry is not None and entry.revoked is not None:
        raise UsageError(
            f"The signing key {entry.id[:16]} was revoked on {entry.revoked.at}. Name another one"
            " in TOPICPROOF_SIGNING_KEY or TOPICPROOF_SIGNING_URI."
        )
    return key


def statement_of(
    settings: Settings, evidence: Path, launched_by: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the in-toto statement about a folder. Raises EvidenceError."""
    manifest, report = read_manifest(evidence), read_report(evidence)
    outcomes = {row.kind: row.outcome for row in report.findings}
    counted = [row.kind for row in report.checked if row.kind in outcomes]
    return {
        "_type": STATEMENT,
        "subject": [{"name": MANIFEST, "digest": {"sha256": manifest_hash(evidence)}}],
        "predicateType": PREDICATE,
        "predicate": {
            "result": result_of(report),
            "configuration": [
                {"name": name, "digest": {"sha256": manifest.files[name].sha256}}
                for name in ASKED
                if name in manifest.files
            ],
            "passedTests": [kind for kind in counted if outcomes[kind] is Outcome.HOLDS],
            "failedTests": [kind for kind in counted if outcomes[kind] is not Outcome.HOLDS],
            # in-toto knows no verdict that is open, so UNKNOWN counts as failed; this tells.
            "verdict": report.verdict,
            "run": report.run,
            "payloads": manifest.payloads,
            **signer_fields(settings),
            "launchedBy": list(launched_by),
        },
    }


def signer_fields(settings: Settings) -> dict[str, str]:
    """Return who signs and when, for a statement."""
    return {
        "signer": machine_user(settings).name[:SIGNER_LENGTH_MAX],
        "signedAt": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    }


def result_of(report: Report) -> str:
    """Return the result in in-toto's words: an open verdict is never a pass."""
    if report.verdict is not Outcome.HOLDS:
        return "FAILED"
    return "WARNED" if report.warnings else "PASSED"


def sign_statement(key: SigningKey, statement: Mapping[str, Any]) -> Envelope:
    payload = json.dumps(statement, ensure_ascii=False).encode()
    signature = Signature(key.id, key.sign(encoded(PAYLOAD_TYPE, payload)))
    return Envelope(payload, PAYLOAD_TYPE, (signature,))


def write_attestation(evidence: Path, envelope: Envelope) -> None:
    try:
        (evidence / ATTESTATION).write_text(format_envelope(envelope), encoding="utf-8")
    except OSError as error:
        raise EvidenceError(
            f"The evidence in {evidence} cannot be signed: {error.strerror}."
        ) from error


def vouching(evidence: Path, keyring: Keyring) -> Vouching:
    """Return who vouches for the manifest of a folder. Whether the files agree with the manifest is
    for manifest.py to say. Raises EvidenceError if the signature cannot be read."""
    path = evidence / ATTESTATION
    if not path.exists() and not path.is_symlink():
        return Vouching(Trust.UNSIGNED, "Nobody vouches for it: it has no signature.")
    try:
        envelope = parse_envelope(_read(path))
        statement = _statement(envelope)
    except ValueError as error:
        return Vouching(Trust.BROKEN, f"{ATTESTATION} is not a signature of Topicproof: {error}.")
    signer, hint = signers_of(envelope, keyring)
    if signer is None:
        return _by_nobody(hint, keyring)
    signed = _signed_by(signer, statement)
    if statement["sha256"] != manifest_hash(evidence):
        return Vouching(
            Trust.BROKEN,
            f"{signed} signed another {MANIFEST}: the folder was changed after it was signed.",
            signer.id,
            signer.name,
            statement["signer"],
            statement["signedAt"],
        )
    if signer.revoked is not None:
        trust, says = Trust.REVOKED, f"{signed}. {revoked_says(signer)}"
    else:
        trust, says = Trust.VOUCHED, f"{signed} vouches for it."
    return Vouching(trust, says, signer.id, signer.name, statement["signer"], statement["signedAt"])


def signers_of(envelope: Envelope, keyring: Keyring) -> tuple[KnownKey | None, str]:
    """Return the known key that signed, trusted ones before revoked ones, and the key id that the
    envelope itself names."""
    signed = [key for key in keyring.values() if envelope.signed_by(key.public)]
    signed.sort(key=lambda key: key.revoked is not None)
    return (signed[0] if signed else None), envelope.signatures[0].key_id


def revoked_says(key: KnownKey) -> str:
    assert key.revoked is not None
    return (
        f"That key was revoked on {key.revoked.at}: {key.revoked.reason}. Its older signatures"
        " do not count either, because anyone with the key can sign with any date."
    )


def _by_nobody(hint: str, keyring: Keyring) -> Vouching:
    if hint in keyring:
        return Vouching(
            Trust.BROKEN,
            f"{ATTESTATION} claims the key {hint[:16]} of {keyring[hint].name}, which did not sign"
            " it.",
        )
    short_id = "".join(letter for letter in hint[:16] if letter.isalnum()) or "without an id"
    return Vouching(
        Trust.STRANGER,
        f"Nobody who is trusted here vouches for it: the key {short_id} is not known. If its owner"
        " gave you that key, trust it with `topicproof keys import`.",
        hint[:64],
    )


def _signed_by(signer: KnownKey, statement: Mapping[str, str]) -> str:
    launched = f", launched by {statement['launchedBy']}" if statement["launchedBy"] else ""
    return (
        f"{signer.name} (key {signer.id[:16]}, by {statement['signer']} at"
        f" {statement['signedAt'].replace('T', ' ').replace('Z', ' UTC')}{launched})"
    )


def _statement(envelope: Envelope) -> dict[str, str]:
    """Return what a statement says. Raises ValueError as a clause for one of another kind."""
    statement = payload_fields(envelope)
    if envelope.payload_type != PAYLOAD_TYPE or statement.get("_type") != STATEMENT:
        raise ValueError("it holds no in-toto statement")
    if statement.get("predicateType") != PREDICATE:
        raise ValueError("its statement is of another kind than test-result")
    try:
        ((name, digest),) = [
            (subject["name"], subject["digest"]["sha256"]) for subject in statement["subject"]
        ]
        fields = {key: statement["predicate"][key] for key in ("signer", "signedAt")}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its statement is not about one {MANIFEST}") from error
    if name != MANIFEST or not all(isinstance(text, str) for text in (digest, *fields.values())):
        raise ValueError(f"its statement is not about one {MANIFEST}")
    fields["launchedBy"] = _people(statement["predicate"].get("launchedBy", []))
    return {"sha256": digest, **{key: _shown(text) for key, text in fields.items()}}


def _people(launchers: object) -> str:
    """Return the names of those who launched a run. Raises ValueError as a clause."""
    try:
        people = (
            [read_identity(person) for person in launchers] if isinstance(launchers, list) else None
        )
    except (ValueError, TypeError) as error:
        raise ValueError("it names nobody who launched the run") from error
    if people is None:
        raise ValueError("it names nobody who launched the run")
    return " and ".join(person.shown for person in people)


def _shown(text: str) -> str:
    return "".join(letter for letter in text[:SIGNER_LENGTH_MAX] if letter.isprintable())


def _read(path: Path) -> bytes:
    """Read a signature. Raises ValueError as a clause if it is not a plain file."""
    if path.is_symlink() or not path.is_file():
        raise ValueError("it is a link")
    try:
        with path.open("rb") as file:
            return file.read(ENVELOPE_BYTES_MAX + 1)
    except OSError as error:
        raise EvidenceError(f"{path} cannot be read: {error.strerror}.") from error
