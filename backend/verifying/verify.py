"""Verification of an evidence folder by judging it again, with Spark alone: no Kafka, no
history."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from topicproof.backend.address import Address
from topicproof.backend.errors import EvidenceError, SparkError
from topicproof.backend.evidence.findings import gather
from topicproof.backend.evidence.folder import REPORT, read_report
from topicproof.backend.evidence.manifest import (
    Difference,
    Manifest,
    Payloads,
    differences,
    manifest_hash,
    read_manifest,
)
from topicproof.backend.exit_codes import FORGED, UNJUDGED, code_of, worst
from topicproof.backend.judging.capture_store import read_capture
from topicproof.backend.judging.judge import judge_capture
from topicproof.backend.services.spark import first_line
from topicproof.backend.verifying.cluster_check import compare_with_clusters
from topicproof.backend.verifying.derived import (
    asked_contradictions,
    file_contradictions,
    manifest_contradictions,
    other_versions,
    report_contradictions,
)
from topicproof.validators.ledger.ledger import ReadingsNeeded
from topicproof.validators.report import Report


@dataclass(frozen=True)
class Verified:
    """Result of verifying a folder."""

    folder: Path
    manifest: Manifest
    hash: str
    """SHA-256 of the manifest, as in a sign-off."""
    differences: tuple[Difference, ...]
    """Changed files. If there are any, nothing is judged."""
    said: Report | None
    """The report in the folder."""
    found: Report | None
    """The report of the new judgement."""
    contradictions: tuple[str, ...]
    """Differences between the report and the new judgement; each sentence begins with the file."""
    forged: tuple[str, ...] = ()
    """Where another file does not follow from the report, the question and the new rows."""
    unsettled: tuple[str, ...] = ()
    """Sentences about parts that could not be compared."""
    notes: tuple[str, ...] = ()
    """Sentences about harmless differences."""

    @property
    def masked(self) -> bool:
        """Whether payloads are missing, which alone may cause a contradiction."""
        return self.manifest.payloads is not Payloads.ALL

    @property
    def exit_code(self) -> int:
        """The verdict's exit code, including warnings, if the evidence is genuine; 4 if it is not;
        3 if a masked copy is not enough or a file cannot be compared."""
        if self.differences or self.found is None or self.forged:
            return FORGED
        if self.contradictions:
            return UNJUDGED if self.masked else FORGED
        return worst([code_of(self.found), UNJUDGED if self.unsettled else 0])


def unchanged(evidence: Path) -> Verified:
    """Compare the files with the manifest, the first part of `verify`."""
    found = tuple(differences(evidence))
    return Verified(
        evidence, read_manifest(evidence), manifest_hash(evidence) or "", found, None, None, ()
    )


def verify(
    spark: SparkSession,
    evidence: Path,
    address: Address | None = None,
    source: Address | None = None,
) -> Verified:
    """Compare every file with the manifest. If none has changed, judge again and derive the other
    files again. With an `address`, also compare the cluster's id, the topics' ids and the rest of
    the raw logs. `source` is the source's cluster, if the evidence is about two.

    Raises EvidenceError if the folder cannot be read, SparkError, ClusterError.
    """
    looked = unchanged(evidence)
    if looked.differences:
        return looked
    said, manifest = read_report(evidence), looked.manifest
    capture = read_capture(spark, evidence)
    with tempfile.TemporaryDirectory(prefix="topicproof-verify-") as name:
        scratch = Path(name)
        try:
            found = judge_capture(spark, capture, scratch)
        except ReadingsNeeded as error:
            raise EvidenceError(
                f"The folded readings in {evidence} do not prove the report again, and there are no"
                " records: the evidence was kept without payloads. Judge the topics again."
            ) from error
        text = (evidence / REPORT).read_text(encoding="utf-8")
        contradictions = report_contradictions(text, said, found)
        forged = asked_contradictions(evidence, capture.question)
        others = other_versions(said)
        rendered: list[str] = []
        if not contradictions:
            # The files are rendered from the report, so a wrong report says nothing about them.
            forged += manifest_contradictions(manifest, found)
            places = gather(scratch / "ledger", scratch)
            try:
                rendered = file_contradictions(spark, evidence, manifest, said, places, scratch)
            except PySparkException as error:
                raise SparkError(
                    f"Spark could not compare the findings: {first_line(error)}"
                ) from error
    asked = compare_with_clusters(capture, address, source)
    unsettled = [
        f"{one} This version may render it otherwise than the report's."
        for one in rendered
        if others
    ]
    told = "The report was written with other versions, so its sentences are not compared"
    notes = [f"{told}: {', '.join(others)}."] if others else []
    forged += [] if others else rendered
    return Verified(
        *(evidence, manifest, looked.hash, (), said, found, tuple(contradictions)),
        *((*forged, *asked[0]), (*unsettled, *asked[1]), tuple(notes)),
    )
