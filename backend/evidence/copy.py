"""Copies of an evidence folder, with or without payloads.

A masked copy replaces every key, value and foreign header by a digest. The digest's secret is made
for this copy and then discarded. Equal values stay equal, so the copy can still be judged by
lineage, key and header, but the values cannot be recovered. A hash of a key or a value could be
guessed, so it is left out, as are the values in rows of wrong_value and undecodable.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import shutil
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from topicproof.backend.errors import EvidenceError
from topicproof.backend.evidence.attestation import attest_copy
from topicproof.backend.evidence.delivery import deliver, private_folder, require_room
from topicproof.backend.evidence.findings import (
    CSV,
    IDENTITY,
    PARQUET,
    count_places,
    has_identities,
    write_csv,
)
from topicproof.backend.evidence.folder import evidence_hash, evidence_in, read_report, write_report
from topicproof.backend.evidence.manifest import (
    ATTESTATION,
    MANIFEST,
    PAGE,
    Manifest,
    Payloads,
    read_manifest,
    require_unchanged,
    write_manifest,
)
from topicproof.backend.evidence.page import page_time, write_page
from topicproof.backend.evidence.read_limits import is_evidence_file
from topicproof.backend.evidence.signed import ORIGINAL, Entries, write_signoffs
from topicproof.backend.open_folders import new_file, open_folder
from topicproof.backend.settings import Settings
from topicproof.validators.decoded import DECODED
from topicproof.validators.expectation import OF_AGGREGATE
from topicproof.validators.finding import Bounds, Example
from topicproof.validators.kinds import group_missing, identity_missing, key_spread
from topicproof.validators.kinds.undecodable import NAME as UNDECODABLE
from topicproof.validators.kinds.wrong_value import without_values as sentence_without
from topicproof.validators.lineage.compact import COMPACT_HEADER, parse_compact
from topicproof.validators.lineage.dead_letters import PLACE_HEADERS
from topicproof.validators.lineage.headers import (
    LINEAGE_HEADER,
    TRANSACTION_HEADER,
    parse_lineage,
    parse_transaction,
)
from topicproof.validators.merged_topics import split
from topicproof.validators.report import Report

DIGEST_BYTES = 16
OURS: Mapping[str, Callable[[bytes], object | None]] = {
    **PLACE_HEADERS,
    COMPACT_HEADER: parse_compact,
    LINEAGE_HEADER: parse_lineage,
    TRANSACTION_HEADER: parse_transaction,
}
"""Headers of our own pipelines, and those that name the input of a dead letter: they name places
and transactions, not content. Each with its parser, which returns None for anything else."""
CONTENT = (
    *("content", "seen_content", "key_hash", "value_hash", "undecoded", DECODED),
    IDENTITY,
)
"""Columns with hashes of content, decoded fields, or why they cannot be decoded, which only judging
needs; and the identities of findings."""
UNDECODED = "It cannot be decoded, or a field of it has no JSON."
"""In place of the reason, which may quote a field."""

QUOTES_NO_HEADER = frozenset(
    [
        "aborted_input",
        "aborted_read",
        "aborted_volume",
        "both_outcomes",
        "duplicate",
        "fate_split",
        "gap",
        "group_missing",
        "group_unknown",
        "hanging",
        "identity_change",
        "identity_disjoint",
        "identity_missing",
        "identity_repeated",
        "interleaving",
        "intruder",
        "key_spread",
        "late_append",
        "letter_repeated",
        "lso_stall",
        "marker_accounting",
        "movement",
        "offset_ahead",
        "offset_behind",
        "order",
        "outputs_alike",
        "phantom",
        "poll_skip",
        "precommitted_read",
        "reading_mismatch",
        "recreated",
        "resurrected",
        "sequence_hole",
        "sink_removed",
        "source_pending",
        "source_removed",
        "torn",
        "undecodable",
        "unknown_outcome",
        "unstable_offsets",
        "wrong_aggregate",
        "wrong_update",
        "wrong_value",
    ]
)
"""Kinds whose rows' sentences hold nothing that a record's header says. Others, also those of
another version, name transactions by headers that anybody may have written."""
_LINEAGE = re.compile(
    r"(?P<topic>[^/]+)/(?P<partition>[0-9]{1,9})/(?P<offset>[0-9]{1,19})(/[0-9]{1,5})?"
)
"""An output's index is from a header: more digits than a real one has are masked."""
MASKED_SENTENCE = "What it says names transactions of headers, which are masked."

Mask = Callable[[bytes | None], bytes | None]


def copy_evidence(
    evidence: Path,
    target: Path,
    payloads: Payloads = Payloads.ALL,
    signoffs: Entries = (),
    scratch: Path | None = None,
) -> str:
    """Copy the evidence into the folder `target`, with its sign-offs. Returns the hash of the
    copy's manifest, which names the original's unless both are the same.

    The copy is made in a private folder in `scratch`, or else among temporary files. It replaces an
    earlier copy. Raises UsageError if the folder holds anything else, EvidenceError if the evidence
    has changed or the copy cannot be written.
    """
    require_room(target)
    with _copying(target), private_folder(scratch) as folder:
        copied = _write_copy(evidence, folder, payloads, signoffs)
        deliver(folder, target)
    return copied


@contextmanager
def _copying(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EvidenceError(
            f"The evidence cannot be copied to {target}: {error.strerror}."
        ) from error


def _write_copy(evidence: Path, target: Path, payloads: Payloads, signoffs: Entries) -> str:
    """Write a copy into a private folder. Returns the hash of its manifest. Raises EvidenceError,
    OSError."""
    original = require_unchanged(evidence)
    manifest = read_manifest(evidence)
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
    return write_manifest(
        target, manifest.run, manifest.verdict, payloads, original, manifest.judged_at
    )


def without_headers(report: Report) -> Report:
    """Return the report without what its examples have from headers, which anybody may have
    written: transactions, also where a sentence names them, and inputs that the source does not
    have."""
    findings = (
        replace(
            finding,
            examples=tuple(
                replace(
                    example,
                    lineage=_known_lineage(example, report.source),
                    transaction=None,
                    why=example.why if finding.kind in QUOTES_NO_HEADER else MASKED_SENTENCE,
                )
                for example in finding.examples
            ),
        )
        for finding in report.findings
    )
    return replace(report, findings=tuple(findings))


def _known_lineage(example: Example, source: Bounds) -> str | None:
    """Return the example's lineage if it is a place of the source. Without a record of the sink, it
    is from the source's own reading."""
    if example.lineage is None or example.partition is None:
        return example.lineage
    place = _LINEAGE.fullmatch(example.lineage)
    if place is None:
        return None
    topic, partition, offset = place["topic"], int(place["partition"]), int(place["offset"])
    is_there = any(
        part.topic == topic and bounds.partition == partition and bounds.start <= offset < bounds.hw
        for part, _first in split(source)
        for bounds in part.partitions
    )
    return example.lineage if is_there else None


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
    copy_evidence(evidence, bare, Payloads.NONE, scratch=evidence.parent)
    try:
        shutil.rmtree(evidence)
        bare.rename(evidence)
    except OSError as error:
        raise EvidenceError(
            f"The evidence in {evidence} cannot be replaced: {error.strerror}."
        ) from error


class Content(NamedTuple):
    """The evidence in a folder."""

    manifests: Mapping[Path, Manifest]
    """By the path of each evidence within the folder."""
    hash: str | None
    """As `evidence_hash` returns it."""


def content_of(folder: Path) -> Content:
    """Raises EvidenceError."""
    manifests = {part.relative_to(folder): read_manifest(part) for part in evidence_in(folder)}
    return Content(manifests, evidence_hash(folder))


def copy_all(
    folder: Path,
    target: Path,
    payloads: Payloads = Payloads.ALL,
    signoffs: Entries = (),
    settings: Settings | None = None,
) -> Content:
    """Copy the evidence of a run's folder: one straight into `target`, several at their relative
    paths. Returns and raises as `copy_parts`."""
    return copy_parts(_parts_of(folder), target, payloads, signoffs, settings)


def _parts_of(folder: Path) -> dict[Path, Path]:
    """Return the evidence of a run's folder, each with its path in a copy. Raises EvidenceError."""
    folders = evidence_in(folder)
    if len(folders) == 1:
        return {folders[0]: Path()}
    return {evidence: evidence.relative_to(folder) for evidence in folders}


def copy_parts(
    parts: Mapping[Path, Path],
    target: Path,
    payloads: Payloads,
    signoffs: Entries = (),
    settings: Settings | None = None,
) -> Content:
    """Copy evidence from each folder to its path below `target`. With `settings`, each copy that
    differs from its original is signed again, before any is handed out. Returns what was handed
    out. Raises as `copy_evidence` and `attest_copy`."""
    require_room(target)
    home = None if settings is None else settings.home
    with _copying(target), private_folder(home) as folder:
        _write_parts(parts, folder, payloads, signoffs, settings)
        content = content_of(folder)
        deliver(folder, target)
    return content


def _write_parts(
    parts: Mapping[Path, Path],
    folder: Path,
    payloads: Payloads,
    signoffs: Entries,
    settings: Settings | None,
) -> None:
    """Write and sign copies in a private folder. Raises EvidenceError, OSError, UsageError."""
    for evidence, path in parts.items():
        copy = folder / path
        copy.mkdir(parents=True, exist_ok=True)
        copied = _write_copy(evidence, copy, payloads, signoffs)
        if settings is not None:
            attest_copy(settings, evidence, copy, copied)


def zip_evidence(
    run: Path,
    target: Path,
    payloads: Payloads,
    name: str,
    signoffs: Entries = (),
    settings: Settings | None = None,
) -> None:
    """Zip the evidence of a run's folder under a top folder `name`, into a file that does not exist
    yet. With `settings`, a copy that differs from its original is signed again. Raises
    EvidenceError."""
    home = None if settings is None else settings.home
    try:
        with private_folder(home) as folder:
            _write_parts(_parts_of(run), folder, payloads, signoffs, settings)
            # A link at the target is refused, and not followed.
            with (
                open_folder(target.parent) as parent,
                new_file(parent, target.name) as file,
                zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed,
            ):
                for path in sorted(folder.rglob("*")):
                    if path.is_file():
                        packed.write(path, f"{name}/{path.relative_to(folder)}")
    except OSError as error:
        raise EvidenceError(f"The evidence cannot be packed: {error.strerror}.") from error


def is_copy(names: Collection[str]) -> bool:
    """Return whether the files of these paths are those of copied evidence, and no others."""
    paths = [PurePosixPath(name) for name in names]
    folders = [path.parent for path in paths if path.name == MANIFEST]
    return bool(folders) and all(
        any(
            path.is_relative_to(folder) and is_evidence_file(str(path.relative_to(folder)))
            for folder in folders
        )
        for path in paths
    )


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
                for name, masked in (
                    ("key", _values),
                    ("value", _values),
                    ("headers", hidden_headers),
                ):
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
    # Also of rows that no example shows.
    if bare != report or has_identities(evidence / PARQUET):
        write_csv(target / PARQUET, target / CSV)
    if bare != report:
        judged_at = manifest.judged_at or page_time(evidence / PAGE) or ""
        write_report(target, bare, count_places(target / PARQUET), judged_at)


def _sentence(kind: str | None, why: str) -> str:
    """Return a finding's sentence without what it quotes of a record."""
    if kind == identity_missing.NAME:
        return identity_missing.without_names(why)
    if kind in OF_AGGREGATE:
        return group_missing.without_group(why)
    return UNDECODED if kind == UNDECODABLE else key_spread.without_key(sentence_without(why))


def _values(values: list[bytes | None], mask: Mask | None) -> list[bytes | None]:
    return [mask(value) if mask else None for value in values]


def hidden_headers(
    rows: list[list[dict[str, Any]] | None], mask: Mask | None
) -> list[list[dict[str, Any]] | None]:
    """Return headers as a copy holds them: ours where they are what they claim to be, others'
    masked or left out."""

    def remaining(header: dict[str, Any]) -> list[dict[str, Any]]:
        if header["key"] in OURS:
            if OURS[header["key"]](header["value"] or b"") is not None:
                return [header]
            # Whatever somebody put into a header of our name; it names nothing, and nor may this.
            # One without a value stays so: findings say which header a dead letter lacks.
            masked = mask(header["value"]) if mask else b""
            return [{**header, "value": None if header["value"] is None else masked}]
        return [{**header, "value": mask(header["value"])}] if mask else []

    return [
        None if row is None else [masked for header in row for masked in remaining(header)]
        for row in rows
    ]
