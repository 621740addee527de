"""Verification of an evidence folder by judging it again, with Spark alone: no Kafka, no
history."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from topicproof.backend.address import Address
from topicproof.backend.errors import EvidenceError, SparkError
from topicproof.backend.evidence.copy import without_identities
from topicproof.backend.evidence.findings import Place, gather
from topicproof.backend.evidence.folder import REPORT, read_report
from topicproof.backend.evidence.manifest import Payloads
from topicproof.backend.evidence.read_limits import read_bytes
from topicproof.backend.judging.capture_store import Capture, read_capture
from topicproof.backend.judging.judge import judge_capture
from topicproof.backend.storage import fetch
from topicproof.backend.verifying.cluster_check import compare_with_clusters
from topicproof.backend.verifying.derived import (
    OLD_PAGE,
    asked_contradictions,
    file_contradictions,
    has_old_page,
    manifest_contradictions,
    other_versions,
    report_contradictions,
)
from topicproof.backend.verifying.unchanged import Verification, unchanged
from topicproof.validators.ledger.ledger import ReadingsNeeded
from topicproof.validators.report import Report
from topicproof.validators.spark_errors import first_line

HOSTILE = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError),
    *(TypeError, ValueError, OSError, pa.ArrowException),
)
"""What files raise that Topicproof did not write."""


@dataclass(frozen=True)
class SecondJudgement:
    """What the readings of a folder of evidence give, whatever its other files say."""

    capture: Capture
    report: Report
    folder: Path
    """Where the rows of the findings are (`findings.parquet`)."""
    places: Counter[Place]


def verify(
    spark: SparkSession,
    evidence: Path,
    address: Address | None = None,
    source: Address | None = None,
    looked: Verification | None = None,
) -> Verification:
    """Compare every file with the manifest. If none has changed, judge again and derive the other
    files again. With an `address`, also compare the cluster's id, the topics' ids and the rest of
    the raw logs. `source` is the source's cluster, if the evidence is about two. `looked` is the
    answer of `unchanged`, if it is known.

    Raises EvidenceError if the folder cannot be read, SparkError, ClusterError.
    """
    looked = looked or unchanged(evidence)
    if looked.refused:
        return looked
    report = read_report(evidence)
    with tempfile.TemporaryDirectory(prefix="topicproof-verify-") as name:
        second = judge_again(spark, evidence, Path(name))
        compared = compare(spark, looked, report, second)
    forged, unsettled = compare_with_clusters(second.capture, address, source)
    return replace(
        compared,
        forged=(*compared.forged, *forged),
        unsettled=(*compared.unsettled, *unsettled),
    )


def judge_again(spark: SparkSession, evidence: Path, folder: Path) -> SecondJudgement:
    """Judge the readings of a folder of evidence. `folder` is empty, and gets the rows of the
    findings. Raises EvidenceError if they cannot be read or judged, SparkError."""
    try:
        capture = read_capture(spark, evidence)
    except PySparkException as error:
        raise EvidenceError(
            f"The readings in {evidence} cannot be read: {first_line(error)}"
        ) from error
    try:
        report = judge_capture(spark, capture, folder)
    except HOSTILE as error:
        raise EvidenceError(
            f"The evidence in {evidence} cannot be judged: its files do not fit together"
            f" ({first_line(error)})."
        ) from error
    except ReadingsNeeded as error:
        raise EvidenceError(
            f"The folded readings in {evidence} do not prove the report again, and there are no"
            " records: the evidence was kept without payloads. Judge the topics again."
        ) from error
    fetch(spark, folder / "ledger")
    return SecondJudgement(capture, report, folder, gather(folder / "ledger", folder))


def compare(
    spark: SparkSession, looked: Verification, report: Report, second: SecondJudgement
) -> Verification:
    """Compare the files of a folder with what its readings give: `looked` is the answer of
    `unchanged`, and `report` the report in it. Writes into the folder of `second`. Raises
    EvidenceError, SparkError."""
    evidence, manifest, question = looked.folder, looked.manifest, second.capture.question
    judged = without_identities(second.report) if looked.masked else second.report
    text = read_bytes(evidence / REPORT).decode()
    contradictions = report_contradictions(text, report, judged)
    forged = [*looked.forged, *asked_contradictions(evidence, question)]
    others = other_versions(report)
    rendered: list[str] = []
    old_page: list[str] = []
    if not contradictions:
        # The files are rendered from the report, so a wrong report says nothing about them.
        forged += manifest_contradictions(manifest, judged)
        places, scratch = second.places, second.folder
        try:
            rendered = file_contradictions(spark, evidence, manifest, report, places, scratch)
            old_page = [OLD_PAGE] if has_old_page(evidence, manifest, report, scratch) else []
        except HOSTILE as error:
            raise EvidenceError(
                f"The files of {evidence} cannot be rendered again: {first_line(error)}"
            ) from error
        except PySparkException as error:
            raise SparkError(
                f"Spark could not compare the findings: {first_line(error)}"
            ) from error
    unsettled = [
        f"{sentence} This version may render it otherwise than the report's."
        for sentence in rendered
        if others
    ]
    if manifest.payloads is Payloads.NONE and question.agreed.needs_records:
        # Both sides hold null, and null equals null, whatever the topics hold.
        unsettled.append(
            f"{REPORT}: the copy holds no keys, values or headers, so it cannot show that the"
            " outputs have what the contract requires of them."
        )
    reason = "The report was written with other versions, so its sentences are not compared"
    notes = [f"{reason}: {', '.join(others)}."] if others else []
    notes += old_page
    forged += [] if others else rendered
    return replace(
        looked,
        report=report,
        judged=judged,
        contradictions=tuple(contradictions),
        forged=tuple(forged),
        unsettled=tuple(unsettled),
        notes=tuple(notes),
    )
