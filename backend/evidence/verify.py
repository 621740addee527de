"""Evidence, judged again from its folder alone: no Kafka, no history, only Spark."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from backend.errors import EvidenceError
from backend.evidence.folder import REPORT
from backend.evidence.manifest import (
    MANIFEST,
    Difference,
    Manifest,
    Payloads,
    differences,
    manifest_hash,
    read_manifest,
)
from backend.exit_codes import code_of
from backend.judge import judge_taken
from backend.taken import EVIDENCE, read_taken
from validators.ledger import ReadingsNeeded
from validators.report import Report


@dataclass(frozen=True)
class Verified:
    """What became of verifying a folder."""

    folder: Path
    manifest: Manifest
    hash: str
    """Of the manifest, as a sign-off names it."""
    differences: tuple[Difference, ...]
    """Files that are not what was written. Then nothing is judged."""
    said: Report | None
    """The report in the folder."""
    found: Report | None
    """The report of judging again."""
    contradictions: tuple[str, ...]
    """Where the two differ, in sentences."""

    @property
    def masked(self) -> bool:
        """Whether the copy lacks what records said, so that a contradiction may come from that alone."""
        return self.manifest.payloads is not Payloads.ALL

    @property
    def exit_code(self) -> int:
        """The verdict's, warnings included, if the evidence is what it says; 4 if it is not; 3 if a masked copy does not
        suffice."""
        if self.differences or self.found is None:
            return 4
        if self.contradictions:
            return 3 if self.masked else 4
        return code_of(self.found)


def evidence_in(folder: Path) -> list[Path]:
    """The evidence in a folder: itself, or what is in the folder of a run, of which several stages have each their own,
    end to end first. Raises EvidenceError when there is none."""
    if (folder / MANIFEST).is_file():
        return [folder]
    patterns = (f"{EVIDENCE}/{MANIFEST}", f"*/*/{EVIDENCE}/{MANIFEST}")
    found = [path.parent for pattern in patterns for path in sorted(folder.glob(pattern))]
    if not found:
        raise EvidenceError(f"{folder} holds no evidence: there is no {MANIFEST} in it.")
    return found


def evidence_hash(folder: Path) -> str | None:
    """What a sign-off names: the hash of the one manifest, or of all of them together; None where there is none."""
    try:
        found = evidence_in(folder)
    except EvidenceError:
        return None
    if len(found) == 1:
        return manifest_hash(found[0])
    lines = "".join(f"{manifest_hash(one)}  {one.relative_to(folder)}\n" for one in found)
    return hashlib.sha256(lines.encode()).hexdigest()


def read_report(evidence: Path) -> Report:
    """Raises EvidenceError."""
    path = evidence / REPORT
    try:
        return Report.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EvidenceError(f"The report {path} cannot be read: {error}") from error


def unchanged(evidence: Path) -> Verified:
    """Only the files are looked at: see `verify`."""
    found = tuple(differences(evidence))
    return Verified(evidence, read_manifest(evidence), manifest_hash(evidence) or "", found, None, None, ())


def verify(spark: SparkSession, evidence: Path) -> Verified:
    """Hold every file against the manifest; if all are what they were, judge again and compare.

    Raises EvidenceError when the folder cannot be read, SparkError.
    """
    looked = unchanged(evidence)
    if looked.differences:
        return looked
    said = read_report(evidence)
    with tempfile.TemporaryDirectory(prefix="topicproof-verify-") as scratch:
        try:
            found = judge_taken(spark, read_taken(spark, evidence), Path(scratch))
        except ReadingsNeeded as error:
            raise EvidenceError(
                f"What {evidence} holds of the readings does not prove the report again, and the records are not in "
                "it: it was kept without payloads. Judge the topics again."
            ) from error
    return Verified(evidence, looked.manifest, looked.hash, (), said, found, tuple(contradictions(said, found)))


def contradictions(said: Report, found: Report) -> list[str]:
    """Where two reports on the same readings do not say the same; how long it took and who judged do not matter.

    Of kinds that the first one does not know, because it was written before they were in the catalogue, only what they
    do to the verdict counts.
    """
    sentences = []
    if said.verdict is not found.verdict:
        sentences.append(f"The report says {said.verdict}; judged again it is {found.verdict}.")
    elif said.why != found.why:
        sentences.append(f"The report says: {said.why} Judged again: {found.why}")
    before, after = ({one.kind: one for one in report.findings} for report in (said, found))
    for kind, was in sorted(before.items()):
        now = after.get(kind)
        if was != now:
            again = f"{now.outcome} with {now.count:,}" if now else "not there"
            sentences.append(f"{kind}: {was.outcome} with {was.count:,} in the report, {again} judged again.")
    if said.balance != found.balance:
        sentences.append("The balance of the sink's offsets is another one.")
    return sentences
