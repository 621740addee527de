"""Copies of an evidence folder, with or without payloads.

A masked copy replaces every key, value and foreign header by a digest. The digest's secret is made
for this copy and then discarded. Equal values stay equal, so the copy can still be judged by
lineage, key and header, but the values cannot be recovered. A hash of a key or a value could be
guessed, so it is left out, as are the values in rows of wrong_value and undecodable.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from topicproof.backend.errors import EvidenceError, UsageError
from topicproof.backend.evidence.attestation import attest_copy
from topicproof.backend.evidence.findings import CSV, PARQUET, count_places, write_csv
from topicproof.backend.evidence.folder import evidence_in, read_report, write_report
from topicproof.backend.evidence.manifest import (
    ATTESTATION,
    MANIFEST,
    Manifest,
    Payloads,
    read_manifest,
    require_unchanged,
    write_manifest,
)
from topicproof.backend.evidence.page import PAGE, page_time, write_page
from topicproof.backend.evidence.signed import ORIGINAL, Entries, write_signoffs
from topicproof.backend.settings import Settings
from topicproof.validators.decoded import DECODED
from topicproof.validators.kinds import identity_missing
from topicproof.validators.kinds.undecodable import NAME as UNDECODABLE
from topicproof.validators.kinds.wrong_value import without_values as sentence_without
from topicproof.validators.lineage.headers import LINEAGE_HEADER, TRANSACTION_HEADER
from topicproof.validators.report import Report

DIGEST_BYTES = 16
OURS = (LINEAGE_HEADER, TRANSACTION_HEADER)
"""Headers of our own pipelines: they name places and transactions, not content."""
CONTENT = ("content", "seen_content", "key_hash", "value_hash", "undecoded", DECODED)
"""Columns with hashes of content, decoded fields, or why they cannot be decoded, which only judging
needs."""
UNDECODED = "It cannot be decoded, or a field of it has no JSON."
"""In place of the reason, which may quote a field."""

Mask = Callable[[bytes | None], bytes | None]


def copy_evidence(
    evidence: Path, target: Path, payloads: Payloads = Payloads.ALL, signoffs: Entries = ()
) -> str:
    """Copy the evidence into the folder `target`, with its sign-offs. Returns the hash of the
    copy's manifest, which names the original's unless both are the same.

    Replaces an earlier copy. Raises UsageError if the folder holds anything else, EvidenceError if
    the evidence has changed or the copy cannot be written.
    """
    original = require_unchanged(evidence)
    manifest = read_manifest(evidence)
    try:
        _make_room(target)
        for name in (*manifest.files, MANIFEST):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            if payloads is Payloads.ALL:
                shutil.copyfile(evidence / name, target / name)
        if payloads is Payloads.ALL and not signoffs:
            if (evidence / ATTESTATION).is_file():
                shutil.copyfile(evidence / ATTESTATION, target / ATTESTATION)
            return original
        if payloads is not Payloads.ALL:
            mask = _digests() if payloads is Payloads.MASKED else None
            for name in manifest.files:
                _copy_masked(evidence / name, target / name, mask)
            _tell_again(evidence, target, manifest)
        if signoffs:
            _add_signoffs(evidence, target, manifest, signoffs, payloads)
    except OSError as error:
        raise EvidenceError(
            f"The evidence cannot be copied to {target}: {error.strerror}."
        ) from error
    return write_manifest(
        target, manifest.run, manifest.verdict, payloads, original, manifest.judged_at
    )


def without_transactions(report: Report) -> Report:
    """Return the report without the transactions of its examples, which are read from a header that
    anybody may have written."""
    findings = (
        replace(
            finding,
            examples=tuple(replace(example, transaction=None) for example in finding.examples),
        )
        for finding in report.findings
    )
    return replace(report, findings=tuple(findings))


def without_values(report: Report) -> Report:
    """Return the report without the record values and identities in its examples."""
    findings = (
        replace(
            finding,
            examples=tuple(
                replace(example, why=_sentence(finding.kind, example.why), identity=None)
                for example in finding.examples
            ),
        )
        for finding in report.findings
    )
    return replace(report, findings=tuple(findings))


def without_identities(report: Report) -> Report:
    """Return the report without the identities in its examples. In a masked copy they are
    digests."""
    findings = (
        replace(
            finding, examples=tuple(replace(example, identity=None) for example in finding.examples)
        )
        for finding in report.findings
    )
    return replace(report, findings=tuple(findings))


def without_payloads(evidence: Path) -> None:
    """Replace the evidence by a copy without payloads, if it has any. Raises EvidenceError."""
    if read_manifest(evidence).payloads is Payloads.NONE:
        return
    bare = evidence.with_name(f"{evidence.name}-bare")
    copy_evidence(evidence, bare, Payloads.NONE)
    try:
        shutil.rmtree(evidence)
        bare.rename(evidence)
    except OSError as error:
        raise EvidenceError(
            f"The evidence in {evidence} cannot be replaced: {error.strerror}."
        ) from error


def copy_all(
    folder: Path, target: Path, payloads: Payloads = Payloads.ALL, signoffs: Entries = ()
) -> None:
    """Copy the evidence of a run's folder: one straight into `target`, several at their relative
    paths. Raises as `copy_evidence`."""
    folders = evidence_in(folder)
    if len(folders) > 1:
        require_room(target)
    for evidence in folders:
        copy_evidence(
            evidence,
            target if len(folders) == 1 else target / evidence.relative_to(folder),
            payloads,
            signoffs,
        )


def zip_evidence(
    run: Path,
    target: Path,
    payloads: Payloads,
    name: str,
    signoffs: Entries = (),
    settings: Settings | None = None,
) -> None:
    """Zip the evidence of a run's folder under a top folder `name`. With `settings`, a copy that
    differs from its original is signed again. Raises EvidenceError."""
    folder = target.with_suffix(".folder")
    copy_all(run, folder, payloads, signoffs)
    if settings is not None:
        attest_copy(settings, run, folder)
    try:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    packed.write(path, f"{name}/{path.relative_to(folder)}")
        shutil.rmtree(folder)
    except OSError as error:
        raise EvidenceError(f"The evidence cannot be packed: {error.strerror}.") from error


def require_room(target: Path) -> None:
    """Raises UsageError if a copy would mix with other files."""
    if target.is_dir() and any(target.iterdir()) and not (target / MANIFEST).is_file():
        raise UsageError(f"{target} is not empty. Choose a folder that is, or that does not exist.")
    if target.exists() and not target.is_dir():
        raise UsageError(
            f"{target} is a file. Choose a folder that is empty, or that does not exist."
        )


def _make_room(target: Path) -> None:
    require_room(target)
    target.mkdir(parents=True, exist_ok=True)
    if (target / MANIFEST).exists():
        for name in (*read_manifest(target).files, MANIFEST, ATTESTATION):
            # A manifest could name any path; only files in this folder are removed.
            if (target / name).resolve().is_relative_to(target.resolve()):
                (target / name).unlink(missing_ok=True)
        for folder in sorted((path for path in target.rglob("*") if path.is_dir()), reverse=True):
            if not any(folder.iterdir()):
                folder.rmdir()
    require_room(target)


def _digests() -> Mask:
    secret = secrets.token_bytes(32)

    def digest(value: bytes | None) -> bytes | None:
        return (
            None
            if value is None
            else hmac.new(secret, value, hashlib.sha256).digest()[:DIGEST_BYTES]
        )

    return digest


def _copy_masked(path: Path, target: Path, mask: Mask | None) -> None:
    if path.suffix == ".crc":
        # Spark's checksum of a file that may change; the manifest has a better one.
        return
    if path.suffix != ".parquet":
        shutil.copyfile(path, target)
        return
    with pq.ParquetFile(path) as file:
        columns = [name for name in file.schema_arrow.names if name not in CONTENT]
        schema = pa.schema([file.schema_arrow.field(name) for name in columns])
        with pq.ParquetWriter(
            target, schema, use_deprecated_int96_timestamps=True
        ) as writer:  # as Spark does
            for batch in file.iter_batches(columns=columns):
                rows = pa.Table.from_batches([batch])
                for name, masked in (("key", _values), ("value", _values), ("headers", _headers)):
                    if name in columns:
                        column = pa.array(
                            masked(rows[name].to_pylist(), mask), schema.field(name).type
                        )
                        rows = rows.set_column(columns.index(name), schema.field(name), column)
                if "why" in columns:
                    whys = rows["why"].to_pylist()
                    kinds = rows["kind"].to_pylist() if "kind" in columns else [None] * len(whys)
                    sentences = pa.array(list(map(_sentence, kinds, whys)), pa.string())
                    rows = rows.set_column(columns.index("why"), schema.field("why"), sentences)
                writer.write_table(rows.cast(schema))


def _add_signoffs(
    evidence: Path, target: Path, manifest: Manifest, signoffs: Entries, payloads: Payloads
) -> None:
    """Write the sign-offs into a copy with the manifest that they speak of, and render its page
    with them."""
    judged_at = manifest.judged_at or page_time(evidence / PAGE) or ""
    write_signoffs(target, signoffs)
    if payloads is Payloads.ALL:
        shutil.copyfile(evidence / MANIFEST, target / ORIGINAL)
    made_at = f"{judged_at.replace('T', ' ')} UTC"
    write_page(target / PAGE, read_report(target), made_at, signoffs)


def _tell_again(evidence: Path, target: Path, manifest: Manifest) -> None:
    """Render the report's files again without values, if it shows any."""
    report = read_report(evidence)
    bare = without_values(report)
    if bare != report:
        write_csv(target / PARQUET, target / CSV)
        judged_at = manifest.judged_at or page_time(evidence / PAGE) or ""
        write_report(target, bare, count_places(target / PARQUET), judged_at)


def _sentence(kind: str | None, why: str) -> str:
    """Return a finding's sentence without what it quotes of a record."""
    if kind == identity_missing.NAME:
        return identity_missing.without_names(why)
    return UNDECODED if kind == UNDECODABLE else sentence_without(why)


def _values(values: list[bytes | None], mask: Mask | None) -> list[bytes | None]:
    return [mask(value) if mask else None for value in values]


def _headers(
    rows: list[list[dict[str, Any]] | None], mask: Mask | None
) -> list[list[dict[str, Any]] | None]:
    def remaining(header: dict[str, Any]) -> list[dict[str, Any]]:
        if header["key"] in OURS:
            return [header]
        return [{**header, "value": mask(header["value"])}] if mask else []

    return [
        None if row is None else [masked for header in row for masked in remaining(header)]
        for row in rows
    ]
