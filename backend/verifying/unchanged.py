"""The first part of a verification, which needs no Spark: hashes, limits, signatures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from topicproof.backend.evidence.attestation import Trust, Vouching, vouching
from topicproof.backend.evidence.folder import evidence_in, original_hash
from topicproof.backend.evidence.manifest import (
    Difference,
    Manifest,
    Payloads,
    differences,
    manifest_hash,
    read_manifest,
)
from topicproof.backend.evidence.read_limits import require_readable, require_size
from topicproof.backend.evidence.signed import read_signoffs, signoff_contradictions
from topicproof.backend.evidence.signoff_trust import Proof, SignoffTrust, SignoffVouching
from topicproof.backend.exit_codes import FORGED, UNJUDGED, code_of, worst
from topicproof.backend.trust.keyring import Keyring
from topicproof.backend.verifying.signoffs import (
    original_contradictions,
    proof_of,
    proof_of_all,
    signoffs_beside,
)
from topicproof.validators.report import Report


@dataclass(frozen=True)
class Verification:
    """Result of verifying a folder."""

    folder: Path
    manifest: Manifest
    hash: str
    """SHA-256 of the manifest, as in a sign-off."""
    differences: tuple[Difference, ...]
    """Changed files. If there are any, nothing is judged."""
    report: Report | None
    """The report in the folder."""
    judged: Report | None
    """The report of the new judgement."""
    contradictions: tuple[str, ...]
    """Differences between the report and the new judgement; each sentence begins with the file."""
    forged: tuple[str, ...] = ()
    """Where another file does not follow from the report, the question and the new rows."""
    unsettled: tuple[str, ...] = ()
    """Sentences about parts that could not be compared."""
    notes: tuple[str, ...] = ()
    """Sentences about harmless differences."""
    vouched: Vouching | None = None
    """Who vouches for the folder; None if no keyring was given."""
    signature_required: bool = False
    """Whether the folder is refused if no trusted key vouches for it and for its sign-offs."""
    signoffs: tuple[SignoffVouching, ...] = ()
    """What each sign-off in the folder is worth."""

    @property
    def masked(self) -> bool:
        """Whether payloads are missing, which alone may cause a contradiction."""
        return self.manifest.payloads is not Payloads.ALL

    @property
    def refused(self) -> bool:
        """Whether the folder is not worth judging again: it was changed, or its signature or a
        sign-off says that it cannot be trusted."""
        trust = None if self.vouched is None else self.vouched.trust
        lacks_signature = self.signature_required and trust is not Trust.VOUCHED
        changed = bool(self.differences) or self._refuses_signoffs
        return changed or lacks_signature or (trust is not None and trust.refused)

    @property
    def _refuses_signoffs(self) -> bool:
        return any(
            entry.trust.refused or (self.signature_required and not entry.trust.by_trusted)
            for entry in self.signoffs
        )

    @property
    def _signoffs_code(self) -> int:
        """3 if a sign-off is by a key that is not known, or if nobody vouches that one is about
        this evidence; 0 otherwise. A sign-off without a signature only says so."""
        if self.vouched is None:
            return 0
        doubtful = {SignoffTrust.STRANGER, SignoffTrust.UNPROVEN}
        if self.vouched.trust is not Trust.VOUCHED:
            doubtful.add(SignoffTrust.OTHER)
        return UNJUDGED if any(entry.trust in doubtful for entry in self.signoffs) else 0

    @property
    def trust_code(self) -> int:
        """The exit code of the signatures alone: 4 if the folder is refused, 3 if a key is not
        known. A folder without a signature, as of earlier versions, has 0 unless one is
        required."""
        if self.refused or self.forged:
            return FORGED
        stranger = self.vouched is not None and self.vouched.trust is Trust.STRANGER
        return UNJUDGED if stranger else self._signoffs_code

    @property
    def exit_code(self) -> int:
        """The verdict's exit code, including warnings, if the evidence is genuine; 4 if it is not;
        3 if a masked copy is not enough, a file cannot be compared, or the key that signed is not
        known."""
        if self.refused or self.judged is None or self.forged:
            return FORGED
        if self.contradictions:
            return UNJUDGED if self.masked else FORGED
        return worst([code_of(self.judged), UNJUDGED if self.unsettled else 0, self.trust_code])


def unchanged(
    evidence: Path,
    keyring: Keyring | None = None,
    signature_required: bool = False,
    whole: str | None = None,
    *,
    whole_proof: Proof = None,
) -> Verification:
    """Compare the files with the manifest, look at each of them within limits, and compare the
    manifest and the sign-offs with their signatures: the first part of `verify`. `whole`: the hash
    of all stages of the run, if the folder is one of several, and `whole_proof`: why each is known
    to be the stage of that run. Raises EvidenceError."""
    require_size(evidence)
    changed = tuple(differences(evidence))
    manifest = read_manifest(evidence)
    looked = Verification(
        folder=evidence,
        manifest=manifest,
        hash=manifest_hash(evidence) or "",
        differences=changed,
        report=None,
        judged=None,
        contradictions=(),
        vouched=None if keyring is None else vouching(evidence, keyring),
        signature_required=signature_required,
    )
    if changed or looked.refused:
        return looked
    require_readable(evidence)
    return replace(
        looked,
        signoffs=signoffs_beside(
            evidence,
            manifest,
            looked.vouched,
            keyring=keyring or {},
            whole=whole,
            whole_proof=whole_proof,
        ),
        forged=(
            *signoff_contradictions(read_signoffs(evidence)),
            *original_contradictions(evidence, manifest),
        ),
    )


def unchanged_parts(
    folder: Path, keyring: Keyring, signature_required: bool = False
) -> list[Verification]:
    """Return `unchanged` for each evidence in a folder. Raises EvidenceError."""
    parts, whole = evidence_in(folder), original_hash(folder)
    proof = proof_of_all(
        [proof_of(part, read_manifest(part), vouching(part, keyring)) for part in parts]
    )
    return [
        unchanged(part, keyring, signature_required, whole, whole_proof=proof) for part in parts
    ]
