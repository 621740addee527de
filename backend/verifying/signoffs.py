"""The sign-offs beside evidence, checked against the keyring, the run and the evidence itself."""

from __future__ import annotations

import hashlib
from pathlib import Path

from topicproof.backend.evidence.attestation import Trust, Vouching
from topicproof.backend.evidence.limits import read_bytes
from topicproof.backend.evidence.manifest import (
    Manifest,
    Payloads,
    manifest_hash,
    parse_manifest,
)
from topicproof.backend.evidence.page import PAGE
from topicproof.backend.evidence.signed import ORIGINAL, SIGNOFFS, read_signoffs
from topicproof.backend.evidence.signoff_trust import SignoffVouching, Subject, vouched_signoffs
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
    is_whole_proven: bool = True,
) -> tuple[SignoffVouching, ...]:
    """Return what the sign-offs in a folder are worth. `whole`: the hash of all stages of its run
    together; `is_whole_proven`: whether each stage is known to be the one of its hash. Raises
    EvidenceError."""
    entries = read_signoffs(evidence)
    if not entries:
        return ()
    stage = manifest.of or manifest_hash(evidence) or ""
    hashes = frozenset((stage, whole) if whole else (stage,))
    doubtful = frozenset(() if whole is None or is_whole_proven or whole == stage else (whole,))
    proven = is_proven(evidence, manifest, vouched)
    return vouched_signoffs(entries, Subject(manifest.run, hashes, proven, doubtful), keyring)


def is_proven(evidence: Path, manifest: Manifest, vouched: Vouching | None) -> bool:
    """Return whether evidence is known to be that of the hash which its manifest names: a trusted
    key vouches for it, or the original manifest lies in it and fits. Raises EvidenceError."""
    by_folder = vouched is not None and vouched.trust is Trust.VOUCHED
    return by_folder or _is_copy_of_original(evidence, manifest)


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
