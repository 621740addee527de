"""An evidence folder: the files that judging wrote, and files for people and machines.

report.json report.html junit.xml                the report: for programs, people, CI servers
findings.parquet findings.csv                    every finding row
taken.json journal.jsonl sink-* source-*         the basis of the verdict: `topicproof verify`
                                                 judges it again
ledger/                                          intermediate results
plan.json ...                                    the request
manifest.json                                    SHA-256 of each of these
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from topicproof.backend.characters import visible
from topicproof.backend.errors import EvidenceError
from topicproof.backend.evidence.findings import Place, gather
from topicproof.backend.evidence.junit import JUNIT, write_junit
from topicproof.backend.evidence.manifest import (
    MANIFEST,
    PAGE,
    Payloads,
    manifest_hash,
    read_manifest,
    write_manifest,
)
from topicproof.backend.evidence.read_limits import plain_name, read_bytes
from topicproof.validators.report import Report

REPORT = "report.json"
_CHECKED = TypeAdapter(Report)
EVIDENCE = "evidence"
"""Name of the folder in that of a run or of one of its stages."""
CONTRACT = "contract.yaml"
"""The contract, in evidence and in the folder of a check."""


def complete(
    folder: Path, report: Report, attachments: Mapping[str, Any], payloads: Payloads = Payloads.ALL
) -> str:
    """Add the files that judging did not write. Returns the manifest's hash. `attachments` are
    written by file name: text unchanged, anything else as JSON. Raises EvidenceError."""
    made_at = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}"
    try:
        for name, attachment in attachments.items():
            text = (
                attachment
                if isinstance(attachment, str)
                else json.dumps(attachment, indent=2, ensure_ascii=False, default=str)
            )
            (folder / name).write_text(text + "\n", encoding="utf-8")
        places = gather(folder / "ledger", folder)
        write_report(folder, report, places, made_at)
    except OSError as error:
        raise EvidenceError(
            f"The evidence in {folder} cannot be written: {error.strerror}."
        ) from error
    return write_manifest(folder, report.run, report.verdict, payloads, judged_at=made_at)


def write_report(folder: Path, report: Report, places: Mapping[Place, int], made_at: str) -> None:
    """Write the report for programs, CI servers and people. Raises OSError."""
    (folder / REPORT).write_text(report.to_json() + "\n", encoding="utf-8")
    write_junit(folder / JUNIT, report, places, made_at)
    # Late: whoever reads evidence renders no page.
    from topicproof.backend.evidence.page import write_page

    write_page(folder / PAGE, report, f"{made_at.replace('T', ' ')} UTC")


BESIDE_MAX, BESIDE_SHOWN = 1_000, 5
PLACE_CHARACTERS_MAX = 80
"""Characters shown of a place in a report that cannot be read."""


def evidence_in(folder: Path) -> list[Path]:
    """Find the evidence in a folder: the folder itself, all evidence in a run's folder, end to end
    before single stages, or that of each sink of a check. Raises EvidenceError without any."""
    folders = _evidence_in(folder)
    if not folders:
        raise EvidenceError(f"{folder} holds no evidence: there is no {MANIFEST} in it.")
    return folders


def holds_evidence(folder: Path) -> bool:
    return bool(_evidence_in(folder))


def _evidence_in(folder: Path) -> list[Path]:
    if (folder / MANIFEST).is_file():
        return [folder]
    of_run = _evidence_at(folder, f"{EVIDENCE}/{MANIFEST}", f"*/*/{EVIDENCE}/{MANIFEST}")
    # A check of several sinks leaves a folder for each topic, below that of its cluster if named.
    return of_run or _evidence_at(folder, f"*/{MANIFEST}", f"*/*/{MANIFEST}")


def names_beside(folder: Path) -> list[str]:
    """Return the names of files in a folder that belong to none of the evidence in it, of at most
    `BESIDE_MAX` files: nothing was compared with them. Raises EvidenceError."""
    parts = {str(part) for part in evidence_in(folder)}
    names: list[str] = []
    for at, folders, files in os.walk(folder):
        if at in parts:
            folders.clear()
            continue
        folders.sort()
        names += [str((Path(at) / name).relative_to(folder)) for name in sorted(files)]
        if len(names) >= BESIDE_MAX:
            break
    return names[:BESIDE_MAX]


def _evidence_at(folder: Path, *patterns: str) -> list[Path]:
    """Raises EvidenceError for a folder whose name has a line break or the like: hashes of several
    parts are put together by lines with their names. Also for one behind a link, which leads out of
    the folder, to what others may change."""
    parts = [path.parent for pattern in patterns for path in sorted(folder.glob(pattern))]
    for part in parts:
        inner = (part, *part.parents[: len(part.relative_to(folder).parts) - 1])
        if any(path.is_symlink() for path in inner):
            raise EvidenceError(
                f"{plain_name(str(part))} is a link or behind one. Evidence has only folders of its"
                " own, so it is not read."
            )
        name = str(part.relative_to(folder))
        if not name.isprintable():
            raise EvidenceError(f"A folder in {folder} has the name {name!r}, as no evidence has.")
    return parts


def evidence_hash(folder: Path) -> str | None:
    """Return the hash for a sign-off: of the manifest, or of all manifests together; None without
    any."""
    try:
        folders = evidence_in(folder)
    except EvidenceError:
        return None
    if len(folders) == 1:
        return manifest_hash(folders[0])
    lines = "".join(
        f"{manifest_hash(evidence)}  {evidence.relative_to(folder)}\n" for evidence in folders
    )
    return hashlib.sha256(lines.encode()).hexdigest()


def original_hash(folder: Path) -> str | None:
    """Return what `evidence_hash` was before a run's evidence was copied into this folder: that is
    what sign-offs name. Raises EvidenceError."""
    hashes = {
        evidence.relative_to(folder): read_manifest(evidence).of or manifest_hash(evidence)
        for evidence in evidence_in(folder)
    }
    if len(hashes) == 1:
        return next(iter(hashes.values()))
    lines = "".join(f"{digest}  {place}\n" for place, digest in hashes.items())
    return hashlib.sha256(lines.encode()).hexdigest()


def read_report(evidence: Path, sha256: str | None = None) -> Report:
    """Read the report. Raises EvidenceError, also if its bytes have another hash than this one."""
    path = evidence / REPORT
    try:
        data = read_bytes(path)
        if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
            raise EvidenceError(f"{path} is not what was written.")
        report = Report.from_json(data.decode())
        # Rendering trusts the types of a report.
        return _CHECKED.validate_python(asdict(report))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise EvidenceError(f"The report {path} cannot be read: {_first_mistake(error)}") from error


def _first_mistake(error: Exception) -> str:
    """Return what is wrong in one line. Pydantic names every place with the report's own names."""
    if not isinstance(error, ValidationError):
        return visible(str(error))
    mistake = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = visible(".".join(map(str, mistake["loc"])))
    return f"{place[:PLACE_CHARACTERS_MAX]!r}: {mistake['msg']}"
