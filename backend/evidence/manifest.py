"""`manifest.json`: size and SHA-256 of every file in an evidence folder.

It is written last. A sign-off is bound to its hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter

from topicproof.backend.errors import EvidenceError
from topicproof.backend.evidence.read_limits import parse_json, plain_file, plain_name, read_bytes

MANIFEST = "manifest.json"
ATTESTATION = "attestation.intoto.json"
"""The signature over the manifest (attestation.py), which the manifest therefore cannot list."""
PAGE = "report.html"
SCHEMA = 1


class Payloads(StrEnum):
    """The keys, values and headers that the readings hold."""

    ALL = "all"
    """Everything, unchanged."""
    MASKED = "masked"
    """Digests with a discarded secret: equal values stay equal, and none can be read."""
    NONE = "none"
    """Only our own pipelines' headers."""


class Entry(NamedTuple):
    sha256: str
    bytes: int


NO_FILE = Entry("no plain file", -1)
"""A link, a pipe or a device: never what was written, whatever the manifest says."""


class Difference(NamedTuple):
    """A file that differs from the manifest."""

    file: str
    how: str
    """changed, missing or added"""


@dataclass(frozen=True)
class Manifest:
    run: str | None
    verdict: str
    made_at: str
    """UTC, ISO 8601."""
    payloads: Payloads = Payloads.ALL
    judged_at: str | None = None
    """UTC, ISO 8601: the time in the report's page and JUnit file. None in manifests of older
    versions."""
    of: str | None = None
    """SHA-256 of the original manifest, in a copy that leaves something out."""
    files: Mapping[str, Entry] = field(default_factory=dict)
    """By path within the folder."""


_CHECKED = TypeAdapter(Manifest)
"""Checks the types of a manifest from elsewhere."""


def write_manifest(
    folder: Path,
    run: str | None,
    verdict: str,
    payloads: Payloads = Payloads.ALL,
    of: str | None = None,
    judged_at: str | None = None,
) -> str:
    """Hash every file in the folder. Returns the manifest's own hash. Raises EvidenceError."""
    now = f"{datetime.now(UTC).replace(tzinfo=None):%Y-%m-%dT%H:%M:%S}Z"
    try:
        files = {name: _entry(folder / name) for name in _files(folder)}
        fields = asdict(Manifest(run, verdict, now, payloads, judged_at, of))
        fields["files"] = {name: entry._asdict() for name, entry in files.items()}
        text = json.dumps({"schema": SCHEMA, **fields}, indent=1, ensure_ascii=False) + "\n"
        (folder / MANIFEST).write_text(text, encoding="utf-8")
    except OSError as error:
        raise EvidenceError(
            f"The evidence in {folder} cannot be written: {error.strerror}."
        ) from error
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest. Raises EvidenceError if it is missing or unreadable."""
    try:
        return parse_manifest(folder / MANIFEST)
    except FileNotFoundError as error:
        raise EvidenceError(f"{folder} holds no evidence: there is no {MANIFEST} in it.") from error


def parse_manifest(path: Path) -> Manifest:
    """Read a manifest from a file of any name. Raises EvidenceError, FileNotFoundError."""
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise EvidenceError(f"{path} cannot be read: {error.strerror}.") from error
    return manifest_from(data, path)


def manifest_from(data: bytes, path: Path) -> Manifest:
    """Return the manifest with this content; errors name `path`. Raises EvidenceError."""
    try:
        fields = parse_json(data)
        if fields.pop("schema") != SCHEMA:
            raise EvidenceError(
                f"{path} was written by another version of Topicproof, which this one cannot read."
            )
        files = {name: Entry(**entry) for name, entry in fields.pop("files").items()}
        manifest = Manifest(**{**fields, "payloads": Payloads(fields["payloads"])}, files=files)
        return _CHECKED.validate_python(asdict(manifest) | {"files": files})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise EvidenceError(f"{path} is damaged: Topicproof does not write such a file.") from error


def manifest_hash(folder: Path) -> str | None:
    """Return the SHA-256 of the folder's manifest; None without one. Raises EvidenceError."""
    try:
        return hashlib.sha256(read_bytes(folder / MANIFEST)).hexdigest()
    except OSError:
        return None


def differences(folder: Path) -> list[Difference]:
    """Return the files that differ from the manifest. Raises EvidenceError without a manifest."""
    entries = read_manifest(folder).files
    names = _files(folder)
    changed = [Difference(name, "missing") for name in entries.keys() - set(names)]
    changed += [Difference(name, "added") for name in set(names) - entries.keys()]
    try:
        changed += [
            Difference(name, "changed")
            for name in names
            if name in entries and not _same(folder / name, entries[name])
        ]
    except OSError as error:
        raise EvidenceError(
            f"The evidence in {folder} cannot be read: {error.strerror}."
        ) from error
    return sorted(changed)


def require_unchanged(folder: Path) -> str:
    """Return the manifest's hash. Raises EvidenceError naming the files that differ."""
    changed = differences(folder)
    if changed:
        named = ", ".join(
            f"{plain_name(difference.file)} ({difference.how})" for difference in changed[:5]
        )
        more = f" and {len(changed) - 5:,} more" if len(changed) > 5 else ""
        raise EvidenceError(f"The evidence in {folder} is not what was written: {named}{more}.")
    return manifest_hash(folder) or ""


def require_unchanged_file(folder: Path, name: str) -> None:
    """Check one file of the evidence, if it is there. Raises EvidenceError if it is not what was
    written."""
    path, entry = folder / name, read_manifest(folder).files.get(name)
    try:
        changed = (path.exists() or path.is_symlink()) and (entry is None or not _same(path, entry))
    except OSError as error:
        raise EvidenceError(f"{path} cannot be read: {error.strerror}.") from error
    if changed:
        raise EvidenceError(f"{path} is not what was written.")


def _files(folder: Path) -> list[str]:
    """List every file in the folder. A link counts as a file: its target is not part of the
    evidence."""
    files = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    unlisted = (folder / MANIFEST, folder / ATTESTATION)
    return sorted(str(path.relative_to(folder)) for path in files if path not in unlisted)


def _same(path: Path, entry: Entry) -> bool:
    if not plain_file(path) or path.stat().st_size != entry.bytes:
        return False
    return _entry(path) == entry


def _entry(path: Path) -> Entry:
    if not plain_file(path):
        return NO_FILE
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Entry(digest, path.stat().st_size)
