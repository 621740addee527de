"""The sign-offs beside evidence, checked against the keyring, the run and the evidence itself."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from topicproof.backend.evidence.attestation import Trust, Vouching
from topicproof.backend.evidence.manifest import (
    PAGE,
    Manifest,
    Payloads,
    manifest_hash,
    parse_manifest,
)
from topicproof.backend.evidence.read_limits import read_bytes
from topicproof.backend.evidence.signed import ORIGINAL, SIGNOFFS, read_signoffs
from topicproof.backend.evidence.signoff_trust import (
    Proof,
    SignoffVouching,
    Subject,
    vouched_signoffs,
)
from topicproof.backend.trust.keyring import Keyring

MADE_ANEW = (PAGE, SIGNOFFS, ORIGINAL)
"""The files of a copy with sign-offs that are not those of its original."""


def signoffs_beside(
    evidence: Path,
    manifest: Manifest,
    vouched: Vouching | None,
    keyring: Keyring,
    whole: str | None = None,
    *,
    whole_proof: Proof = None,
) -> tuple[SignoffVouching, ...]:
    """Return what the sign-offs in a folder are worth. `whole`: the hash of all stages of its run
    together; `whole_proof`: why each stage is known to be the one of its hash. Raises
    EvidenceError."""
    entries = read_signoffs(evidence)
    if not entries:
        return ()
    stage = manifest.of or manifest_hash(evidence) or ""
    proofs = {} if whole is None else {whole: whole_proof}
    proofs[stage] = proof_of(evidence, manifest, vouched)
    return vouched_signoffs(entries, Subject(manifest.run, proofs), keyring)


def proof_of(evidence: Path, manifest: Manifest, vouched: Vouching | None) -> Proof:
    """Return why evidence is known to be that of the hash which its manifest names. Raises
    EvidenceError."""
    if _is_copy_of_original(evidence, manifest):
        return None
    is_vouched = vouched is not None and vouched.trust is Trust.VOUCHED
    return frozenset([vouched.key]) if is_vouched and vouched and vouched.key else frozenset()


def proof_of_all(proofs: Sequence[Proof]) -> Proof:
    """Return the proof of several parts together: keys that vouch for each part which needs it."""
    by_keys = [proof for proof in proofs if proof is not None]
    return frozenset.intersection(*by_keys) if by_keys else None


def original_contradictions(evidence: Path, manifest: Manifest) -> list[str]:
    """Return a sentence if the original manifest in a copy is not what the copy was made of."""
    if not (evidence / ORIGINAL).is_file() or _is_copy_of_original(evidence, manifest):
        return []
    return [f"{ORIGINAL}: it is not the manifest of what this copy was made of."]


def _is_copy_of_original(evidence: Path, manifest: Manifest) -> bool:
    """Return whether the original manifest is here, has the hash that the copy names, and lists the
    files of the copy but for those that a copy makes anew."""
    path = evidence / ORIGINAL
    if manifest.payloads is not Payloads.ALL or not path.is_file():
        return False
    if hashlib.sha256(read_bytes(path)).hexdigest() != manifest.of:
        return False
    original = parse_manifest(path)
    files = {name: entry for name, entry in manifest.files.items() if name not in MADE_ANEW}
    before = {name: entry for name, entry in original.files.items() if name not in MADE_ANEW}
    same_words = (original.run, original.verdict) == (manifest.run, manifest.verdict)
    return same_words and files == before
